"""How many nodes stand out: a p for every node, and the ones that a false-discovery rate flags.

Ranks cannot say it: every graph has a first node, odd or not. So p comes from how large a number is beside the bulk of
its own kind, which odd nodes, being few, do not move:

1. Each kind of evidence (evidence.py) becomes a surprise, -log P(a usual node has as much). Up to the 95 % quantile
   that is the surprise of its rank, as in the score; beyond it the tail that the bulk shows goes on, exponential or
   heavier: a generalised Pareto tail through three quantiles, its shape a quarter above what they say, at least 0.
2. The surprises of a node are added up. Were the kinds independent the sums would have a gamma distribution, of as many
   parts as there are kinds; kinds that say the same thing twice make it fewer and longer parts (Brown's way). Both are
   read off the median and the 90 % quantile of the sums, and the tail beyond is p.
3. Benjamini and Hochberg: the k nodes of smallest p are flagged for the largest k with p_(k) <= rate * k / n.

Where a graph is scored by a model of another, the bulk is that of the other graph (`like`): p then says how usual a
node would be there, and is the same from day to day. The procedure runs over the nodes that are scored.

Small graphs show less of their bulk, so scales are widened by a term in 1 / n. p falls with every number, and does not
depend on labels or seeds. Measurements, and what did not work: docs/detector.md. Memory: 40 bytes a node.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaincinv

from hcm_scale.base.order import Known, Places, at_places, double_places, num_known, order, quantiles
from hcm_scale.base.threads import in_slices, of_slices
from hcm_scale.score.evidence import Numbers, Weighed, ranks_among, ranks_of, surprise
from hcm_scale.score.tail import LEAST_P, bend, fit, kind_surprise, shares_of, widening

Values = NDArray[np.float64]

_SUM_LOW, _SUM_HIGH = 0.5, 0.9  # quantiles of the sum that show its tail; beyond, odd nodes and neighbours gather


class Verdict(NamedTuple):
    """The chance of a usual node to have as much evidence, and who is flagged, (n,) each, at which `rate`."""

    p: Values
    flagged: NDArray[np.bool_]
    rate: float


def judge(
    numbers: Mapping[str, Values],
    has_neighbors: NDArray[np.bool_],
    rate: float,
    like: Numbers | None = None,
    weighed: Weighed | None = None,
) -> Verdict:
    """The verdict over all nodes from the numbers of each kind (`evidence.KINDS`), (n,) each.

    `like` are the numbers of another graph, whose nodes are the usual ones; `weighed` is what `weigh` made of these
    numbers, where it is known: they are not sorted again then.

    >>> usual = -np.log(np.linspace(1.0, 0.001, 1000))
    >>> found = judge({"closure": np.append(usual, [30.0, 40.0])}, np.ones(1002, bool), 0.1)
    >>> np.flatnonzero(found.flagged).tolist()
    [1000, 1001]
    """
    check_rate(rate)
    p = evidence_p(numbers, has_neighbors, like, weighed)
    return Verdict(p, discoveries(p, rate), rate)


def check_rate(rate: float) -> None:
    """Refuses a false-discovery rate that flags nobody, or everybody."""
    if not 0.0 < rate < 1.0:
        raise ValueError(f"score.fdr={rate} must be above 0 and below 1: the share of false flags to put up with")


def evidence_p(
    numbers: Mapping[str, Values],
    has_neighbors: NDArray[np.bool_],
    like: Numbers | None = None,
    weighed: Weighed | None = None,
) -> Values:
    """The chance of a usual node to have as much evidence, of all kinds together, (n,); above 0, at most 1."""
    if not len(has_neighbors) or not numbers:
        return np.ones(len(has_neighbors))
    own = Numbers(numbers, has_neighbors)
    usual, total, num_telling = like or own, np.zeros(len(has_neighbors)), 0
    usual_total = total if like is None else np.zeros(len(usual.has_neighbors))
    sorted_before = weighed if like is None else None
    for row, kind in enumerate(numbers):
        values, known = usual.of_kind[kind], usual.known(kind)
        if not num_known(values, known):
            continue
        double = double_places(values, known) if sorted_before is None else sorted_before.double_places(row)
        gain = _add(usual_total, kind, values, known, double)
        num_telling += gain.tells
        if like is not None:
            _add_among(total, kind, own, values if known is None else values[known], gain)
    return sum_p(total, max(1, num_telling), None if like is None else usual_total)


class Gain(NamedTuple):
    """What nodes gain by a kind: the least surprise, which is no evidence, the middle gain, and whether any differ."""

    least: float
    middle: float
    tells: bool


def _add(total: Values, kind: str, values: Values, known: Known, double: Places) -> Gain:
    """Adds the surprise of every node by a kind, above the least, to its total; the middle of these where not known."""
    size = num_known(values, known)
    bulk = quantiles(values, double, shares_of(kind), known)
    tail = fit(kind, bulk, _pick(values, lambda some: some > bulk[-1], known), size)
    few = at_places(double, [1, size, size // 2 + 1, (size + 1) // 2], known)  # surprise falls from place to place
    most, least, *middle = bend(surprise(ranks_of(double[few], size)), values[few], tail)
    gain = Gain(least, np.mean(np.subtract(middle, least)), bool(most > least))

    def add(part: slice) -> None:
        gained = bend(surprise(ranks_of(double[part], size)), values[part], tail)
        gained -= least
        total[part] += gained if known is None else np.where(known[part], gained, gain.middle)

    in_slices(len(total), add)
    return gain


def _add_among(total: Values, kind: str, own: Numbers, usual: Values, gain: Gain) -> None:
    """The same of nodes of one graph among the usual values of another, where a kind gives what `gain` says."""
    values, known = own.of_kind[kind], own.known(kind)
    gained = np.maximum(kind_surprise(kind, values if known is None else values[known], usual) - gain.least, 0.0)
    if known is None:
        total += gained
    else:
        total[known] += gained
        total[~known] += gain.middle


def _pick(values: Values, which: Callable[[Values], NDArray[np.bool_]], known: Known = None) -> Values:
    """The known values that `which` marks, in their order."""

    def pick(part: slice) -> Values:
        marked = which(values[part])
        return values[part][marked if known is None else marked & known[part]]

    return np.concatenate([np.zeros(0), *of_slices(len(values), pick)])


def sum_p(total: Values, num_kinds: int, usual: Values | None = None) -> Values:
    """P(a usual node's surprises add up to as much), (n,): by rank in the bulk, by a gamma tail beyond."""
    if usual is None:
        double, usual = double_places(total), total
        low, high = quantiles(total, double, [_SUM_LOW, _SUM_HIGH])
        p = ranks_of(double, len(total))
    else:
        p, (low, high) = ranks_among(total, usual), np.quantile(usual, [_SUM_LOW, _SUM_HIGH])
    parts = np.linspace(1.0, num_kinds, 1 + 20 * (num_kinds - 1))
    spread = gammaincinv(parts, _SUM_HIGH) / gammaincinv(parts, _SUM_LOW)  # falls with the number of parts
    shape = np.interp(high / low if low > 0.0 else np.inf, spread[::-1], parts[::-1])
    scale = max(1.0, high / gammaincinv(shape, _SUM_HIGH)) * widening(len(usual) * (1.0 - _SUM_HIGH))

    def fill(part: slice) -> None:
        p[part] = np.maximum(1.0 - p[part], 1.0 - _SUM_HIGH)
        beyond = total[part] > high
        p[part][beyond] = np.clip(gammaincc(shape, total[part][beyond] / scale), LEAST_P, 1.0 - _SUM_HIGH)

    in_slices(len(p), fill)
    return p


def discoveries(p: Values, rate: float) -> NDArray[np.bool_]:
    """Those that Benjamini and Hochberg's procedure rejects at this false-discovery rate.

    >>> discoveries(np.array([0.5, 0.01, 0.04, 0.9]), 0.1).tolist()
    [False, True, True, False]
    """
    step = rate / max(1, len(p))
    few = _pick(p, lambda some: some <= step * len(p))  # no other can be
    ordered = few[order(few)]
    below = np.flatnonzero(ordered <= step * np.arange(1, len(few) + 1))
    out = np.zeros(len(p), bool)
    if len(below):
        in_slices(len(p), lambda part: np.less_equal(p[part], ordered[below[-1]], out=out[part]))
    return out
