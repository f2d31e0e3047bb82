"""Several numbers of a node added up as z-scores, by what is usual among the nodes of one graph.

The sum is shifted to start at 0, where nodes that are not scored stay. `Usual` is taken from one graph and measures the
nodes of another the same way. All threads take part; numbers are summed as numpy sums those of the scored nodes, halves
of halves, so that means and spreads have the bits of `mean` and `std`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices, of_slices, share

_LEAF = 1 << 17  # scored nodes at most that one thread sums at a time

Values = NDArray[np.float64]


class Usual(NamedTuple):
    """Mean and spread of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float


def usual_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> Usual:
    """What is usual among the scored nodes; each number is (n,)."""
    ends = np.cumsum(of_slices(len(scored), lambda part: np.count_nonzero(scored[part]), _LEAF), dtype=np.int64)
    size = int(ends[-1]) if len(ends) else 0
    if not size:
        return Usual(np.zeros(len(values)), np.zeros(len(values)), 0.0)

    def chosen(value: Values, first: int, last: int) -> Values:
        """The numbers of the scored nodes from the `first` to before the `last`."""
        begin, end = np.searchsorted(ends, [first, last - 1], side="right")
        part = slice(begin * _LEAF, (end + 1) * _LEAF)
        before = int(ends[begin - 1]) if begin else 0
        return value[part][scored[part]][first - before : last - before]

    def least(part: slice) -> float:
        return float(_added(values, part, means, spreads)[scored[part]].min(initial=np.inf))

    means, spreads = np.array([_mean_and_spread(partial(chosen, value), size) for value in values]).T.copy()
    return Usual(means, spreads, min(of_slices(len(scored), least)))


def add_standardized(values: Sequence[Values], scored: NDArray[np.bool_], usual: Usual) -> Values:
    """The z-scores of all numbers added up, (n,); 0 where a node is not scored. A number without spread adds nothing.

    >>> values, scored = [np.array([1.0, 3.0, 9.0]), np.array([2.0, 2.0, 0.0])], np.array([True, True, False])
    >>> add_standardized(values, scored, usual_among(values, scored)).tolist()
    [0.0, 2.0, 0.0]
    """
    out = np.empty(len(scored))

    def fill(part: slice) -> None:
        total = _added(values, part, usual.means, usual.spreads) - usual.least
        out[part] = np.where(scored[part], total, 0.0)

    in_slices(len(out), fill)
    return out


def _added(values: Sequence[Values], part: slice, means: Values, spreads: Values) -> Values:
    total = np.zeros(len(values[0][part]))
    for value, mean, spread in zip(values, means, spreads, strict=True):
        if spread > 0:
            total += (value[part] - mean) / spread
    return total


def _mean_and_spread(take: Callable[[int, int], Values], size: int) -> tuple[float, float]:
    mean = _sum(size, take) / size
    return mean, np.sqrt(_sum(size, lambda first, last: np.square(take(first, last) - mean)) / size)


def _sum(size: int, take: Callable[[int, int], Values]) -> float:
    """The sum of take(0, size), taken in pieces and added in numpy's order."""
    sums: dict[tuple[int, int], float] = {}
    leaves = _leaves(0, size)

    def add(_: int, leaf: tuple[int, int]) -> None:
        sums[leaf] = float(take(*leaf).sum())

    share(min(numba.get_num_threads(), len(leaves)), leaves, add)

    def joined(first: int, last: int) -> float:
        middle = _middle(first, last)
        return sums[first, last] if (first, last) in sums else joined(first, middle) + joined(middle, last)

    return joined(0, size)


def _leaves(first: int, last: int) -> list[tuple[int, int]]:
    if last - first <= _LEAF:
        return [(first, last)]
    middle = _middle(first, last)
    return _leaves(first, middle) + _leaves(middle, last)


def _middle(first: int, last: int) -> int:
    """Where numpy parts a sum: at a multiple of eight, which it adds at a time."""
    return first + (last - first) // 2 // 8 * 8
