"""Context: how unlike its neighbours a node's attributes are, beyond what is usual over the edges of this graph.

The distance of an edge is 1 - cosine of the features at its ends. Its surprise is -log(1 - rank among all edges), which
over the edges of a graph has the exponential distribution. The surprise of a node's d edges, added up, would have a
gamma distribution were its edges drawn from all of them, and is given as a z-score by Wilson and Hilferty's cube root:

    context(v) = (cbrt(sum / d) - 1 + 1 / 9d) * sqrt(9d)

So one odd neighbour of two does not outweigh ten of twelve, and a hub is judged by the standard of a hub. Memory: 8
bytes a node, half a megabyte a thread; the caller brings 4 bytes an edge.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import fetch_add, prefetch
from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_slices, run_in_threads
from hcm_scale.score.edge_index import EdgeIndex

# ----------------------------------------------------------------------------
# How surprising distances over edges are, added up per node: jitted functions only.
#
# Distances lie between 0 and 2. They are counted in bins of equal width, a table gives every bin its surprise, and
# the surprise of each edge is added to both its ends. Threads add to shared sums, which are integers, so nothing here
# depends on who added first.


NUM_BINS = 1 << 16
_PER_UNIT = NUM_BINS / 2.0  # bins
_AHEAD = 16  # neighbours between asking for a sum and adding to it


@kernel(inline="always")
def _bin(distance):
    return min(max(np.int64(distance * _PER_UNIT), 0), NUM_BINS - 1)


@kernel
def count_bins(part, distance, counts):
    """counts[task, b] = edges of the task's stretch whose distance falls into bin b; comes in as zeros."""
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for e in range(task * len(distance) // num_tasks, (task + 1) * len(distance) // num_tasks):
            counts[task, _bin(distance[e])] += 1


@kernel(allocates=False)
def add_surprise(part, edges, distance, surprise, out):
    """Adds to out[v] the surprises, integers, of the bins of v's edges, of all of them, drawn or not.

    An edge is met at its smaller end; of a directed graph it counts there alone.
    """
    indptr, indices, start, directed, _, _ = edges
    for u in range(part[0], part[1]):
        shift, own = indptr[u + 1] - start[u + 1], 0
        for e in range(start[u], start[u + 1]):
            gained = surprise[_bin(distance[e])]
            own += gained
            if not directed:
                prefetch(out, indices[min(shift + e + _AHEAD, len(indices) - 1)])
                fetch_add(out, indices[shift + e], gained)
        fetch_add(out, u, own)


_LEAST = 1e-12  # the chance of an edge to be as far as the farthest
_UNIT = 2.0**-27  # surprises are added up as multiples of it: those of 2^31 edges stay below 2^63


def context(
    edges: EdgeIndex, distance: NDArray[np.float32], surprise: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The z-score of every node's distances to its neighbours, (n,); 0 for nodes without any.

    `surprise` is that of every bin of distances, where it is not of these edges.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> context(path, np.array([0.5, 1.5], np.float32)).round(2).tolist()
    [-0.69, -0.01, 0.68]
    """
    if distance.shape != (edges.num_edges,):
        raise ValueError(f"distances have shape {distance.shape}; this graph has {edges.num_edges} edges")
    if surprise is None:
        surprise = surprise_of_bins(distance)
    units = np.rint(np.clip(surprise, 0.0, -np.log(_LEAST)) / _UNIT).astype(np.int64)
    total, out = np.zeros(edges.num_nodes, np.int64), np.zeros(edges.num_nodes)
    run_in_threads(edges.num_nodes, add_surprise, edges.for_kernels, distance, units, total)

    def standardize(part: slice) -> None:
        degree = np.diff(edges.indptr[part.start : part.stop + 1])
        ninth = 1.0 / (9.0 * np.maximum(degree, 1))
        z_score = (np.cbrt(total[part] * _UNIT / np.maximum(degree, 1)) - 1.0 + ninth) / np.sqrt(ninth)
        out[part] = np.where(degree > 0, z_score, 0.0)

    run_in_slices(len(out), standardize)
    return out


def surprise_of_bins(distance: NDArray[np.float32]) -> NDArray[np.float64]:
    """-log(1 - rank) of every bin of distances, the rank of its middle edge among all edges."""
    counts = np.zeros((numba.get_num_threads(), NUM_BINS), np.int64)
    run_in_threads(len(counts), count_bins, distance, counts)
    in_bin = counts.sum(axis=0)
    middle = np.cumsum(in_bin) - 0.5 * in_bin
    return -np.log1p(-np.minimum(middle / max(1, len(distance)), 1.0 - _LEAST))
