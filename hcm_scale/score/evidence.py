"""Kinds of evidence that a node is odd, and the one score that they add up to.

| kind            | a node stands out because                                                | the number     |
|-----------------|--------------------------------------------------------------------------|----------------|
| hop             | the model takes its neighbours to be far away                            | `ahp`          |
| closure         | far edges around it close into triangles: a group of strangers           | `closure`      |
| context         | its attributes are unlike those of its neighbours                        | `context`      |
| context_closure | edges between unlike nodes close into triangles around it                | `context_closure` |
| attributes      | its attributes are not what its neighbourhood predicts                   | `residual`     |

Each number becomes a surprise, -log P(a usual node has as much): by its rank among all nodes, -log(1 - rank), or by
the tail that the bulk of them shows (tail.py) where that is more, so that the members of a large group are not held
against each other. Then

    score(v) = sum over the kinds of v's surprise, above the least of all nodes,

Fisher's way of adding up evidence: a node that leads in one kind comes before one that is a little odd in all. Beyond
log(n), the most that a rank can say, a surprise goes on as its logarithm, so that no heavy tail decides alone. A kind
that cannot tell about a node (no neighbours) gives it what its middle node has; one that cannot tell any two apart
gives nothing.

Each kind is also kept apart as places: 1 is the strangest node by this kind, equal ones share the middle place, rounded
towards 1, and so do all nodes of which the kind cannot tell. The place of a kind of neighbours counts nodes with
neighbours. A node's strongest kind is the one whose place is the smallest share of the nodes that the kind ranks; of a
node without neighbours it is `attributes`.

A graph that is scored by a model of another gains as if its nodes were among those of that one (`weigh(..., like)`):
the same node in the same surroundings then has the same score, whatever else changed. Places are always those among
the nodes that are scored.

The plain sums of surprises are what p is read off (threshold.py). Every kind is sorted once: places and their halves
tell all that its order does. Memory: 4 bytes a node and kind and 33 bytes a node beside the score.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import Known, Places, at_places, double_places, num_known, place_type, quantiles, select_known
from hcm_scale.base.threads import run_in_slices

# ----------------------------------------------------------------------------
# Ranks of numbers between 0 and 1, among themselves or among others, and how surprising a rank is.
#
# Equal numbers share the middle of their places.


def ranks_of(double: Places, size: int) -> NDArray[np.float64]:
    """The ranks, between 0 and 1, of double places among so many.

    >>> ranks_of(np.array([5, 8, 5, 2]), 4).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    out = np.empty(len(double))

    def fill(part: slice) -> None:
        out[part] = 1.0 - (double[part] - 1) / (2.0 * max(1, size))

    run_in_slices(len(double), fill)
    return out


def places_among(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.int64]:
    """`double_places` that values would have among usual ones, as if each took the place of an equal one.

    >>> places_among(np.array([3.0, 2.0, 10.0]), np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 7, 1]
    """
    ordered, out = np.sort(usual), np.empty(len(values), np.int64)

    def fill(part: slice) -> None:
        below, up_to = (np.searchsorted(ordered, values[part], side) for side in ("left", "right"))
        out[part] = 2 * len(ordered) + 1 - below - up_to

    run_in_slices(len(values), fill)
    return out


def ranks_among(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.float64]:
    """`ranks_of` the places that values would have among usual ones, at most that of the first."""
    return ranks_of(np.maximum(places_among(values, usual), 2), len(usual))


