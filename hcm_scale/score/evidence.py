"""Kinds of evidence that a node is anomalous, and the score that they add up to.

| kind            | a node stands out because                                            | column            |
|-----------------|----------------------------------------------------------------------|-------------------|
| hop             | the model predicts its neighbours to be far away                     | `ahp`             |
| closure         | far edges around it close into triangles                             | `closure`         |
| context         | its attributes are unlike those of its neighbours                    | `context`         |
| context_closure | edges between unlike nodes close into triangles around it            | `context_closure` |
| attributes      | its attributes are not what its neighbourhood predicts               | `residual`        |
| cohesion        | its neighbours are joined more, or share more, than degrees explain  | `cohesion`        |

Each number becomes a surprise, -log P(a normal node has as much). Up to the 95 % quantile it is that of the rank,
-log(1 - rank), where equal numbers share the middle of their places. Beyond, a generalised Pareto tail continues
through three quantiles of the bulk, which the few anomalies do not move; its shape is a quarter above what they
suggest, and at least 0: exponential or heavier. A node gains its surprise minus the least of all nodes, which is no
evidence. A kind that says nothing about a node (no neighbours) gives it the gain of the kind's middle node; one in
which all nodes are equal gives nothing.

    score(v) = sum over the kinds of weight times v's gain, softened,

which is Fisher's way to combine evidence: a node that leads in one kind comes before one slightly unusual in all. The
softened gain is that of the rank alone where this is more, so that members of a large group do not push each other
down; beyond log(n), the most that a rank can say, it grows as a logarithm, so that no heavy tail decides alone. The
plain sums of gains are what `threshold.py` turns into p.

Weights. Hops are predicted from embeddings that average over neighbours, and averaged over neighbours again: with two
or three of them they are noise, with thirty they know more than attributes. With m the geometric mean of the degrees,
hop and closure weigh 2 m / (m + 10), context and context_closure 20 / (m + 10), attributes 1: all the same at m = 10.
Where neighbours are no more alike than any two nodes (`trust` 0: features/purify.py), being unlike them says little:
context and context_closure weigh a third of that, and closure, of hops that come from attributes, nothing.

Cohesion is silent: it says nothing up to its 95 % quantile, so that it costs nothing where groups have no meaning, and
beyond weighs 4, as much as the kinds of neighbours together: one sure witness is enough. Its tail falls faster than its
bulk on most graphs; p follows that, the sum does not.

The other end of every kind are nodes that have suspiciously little of it, as those have that copy their surroundings:

    alike(v) = sum over the kinds of weight times v's gain by the lower tail, -log P(a node has as little),

by rank alone, minus the least, the middle one where the kind says nothing about v. A silent kind has no lower tail, nor
has one in which more than half of the nodes are equal: what most have in common is not suspicious. No part of `score`.

Each kind also ranks by itself: place 1 is the most unusual node, equal ones share the middle place, rounded towards 1,
and so do all nodes about which the kind says nothing. Every kind is sorted once, into double places (best plus worst
place of equal numbers), from which ranks and quantiles follow. A graph scored by a model of another gains as if its
nodes were among those of that one (`like`), so that the same node in the same surroundings has the same score; places
are always those within the graph itself. Memory: 4 bytes per node and kind and 41 per node beside the score.

Kinds of plug-ins (`OwnKind`, docs/plugins.md) come after these, say something about every node, and weigh 1.

Types. Nodes of several types (users and shops) are weighed type by type, with gains, places and weights of their own,
and the scores stand in one list (`join_groups`). A type of under 200 nodes shows no bulk: such types are compared
together, or where they are under 200 in all, with the largest type (`type_groups`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import (
    HasValue,
    Places,
    at_places,
    double_places,
    num_with_value,
    place_type,
    quantiles,
    select_values,
)
from hcm_scale.base.threads import map_slices, run_in_slices
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.store import NodeTypes

KINDS = {  # by name: the column of the number behind it
    "hop": "ahp",
    "closure": "closure",
    "context": "context",
    "context_closure": "context_closure",
    "attributes": "residual",
    "cohesion": "cohesion",
}
OF_NEIGHBORS = tuple(kind for kind in KINDS if kind != "attributes")  # say nothing about a node without neighbours
LEAST_P = 1e-300
FEW = 200  # nodes that do not show the bulk of their like

_HIGH = 0.95  # quantile where the fitted tail begins; anomalies lie beyond it
_START = -np.log1p(-_HIGH)  # its surprise
_LOW = 0.5  # quantile where the bulk that shows the tail begins
_SHAPE_MARGIN = 0.25  # a normal bulk has the shape -0.4, an exponential one 0, a lognormal one 0.3
_SILENT = ("cohesion",)  # only what lies beyond the tail's beginning is evidence
_SILENT_WEIGHT, _SILENT_MOST = 4.0, 1.5  # of the gain, and of log(n): up to where it is not softened
_LEAST_TRUST = 0.1  # at which far triangles are named as a reason
_EQUAL_DEGREE = 10.0  # mean degree at which hops weigh as much as attributes
_LOGS = ("closure", "context_closure", "cohesion")  # exponential tails, and most nodes are 0 on some graphs
_LOW_OF_LOGS = 0.75
_LEAST_SCALE_OF_LOGS = 0.05  # one or two triangles make no slope
_LEAST_SCALE_OF_FEW = 0.25  # of a silent kind that most nodes have nothing of
_SMALL = 10.0  # nodes of a bulk that shows its scale to within a factor of two

Values = NDArray[np.float64]
Groups = Mapping[str | None, int]  # by type: which types are compared together; None: nodes of no type, or another


class OwnKind(NamedTuple):
    """A kind of evidence of a plug-in: numbers (n,), larger is stranger; a sentence for explanations; its identity."""

    values: Values
    words: str
    identity: str


class Gained(NamedTuple):
    """Gains of some nodes, plain, softened, and by the lower tail; None where the kind has none."""

    plain: Values
    softened: Values
    alike: Values | None


GainsOf = Callable[[slice], Gained]


class Sums(NamedTuple):
    """Weighted gains of every node added up, (n,), and the number of kinds that tell nodes apart.

    Nodes without neighbours are compared with their like: their sum is that of their attributes alone. Silent kinds are
    no part of the sum; `alone` is their surprise, (n,), 0 in the bulk, and None where they tell no node from another.
    `usual` are the sums of the nodes of another graph; None where the nodes themselves are the usual ones. Of nodes in
    groups `parts` are the nodes of each group and their sums, which alone count then.
    """

    total: Values
    has_neighbors: NDArray[np.bool_]
    num_telling: int
    alone: Values | None = None
    usual: "Sums | None" = None
    parts: "tuple[tuple[NDArray[np.int64], Sums], ...]" = ()


class WeightedEvidence(NamedTuple):
    """Score of every node, (n,), and its place by each kind, (kinds, n), in the order of the kinds given.

    Bit k of `halves`, (n,), is what rounding took off the place by kind k, a half or nothing. `alike`, (n,), says how
    ordinary a node is, by the lower tails.
    """

    score: Values
    places: Places
    halves: NDArray[Any]
    sums: Sums
    alike: Values

    def double_places(self, row: int) -> Places:
        """Double places by the kind of this row."""
        out = np.empty_like(self.places[row])

        def fill(part: slice) -> None:
            np.add(2 * self.places[row, part], self.halves[part] >> row & 1, out=out[part])

        run_in_slices(len(out), fill)
        return out


class KindNumbers(NamedTuple):
    """Numbers of each kind, (n,) each, which nodes have neighbours, and how many, as a geometric mean over these.

    `trust`, 0 to 1, says how far attributes are witnesses of edges.
    """

    of_kind: Mapping[str, Values]
    has_neighbors: NDArray[np.bool_]
    mean_degree: float = _EQUAL_DEGREE
    trust: float = 1.0

    def weight(self, kind: str) -> float:
        """What the gains by this kind are multiplied by."""
        share = self.mean_degree / (self.mean_degree + _EQUAL_DEGREE)
        hops, context = 2.0 * share, 2.0 * (1.0 - share) * ((1.0 + 2.0 * self.trust) / 3.0)
        weights = {"hop": hops, "closure": self.trust * hops, "context": context, "context_closure": context}
        return weights.get(kind, 1.0)

    def known(self, kind: str) -> HasValue:
        """Nodes about which the kind says something; None for all."""
        told_of_all = kind in _SILENT or kind not in OF_NEIGHBORS  # without neighbours there are no triangles
        return None if told_of_all or self.has_neighbors.all() else self.has_neighbors


def weigh_evidence(own: KindNumbers, like: KindNumbers | None = None) -> WeightedEvidence:
    """Score and places of every node from its numbers of each kind; `like` are those of another graph.

    >>> weigh_evidence(KindNumbers({"attributes": np.array([5.0, 9.0, 5.0])}, np.ones(3, bool))).places.tolist()
    [[2, 1, 2]]
    """
    num_nodes, num_telling, alone = len(own.has_neighbors), 0, None
    bits = np.uint8 if len(own.of_kind) <= 8 else np.uint32
    score, alike, total, halves = *(np.zeros(num_nodes) for _ in range(3)), np.zeros(num_nodes, bits)
    usual = None if like is None else np.zeros(len(like.has_neighbors))
    places = np.empty((len(own.of_kind), num_nodes), place_type(num_nodes))
    for row, (kind, values) in enumerate(own.of_kind.items()):
        known, weight = own.known(kind), (like or own).weight(kind)
        double = double_places(values, known, out=places[row])
        if like is None or usual is None:
            gains = surprise_gains(kind, values, known, double)
            gains_of: GainsOf = gains.of
        else:
            gains = surprise_gains(kind, like.of_kind[kind], like.known(kind))
            gains_of = _gains_among(gains, values, known)
            if not gains.silent:
                _add(gains.of, weight, usual)
        if gains.silent and (gains.tells or like is not None):
            alone = np.zeros(num_nodes)
        _add(gains_of, weight, alone if gains.silent and alone is not None else total, score, alike)
        num_telling += gains.tells and not gains.silent and weight > 0.0
        _halve(double, halves, row)
    sums = Sums(total, own.has_neighbors, max(1, num_telling), alone)
    if like is not None and usual is not None:
        sums = sums._replace(usual=Sums(usual, like.has_neighbors, sums.num_telling))
    return WeightedEvidence(score, places, halves, sums, alike)


def type_groups(types: NodeTypes) -> dict[str | None, int]:
    """Which types are compared together, by number, that of the largest type first.

    >>> type_groups(NodeTypes(np.repeat(np.array([0, 1, 2], np.uint8), [300, 500, 7]), ("shop", "user", "admin")))
    {'user': 0, 'shop': 1, 'admin': 0, None: 0}
    """
    counts = np.bincount(types.codes, minlength=NO_TYPE + 1)
    ordered = np.argsort(-counts[: len(types.names)], kind="stable").tolist()
    large = [types.names[code] for code in ordered if counts[code] >= FEW]
    num_others = counts.sum() - sum(counts[code] for code in ordered[: len(large)])
    pool = len(large) if num_others >= FEW else 0
    groups: dict[str | None, int] = {name: number for number, name in enumerate(large)}
    return groups | {types.names[code]: pool for code in ordered[len(large) :]} | {None: pool}


def nodes_by_group(types: NodeTypes, groups: Groups) -> list[NDArray[np.int64]]:
    """The nodes of each group, rising."""
    number_of = np.full(NO_TYPE + 1, groups[None])
    number_of[: len(types.names)] = [groups.get(name, groups[None]) for name in types.names]
    numbers = number_of[types.codes]
    return [np.flatnonzero(numbers == number) for number in range(max(groups.values()) + 1)]


def join_groups(num_nodes: int, parts: Sequence[tuple[NDArray[np.int64], WeightedEvidence]]) -> WeightedEvidence:
    """The evidence of all nodes, from that of each group: the group's nodes, and their evidence within it."""
    score, alike, halves = np.zeros(num_nodes), np.zeros(num_nodes), np.zeros(num_nodes, parts[0][1].halves.dtype)
    places = np.empty((len(parts[0][1].places), num_nodes), place_type(num_nodes))
    for nodes, part in parts:
        score[nodes], halves[nodes], places[:, nodes], alike[nodes] = part.score, part.halves, part.places, part.alike
    sums = Sums(score, np.ones(num_nodes, bool), 1, parts=tuple((nodes, part.sums) for nodes, part in parts))
    return WeightedEvidence(score, places, halves, sums, alike)


