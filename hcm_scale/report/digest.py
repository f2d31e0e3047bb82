"""Summaries of arrays too long to show: histograms, shares.

Each function takes plain arrays and returns a small JSON-able dict of at most a few hundred numbers, or None where
there is nothing to show, so that a report of ten million nodes is as small as one of a thousand. Passes run over slices
in threads, and what they count does not depend on the number of threads. Memory: one sort of the scores.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import map_slices, share_parts
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import degrees_of
from hcm_scale.score import metrics

_BINS = 48
_KS = (10, 100)  # precision in the first so many
_SCORES_AT_ONCE = 2  # each sorts all nodes
_QUANTILE_SAMPLE = 1 << 20
_BLOCK_EDGES = 1 << 22
_LABELS = ("normal", "anomalous")


def accuracy(y: NDArray[Any], scores: Mapping[str, NDArray[Any]], kind: NDArray[Any] | None) -> dict[str, Any] | None:
    """Numbers of every score; None where all labels are the same."""
    num_anomalies = int(np.count_nonzero(y))
    if not 0 < num_anomalies < len(y):
        return None
    ks = sorted({k for k in (*_KS, num_anomalies) if k <= max(num_anomalies, _KS[0])})

    def has_nan(values: NDArray[Any]) -> bool:
        return any(map_slices(len(values), lambda chunk: np.isnan(values[chunk]).any()))

    usable = [name for name, values in scores.items() if not has_nan(values)]
    measured = {}

    def measure(_: int, name: str) -> None:
        measured[name] = metrics.measure(metrics.Ranked.of(y, scores[name], kind), ks)

    share_parts(_SCORES_AT_ONCE, usable, measure)
    return {"scores": {name: measured[name] for name in usable}}


def distribution(values: NDArray[Any], y: NDArray[Any] | None = None, bins: int = _BINS) -> dict[str, Any] | None:
    """The share of nodes per bin, separately of anomalous and normal nodes where labels are known.

    The outermost two in a thousand of each group, on either side, fall into the outermost bin, so that one outlier does
    not flatten the rest; `folded` counts the nodes below and above the range. With more than a million nodes, the range
    is that of an evenly spaced sample.
    """
    members = _finite_values(values, y)
    sizes = {name: sum(map(len, group)) for name, group in members.items()}
    members = {name: group for name, group in members.items() if sizes[name]}
    if not members:
        return None
    samples = [_every(1 + sizes[name] // _QUANTILE_SAMPLE, group) for name, group in members.items()]
    ends = np.array([np.quantile(sample, [0.002, 0.998]) for sample in samples])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    counts = {name: _count(len(group), group.__getitem__, edges) for name, group in members.items()}
    return {
        "edges": edges.round(6).tolist(),
        "groups": {name: (in_bins[:bins] / sizes[name]).round(6).tolist() for name, in_bins in counts.items()},
        "sizes": {name: sizes[name] for name in members},
        "folded": np.sum([in_bins[bins:] for in_bins in counts.values()], axis=0).tolist(),
    }


def _finite_values(values: NDArray[Any], y: NDArray[Any] | None) -> dict[str, list[NDArray[np.float64]]]:
    """The finite values of each group, an array per slice."""

    def split(chunk: slice) -> list[NDArray[np.float64]]:
        own = np.asarray(values[chunk], np.float64)
        is_finite = np.isfinite(own)
        masks = [is_finite] if y is None else [is_finite & (y[chunk] == 0), is_finite & (y[chunk] != 0)]
        return [own[mask] for mask in masks]

    slices = map_slices(len(values), split)
    return {name: [own[i] for own in slices] for i, name in enumerate(["all nodes"] if y is None else _LABELS)}


def _every(step: int, pieces: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Every step-th value of the concatenated pieces.

    >>> _every(3, [np.arange(0.0, 5.0), np.arange(5.0, 8.0)]).tolist()
    [0.0, 3.0, 6.0]
    """
    firsts = np.cumsum([0, *map(len, pieces[:-1])])
    return np.concatenate([piece[-first % step :: step] for first, piece in zip(firsts, pieces, strict=True)])


def _count(
    num_pieces: int, piece: Callable[[int], NDArray[np.float64]], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
    """How many values of all pieces fall into each bin, those beyond the range into the outermost; then how many are
    beyond.
    """
    counts = np.zeros((num_pieces, len(edges) + 1), np.int64)
    share_parts(numba.get_num_threads(), range(num_pieces), lambda _, i: add_to_bins(piece(i), edges, counts[i]))
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


@kernel(allocates=False)
def add_to_bins(values, edges, counts):
    """Adds values, but NaN, to counts of even bins, those beyond to the outermost; then those below, and above.

    A value on an edge is in the upper bin, but on the last one in the last.
    """
    bins = len(edges) - 1
    low, high = edges[0], edges[bins]
    scale = bins / (high - low) if high > low else 0.0
    for value in values:
        if value < low:
            counts[0] += 1
            counts[bins] += 1
        elif value > high:
            counts[bins - 1] += 1
            counts[bins + 1] += 1
        elif value == value:
            i = min(int((value - low) * scale), bins - 1)
            while i > 0 and value < edges[i]:  # rounding
                i -= 1
            while i < bins - 1 and value >= edges[i + 1]:
                i += 1
            counts[i] += 1


def hop_distribution(hops: NDArray[np.float32], highest: float) -> dict[str, Any] | None:
    """The share of scored edges per bin of predicted hop, of which `highest` is the largest."""
    if not highest:
        return None
    edges = np.linspace(1.0, max(2.0, np.ceil(highest)), _BINS + 1)
    blocks = [slice(first, first + _BLOCK_EDGES) for first in range(0, len(hops), _BLOCK_EDGES)]
    counts = _count(len(blocks), lambda i: hops[blocks[i]].astype(np.float64), edges)[:_BINS]
    return {"edges": edges.round(6).tolist(), "shares": (counts / max(counts.sum(), 1)).round(6).tolist()}


def class_names(num_classes: int) -> list[str]:
    """The names of the hop classes.

    >>> class_names(4)
    ['1', '2', '3', '≥ 4']
    """
    return [str(hop) for hop in range(1, num_classes)] + [f"≥ {num_classes}"]


def purification(graph: Graph, purified: Graph | None) -> dict[str, Any] | None:
    """How many edges were dropped, and nodes left without any; None if nothing was purified."""
    if purified is None:
        return None

    def newly_isolated(chunk: slice) -> int:
        return int(np.count_nonzero((degrees_of(purified, chunk) == 0) & (degrees_of(graph, chunk) > 0)))

    return {
        "num_edges": graph.num_edges,
        "num_kept": purified.num_edges,
        "num_dropped": graph.num_edges - purified.num_edges,
        "num_isolated": sum(map_slices(graph.num_nodes, newly_isolated)),
    }


def max_degree(graph: Graph) -> int:
    return max(map_slices(graph.num_nodes, lambda chunk: int(degrees_of(graph, chunk).max())), default=0)
