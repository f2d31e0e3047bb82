"""How good a ranking is, where the anomalies are known: ROC-AUC, average precision, precision and recall at k, curves.

All of them follow from one sort. `Tally` holds, for every distinct score that an anomaly has, from the highest down,
how many anomalies and how many nodes score more, and how many at least that much: anomalies are few, so what follows
the sort costs little. Nodes of equal score enter together, so AUC and average precision do not depend on how ties are
ordered, and AUC is exact (integer arithmetic: a tie counts one half). Precision at k looks at the list the user reads:
by score, ties by node number. Memory: 60 bytes a node while it is sorted, time one sort.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import largest, order
from hcm_scale.graph.store import ATTRIBUTE, KIND_NAMES, NORMAL, STRUCTURAL

DEFAULT_KS = (10, 50, 100, 200, 300)
_THRESHOLDS = 1 << 20  # that a curve is thinned from

Counts = NDArray[np.int64]


class Ranked(NamedTuple):
    """The nodes by score, highest first, ties by node number: who they are, their scores, and the anomalies' places."""

    nodes: Counts
    scores: NDArray[Any]
    hits: Counts

    @staticmethod
    def of(y: NDArray[Any], score: NDArray[Any]) -> "Ranked":
        """Sorts once. `y` is 1 for an anomaly; both classes must occur, and NaN scores are refused."""
        _check(y, score)
        nodes = ranking(score)
        return Ranked(nodes, np.asarray(score)[nodes], np.flatnonzero(np.asarray(y)[nodes]))


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


def _tally(scores: NDArray[Any], hits: Counts, others: Counts | None = None) -> Tally:
    """The tally of scores in falling order with hits in these places; nodes in the places `others` do not count."""
    found = scores[hits]
    found = found[np.append(True, found[1:] != found[:-1])]
    rising, size = scores[::-1].copy(), len(scores)
    above, upto = (size - np.searchsorted(rising, found, side) for side in ("right", "left"))

    def counted(places: Counts) -> Counts:
        return places if others is None else places - np.searchsorted(others, places)

    hits_above, hits_upto = (np.searchsorted(hits, places) for places in (above, upto))
    num_nodes = size - (0 if others is None else len(others))
    return Tally(hits_above, counted(above), hits_upto, counted(upto), num_nodes)


def ranking(score: NDArray[Any]) -> NDArray[np.int64]:
    """Nodes by score, highest first, ties by node number.

    >>> ranking(np.array([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return order(-np.asarray(score, np.float64))


def top_overlap(scores: Iterable[NDArray[Any]], most: int = 100) -> float:
    """The share of the first `most` nodes, a tenth of them all at most, that are first by every one of these scores.

    >>> top_overlap([np.arange(40.0), np.append(np.arange(38.0), [0.0, 50.0])])
    0.75
    """
    firsts = [largest(score, max(1, min(most, len(score) // 10))).tolist() for score in scores]
    return len(set(firsts[0]).intersection(*firsts[1:])) / max(1, len(firsts[0]))


def roc_auc(y: NDArray[Any], score: NDArray[Any]) -> float:
    """The chance that a random anomaly scores above a random normal node, a tie counting one half.

    >>> roc_auc(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 2.0, 3.0]))
    0.875
    """
    return _roc_auc(_tally(*Ranked.of(y, score)[1:]))


def average_precision(y: NDArray[Any], score: NDArray[Any]) -> float:
    """Precision averaged over the anomalies, each at its own score: sum of (R_i - R_{i-1}) P_i."""
    return _average_precision(_tally(*Ranked.of(y, score)[1:]))


def at_k(y: NDArray[Any], score: NDArray[Any], k: int) -> tuple[float, float]:
    """Precision and recall among the k highest scores; with k > n the missing places count as misses."""
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    return _at_k(Ranked.of(y, score).hits, k)


def evaluate(
    y: NDArray[Any], score: NDArray[Any], kind: NDArray[Any] | None = None, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, Any]:
    """Every number there is, JSON-able; with `kind`, each kind of anomaly apart, against the normal nodes alone.

    `precision_at` and `recall_at` map k, as text, to the number; k beyond n are left out. `by_kind` maps a kind's
    name to the same numbers; a kind that does not occur is left out.
    """
    return measure(Ranked.of(y, score), kind, ks)


def measure(ranked: Ranked, kind: NDArray[Any] | None = None, ks: Sequence[int] = DEFAULT_KS) -> dict[str, Any]:
    """`evaluate` of what is sorted already."""
    result: dict[str, Any] = _numbers(_tally(ranked.scores, ranked.hits), ranked.hits, ks)
    if kind is not None:
        kinds = np.asarray(kind)[ranked.nodes]
        is_odd = kinds != NORMAL
        is_odd[ranked.hits] = True
        odd = np.flatnonzero(is_odd)
        result["by_kind"] = {}
        for code in (STRUCTURAL, ATTRIBUTE):
            hits, others = odd[kinds[odd] == code], odd[kinds[odd] != code]
            if len(hits) and len(odd) < len(kinds):
                tally = _tally(ranked.scores, hits, others)
                places = hits - np.searchsorted(others, hits)
                result["by_kind"][KIND_NAMES[code]] = _numbers(tally, places, ks)
    return result


def curves(ranked: Ranked, max_points: int = 500) -> dict[str, dict[str, list[float]]]:
    """The ROC and the precision-recall curve, thinned to at most `max_points` points each, ends kept."""
    if max_points < 2:
        raise ValueError(f"max_points={max_points} must be at least 2")
    last = np.append(np.flatnonzero(ranked.scores[1:] != ranked.scores[:-1]), len(ranked.scores) - 1)
    if len(last) > _THRESHOLDS:
        last = last[np.linspace(0, len(last) - 1, _THRESHOLDS).astype(np.int64)]
    hits = np.searchsorted(ranked.hits, last, side="right")
    misses = last + 1 - hits
    recall, fallout = hits / len(ranked.hits), misses / (len(ranked.scores) - len(ranked.hits))
    roc = _thin(np.append(0.0, fallout), np.append(0.0, recall), max_points)
    pr = _thin(recall, hits / (last + 1), max_points)
    return {
        "roc": {"false_positive_rate": roc[0].tolist(), "true_positive_rate": roc[1].tolist()},
        "pr": {"recall": pr[0].tolist(), "precision": pr[1].tolist()},
    }


def _check(y: NDArray[Any], score: NDArray[Any]) -> None:
    if np.shape(y) != np.shape(score) or np.ndim(y) != 1:
        raise ValueError(f"labels of shape {np.shape(y)} and scores of shape {np.shape(score)} do not match")
    if np.isnan(score).any():
        raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN")
    num_positives = np.count_nonzero(y)
    if not 0 < num_positives < len(y):
        raise ValueError(f"{num_positives} of {len(y)} nodes are anomalies; both kinds must occur")


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
