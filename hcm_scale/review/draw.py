"""Which nodes to look at next: mostly the head of the list, some where kinds of evidence disagree, some at random.

A verdict on the head finds bad nodes, one on any other node tells whether the list is right. Where half of what was
looked at is bad, the list is good and one node in twenty is drawn elsewhere; where nothing is, four.

- disagreement: the node that leads, or comes last, by one kind of evidence drawn at random, and is not in the head;
- random: half of them from all nodes alike, half by 1 / rank, so that the upper part of the list is estimated well.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.rng import key
from hcm_scale.score.metrics import ranking

_GOOD_LIST = 0.5  # share of bad among the verdicts
_ELSEWHERE, _ELSEWHERE_IF_GOOD = 0.2, 0.05
_PURPOSE = 0x402  # of the seed
HEAD, DISAGREEMENT, RANDOM = "head of the list", "kinds of evidence disagree", "drawn at random"


class Drawn(NamedTuple):
    """A node to look at, why, in words, and the chance that it had to be drawn: 1 for the head."""

    node: int
    why: str
    chance: float = 1.0


def draw(
    score: NDArray[np.float64],
    ranks: Sequence[NDArray[np.integer]],
    reviewed: NDArray[np.bool_],
    count: int,
    seed: int,
    bad_share: float = 0.0,
    num_compared: NDArray[np.int64] | None = None,
) -> list[Drawn]:
    """The next nodes, at most `count`, of a list by score, (n,); head first.

    `ranks` are those by every kind of evidence, (n,) each, among `num_compared` nodes, by default all: who leads or
    comes last does so among its like. `bad_share` is that of the verdicts given so far. The seed must be another for
    every call.
    """
    sizes = np.full(len(score), len(score)) if num_compared is None else num_compared
    rng = np.random.default_rng(key(seed, _PURPOSE))
    order = ranking(score)
    order = order[~reviewed[order]]
    if not len(order):
        return []
    count = min(count, len(order))
    good = min(1.0, bad_share / _GOOD_LIST)
    share = (1 - good) * _ELSEWHERE + good * _ELSEWHERE_IF_GOOD
    elsewhere = max(1, round(count * share)) if count > 1 else 0  # a single node is the head
    num_odd = elsewhere // 2 if len(ranks) else 0  # so that at least one is left to be drawn at random
    head = order[: count - elsewhere]
    taken = reviewed.copy()
    taken[head] = True
    drawn = [Drawn(int(node), HEAD) for node in head]
    for _ in range(num_odd):
        by_kind = ranks[int(rng.integers(len(ranks)))]
        leads = rng.choice([-1, 1]) > 0
        free = np.flatnonzero(~taken)
        from_end = by_kind[free] if leads else sizes[free] - by_kind[free]
        ends = free[from_end == from_end.min()]
        drawn.append(Drawn(int(rng.choice(ends)), DISAGREEMENT, 0.5 / len(ranks) / len(ends)))
        taken[drawn[-1].node] = True
    left = order[~taken[order]]
    by_rank = 1.0 / np.arange(1, len(left) + 1)
    chances = 0.5 * by_rank / by_rank.sum() + 0.5 / len(left)
    num_random = min(elsewhere - num_odd, len(left))
    chosen = np.sort(rng.choice(len(left), num_random, replace=False, p=chances))
    with np.errstate(divide="ignore"):  # the last one left is drawn for certain
        at_least_once = -np.expm1(num_random * np.log1p(-chances[chosen]))
    return drawn + [Drawn(int(left[at]), RANDOM, float(p)) for at, p in zip(chosen, at_least_once, strict=True)]