def _gains_among(gains: "Gains", values: Values, known: HasValue) -> GainsOf:
    """Gains of other nodes, as if they were among those that `gains` are of."""
    ordered = np.sort(gains.values if gains.known is None else gains.values[gains.known])

    def of(part: slice) -> Gained:
        return gains.by(ranks_among(values[part], ordered), values[part], None if known is None else known[part])

    return of


def _add(gains_of: GainsOf, weight: float, *sums: Values) -> None:
    """Adds the weighted gains of all nodes to sums over the kinds: of plain gains, of softened ones, of lower tails."""

    def add(part: slice) -> None:
        for total, gained in zip(sums, gains_of(part), strict=False):
            if gained is not None:
                total[part] += weight * gained

    run_in_slices(len(sums[0]), add)


def _halve(double: Places, halves: NDArray[Any], row: int) -> None:
    def halve(part: slice) -> None:
        halves[part] |= (double[part] & 1).astype(halves.dtype) << row
        double[part] >>= 1

    run_in_slices(len(double), halve)


def faint_kinds(trust: float) -> tuple[str, ...]:
    """The kinds that weigh so little at this trust in attributes that no node stands out by them."""
    return ("closure",) if trust < _LEAST_TRUST else ()


def strongest(
    places: Places, has_neighbors: NDArray[np.bool_], faint: Sequence[str] = (), kinds: Sequence[str] = tuple(KINDS)
) -> NDArray[np.int8]:
    """Which of the kinds says most about every node, (n,), from the places by each, (kinds, n); of equals the first.

    It is the kind whose place is the smallest share of the nodes that the kind ranks: all, or those with neighbours.
    For a node without neighbours it is `attributes`. Kinds that are `faint` are not named.

    >>> strongest(np.array([[1, 3], [2, 1], [3, 3], [3, 3], [3, 3], [3, 3]]), np.ones(2, bool)).tolist()
    [0, 1]
    """
    best, num_scored = np.empty(len(has_neighbors), np.int8), int(np.count_nonzero(has_neighbors))
    num_ranked = np.maximum([num_scored if kind in OF_NEIGHBORS else len(has_neighbors) for kind in kinds], 1.0)
    num_ranked[[kind in faint for kind in kinds]] = 1e-9  # no share of other kinds is as large

    def fill(part: slice) -> None:
        strongest = np.argmin((places[:, part] - 0.5) / num_ranked[:, None], axis=0)
        best[part] = np.where(has_neighbors[part], strongest, list(KINDS).index("attributes"))

    run_in_slices(len(best), fill)
    return best


