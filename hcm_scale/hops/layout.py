"""The graph as the BFS sees it: as it came, or renamed by falling degree with the isolated nodes left out.

Renamed, the hubs, touched by almost every step, lie side by side and stay in cache, and nodes without any arc come
last and have no row. The order of the nodes (as given; or by degree, then number) is also the order in which the
members of a class are ranked for sampling, so which of the two is taken must be a function of the graph and the
sources alone.

Memory: nothing but two indices a node, or one copy of the CSR; and one of the in-arcs where a directed graph needs
them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_threads, where
from hcm_scale.hops.layout_kernels import TASKS, rename_rows, reverse_arcs, sort_by_degree

NOT_A_SOURCE = np.iinfo(np.int32).max


class Layout(NamedTuple):
    """A graph under new names: `names[i]` is the original number of node i, `places` the inverse; all read-only."""

    out_indptr: NDArray[np.int64]
    out_indices: NDArray[Any]
    in_indptr: NDArray[np.int64]
    in_indices: NDArray[Any]
    names: NDArray[Any]
    places: NDArray[Any]

    @property
    def num_nodes(self) -> int:
        return len(self.names)

    @property
    def num_linked(self) -> int:
        """Nodes with rows: the first ones. The others, behind them, have no arc."""
        return len(self.out_indptr) - 1


def linked_nodes(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes that have out-neighbours, in order.

    >>> linked_nodes(np.array([0, 1, 1, 3])).tolist()
    [0, 2]
    """
    return where(len(indptr) - 1, lambda part: np.diff(indptr[part.start : part.stop + 1]))


def as_given(indptr: NDArray[np.int64], indices: NDArray[Any]) -> Layout:
    """The graph under its own names, not copied. Its in-arcs are its out-arcs until `with_in_arcs`."""
    same = np.arange(len(indptr) - 1, dtype=indices.dtype)
    return _frozen(indptr, indices, indptr, indices, same, same)


def by_degree(indptr: NDArray[np.int64], indices: NDArray[Any], *, directed: bool = False) -> Layout:
    """The nodes of a CSR graph renamed by falling degree.

    >>> by_degree(np.array([0, 1, 1, 3, 4]), np.array([2, 0, 3, 2], np.int32)).names.tolist()
    [2, 0, 3, 1]
    """
    num_nodes = len(indptr) - 1
    out_degrees = np.diff(indptr)
    degrees = out_degrees + np.bincount(indices, minlength=num_nodes) if directed else out_degrees
    names = np.empty(num_nodes, indices.dtype)
    sort_by_degree(degrees, np.zeros(degrees.max(initial=0) + 2, np.int64), names)
    places = np.empty_like(names)
    places[names] = np.arange(num_nodes, dtype=names.dtype)

    linked = names[: np.count_nonzero(degrees)]
    out_indptr = np.zeros(len(linked) + 1, np.int64)
    np.cumsum(out_degrees[linked], out=out_indptr[1:])
    out_indices = np.empty(len(indices), indices.dtype)
    in_threads(TASKS, rename_rows, indptr, indices, linked, places, out_indptr, out_indices)
    return _frozen(out_indptr, out_indices, out_indptr, out_indices, names, places)


def with_in_arcs(layout: Layout) -> Layout:
    """A directed graph with its arcs reversed beside it, which a bottom-up pass reads."""
    in_indptr, in_indices = np.empty(layout.num_linked + 1, np.int64), np.empty_like(layout.out_indices)
    cursor = np.empty(layout.num_linked, np.int64)
    reverse_arcs(layout.out_indptr, layout.out_indices, cursor, in_indptr, in_indices)
    return _frozen(layout.out_indptr, layout.out_indices, in_indptr, in_indices, layout.names, layout.places)


def _frozen(*arrays: NDArray[Any]) -> Layout:
    """Read-only views: a graph in memory and one mapped from disk then are of one type, and kernels compile once."""
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return Layout(*views)


def source_order(layout: Layout, sources: NDArray[Any], *, directed: bool) -> NDArray[np.int32]:
    """For each renamed node, its position among the sources, and a number above all positions where it is no source.

    A pair (s, v) is kept where order[v] > position of s: once on an undirected graph. On a directed graph every ordered
    pair counts, so nobody has a position.
    """
    order = np.full(layout.num_nodes, NOT_A_SOURCE, np.int32)
    if not directed:
        order[layout.places[sources]] = np.arange(len(sources), dtype=np.int32)
    return order
