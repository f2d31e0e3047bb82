"""How surprising distances over edges are, added up per node: jitted functions only.

Distances lie between 0 and 2. They are counted in bins of equal width, a table gives every bin its surprise, and each
node adds up those of its edges in CSR order, so nothing here depends on the thread count.
"""

import numpy as np
from numba import prange

from hcm_scale.base.jit import kernel
from hcm_scale.score.kernels import edge_number

NUM_BINS = 1 << 16
_PER_UNIT = NUM_BINS / 2.0  # bins
_ROWS_PER_TASK = 256


@kernel(inline="always")
def _bin(distance):
    return min(max(np.int64(distance * _PER_UNIT), 0), NUM_BINS - 1)


@kernel(parallel=True)
def count_bins(distance, counts):
    """counts[task, b] = edges of the task's stretch whose distance falls into bin b; comes in as zeros."""
    num_tasks = len(counts)
    for task in prange(num_tasks):
        for e in range(task * len(distance) // num_tasks, (task + 1) * len(distance) // num_tasks):
            counts[task, _bin(distance[e])] += 1


@kernel(parallel=True)
def sum_surprise(edges, distance, surprise, out):
    """out[v] = the sum over v's edges of the surprise of their bin, over all of them, drawn or not."""
    indptr, indices, start, directed, _, _ = edges
    num_nodes = len(indptr) - 1
    for task in prange((num_nodes + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        for v in range(first, min(first + _ROWS_PER_TASK, num_nodes)):
            total = 0.0
            for position in range(indptr[v], indptr[v + 1]):
                total += surprise[_bin(distance[edge_number(indptr, indices, start, directed, v, position)])]
            out[v] = total
