"""The value at a rank of an array of float32, found by all threads in two passes and without a copy of the array."""

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import largest_kernels as kernels
from hcm_scale.base.threads import in_threads


def num_finite(values: NDArray[np.float32]) -> int:
    """How many values have a rank."""
    return int(count_upper(values).sum())


def count_upper(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many finite values there are by the upper half of their keys, of each task's stretch."""
    counts = _counts()
    in_threads(len(counts), kernels.count_upper, values.view(np.uint32), counts)
    return counts


def count_lower(values: NDArray[np.float32], upper: int) -> NDArray[np.int64]:
    """The same by the lower half, of those that share an upper one."""
    counts = _counts()
    in_threads(len(counts), kernels.count_lower, values.view(np.uint32), upper, counts)
    return counts


def find(values: NDArray[np.float32], rank: int) -> tuple[int, int, int]:
    """The key of the value that is `rank`-th from the top, its rank among equal ones, and how many are equal."""
    upper, rank = _rank_from_top(count_upper(values).sum(axis=0), rank)
    in_lower = count_lower(values, upper).sum(axis=0)
    lower, rank = _rank_from_top(in_lower, rank)
    return upper << 16 | lower, rank, int(in_lower[lower])


def value_at(values: NDArray[np.float32], rank: int) -> float:
    """The value that is `rank`-th from the top.

    >>> value_at(np.array([1.0, -3.0, 2.0, 2.0], np.float32), 3)
    1.0
    """
    key = find(values, rank)[0]
    bits = np.array(key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF), np.uint32)
    return float(bits.view(np.float32)) + 0.0  # no minus zero


def _counts() -> NDArray[np.int64]:
    return np.zeros((numba.get_num_threads(), kernels.NUM_KEYS), np.int64)


def _rank_from_top(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """The key of the value that is `rank`-th from the top, and its rank among the values of that key.

    >>> _rank_from_top(np.array([5, 2, 1]), 3)
    (1, 2)
    """
    above = counts[::-1].cumsum()[::-1] - counts
    key = int(np.flatnonzero(above < rank)[0])
    return key, rank - int(above[key])