def ranks_of(double: Places, size: int) -> Values:
    """Ranks, between 0 and 1, of double places among so many.

    >>> ranks_of(np.array([5, 8, 5, 2]), 4).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    ranks: Values = 1.0 - (double - 1) / (2.0 * max(1, size))
    return ranks


def ranks_among(values: Values, ordered: Values) -> Values:
    """Ranks that values would have among usual ones, which are in order; at most that of the largest.

    >>> ranks_among(np.array([3.0, 2.0, 10.0]), np.array([1.0, 3.0, 3.0, 9.0])).tolist()
    [0.5, 0.25, 0.875]
    """
    below, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return ranks_of(np.maximum(2 * len(ordered) + 1 - below - up_to, 2), len(ordered))


class Tail(NamedTuple):
    """Beyond the number `high` a surprise is `begin` at the number `first`, and grows by `scale` and `shape`.

    `bend` is the part of the scale that is due to a tail that falls faster than the bulk; 1 where it does not.
    """

    high: float
    first: float
    begin: float
    scale: float
    shape: float
    bend: float = 1.0


class Lower(NamedTuple):
    """Least surprise of the lower tail, that of the first place, and the gain of the middle node."""

    least: float
    middle: float


class Gains(NamedTuple):
    """Gains by the numbers of one kind; nodes that are not `known` gain nothing, softened `middle`.

    `double` are the double places of the numbers, `size` is how many are known, `least` the least surprise, and `tells`
    whether any two differ. `lower` is None where the kind says nothing in its lower tail.
    """

    values: Values
    double: Places
    known: HasValue
    size: int
    tail: Tail
    least: float
    middle: float
    tells: bool
    silent: bool = False
    lower: Lower | None = None

    def of(self, part: slice) -> Gained:
        """Gains of some of the nodes."""
        known = None if self.known is None else self.known[part]
        return self.by(ranks_of(self.double[part], self.size), self.values[part], known)

    def by(self, ranks: Values, values: Values, known: HasValue) -> Gained:
        """Gains by these ranks and numbers."""
        if self.silent:
            gained = _with_tail(np.zeros(len(values)), values, self.tail)
            weighed = _SILENT_WEIGHT * self.tail.bend * np.maximum(gained - self.tail.begin, 0.0)
            most = _SILENT_MOST * np.log(max(2, self.size))
            return Gained(gained, np.minimum(weighed, most) + np.log1p(np.maximum(weighed - most, 0.0)), None)
        by_rank = -np.log1p(-ranks)
        gained = self.plain(by_rank.copy(), values)
        most = np.log(max(2, self.size))  # that a rank among so many can say
        beyond = np.log1p(np.clip(gained - most, 0.0, np.finfo(np.float64).max))
        softened = np.maximum(by_rank - self.least, np.minimum(gained, most) + beyond)
        alike = None if self.lower is None else self._alike(ranks, self.lower, known)
        if known is None:
            return Gained(gained, softened, alike)
        return Gained(np.where(known, gained, 0.0), np.where(known, softened, self.middle), alike)

    def plain(self, surprise: Values, values: Values) -> Values:
        """Plain gains by surprises of ranks, which are overwritten, and numbers, of a kind that is not silent."""
        return np.maximum(_with_tail(surprise, values, self.tail) - self.least, 0.0)

    def _alike(self, ranks: Values, lower: Lower, known: HasValue) -> Values:
        """Gains by the lower tail; nodes of another graph may lie below all, which says as much as the last place."""
        found = np.maximum(-np.log(np.maximum(ranks, 0.5 / self.size)) - lower.least, 0.0)
        return found if known is None else np.where(known, found, lower.middle)


def surprise_gains(kind: str, values: Values, known: HasValue = None, double: Places | None = None) -> Gains:
    """Gains by the numbers of one kind, (n,); `double` are their double places, where these are at hand.

    >>> surprise_gains("hop", np.array([3.0, 1.0, 2.0])).of(slice(None))[0].round(2).tolist()
    [2.81, 0.0, 0.51]
    """
    size = num_with_value(values, known)
    double = double_places(values, known) if double is None else double
    if not size:
        return Gains(values, double, known, 0, Tail(np.inf, np.inf, _START, 1.0, 0.0), np.log(2.0), 0.0, False)
    low = _LOW_OF_LOGS if kind in _LOGS else _LOW
    shares = [low, 1.0 - np.sqrt((1.0 - low) * (1.0 - _HIGH)), _HIGH]  # evenly spaced by their surprise
    bulk = quantiles(values, double, shares, known)
    tail = _fit_tail(kind, low, bulk, select_values(values, lambda some: some > bulk[-1], known), size)
    few = at_places(double, [1, size, size // 2 + 1, (size + 1) // 2], known)  # surprise falls from place to place
    if kind in _SILENT:
        return Gains(
            values, double, known, size, tail, 0.0, 0.0, len(few) > 0 and bool(values[few[0]] > tail.high), True
        )
    ranks = ranks_of(double[few], size)
    most, least, *middle = _with_tail(-np.log1p(-ranks), values[few], tail)
    gains = Gains(values, double, known, size, tail, least, np.mean(np.subtract(middle, least)), bool(most > least))
    if 2 * _num_equal(double, double[few[-1]], known) > size:
        return gains
    least, _, *middle = -np.log(ranks)
    return gains._replace(lower=Lower(least, np.mean(np.subtract(middle, least))))


def _num_equal(double: Places, place: int, known: HasValue) -> int:
    """How many known nodes have this double place."""

    def count(part: slice) -> int:
        equal = double[part] == place
        return int(np.count_nonzero(equal if known is None else equal & known[part]))

    return sum(map_slices(len(double), count))


def _with_tail(surprise: Values, values: Values, tail: Tail) -> Values:
    """Surprises by rank, with those beyond the bulk replaced by the tail's; the same array."""
    np.minimum(surprise, _START, out=surprise)
    beyond = values > tail.high
    excess = np.maximum(values[beyond] - tail.first, 0.0) / tail.scale
    surprise[beyond] = tail.begin + (np.log1p(tail.shape * excess) / tail.shape if tail.shape else excess)
    return surprise


