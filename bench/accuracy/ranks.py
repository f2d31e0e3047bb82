"""Methods over many graphs as ranks (Demsar 2006): what each mean rank is, and how far two must be apart to differ.

On every graph the best method has rank 1; ties share the mean of their ranks, and a method that did not finish on a
graph is behind all that did. Two mean ranks over N graphs of k methods differ, by the test of Nemenyi, where they are
at least the critical difference q sqrt(k (k + 1) / 6 N) apart, q the quantile of the studentised range over sqrt(2).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 0.05


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean rank of every method, (k,), from values (k methods, N graphs), larger is better, nan is not finished.

    >>> mean_ranks(np.array([[0.9, 0.6], [0.7, 0.8], [0.7, np.nan]])).tolist()
    [1.5, 1.75, 2.75]
    """
    behind = np.where(np.isnan(values), -np.inf, values)
    found: NDArray[np.float64] = stats.rankdata(-behind, axis=0).mean(axis=1)
    return found


def critical_difference(num_methods: int, num_graphs: int, alpha: float = ALPHA) -> float:
    """The least difference of two mean ranks that the test of Nemenyi calls one.

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    if num_methods < 2 or num_graphs < 1:
        raise ValueError(f"{num_methods} methods on {num_graphs} graphs: two methods and one graph are the least")
    q = stats.studentized_range.isf(alpha, num_methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(num_methods * (num_methods + 1) / (6 * num_graphs)))


def groups(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The longest runs of ascending ranks whose ends do not differ, as (first, last); a method alone is none.

    >>> groups([1.0, 2.0, 2.5, 4.0, 9.0], 2.0)
    [(0, 2), (2, 3)]
    >>> groups([1.0, 1.5, 2.0], 5.0)
    [(0, 2)]
    """
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i, other in enumerate(ranks) if other - rank < difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
