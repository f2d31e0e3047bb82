"""Squares at every node and those expected: what triangles are to other graphs in one of two sides, users and shops.

A user u has a square with another user w for each two shops v, v' that both know. Most squares are those of popular
shops, so each step u - v - w weighs 1 / (d(v) - 1), the chance of w among the others at v:

    squares(u) = sum over pairs v, v' of u's neighbours of shared(v, v') / ((d(v) - 1) (d(v') - 1)).

In a random graph with these degrees v and v' share rate * (d(v) - 1) (d(v') - 1) users beside u, and a pair adds

    rate = sum of d (d - 1) / (sum of d)^2 over the side of u.

Both are given in units of the mean weight of u's pairs, in which they are spread as counts are; one is 1 at least.

Nodes of more than sqrt(m) neighbours, which this rule would join to each other for certain, are nobody's v and nobody's
w, in the count and in the rate, and have their own squares alone. Where more than 256 steps an entry of the graph are
left the bound on degrees is lower. So the cost is linear: the sum of d^2 up to the bound, and 4 bytes a node in each
thread. One thread adds up the squares of a node, in the order of its row: no result depends on the number of threads.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import prefetch
from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_threads
from hcm_scale.score.edge_index import EdgeIndex

_STEPS_PER_ENTRY = 256
_AHEAD = 4  # neighbours between prefetching a row and reading it


def squares(edges: EdgeIndex, side: NDArray[np.int8]) -> NDArray[np.float64]:
    """Weighted squares of every node, and how many a random graph would have, (2, n).

    >>> from hcm_scale.score.edge_index import edge_index
    >>> square = edge_index(np.array([0, 2, 4, 6, 8]), np.array([2, 3, 2, 3, 0, 1, 0, 1], np.int32))
    >>> squares(square, np.array([0, 0, 1, 1], np.int8)).tolist()
    [[1.0, 1.0, 1.0, 1.0], [0.25, 0.25, 0.25, 0.25]]
    """
    degree, out = np.diff(edges.indptr), np.zeros((2, edges.num_nodes))
    most = _largest_degree(degree)
    sides = side, shared_rates(degree, side, most)
    run_in_threads(len(degree), count_squares, edges.indptr, edges.indices, most, sides, out)
    return out


def shared_rates(degree: NDArray[np.int64], side: NDArray[np.int8], most: float = math.inf) -> NDArray[np.float64]:
    """By side, what products of two degrees on the other are multiplied by to give the expected common neighbours."""
    pairs = np.where(degree <= most, degree * (degree - 1.0), 0.0)
    return np.array([pairs[side == each].sum() / max(1.0, degree[side == each].sum()) ** 2 for each in (0, 1)])


def _largest_degree(degree: NDArray[np.int64]) -> int:
    """Degree up to which nodes count as neighbours of others."""
    num_entries = int(degree.sum())
    steps = np.bincount(degree[degree <= math.isqrt(num_entries // 2)])
    steps *= np.arange(len(steps)) ** 2
    return int(np.searchsorted(np.cumsum(steps), _STEPS_PER_ENTRY * num_entries, "right")) - 1


@kernel
def count_squares(part, indptr, indices, most, sides, out):
    """out[0, u] = counted and out[1, u] = expected squares; `sides` is (side of every node, rate of each side)."""
    side, rates = sides
    shared = np.zeros(len(indptr) - 1, np.float32)  # by w: weights of the steps to it from u; -1: not to be counted
    for u in range(len(shared)):
        if indptr[u + 1] - indptr[u] > most:
            shared[u] = -1.0
    for u in range(part[0], part[1]):
        own, shared[u] = shared[u], -1.0
        total, num, of_one, of_both = 0.0, 0, 0.0, 0.0
        for e in range(indptr[u], indptr[u + 1]):
            prefetch(indices, indptr[indices[min(e + _AHEAD, len(indices) - 1)]])
            low, high = indptr[indices[e]], indptr[indices[e] + 1]
            if 1 < high - low <= most:
                weight = 1.0 / (high - low - 1)
                num, of_one, of_both = num + 1, of_one + weight, of_both + weight * weight
                for f in range(low, high):
                    w = np.uint64(indices[np.uint64(f)])
                    if shared[w] >= 0.0:
                        total += weight * shared[w]
                        shared[w] += np.float32(weight)
        for e in range(indptr[u], indptr[u + 1]):
            low, high = indptr[indices[e]], indptr[indices[e] + 1]
            if 1 < high - low <= most:
                for f in range(low, high):
                    w = np.uint64(indices[np.uint64(f)])
                    shared[w] = min(shared[w], np.float32(0.0))
        shared[u] = own
        if num > 1:
            pairs = 0.5 * num * (num - 1)
            unit = 0.5 * (of_one * of_one - of_both) / pairs
            out[0, u] = max(total / unit, 1.0) if total > 0.0 else 0.0
            out[1, u] = rates[side[u]] * pairs / unit