def _fit_tail(kind: str, low_share: float, bulk: Values, above: Values, num_usual: int) -> Tail:
    """Tail through three quantiles of the bulk, from `low_share` to 95 %; `above` are the usual values beyond them."""
    low, middle, high = bulk
    if not np.isfinite(high):
        return Tail(high, high, _START, 1.0, 0.0)
    first = above.min() if len(above) else high  # of numbers with gaps, the next beyond is not yet unusual
    num_seen = num_usual * (1.0 - low_share)
    step = 0.5 * np.log((1.0 - low_share) / (1.0 - _HIGH))  # surprise from quantile to quantile
    if kind in _LOGS or not low < middle < high:
        scale, shape = (high - low) / (2.0 * step), 0.0
    else:
        shape = max(0.0, np.log((high - middle) / (middle - low)) / step + _SHAPE_MARGIN)
        scale = (high - middle) * (shape / -np.expm1(-step * shape) if shape else 1.0 / step)
    if low == high and len(above):  # most nodes share one number: those above are compared among themselves
        excess = above - first
        num_seen, scale = len(above), float(np.median(excess)) / np.log(2.0) or float(excess.mean())
    bend = _bend(bulk, num_usual) if kind in _SILENT else 1.0
    least_of_logs = _LEAST_SCALE_OF_FEW if kind in _SILENT and low == middle else _LEAST_SCALE_OF_LOGS
    scale = max(scale * bend, least_of_logs if kind in _LOGS else 0.0, 1e-12 * abs(high), LEAST_P)
    begin = max(_START, -np.log(max(len(above), 1) / num_usual))
    return Tail(high, first, begin, scale * widening(num_seen), shape, bend)


def _bend(bulk: Values, num_usual: int) -> float:
    """Scale of the tail beside that of the bulk, by how the latter's three quantiles, of even surprise, close up.

    The quantiles of a normal bulk ask for .65 of it, those of an exponential one for all of it, and so do those of few
    nodes, which show it badly. Where most nodes share one number, the few above fall twice as fast as their lower half.
    """
    low, middle, high = bulk
    if low == middle:
        return 0.5 if low == high else 1.0
    closing = 1.0 - (high - middle) / (middle - low) - 4.0 / np.sqrt(num_usual)
    return float(np.clip(1.0 - closing / 0.6, 0.55, 1.0))


def widening(num_seen: float) -> float:
    """Factor that widens a scale estimated from so many nodes."""
    return 1.0 + _SMALL / num_seen
