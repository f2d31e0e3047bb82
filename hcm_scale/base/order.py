"""The order of an array of floats, found by all threads; the places that equal values share, and what these tell.

`order` is `np.argsort(values, kind="stable")`. From 2^17 values on it is a radix sort: a float's bits, with the sign
turned round, are an integer that sorts as the float does, and six passes sort those by eleven bits each, lowest first.
In a pass every thread counts and then moves a stretch of its own, so the result does not depend on their number.

A double place is the best and the worst place that equal values hold, added; 1 is the largest. With these at hand the
value in any place, and so every quantile, takes no second sort.

Memory: 24 bytes a value while it is sorted, 32 from 2^30 values on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import order_kernels as kernels
from hcm_scale.base.threads import in_slices, in_threads, of_slices

_FEW = 1 << 17  # values that one thread sorts in the time that it takes to start others

Places = NDArray[np.signedinteger[Any]]
Known = NDArray[np.bool_] | None


def order(values: NDArray[Any]) -> NDArray[np.int64]:
    """The positions of the values, smallest first, equal ones as they stand; NaN last.

    >>> order(np.array([3.0, -1.0, 3.0, 0.5])).tolist()
    [1, 3, 0, 2]
    """
    found = ordered(values)[1]
    if found.dtype == np.int64:
        return found
    out = np.empty(len(found), np.int64)
    in_slices(len(out), lambda part: np.copyto(out[part], found[part]))
    return out


def ordered(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    """The values in order, or integers that compare as those do, and `order` of the values.

    >>> [found.tolist() for found in ordered(np.array([3.0, -1.0, 3.0, 0.5]))]
    [[-1.0, 0.5, 3.0, 3.0], [1, 3, 0, 2]]
    """
    if len(values) >= _FEW:
        return _sort(values, None)
    found = np.argsort(values, kind="stable")
    return values[found], found


def place_type(size: int) -> type[np.signedinteger[Any]]:
    """The integers that hold the double places of so many."""
    return np.int32 if size < 1 << 30 else np.int64


def double_places(values: NDArray[np.float64], known: Known = None, out: Places | None = None) -> Places:
    """The double place of each value among all that are `known`; one more than their number, the middle, of others.

    >>> double_places(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 8, 5, 2]
    """
    out = np.empty(len(values), place_type(len(values))) if out is None else out
    size = num_known(values, known)
    if size < _FEW:
        chosen = slice(None) if known is None else known
        _, group, counts = np.unique(values[chosen], return_inverse=True, return_counts=True)
        out[:] = max(1, size) + 1
        out[chosen] = (2 * (size - np.cumsum(counts)) + counts + 1)[group]
    else:
        keys, found = _sort(values, known)
        in_threads(size, kernels.share_places, keys[len(values) - size :], found[len(values) - size :], out)
        out[found[: len(values) - size]] = size + 1  # last: threads have touched the pages
    return out


def num_known(values: NDArray[Any], known: Known) -> int:
    """How many values there are, or are known."""
    return len(values) if known is None else int(np.count_nonzero(known))


def at_places(double: Places, places: Sequence[int] | NDArray[np.int64], known: Known = None) -> NDArray[np.int64]:
    """Positions of values that hold these places, from the double places of all.

    The q-th smallest double place is that of the values that hold place q: the largest one up to 2 q where so many are
    as small, else the next.

    >>> at_places(np.array([5, 8, 5, 2]), [1, 2, 3, 4]).tolist()
    [3, 0, 0, 1]
    """
    unsigned = np.dtype(f"u{double.dtype.itemsize}").type
    wanted = [(unsigned(2 * place), unsigned(2 * place + 1)) for place in places]

    def look(part: slice) -> list[list[int]]:
        """Of every place: how far below or at it, and above it, the nearest are, where, and how many are up to it.

        Differences of the wrong sign wrap round and are larger than all others.
        """
        some = (double[part] if known is None else np.where(known[part], double[part], 0)).view(unsigned)
        found = []
        for upto, above in wanted:
            down, up = upto - some, some - above
            nearest, following = int(down.argmin()), int(up.argmin())
            count = int(np.count_nonzero(some <= upto))
            found.append([int(down[nearest]), part.start + nearest, int(up[following]), part.start + following, count])
        return found

    down, nearest, up, following, counts = np.moveaxis(np.array(of_slices(len(double), look), np.uint64), -1, 0)
    num_upto = counts.sum(axis=0).astype(np.int64) - (len(double) - num_known(double, known))
    columns = np.arange(len(places))
    nearest, following = nearest[down.argmin(axis=0), columns], following[up.argmin(axis=0), columns]
    return np.where(num_upto >= places, nearest, following).astype(np.int64)


def quantiles(
    values: NDArray[np.float64], double: Places, shares: Sequence[float], known: Known = None
) -> NDArray[np.float64]:
    """As `np.quantile` of the known values, from the double places of all."""
    size = num_known(values, known)
    if size < _FEW:
        return np.asarray(np.quantile(values if known is None else values[known], shares))
    ranks = np.multiply(shares, size - 1)
    around = np.unique(np.concatenate([np.floor(ranks), np.ceil(ranks)]).astype(np.int64))
    return np.asarray(np.interp(ranks, around, values[at_places(double, size - around, known)]))


def picked(
    values: NDArray[np.float64], which: Callable[[NDArray[np.float64]], NDArray[np.bool_]], known: Known = None
) -> NDArray[np.float64]:
    """The known values that `which` marks, in their order.

    >>> picked(np.array([3.0, 1.0, 9.0]), lambda some: some > 2).tolist()
    [3.0, 9.0]
    """

    def pick(part: slice) -> NDArray[np.float64]:
        marked = which(values[part])
        return values[part][marked if known is None else marked & known[part]]

    return np.concatenate([np.zeros(0), *of_slices(len(values), pick)])


def largest(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The positions of the `count` largest values, largest first, equal ones as they stand. None may be NaN.

    >>> largest(np.array([3.0, 9.0, 3.0, 1.0]), 2).tolist()
    [1, 0]
    """

    def pick(part: slice) -> NDArray[np.int64]:
        some = values[part]
        if len(some) <= count:
            return np.arange(part.start, part.stop)
        least = np.partition(some, len(some) - count)[len(some) - count]
        above = np.flatnonzero(some > least)
        return part.start + np.append(above, np.flatnonzero(some == least)[: count - len(above)])

    found = np.concatenate([np.zeros(0, np.int64), *of_slices(len(values), pick)])
    return found[np.argsort(-values[found], kind="stable")[:count]]


def _sort(values: NDArray[Any], known: Known) -> tuple[NDArray[np.uint64], Places]:
    """Integers that sort as the values do, in order, and the positions of those; first come those not known."""
    keys, other_keys = np.empty((2, len(values)), np.uint64)
    found, other_found = np.empty((2, len(values)), place_type(len(values)))
    chosen = np.zeros(0, bool) if known is None else known
    in_threads(len(values), kernels.float_keys, np.asarray(values, np.float64), chosen, keys, found)
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
