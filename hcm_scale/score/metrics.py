"""Quality of a ranking, where the anomalies are known: ROC-AUC, average precision, precision and recall at k.

All of them follow from one sort, by all threads, after which only the places of the labelled nodes are read, which are
few. Nodes of equal score enter together, so AUC and average precision do not depend on how ties are ordered, and AUC is
exact (integer arithmetic: a tie counts one half). Precision at k is that of the list the user reads: by score, ties by
node number. Memory: 40 bytes per node while sorting, 8 after that.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import largest_positions, order, sort_with_order
from hcm_scale.base.threads import positions_where, run_in_slices, share_parts
from hcm_scale.graph.store import ATTRIBUTE, KIND_NAMES, NORMAL, STRUCTURAL

_KS = (10, 50, 100, 200, 300)
_FEW_PLACES = 1 << 14  # that a thread looks up together
_SATURATED = 0.02  # of a score: nearer ones are as good as equal

Counts = NDArray[np.int64]


def roc_auc(y: NDArray[Any], score: NDArray[Any]) -> float:
    """Probability that a random anomaly scores above a random normal node, a tie counting one half.

    >>> roc_auc(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 2.0, 3.0]))
    0.875
    """
    ranked = Ranked.of(y, score)
    return _roc_auc(_count(ranked, np.flatnonzero(ranked.is_anomaly), alone=False))


def evaluate(y: NDArray[Any], score: NDArray[Any], kind: NDArray[Any] | None = None) -> dict[str, Any]:
    """All numbers, JSON-able; with `kind`, also for each kind of anomaly against the normal nodes alone.

    `precision_at` and `recall_at` map k, as text, to the number; k beyond n are left out. `by_kind` maps a kind's
    name to the same numbers; a kind that does not occur is left out.
    """
    return measure(Ranked.of(y, score, kind))


def ranking(score: NDArray[Any]) -> Counts:
    """Nodes by score, highest first, ties by node number.

    >>> ranking(np.array([1.0, 3.0, 1.0, 2.0])).tolist()
    [1, 3, 0, 2]
    """
    return order(_negated(np.asarray(score)))


def top_overlap(scores: Iterable[NDArray[Any]]) -> float:
    """Share of the first hundred nodes, at most a tenth of all, that are among the first by every one of these scores.

    >>> top_overlap([np.arange(40.0), np.append(np.arange(38.0), [0.0, 50.0])])
    0.75
    """
    firsts = [largest_positions(score, _num_first(score)).tolist() for score in scores]
    return len(set(firsts[0]).intersection(*firsts[1:])) / max(1, len(firsts[0]))


def is_saturated(score: NDArray[Any]) -> bool:
    """Whether several times as many nodes have nearly the score of the first hundred: these come first by chance.

    >>> is_saturated(np.arange(40.0)), is_saturated(np.minimum(np.arange(40.0), 5.0))
    (False, True)
    """
    size = _num_first(score)
    best = largest_positions(score, min(10 * size, max(3 * size, len(score) // 20), len(score)))
    return len(best) > size and bool(score[best[size - 1]] - score[best[-1]] <= _SATURATED * abs(score[best[size - 1]]))


def _num_first(score: NDArray[Any]) -> int:
    return max(1, min(100, len(score) // 10))


class Ranked(NamedTuple):
    """Nodes by score, highest first, ties by node number.

    `keys`, (n,), rise from place to place, and are equal where scores are. `labelled` are the places, in order, of the
    nodes that are anomalies (`is_anomaly`) or have a kind other than normal (`kinds`, None where unknown).
    """

    keys: NDArray[Any]
    labelled: Counts
    is_anomaly: NDArray[np.bool_]
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
        is_labelled = np.empty(len(y), bool)

        def mark(chunk: slice) -> None:
            np.not_equal(y[chunk], 0, out=is_labelled[chunk])
            if kind is not None:
                is_labelled[chunk] |= kind[chunk] != NORMAL

        run_in_slices(len(y), mark)
        labelled = positions_where(len(y), lambda chunk: is_labelled[nodes[chunk]])
        labelled_nodes = _take(nodes, labelled)
        is_anomaly = _take(y, labelled_nodes) != 0
        num_anomalies = np.count_nonzero(is_anomaly)
        if not 0 < num_anomalies < len(y):
            raise ValueError(f"{num_anomalies} of {len(y)} nodes are anomalies; both kinds must occur")
        return Ranked(keys, labelled, is_anomaly, None if kind is None else _take(np.asarray(kind), labelled_nodes))


def _negated(score: NDArray[Any]) -> NDArray[np.float64]:
    out = np.empty(len(score))
    run_in_slices(len(out), lambda chunk: np.negative(np.asarray(score[chunk], np.float64), out=out[chunk]))
    return out


def _take(values: NDArray[Any], places: Counts) -> NDArray[Any]:
    out = np.empty(len(places), values.dtype)
    run_in_slices(len(out), lambda chunk: np.copyto(out[chunk], values[places[chunk]]), _FEW_PLACES)
    return out


def measure(ranked: Ranked, ks: Sequence[int] = _KS) -> dict[str, Any]:
    """`evaluate` of nodes already sorted."""
    groups = {"all": ranked.is_anomaly}
    if ranked.kinds is not None and len(ranked.labelled) < len(ranked.keys):
        groups |= {KIND_NAMES[code]: ranked.kinds == code for code in (STRUCTURAL, ATTRIBUTE)}
    found: dict[str, dict[str, Any]] = {}

    def add(_: int, name: str) -> None:
        if groups[name].any():
            found[name] = _numbers(_count(ranked, np.flatnonzero(groups[name]), alone=name != "all"), ks)

    share_parts(len(groups), groups, add)
    result = found.pop("all")
    if ranked.kinds is not None:
        result["by_kind"] = {name: found[name] for name in groups if name in found}
    return result


class _Count(NamedTuple):
    """At every distinct score of an anomaly, highest first: anomalies and nodes above it, and those at it or above.

    `places` are those of the anomalies, in order.
    """

    hits_above: Counts
    nodes_above: Counts
    hits: Counts
    nodes: Counts
    places: Counts
    num_nodes: int


def _count(ranked: Ranked, chosen: Counts, *, alone: bool) -> _Count:
    """Counts with the labelled nodes `chosen` as the anomalies; the others are normal, or left out where `alone`."""
    places, num_nodes = ranked.labelled[chosen], len(ranked.keys)
    keys, hits_above = np.unique(_take(ranked.keys, places), return_index=True)
    hits = np.append(hits_above[1:], len(places))
    above, upto = np.empty((2, len(keys)), np.int64)

    def search(chunk: slice) -> None:
        above[chunk] = np.searchsorted(ranked.keys, keys[chunk], "left")
        upto[chunk] = np.searchsorted(ranked.keys, keys[chunk], "right")

    run_in_slices(len(keys), search, _FEW_PLACES)
    if alone:
        above -= np.searchsorted(ranked.labelled, above) - hits_above
        upto -= np.searchsorted(ranked.labelled, upto) - hits
        places = places - (chosen - np.arange(len(chosen)))
        num_nodes -= len(ranked.labelled) - len(chosen)
    return _Count(hits_above, above, hits, upto, places, num_nodes)


def _numbers(count: _Count, ks: Sequence[int]) -> dict[str, Any]:
    num_hits = len(count.places)
    found = {k: int(np.searchsorted(count.places, k)) for k in ks if k <= count.num_nodes}
    gained = (count.hits - count.hits_above) * (count.hits / count.nodes)  # (R_i - R_{i-1}) P_i, times the anomalies
    return {
        "roc_auc": _roc_auc(count),
        "average_precision": float(gained.sum()) / num_hits,  # not @, which may sum in threads
        "precision_at": {str(k): hits / k for k, hits in found.items()},
        "recall_at": {str(k): hits / num_hits for k, hits in found.items()},
        "num_anomalies": num_hits,
        "num_nodes": count.num_nodes,
    }


def _roc_auc(count: _Count) -> float:
    num_hits, num_misses = len(count.places), count.num_nodes - len(count.places)
    misses_above, misses = count.nodes_above - count.hits_above, count.nodes - count.hits
    below = 2 * num_misses - misses_above - misses  # twice the misses below, those at the same score once
    return int((count.hits - count.hits_above) @ below) / (2 * num_hits * num_misses)
