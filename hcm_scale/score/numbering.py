"""Which edges are scored, and the number of each: a view of the CSR, never a list of edges.

`EdgeIndex` finds the ends of edge e, and the edges of node v, from the CSR and one count a row. Memory: 8 bytes a node,
8 more where `max_neighbors` bounds what is scored.

With `max_neighbors = k` every node draws k of its neighbours uniformly without replacement, and an edge is scored when
one of its ends drew it. Scores of v average over v's own draw alone: averaging over all scored edges would overweight
the neighbours of small degree, which draw everything and so pull their edges in.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.base.threads import in_threads
from hcm_scale.score import kernels

_PURPOSE = 0x5C0E  # keeps these draws apart from other uses of the same seed


@dataclass(frozen=True, eq=False)
class EdgeIndex:
    """The edges of a graph, numbered by their CSR order: column > row, or every arc of a directed graph.

    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> left, right, number = path.edges(0, 2)
    >>> left.tolist(), right.tolist(), path.of_node(1).tolist()
    ([0, 1], [1, 2], [0, 1])
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    start: NDArray[np.int64]  # (n + 1): number of the first edge of each row
    directed: bool
    limit: NDArray[np.uint64]  # (n): largest hash drawn by each node; empty where every edge is scored
    seed: int

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.start[-1])

    @property
    def for_kernels(self) -> kernels.Edges:
        return kernels.Edges(self.indptr, self.indices, self.start, self.directed, self.limit, self.seed)

    def edges(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Left ends, right ends and numbers of the scored edges among first .. last - 1."""
        left, right = (np.empty(last - first, self.indices.dtype) for _ in range(2))
        number = np.empty(last - first, np.int64)
        row = int(np.searchsorted(self.start, first, side="right")) - 1
        found = kernels.list_edges(self.for_kernels, first, last, row, left, right, number)
        return left[:found], right[:found], number[:found]

    def of_node(self, v: int) -> NDArray[np.int64]:
        """The edge numbers of v's neighbours (out-neighbours if directed), in CSR order, drawn or not."""
        out = np.empty(self.indptr[v + 1] - self.indptr[v], np.int64)
        kernels.row_edges(self.for_kernels, v, out)
        return out


def edge_index(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    *,
    directed: bool = False,
    max_neighbors: int | None = None,
    seed: int = 0,
) -> EdgeIndex:
    """Numbers the edges of a CSR with sorted rows; `max_neighbors` bounds what each node is scored by."""
    if max_neighbors is not None and max_neighbors < 1:
        raise ValueError(f"max_neighbors={max_neighbors} must be at least 1, or None to score every neighbour")
    start = indptr
    if not directed:
        start = np.zeros(len(indptr), np.int64)
        in_threads(len(indptr) - 1, kernels.count_upper, indptr, indices, start[1:])
        np.cumsum(start, out=start)
    limit, key = np.empty(0, np.uint64), rng.key(seed, _PURPOSE)
    if max_neighbors is not None:
        limit = np.empty(len(indptr) - 1, np.uint64)
        in_threads(len(limit), kernels.draw_limits, indptr, indices, max_neighbors, key, limit)
    return EdgeIndex(indptr, indices, start, directed, limit, key)
