"""How surprising distances over edges are, added up per node: jitted functions only.

Distances lie between 0 and 2. They are counted in bins of equal width, a table gives every bin its surprise, and the
surprise of each edge is added to both its ends. Threads add to shared sums, which are integers, so nothing here depends
on who added first.
"""

import numpy as np

from hcm_scale.base.atomics import fetch_add
from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch

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
