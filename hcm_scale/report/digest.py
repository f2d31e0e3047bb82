"""What the report shows of arrays too long to show: histograms, thinned curves, shares. All outputs are JSON-able.

Each function takes plain arrays and returns a small dict of at most a few hundred numbers, or None where there is
nothing to show, so that a report of ten million nodes is as small as one of a thousand. Memory: one sort of the scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices, share
from hcm_scale.graph.store import KIND_NAMES, Graph
from hcm_scale.report.explain import finite
from hcm_scale.score import metrics

_BINS = 48
_POINTS = 160  # of a curve
_KS = (10, 100)
_AT_ONCE = 3  # scores that are measured at the same time
_NUMBERS = ("loss", "pairs_per_second", "step_size")
_LOOKED_AT = 1 << 20
_EDGES = 1 << 22  # a pass over the edges looks at so many together


def accuracy(y: NDArray[Any], scores: Mapping[str, NDArray[Any]], kind: NDArray[Any] | None) -> dict[str, Any] | None:
    """Numbers and curves of every score; None where the labels do not tell two groups apart."""
    num_anomalies = int(np.count_nonzero(y))
    if not 0 < num_anomalies < len(y):
        return None
    ks = sorted({k for k in (*_KS, num_anomalies) if k <= max(num_anomalies, _KS[0])})
    usable = {name: values for name, values in scores.items() if not np.isnan(values).any()}
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}

    def measure(_: int, name: str) -> None:
        ranked = metrics.Ranked.of(y, usable[name], kind)
        numbers[name], curves[name] = metrics.measure(ranked, ks), metrics.curves(ranked, _POINTS)

    share(_AT_ONCE, usable, measure)
    return {"scores": {name: numbers[name] for name in usable}, "curves": {name: curves[name] for name in usable}}


def distribution(values: NDArray[Any], y: NDArray[Any] | None = None, bins: int = _BINS) -> dict[str, Any] | None:
    """The share of nodes per bin, of anomalous and normal nodes apart where labels are known.

    The outermost two in a thousand of each group, on either side, fall into the outermost bin, so that one outlier does
    not flatten the rest; `folded` is how many nodes there are below and above the range. Of more than a million nodes
    every so many-th decides where that range ends.
    """
    known = np.isfinite(values)
    groups = {"all nodes": known} if y is None else {"normal": known & (y == 0), "anomalous": known & (y != 0)}
    members = {name: np.asarray(values[mask], np.float64) for name, mask in groups.items() if mask.any()}
    if not members:
        return None
    ends = np.array([np.quantile(group[:: 1 + len(group) // _LOOKED_AT], [0.002, 0.998]) for group in members.values()])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    shares = {name: (_count(group, edges) / len(group)).round(6).tolist() for name, group in members.items()}
    below, above = edges[0], edges[-1]
    folded = [
        sum(int(np.count_nonzero(group < below)) for group in members.values()),
        sum(int(np.count_nonzero(group > above)) for group in members.values()),
    ]
    sizes = {name: len(group) for name, group in members.items()}
    return {"edges": edges.round(6).tolist(), "groups": shares, "sizes": sizes, "folded": folded}


def _count(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values fall into each bin, the outermost ones reaching as far as they do."""
    counts: list[NDArray[np.int64]] = []
    in_slices(
        len(values), lambda part: counts.append(np.histogram(np.clip(values[part], edges[0], edges[-1]), edges)[0])
    )
    return np.sum(counts, axis=0)


def hop_distribution(hops: NDArray[np.float32], bins: int = _BINS) -> dict[str, Any] | None:
    """The share of scored edges per bin of predicted hop, in one pass of bounded memory after one for the maximum."""
    blocks = [slice(first, first + _EDGES) for first in range(0, len(hops), _EDGES)]
    highest = max(
        (float(np.max(hops[block], initial=0.0, where=~np.isnan(hops[block]))) for block in blocks), default=0
    )
    if not highest:
        return None
    edges = np.linspace(1.0, max(2.0, np.ceil(highest)), bins + 1)
    found: list[NDArray[np.int64]] = []
    share(numba.get_num_threads(), blocks, lambda _, block: found.append(np.histogram(hops[block], edges)[0]))
    counts = np.sum(found, axis=0)
    return {"edges": edges.round(6).tolist(), "shares": (counts / max(counts.sum(), 1)).round(6).tolist()}


