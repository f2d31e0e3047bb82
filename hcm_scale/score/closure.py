"""Far closure: tight groups of nodes that have no business together.

A mean over neighbours hides a planted clique: fifteen odd neighbours among seventy move it little. But the odd edges of
a clique close into triangles with each other, which odd edges that came about one by one hardly do. So mark the `share`
of edges with the largest predicted hop as far, and give each node

    closure(v) = log(1 + far triangles at v / degree of v).

The learned hops matter: the same count over edges with far attributes finds nothing (docs/results.md). Undirected
graphs only. Cost: O(m^1.5) steps in the worst case; memory 1 byte an edge, 4 bytes a far edge, 16 bytes a node,
half a megabyte a thread.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import largest, largest_kernels
from hcm_scale.base.row_kernels import sort_rows
from hcm_scale.base.threads import in_slices, in_threads
from hcm_scale.score import closure_kernels as kernels
from hcm_scale.score.numbering import EdgeIndex


class Cut(NamedTuple):
    """Where edges begin to be far: a float as `largest` orders it, and the share that is far of those just there.

    It is taken from one graph and tells far edges on others.
    """

    key: int
    tied: float


def far_cut(mean: NDArray[np.float32], share: float) -> Cut:
    """The cut that leaves floor(share * m) edges beyond it, those with the largest mean hop (NaN is not scored)."""
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share={share} must be above 0 and at most 1: the share of edges taken as far")
    wanted = min(math.floor(Fraction(str(float(share))) * len(mean)), largest.num_finite(mean))
    if wanted == 0:
        return Cut(largest_kernels.ABOVE_ALL, 0.0)
    key, rank, num_equal = largest.find(mean, wanted)
    return Cut(key, rank / num_equal)


def mark_far(mean: NDArray[np.float32], cut: Cut) -> NDArray[np.bool_]:
    """Marks the edges beyond the cut, and its share of those just there, the later ones.

    >>> mean = np.array([1.0, 3.0, 2.0, 2.0], np.float32)
    >>> mark_far(mean, far_cut(mean, 0.5)).tolist()
    [False, True, False, True]
    """
    far = np.zeros(len(mean), bool)
    ties = largest.count_lower(mean, cut.key >> 16)[:, cut.key & 0xFFFF]
    after = ties[::-1].cumsum()[::-1] - ties  # ties in the stretches behind each one
    ties = np.clip(round(cut.tied * int(ties.sum())) - after, 0, ties)
    in_threads(len(ties), largest_kernels.mark_largest, mean.view(np.uint32), np.uint32(cut.key), ties, far)
    return far


def far_triangles(edges: EdgeIndex, far: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of triangles of far edges at every node of an undirected graph, (n,)."""
    graph = edges.indptr, edges.indices, edges.start, far
    indptr = np.zeros(edges.num_nodes + 1, np.int64)
    in_threads(edges.num_nodes, kernels.count_successors, *graph, indptr[1:])
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], edges.indices.dtype)
    cursor = indptr[:-1].copy()
    in_threads(edges.num_nodes, kernels.list_successors, *graph, cursor, indices)
    in_threads(edges.num_nodes, sort_rows, indptr, indices)
    count = cursor
    count[:] = 0
    in_threads(edges.num_nodes, kernels.count_triangles, indptr, indices, count)
    return count


def closure(edges: EdgeIndex, mean: NDArray[np.float32], cut: Cut) -> NDArray[np.float64]:
    """log(1 + far triangles per neighbour) of every node, (n,); 0 for nodes without neighbours."""
    if edges.directed:
        raise ValueError("closure counts triangles of undirected edges; this graph is directed: rank by ahp or hav")
    triangles = far_triangles(edges, mark_far(mean, cut))
    out = np.empty(len(triangles))

    def fill(part: slice) -> None:
        np.log1p(triangles[part] / np.maximum(np.diff(edges.indptr[part.start : part.stop + 1]), 1), out=out[part])

    in_slices(len(out), fill)
    return out
