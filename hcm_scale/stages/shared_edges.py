"""Ranks share the edges of the score stage: each predicts one contiguous range, rank 0 puts the ranges together.

    out/parts/  rank-0/  edges_mean.npy  edges_var.npy    rank-1/ ...

Ranges are cut where a single process ends a chunk, so every product has the same shape and every edge the same bits at
any number of ranks. Each rank embeds the whole graph: that is a small part of the work (one row of products a node,
against one an edge), and sharing it would send n x width floats a sample over the network.

Memory: 8 bytes an edge of the range, none where `on_disk`; rank 0 then holds 8 bytes an edge, or maps them.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base import files
from hcm_scale.base.mapped import map_new, save_new
from hcm_scale.ranks.world import World
from hcm_scale.score.edges import CPU_CHUNK_EDGES, CUDA_CHUNK_EDGES, MEAN_FILE, VAR_FILE, EdgeHops, predict_edges
from hcm_scale.score.head import Head
from hcm_scale.score.numbering import EdgeIndex


@dataclass(frozen=True, eq=False)
class EdgeRange(EdgeIndex):
    """The edges first .. last - 1 of an index, numbered from 0."""

    first: int
    last: int

    @staticmethod
    def of(edges: EdgeIndex, first: int, last: int) -> "EdgeRange":
        parts = {entry.name: getattr(edges, entry.name) for entry in fields(EdgeIndex)}
        return EdgeRange(**parts, first=first, last=last)

    @property
    def num_edges(self) -> int:
        return self.last - self.first

    def edges(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        left, right, number = super().edges(self.first + first, self.first + last)
        return left, right, number - self.first


@dataclass(frozen=True)
class Sharing:
    """How ranks share the edges, and the folder of the stage, in which they hand over their parts."""

    world: World
    folder: Path
    chunk: int  # edges of one product
    on_disk: bool  # whether the running moments are kept in files

    @property
    def parts(self) -> Path:
        return self.folder / "parts"

    def edge_range(self, num_edges: int, rank: int) -> tuple[int, int]:
        """The edges first .. last - 1 of a rank: whole chunks, shared out evenly.

        >>> sharing = Sharing(World(size=3), Path("scores"), chunk=30, on_disk=False)
        >>> [sharing.edge_range(100, rank) for rank in range(3)]
        [(0, 30), (30, 60), (60, 100)]
        """
        num_chunks = -(-num_edges // self.chunk)
        shares = (num_chunks * at // self.world.size for at in (rank, rank + 1))
        first, last = (min(self.chunk * share, num_edges) for share in shares)
        return first, last

    def num_own(self, num_edges: int) -> int:
        """How many edges fall to this rank."""
        first, last = self.edge_range(num_edges, self.world.rank)
        return last - first


def chunk_of(chunk_edges: int | None, device: str) -> int:
    """The chunk that a single process would use."""
    return chunk_edges or (CUDA_CHUNK_EDGES if torch.device(device).type == "cuda" else CPU_CHUNK_EDGES)


def predict_shared(
    edges: EdgeIndex, samples: Iterable[tuple[Tensor, Head]], sharing: Sharing, **options: Any
) -> EdgeHops | None:
    """Mean and variance of every edge on rank 0, in the folder where `on_disk`; None on the others.

    `options` are those of `predict_edges`.
    """
    world, parts = sharing.world, sharing.parts
    if world.leads:
        shutil.rmtree(parts, ignore_errors=True)  # of ranks that were killed
        sharing.folder.mkdir(parents=True, exist_ok=True)
    options |= {"chunk_edges": sharing.chunk}
    if world.size == 1:
        return predict_edges(edges, samples, folder=sharing.folder if sharing.on_disk else None, **options)
    world.barrier()
    own = parts / f"rank-{world.rank}"
    own.mkdir(parents=True)
    first, last = sharing.edge_range(edges.num_edges, world.rank)
    if last > first:
        window = EdgeRange.of(edges, first, last)
        save_hops(predict_edges(window, samples, folder=own if sharing.on_disk else None, **options), own)
    world.barrier()
    if not world.leads:
        return None
    hops = _join(sharing, edges.num_edges)
    shutil.rmtree(parts)
    return hops


def save_hops(hops: EdgeHops, folder: Path) -> None:
    """Writes mean and variance as two files, or what is still in memory of the files that they are mapped from."""
    for name, values in ((MEAN_FILE, hops.mean), (VAR_FILE, hops.var)):
        if isinstance(values, np.memmap) and (folder / name).exists():
            values.flush()
        else:
            save_new(folder / name, values)
        files.sync_file(folder / name)


def _join(sharing: Sharing, num_edges: int) -> EdgeHops:
    """All ranges in edge order: in memory, or as memory maps of files in the folder."""

    def joined(name: str) -> NDArray[np.float32]:
        if not sharing.on_disk or not num_edges:  # an empty file cannot be mapped
            whole = np.empty(num_edges, np.float32)
        else:
            whole = map_new(sharing.folder / name, np.float32, (num_edges,))
        for rank in range(sharing.world.size):
            first, last = sharing.edge_range(num_edges, rank)
            if last > first:
                whole[first:last] = np.load(sharing.parts / f"rank-{rank}" / name, mmap_mode="r", allow_pickle=False)
        return whole

    return EdgeHops(joined(MEAN_FILE), joined(VAR_FILE))