def surprise(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(1 - rank), the surprise of a rank."""
    out = np.empty_like(ranks)

    def fill(part: slice) -> None:
        np.log1p(-ranks[part], out=out[part])
        np.negative(out[part], out=out[part])

    run_in_slices(len(ranks), fill)
    return out


# ----------------------------------------------------------------------------
# How surprising a number of one kind is: -log P(a usual node has as much), by its rank in the bulk, by a tail beyond.
#
# Up to the 95 % quantile it is the surprise of the rank. Beyond it a generalised Pareto tail goes on through what
# three quantiles of the bulk show, its shape a quarter above what they say, at least 0: exponential or heavier.
#
# What a node gains by a kind is its surprise less the least of all nodes', which is no evidence. Added up, the gains
# of all kinds are what p is read off (threshold.py). To the score (evidence.py) a kind adds what the rank alone says
# where that is more, and the logarithm of what goes beyond all ranks.


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


def surprise_gains(kind: str, values: Values, known: Known = None, double: Places | None = None) -> Gains:
    """What nodes gain by the numbers of one kind, (n,); `double` are their double places, where these are known.

    >>> surprise_gains("hop", np.array([3.0, 1.0, 2.0])).of(slice(None))[0].round(2).tolist()
    [2.81, 0.0, 0.51]
    """
    size = num_known(values, known)
    double = double_places(values, known) if double is None else double
    if not size:
        return Gains(values, double, known, 0, Tail(np.inf, np.inf, _START, 1.0, 0.0), np.log(2.0), 0.0, False)
    bulk = quantiles(values, double, shares_of(kind), known)
    tail = fit(kind, bulk, select_known(values, lambda some: some > bulk[-1], known), size)
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


KINDS = {  # by name: the column of the number behind it
    "hop": "ahp",
    "closure": "closure",
    "context": "context",
    "context_closure": "context_closure",
    "attributes": "residual",
}
OF_NEIGHBORS = ("hop", "closure", "context", "context_closure")  # say nothing about a node without neighbours


class Sums(NamedTuple):
    """The surprises of every node, added up, (n,), of how many kinds that tell, and those of usual nodes elsewhere."""

    total: NDArray[np.float64]
    num_telling: int
    usual: NDArray[np.float64] | None  # None where the nodes themselves are the usual ones


class WeightedEvidence(NamedTuple):
    """The score of every node, (n,), and its place by each kind, (kinds, n), in the order of the kinds given.

    Bit k of `halves`, (n,), is what rounding took off the place by kind k, a half or nothing.
    """

    score: NDArray[np.float64]
    places: Places
    halves: NDArray[np.uint8]
    sums: Sums

    def double_places(self, row: int) -> Places:
        """Twice the places by the kind of this row, not rounded."""
        out = np.empty_like(self.places[row])

        def fill(part: slice) -> None:
            np.add(2 * self.places[row, part], self.halves[part] >> row & 1, out=out[part])

        run_in_slices(len(out), fill)
        return out


class KindNumbers(NamedTuple):
    """The numbers of each kind, (n,) each, and which nodes have neighbours: what all evidence is made of."""

    of_kind: Mapping[str, NDArray[np.float64]]
    has_neighbors: NDArray[np.bool_]

    def known(self, kind: str) -> Known:
        """Which nodes the kind can tell about; None where it can about all."""
        return None if kind not in OF_NEIGHBORS or self.has_neighbors.all() else self.has_neighbors


def weigh_evidence(
    numbers: Mapping[str, NDArray[np.float64]], has_neighbors: NDArray[np.bool_], like: KindNumbers | None = None
) -> WeightedEvidence:
    """The score and the places of every node from the numbers of each kind, (n,) each.

    `like` are the numbers of another graph, whose nodes are the usual ones.

    >>> weigh_evidence({"attributes": np.array([5.0, 9.0, 5.0])}, np.ones(3, bool)).places.tolist()
    [[2, 1, 2]]
    """
    own, num_nodes, num_telling = KindNumbers(numbers, has_neighbors), len(has_neighbors), 0
    score, total, halves = np.zeros(num_nodes), np.zeros(num_nodes), np.zeros(num_nodes, np.uint8)
    usual_total = np.zeros(0 if like is None else len(like.has_neighbors))
    places = np.empty((len(numbers), num_nodes), place_type(num_nodes))
    for row, (kind, values) in enumerate(numbers.items()):
        known = own.known(kind)
        double = double_places(values, known, out=places[row])
        if like is None:
            gains = surprise_gains(kind, values, known, double)
            _add(gains, score, total)
        else:
            gains = surprise_gains(kind, like.of_kind[kind], like.known(kind))
            _add(gains, None, usual_total)
            gained, added = gains.among(values, known)
            total += gained
            score += added
        num_telling += gains.tells
        _halve(double, halves, row)
    return WeightedEvidence(
        score, places, halves, Sums(total, max(1, num_telling), None if like is None else usual_total)
    )


def _add(gains: Gains, score: NDArray[np.float64] | None, total: NDArray[np.float64]) -> None:
    def add(part: slice) -> None:
        gained, added = gains.of(part)
        total[part] += gained
        if score is not None:
            score[part] += added

    run_in_slices(len(total), add)


def _halve(double: Places, halves: NDArray[np.uint8], row: int) -> None:
    def halve(part: slice) -> None:
        halves[part] |= (double[part] & 1).astype(np.uint8) << row
        double[part] >>= 1

    run_in_slices(len(double), halve)


def num_ranked(kinds: Iterable[str], has_neighbors: NDArray[np.bool_]) -> list[int]:
    """How many nodes each kind tells apart: all, or those with neighbours."""
    scored = int(np.count_nonzero(has_neighbors))
    return [scored if kind in OF_NEIGHBORS else len(has_neighbors) for kind in kinds]


def strongest(places: Places, has_neighbors: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Which of KINDS says most about every node, (n,), from the places by each, (kinds, n); of equals the first.

    >>> strongest(np.array([[1, 3], [2, 1], [3, 3], [3, 3], [3, 3]]), np.ones(2, bool)).tolist()
    [0, 1]
    """
    best = np.empty(len(has_neighbors), np.int8)
    sizes = np.maximum(num_ranked(KINDS, has_neighbors), 1)

    def fill(part: slice) -> None:
        strongest = np.argmin((places[:, part] - 0.5) / sizes[:, None], axis=0)
        best[part] = np.where(has_neighbors[part], strongest, list(KINDS).index("attributes"))

    run_in_slices(len(best), fill)
    return best