def class_names(num_classes: int) -> list[str]:
    """The hop classes as the reader knows them.

    >>> class_names(4)
    ['1', '2', '3', '≥ 4']
    """
    return [str(hop) for hop in range(1, num_classes)] + [f"≥ {num_classes}"]


def purification(graph: Graph, purified: Graph | None) -> dict[str, Any] | None:
    """How many edges were dropped, and from whom."""
    if purified is None:
        return None
    lost = graph.degrees - purified.degrees
    kinds = graph.kind if graph.kind is not None else graph.y
    return {
        "num_edges": graph.num_edges,
        "num_kept": purified.num_edges,
        "num_dropped": graph.num_edges - purified.num_edges,
        "num_isolated": int(np.sum((purified.degrees == 0) & (graph.degrees > 0))),
        "dropped_share": _dropped_shares(lost, graph.degrees, kinds, graph.kind is not None),
    }


def _dropped_shares(
    lost: NDArray[Any], degrees: NDArray[Any], groups: NDArray[Any] | None, are_kinds: bool
) -> dict[str, float]:
    """The share of dropped edges among all edge ends of each group of nodes."""
    if groups is None:
        return {}
    names = KIND_NAMES if are_kinds else ("normal", "anomalous")
    shares = {}
    for value, name in enumerate(names):
        mask = np.asarray(groups) == value
        if degrees[mask].sum():
            shares[name] = round(float(lost[mask].sum() / degrees[mask].sum()), 6)
    return shares


def training(records: Sequence[Mapping[str, Any]], points: int = _POINTS) -> dict[str, Any]:
    """Training curves over the steps, thinned to means over equal runs of records; what nobody logged is left out.

    A number per record becomes {step, mean, low, high}; `accuracy` a list of those, one a class; `auc` a dict of those,
    one for every logged name that ends in auc.
    """
    records = [record for record in records if finite(record.get("step")) is not None]

    def curve(values: Iterable[Any]) -> dict[str, list[float]] | None:
        return _thin([(record["step"], value) for record, value in zip(records, values, strict=True)], points)

    curves: dict[str, Any] = {key: curve(record.get(key) for record in records) for key in _NUMBERS}
    num_classes = max((len(_accuracies(record)) for record in records), default=0)
    padded = [(*_accuracies(record), *[None] * num_classes)[:num_classes] for record in records]
    per_class = [curve(column) for column in zip(*padded, strict=True)]
    curves["accuracy"] = per_class if all(per_class) else None
    names = sorted({name for record in records for name in record if name.endswith("auc")})
    curves["auc"] = {name: found for name in names if (found := curve(record.get(name) for record in records))}
    return {key: value for key, value in curves.items() if value}


def _accuracies(record: Mapping[str, Any]) -> Sequence[Any]:
    values = record.get("accuracy")
    return values if isinstance(values, list | tuple) else ()


def _thin(pairs: Sequence[tuple[Any, Any]], points: int) -> dict[str, list[float]] | None:
    """Means, lows and highs over runs of consecutive numbers; None where there are fewer than two."""
    numbers = [(float(s), float(v)) for s, v in pairs if isinstance(v, int | float) and finite(v) is not None]
    if len(numbers) < 2:
        return None
    length = -(-len(numbers) // points)
    runs = [np.array(numbers[first : first + length]) for first in range(0, len(numbers), length)]
    columns = {
        "step": [run[:, 0].mean() for run in runs],
        "mean": [run[:, 1].mean() for run in runs],
        "low": [run[:, 1].min() for run in runs],
        "high": [run[:, 1].max() for run in runs],
    }
    return {name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()}
