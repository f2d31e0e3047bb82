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
depend on labels or seeds. Measurements, and what did not work: docs/detector.md. Memory: 90 bytes a node.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaincinv

from hcm_scale.base.order import Sorted, order
from hcm_scale.score.evidence import Numbers, ranks_among, ranks_of, surprise

Values = NDArray[np.float64]

_HIGH = 0.95  # the quantile of a kind where its fitted tail begins; odd nodes lie beyond it
_LOW = 0.5  # where the bulk that shows the tail begins
_SHAPE_MARGIN = 0.25  # a normal bulk says -0.4, an exponential one 0, a lognormal one 0.3
_LOGS = ("closure", "context_closure")  # kinds that are logarithms already: exponential, and most are 0 on some graphs
_LOW_OF_LOGS = 0.75
_LEAST_OF_LOGS = 0.05  # the least scale of their tails: counts of one or two triangles make no slope
_SUM_LOW, _SUM_HIGH = 0.5, 0.9  # the same for the sum, where odd nodes and their neighbours gather
_SMALL = 10.0  # nodes of a bulk that shows its scale to within a factor of two
_LEAST_P = 1e-300


class Verdict(NamedTuple):
    """The chance of a usual node to have as much evidence, and who is flagged, (n,) each, at which `rate`."""

    p: Values
    flagged: NDArray[np.bool_]
    rate: float


def judge(
    numbers: Mapping[str, Values], has_neighbors: NDArray[np.bool_], rate: float, like: Numbers | None = None
) -> Verdict:
    """The verdict over all nodes from the numbers of each kind (`evidence.KINDS`), (n,) each.

    `like` are the numbers of another graph, whose nodes are the usual ones.

    >>> usual = -np.log(np.linspace(1.0, 0.001, 1000))
    >>> found = judge({"closure": np.append(usual, [30.0, 40.0])}, np.ones(1002, bool), 0.1)
    >>> np.flatnonzero(found.flagged).tolist()
    [1000, 1001]
    """
    check_rate(rate)
    p = evidence_p(numbers, has_neighbors, like)
    return Verdict(p, discoveries(p, rate), rate)


def check_rate(rate: float) -> None:
    """Refuses a false-discovery rate that flags nobody, or everybody."""
    if not 0.0 < rate < 1.0:
        raise ValueError(f"score.fdr={rate} must be above 0 and below 1: the share of false flags to put up with")


def evidence_p(numbers: Mapping[str, Values], has_neighbors: NDArray[np.bool_], like: Numbers | None = None) -> Values:
    """The chance of a usual node to have as much evidence, of all kinds together, (n,); above 0, at most 1."""
    if not len(has_neighbors) or not numbers:
        return np.ones(len(has_neighbors))
    own = Numbers(numbers, has_neighbors)
    usual, total, num_telling = like or own, np.zeros(len(has_neighbors)), 0
    usual_total = total if like is None else np.zeros(len(usual.has_neighbors))
    for kind in numbers:
        known, usual_known = own.known(kind), usual.known(kind)
        if usual_known.any():
            values = usual.of_kind[kind] if usual_known.all() else usual.of_kind[kind][usual_known]
            gained = kind_surprise(kind, values)
            least = gained.min()  # a number that most nodes share is no evidence
            gained -= least
            num_telling += bool(gained.any())
            _add(usual_total, usual_known, gained, gained)
            if like is not None:
                own_gained = np.maximum(kind_surprise(kind, numbers[kind][known], values) - least, 0.0)
                _add(total, known, own_gained, gained)
    return sum_p(total, max(1, num_telling), None if like is None else usual_total)


def _add(total: Values, known: NDArray[np.bool_], gained: Values, usual: Values) -> None:
    """Adds what the known nodes gained to their totals, and what is usual to those of the others."""
    if known.all():
        total += gained
    else:
        total[known] += gained
        total[~known] += np.median(usual)


