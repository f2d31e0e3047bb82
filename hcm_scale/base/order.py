"""Sorting and ranking of float arrays by all threads, and of the rows of a CSR.

- `order` and `double_places` sort. Up to 2^17 values numpy does it; more are radix sorted: a float's bits, with the
  sign turned round, are an integer that sorts as the float does, and six passes of eleven bits each, lowest first, sort
  those. In a pass every thread counts and then moves a stretch of its own, so the result does not depend on their
  number. Memory: 24 bytes a value, 32 from 2^30 values on. Within `sorting_on` a CUDA device does it, with the same
  result, for millions of values.
- A double place is the best and the worst place that equal values hold, added; place 1 is the largest. From double
  places `at_places` and `quantiles` find the value in any place without a second sort.
- `find_rank` and `value_at` find the value at a rank of a float32 array in two passes without a copy: one counts the
  upper halves of the 32-bit keys, one the lower halves of those that share an upper one. Values that are not finite
  have no rank.
- `sort_row` sorts a row of a CSR in place.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import map_slices, run_in_slices, run_in_threads

DIGIT_BITS = 11
ABOVE_ALL = 0xFFFFFFFF  # larger than the key of any finite value
_FEW = 1 << 17  # values that one thread sorts in the time that it takes to start others
_MANY = 1 << 22  # values that a device is worth asking for
_SHORT = 32  # a row that insertion sorts faster
_MASK = np.uint64((1 << DIGIT_BITS) - 1)
_SIGN, _ALL, _LAST = np.uint64(1 << 63), np.uint64((1 << 64) - 1), np.uint64(63)
_FIRST = np.uint64(0)  # below the key of minus infinity
_SIGN_32, _ALL_32, _INFINITE = np.uint32(0x80000000), np.uint32(0xFFFFFFFF), np.uint32(0x7F800000)
_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)
_ANY = -1  # upper half

Places = NDArray[np.signedinteger[Any]]
HasValue = NDArray[np.bool_] | None  # which entries have a value, and count; None: all
_device: str | None = None  # that sorts; None: the cores


@contextlib.contextmanager
def sorting_on(device: str) -> Iterator[None]:
    """Within it all threads have a CUDA device sort large arrays, where it has room; "cpu" stands for the cores."""
    global _device
    before, _device = _device, None if device == "cpu" else device
    try:
        yield
    finally:
        _device = before


def order(values: NDArray[Any]) -> NDArray[np.int64]:
    """The positions of the values, smallest first, as `np.argsort(values, kind="stable")` returns them; NaN last.

    >>> order(np.array([3.0, -1.0, 3.0, 0.5])).tolist()
    [1, 3, 0, 2]
    """
    positions = sort_with_order(values)[1]
    if positions.dtype == np.int64:
        return positions
    out = np.empty(len(positions), np.int64)
    run_in_slices(len(out), lambda part: np.copyto(out[part], positions[part]))
    return out


def sort_with_order(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    """The values in order, or integers that compare as they do, and `order` of the values.

    >>> [positions.tolist() for positions in sort_with_order(np.array([3.0, -1.0, 3.0, 0.5]))]
    [[-1.0, 0.5, 3.0, 3.0], [1, 3, 0, 2]]
    """
    if len(values) >= _FEW:
        return _sort(values, None)
    positions = np.argsort(values, kind="stable")
    return values[positions], positions


def place_type(size: int) -> type[np.signedinteger[Any]]:
    """The integer type that holds the double places of so many values."""
    return np.int32 if size < 1 << 30 else np.int64


def double_places(values: NDArray[np.float64], has_value: HasValue = None, out: Places | None = None) -> Places:
    """The double place of each value among those that have one; of others the middle, one more than their number.

    >>> double_places(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 8, 5, 2]
    """
    out = np.empty(len(values), place_type(len(values))) if out is None else out
    size = num_with_value(values, has_value)
    if size < _FEW:
        chosen = slice(None) if has_value is None else has_value
        _, group, counts = np.unique(values[chosen], return_inverse=True, return_counts=True)
        out[:] = max(1, size) + 1
        out[chosen] = (2 * (size - np.cumsum(counts)) + counts + 1)[group]
    elif not ((there := _sorter(len(values))) and there.fill_places(values, has_value, _device, out)):
        keys, positions = _sort(values, has_value)
        run_in_threads(size, share_places, keys[len(values) - size :], positions[len(values) - size :], out)
        out[positions[: len(values) - size]] = max(1, size) + 1  # last: threads have touched the pages
    return out


def num_with_value(values: NDArray[Any], has_value: HasValue) -> int:
    return len(values) if has_value is None else int(np.count_nonzero(has_value))


def at_places(
    double: Places, places: Sequence[int] | NDArray[np.int64], has_value: HasValue = None
) -> NDArray[np.int64]:
    """Positions of values that hold the given places, from the double places of all.

    The q-th smallest double place is that of the values that hold place q: the largest one up to 2 q where so many are
    as small, else the next.

    >>> at_places(np.array([5, 8, 5, 2]), [1, 2, 3, 4]).tolist()
    [3, 0, 0, 1]
    """
    wanted = np.asarray(places, np.int64)
    doubled = (2 * wanted).astype(double.dtype)  # what they are where no value has an equal

    def first_equal(part: slice) -> list[int]:
        some = double[part] if has_value is None else np.where(has_value[part], double[part], 0)
        equal = (some == place for place in doubled)
        return [part.start + int(at) if which[at := which.argmax()] else len(double) for which in equal]

    positions = np.min(map_slices(len(double), first_equal), axis=0)
    if (shared := positions == len(double)).any():
        positions[shared] = _nearest_places(double, wanted[shared], has_value)
    return positions


def _nearest_places(double: Places, places: NDArray[np.int64], has_value: HasValue) -> NDArray[np.int64]:
    """`at_places` of values that share theirs with others."""
    unsigned = np.dtype(f"u{double.dtype.itemsize}").type
    wanted = [(unsigned(2 * place), unsigned(2 * place + 1)) for place in places]

    def nearest_of(part: slice) -> list[list[int]]:
        # differences of the wrong sign wrap round and are larger than all others
        some = (double[part] if has_value is None else np.where(has_value[part], double[part], 0)).view(unsigned)
        nearest_two = []
        for upto, above in wanted:
            down, up = upto - some, some - above
            nearest, following = int(down.argmin()), int(up.argmin())
            count = int(np.count_nonzero(some <= upto))
            nearest_two.append(
                [int(down[nearest]), part.start + nearest, int(up[following]), part.start + following, count]
            )
        return nearest_two

    down, nearest, up, following, counts = np.moveaxis(np.array(map_slices(len(double), nearest_of), np.uint64), -1, 0)
    num_upto = counts.sum(axis=0).astype(np.int64) - (len(double) - num_with_value(double, has_value))
    columns = np.arange(len(places))
    nearest, following = nearest[down.argmin(axis=0), columns], following[up.argmin(axis=0), columns]
    return np.where(num_upto >= places, nearest, following).astype(np.int64)


def quantiles(
    values: NDArray[np.float64], double: Places, shares: Sequence[float], has_value: HasValue = None
) -> NDArray[np.float64]:
    """`np.quantile` of the values that count, from the double places of all."""
    size = num_with_value(values, has_value)
    if size < _FEW:
        return np.asarray(np.quantile(values if has_value is None else values[has_value], shares))
    ranks = np.multiply(shares, size - 1)
    around = np.unique(np.concatenate([np.floor(ranks), np.ceil(ranks)]).astype(np.int64))
    return np.asarray(np.interp(ranks, around, values[at_places(double, size - around, has_value)]))


def select_values(
    values: NDArray[np.float64], which: Callable[[NDArray[np.float64]], NDArray[np.bool_]], has_value: HasValue = None
) -> NDArray[np.float64]:
    """The values that `which` marks, of those that count, in their order.

    >>> select_values(np.array([3.0, 1.0, 9.0]), lambda some: some > 2).tolist()
    [3.0, 9.0]
    """

    def pick(part: slice) -> NDArray[np.float64]:
        marked = which(values[part])
        return values[part][marked if has_value is None else marked & has_value[part]]

    return np.concatenate([np.zeros(0), *map_slices(len(values), pick)])


def largest_positions(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The positions of the `count` largest values, largest first, equal ones as they stand. None may be NaN.

    >>> largest_positions(np.array([3.0, 9.0, 3.0, 1.0]), 2).tolist()
    [1, 0]
    """

    def pick(part: slice) -> NDArray[np.int64]:
        some = values[part]
        if len(some) <= count:
            return np.arange(part.start, part.stop)
        least = np.partition(some, len(some) - count)[len(some) - count]
        above = np.flatnonzero(some > least)
        return part.start + np.append(above, np.flatnonzero(some == least)[: count - len(above)])

    chosen = np.concatenate([np.zeros(0, np.int64), *map_slices(len(values), pick)])
    return chosen[np.argsort(-values[chosen], kind="stable")[:count]]


