"""Ranks, surprises and sums: from the numbers of each kind of evidence to the score that they add up to.

Kinds are objects (`kinds/kind.py`); none is known here by name. Each number becomes a surprise, -log P(a normal node
has as much). Up to the 95 % quantile it is that of the rank, -log(1 - rank), where equal numbers share the middle of
their ranks. Beyond, a generalised Pareto tail continues through three quantiles of the bulk, which the few anomalies do
not move; its shape is a quarter above what they suggest, and at least 0: exponential or heavier. A node gains its
surprise minus the least of all nodes, which is no evidence. A kind that says nothing about a node (no neighbours) gives
it the gain of the kind's middle node; one in which all nodes are equal gives nothing.

    score(v) = sum over the kinds of weight times v's gain, softened,

which is Fisher's way to combine evidence: a node that leads in one kind comes before one slightly unusual in all. The
softened gain is that of the rank alone where this is more, so that members of a large group do not push each other
down; beyond log(n), the most that a rank can say, it grows as a logarithm, so that no heavy tail decides alone. The
plain sums of gains are what `threshold.py` turns into p. A kind of which the tail alone counts (`TailOnly`) says
nothing up to its 95 % quantile, and is no part of the plain sum: p joins it to the sum's.

Each kind also ranks by itself: rank 1 is the most unusual node, equal ones share the middle rank, rounded towards 1,
and so do all nodes about which the kind says nothing. Every kind is sorted once, into double places (best plus worst
place of equal numbers), from which ranks and quantiles follow. A graph scored by a model of another gains as if its
nodes were among those of that one (`reference`), so that the same node in the same surroundings has the same score;
ranks are always those within the graph itself. Memory: 4 bytes per node and kind and 33 per node beside the score.

Types. Nodes of several types (users and shops) are weighed type by type, with gains, ranks and weights of their own,
and the scores stand in one list (`join_groups`). A type of under 200 nodes shows no bulk: such types are compared
together, or where they are under 200 in all, with the largest type (`type_groups`).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import HasValue, Places, at_places, double_places, num_with_value, place_type
from hcm_scale.base.threads import positions_where, run_in_slices
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.store import NodeTypes
from hcm_scale.score.kinds.kind import Facts, Kind, TailOnly, Values
from hcm_scale.score.kinds.kind import Tail as TailOptions

LEAST_P = 1e-300
FEW = 200  # nodes that do not show the bulk of their like

_HIGH = 0.95  # quantile where the fitted tail begins; anomalies lie beyond it
START = -np.log1p(-_HIGH)  # its surprise
_LEEWAY = np.log(2.0)  # by which a surprise may be more than the number that says it
_NEXT = 0.8  # quantile from which on nodes come next to those in the tail
_SHAPE_MARGIN = 0.25  # a normal bulk has the shape -0.4, an exponential one 0, a lognormal one 0.3
_MOST_ASKED = 1 << 21  # nodes that show what the first scores are made of
_SMALL = 10.0  # nodes of a bulk that shows its scale to within a factor of two

Groups = Mapping[str | None, int]  # by type: which types are compared together; None: nodes of no type, or another


class Gained(NamedTuple):
    """Gains of some nodes, plain and softened."""

    plain: Values
    softened: Values


GainsOf = Callable[[Any], Gained]


class Sums(NamedTuple):
    """Weighted gains of every node added up, (n,), and the largest weight of a kind that tells nodes apart.

    Nodes without neighbours are compared with their like: their sum is that of what is said of them alone. Kinds of
    which the tail alone counts are no part of the sum: `alone` is the largest of their surprises, (n,), 0 up to their
    80 % quantile, and `num_alone` how many of them tell nodes apart. `usual` are the sums of the nodes of another
    graph; None where the nodes themselves are the usual ones. Of nodes in groups `parts` are the nodes of each group
    and their sums, which alone count then.
    """

    total: Values
    has_neighbors: NDArray[np.bool_]
    largest_weight: float
    alone: Values | None = None
    num_alone: int = 0
    usual: "Sums | None" = None
    parts: "tuple[tuple[NDArray[np.int64], Sums], ...]" = ()


class WeightedEvidence(NamedTuple):
    """Score of every node, (n,), and its rank by each kind, (kinds, n), in the order of the kinds given.

    Bit k of `halves`, (n,), is what rounding took off the rank by kind k, a half or nothing. `shares` are those of the
    kinds, by name, in the scores of the first hundredth; none where another graph is the scale.
    """

    score: Values
    places: Places
    halves: NDArray[Any]
    sums: Sums
    shares: Mapping[str, float] = MappingProxyType({})

    def double_places(self, row: int) -> Places:
        """Double places by the kind of this row."""
        out = np.empty_like(self.places[row])

        def fill(chunk: slice) -> None:
            np.add(2 * self.places[row, chunk], self.halves[chunk] >> row & 1, out=out[chunk])

        run_in_slices(len(out), fill)
        return out


class KindNumbers(NamedTuple):
    """Numbers of each kind, (n,) each, which nodes have neighbours, and what weights follow from."""

    of_kind: Mapping[Kind, Values]
    has_neighbors: NDArray[np.bool_]
    facts: Facts = Facts()

    def has_value(self, kind: Kind) -> HasValue:
        """Nodes about which the kind says something; None for all."""
        return None if kind.ranks_all_nodes or self.has_neighbors.all() else self.has_neighbors


def weigh_evidence(own: KindNumbers, reference: KindNumbers | None = None) -> WeightedEvidence:
    """Score and ranks of every node from its numbers of each kind; `reference` are those of another graph.

    >>> from hcm_scale.score.kinds.attributes import ATTRIBUTES
    >>> weigh_evidence(KindNumbers({ATTRIBUTES: np.array([5.0, 9.0, 5.0])}, np.ones(3, bool))).places.tolist()
    [[2, 1, 2]]
    """
    num_nodes, largest_weight, num_alone = len(own.has_neighbors), 0.0, 0
    bits = np.uint8 if len(own.of_kind) <= 8 else np.uint32
    score, total, halves = np.zeros(num_nodes), np.zeros(num_nodes), np.zeros(num_nodes, bits)
    usual = np.zeros((2, 0 if reference is None else len(reference.has_neighbors)))  # sums, and tails alone
    alone = np.zeros(num_nodes) if any(kind.tail_only for kind in own.of_kind) else None
    places = np.empty((len(own.of_kind), num_nodes), place_type(num_nodes))
    gains_by_kind: dict[Kind, GainsOf] = {}
    for row, (kind, values) in enumerate(own.of_kind.items()):
        double = double_places(values, own.has_value(kind), out=places[row])
        gains, gains_of = kind_gains(kind, own, reference, double=double)
        weight = kind.weight((reference or own).facts)
        if kind.tail_only and alone is not None:
            num_alone += gains.varies or reference is not None
            _add_alone(gains_of, weight, alone, score)
            if reference is not None:
                _add_alone(gains.of, weight, usual[1])
        else:
            largest_weight = max(largest_weight, weight if gains.varies else 0.0)
            _add(gains_of, weight, total, score)
            if reference is not None:
                _add(gains.of, weight, usual[0])
        if reference is None:
            gains_by_kind[kind] = gains_of
    shares = _shares(score, gains_by_kind, own.facts)
    for row in range(len(places)):
        _halve(places[row], halves, row)
    sums = Sums(total, own.has_neighbors, largest_weight or 1.0, alone if num_alone else None, num_alone)
    if reference is not None:
        theirs = Sums(usual[0], reference.has_neighbors, sums.largest_weight, usual[1] if num_alone else None)
        sums = sums._replace(usual=theirs)
    return WeightedEvidence(score, places, halves, sums, shares)


def _shares(score: Values, gains: Mapping[Kind, GainsOf], facts: Facts) -> dict[str, float]:
    """By name, the share of each kind in the scores of the first hundredth of the nodes, or of a sample of them."""
    some = np.arange(0, len(score), 1 + len(score) // _MOST_ASKED)
    first = some[np.argpartition(-score[some], (len(some) - 1) // 100)[: -(-len(some) // 100)]]
    sums = {kind.name: kind.weight(facts) * float(gains_of(first).softened.sum()) for kind, gains_of in gains.items()}
    total = sum(sums.values())
    return {name: part / total for name, part in sums.items()} if total else {}


def kind_gains(
    kind: Kind,
    own: KindNumbers,
    reference: KindNumbers | None = None,
    values: Values | None = None,
    double: Places | None = None,
) -> tuple["Gains", GainsOf]:
    """What gains by a kind are measured by, and those of the nodes, by their own numbers or by other `values`."""
    values, has_value = own.of_kind[kind] if values is None else values, own.has_value(kind)
    options = kind.tail, kind.tail_only
    if reference is None:
        gains = surprise_gains(values, has_value, double, *options)
        return gains, gains.of
    gains = surprise_gains(reference.of_kind[kind], reference.has_value(kind), None, *options)
    return gains, _gains_among(gains, values, has_value)


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
    score, halves = np.zeros(num_nodes), np.zeros(num_nodes, parts[0][1].halves.dtype)
    places = np.empty((len(parts[0][1].places), num_nodes), place_type(num_nodes))
    for nodes, of_group in parts:
        score[nodes], halves[nodes], places[:, nodes] = of_group.score, of_group.halves, of_group.places
    sums = Sums(score, np.ones(num_nodes, bool), 1.0, parts=tuple((nodes, of_group.sums) for nodes, of_group in parts))
    return WeightedEvidence(score, places, halves, sums)


def _gains_among(gains: "Gains", values: Values, has_value: HasValue) -> GainsOf:
    """Gains of other nodes, as if they were among those that `gains` are of."""
    ordered = np.sort(gains.values if gains.has_value is None else gains.values[gains.has_value])

    def of(chunk: slice) -> Gained:
        return gains.by(
            ranks_among(values[chunk], ordered), values[chunk], None if has_value is None else has_value[chunk]
        )

    return of


def _add(gains_of: GainsOf, weight: float, *sums: Values) -> None:
    """Adds the weighted gains of all nodes to sums over the kinds: of plain gains, and of softened ones."""

    def add(chunk: slice) -> None:
        for total, gained in zip(sums, gains_of(chunk), strict=False):
            total[chunk] += weight * gained

    run_in_slices(len(sums[0]), add)


def _add_alone(gains_of: GainsOf, weight: float, alone: Values, score: Values | None = None) -> None:
    """Adds softened gains to the score; of plain ones the largest counts."""

    def add(chunk: slice) -> None:
        plain, softened = gains_of(chunk)
        np.maximum(alone[chunk], plain, out=alone[chunk])
        if score is not None:
            score[chunk] += weight * softened

    run_in_slices(len(alone), add)


def _halve(double: Places, halves: NDArray[Any], row: int) -> None:
    def halve(chunk: slice) -> None:
        halves[chunk] |= (double[chunk] & 1).astype(halves.dtype) << row
        double[chunk] >>= 1

    run_in_slices(len(double), halve)


def strongest(
    places: Places, has_neighbors: NDArray[np.bool_], kinds: Sequence[Kind], faint: Sequence[str] = ()
) -> NDArray[np.int8]:
    """Which of the kinds says most about every node, (n,), from the ranks by each, (kinds, n); of equals the first.

    It is the kind whose rank is the smallest share of the nodes that the kind ranks: all, or those with neighbours. Of
    a node without neighbours only kinds are named that say something about such. Kinds that are `faint` are not named.

    >>> from hcm_scale.score.kinds.all import GRAPH_KINDS
    >>> ranks = np.array([[1, 3], [2, 1], [3, 3], [3, 3], [3, 3], [3, 3]])
    >>> strongest(ranks, np.ones(2, bool), [*GRAPH_KINDS.values()]).tolist()
    [0, 1]
    """
    best, num_scored = np.empty(len(has_neighbors), np.int8), int(np.count_nonzero(has_neighbors))
    num_ranked = np.array([len(has_neighbors) if kind.ranks_all_nodes else num_scored for kind in kinds])
    is_named = np.array([kind.name not in faint for kind in kinds])
    of_all = np.array([kind.ranks_all_nodes and not kind.zero_says_nothing for kind in kinds])
    of_all = of_all if (of_all & is_named).any() else np.ones(len(of_all), bool)

    def fill(chunk: slice) -> None:
        shares = (places[:, chunk] - 0.5) / np.maximum(num_ranked, 1.0)[:, None]
        shares[~is_named] = np.inf
        shares[np.ix_(~of_all, ~has_neighbors[chunk])] = np.inf
        best[chunk] = np.argmin(shares, axis=0)

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
    in_nats: bool = False


class Gains(NamedTuple):
    """Gains by the numbers of one kind; nodes of which it has no value gain nothing, softened `middle`.

    `double` are the double places of the numbers, `size` is how many have a value, `least` the least surprise, and
    `varies` whether any two differ, or where the tail alone counts whether any lies there.
    """

    values: Values
    double: Places
    has_value: HasValue
    size: int
    tail: Tail
    least: float
    middle: float
    varies: bool
    only: TailOnly | None = None

    def of(self, chunk: slice) -> Gained:
        """Gains of some of the nodes."""
        has_value = None if self.has_value is None else self.has_value[chunk]
        return self.by(ranks_of(self.double[chunk], self.size), self.values[chunk], has_value)

    def by(self, ranks: Values, values: Values, has_value: HasValue) -> Gained:
        """Gains by these ranks and numbers."""
        if self.only is not None:
            gained = _with_tail(np.where(ranks > _NEXT, -np.log1p(-ranks), 0.0), values, self.tail)
            weighed = self.only.weight * self.tail.bend * np.maximum(gained - self.tail.begin, 0.0)
            most = self.only.most * np.log(max(2, self.size))
            if self.tail.in_nats:  # p follows the number itself, which says already how rare it is
                gained = np.minimum(gained, np.maximum(values / self.tail.scale + _LEEWAY, self.tail.begin))
            return Gained(gained, np.minimum(weighed, most) + np.log1p(np.maximum(weighed - most, 0.0)))
        by_rank = -np.log1p(-ranks)
        gained = self.plain(by_rank.copy(), values)
        most = np.log(max(2, self.size))  # that a rank among so many can say
        beyond = np.log1p(np.clip(gained - most, 0.0, np.finfo(np.float64).max))
        softened = np.maximum(by_rank - self.least, np.minimum(gained, most) + beyond)
        if has_value is None:
            return Gained(gained, softened)
        return Gained(np.where(has_value, gained, 0.0), np.where(has_value, softened, self.middle))

    def plain(self, surprise: Values, values: Values) -> Values:
        """Plain gains by surprises of ranks, which are overwritten, and numbers, where not the tail alone counts."""
        return np.maximum(_with_tail(surprise, values, self.tail) - self.least, 0.0)


def surprise_gains(
    values: Values,
    has_value: HasValue = None,
    double: Places | None = None,
    options: TailOptions | None = None,
    only: TailOnly | None = None,
) -> Gains:
    """Gains by the numbers of one kind, (n,); `double` are their double places, where these are at hand.

    >>> surprise_gains(np.array([3.0, 1.0, 2.0])).of(slice(None))[0].round(2).tolist()
    [2.81, 0.0, 0.51]
    """
    size, options = num_with_value(values, has_value), options or TailOptions()
    double = double_places(values, has_value) if double is None else double
    if not size:
        none = Tail(np.inf, np.inf, START, 1.0, 0.0)
        return Gains(values, double, has_value, 0, none, np.log(2.0), 0.0, False, only)
    shares = [options.low, 1.0 - np.sqrt((1.0 - options.low) * (1.0 - _HIGH)), _HIGH]  # even by their surprise
    ranks = (size - 1) * np.array(shares)  # of the quantiles, from the least; each lies between two numbers
    between = size - np.stack([np.floor(ranks), np.ceil(ranks)], axis=1).astype(np.int64)
    centre = [size // 2 + 1, (size + 1) // 2]
    few = at_places(double, [1, size, *centre, *between.ravel()], has_value)
    bulk = np.array([np.quantile(*pair) for pair in zip(values[few[4:]].reshape(-1, 2), ranks % 1.0, strict=True)])

    def is_above(part: slice) -> NDArray[np.bool_]:
        above = values[part] > bulk[-1]
        return above if has_value is None else above & has_value[part]

    is_lump = bulk[0] < bulk[1] == 0.0  # nodes that have nothing stand amid the others, and say nothing of the tail
    above = values[positions_where(len(values), is_above)]
    tail = _fit_tail(options, only is not None and not is_lump, bulk, above, size)
    few = few[:4]  # surprise falls from place to place
    if only is not None:
        tail = tail._replace(high=max(tail.high, only.least))
        reaches = len(few) > 0 and bool(values[few[0]] > tail.high)
        return Gains(values, double, has_value, size, tail, 0.0, 0.0, reaches, only)
    most, least, *middle = _with_tail(-np.log1p(-ranks_of(double[few], size)), values[few], tail)
    usual = np.mean(np.subtract(middle, least))
    return Gains(values, double, has_value, size, tail, least, usual, bool(most > least))


def _with_tail(surprise: Values, values: Values, tail: Tail) -> Values:
    """Surprises by rank, with those beyond the bulk replaced by the tail's; the same array."""
    np.minimum(surprise, START, out=surprise)
    beyond = values > tail.high
    excess = np.maximum(values[beyond] - tail.first, 0.0) / tail.scale
    surprise[beyond] = tail.begin + (np.log1p(tail.shape * excess) / tail.shape if tail.shape else excess)
    return surprise


