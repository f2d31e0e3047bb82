"""The graph as the searches see it, and how their results become pairs.

A layout is the graph as given (nothing is copied), or renamed by falling degree: the hubs, which almost every step
touches, then lie side by side and stay in cache, and nodes without any arc come last and have no row. The order of the
nodes (as given; or by degree, then number) is also the order in which the members of a class are ranked for sampling,
so which layout is taken must be a function of the graph and the sources alone.

The searches fill `Rows`, one row per source, with nodes of the layout; `write_pairs` turns them into u, v and hop under
the original numbers. Memory of a layout: two indices a node, or a copy of the CSR; and a second copy, of the reversed
arcs, where a directed graph needs them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.npy import read_only
from hcm_scale.base.threads import positions_where, run_in_threads

NOT_A_SOURCE = np.iinfo(np.int32).max
HUBS = 4096  # their rows of words fit into a second-level cache
_ROWS_PER_BLOCK, TASKS = 64, 128
_ONE = np.uint64(1)


class Layout(NamedTuple):
    """A graph in CSR: `names[i]` is the original number of node i, `node_of` the inverse; all arrays are read-only."""

    out_indptr: NDArray[np.int64]
    out_indices: NDArray[Any]
    in_indptr: NDArray[np.int64]
    in_indices: NDArray[Any]
    names: NDArray[Any]
    node_of: NDArray[Any]

    @property
    def num_nodes(self) -> int:
        return len(self.names)

    @property
    def num_linked(self) -> int:
        """Nodes with rows: the first ones. The others, behind them, have no arc."""
        return len(self.out_indptr) - 1


def linked_nodes(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes that have out-neighbours, in order."""
    return positions_where(len(indptr) - 1, lambda rows: np.diff(indptr[rows.start : rows.stop + 1]))


def original_layout(indptr: NDArray[np.int64], indices: NDArray[Any]) -> Layout:
    """The graph under its own names, not copied. Its in-arcs are its out-arcs until `with_in_arcs`."""
    same = np.arange(len(indptr) - 1, dtype=indices.dtype)
    return _frozen(indptr, indices, indptr, indices, same, same)


def degree_layout(indptr: NDArray[np.int64], indices: NDArray[Any], *, directed: bool = False) -> Layout:
    """The nodes of a CSR graph renamed by falling degree.

    >>> degree_layout(np.array([0, 1, 1, 3, 4]), np.array([2, 0, 3, 2], np.int32)).names.tolist()
    [2, 0, 3, 1]
    """
    num_nodes = len(indptr) - 1
    out_degrees = np.diff(indptr)
    degrees = out_degrees + np.bincount(indices, minlength=num_nodes) if directed else out_degrees
    names = np.empty(num_nodes, indices.dtype)
    sort_by_degree(degrees, np.zeros(degrees.max(initial=0) + 2, np.int64), names)
    node_of = np.empty_like(names)
    node_of[names] = np.arange(num_nodes, dtype=names.dtype)

    linked = names[: np.count_nonzero(degrees)]
    out_indptr = np.zeros(len(linked) + 1, np.int64)
    np.cumsum(out_degrees[linked], out=out_indptr[1:])
    out_indices = np.empty(len(indices), indices.dtype)
    run_in_threads(TASKS, rename_rows, indptr, indices, linked, node_of, out_indptr, out_indices)
    return _frozen(out_indptr, out_indices, out_indptr, out_indices, names, node_of)


@kernel
def sort_by_degree(degrees, starts, names):
    """Counting sort: the nodes by falling degree, then number; `starts` comes in zeroed, of max degree + 2."""
    highest = len(starts) - 2
    for degree in degrees:
        starts[highest - degree + 1] += 1
    for k in range(highest + 1):
        starts[k + 1] += starts[k]
    for v in range(len(degrees)):
        k = highest - degrees[v]
        names[starts[k]] = v
        starts[k] += 1


@kernel(allocates=False)
def rename_rows(span, indptr, indices, names, node_of, out_indptr, out_indices):
    """Row i becomes the row of node names[i] under new names, its hubs first (else in any order).

    Rows come by falling degree, so a task takes every 128th block of them: as many arcs as any other task.
    """
    num_blocks = (len(names) + _ROWS_PER_BLOCK - 1) // _ROWS_PER_BLOCK
    for task in range(span[0], span[1]):
        for block in range(task, num_blocks, TASKS):
            for i in range(block * _ROWS_PER_BLOCK, min((block + 1) * _ROWS_PER_BLOCK, len(names))):
                u = names[i]
                front, back = np.uint64(out_indptr[i]), np.uint64(out_indptr[i + 1])
                for e in range(indptr[u], indptr[u + 1]):
                    v = node_of[np.uint64(indices[np.uint64(e)])]
                    if v < HUBS:
                        out_indices[front] = v
                        front += _ONE
                    else:
                        back -= _ONE
                        out_indices[back] = v


