"""The graph as the BFS sees it: nodes renamed by falling degree, isolated nodes left out.

Hubs are touched by almost every step; side by side at the front they stay in cache. Nodes without any arc come last
and have no row. The new order (degree, then node number) is a function of the graph alone; it is also the order in
which the members of a class are ranked for sampling.

Memory: one copy of the CSR (a second one, of the in-arcs, where the graph is directed), and two indices a node.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.hops.layout_kernels import rename_rows, reverse_arcs, sort_by_degree

NOT_A_SOURCE = np.iinfo(np.int32).max


class Layout(NamedTuple):
    """A renamed graph: `names[i]` is the original number of node i, `places` the inverse; kernels take it whole."""

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
        """Nodes with an arc; they are the first ones, and only they have rows."""
        return len(self.out_indptr) - 1


def lay_out(indptr: NDArray[np.int64], indices: NDArray[Any], *, directed: bool = False) -> Layout:
    """Renames the nodes of a CSR graph by falling degree.

    >>> lay_out(np.array([0, 1, 1, 3, 4]), np.array([2, 0, 3, 2], np.int32)).names.tolist()
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
    rename_rows(indptr, indices, linked, places, out_indptr, out_indices)
    if not directed:
        return Layout(out_indptr, out_indices, out_indptr, out_indices, names, places)

    in_indptr, in_indices = np.empty_like(out_indptr), np.empty_like(out_indices)
    reverse_arcs(out_indptr, out_indices, np.empty(len(linked), np.int64), in_indptr, in_indices)
    return Layout(out_indptr, out_indices, in_indptr, in_indices, names, places)


def source_order(layout: Layout, sources: NDArray[Any], *, directed: bool) -> NDArray[np.int32]:
    """For each renamed node, its position among the sources, and a number above all positions where it is no source.

    A pair (s, v) is kept where order[v] > position of s: once on an undirected graph. On a directed graph every ordered
    pair counts, so nobody has a position.
    """
    order = np.full(layout.num_nodes, NOT_A_SOURCE, np.int32)
    if not directed:
        order[layout.places[sources]] = np.arange(len(sources), dtype=np.int32)
    return order
