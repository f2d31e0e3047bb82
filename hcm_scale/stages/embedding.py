"""The nodes of a graph embedded under one parameter sample after the other, in memory or not, by one rank or several.

    folder/  layer-0  layer-1      (n, width) float32 each, without a header

Layers are written to two arrays by turns, each made of the one before it; the last is what edges are predicted from.
In a folder the arrays are memory maps: nothing of n rows is in memory but what the system keeps of the files. Rows are
written in order and read at random. Ranks share such files: each makes its own rows of every layer, all meet, and map
the layer anew, so that what another machine wrote is seen. By turns nobody writes what another may still read: a rank
that is past the meeting of one layer has left the layer before it, which is the next to be overwritten.

Ranges of rows are whole chunks, cut where one process cuts them: every number of ranks ends in the same bits. A chunk
fills whole pages, so that no page of a file is written by two machines.

On a GPU each rank embeds the whole graph (`embed_device.py`): that takes less than reading what the others made.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.mapped import new_file
from hcm_scale.graph import Graph
from hcm_scale.model import CHUNK_ROWS, HopModel, embed_graph
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.score.head import Head
from hcm_scale.stages.embed_device import columns_for, embed_all, hold


def embed_samples(
    model: Mapping[str, Any],
    samples: Iterable[Mapping[str, Tensor]],
    structure: Graph,
    x: NDArray[np.float32],
    *,
    propagated: bool,
    chunk_rows: int = CHUNK_ROWS,
    device: str,
    folder: Path | None = None,
    world: World = ALONE,
) -> Iterator[tuple[Tensor, Head]]:
    """(embedding of all nodes, pair head) of each sample; one is gone when the next is asked for.

    `folder` is where the layers are kept; it may hold what a killed run left, and is the caller's to remove. None: they
    are in memory. Several ranks need a folder, the same for all, and all of them must ask for every sample.
    """
    net = HopModel(**model).to(device)
    columns = columns_for(net, torch.device(device), propagated=propagated) if structure.weights is None else None
    if columns is not None:
        width = net.encoder[-1].weight.shape[1]
        held = hold(structure, x, columns, width, device)
        room = torch.empty(held.num_nodes, width, device=device)
        for sample in samples:
            net.load_state_dict(dict(sample))
            yield embed_all(net, held, room, structure.indices), Head.of(sample)
        return
    layers: TwoArrays | None = None
    if torch.device(device).type == "cpu":
        shape = structure.num_nodes, int(net.encoder[-1].weight.shape[1])
        layers = TwoArrays(shape) if folder is None else TwoFiles(shape, folder, world)
    where: dict[str, Any] = {"propagated": propagated, "chunk_rows": chunk_rows, "device": device, "layers": layers}
    where["weights"] = structure.weights
    for sample in samples:
        net.load_state_dict(dict(sample))
        yield embed_graph(net, structure.indptr, structure.indices, x, **where), Head.of(sample)


class TwoArrays:
    """Layers in memory, made by one process."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.turn = shape, 0
        self.arrays: dict[int, Tensor] = {}

    def own(self, chunks: list[slice]) -> list[slice]:
        return chunks

    def room(self) -> Tensor:
        self.turn = 1 - self.turn
        if self.turn not in self.arrays:
            self.arrays[self.turn] = torch.empty(self.shape)
        return self.arrays[self.turn]

    def whole(self, layer: Tensor) -> Tensor:
        return layer


class TwoFiles(TwoArrays):
    """Layers in two files that all ranks see."""

    def __init__(self, shape: tuple[int, int], folder: Path, world: World) -> None:
        super().__init__(shape)
        self.world, self.paths = world, (folder / "layer-0", folder / "layer-1")
        if world.leads:
            folder.mkdir(parents=True, exist_ok=True)
            for path in self.paths:
                new_file(path, 4 * shape[0] * shape[1])
        world.barrier()

    def own(self, chunks: list[slice]) -> list[slice]:
        rank, size = self.world.rank, self.world.size
        return chunks[len(chunks) * rank // size : len(chunks) * (rank + 1) // size]

    def room(self) -> Tensor:
        self.turn = 1 - self.turn
        self.mapped = self._map()
        return self._array()

    def whole(self, layer: Tensor) -> Tensor:
        if self.world.local_size < self.world.size:
            self.mapped.flush()
        self.world.barrier()
        self.mapped = self._map()
        return self._array()

    def _map(self) -> mmap.mmap:
        with open(self.paths[self.turn], "r+b") as stream:
            return mmap.mmap(stream.fileno(), 0)

    def _array(self) -> Tensor:
        return torch.from_numpy(np.frombuffer(self.mapped, np.float32).reshape(self.shape))
