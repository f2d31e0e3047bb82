"""The embeddings of all nodes under one parameter sample after the other, in memory or in files, by one or more ranks.

    folder/  layer-0  layer-1      (n, width) float32 each, without a header

On a CPU layers are written to two arrays in turn, each computed from the one before; edges are predicted from the last.
Both read rows at random, so in memory the arrays are in large pages (`new_rows`). In a folder they are memory maps,
which ranks share: each computes its own rows of every layer, all meet at a barrier, and map the layer again, so that
what another machine wrote is seen. A rank past the barrier of one layer no longer reads the layer before it, which is
the next to be overwritten. Ranges of rows are whole chunks, cut where one process cuts them, and fill whole pages: any
number of ranks ends in the same bits, and no page is written by two.

On a GPU each rank embeds the whole graph: that takes less time than reading what the others made. Of a model of two
layers on an exact first hop the first layer is relu(x W + b), and x are rows of Â X; some of its columns at a time are
made of all nodes and propagated (`spmm_device`), and the second layer multiplies the sums in their place. Device
memory: the graph (`graph_bytes`), 4 width bytes a node for the result, 64 or more for columns of the first layer, and a
chunk. Where the neighbours of all nodes do not fit, those of a chunk are copied in turn: x and the result stay, in 84 +
4 (columns + width) bytes a node. A graph that is too large even for that is scored by the CPU.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
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
from hcm_scale.sampling.device.graph import DeviceGraph, graph_bytes, graph_to
from hcm_scale.score.edge_index import PairHead

DEVICE_CHUNK_ROWS = 1 << 20
_LEAST_COLUMNS = 16  # of the first layer: a row is then two sectors of the device's memory
_SHARE = 3  # of the free memory, the part that the first layer may take
_LINE = 16  # floats of a cache line
_WORK_BYTES = 1 << 30  # beside them: ranges of edges on their way through, and what CUDA and Triton take


def device_serves(model: HopModel, structure: Graph, device: torch.device | str, *, propagated: bool) -> bool:
    """Whether `embed_all` can serve this model, graph and device."""
    if not propagated or len(model.encoder) != 2 or structure.weights is not None:
        return False
    return torch.device(device).type == "cuda" and find_spec("triton") is not None


def graph_on_device(structure: Graph, x: ModelInput, width: int, device: str) -> DeviceGraph:
    """The graph on the device; without the neighbours if they do not fit beside its embedding."""
    n = structure.num_nodes
    beside = 4 * width * (n + min(DEVICE_CHUNK_ROWS, n)) + 4 * _LEAST_COLUMNS * n + _WORK_BYTES
    fits = graph_bytes(n, structure.indices, x.shape[1]) + beside <= free_bytes(device)
    return graph_to(device, structure.indptr, structure.indices if fits else structure.indices[:0], x)


def fits_device(structure: Graph, columns: int, width: int, device: str) -> bool:
    """Whether there is room for x, of so many columns, and the result, and the neighbours of any chunk."""
    chunk = 4 * width * min(DEVICE_CHUNK_ROWS, structure.num_nodes)
    firsts = structure.indptr[:: min(DEVICE_CHUNK_ROWS, max(1, structure.num_nodes))]
    neighbors = structure.indices.itemsize * int(np.diff(np.append(firsts, structure.num_arcs)).max(initial=0))
    held = (20 + 4 * (columns + width + _LEAST_COLUMNS)) * structure.num_nodes
    return held + chunk + neighbors + _WORK_BYTES <= free_bytes(device)


def hidden_on_device(num_nodes: int, width: int, device: torch.device | str) -> Tensor:
    """Room for some columns of the first layer: for all where they take a part of the free memory, else for fewer."""
    from hcm_scale.base.spmm_device import MOST_COLUMNS  # imports Triton

    free, columns = free_bytes(device), min(width, MOST_COLUMNS)
    while columns > _LEAST_COLUMNS and 4 * columns * num_nodes > free / _SHARE:
        columns = max(_LEAST_COLUMNS, -(-columns // 2))
    return torch.empty(num_nodes, columns, device=device)


@torch.no_grad()
def embed_all(
    model: HopModel, graph: DeviceGraph, out: Tensor, hidden: Tensor, indices: NDArray[Any] | None = None
) -> Tensor:
    """Embeddings of all nodes into `out`, (n, width) f32, from exact neighbourhoods; as exact as torch's products are.

    `indices` are the neighbours of all nodes on the host, for a graph that has none on the device. `out` may hold the
    embeddings of another sample, which are used up; `hidden` is room for columns of the first layer.
    """
    from hcm_scale.base.spmm_device import make_rows  # imports Triton

    first, second = model.encoder
    num_nodes, passes = graph.num_nodes, indices is not None and len(graph.indices) < len(indices)
    begins = range(0, num_nodes, DEVICE_CHUNK_ROWS)
    chunks = [slice(begin, min(begin + DEVICE_CHUNK_ROWS, num_nodes)) for begin in begins]
    for left in range(0, out.shape[1], hidden.shape[1]):
        columns = slice(left, min(left + hidden.shape[1], out.shape[1]))
        weight, bias = first.weight[:, columns], first.bias[columns]
        layer = hidden.view(-1)[: num_nodes * len(bias)].view(num_nodes, len(bias))
        for rows in chunks:
            model.activate(0, torch.addmm(bias, graph.x[rows, : len(weight)], weight, out=layer[rows]))
        near, low = graph.indices, 0
        for rows in chunks if passes else [slice(0, num_nodes)]:  # at once: rows of hubs take long, one after the other
            if indices is not None and passes:
                low, high = graph.indptr[[rows.start, rows.stop]].tolist()
                near = copy_to_device(indices[low:high], graph.device)
            make_rows(out[rows, columns], graph.indptr, near, graph.scale, layer, rows.start, low)
    for rows in chunks:
        out[rows] = model.activate(1, torch.addmm(second.bias, out[rows], second.weight))
    return out


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
    if device_serves(net, structure, device, propagated=propagated):
        held = graph_on_device(structure, x, net.width, device)
        room = torch.empty(held.num_nodes, net.width, device=device)
        hidden = hidden_on_device(held.num_nodes, net.width, device)
        for sample in samples:
            net.load_state_dict(dict(sample))
            yield embed_all(net, held, room, hidden, structure.indices), PairHead.of(sample)
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
