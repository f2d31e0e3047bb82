"""Sides of a bipartite graph: users on one, shops on the other, and every edge between the two.

Nodes are joined into trees along the edges (union-find), each with its parity to the node above it, so that one pass
over the arcs is enough, in whatever direction they are given, and a graph that is not bipartite is left at the first
edge that shows it, mostly within a few rows. Cost: near-linear time, one thread, an index and a byte per node.

Each component could be turned round without harm to any edge. Its node of the smallest number is on side 0: so all
components agree where the nodes of one side are numbered before those of the other, and where nodes are numbered as
rows of (user, shop) name them. In other numberings two components need not agree.
"""

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.graph.store import Graph


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
