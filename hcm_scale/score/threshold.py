"""Which nodes are flagged: a p-value for every node, and the flags at a false-discovery rate.

Ranks cannot tell: every graph has a first node, anomalous or not. So p comes from how large a number is beside the bulk
of its kind, which anomalies, being few, do not move:

1. Each kind of evidence becomes a surprise, -log P(a normal node has as much) (evidence.py).
2. The surprises of a node are added up. Sums of usual nodes have nearly a gamma distribution: that of as many parts as
   there are kinds if these are independent, of fewer and longer parts if not (Brown's method). Its shape, scale and
   beginning are those whose quantiles are nearest to those of the sums between 30 and 85 %, which a tenth of anomalies
   hardly bends; its scale is no less than the largest weight of a kind. Nodes without neighbours, of which attributes
   alone say something, are compared with each other, and nodes of several types each with its own.
3. A kind of which the tail alone counts says nothing of nineteen nodes in twenty. The largest of such surprises, less
   the logarithm of their number (Bonferroni), is added to the surprise of the sum, and p is that of both together: of
   an exponential number and another that counts beyond its 95 % quantile (Zaykin's truncated product). One sure witness
   is enough; several that are each a little unusual are not. Where the two go together, the sum says nothing new: what
   is to be expected of it is taken off, by the median of the nodes from the 80 to the 95 % quantile of that kind. Nodes
   beyond are often anomalies, and take no part in 2.
4. Benjamini and Hochberg: the k nodes of smallest p are flagged, for the largest k with p_(k) <= rate * k / n.

Where a graph is scored by a model of another, the bulk is that of the other graph: p then says how usual a node would
be there, and is the same from day to day. Small graphs show less of their bulk, so surprises are shortened by a term in
1 / n. p falls with every number and depends on no labels. Measured: docs/lab/flags.md. Memory: 40 bytes per node.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base.order import order
from hcm_scale.base.threads import run_in_slices
from hcm_scale.score.evidence import FEW, LEAST_P, START, Sums, widening

Values = NDArray[np.float64]

_SHARES = np.linspace(0.3, 0.85, 16)  # quantiles of the sum that show its tail; anomalies lie beyond
_SHAPES = np.geomspace(0.5, 60.0, 48)  # of gamma distributions
_ENOUGH = 1 << 22  # nodes whose sums show the quantiles of all
_ALIKE = 5  # nodes without neighbours that show what they have in common
_MISJUDGED = 2.5  # factor by which p may be wrong
_SOME, _DEPENDENCE = 20, (-0.2, 1.0)  # nodes that show how far the sum goes with a tail, and in which bounds


class Verdict(NamedTuple):
    """p-value of every node and whether it is flagged, (n,) each, at the false-discovery rate `rate`."""

    p: Values
    flagged: NDArray[np.bool_]
    rate: float


def judge(sums: Sums, rate: float) -> Verdict:
    """p-values and flags of all nodes from their summed surprises (`weigh_evidence`).

    >>> from hcm_scale.score.evidence import KindNumbers, weigh_evidence
    >>> from hcm_scale.score.kinds.closure import CLOSURE
    >>> numbers = np.append(-np.log(np.linspace(1.0, 0.001, 1000)), [30.0, 40.0])
    >>> verdict = judge(weigh_evidence(KindNumbers({CLOSURE: numbers}, np.ones(1002, bool))).sums, 0.1)
    >>> np.flatnonzero(verdict.flagged).tolist()
    [1000, 1001]
    """
    p = _p_values(sums)
    return Verdict(p, discoveries(p, rate), rate)


def _p_values(sums: Sums) -> Values:
    """P(a normal node has as much evidence), (n,)."""
    p = np.empty(len(sums.total))
    if sums.parts:
        for nodes, of_group in sums.parts:
            p[nodes] = _p_values(of_group)
        return p
    surprise, dependence = _surprise_of_sum(sums)
    speaks = np.exp(-START) if sums.num_alone else 0.0

    def fill(chunk: slice) -> None:
        tail = _tail_alone(sums, chunk)
        both = np.where(
            tail > START, np.maximum(surprise[chunk] - dependence * (tail - 1.0), 0.0) + tail, surprise[chunk]
        )
        p[chunk] = (1.0 - speaks) * np.exp(-both) + speaks * scipy.special.gammaincc(2.0, np.maximum(both - START, 0.0))
        np.clip(p[chunk], LEAST_P, 1.0, out=p[chunk])

    run_in_slices(len(p), fill)
    return p


def _tail_alone(sums: Sums, chunk: slice, num_alone: int = 0) -> Values:
    """The largest surprise of a kind of which the tail alone counts, less what their number makes likely."""
    if sums.alone is None:
        return np.zeros(len(sums.total[chunk]))
    return sums.alone[chunk] - np.log(num_alone or sums.num_alone)


def _surprise_of_sum(sums: Sums) -> tuple[Values, float]:
    """-log P(a normal node's surprises add up to as much), (n,), among nodes that have neighbours, or none, as it.

    And by how much it grows with a tail alone, by the nodes that come next to those in it; 0 if they are independent.
    """
    out, usual, dependence = np.empty(len(sums.total)), sums.usual or sums, 0.0
    tail = _tail_alone(usual, slice(None), sums.num_alone)
    for linked in (True, False):
        group, like = sums.has_neighbors == linked, usual.has_neighbors == linked
        if linked or np.count_nonzero(like) >= FEW or group.all():
            null = _fit_gamma(usual.total, like, tail, sums.largest_weight)
            out[group] = null.surprise(sums.total[group])
            is_next = like & (tail > 0.0) & (tail <= START)
            if linked and usual.alone is not None and np.count_nonzero(is_next) >= _SOME:
                medians = np.median([null.surprise(usual.total[is_next]), usual.alone[is_next]], axis=1) - np.log(2.0)
                dependence = float(np.clip(medians[0] / medians[1], *_DEPENDENCE))
        elif group.any():  # too few to show their bulk: the sum is that of one kind, less what all of them have
            surprise, theirs = sums.total[group] / sums.largest_weight, usual.total[like] / sums.largest_weight
            common = np.median(theirs) if len(theirs) >= _ALIKE else 0.0
            out[group] = np.maximum(surprise - max(0.0, common - np.log(2.0)), 0.0)
    return out, dependence


class _Gamma(NamedTuple):
    """A gamma distribution that begins at `begin`; surprises by it are shortened by the factor `longer`."""

    shape: float
    begin: float
    scale: float
    longer: float

    def surprise(self, total: Values) -> Values:
        """-log P(a number of it is as large), (n,)."""
        out = np.empty(len(total))

        def fill(chunk: slice) -> None:
            chance = scipy.special.gammaincc(self.shape, np.maximum(total[chunk] - self.begin, 0.0) / self.scale)
            out[chunk] = -np.log(np.maximum(chance, LEAST_P)) / self.longer

        run_in_slices(len(out), fill)
        return out


def _fit_gamma(total: Values, like: NDArray[np.bool_], tail: Values, least_scale: float) -> _Gamma:
    """The distribution nearest to the middle quantiles of such sums, or of a few millions, but for nodes in a tail."""
    step = max(1, len(total) // _ENOUGH)
    usual = total[::step][like[::step] & (tail[::step] <= START)]
    if not len(usual):
        return _Gamma(1.0, 0.0, least_scale, 1.0)
    bulk, expected = np.quantile(usual, _SHARES), _gamma_quantiles()
    apart, expected_apart = bulk - bulk.mean(), expected - expected.mean(axis=1, keepdims=True)
    scales = np.maximum((expected_apart * apart).sum(axis=1) / (expected_apart**2).sum(axis=1), least_scale)
    best = np.argmin(((apart - scales[:, None] * expected_apart) ** 2).sum(axis=1))
    begin = bulk.mean() - scales[best] * expected[best].mean()
    return _Gamma(_SHAPES[best], begin, scales[best], widening(0.2 * step * len(usual)))


@cache
def _gamma_quantiles() -> Values:
    quantiles: Values = scipy.special.gammaincinv(_SHAPES[:, None], _SHARES)
    return quantiles


def discoveries(p: Values, rate: float) -> NDArray[np.bool_]:
    """Nodes that Benjamini and Hochberg's procedure rejects at this false-discovery rate.

    >>> discoveries(np.array([0.5, 0.01, 0.04, 0.9]), 0.1).tolist()
    [False, True, True, False]
    """
    step = rate / max(1, len(p))
    few = p[p <= step * len(p)]  # no other can be
    ordered = few[order(few)]
    below = np.flatnonzero(ordered <= step * np.arange(1, len(few) + 1))
    out = np.zeros(len(p), bool)
    if len(below):
        run_in_slices(len(p), lambda chunk: np.less_equal(p[chunk], ordered[below[-1]], out=out[chunk]))
    return out


class Precision(NamedTuple):
    """Expected share of anomalies among the first so many rows of a list, and an interval of it."""

    first: int
    share: float
    low: float
    high: float


def expected_precision(p: Values, firsts: Sequence[int]) -> list[Precision]:
    """For each of these numbers of first rows, by the p of all rows of a list in its order.

    The chance that a row is there by chance is 1 / f(p), f the density of all p, which falls: that of usual nodes is 1,
    that of anomalies falls. The interval allows for p that are wrong by a factor of 2.5, and for a draw of the rows.

    >>> p = np.append(np.full(50, 1e-6), np.linspace(0.001, 1.0, 950))
    >>> [np.round(each, 2).tolist() for each in expected_precision(p, [50, 100])]
    [[50.0, 1.0, 0.97, 1.0], [100.0, 0.5, 0.0, 0.88]]
    """
    by_chance, out = np.minimum(1.0, 1.0 / _falling_density(p, max(firsts))), []
    for first in firsts:
        wrong = float(by_chance[:first].mean()) if first else 1.0
        drawn = 1.6 * np.sqrt(max(wrong * (1.0 - wrong), 1.0 / max(1, first)) / max(1, first))
        low, high = 1.0 - _MISJUDGED * wrong - drawn, 1.0 - wrong / _MISJUDGED + drawn
        out.append(Precision(first, 1.0 - wrong, max(0.0, float(low)), min(1.0, float(high))))
    return out


def _falling_density(p: Values, first: int) -> Values:
    """Density of p at the first of them: the steepest that falls throughout (Grenander), in bins of equal ratio."""
    ends = np.append(0.0, np.geomspace(1e-9, 1.0, 121))
    steps: list[tuple[float, float]] = []  # how many p are in so wide a piece
    for count, width in zip(np.histogram(p, ends)[0], np.diff(ends), strict=True):
        step = float(count), float(width)
        while steps and steps[-1][0] * step[1] < step[0] * steps[-1][1]:
            step = step[0] + steps[-1][0], step[1] + steps.pop()[1]
        steps.append(step)
    counts, widths = np.array(steps).T
    density: Values = np.maximum(counts / widths / max(1, len(p)), LEAST_P)
    return density[np.minimum(np.searchsorted(np.cumsum(widths), p[:first]), len(density) - 1)]