def _fit_tail(options: TailOptions, bends: bool, bulk: Values, above: Values, num_usual: int) -> Tail:
    """Tail through three quantiles of the bulk; `above` are the usual values beyond them.

    It `bends` where it may fall faster than the bulk.
    """
    low, middle, high = bulk
    if not np.isfinite(high):
        return Tail(high, high, START, 1.0, 0.0)
    first = above.min() if len(above) else high  # of numbers with gaps, the next beyond is not yet unusual
    num_seen = num_usual * (1.0 - options.low)
    step = 0.5 * np.log((1.0 - options.low) / (1.0 - _HIGH))  # surprise from quantile to quantile
    if options.exponential or not low < middle < high:
        scale, shape = (high - low) / (2.0 * step), 0.0
    else:
        shape = max(0.0, np.log((high - middle) / (middle - low)) / step + _SHAPE_MARGIN)
        scale = (high - middle) * (shape / -np.expm1(-step * shape) if shape else 1.0 / step)
    if low == high and len(above) and not options.in_nats:  # most share one number: the others are compared
        excess = above - first
        num_seen, scale = len(above), float(np.median(excess)) / np.log(2.0) or float(excess.mean())
    bend = _bend(bulk, num_usual) if bends else 1.0
    least_scale = options.least_of_few if low == middle or middle == 0.0 else options.least_scale
    scale = max(scale * bend, least_scale, 1e-12 * abs(high), LEAST_P)
    begin = max(START, -np.log(max(len(above), 1) / num_usual))
    return Tail(high, first, begin, scale * widening(num_seen), shape, bend, options.in_nats)


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
