"""Ranks share the edges of the score stage: each predicts one contiguous range, rank 0 puts the ranges together.

    parts/  rank-0/  edges_mean.npy  edges_var.npy    rank-1/ ...

Ranges are cut where a single process ends a chunk, so every product has the same shape and every edge the same bits at
any number of ranks. Each rank embeds the whole graph: that is a small part of the work (one row of products a node,
against one an edge), and sharing it would send n x width floats a sample over the network.

Memory: 8 bytes an edge of the range, none where `on_disk`; rank 0 then holds 8 bytes an edge, or maps them.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.mapped import map_new
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
class Share:
    """One process among those that score together, and the folder through which they hand over their parts."""

    rank: int
    world: int
    barrier: Callable[[], Any]
    parts: Path

    def edge_range(self, num_edges: int, chunk: int, rank: int | None = None) -> tuple[int, int]:
        """The edges first .. last - 1 of a rank, this one unless named: whole chunks, shared out evenly.

        >>> share = Share(0, 3, lambda: None, Path("parts"))
        >>> [share.edge_range(100, 30, rank) for rank in range(3)]
        [(0, 30), (30, 60), (60, 100)]
        """
        rank = self.rank if rank is None else rank
        num_chunks = -(-num_edges // chunk)
        first, last = (min(chunk * (num_chunks * at // self.world), num_edges) for at in (rank, rank + 1))
        return first, last


def chunk_of(chunk_edges: int | None, device: str) -> int:
    """The chunk that a single process would use."""
    return chunk_edges or (CUDA_CHUNK_EDGES if torch.device(device).type == "cuda" else CPU_CHUNK_EDGES)


def predict_shared(
    edges: EdgeIndex,
    samples: Iterable[tuple[Tensor, Head]],
    share: Share,
    *,
    chunk: int,
    on_disk: bool,
    folder: Path | None,
    **options: Any,
) -> EdgeHops | None:
    """Mean and variance of every edge on rank 0, in `folder` where `on_disk`; None on the others.

    `options` are those of `predict_edges`.
    """
    if share.world == 1:
        return predict_edges(edges, samples, chunk_edges=chunk, folder=folder if on_disk else None, **options)
    if share.rank == 0:
        shutil.rmtree(share.parts, ignore_errors=True)  # of a run that was killed
        share.parts.mkdir(parents=True)
    share.barrier()
    mine = share.parts / f"rank-{share.rank}"
    mine.mkdir()
    first, last = share.edge_range(edges.num_edges, chunk)
    if last > first:
        window = EdgeRange.of(edges, first, last)
        _save(predict_edges(window, samples, chunk_edges=chunk, folder=mine if on_disk else None, **options), mine)
    share.barrier()
    if share.rank > 0:
        return None
    hops = _join(share, edges.num_edges, chunk, folder if on_disk else None)
    shutil.rmtree(share.parts)
    return hops


def _save(hops: EdgeHops, folder: Path) -> None:
    for name, values in ((MEAN_FILE, hops.mean), (VAR_FILE, hops.var)):
        if isinstance(values, np.memmap):
            values.flush()
        else:
            np.save(folder / name, values, allow_pickle=False)


def _join(share: Share, num_edges: int, chunk: int, folder: Path | None) -> EdgeHops:
    """All ranges in edge order: in memory, or as memory maps of files in `folder`."""

    def joined(name: str) -> NDArray[np.float32]:
        if folder is None or not num_edges:  # an empty file cannot be mapped
            whole = np.empty(num_edges, np.float32)
        else:
            whole = map_new(folder / name, np.float32, (num_edges,))
        for rank in range(share.world):
            first, last = share.edge_range(num_edges, chunk, rank)
            if last > first:
                whole[first:last] = np.load(share.parts / f"rank-{rank}" / name, mmap_mode="r", allow_pickle=False)
        return whole

    return EdgeHops(joined(MEAN_FILE), joined(VAR_FILE))
