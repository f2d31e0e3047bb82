"""How good a ranking is, where the anomalies are known: ROC-AUC, average precision, precision and recall at k, curves.

All of them follow from one sort, by all threads. What comes after it looks at the places of the anomalies alone, which
are few: `Runs` holds, for every distinct score that one of them has, from the highest down, how many nodes score more,
and how many at least that much; `Tally` the same, with how many anomalies there are among those. Nodes of equal score
enter together, so AUC and average precision do not depend on how ties are ordered, and AUC is exact (integer
arithmetic: a tie counts one half). Precision at k looks at the list the user reads: by score, ties by node number.
Memory: 40 bytes a node while it is sorted, 8 after that, 16 for curves.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import largest_positions, order, sort_with_order
from hcm_scale.base.threads import positions_where, run_in_slices, share_parts
from hcm_scale.graph.store import ATTRIBUTE, KIND_NAMES, NORMAL, STRUCTURAL

_KS = (10, 50, 100, 200, 300)
_THRESHOLDS = 1 << 20  # that a curve is thinned from
_FOUND = 1 << 14  # places of the ranking that a thread looks for together

Counts = NDArray[np.int64]


class Ranked(NamedTuple):
    """The nodes by score, highest first, ties by node number.

    `keys`, (n,), rise from place to place, and are equal where scores are. `odd` are the places, in order, of the nodes
    that are anomalies (`is_hit`) or have a kind (`kinds`, None where nobody told).
    """

    keys: NDArray[Any]
    odd: Counts
    is_hit: NDArray[np.bool_]
    kinds: NDArray[Any] | None

    @staticmethod
    def of(y: NDArray[Any], score: NDArray[Any], kind: NDArray[Any] | None = None) -> "Ranked":
        """Sorts once. `y` is 1 for an anomaly; both classes must occur, and NaN scores are refused."""
        y, score = np.asarray(y), np.asarray(score)
        if y.shape != score.shape or y.ndim != 1:
            raise ValueError(f"labels of shape {y.shape} and scores of shape {score.shape} do not match")
        keys, nodes = sort_with_order(_negated(score))
        if len(score) and np.isnan(score[nodes[-1]]):  # NaN comes last
            raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN")
        is_odd = np.empty(len(y), bool)
        run_in_slices(len(y), lambda part: _mark_odd(y, kind, part, is_odd))
        odd = positions_where(len(y), lambda part: is_odd[nodes[part]])
        odd_nodes = _taken(nodes, odd)
        is_hit = _taken(y, odd_nodes) != 0
        num_hits = np.count_nonzero(is_hit)
        if not 0 < num_hits < len(y):
            raise ValueError(f"{num_hits} of {len(y)} nodes are anomalies; both kinds must occur")
        return Ranked(keys, odd, is_hit, None if kind is None else _taken(np.asarray(kind), odd_nodes))


def _negated(score: NDArray[Any]) -> NDArray[np.float64]:
    out = np.empty(len(score))
    run_in_slices(len(out), lambda part: np.negative(np.asarray(score[part], np.float64), out=out[part]))
    return out


def _mark_odd(y: NDArray[Any], kind: NDArray[Any] | None, part: slice, out: NDArray[np.bool_]) -> None:
    np.not_equal(y[part], 0, out=out[part])
    if kind is not None:
        out[part] |= kind[part] != NORMAL


def _taken(values: NDArray[Any], places: Counts) -> NDArray[Any]:
    """values[places], by all threads."""
    out = np.empty(len(places), values.dtype)
    run_in_slices(len(out), lambda part: np.copyto(out[part], values[places[part]]), _FOUND)
    return out


class Runs(NamedTuple):
    """Of every distinct score of an odd node, highest first: nodes above it, and those at it or above; of odd ones too.

    `of_odd` is the number of the run that each odd node is in.
    """

    above: Counts
    upto: Counts
    odd_above: Counts
    odd_upto: Counts
    of_odd: Counts

    @staticmethod
    def of(ranked: Ranked) -> "Runs":
        found = _taken(ranked.keys, ranked.odd)
        is_first = np.append(True, found[1:] != found[:-1])
        firsts = np.flatnonzero(is_first)
        found = found[firsts]
        above, upto = np.empty((2, len(found)), np.int64)

        def search(part: slice) -> None:
            above[part] = np.searchsorted(ranked.keys, found[part], "left")
            upto[part] = np.searchsorted(ranked.keys, found[part], "right")

        run_in_slices(len(found), search, _FOUND)
        return Runs(above, upto, firsts, np.append(firsts[1:], len(is_first)), np.cumsum(is_first) - 1)


class Tally(NamedTuple):
    """At every distinct score of an anomaly, highest first: hits and nodes above it, and those at it or above."""

    hits_above: Counts
    nodes_above: Counts
    hits: Counts
    nodes: Counts
    num_nodes: int

    @property
    def num_hits(self) -> int:
        return int(self.hits[-1])

    @staticmethod
    def of(runs: Runs, chosen: Counts, num_nodes: int, *, without_rest: bool = False) -> "Tally":
        """The odd nodes numbered `chosen` are the anomalies; the rest of them are normal nodes, or do not count."""
        run = runs.of_odd[chosen]
        hits_above = np.flatnonzero(np.append(True, run[1:] != run[:-1]))
        hits, run = np.append(hits_above[1:], len(chosen)), run[hits_above]
        above, upto = runs.above[run], runs.upto[run]
        if without_rest:
            above -= runs.odd_above[run] - hits_above
            upto -= runs.odd_upto[run] - hits
            num_nodes -= len(runs.of_odd) - len(chosen)
        return Tally(hits_above, above, hits, upto, num_nodes)


def ranking(score: NDArray[Any]) -> NDArray[np.int64]:
    """Nodes by score, highest first, ties by node number.

    >>> ranking(np.array([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return order(_negated(np.asarray(score)))


def top_overlap(scores: Iterable[NDArray[Any]], most: int = 100) -> float:
    """The share of the first `most` nodes, a tenth of them all at most, that are first by every one of these scores.

    >>> top_overlap([np.arange(40.0), np.append(np.arange(38.0), [0.0, 50.0])])
    0.75
    """
    firsts = [largest_positions(score, max(1, min(most, len(score) // 10))).tolist() for score in scores]
    return len(set(firsts[0]).intersection(*firsts[1:])) / max(1, len(firsts[0]))


def roc_auc(y: NDArray[Any], score: NDArray[Any]) -> float:
    """The chance that a random anomaly scores above a random normal node, a tie counting one half.

    >>> roc_auc(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 2.0, 3.0]))
    0.875
    """
    return _roc_auc(_tally(Ranked.of(y, score)))


def evaluate(y: NDArray[Any], score: NDArray[Any], kind: NDArray[Any] | None = None) -> dict[str, Any]:
    """Every number there is, JSON-able; with `kind`, each kind of anomaly apart, against the normal nodes alone.

    `precision_at` and `recall_at` map k, as text, to the number; k beyond n are left out. `by_kind` maps a kind's
    name to the same numbers; a kind that does not occur is left out.
    """
    return measure(Ranked.of(y, score, kind))


def measure(ranked: Ranked, ks: Sequence[int] = _KS) -> dict[str, Any]:
    """`evaluate` of what is sorted already."""
    runs, groups = Runs.of(ranked), {"all": ranked.is_hit}
    if ranked.kinds is not None and len(ranked.odd) < len(ranked.keys):
        groups |= {KIND_NAMES[code]: ranked.kinds == code for code in (STRUCTURAL, ATTRIBUTE)}
    found: dict[str, dict[str, Any]] = {}

    def tell(_: int, name: str) -> None:
        if groups[name].any():
            found[name] = _of_group(ranked, runs, ks, groups[name], without_rest=name != "all")

    share_parts(len(groups), groups, tell)
    result = found.pop("all")
    if ranked.kinds is not None:
        result["by_kind"] = {name: found[name] for name in groups if name in found}
    return result


def _of_group(
    ranked: Ranked, runs: Runs, ks: Sequence[int], is_hit: NDArray[np.bool_], *, without_rest: bool
) -> dict[str, Any]:
    """The numbers of a ranking in which these of the odd nodes are the anomalies."""
    chosen = np.flatnonzero(is_hit)
    places = ranked.odd[chosen]
    if without_rest:
        places -= chosen - np.arange(len(chosen))
    return _numbers(Tally.of(runs, chosen, len(ranked.keys), without_rest=without_rest), places, ks)


def curves(ranked: Ranked, max_points: int = 500) -> dict[str, dict[str, list[float]]]:
    """The ROC and the precision-recall curve, thinned to at most `max_points` points each, ends kept."""
    if max_points < 2:
        raise ValueError(f"max_points={max_points} must be at least 2")
    last, num_nodes, found = _last_places(ranked.keys), len(ranked.keys), ranked.odd[ranked.is_hit]
    hits = np.searchsorted(found, last, side="right")
    misses = last + 1 - hits
    recall, fallout = hits / len(found), misses / (num_nodes - len(found))
    roc = _thin(np.append(0.0, fallout), np.append(0.0, recall), max_points)
    pr = _thin(recall, hits / (last + 1), max_points)
    return {
        "roc": {"false_positive_rate": roc[0].tolist(), "true_positive_rate": roc[1].tolist()},
        "pr": {"recall": pr[0].tolist(), "precision": pr[1].tolist()},
    }


def _last_places(keys: NDArray[Any]) -> Counts:
    """The last place of every distinct score; of more than a million evenly spaced ones, first and last included."""
    last = positions_where(len(keys) - 1, lambda part: keys[part] != keys[part.start + 1 : part.stop + 1])
    last = np.append(last, len(keys) - 1)
    return last if len(last) <= _THRESHOLDS else last[np.linspace(0, len(last) - 1, _THRESHOLDS).astype(np.int64)]


def _tally(ranked: Ranked) -> Tally:
    return Tally.of(Runs.of(ranked), np.flatnonzero(ranked.is_hit), len(ranked.keys))


def _numbers(tally: Tally, hits: Counts, ks: Sequence[int]) -> dict[str, Any]:
    """The numbers of a ranking; `hits` are the places of its anomalies."""
    at = {str(k): _at_k(hits, k) for k in ks if k <= tally.num_nodes}
    return {
        "roc_auc": _roc_auc(tally),
        "average_precision": _average_precision(tally),
        "precision_at": {k: precision for k, (precision, _) in at.items()},
        "recall_at": {k: recall for k, (_, recall) in at.items()},
        "num_anomalies": tally.num_hits,
        "num_nodes": tally.num_nodes,
    }


def _at_k(hits: Counts, k: int) -> tuple[float, float]:
    found = int(np.searchsorted(hits, k))
    return found / k, found / len(hits)


def _roc_auc(tally: Tally) -> float:
    num_misses = tally.num_nodes - tally.num_hits
    misses_above, misses = tally.nodes_above - tally.hits_above, tally.nodes - tally.hits
    below = 2 * num_misses - misses_above - misses  # twice the misses below, those at the same score once
    return int((tally.hits - tally.hits_above) @ below) / (2 * tally.num_hits * num_misses)


def _average_precision(tally: Tally) -> float:
    """Precision averaged over the anomalies, each at its own score: sum of (R_i - R_{i-1}) P_i."""
    gained = (tally.hits - tally.hits_above) * (tally.hits / tally.nodes)
    return float(gained.sum()) / tally.num_hits  # not @, which may sum in threads


def _thin(x: NDArray[np.float64], y: NDArray[np.float64], max_points: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points evenly spaced along the curve, first and last included: flat stretches need few, bends many."""
    if len(x) <= max_points:
        return x, y
    length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    chosen = np.searchsorted(length, np.linspace(0.0, length[-1], max_points - 1))
    chosen = np.unique(np.append(np.minimum(chosen, len(x) - 1), len(x) - 1))
    return x[chosen], y[chosen]
