"""Numbers of a graph's edges, and averages over each node's edges: a view of the CSR.

Edges of an undirected graph are numbered by the CSR entries with column > row. Rows are sorted, so those entries are
the tail of each row, and with `start[u]` = how many of them the rows before u have,

    CSR position of edge e in row u  =  indptr[u + 1] - start[u + 1] + e.

A directed graph has start = indptr, and the same formula gives position = e. Memory: 8 bytes per node. No
result depends on the number of threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcm_scale.base.jit import kernel, prefetch
from hcm_scale.base.threads import run_in_threads
from hcm_scale.graph.lookup import find_arcs, first_above

if TYPE_CHECKING:
    from torch import Tensor

MANY_ENTRIES = 1 << 27  # of a CSR: sixteen cores take a second or two for a pass over them, a GPU less to get them
_AHEAD = 16  # neighbours between prefetching an edge and reading it
_ONE = np.uint64(1)
_MAX_KEY = np.uint32(0xFFFFFFFF)


class Edges(NamedTuple):
    """Fields of an `EdgeIndex`, as kernels take them."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    start: NDArray[np.int64]
    directed: bool


@dataclass(frozen=True, eq=False)
class EdgeIndex:
    """Edges of a graph, numbered by their CSR order: column > row, or every arc of a directed graph.

    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> left, right, number = path.edges(0, 2)
    >>> left.tolist(), right.tolist(), path.of_node(1).tolist(), path.find([2, 0], [1, 2]).tolist()
    ([0, 1], [1, 2], [0, 1], [1, -1])
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    start: NDArray[np.int64]  # (n + 1): number of the first edge of each row
    directed: bool

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.start[-1])

    @property
    def for_kernels(self) -> Edges:
        return Edges(self.indptr, self.indices, self.start, self.directed)

    def edges(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Left ends, right ends and numbers of the edges first .. last - 1."""
        left, right = (np.empty(last - first, self.indices.dtype) for _ in range(2))
        row = int(np.searchsorted(self.start, first, side="right")) - 1
        list_edges(self.for_kernels, first, last, row, left, right)
        return left, right, np.arange(first, last)

    def find(self, left: ArrayLike, right: ArrayLike) -> NDArray[np.int64]:
        """Number of the edge from left[i] to right[i]; -1 where there is none, or no such node."""
        u, v = np.asarray(left, np.int64), np.asarray(right, np.int64)
        u, v = (u, v) if self.directed else (np.minimum(u, v), np.maximum(u, v))
        known = np.flatnonzero((np.minimum(u, v) >= 0) & (np.maximum(u, v) < self.num_nodes))
        at, found = find_arcs(self.indptr, self.indices, u[known], v[known])
        known, out = known[found], np.full(len(u), -1)
        out[known] = at[found] - self.indptr[u[known] + 1] + self.start[u[known] + 1]
        return out

    def of_node(self, v: int) -> NDArray[np.int64]:
        """Numbers of the edges to v's neighbours (out-neighbours if directed), in CSR order."""
        out = np.empty(self.indptr[v + 1] - self.indptr[v], np.int64)
        row_edges(self.for_kernels, v, out)
        return out


def edge_index(indptr: NDArray[np.int64], indices: NDArray[Any], *, directed: bool = False) -> EdgeIndex:
    """Numbered edges of a CSR with sorted rows."""
    start = indptr
    if not directed:
        start = np.zeros(len(indptr), np.int64)
        run_in_threads(len(indptr) - 1, first_above, indptr, indices, start[1:])
        np.subtract(indptr[1:], start[1:], out=start[1:])
        np.cumsum(start, out=start)
    return EdgeIndex(indptr, indices, start, directed)


class PairHead(NamedTuple):
    """|z_u - z_v| -> Linear -> ReLU -> Linear: weights (width, hidden) and (hidden, C), each with its bias."""

    weight0: "Tensor"
    bias0: "Tensor"
    weight1: "Tensor"
    bias1: "Tensor"

    @staticmethod
    def of(sample: Mapping[str, "Tensor"]) -> "PairHead":
        """Head of a parameter sample."""
        return PairHead(*(sample[f"head.{i}.{part}"].detach() for i in range(2) for part in ("weight", "bias")))


class Pairs(NamedTuple):
    """Edges on a device, (m,) each; whether z_u - z_v keeps its sign; whether the hop is expected or likeliest."""

    left: "Tensor"
    right: "Tensor"
    signed: bool
    expected: bool


def check_finite(finite: bool, count: int) -> None:
    """Raises ValueError if the predictions of the count-th sample overflowed."""
    if not finite:
        raise ValueError(
            f"parameter sample {count - 1} predicts NaN or infinite logits: the chain it came from diverged"
        )


@kernel
def list_edges(edges, first, last, row, left, right):
    """Both ends of the edges first .. last - 1; row `row` is that of `first`."""
    indptr, indices, start, _ = edges
    u = row
    for e in range(first, last):
        while start[u + 1] <= e:
            u += 1
        left[e - first] = u
        right[e - first] = indices[indptr[u + 1] - start[u + 1] + e]


