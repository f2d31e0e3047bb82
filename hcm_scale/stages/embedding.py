"""The embeddings of all nodes under one parameter sample after the other, in memory or in files, by one or more ranks.

    folder/  layer-0  layer-1      (n, width) float32 each, without a header

On a CPU layers are written to two arrays in turn, each computed from the one before; edges are predicted from the last.
Both read rows at random, so in memory the arrays are in large pages (`new_rows`). In a folder they are memory maps,
which ranks share: each computes its own rows of every layer, all meet at a barrier, and map the layer again, so that
what another machine wrote is seen. A rank past the barrier of one layer no longer reads the layer before it, which is
the next to be overwritten. Ranges of rows are whole chunks, cut where one process cuts them, and fill whole pages: any
number of ranks ends in the same bits, and no page is written by two.

On a GPU each rank embeds the whole graph: that takes less time than reading what the others made. A model of two layers
on an exact first hop needs, of each node, the sum over its row of Â of relu(x W + b), and x are rows of Â X.
`sum_hidden`, the kernel that trains, makes it for a chunk of nodes at a time, and the second layer multiplies it: the
first layer is never in memory. Device memory: the graph (`graph_bytes`), 4 width bytes a node for the result, and a
chunk. Where the neighbours of all nodes do not fit, those of a chunk are copied in turn: x and the result stay, in
20 + 4 (columns + width) bytes a node. A graph that is too large even for that is scored by the CPU.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_to_device, free_bytes
from hcm_scale.base.npy import create_file
from hcm_scale.base.spmm import ModelInput
from hcm_scale.graph import Graph
from hcm_scale.model import CHUNK_ROWS, HopModel, Layers, embed_graph
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.sampling.device.batches import EndsBatch, Hubs, find_hubs, fused_columns, sum_hidden
from hcm_scale.sampling.device.graph import DeviceGraph, graph_bytes, graph_to
from hcm_scale.score.edge_index import PairHead

DEVICE_CHUNK_ROWS = 1 << 20
_ALL = 2**31 - 1  # neighbours
_LINE = 16  # floats of a cache line
_WORK_BYTES = 1 << 30  # beside them: ranges of edges on their way through, and what CUDA and Triton take


def device_columns(model: HopModel, structure: Graph, device: torch.device | str, *, propagated: bool) -> int | None:
    """Columns of x for `embed_all`; None if it cannot serve this model, graph or device."""
    if not propagated or len(model.encoder) != 2 or structure.weights is not None:
        return None
    num_attributes, width = model.encoder[0].weight.shape
    return fused_columns(num_attributes, width, torch.device(device))


def graph_on_device(structure: Graph, x: ModelInput, columns: int, width: int, device: str) -> DeviceGraph:
    """The graph on the device; without the neighbours if they do not fit beside its embedding."""
    beside = 4 * width * (structure.num_nodes + min(DEVICE_CHUNK_ROWS, structure.num_nodes)) + _WORK_BYTES
    fits = graph_bytes(structure.num_nodes, structure.indices, columns) + beside <= free_bytes(device)
    return graph_to(device, structure.indptr, structure.indices if fits else structure.indices[:0], x, columns)


def fits_device(structure: Graph, columns: int, width: int, device: str) -> bool:
    """Whether there is room for x and the result, and the neighbours of any chunk."""
    chunk = 4 * width * min(DEVICE_CHUNK_ROWS, structure.num_nodes)
    firsts = structure.indptr[:: min(DEVICE_CHUNK_ROWS, max(1, structure.num_nodes))]
    neighbors = structure.indices.itemsize * int(np.diff(np.append(firsts, structure.num_arcs)).max(initial=0))
    held = (20 + 4 * (columns + width)) * structure.num_nodes
    return held + chunk + neighbors + _WORK_BYTES <= free_bytes(device)


def chunk_hubs(graph: DeviceGraph) -> list[Hubs | None]:
    """Of each chunk of nodes, for `embed_all`: found once for all samples, as the host has to wait for them."""
    begins = range(0, graph.num_nodes, DEVICE_CHUNK_ROWS)
    return [find_hubs(graph, begin, min(begin + DEVICE_CHUNK_ROWS, graph.num_nodes)) for begin in begins]


@torch.no_grad()
def embed_all(
    model: HopModel,
    graph: DeviceGraph,
    out: Tensor,
    indices: NDArray[Any] | None = None,
    hubs: Sequence[Hubs | None] = (),
) -> Tensor:
    """Embeddings of all nodes into `out`, (n, width) f32, from exact neighbourhoods; as exact as torch's products are.

    `indices` are the neighbours of all nodes on the host, for a graph that has none on the device. `out` may hold the
    embeddings of another sample, which are used up.
    """
    first, second = model.encoder
    none, key = graph.indices[:0], torch.zeros(1, dtype=torch.int64, device=graph.device)
    begins = range(0, graph.num_nodes, DEVICE_CHUNK_ROWS)
    for begin, shared in zip(begins, hubs or chunk_hubs(graph), strict=True):
        end = min(begin + DEVICE_CHUNK_ROWS, graph.num_nodes)
        nodes = torch.arange(begin, end, dtype=graph.indices.dtype, device=graph.device)
        row = EndsBatch(_around(graph, begin, end, indices), none, none, key, limit=_ALL, epoch=0, step=0)
        sums = sum_hidden(row, nodes, first.weight, first.bias, shared)
        torch.addmm(second.bias, sums, second.weight, out=out[begin:end])
        model.activate(1, out[begin:end])
    return out


def _around(graph: DeviceGraph, begin: int, end: int, indices: NDArray[Any] | None) -> DeviceGraph:
    """A graph in which the nodes begin .. end - 1 have their neighbours: the same, or one with only those."""
    if indices is None or len(graph.indices) == len(indices):
        return graph
    low, high = graph.indptr[[begin, end]].tolist()
    return replace(graph, indptr=graph.indptr - low, indices=copy_to_device(indices[low:high], graph.device))


def embed_samples(
    model: Mapping[str, Any],
    samples: Iterable[Mapping[str, Tensor]],
    structure: Graph,
    x: ModelInput,
    *,
    propagated: bool,
    chunk_rows: int = CHUNK_ROWS,
    device: str,
    folder: Path | None = None,
    world: World = ALONE,
) -> Iterator[tuple[Tensor, PairHead]]:
    """(embedding of all nodes, pair head) of each sample; an embedding is overwritten by the next.

    `folder` holds the layers, which are in memory if it is None; it may hold what a killed run left, and the caller
    removes it. Several ranks need a folder, the same for all, and all of them must ask for every sample.
    """
    net = HopModel(**model).to(device)
    columns = device_columns(net, structure, device, propagated=propagated)
    if columns is not None:
        width = net.width
        held = graph_on_device(structure, x, columns, width, device)
        room, hubs = torch.empty(held.num_nodes, width, device=device), chunk_hubs(held)
        for sample in samples:
            net.load_state_dict(dict(sample))
            yield embed_all(net, held, room, structure.indices, hubs), PairHead.of(sample)
        return
    layers, x = None, np.asarray(x)
    if torch.device(device).type == "cpu":
        layers = TwoLayers((structure.num_nodes, net.width), folder, world)
    for sample in samples:
        net.load_state_dict(dict(sample), strict=net.is_gcn)  # others may have buffers, which are no part of it
        z = embed_graph(
            net,
            structure.indptr,
            structure.indices,
            x,
            propagated=propagated,
            chunk_rows=chunk_rows,
            device=device,
            layers=layers,
            weights=structure.weights,
        )
        yield z, PairHead.of(sample)


def new_rows(num_rows: int, width: int) -> Tensor:
    """Uninitialised float32 rows that begin with a cache line, in large pages where the system has them on request.

    numpy asks for large pages; torch does not above some size. Rows at random are read faster from them.
    """
    room = np.empty(num_rows * width + _LINE, np.float32)
    skipped = -room.ctypes.data % (4 * _LINE) // 4
    return torch.from_numpy(room[skipped : skipped + num_rows * width].reshape(num_rows, width))


class TwoLayers(Layers):
    """Two arrays that hold one layer after the other: in memory, or in two files of a folder that all ranks see."""

    def __init__(self, shape: tuple[int, int], folder: Path | None, world: World) -> None:
        super().__init__(shape)
        self.world, self.turn = world, 0
        self.arrays: dict[int, Tensor] = {}
        self.paths = None if folder is None else (folder / "layer-0", folder / "layer-1")
        if folder is not None and self.paths is not None:
            if world.leads:
                folder.mkdir(parents=True, exist_ok=True)
                for path in self.paths:
                    create_file(path, 4 * shape[0] * shape[1])
            world.barrier()

    def own(self, chunks: list[slice]) -> list[slice]:
        return chunks[slice(*self.world.share(len(chunks)))]

    def room(self) -> Tensor:
        self.turn = 1 - self.turn
        if self.paths is not None:
            return self._mapped(self.paths[self.turn])
        if self.turn not in self.arrays:
            self.arrays[self.turn] = new_rows(*self.shape)
        return self.arrays[self.turn]

    def whole(self, layer: Tensor) -> Tensor:
        if self.paths is None:
            return layer
        if self.world.local_size < self.world.size:
            self.map.flush()
        self.world.barrier()
        return self._mapped(self.paths[self.turn])

    def _mapped(self, path: Path) -> Tensor:
        with open(path, "r+b") as stream:
            self.map = mmap.mmap(stream.fileno(), 0)
        return torch.from_numpy(np.frombuffer(self.map, np.float32).reshape(self.shape))
