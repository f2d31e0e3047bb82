"""How good a list is: the share of bad nodes among its first, with an interval, and how far it is worth reading.

The chance of a node to be bad is a function of its ranks by the lists, the taught and the label-free one:

    logit P(bad) = a + sum over the lists of a walk from the last rank up, a slope of its own in every piece of log rank

A priori bad nodes are rare at the end of a list, and no piece knows of the others: a list may be good for a hundred
ranks and then end, so that what is said beyond the ranks that were looked at is said with a wide interval. Which nodes
were looked at was decided by their ranks and by chance, so that the function can be fitted to all verdicts alike. It
takes both lists: the reviewer has mostly seen the head of the taught one, which is no fair sample of nodes with the
same label-free rank. Nodes with a verdict count as they are, the others by their chance; the interval holds what is not
known of the function and of the nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base.rng import key
from hcm_scale.base.threads import run_in_slices
from hcm_scale.review.learn import fit_logistic

_OUTSIDE = 0.05  # of the 90 % interval, at either end
_NUM_PIECES, _MOST_VERDICTS = 8, 1 << 15  # of a walk; that it is fitted to
_LEVEL, _SLOPE = -3.5, 0.5  # expected at the end of the lists, and of the first list
_LEVEL_SPREAD, _SLOPE_SPREAD, _SPREADS = 2.0, 0.5, (3.0, 0.7)  # the last of slopes by the first list and by others
_NUM_DRAWS, _MOST_NODES = 400, 4096
_NUM_STEPS, _WINDOW = 100, 50  # of ranks, where the end of what is worth reading is looked for; least nodes of a look
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
    heights: list[Values]  # log(n / rank) of every node, 0 at the end of a list
    drawn: Values
    bad: NDArray[np.int8]  # of every node: 1 bad, 0 good, -1 without a verdict

    @staticmethod
    def of(
        orders: Mapping[str, Nodes], nodes: Nodes, is_bad: NDArray[np.bool_], lessons: tuple[Nodes, Any] | None = None
    ) -> "Estimates":
        """Of nodes by rank, (n,), in each list, the one that the reviewer reads first, and verdicts on nodes, (k,).

        `lessons` are those of them that the function is fitted to, where some are one verdict, as of a case.
        """
        heights: list[Values] = []
        for order in orders.values():
            height = np.empty(len(order))
            run_in_slices(len(order), partial(_fill_heights, order, height))
            if not any(np.array_equal(height, other) for other in heights):
                heights.append(height)
        walks = [np.full(_NUM_PIECES, _SPREADS[i > 0]) for i in range(len(heights))]
        spread = np.concatenate([[_LEVEL_SPREAD, _SLOPE_SPREAD], *walks])
        prior = np.zeros(len(spread))
        prior[:2] = _LEVEL, _SLOPE
        rng = np.random.default_rng(key(0, _PURPOSE))
        of_lesson, is_one = lessons or (nodes, is_bad)
        some = rng.permutation(len(of_lesson))[:_MOST_VERDICTS]
        columns, label = _columns(heights, of_lesson[some]) * spread, is_one[some].astype(np.float64)
        fitted, curvature, _ = fit_logistic(columns, label, np.ones(len(some)), prior / spread)
        noise = rng.standard_normal((len(spread), _NUM_DRAWS))
        drawn = fitted[:, None] + np.linalg.solve(np.linalg.cholesky(curvature).T, noise)
        bad = np.full(len(heights[0]), -1, np.int8)
        bad[nodes] = is_bad
        return Estimates(dict(orders), heights, drawn * spread[:, None], bad)

    def _chances(self, nodes: Nodes) -> Values:
        """Chance of the average of some nodes to be bad, in every draw, (draws,)."""
        few = nodes[np.linspace(0, len(nodes) - 1, min(len(nodes), _MOST_NODES)).astype(np.int64)]
        return scipy.special.expit(_columns(self.heights, few) @ self.drawn).mean(axis=0)

    def shares(self, name: str, firsts: Sequence[int]) -> list[Share]:
        """Shares of bad among the first nodes of a list; the lengths that it does not have are left out."""
        found = []
        for first in (first for first in firsts if first <= len(self.bad)):
            drawn = self._share(self.orders[name][:first])
            found.append(Share(first, float(drawn.mean()), *np.quantile(drawn, [_OUTSIDE, 1 - _OUTSIDE]).tolist()))
        return found

    def _share(self, first: Nodes) -> Values:
        """Share of bad among these nodes, in every draw, (draws,)."""
        verdicts = self.bad[first]
        unseen, num_bad = first[verdicts < 0], np.full(_NUM_DRAWS, np.count_nonzero(verdicts == 1))
        if len(unseen):
            num_bad = num_bad + np.random.default_rng(key(len(first), _PURPOSE)).binomial(
                len(unseen), self._chances(unseen)
            )
        return num_bad / len(first)

    def worth_reading(self, name: str, price: float) -> int:
        """The rank down to which a list has at least this share of bad nodes; 0 where its first have not.

        The share at a rank is that of the last fifth of the nodes up to it, and of no fewer than the window: one node,
        or ten, tell nothing. It is the median of the draws: beyond what was looked at a few of them lift the mean.
        """
        order, last = self.orders[name], 0
        for end in np.unique(np.geomspace(min(10, len(order)), len(order), _NUM_STEPS).astype(np.int64)).tolist():
            if np.median(self._share(order[max(0, min(4 * end // 5, end - _WINDOW)) : end])) >= price:
                last = end
            elif end >= _WINDOW:
                break
        return last


def _fill_heights(order: Nodes, height: Values, rows: slice) -> None:
    height[order[rows]] = np.log(len(order) / np.arange(rows.start + 1, rows.stop + 1))


def _columns(heights: Sequence[Values], nodes: Nodes) -> Values:
    """1, the height in the first list, and of every list the part of the height in each piece, (k, width)."""
    ends = np.linspace(0, np.log(max(2, len(heights[0]))), _NUM_PIECES + 1)
    first = [np.ones((len(nodes), 1)), heights[0][nodes, None]]
    return np.concatenate([*first, *(np.clip(each[nodes, None] - ends[:-1], 0, ends[1]) for each in heights)], axis=1)