def with_in_arcs(layout: Layout) -> Layout:
    """The layout of a directed graph with the reversed arcs, which a bottom-up pass reads."""
    in_indptr, in_indices = np.empty(layout.num_linked + 1, np.int64), np.empty_like(layout.out_indices)
    cursor = np.empty(layout.num_linked, np.int64)
    reverse_arcs(layout.out_indptr, layout.out_indices, cursor, in_indptr, in_indices)
    return _frozen(layout.out_indptr, layout.out_indices, in_indptr, in_indices, layout.names, layout.node_of)


@kernel
def reverse_arcs(indptr, indices, cursor, out_indptr, out_indices):
    """The arcs u -> v as rows of v; `cursor` is scratch, one number a node."""
    num_nodes = len(indptr) - 1
    out_indptr[:] = 0
    for v in indices:
        out_indptr[v + 1] += 1
    for v in range(num_nodes):
        out_indptr[v + 1] += out_indptr[v]
        cursor[v] = out_indptr[v]
    for u in range(num_nodes):
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            out_indices[cursor[v]] = u
            cursor[v] += 1


def _frozen(*arrays: NDArray[Any]) -> Layout:
    return Layout(*map(read_only, arrays))


def source_order(node_of: NDArray[Any], sources: NDArray[Any], *, directed: bool) -> NDArray[np.int32]:
    """For each node of the layout its position among the sources; NOT_A_SOURCE, above all positions, for the others.

    A pair (s, v) counts where order[v] > position of s: once on an undirected graph. On a directed graph every ordered
    pair counts, so no node has a position.
    """
    order = np.full(len(node_of), NOT_A_SOURCE, np.int32)
    if not directed:
        order[node_of[sources]] = np.arange(len(sources), dtype=np.int32)
    return order


def by_strength(indptr: NDArray[np.int64], indices: NDArray[Any], sources: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the sources by falling number of arcs that leave their neighbours: how far a few hops reach."""
    strengths = np.empty(len(sources), np.int64)
    count_second_arcs(read_only(indptr), read_only(indices), sources, strengths)
    return np.argsort(-strengths, kind="stable")


@kernel
def count_second_arcs(indptr, indices, sources, out):
    for i in range(len(sources)):
        out[i] = 0
        for e in range(indptr[sources[i]], indptr[sources[i] + 1]):
            out[i] += indptr[indices[e] + 1] - indptr[indices[e]]


class Rows(NamedTuple):
    """Exact class sizes, how many of each class are kept, and the kept nodes (renamed) class after class."""

    counts: NDArray[np.int64]  # (sources, C)
    kept: NDArray[np.int64]  # (sources, C)
    targets: NDArray[Any]  # (sources, at most C x pairs per class); a row is filled up to the sum of its `kept`

    def between(self, first: int, last: int) -> "Rows":
        return Rows(self.counts[first:last], self.kept[first:last], self.targets[first:last])


def empty_rows(names: NDArray[Any], num_sources: int, classes: int, most: int) -> Rows:
    """Uninitialised rows that hold at most `most` of the nodes, each under a name, of each class."""
    counts, kept = np.empty((2, num_sources, classes), np.int64)
    width = min(len(names), most * classes)
    return Rows(counts, kept, np.empty((num_sources, width), names.dtype))


def write_pairs(rows: Rows, names: NDArray[Any], sources: NDArray[Any]) -> tuple[Any, Any, NDArray[np.uint8]]:
    """(u, v, hop) under the original names, ordered by class, then source, then v."""
    by_class = np.cumsum(rows.kept.T).reshape(rows.kept.T.shape)
    starts = by_class - rows.kept.T
    total = int(by_class[-1, -1])
    u, v = np.empty((2, total), names.dtype)
    hop = np.empty(total, np.uint8)
    run_in_threads(len(sources), fill_pairs, rows, names, sources, starts, (u, v, hop))
    return u, v, hop


@kernel
def fill_pairs(span, rows, names, sources, starts, pairs):
    """Writes class c of source i at starts[c, i], under the original names, sorted."""
    kept, targets = rows.kept, rows.targets
    u, v, hop = pairs
    for i in range(span[0], span[1]):
        read = 0
        for c in range(kept.shape[1]):
            begin = starts[c, i]
            end = begin + kept[i, c]
            for k in range(begin, end):
                v[k] = names[targets[i, read]]
                read += 1
            v[begin:end].sort()
            u[begin:end] = sources[i]
            hop[begin:end] = c + 1