def kind_surprise(kind: str, values: Values, usual: Values | None = None) -> Values:
    """-log P(as much) of the numbers of one kind, (n,): by rank in the bulk of usual ones, by its tail beyond."""
    low = _LOW_OF_LOGS if kind in _LOGS else _LOW
    start, shares = -np.log1p(-_HIGH), [low, 1.0 - np.sqrt((1.0 - low) * (1.0 - _HIGH)), _HIGH]
    if usual is None:
        by_size, usual = Sorted(values), values
        ranks, bulk = ranks_of(by_size.double_places(), len(values)), by_size.quantiles(shares)
    else:
        ranks, bulk = ranks_among(values, usual), np.quantile(usual, shares)
    out = surprise(ranks)
    beyond, tail = values > bulk[-1], usual[usual > bulk[-1]]
    np.minimum(out, start, out=out)
    if beyond.any():
        first = tail.min() if len(tail) else bulk[-1]  # of numbers with gaps, the next beyond is not yet odd
        seen = len(usual) * (1.0 - low)
        scale, shape = _tail(bulk, 0.5 * np.log((1.0 - low) / (1.0 - _HIGH)), bends=kind not in _LOGS)
        if bulk[0] == bulk[-1] and len(tail):  # most nodes share one number: those above are judged among themselves
            excess = tail - first
            seen, scale = len(tail), float(np.median(excess)) / np.log(2.0) or float(excess.mean())
        scale = max(scale, _LEAST_OF_LOGS if kind in _LOGS else 0.0, 1e-12 * abs(bulk[-1]), _LEAST_P)
        excess = np.maximum(values[beyond] - first, 0.0) / (scale * _widening(seen))
        begin = max(start, -np.log(max(len(tail), 1) / len(usual)))
        out[beyond] = begin + (np.log1p(shape * excess) / shape if shape else excess)
    return out


def _tail(bulk: Values, step: float, *, bends: bool) -> tuple[float, float]:
    """Scale and shape at the last of three quantiles, whose -log(1 - quantile) are `step` apart."""
    low, middle, high = bulk
    if not (bends and low < middle < high):
        return (high - low) / (2.0 * step), 0.0
    shape = max(0.0, np.log((high - middle) / (middle - low)) / step + _SHAPE_MARGIN)
    return (high - middle) * (shape / -np.expm1(-step * shape) if shape else 1.0 / step), shape


def _widening(num_seen: float) -> float:
    """What to widen a scale by that so many nodes have shown."""
    return 1.0 + _SMALL / num_seen


def sum_p(total: Values, num_kinds: int, usual: Values | None = None) -> Values:
    """P(a usual node's surprises add up to as much), (n,): by rank in the bulk, by a gamma tail beyond."""
    if usual is None:
        by_size, usual = Sorted(total), total
        ranks, (low, high) = ranks_of(by_size.double_places(), len(total)), by_size.quantiles([_SUM_LOW, _SUM_HIGH])
    else:
        ranks, (low, high) = ranks_among(total, usual), np.quantile(usual, [_SUM_LOW, _SUM_HIGH])
    parts = np.linspace(1.0, num_kinds, 1 + 20 * (num_kinds - 1))
    spread = gammaincinv(parts, _SUM_HIGH) / gammaincinv(parts, _SUM_LOW)  # falls with the number of parts
    shape = np.interp(high / low if low > 0.0 else np.inf, spread[::-1], parts[::-1])
    scale = max(1.0, high / gammaincinv(shape, _SUM_HIGH)) * _widening(len(usual) * (1.0 - _SUM_HIGH))
    p = np.maximum(1.0 - ranks, 1.0 - _SUM_HIGH)
    beyond = total > high
    p[beyond] = np.clip(gammaincc(shape, total[beyond] / scale), _LEAST_P, 1.0 - _SUM_HIGH)
    return p


def discoveries(p: Values, rate: float) -> NDArray[np.bool_]:
    """Those that Benjamini and Hochberg's procedure rejects at this false-discovery rate.

    >>> discoveries(np.array([0.5, 0.01, 0.04, 0.9]), 0.1).tolist()
    [False, True, True, False]
    """
    ordered = p[order(p)]
    below = np.flatnonzero(ordered <= rate / max(1, len(p)) * np.arange(1, len(p) + 1))
    return p <= ordered[below[-1]] if len(below) else np.zeros(len(p), bool)