@kernel(inline="always")
def edge_number(indptr, indices, start, directed, v, position):
    """Number of the edge at CSR entry `position` of row v.

    Indices are unsigned, because numba checks each signed one for a count from the end.
    """
    u = np.uint64(indices[np.uint64(position)])
    if directed or u > np.uint64(v):
        return position - indptr[v + 1] + start[v + 1]
    low, high = start[u], start[u + _ONE]
    shift = indptr[u + _ONE] - high
    while low < high:
        middle = (low + high) // 2
        if indices[np.uint64(middle + shift)] < v:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(inline="always")
def ask_ahead(indptr, indices, start, v, position):
    """Prefetches what later entries look up: where a neighbour's edges begin, then the middle of them, which is near
    enough for most. Returns that edge, or 0 where none is looked up.
    """
    far = np.uint64(indices[np.uint64(min(position + 2 * _AHEAD, len(indices) - 1))])
    if far < np.uint64(v):
        prefetch(indptr, far)
        prefetch(start, far)
    u = np.uint64(indices[np.uint64(min(position + _AHEAD, len(indices) - 1))])
    if u < np.uint64(v):
        half = (start[u + _ONE] - start[u]) // 2
        prefetch(indices, indptr[u + _ONE] - half)
        return start[u + _ONE] - half
    return np.int64(0)


@kernel
def row_edges(edges, v, out):
    """out[i] = number of the edge between v and its i-th neighbour."""
    indptr, indices, start, directed = edges
    for i in range(len(out)):
        out[i] = edge_number(indptr, indices, start, directed, v, indptr[v] + i)


@kernel
def _bound(keys, num):
    """Key that exactly `num` keys do not exceed; where ties allow none, the num-th smallest.

    By bisection: counting is one vector loop over a row in the cache, where a sort would mispredict branches.
    """
    if num == len(keys):
        return _MAX_KEY
    low, high = np.uint32(0), _MAX_KEY
    while low < high:
        middle = np.uint32(low + (high - low) // 2)
        count, below, above = np.uint32(0), low, high
        for i in range(len(keys)):
            near = keys[i] <= middle
            count += near
            below = max(below, keys[i] if near else low)
            above = min(above, high if near else keys[i])
        if count == num:
            return middle
        if count > num:
            high = below
        else:
            low = above
    return high


@kernel
def _nearest(hops, spreads, keep):
    """Averages of both arrays over the share `keep` of smallest hops; of equal hops the first are taken.

    Positive floats sort as their bits do, and NaN after them.
    """
    # a product such as (1 - 0.7) * 10 lands a hair above the integer it means: the small term keeps ceil honest
    num_kept = min(max(1, int(np.ceil(keep * len(hops) - 1e-9))), len(hops))
    keys = hops.view(np.uint32)
    bound = _bound(keys, num_kept)
    ties = num_kept
    for i in range(len(keys)):
        ties -= keys[i] < bound
    hop, spread = 0.0, 0.0
    for i in range(len(keys)):
        if keys[i] < bound or (keys[i] == bound and ties > 0):
            ties -= keys[i] == bound
            hop += hops[i]
            spread += spreads[i]
    return hop / num_kept, spread / num_kept


@kernel(allocates=False)
def _gather_row(edges, v, means, var, hops, spreads):
    """Number of v's edges, whose means and variance are copied to `hops`, a row per mean, and `spreads`."""
    indptr, indices, start, directed = edges
    size = 0
    for position in range(indptr[v], indptr[v + 1]):
        if not directed:
            near = ask_ahead(indptr, indices, start, v, position)
            prefetch(var, near)
            for i in range(len(means)):
                prefetch(means[i], near)
        e = np.uint64(edge_number(indptr, indices, start, directed, v, position))
        for i in range(len(means)):
            hops[i, size] = means[i][e]
        spreads[size] = var[e]
        size += 1
    return size


@kernel
def average_rows(span, edges, keep, means, var, ahp, iv):
    """ahp[i, v] = average of means[i] over the nearest share `keep` of v's edges, and iv[v] that of `var` over
    the nearest by means[0]; 0 where there are none.

    Memory per thread: for each entry of the longest row 4 bytes per mean, and 4 more.
    """
    widest = 0
    for v in range(span[0], span[1]):
        widest = max(widest, edges.indptr[v + 1] - edges.indptr[v])
    hops, spreads = np.empty((len(means), widest), np.float32), np.empty(widest, np.float32)
    for v in range(span[0], span[1]):
        size = _gather_row(edges, v, means, var, hops, spreads)
        for i in range(len(means)):
            hop, spread = _nearest(hops[i, :size], spreads[:size], keep) if size else (0.0, 0.0)
            ahp[i, v] = hop
            if i == 0:
                iv[v] = spread
