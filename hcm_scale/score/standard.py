"""Several numbers of a node added up as z-scores, by what is usual among the nodes of one graph.

The sum is shifted to start at 0, where nodes that are not scored stay. `Usual` is taken from one graph and measures the
nodes of another the same way. All threads take part: sums are of slices that do not depend on their number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices, of_slices

Values = NDArray[np.float64]


class Usual(NamedTuple):
    """Mean and spread of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float


def usual_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> Usual:
    """What is usual among the scored nodes; each number is (n,)."""
    size = sum(of_slices(len(scored), lambda part: np.count_nonzero(scored[part])))
    if not size:
        return Usual(np.zeros(len(values)), np.zeros(len(values)), 0.0)

    def moments(center: Values, power: int) -> Values:
        """The mean, over the scored nodes, of this power of how far each number is above its center."""

        def sums(part: slice) -> list[float]:
            return [((value[part][scored[part]] - c) ** power).sum() for value, c in zip(values, center, strict=True)]

        return np.sum(of_slices(len(scored), sums), axis=0) / size

    def least(part: slice) -> float:
        return float(_added(values, part, means, spreads)[scored[part]].min(initial=np.inf))

    means = moments(np.zeros(len(values)), 1)
    spreads = np.sqrt(moments(means, 2))
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
