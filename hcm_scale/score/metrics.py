"""How good a ranking is, where the anomalies are known: ROC-AUC, average precision, precision and recall at k, curves.

All of them follow from one sort: `Sweep` holds, for every distinct score from the highest down, how many anomalies
and how many normal nodes score at least that much. Nodes of equal score enter together, so AUC and average precision
do not depend on how ties are ordered, and AUC is exact (integer arithmetic: a tie counts one half). Precision at k
looks at the list the user reads: by score, ties by node number. Memory: 32 bytes a node, time one sort.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import order
from hcm_scale.graph.store import ATTRIBUTE, KIND_NAMES, NORMAL, STRUCTURAL

DEFAULT_KS = (10, 50, 100, 200, 300)


class Sweep(NamedTuple):
    """Counts at every distinct score, highest first: anomalies and normals that score at least that much."""

    true_positives: NDArray[np.int64]
    false_positives: NDArray[np.int64]

    @property
    def num_positives(self) -> int:
        return int(self.true_positives[-1])

    @property
    def num_negatives(self) -> int:
        return int(self.false_positives[-1])


def sweep(y: NDArray[Any], score: NDArray[Any]) -> Sweep:
    """Sorts once. `y` is 1 for an anomaly; both classes must occur, and NaN scores are refused."""
    return _sweep(*_sorted(y, score))


def _sorted(y: NDArray[Any], score: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Hits and scores in the order of the ranking."""
    _check(y, score)
    ranked = ranking(score)
    return np.asarray(y)[ranked] != 0, np.asarray(score)[ranked]


def _sweep(hits: NDArray[np.bool_], values: NDArray[Any]) -> Sweep:
    last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    true_positives = np.cumsum(hits, dtype=np.int64)[last]
    return Sweep(true_positives, last + 1 - true_positives)


def ranking(score: NDArray[Any]) -> NDArray[np.int64]:
    """Nodes by score, highest first, ties by node number.

    >>> ranking(np.array([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return order(-np.asarray(score, np.float64))


def top_overlap(scores: Sequence[NDArray[Any]], most: int = 100) -> float:
    """The share of the first `most` nodes, a tenth of them all at most, that are first by every one of these scores.

    >>> top_overlap([np.arange(40.0), np.append(np.arange(38.0), [0.0, 50.0])])
    0.75
    """
    count = max(1, min(most, len(scores[0]) // 10))
    shared = set(ranking(scores[0])[:count].tolist())
    return len(shared.intersection(*(ranking(score)[:count].tolist() for score in scores[1:]))) / count


def roc_auc(y: NDArray[Any], score: NDArray[Any]) -> float:
    """The chance that a random anomaly scores above a random normal node, a tie counting one half.

    >>> roc_auc(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 2.0, 3.0]))
    0.875
    """
    return _roc_auc(sweep(y, score))


def average_precision(y: NDArray[Any], score: NDArray[Any]) -> float:
    """Precision averaged over the anomalies, each at its own score: sum of (R_i - R_{i-1}) P_i."""
    return _average_precision(sweep(y, score))


def at_k(y: NDArray[Any], score: NDArray[Any], k: int) -> tuple[float, float]:
    """Precision and recall among the k highest scores; with k > n the missing places count as misses."""
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    return _at_k(_sorted(y, score)[0], k)


def evaluate(
    y: NDArray[Any], score: NDArray[Any], kind: NDArray[Any] | None = None, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, Any]:
    """Every number there is, JSON-able; with `kind`, each kind of anomaly apart, against the normal nodes alone.

    `precision_at` and `recall_at` map k, as text, to the number; k beyond n are left out. `by_kind` maps a kind's
    name to the same numbers; a kind that does not occur is left out.
    """
    _check(y, score)
    ranked = ranking(score)
    hits, values = np.asarray(y)[ranked] != 0, np.asarray(score)[ranked]
    result: dict[str, Any] = _numbers(hits, values, ks)
    if kind is not None:
        kind = np.asarray(kind)[ranked]
        normal = (kind == NORMAL) & ~hits
        result["by_kind"] = {}
        for code in (STRUCTURAL, ATTRIBUTE):
            chosen = normal | (kind == code)
            if normal.any() and np.count_nonzero(chosen) > np.count_nonzero(normal):
                result["by_kind"][KIND_NAMES[code]] = _numbers((kind == code)[chosen], values[chosen], ks)
    return result


def curves(y: NDArray[Any], score: NDArray[Any], max_points: int = 500) -> dict[str, dict[str, list[float]]]:
    """The ROC and the precision-recall curve, thinned to at most `max_points` points each, ends kept."""
    if max_points < 2:
        raise ValueError(f"max_points={max_points} must be at least 2")
    counts = sweep(y, score)
    recall = counts.true_positives / counts.num_positives
    precision = counts.true_positives / (counts.true_positives + counts.false_positives)
    fallout = counts.false_positives / counts.num_negatives
    roc = _thin(np.append(0.0, fallout), np.append(0.0, recall), max_points)
    pr = _thin(recall, precision, max_points)
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


def _numbers(hits: NDArray[np.bool_], values: NDArray[Any], ks: Sequence[int]) -> dict[str, Any]:
    """The numbers of a ranking: which nodes are anomalies, and their scores, in its order."""
    counts = _sweep(hits, values)
    at = {str(k): _at_k(hits, k) for k in ks if k <= len(hits)}
    return {
        "roc_auc": _roc_auc(counts),
        "average_precision": _average_precision(counts),
        "precision_at": {k: precision for k, (precision, _) in at.items()},
        "recall_at": {k: recall for k, (_, recall) in at.items()},
        "num_anomalies": counts.num_positives,
        "num_nodes": len(hits),
    }


def _at_k(hits: NDArray[np.bool_], k: int) -> tuple[float, float]:
    found = np.count_nonzero(hits[:k])
    return found / k, found / np.count_nonzero(hits)


def _roc_auc(counts: Sweep) -> float:
    new_negatives = np.diff(counts.false_positives, prepend=0)
    above = counts.true_positives + np.append(0, counts.true_positives[:-1])  # twice the mid-count of the tie
    return int(new_negatives @ above) / (2 * counts.num_positives * counts.num_negatives)


def _average_precision(counts: Sweep) -> float:
    precision = counts.true_positives / (counts.true_positives + counts.false_positives)
    new_positives = np.diff(counts.true_positives, prepend=0)
    return float((new_positives * precision).sum()) / counts.num_positives  # not @, which may sum in threads


def _thin(x: NDArray[np.float64], y: NDArray[np.float64], max_points: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points evenly spaced along the curve, first and last included: flat stretches need few, bends many."""
    if len(x) <= max_points:
        return x, y
    length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    chosen = np.searchsorted(length, np.linspace(0.0, length[-1], max_points - 1))
    chosen = np.unique(np.append(np.minimum(chosen, len(x) - 1), len(x) - 1))
    return x[chosen], y[chosen]