def _sort(values: NDArray[Any], has_value: HasValue) -> tuple[NDArray[np.uint64], Places]:
    """Keys of the values in order, and the positions of those; values that do not count come first."""
    keys, other_keys = np.empty((2, len(values)), np.uint64)
    positions, other_positions = np.empty((2, len(values)), place_type(len(values)))
    if (there := _sorter(len(values))) and there.sort(values, has_value, _device, keys, positions):
        return keys, positions
    chosen = np.zeros(0, bool) if has_value is None else has_value
    run_in_threads(len(values), float_keys, np.asarray(values, np.float64), chosen, keys, positions)
    counts = np.empty((numba.get_num_threads(), 1 << DIGIT_BITS), np.int64)
    for shift in range(0, 64, DIGIT_BITS):
        counts[:] = 0
        run_in_threads(len(counts), count_digits, keys, np.uint64(shift), counts)
        if counts.sum(axis=0).max() == len(values):
            continue  # one digit for all: they stay as they are
        starts = (counts.T.cumsum().reshape(counts.shape[::-1]).T - counts).copy()
        run_in_threads(len(counts), move, keys, positions, np.uint64(shift), starts, (other_keys, other_positions))
        keys, other_keys, positions, other_positions = other_keys, keys, other_positions, positions
    return keys, positions


