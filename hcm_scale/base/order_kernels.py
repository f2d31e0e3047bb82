"""A radix sort of floats in threads: jitted functions only."""

import numpy as np

from hcm_scale.base.jit import kernel

DIGIT_BITS = 11
_MASK = np.uint64((1 << DIGIT_BITS) - 1)
_SIGN, _ALL, _LAST = np.uint64(1 << 63), np.uint64((1 << 64) - 1), np.uint64(63)
_FIRST = np.uint64(0)  # below the key of minus infinity


@kernel
def float_keys(part, values, known, keys, positions):
    """keys[i] sorts as values[i] does, NaN last and -0 with 0; what is not `known`, empty where all is, comes first.

    positions[i] = i.
    """
    for i in range(part[0], part[1]):
        value = values[i] + 0.0
        bits = np.float64(value).view(np.uint64)
        key = bits ^ (_ALL if bits >> _LAST else _SIGN)
        keys[i] = _ALL if np.isnan(value) else key
        if len(known) and not known[i]:
            keys[i] = _FIRST
        positions[i] = i


@kernel
def count_digits(part, keys, shift, counts):
    """counts[task, d] = keys of the task's stretch with the digit d at `shift`; comes in as zeros."""
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for i in range(task * len(keys) // num_tasks, (task + 1) * len(keys) // num_tasks):
            counts[task, (keys[i] >> shift) & _MASK] += 1


@kernel
def move(part, keys, positions, shift, starts, out):
    """Moves each task's stretch to where its digits begin: starts[task, d], which ends as where they end."""
    num_tasks = len(starts)
    out_keys, out_positions = out
    for task in range(part[0], part[1]):
        for i in range(task * len(keys) // num_tasks, (task + 1) * len(keys) // num_tasks):
            digit = (keys[i] >> shift) & _MASK
            place = starts[task, digit]
            out_keys[place], out_positions[place] = keys[i], positions[i]
            starts[task, digit] = place + 1


@kernel
def share_places(part, ordered, positions, out):
    """out[positions[i]] = best and worst place of the values equal to ordered[i], added; the last is in place 1.

    A run of equals may reach beyond the part: only its ends are looked for there.
    """
    size = len(ordered)
    i = part[0]
    while i < part[1]:
        first = i if i > part[0] else np.searchsorted(ordered, ordered[i], side="left")
        last = i + 1
        while last < part[1] and ordered[last] == ordered[i]:
            last += 1
        end = last if last < part[1] else np.searchsorted(ordered, ordered[i], side="right")
        for k in range(i, last):
            out[positions[k]] = 2 * size + 1 - first - end
        i = last
