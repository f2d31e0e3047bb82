"""Look-ups in a CSR: the place of an arc, numbers of edges at their entries (an undirected edge has two), and sides.

`find_arcs` is a binary search in many rows at once, in plain NumPy: a dozen vector operations of the queries' length
per bit of the longest row, and a few integers a query. `first_above` is a kernel, of no memory but its result; the
others cost a byte an entry beside the result.

`two_sides` finds the sides of a bipartite graph: users on one, shops on the other, and every edge between the two.
Nodes are joined into trees along the edges (union-find), each with its parity to the node above it: one pass over the
arcs, whatever their direction, which ends at the first edge that shows that there are no sides, mostly within a few
rows. Near-linear time in one thread, an index and a byte per node. Each component could be turned round; its node of
the smallest number is on side 0. So components agree where the nodes of one side are numbered first, or as rows of
(user, shop) name them; in other numberings they need not.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.order import first_not_below
from hcm_scale.graph.store import Graph

_ENTRIES = 1 << 18  # entries compared at a time, about


def find_arcs(
    indptr: NDArray[np.int64], indices: NDArray[Any], u: ArrayLike, v: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For every arc u[i] -> v[i] the place where it stands, or where it would be inserted, and whether it is there.

    >>> find_arcs(np.array([0, 2, 4]), np.array([3, 5, 1, 2]), [0, 0, 1], [5, 6, 0])
    (array([1, 2, 2]), array([ True, False, False]))
    """
    rows, columns = np.asarray(u, np.int64), np.asarray(v, np.int64)
    low, high = indptr[rows], indptr[rows + 1]
    while (open_ := low < high).any():
        middle = (low + high) // 2
        right = open_ & (indices[np.where(open_, middle, 0)] < columns)
        low, high = np.where(right, middle + 1, low), np.where(open_ & ~right, middle, high)
    is_there = low < indptr[rows + 1]
    is_there[is_there] = indices[low[is_there]] == columns[is_there]
    return low, is_there


def first_entries(indptr: NDArray[np.int64], indices: NDArray[Any], directed: bool) -> NDArray[np.bool_]:
    """Which entries give edges their order: all of a directed graph, else those with column > row.

    >>> first_entries(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0]), False).tolist()
    [True, True, False, False]
    """
    if directed:
        return np.ones(len(indices), np.bool_)
    above = np.empty(len(indices), np.bool_)
    step = max(1, _ENTRIES // max(1, len(indices) // (len(indptr) - 1)))  # rows
    for first in range(0, len(indptr) - 1, step):
        bounds = indptr[first : first + step + 1]
        rows = np.repeat(np.arange(first, first + len(bounds) - 1), np.diff(bounds))
        above[bounds[0] : bounds[-1]] = indices[bounds[0] : bounds[-1]] > rows
    return above


@kernel
def first_above(tasks, indptr, indices, starts):
    """starts[u] = the first entry of row u with column > u."""
    for u in range(tasks[0], tasks[1]):
        starts[u] = first_not_below(indices, indptr[u], indptr[u + 1], u + 1)


def two_sides(graph: Graph) -> NDArray[np.int8] | None:
    """Side of every node, 0 or 1, or -1 without an edge, (n,); None where no such sides exist.

    >>> path_and_single = Graph(np.array([0, 1, 3, 4, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> two_sides(path_and_single).tolist()
    [0, 1, 0, -1]
    """
    side = np.zeros(graph.num_nodes, np.int8)
    above = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
    if not find_sides(graph.indptr, graph.indices, graph.directed, above, side):
        return None
    joined = np.diff(graph.indptr) > 0
    if graph.directed:
        joined[graph.indices] = True
    side[~joined] = -1
    return side


@kernel(inline="always")
def _top(above, side, v):
    """Topmost node over v, and the parity of v to it; on the way nodes are hung one step higher."""
    parity = np.int8(0)
    while above[v] != v:
        side[v] ^= side[above[v]]
        above[v] = above[above[v]]
        parity ^= side[v]
        v = above[v]
    return v, parity


@kernel(allocates=False)
def find_sides(indptr, indices, directed, above, side):
    """Whether every edge joins two sides, and side[v] then; `above` are the nodes' own numbers, `side` zeros."""
    for u in range(len(indptr) - 1):
        for e in range(indptr[u], indptr[u + 1]):
            if directed or indices[e] > u:
                left, parity = _top(above, side, u)
                right, other = _top(above, side, np.int64(indices[e]))
                if left == right and parity == other:
                    return False
                if left != right:
                    above[max(left, right)] = min(left, right)
                    side[max(left, right)] = parity ^ other ^ 1
    for v in range(len(above)):  # a node above another has the smaller number, and is done before it
        side[v] ^= side[above[v]] if above[v] != v else 0
    return True