def taker(columns: Mapping[str, NDArray[Any]]) -> Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]]:
    """A function that any thread may call: the values of all columns, which are equally long, at some positions.

    Within `sorting_on` a device holds long columns, and reads at random what the cores would wait for.

    >>> taker({"a": np.arange(5), "b": np.arange(5.0)})(np.array([3]))
    {'a': array([3]), 'b': array([3.])}
    """

    def take(positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {name: values.take(positions) for name, values in columns.items()}

    there = _sorter(max(map(len, columns.values()), default=0))
    return (there and there.taker(columns, _device, take)) or take


def _sorter(num_values: int) -> Any:
    """The module that has a device sort so many values; None where the cores do."""
    if _device is None or num_values < _MANY:
        return None
    from hcm_scale.base import order_device  # imports torch

    return order_device


@kernel
def float_keys(part, values, has_value, keys, positions):
    """keys[i] sorts as values[i] does: those that do not count first, NaN last, -0 with 0; positions[i] = i.

    `has_value` is empty where all count.
    """
    for i in range(part[0], part[1]):
        value = values[i] + 0.0
        bits = np.float64(value).view(np.uint64)
        key = bits ^ (_ALL if bits >> _LAST else _SIGN)
        keys[i] = _ALL if np.isnan(value) else key
        if len(has_value) and not has_value[i]:
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
            target = starts[task, digit]
            out_keys[target], out_positions[target] = keys[i], positions[i]
            starts[task, digit] = target + 1


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


def num_finite(values: NDArray[np.float32]) -> int:
    return int(count_lower(values, _ANY).sum())


def count_lower(values: NDArray[np.float32], upper: int) -> NDArray[np.int64]:
    """Finite values with this upper half of the key by its lower half, for each task; of _ANY by the upper."""
    counts = np.zeros((numba.get_num_threads(), 1 << 16), np.int64)
    run_in_threads(len(counts), count_halves, values.view(np.uint32), upper, counts)
    return counts


def find_rank(values: NDArray[np.float32], rank: int) -> tuple[int, int, int]:
    """The key of the value that is `rank`-th from the top, its rank among equal ones, and how many are equal."""
    upper, rank = _rank_from_top(count_lower(values, _ANY).sum(axis=0), rank)
    in_lower = count_lower(values, upper).sum(axis=0)
    lower, rank = _rank_from_top(in_lower, rank)
    return upper << 16 | lower, rank, int(in_lower[lower])


def value_at(values: NDArray[np.float32], rank: int) -> float:
    """The value that is `rank`-th from the top.

    >>> value_at(np.array([1.0, -3.0, 2.0, 2.0], np.float32), 3)
    1.0
    """
    key = find_rank(values, rank)[0]
    bits = np.array(key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF), np.uint32)
    return float(bits.view(np.float32)) + 0.0  # no minus zero


def _rank_from_top(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """The key of the value that is `rank`-th from the top, and its rank among the values of that key.

    >>> _rank_from_top(np.array([5, 2, 1]), 3)
    (1, 2)
    """
    above = counts[::-1].cumsum()[::-1] - counts
    key = int(np.flatnonzero(above < rank)[0])
    return key, rank - int(above[key])


@kernel(inline="always")
def _is_finite(bits):
    return bits & _INFINITE != _INFINITE


@kernel(inline="always")
def _key(bits):
    return bits ^ (_ALL_32 if bits & _SIGN_32 else _SIGN_32)


@kernel
def count_halves(part, bits, upper, counts):
    """counts[task, l] = finite values of the task's stretch whose key has the halves `upper` and l; comes in as zeros.

    Of _ANY, counts[task, h] = those of the upper half h.
    """
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for i in range(task * len(bits) // num_tasks, (task + 1) * len(bits) // num_tasks):
            if _is_finite(bits[i]):
                key = _key(bits[i])
                if upper == _ANY:
                    counts[task, key >> _HALF] += 1
                elif key >> _HALF == upper:
                    counts[task, key & _LOW] += 1


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


@kernel
def sort_row(row):
    if len(row) > _SHORT:
        row.sort()
        return
    for i in range(1, len(row)):
        value, j = row[i], i
        while j > 0 and row[j - 1] > value:
            row[j] = row[j - 1]
            j -= 1
        row[j] = value
