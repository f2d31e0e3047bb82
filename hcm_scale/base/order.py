"""Sorting and ranking of float arrays, and of the rows of a CSR.

- `order` and `double_places` sort, by numpy; within `sorting_on` a CUDA device does it, with the same result, for
  millions of values. Memory: 24 bytes a value.
- A double place is the best and the worst place that equal values hold, added; place 1 is the largest.
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
from hcm_scale.base.threads import map_slices, run_in_threads

ABOVE_ALL = 0xFFFFFFFF  # larger than the key of any finite value
_FEW = 1 << 17  # values that numpy alone ranks in no time
_SLICE = 1 << 17  # values that a thread looks at together
_MANY = 1 << 22  # values that a device is worth asking for
_SHORT = 32  # a row that insertion sorts faster
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
    return sort_with_order(values)[1].astype(np.int64, copy=False)


def sort_with_order(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    """The values in order, or integers that compare as they do, and `order` of the values.

    >>> [positions.tolist() for positions in sort_with_order(np.array([3.0, -1.0, 3.0, 0.5]))]
    [[-1.0, 0.5, 3.0, 3.0], [1, 3, 0, 2]]
    """
    keys, positions = np.empty(len(values), np.uint64), np.empty(len(values), place_type(len(values)))
    if (there := _sorter(len(values))) and there.sort(values, _device, keys, positions):
        return keys, positions
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
        some = values if has_value is None else values[has_value]
        positions = np.argsort(some)
        ordered = some[positions]
        if has_value is not None:
            positions = np.flatnonzero(has_value)[positions]
            out[~has_value] = max(1, size) + 1
        run_in_threads(size, share_places, ordered, positions, out)
    return out


def num_with_value(values: NDArray[Any], has_value: HasValue) -> int:
    return len(values) if has_value is None else int(np.count_nonzero(has_value))


def at_places(
    double: Places, places: Sequence[int] | NDArray[np.int64], has_value: HasValue = None
) -> NDArray[np.int64]:
    """Positions of values that hold the given places, from the double places of all.

    >>> double = np.array([5, 8, 5, 2])
    >>> double[at_places(double, [1, 2, 3, 4])].tolist()
    [2, 5, 5, 8]
    """
    last = 2 * np.asarray(places, np.int64)

    def nearest(chunk: slice) -> list[NDArray[Any]]:
        """Of a slice the largest double place up to each that is wanted, how many hold it, and the least beyond."""
        ordered = np.sort(double[chunk] if has_value is None else double[chunk][has_value[chunk]])
        to = np.searchsorted(ordered, last, side="right")
        below, above = np.append(ordered, 0)[to - 1], np.append(ordered, np.iinfo(np.int64).max)[to]
        return [below, to - np.searchsorted(ordered, below), above]

    below, counts, above = np.stack(map_slices(len(double), nearest, _SLICE), axis=1)
    most = below.max(axis=0)  # its last place is half of itself and of how many hold it, less one
    reaches = last < most + (counts * (below == most)).sum(axis=0)
    wanted = np.where(reaches, most, above.min(axis=0))
    slices = (np.where(reaches, below, above) == wanted).argmax(axis=0)

    def position(first: int, place: int) -> int:
        holds = double[first : first + _SLICE] == place
        return first + int(np.argmax(holds if has_value is None else holds & has_value[first : first + _SLICE]))

    return np.array([position(*pair) for pair in zip((_SLICE * slices).tolist(), wanted.tolist(), strict=True)])


def largest_positions(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The positions of the `count` largest values, largest first, equal ones as they stand. None may be NaN.

    >>> largest_positions(np.array([3.0, 9.0, 3.0, 1.0]), 2).tolist()
    [1, 0]
    """

    def pick(chunk: slice) -> NDArray[np.int64]:
        some = values[chunk]
        if len(some) <= count:
            return np.arange(chunk.start, chunk.stop)
        least = np.partition(some, len(some) - count)[len(some) - count]
        above = np.flatnonzero(some > least)
        return chunk.start + np.append(above, np.flatnonzero(some == least)[: count - len(above)])

    chosen = np.concatenate([np.zeros(0, np.int64), *map_slices(len(values), pick)])
    return chosen[np.argsort(-values[chosen], kind="stable")[:count]]


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
def first_not_below(values, low, high, wanted):
    """Where `wanted` is first in the rising values low .. high - 1, or would be; numba's own compiles for longer."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def share_places(tasks, ordered, positions, out):
    """out[positions[i]] = best and worst place of the values equal to ordered[i], added; the last is in place 1.

    A run of equals may reach beyond the tasks: only its ends are looked for there.
    """
    size = len(ordered)
    i = tasks[0]
    while i < tasks[1]:
        first = i if i > tasks[0] else np.searchsorted(ordered, ordered[i], side="left")
        last = i + 1
        while last < tasks[1] and ordered[last] == ordered[i]:
            last += 1
        end = last if last < tasks[1] else np.searchsorted(ordered, ordered[i], side="right")
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
def count_halves(tasks, bits, upper, counts):
    """counts[task, l] = finite values of the task's stretch whose key has the halves `upper` and l; comes in as zeros.

    Of _ANY, counts[task, h] = those of the upper half h.
    """
    num_tasks = len(counts)
    for task in range(tasks[0], tasks[1]):
        for i in range(task * len(bits) // num_tasks, (task + 1) * len(bits) // num_tasks):
            if _is_finite(bits[i]):
                key = _key(bits[i])
                if upper == _ANY:
                    counts[task, key >> _HALF] += 1
                elif key >> _HALF == upper:
                    counts[task, key & _LOW] += 1


@kernel
def mark_largest(tasks, bits, threshold, num_ties, marked):
    """Marks what has a key above `threshold`, and in each task's stretch the last num_ties[task] that have just it."""
    num_tasks = len(num_ties)
    for task in range(tasks[0], tasks[1]):
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
