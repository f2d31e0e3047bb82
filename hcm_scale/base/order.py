"""The order of an array of floats, found by all threads; and the places that equal values share.

`order` is `np.argsort(values, kind="stable")`. From 2^17 values on it is a radix sort: a float's bits, with the sign
turned round, are an integer that sorts as the float does, and six passes sort those by eleven bits each, lowest first.
In a pass every thread counts and then moves a stretch of its own, so the result does not depend on their number.

Memory: 32 bytes a value beside the result.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import order_kernels as kernels
from hcm_scale.base.threads import in_threads

_FEW = 1 << 17  # values that one thread sorts in the time that it takes to start others


def order(values: NDArray[Any]) -> NDArray[np.int64]:
    """The positions of the values, smallest first, equal ones as they stand; NaN last.

    >>> order(np.array([3.0, -1.0, 3.0, 0.5])).tolist()
    [1, 3, 0, 2]
    """
    return ordered(values)[1]


def ordered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values in order, or integers that compare as those do, and `order` of the values.

    >>> [found.tolist() for found in ordered(np.array([3.0, -1.0, 3.0, 0.5]))]
    [[-1.0, 0.5, 3.0, 3.0], [1, 3, 0, 2]]
    """
    if len(values) >= _FEW:
        return _sort(values)
    found = np.argsort(values, kind="stable")
    return values[found], found


class Sorted:
    """An array of floats, sorted once: its quantiles, and the places that equal values share."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values = values
        self._found = _sort(values) if len(values) >= _FEW else None

    def double_places(self) -> NDArray[np.int64]:
        """The best and the worst place that equal values hold, added; 1 is the largest."""
        if self._found is None:
            _, group, counts = np.unique(self._values, return_inverse=True, return_counts=True)
            return (2 * (len(self._values) - np.cumsum(counts)) + counts + 1)[group]
        out = np.empty(len(self._values), np.int64)
        in_threads(len(out), kernels.share_places, *self._found, out)
        return out

    def quantiles(self, shares: Sequence[float]) -> NDArray[np.float64]:
        """As `np.quantile`."""
        if self._found is None:
            return np.asarray(np.quantile(self._values, shares))
        places = np.multiply(shares, len(self._values) - 1)
        around = np.unique(np.concatenate([np.floor(places), np.ceil(places)]).astype(np.int64))
        return np.asarray(np.interp(places, around, self._values[self._found[1][around]]))


def _sort(values: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Integers that sort as the values do, in order, and the positions of those."""
    keys, other_keys = np.empty((2, len(values)), np.uint64)
    found, other_found = np.empty((2, len(values)), np.int64)
    in_threads(len(values), kernels.float_keys, np.asarray(values, np.float64), keys, found)
    counts = np.empty((numba.get_num_threads(), 1 << kernels.DIGIT_BITS), np.int64)
    for shift in range(0, 64, kernels.DIGIT_BITS):
        counts[:] = 0
        in_threads(len(counts), kernels.count_digits, keys, np.uint64(shift), counts)
        if counts.sum(axis=0).max() == len(values):
            continue  # one digit for all: they stay as they are
        starts = (counts.T.cumsum().reshape(counts.shape[::-1]).T - counts).copy()
        in_threads(len(counts), kernels.move, keys, found, np.uint64(shift), starts, (other_keys, other_found))
        keys, other_keys, found, other_found = other_keys, keys, other_found, found
    return keys, found


def double_places(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The best and the worst place that equal values hold, added; 1 is the largest.

    >>> double_places(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 8, 5, 2]
    """
    return Sorted(values).double_places()
