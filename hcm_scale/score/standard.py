"""Several numbers of a node added up as z-scores, by what is usual among the nodes of one graph.

The sum is shifted to start at 0, where nodes that are not scored stay. `Usual` is taken from one graph and measures the
nodes of another the same way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Usual(NamedTuple):
    """Mean and spread of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float


def usual_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> Usual:
    """What is usual among the scored nodes; each number is (n,)."""
    known = [value[scored] for value in values]
    means = np.array([value.mean() if len(value) else 0.0 for value in known])
    spreads = np.array([value.std() if len(value) else 0.0 for value in known])
    total = _sum(known, means, spreads)
    return Usual(means, spreads, float(total.min()) if len(total) else 0.0)


def add_standardized(values: Sequence[Values], scored: NDArray[np.bool_], usual: Usual) -> Values:
    """The z-scores of all numbers added up, (n,); 0 where a node is not scored. A number without spread adds nothing.

    >>> values, scored = [np.array([1.0, 3.0, 9.0]), np.array([2.0, 2.0, 0.0])], np.array([True, True, False])
    >>> add_standardized(values, scored, usual_among(values, scored)).tolist()
    [0.0, 2.0, 0.0]
    """
    out = np.zeros(len(scored))
    out[scored] = _sum([value[scored] for value in values], usual.means, usual.spreads) - usual.least
    return out


def _sum(values: Sequence[Values], means: Values, spreads: Values) -> Values:
    total = np.zeros(len(values[0]))
    for value, mean, spread in zip(values, means, spreads, strict=True):
        if spread > 0:
            total += (value - mean) / spread
    return total
