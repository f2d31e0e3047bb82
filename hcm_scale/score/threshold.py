"""Which nodes are flagged: a p-value for every node, and the flags at a false-discovery rate.

Ranks cannot tell: every graph has a first node, anomalous or not. So p comes from how large a number is beside the bulk
of its kind, which anomalies, being few, do not move:

1. Each kind of evidence becomes a surprise, -log P(a normal node has as much) (evidence.py).
2. The surprises of a node are added up. If the kinds were independent, the sums would have a gamma distribution with
   as many parts as there are kinds; dependent kinds make it fewer and longer parts (Brown's method). Both are read off
   the 40 and the 80 % quantile of the sums, which a tenth of anomalies hardly bends, and the tail beyond is p.
   Nodes without neighbours, of which attributes alone say something, are compared with each other, and nodes of
   several types each with its own.
3. A kind of which the tail alone counts is a test of its own: the smallest p of all tests counts, times their number
   (Bonferroni).
4. Benjamini and Hochberg: the k nodes of smallest p are flagged, for the largest k with p_(k) <= rate * k / n.

Where a graph is scored by a model of another, the bulk is that of the other graph: p then says how usual a node would
be there, and is the same from day to day. Small graphs show less of their bulk, so scales are widened by a term in
1 / n. p falls with every number and depends on no labels. Measured: docs/lab/detector.md. Memory: 40 bytes per node.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaincinv

from hcm_scale.base.order import double_places, order, quantiles, select_values
from hcm_scale.base.threads import run_in_slices
from hcm_scale.score.evidence import FEW, LEAST_P, Sums, ranks_among, ranks_of, widening

Values = NDArray[np.float64]

_SUM_LOW, _SUM_HIGH = 0.4, 0.8  # quantiles of the sum that show its tail; beyond are anomalies and their neighbours
_ALIKE = 5  # nodes without neighbours that show what they have in common


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
    """P(a normal node has as much evidence), (n,): by the sum, or by a tail alone."""
    if sums.parts:
        p = np.empty(len(sums.total))
        for nodes, part in sums.parts:
            p[nodes] = _p_values(part)
        return p
    p, alone, num_tests = _p_among_like(sums), sums.alone, 1.0 + sums.num_alone
    if alone is not None:

        def least(part: slice) -> None:
            np.clip(num_tests * np.minimum(p[part], np.exp(-alone[part])), LEAST_P, 1.0, out=p[part])

        run_in_slices(len(p), least)
    return p


def _p_among_like(sums: Sums) -> Values:
    """P(a normal node's surprises add up to as much), (n,), among nodes that have neighbours, or none, as it has."""
    usual = sums.usual
    if sums.has_neighbors.all():
        return _sum_p(sums.total, sums.num_informative, None if usual is None else usual.total[usual.has_neighbors])
    p = np.empty(len(sums.total))
    for linked, num_kinds in ((True, sums.num_informative), (False, 1)):
        group = sums.has_neighbors == linked
        others = None if usual is None else usual.total[usual.has_neighbors == linked]
        if linked or (np.count_nonzero(group) if others is None else len(others)) >= FEW or group.all():
            p[group] = _sum_p(sums.total[group], num_kinds, others)
        else:  # too few to show their bulk: the sum of one kind is its surprise among all nodes, less what all have
            common = np.median(few) if len(few := sums.total[group] if others is None else others) >= _ALIKE else 0.0
            p[group] = np.clip(np.exp(max(0.0, common - np.log(2.0)) - sums.total[group]), LEAST_P, 1.0)
    return p


def _sum_p(total: Values, num_kinds: int, usual: Values | None) -> Values:
    """P(a normal node has a sum of as much), (n,): by rank in the bulk, by a gamma tail beyond."""
    if not len(total):
        return np.ones(0)
    ordered, p = None if usual is None else np.sort(usual), np.empty(len(total))
    if usual is None:
        double, usual = double_places(total), total
        low, high = quantiles(total, double, [_SUM_LOW, _SUM_HIGH])
    else:
        low, high = np.quantile(usual, [_SUM_LOW, _SUM_HIGH])
    parts = np.linspace(1.0, num_kinds, 1 + 20 * (num_kinds - 1))
    spread = gammaincinv(parts, _SUM_HIGH) / gammaincinv(parts, _SUM_LOW)  # falls with the number of parts
    shape = np.interp(high / low if low > 0.0 else np.inf, spread[::-1], parts[::-1])
    scale = max(1.0, high / gammaincinv(shape, _SUM_HIGH)) * widening(len(usual) * (1.0 - _SUM_HIGH))

    def fill(part: slice) -> None:
        ranks = ranks_of(double[part], len(total)) if ordered is None else ranks_among(total[part], ordered)
        p[part] = np.maximum(1.0 - ranks, 1.0 - _SUM_HIGH)
        beyond = total[part] > high
        p[part][beyond] = np.clip(gammaincc(shape, total[part][beyond] / scale), LEAST_P, 1.0 - _SUM_HIGH)

    run_in_slices(len(p), fill)
    return p


def discoveries(p: Values, rate: float) -> NDArray[np.bool_]:
    """Nodes that Benjamini and Hochberg's procedure rejects at this false-discovery rate.

    >>> discoveries(np.array([0.5, 0.01, 0.04, 0.9]), 0.1).tolist()
    [False, True, True, False]
    """
    step = rate / max(1, len(p))
    few = select_values(p, lambda some: some <= step * len(p))  # no other can be
    ordered = few[order(few)]
    below = np.flatnonzero(ordered <= step * np.arange(1, len(few) + 1))
    out = np.zeros(len(p), bool)
    if len(below):
        run_in_slices(len(p), lambda part: np.less_equal(p[part], ordered[below[-1]], out=out[part]))
    return out
