"""How good a list is: the share of bad nodes among its first, with an interval, and how far it is worth reading.

The chance that a node is bad is a smooth function of its rank,

    logit P(bad at rank r) = a + b log r + bends at a few ranks,

fitted to all verdicts; which nodes were looked at was decided by their ranks and by chance, so nothing else has to be
known of how they were chosen. Nodes with a verdict count as they are, the others with their chance: the interval holds
what is not known of the function and of the nodes. Verdicts on nodes far down the list are few, and each of those drawn
at random stands for many.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcm_scale.base.rng import key
from hcm_scale.review.learn import fit_logistic
from hcm_scale.score.metrics import ranking

_LEVEL = 0.9  # of the interval
_NUM_BENDS = 5
_PRIOR = (0.0, -0.5)  # of the level and of the slope; of bends 0
_SPREAD = (3.0, 0.5, 0.5)  # of the level, the slope, and the bends
_NUM_DRAWS = 1000
_NUM_BINS = 400  # of ranks
_PURPOSE = 0x403  # of the seed

Values = NDArray[np.float64]


class Share(NamedTuple):
    """Share of bad nodes among the first so many, and its 90 % interval."""

    first: int
    share: float
    low: float
    high: float


class Curve(NamedTuple):
    """Draws of the chance to be bad at every bin of ranks, (draws, bins), and the verdicts on the list."""

    chances: Values
    ends: NDArray[np.int64]  # the last rank of every bin
    rank: NDArray[np.int64]  # of the nodes with a verdict
    is_bad: NDArray[np.bool_]

    @staticmethod
    def of(score: Values, nodes: NDArray[np.int64], is_bad: NDArray[np.bool_], seed: int = 0) -> "Curve":
        """The curve of a list by score, (n,), from verdicts on some nodes, (k,)."""
        place = np.empty(len(score), np.int64)
        place[ranking(score)] = np.arange(1, len(score) + 1)
        ends = np.unique(np.geomspace(1, len(score), _NUM_BINS).astype(np.int64))
        middle = np.sqrt(ends * np.concatenate([[1], ends[:-1] + 1]).astype(np.float64))
        spread = np.array([*_SPREAD[:2], *([_SPREAD[2]] * _NUM_BENDS)])
        prior = np.array([*_PRIOR, *([0.0] * _NUM_BENDS)])
        columns = _columns(place[nodes], len(score))
        fitted, curvature = fit_logistic(
            columns * spread, is_bad.astype(np.float64), np.ones(len(nodes)), prior / spread
        )
        noise = np.random.default_rng(key(seed, _PURPOSE)).standard_normal((len(spread), _NUM_DRAWS))
        drawn = fitted[:, None] + np.linalg.solve(np.linalg.cholesky(curvature).T, noise)
        return Curve(expit(_columns(middle, len(score)) * spread @ drawn).T, ends, place[nodes], is_bad)

    def share(self, first: int, seed: int = 0) -> Share:
        """Share of bad among the first nodes."""
        inside = self.rank <= first
        starts = np.concatenate([[0], self.ends[:-1]])
        known = np.histogram(self.rank[inside], np.append(starts, self.ends[-1]) + 0.5)[0]
        unknown = np.clip(np.minimum(self.ends, first) - starts, 0, None) - known
        rng = np.random.default_rng(key(seed, _PURPOSE, first))
        found = self.is_bad[inside].sum() + rng.binomial(unknown.astype(np.int64), self.chances).sum(axis=1)
        low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        return Share(first, float(found.mean()) / first, float(low) / first, float(high) / first)

    def worth_reading(self, price: float) -> int:
        """The rank down to which a node is bad with at least this chance; 0 where none is."""
        below = np.flatnonzero(self.chances.mean(axis=0) < price)
        return int(self.ends[-1] if not len(below) else 0 if below[0] == 0 else self.ends[below[0] - 1])


def _columns(ranks: NDArray, num_nodes: int) -> Values:
    """1, logarithm of the rank, and its bends, (k, 2 + bends)."""
    logs = np.log(np.maximum(ranks, 1).astype(np.float64))
    bends = np.linspace(0, np.log(max(2, num_nodes)), _NUM_BENDS + 2)[1:-1]
    return np.column_stack([np.ones(len(logs)), logs, np.maximum(logs[:, None] - bends, 0.0)])


def shares(score: Values, nodes: NDArray[np.int64], is_bad: NDArray[np.bool_], firsts: Sequence[int]) -> list[Share]:
    """Shares of bad among the first of a list by score, (n,), from verdicts on some nodes, (k,)."""
    curve = Curve.of(score, nodes, is_bad)
    return [curve.share(first) for first in firsts if first <= len(score)]


def worth_reading(score: Values, nodes: NDArray[np.int64], is_bad: NDArray[np.bool_], price: float) -> int:
    """The rank down to which a node of the list is bad with at least the chance `price`."""
    return Curve.of(score, nodes, is_bad).worth_reading(price)
