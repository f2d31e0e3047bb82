"""How surprising a number of one kind is: -log P(a usual node has as much), by its rank in the bulk, by a tail beyond.

Up to the 95 % quantile it is the surprise of the rank. Beyond it a generalised Pareto tail goes on through what three
quantiles of the bulk show, its shape a quarter above what they say, at least 0: exponential or heavier.

What a node gains by a kind is its surprise less the least of all nodes', which is no evidence. Added up, the gains of
all kinds are what p is read off (threshold.py). To the score (evidence.py) a kind adds what the rank alone says where
that is more, and the logarithm of what goes beyond all ranks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import Known, Places, at_places, double_places, num_known, picked, quantiles
from hcm_scale.score.ranks import ranks_among, ranks_of, surprise

_HIGH = 0.95  # the quantile of a kind where its fitted tail begins; odd nodes lie beyond it
_START = -np.log1p(-_HIGH)  # its surprise
_LOW = 0.5  # where the bulk that shows the tail begins
_SHAPE_MARGIN = 0.25  # a normal bulk says -0.4, an exponential one 0, a lognormal one 0.3
_LOGS = ("closure", "context_closure")  # kinds that are logarithms already: exponential, and most are 0 on some graphs
_LOW_OF_LOGS = 0.75
_LEAST_OF_LOGS = 0.05  # the least scale of their tails: counts of one or two triangles make no slope
_SMALL = 10.0  # nodes of a bulk that shows its scale to within a factor of two
LEAST_P = 1e-300

Values = NDArray[np.float64]


class Tail(NamedTuple):
    """Beyond `high` a surprise is `begin` at `first`, and grows from there by `scale` and `shape`."""

    high: float
    first: float
    begin: float
    scale: float
    shape: float


class Gains(NamedTuple):
    """What nodes gain by the numbers of one kind; those that are not `known` gain what the middle of the others does.

    `double` are the double places of the numbers, `size` is how many are known, and `tells` whether any two differ.
    """

    values: Values
    double: Places
    known: Known
    size: int
    tail: Tail
    least: float
    middle: float
    tells: bool

    def of(self, part: slice) -> tuple[Values, Values]:
        """The gains of some of the nodes, and what they add to the score."""
        return self._told(ranks_of(self.double[part], self.size), self.values[part], _some(self.known, part))

    def among(self, values: Values, known: Known) -> tuple[Values, Values]:
        """The same of other nodes, as if they were among these."""
        usual = self.values if self.known is None else self.values[self.known]
        return self._told(ranks_among(values, usual), values, known)

    def _told(self, ranks: Values, values: Values, known: Known) -> tuple[Values, Values]:
        by_rank = surprise(ranks)
        gained = np.maximum(bend(by_rank.copy(), values, self.tail) - self.least, 0.0)
        added = np.maximum(by_rank - self.least, soften(gained, self.size))
        if known is None:
            return gained, added
        return np.where(known, gained, self.middle), np.where(known, added, self.middle)


def soften(gained: Values, size: int) -> Values:
    """Gains that beyond log(size), the most that a rank among so many says, go on as the logarithm of what is left.

    So no tail drowns the other kinds, and none of its order is lost.
    """
    most = np.log(max(2, size))
    return np.minimum(gained, most) + np.log1p(np.clip(gained - most, 0.0, np.finfo(np.float64).max))


def _some(known: Known, part: slice) -> Known:
    return None if known is None else known[part]


def gains_of(kind: str, values: Values, known: Known = None, double: Places | None = None) -> Gains:
    """What nodes gain by the numbers of one kind, (n,); `double` are their double places, where these are known.

    >>> gains_of("hop", np.array([3.0, 1.0, 2.0])).of(slice(None))[0].round(2).tolist()
    [2.81, 0.0, 0.51]
    """
    size = num_known(values, known)
    double = double_places(values, known) if double is None else double
    if not size:
        return Gains(values, double, known, 0, Tail(np.inf, np.inf, _START, 1.0, 0.0), np.log(2.0), 0.0, False)
    bulk = quantiles(values, double, shares_of(kind), known)
    tail = fit(kind, bulk, picked(values, lambda some: some > bulk[-1], known), size)
    few = at_places(double, [1, size, size // 2 + 1, (size + 1) // 2], known)  # surprise falls from place to place
    most, least, *middle = bend(surprise(ranks_of(double[few], size)), values[few], tail)
    return Gains(values, double, known, size, tail, least, np.mean(np.subtract(middle, least)), bool(most > least))


def bend(gained: Values, values: Values, tail: Tail) -> Values:
    """Surprises by rank, with those beyond the bulk by the tail instead; the same array."""
    np.minimum(gained, _START, out=gained)
    beyond = values > tail.high
    excess = np.maximum(values[beyond] - tail.first, 0.0) / tail.scale
    gained[beyond] = tail.begin + (np.log1p(tail.shape * excess) / tail.shape if tail.shape else excess)
    return gained


def shares_of(kind: str) -> list[float]:
    """The quantiles that show the tail of a kind, evenly spaced by their surprise."""
    low = _LOW_OF_LOGS if kind in _LOGS else _LOW
    return [low, 1.0 - np.sqrt((1.0 - low) * (1.0 - _HIGH)), _HIGH]


def fit(kind: str, bulk: Values, above: Values, num_usual: int) -> Tail:
    """The tail that the three quantiles of the bulk show; `above` are the usual values beyond it."""
    low, high = shares_of(kind)[0], bulk[-1]
    if not np.isfinite(high):
        return Tail(high, high, _START, 1.0, 0.0)
    first = above.min() if len(above) else high  # of numbers with gaps, the next beyond is not yet odd
    seen = num_usual * (1.0 - low)
    scale, shape = _tail(bulk, 0.5 * np.log((1.0 - low) / (1.0 - _HIGH)), bends=kind not in _LOGS)
    if bulk[0] == high and len(above):  # most nodes share one number: those above are judged among themselves
        excess = above - first
        seen, scale = len(above), float(np.median(excess)) / np.log(2.0) or float(excess.mean())
    scale = max(scale, _LEAST_OF_LOGS if kind in _LOGS else 0.0, 1e-12 * abs(high), LEAST_P)
    begin = max(_START, -np.log(max(len(above), 1) / num_usual))
    return Tail(high, first, begin, scale * widening(seen), shape)


def _tail(bulk: Values, step: float, *, bends: bool) -> tuple[float, float]:
    """Scale and shape at the last of three quantiles, whose -log(1 - quantile) are `step` apart."""
    low, middle, high = bulk
    if not (bends and low < middle < high):
        return (high - low) / (2.0 * step), 0.0
    shape = max(0.0, np.log((high - middle) / (middle - low)) / step + _SHAPE_MARGIN)
    return (high - middle) * (shape / -np.expm1(-step * shape) if shape else 1.0 / step), shape


def widening(num_seen: float) -> float:
    """What to widen a scale by that so many nodes have shown."""
    return 1.0 + _SMALL / num_seen
