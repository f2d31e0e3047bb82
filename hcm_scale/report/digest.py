"""What the report shows of arrays too long to show: histograms, thinned curves, shares. All outputs are JSON-able.

Each function takes plain arrays and returns a small dict of at most a few hundred numbers, or None where there is
nothing to show, so that a report of ten million nodes is as small as one of a thousand. Memory: one sort of the scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices, run_in_slices, share_parts
from hcm_scale.graph.store import KIND_NAMES, Graph
from hcm_scale.report.evidence import degrees_of, highest_hop
from hcm_scale.report.explain import finite
from hcm_scale.score import metrics

_BINS = 48
_POINTS = 160  # of a curve
_KS = (10, 100)
_AT_ONCE = 2  # scores that are measured at the same time
_NUMBERS = ("loss", "pairs_per_second", "step_size")
_LOOKED_AT = 1 << 20
_EDGES = 1 << 22  # a pass over the edges looks at so many together


def accuracy(y: NDArray[Any], scores: Mapping[str, NDArray[Any]], kind: NDArray[Any] | None) -> dict[str, Any] | None:
    """Numbers and curves of every score; None where the labels do not tell two groups apart."""
    num_anomalies = int(np.count_nonzero(y))
    if not 0 < num_anomalies < len(y):
        return None
    ks = sorted({k for k in (*_KS, num_anomalies) if k <= max(num_anomalies, _KS[0])})
    usable = {name: values for name, values in scores.items() if not _any_nan(values)}
    numbers: dict[str, Any] = {}
    curves: dict[str, Any] = {}

    def measure(_: int, name: str) -> None:
        ranked = metrics.Ranked.of(y, usable[name], kind)
        numbers[name], curves[name] = metrics.measure(ranked, ks), metrics.curves(ranked, _POINTS)

    share_parts(_AT_ONCE, usable, measure)
    return {"scores": {name: numbers[name] for name in usable}, "curves": {name: curves[name] for name in usable}}


def _any_nan(values: NDArray[Any]) -> bool:
    found = []
    run_in_slices(len(values), lambda part: found.append(np.isnan(values[part]).any()))
    return any(found)


def distribution(values: NDArray[Any], y: NDArray[Any] | None = None, bins: int = _BINS) -> dict[str, Any] | None:
    """The share of nodes per bin, of anomalous and normal nodes apart where labels are known.

    The outermost two in a thousand of each group, on either side, fall into the outermost bin, so that one outlier does
    not flatten the rest; `folded` is how many nodes there are below and above the range. Of more than a million nodes
    every so many-th decides where that range ends.
    """
    members = _members(values, y)
    sizes = {name: sum(map(len, group)) for name, group in members.items()}
    members = {name: group for name, group in members.items() if sizes[name]}
    if not members:
        return None
    ends = np.array(
        [np.quantile(_every(1 + sizes[name] // _LOOKED_AT, group), [0.002, 0.998]) for name, group in members.items()]
    )
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    counts = {name: _count(group, edges) for name, group in members.items()}
    return {
        "edges": edges.round(6).tolist(),
        "groups": {name: (found[:bins] / sizes[name]).round(6).tolist() for name, found in counts.items()},
        "sizes": {name: sizes[name] for name in members},
        "folded": np.sum([found[bins:] for found in counts.values()], axis=0).tolist(),
    }


def _members(values: NDArray[Any], y: NDArray[Any] | None) -> dict[str, list[NDArray[np.float64]]]:
    """The finite values of each group, in pieces."""

    def split(part: slice) -> list[NDArray[np.float64]]:
        own = np.asarray(values[part], np.float64)
        known = np.isfinite(own)
        masks = [known] if y is None else [known & (y[part] == 0), known & (y[part] != 0)]
        return [own[mask] for mask in masks]

    names, found = ["all nodes"] if y is None else ["normal", "anomalous"], map_slices(len(values), split)
    return {name: [pieces[i] for pieces in found] for i, name in enumerate(names)}


def _every(step: int, pieces: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Every so many-th value of all pieces together.

    >>> _every(3, [np.arange(0.0, 5.0), np.arange(5.0, 8.0)]).tolist()
    [0.0, 3.0, 6.0]
    """
    firsts = np.cumsum([0, *map(len, pieces[:-1])])
    return np.concatenate([piece[-first % step :: step] for first, piece in zip(firsts, pieces, strict=True)])


def _count(pieces: Sequence[NDArray[np.float64]], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values fall into each bin, the outermost ones reaching as far as they do; then how many into none."""
    counts: list[NDArray[np.int64]] = []
    low, high = edges[0], edges[-1]

    def count(_: int, piece: NDArray[np.float64]) -> None:
        beyond = [np.count_nonzero(piece < low), np.count_nonzero(piece > high)]
        counts.append(np.append(np.histogram(np.clip(piece, low, high), edges)[0], beyond))

    share_parts(numba.get_num_threads(), pieces, count)
    return np.sum(counts, axis=0)


def hop_distribution(hops: NDArray[np.float32], bins: int = _BINS) -> dict[str, Any] | None:
    """The share of scored edges per bin of predicted hop, in one pass of bounded memory after one for the maximum."""
    blocks = [slice(first, first + _EDGES) for first in range(0, len(hops), _EDGES)]
    highest = highest_hop(hops)
    if not highest:
        return None
    edges = np.linspace(1.0, max(2.0, np.ceil(highest)), bins + 1)
    found: list[NDArray[np.int64]] = []
    share_parts(numba.get_num_threads(), blocks, lambda _, block: found.append(np.histogram(hops[block], edges)[0]))
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
    groups = graph.kind if graph.kind is not None else graph.y
    names = KIND_NAMES if graph.kind is not None else ("normal", "anomalous")
    isolated: list[int] = []
    sums = []  # of edge ends, and of those dropped, by group

    def look(part: slice) -> None:
        had, has = degrees_of(graph, part), degrees_of(purified, part)
        isolated.append(int(np.count_nonzero((has == 0) & (had > 0))))
        if groups is not None:
            sums.append([np.bincount(groups[part], ends, 256)[: len(names)] for ends in (had, had - has)])

    run_in_slices(graph.num_nodes, look)
    ends, lost = np.sum(sums, axis=0) if sums else np.zeros((2, len(names)))
    return {
        "num_edges": graph.num_edges,
        "num_kept": purified.num_edges,
        "num_dropped": graph.num_edges - purified.num_edges,
        "num_isolated": sum(isolated),
        "dropped_share": {name: round(float(lost[i] / ends[i]), 6) for i, name in enumerate(names) if ends[i]},
    }


def max_degree(graph: Graph) -> int:
    """The degree of the largest hub."""
    found = [0]
    run_in_slices(graph.num_nodes, lambda part: found.append(int(degrees_of(graph, part).max())))
    return max(found)


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
