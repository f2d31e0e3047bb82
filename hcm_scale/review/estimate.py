"""How good a list is: the share of bad nodes among its first, with an interval, and how far it is worth reading.

The chance of a node to be bad is a smooth function of its ranks by the lists, the taught and the label-free one:

    logit P(bad) = a + sum over the lists of (b log rank, bending at a few ranks)

Which nodes were looked at was decided by their ranks and by chance, so that the function can be fitted to all verdicts
alike. It takes both lists: the reviewer has mostly seen the head of the taught one, which is no fair sample of nodes
with the same label-free rank. Nodes with a verdict count as they are, the others by their chance; the interval holds
what is not known of the function and of the nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcm_scale.base.rng import key
from hcm_scale.review.learn import fit_logistic
from hcm_scale.score.metrics import ranking

_OUTSIDE = 0.05  # of the 90 % interval, at either end
_NUM_BENDS = 4
_SLOPE = -0.5  # expected of the first list
_LEVEL_SPREAD, _SPREADS = 3.0, (1.0, 0.5)  # of the level; of slope and bends by the first list and by others
_NUM_DRAWS, _MOST_NODES = 400, 4096
_NUM_STEPS, _STEP_NODES = 100, 64  # of ranks, where the end of what is worth reading is looked for
_PURPOSE = 0x403  # of the seed

Values = NDArray[np.float64]
Nodes = NDArray[np.int64]


class Share(NamedTuple):
    """Share of bad nodes among the first so many, and its 90 % interval."""

    first: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Estimates:
    """What verdicts say of lists: their orders by name, draws of the fitted function, (width, draws), the verdicts."""

    orders: dict[str, Nodes]
    log_ranks: list[Values]
    drawn: Values
    bad: NDArray[np.int8]  # of every node: 1 bad, 0 good, -1 without a verdict

    @staticmethod
    def of(lists: Mapping[str, Values], nodes: Nodes, is_bad: NDArray[np.bool_]) -> "Estimates":
        """Of lists by their scores, (n,) each, the one that the reviewer reads first, and verdicts on nodes, (k,)."""
        orders = {name: ranking(score) for name, score in lists.items()}
        log_ranks: list[Values] = []
        for order in orders.values():
            logs = np.empty(len(order))
            logs[order] = np.log(np.arange(1, len(order) + 1))
            if not any(np.array_equal(logs, other) for other in log_ranks):
                log_ranks.append(logs)
        spread = np.concatenate(
            [[_LEVEL_SPREAD], *(np.full(1 + _NUM_BENDS, _SPREADS[i > 0]) for i in range(len(log_ranks)))]
        )
        prior = np.zeros(len(spread))
        prior[1] = _SLOPE
        columns, label = _columns(log_ranks, nodes) * spread, is_bad.astype(np.float64)
        fitted, curvature = fit_logistic(columns, label, np.ones(len(nodes)), prior / spread)
        noise = np.random.default_rng(key(0, _PURPOSE)).standard_normal((len(spread), _NUM_DRAWS))
        drawn = fitted[:, None] + np.linalg.solve(np.linalg.cholesky(curvature).T, noise)
        bad = np.full(len(log_ranks[0]), -1, np.int8)
        bad[nodes] = is_bad
        return Estimates(orders, log_ranks, drawn * spread[:, None], bad)

    def _chances(self, nodes: Nodes) -> Values:
        """Chance of the average of some nodes to be bad, in every draw, (draws,)."""
        few = nodes[np.linspace(0, len(nodes) - 1, min(len(nodes), _MOST_NODES)).astype(np.int64)]
        return expit(_columns(self.log_ranks, few) @ self.drawn).mean(axis=0)

    def shares(self, name: str, firsts: Sequence[int]) -> list[Share]:
        """Shares of bad among the first nodes of a list; the lengths that it does not have are left out."""
        return [self._share(self.orders[name][:first]) for first in firsts if first <= len(self.bad)]

    def _share(self, first: Nodes) -> Share:
        known = self.bad[first]
        unknown, found = first[known < 0], np.full(_NUM_DRAWS, np.count_nonzero(known == 1))
        if len(unknown):
            found = found + np.random.default_rng(key(len(first), _PURPOSE)).binomial(
                len(unknown), self._chances(unknown)
            )
        low, high = np.quantile(found, [_OUTSIDE, 1 - _OUTSIDE]) / len(first)
        return Share(len(first), float(found.mean()) / len(first), float(low), float(high))

    def worth_reading(self, name: str, price: float) -> int:
        """The rank down to which the nodes of a list are bad with at least this chance; 0 where the first are not."""
        order, last = self.orders[name], 0
        for end in np.unique(np.geomspace(min(10, len(order)), len(order), _NUM_STEPS).astype(np.int64)):
            here = order[np.linspace(last, end - 1, min(end - last, _STEP_NODES)).astype(np.int64)]
            if self._chances(here).mean() < price:
                break
            last = int(end)
        return last


def _columns(log_ranks: Sequence[Values], nodes: Nodes) -> Values:
    """1, and of every list the logarithm of the rank and its bends, (k, width)."""
    bends = np.linspace(0, np.log(max(2, len(log_ranks[0]))), _NUM_BENDS + 2)[1:-1]
    parts = [np.ones((len(nodes), 1))]
    for logs in (every[nodes] for every in log_ranks):
        parts += [logs[:, None], np.maximum(logs[:, None] - bends, 0.0)]
    return np.concatenate(parts, axis=1)
