"""The largest values of an array of floats, marked: jitted functions only.

A float's bits, with the sign turned round, are an integer that sorts as the float does. Counting the upper half of
those integers, and then the lower half of those that share an upper half, finds the value at any rank in two passes
over the array, without a copy of it. What is not finite has no rank. Each task reads a stretch of the array of its own.
"""

import numpy as np

from hcm_scale.base.jit import kernel

NUM_KEYS = 1 << 16
ABOVE_ALL = 0xFFFFFFFF  # larger than the key of any finite value
_SIGN, _ALL, _INFINITE = np.uint32(0x80000000), np.uint32(0xFFFFFFFF), np.uint32(0x7F800000)
_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)


@kernel(inline="always")
def _is_finite(bits):
    return bits & _INFINITE != _INFINITE


@kernel(inline="always")
def _key(bits):
    return bits ^ (_ALL if bits & _SIGN else _SIGN)


@kernel
def count_upper(part, bits, counts):
    """counts[task, h] = finite values of the task's stretch whose key has the upper half h; comes in as zeros."""
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for i in range(task * len(bits) // num_tasks, (task + 1) * len(bits) // num_tasks):
            if _is_finite(bits[i]):
                counts[task, _key(bits[i]) >> _HALF] += 1


@kernel
def count_lower(part, bits, upper, counts):
    """counts[task, l] = finite values whose key has the halves `upper` and l; comes in as zeros."""
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for i in range(task * len(bits) // num_tasks, (task + 1) * len(bits) // num_tasks):
            if _is_finite(bits[i]) and _key(bits[i]) >> _HALF == upper:
                counts[task, _key(bits[i]) & _LOW] += 1


@kernel
def mark_largest(part, bits, threshold, num_ties, marked):
    """Marks what has a key above `threshold`, and in each task's stretch the last num_ties[task] that have just it."""
    num_tasks = len(num_ties)
    for task in range(part[0], part[1]):
        ties = num_ties[task]
        first, last = task * len(bits) // num_tasks, (task + 1) * len(bits) // num_tasks
        for i in range(last - 1, first - 1, -1):
            key, finite = _key(bits[i]), _is_finite(bits[i])
            is_tie = finite and key == threshold and ties > 0
            ties -= is_tie
            marked[i] = is_tie or (finite and key > threshold)
