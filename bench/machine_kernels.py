"""Loops that do nothing but move memory, to learn how fast this machine can; jitted."""

import numpy as np
from numba import prange

from hcm_scale.base.jit import kernel, prefetch

_AHEAD = 16  # rows asked for in advance, as the real kernels do
_TASKS = 256


@kernel(parallel=True)
def triad(a, b, c):
    """Writes a = b + 3 c: two arrays read, one written."""
    for i in prange(len(a)):
        a[i] = b[i] + np.float32(3.0) * c[i]


@kernel(parallel=True)
def touch_rows(table, rows, out):
    """out[task] = a sum over one number of each row visited, in the random order of `rows`."""
    for task in prange(_TASKS):
        first, last = task * len(rows) // _TASKS, (task + 1) * len(rows) // _TASKS
        total = np.float32(0.0)
        for i in range(first, last):
            prefetch(table, rows[min(i + _AHEAD, last - 1)] * table.shape[1])
            total += table[rows[i], 0]
        out[task] = total
