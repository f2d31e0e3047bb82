"""How surprising distances over edges are, added up per node: jitted functions only.

Distances lie between 0 and 2. They are counted in bins of equal width, a table gives every bin its surprise, and each
node adds up those of its edges in CSR order, so nothing here depends on the thread count.
"""

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch
from hcm_scale.score.kernels import ask_ahead, edge_number

NUM_BINS = 1 << 16
_PER_UNIT = NUM_BINS / 2.0  # bins


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
def sum_surprise(part, edges, distance, surprise, out):
    """out[v] = the sum over v's edges of the surprise of their bin, over all of them, drawn or not."""
    indptr, indices, start, directed, _, _ = edges
    for v in range(part[0], part[1]):
        total = 0.0
        for position in range(indptr[v], indptr[v + 1]):
            if not directed:
                prefetch(distance, ask_ahead(indptr, indices, start, v, position))
            total += surprise[_bin(distance[edge_number(indptr, indices, start, directed, v, position)])]
        out[v] = total
