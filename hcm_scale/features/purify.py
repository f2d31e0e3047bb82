"""Drops the least similar edges of a graph, and puts weights of edges on a common scale.

`edge_similarity` gives every edge a number, `purify` keeps the upper part:

| similarity | of two attribute rows a and b                         | by definition           |
|------------|-------------------------------------------------------|-------------------------|
| jaccard    | columns non-zero in both / columns non-zero in either | 0 where neither has any |
| cosine     | a . b / (norm of a * norm of b)                       | 0 where a or b is zero  |
| euclidean  | minus the norm of a - b, so that larger is nearer     |                         |

Edges are numbered by their (u < v) CSR order; on a directed graph arcs are the edges. Exactly floor(ratio * m) edges
go; of equally similar ones those with the lowest numbers. Sums are in float64, results f32; sparse attributes are never
made dense. Work is cut into tasks of equal edge counts at row borders and each value is made by one thread in a fixed
order, so results do not depend on the number of threads. Memory: 9 bytes an edge beside the result, 14 more where edges
have weights, and 24 a node.

Weights have units of their own and heavy tails: the largest amount may be a million times the median, and would leave
nothing of a node's other neighbours. The model takes strength = log2(1 + weight / median) instead, 1 for a typical edge
and 20 for that largest one. The median is that of the graph trained on, also for graphs scored later, so that an amount
counts the same tomorrow. A heavy edge is also evidence that it belongs: before edges are dropped, 1/4 - 2^-strength / 2
standard deviations are added to each similarity. That is 0 for a typical edge, up to 1/4 for a heavy one, down to -1/4
for a light one: attributes decide, and weights among edges that are about as similar.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import fetch_add, prefetch
from hcm_scale.base.jit import kernel
from hcm_scale.base.names import SIMILARITIES
from hcm_scale.base.npy import create_npy
from hcm_scale.base.order import sort_rows, value_at
from hcm_scale.base.threads import positions_where, run_in_slices, run_in_threads
from hcm_scale.graph import lookup
from hcm_scale.graph.store import Attributes, Graph, SparseRows

_NUM_TASKS = 256
_AHEAD = 8  # neighbours between prefetching a row of attributes and reading it
_BATCH = 64  # edges whose places are prefetched before the first of them is written to
_WEIGHTS_PER_BLOCK = 1 << 20
_LEAST_STRENGTH = np.finfo(np.float32).tiny


class EdgeSpans(NamedTuple):
    """Which entries of each row are edges (undirected: those with column > row), and their numbers."""

    starts: NDArray[np.int64]  # (n,), the first entry of a row that is an edge
    ends: NDArray[np.int64]  # (n,), one past its last
    offsets: NDArray[np.int64]  # (n + 1,), the number of the first


class SparseAttributes(NamedTuple):
    """Attributes in CSR, with the square of every row's norm."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    num_columns: int
    squares: NDArray[np.float64]


def edge_similarity(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: Attributes,
    similarity: str,
    *,
    directed: bool = False,
    share: tuple[int, int] = (0, 1),
) -> NDArray[np.float32]:
    """The similarity of every edge's two ends, f32 (num_edges,), in edge order.

    With `share` = (i, k) only of the i-th of k consecutive runs of edges.

    >>> x = np.array([[0, 0], [3, 4]], np.float32)
    >>> edge_similarity(np.array([0, 1, 2]), np.array([1, 0], np.int32), x, "euclidean").tolist()
    [-5.0]
    """
    assert x.shape[0] == len(indptr) - 1
    spans = _edge_spans(indptr, indices, directed)
    first, last = (_NUM_TASKS * at // share[1] for at in (share[0], share[0] + 1))
    out = np.empty(spans.offsets[-1], np.float32)  # pages that are not written to take no memory
    if isinstance(x, SparseRows):
        data = x.data if similarity != "jaccard" else (x.data != 0).astype(np.float32)
        squares = np.empty(x.shape[0], np.float64)
        run_in_threads(len(squares), sparse_squares, x.indptr, data, squares)
        attributes = SparseAttributes(x.indptr, x.indices, data, x.num_columns, squares)
        fill: Any = sparse_similarity
        arguments: Any = spans, indices, attributes, SIMILARITIES.index(similarity), out
    else:
        fill, arguments = _DENSE_KERNELS[similarity], (*spans, indices, np.ascontiguousarray(x, np.float32), out)
    run_in_threads(last - first, lambda part: fill((part[0] + first, part[1] + first), *arguments))
    borders = np.searchsorted(spans.offsets, [len(out) * task // _NUM_TASKS for task in (first, last)])
    return out[slice(*spans.offsets[borders])]


def _edge_spans(indptr: NDArray[np.int64], indices: NDArray[Any], directed: bool) -> EdgeSpans:
    if directed:
        return EdgeSpans(indptr[:-1], indptr[1:], indptr)
    starts = np.empty(len(indptr) - 1, np.int64)
    run_in_threads(len(starts), lookup.first_above, indptr, indices, starts)
    offsets = np.zeros(len(indptr), np.int64)
    run_in_slices(len(starts), lambda part: np.subtract(indptr[1:][part], starts[part], out=offsets[1:][part]))
    return EdgeSpans(starts, indptr[1:], np.cumsum(offsets, out=offsets))


@kernel
def _task_rows(task, offsets):
    """The rows (first, last) of a task: borders where the running edge count passes the task's share."""
    num_edges = offsets[-1]
    first = np.searchsorted(offsets, num_edges * task // _NUM_TASKS)
    last = np.searchsorted(offsets, num_edges * (task + 1) // _NUM_TASKS)
    return first, min(last, len(offsets) - 1)


@kernel(inline="always")
def _prefetch_row(x, indices, e):
    """Prefetches the attributes of a neighbour to come."""
    width = x.shape[1]
    place = np.int64(indices[min(e + _AHEAD, len(indices) - 1)]) * width
    prefetch(x, place)
    prefetch(x, place + width - 1)


@kernel(allocates=False, fastmath={"reassoc", "contract"})
def dense_euclidean(part, starts, ends, offsets, indices, x, out):
    """out[e] = -|x[u] - x[v]|."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _prefetch_row(x, indices, e)
                other = x[indices[e]]
                total = np.float64(0.0)
                for k in range(x.shape[1]):
                    gap = np.float64(own[k]) - np.float64(other[k])
                    total += gap * gap
                out[e + shift] = -np.sqrt(total)


@kernel(allocates=False, fastmath={"reassoc", "contract"})
def dense_cosine(part, starts, ends, offsets, indices, x, out):
    """out[e] = x[u] . x[v] / (|x[u]| |x[v]|), or 0 where a norm is 0."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            square = np.float64(0.0)
            for k in range(x.shape[1]):
                square += np.float64(own[k]) * np.float64(own[k])
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _prefetch_row(x, indices, e)
                other = x[indices[e]]
                product, other_square = np.float64(0.0), np.float64(0.0)
                for k in range(x.shape[1]):
                    product += np.float64(own[k]) * np.float64(other[k])
                    other_square += np.float64(other[k]) * np.float64(other[k])
                scale = np.sqrt(square) * np.sqrt(other_square)
                out[e + shift] = product / scale if scale > 0.0 else 0.0


@kernel(allocates=False)
def dense_jaccard(part, starts, ends, offsets, indices, x, out):
    """out[e] = shared non-zero columns of u and v, over the columns non-zero in either; 0 where there are none."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _prefetch_row(x, indices, e)
                other = x[indices[e]]
                both, either = 0, 0
                for k in range(x.shape[1]):
                    a, b = own[k] != 0, other[k] != 0
                    both += a & b
                    either += a | b
                out[e + shift] = both / either if either > 0 else 0.0


_DENSE_KERNELS = {"jaccard": dense_jaccard, "cosine": dense_cosine, "euclidean": dense_euclidean}


@kernel
def sparse_squares(part, x_indptr, x_data, out):
    """out[i] = |x[i]|^2."""
    for i in range(part[0], part[1]):
        total = 0.0
        for k in range(x_indptr[i], x_indptr[i + 1]):
            total += np.float64(x_data[k]) * np.float64(x_data[k])
        out[i] = total


@kernel
def sparse_similarity(part, spans, indices, x, measure, out):
    """out[e] = the similarity of u and v. Row u is spread into a dense strip once; a neighbour costs its entries."""
    starts, ends, offsets = spans
    x_indptr, x_indices, x_data, num_columns, squares = x
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        strip = np.zeros(num_columns if last > first else 0, np.float64)
        for u in range(first, last):
            if starts[u] == ends[u]:
                continue
            for k in range(x_indptr[u], x_indptr[u + 1]):
                strip[x_indices[k]] = x_data[k]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                v = indices[e]
                product = 0.0
                for k in range(x_indptr[v], x_indptr[v + 1]):
                    product += strip[x_indices[k]] * np.float64(x_data[k])
                out[e + shift] = _from_product(product, squares[u], squares[v], measure)
            for k in range(x_indptr[u], x_indptr[u + 1]):
                strip[x_indices[k]] = 0.0


@kernel
def _from_product(product, square_u, square_v, measure):
    """Jaccard (0; of 0/1 rows), cosine (1) or minus the distance (2), from a . b, |a|^2 and |b|^2."""
    if measure == 0:
        either = square_u + square_v - product
        return product / either if either > 0.0 else 0.0
    if measure == 1:
        scale = np.sqrt(square_u) * np.sqrt(square_v)
        return product / scale if scale > 0.0 else 0.0
    return -np.sqrt(max(0.0, square_u + square_v - 2.0 * product))


def purify(
    graph: Graph,
    x: Attributes,
    *,
    similarity: str,
    ratio: float,
    like: Graph | None = None,
    measure: Callable[..., NDArray[np.float32]] = edge_similarity,
) -> Graph:
    """The graph's structure without the floor(ratio * m) least similar edges: same nodes, no attributes, no labels.

    Weights of edges, which must be strengths, are kept. With `like`, a purified graph, those edges go that are less
    similar than the ones that it kept, however many. `measure` finds the similarities, as `edge_similarity` does.

    >>> triangle = Graph(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], np.int32))
    >>> purify(triangle, np.array([[0], [1], [5]], np.float32), similarity="euclidean", ratio=0.34).indices.tolist()
    [1, 0, 2, 1]
    """
    if like is not None:
        return _purify_like(graph, x, like.info["purified"], measure)
    num_dropped = num_least_similar(graph, ratio)
    keep, threshold, share, spread = None, None, 0.0, {}
    if num_dropped:
        values = measure(graph.indptr, graph.indices, x, similarity, directed=graph.directed)
        if graph.weights is not None:
            spread = {"spread": float(np.std(values, dtype=np.float64))}
            values += _weight_bonus(graph, **spread)
        keep, threshold, share = _keep_most_similar(values, num_dropped)
    info = {
        "similarity": similarity,
        "ratio": float(ratio),
        "num_edges_before": graph.num_edges,
        "num_edges_dropped": num_dropped,
        "threshold": threshold,
        "dropped_at_threshold": share,  # of the edges that are just as similar
        **spread,
    }
    return _purified(graph, keep, info)


def num_least_similar(graph: Graph, ratio: float) -> int:
    """How many edges a share is, as a decimal: .29 of 100 is 29, and floor(0.29 * 100) in floating point is 28."""
    return math.floor(Fraction(str(float(ratio))) * graph.num_edges)


def _purify_like(
    graph: Graph, x: Attributes, before: dict[str, Any], measure: Callable[..., NDArray[np.float32]]
) -> Graph:
    """The graph without the edges below the threshold of an earlier purification, and its share of those at it."""
    info = before | {"num_edges_before": graph.num_edges, "num_edges_dropped": 0}
    if before["threshold"] is None:
        return _purified(graph, None, info)
    values = measure(graph.indptr, graph.indices, x, before["similarity"], directed=graph.directed)
    if graph.weights is not None:
        values += _weight_bonus(graph, before["spread"])
    keep, at = values >= before["threshold"], np.flatnonzero(values == before["threshold"])
    keep[at[: round(before["dropped_at_threshold"] * len(at))]] = False
    info["num_edges_dropped"] = len(keep) - int(np.count_nonzero(keep))
    return _purified(graph, keep, info)


def _weight_bonus(graph: Graph, spread: float) -> NDArray[np.float32]:
    """What is added to the similarity of every edge; `spread` is the standard deviation of similarities."""
    assert graph.weights is not None
    strength = graph.weights[lookup.first_entries(graph.indptr, graph.indices, graph.directed)]
    return np.asarray(spread * (0.25 - np.exp2(-strength) / 2), np.float32)


def _keep_most_similar(values: NDArray[np.float32], num_dropped: int) -> tuple[NDArray[np.bool_], float, float]:
    """Mask of all but the `num_dropped` >= 1 smallest values, the largest that goes, the share of its equals that go.

    Of equal values the first go first.

    >>> _keep_most_similar(np.array([5, 1, 3, 1, 1, 1], np.float32), 2)
    (array([ True, False,  True, False,  True,  True]), 1.0, 0.5)
    """
    threshold = np.float32(value_at(values, len(values) - num_dropped + 1))
    keep = np.empty(len(values), bool)
    run_in_slices(len(values), lambda part: np.greater_equal(values[part], threshold, out=keep[part]))
    equal = positions_where(len(values), lambda part: values[part] == threshold)
    num_tied = num_dropped - (len(keep) - int(np.count_nonzero(keep)))
    keep[equal[:num_tied]] = False
    return keep, float(threshold), num_tied / len(equal)


def _purified(graph: Graph, keep: NDArray[np.bool_] | None, info: dict[str, Any]) -> Graph:
    """The structure of the kept edges, or of all."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    if keep is not None:
        indptr, indices = _keep_edges(graph, keep)
        if weights is not None:
            kept = weights[lookup.first_entries(graph.indptr, graph.indices, graph.directed)][keep]
            weights = lookup.spread_to_entries(indptr, indices, kept, graph.directed)
    return Graph(indptr, indices, weights=weights, directed=graph.directed, info={"purified": info})


def _keep_edges(graph: Graph, keep: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The CSR of the kept edges."""
    if graph.directed:
        return np.concatenate([[0], np.cumsum(keep)])[graph.indptr], graph.indices[keep]
    of_edges = graph.indices, _edge_spans(graph.indptr, graph.indices, directed=False), keep
    indptr = np.zeros_like(graph.indptr)
    run_in_threads(graph.num_nodes, count_kept, *of_edges, indptr[1:])
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], graph.indices.dtype)
    run_in_threads(graph.num_nodes, list_kept, *of_edges, indptr[:-1].copy(), indices)
    run_in_threads(graph.num_nodes, sort_rows, indptr, indices)
    return indptr, indices


@kernel
def count_kept(part, indices, spans, keep, counts):
    """Adds to counts[v] the kept edges of v, of an undirected graph."""
    starts, ends, offsets = spans
    for u in range(part[0], part[1]):
        count = 0
        for e in range(starts[u], ends[u]):
            prefetch(counts, indices[min(e + 2 * _AHEAD, len(indices) - 1)])
            if keep[offsets[u] + e - starts[u]]:
                count += 1
                fetch_add(counts, indices[e], 1)
        fetch_add(counts, u, count)


@kernel
def list_kept(part, indices, spans, keep, cursor, out):
    """Writes the kept neighbours of u to out[cursor[u]], out[cursor[u] + 1], ... in any order, and moves cursor[u] on.

    An edge is met at its smaller end. Places at the larger one are taken, and their memory asked for, some edges before
    they are written to.
    """
    starts, ends, offsets = spans
    places, smaller = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
    size = 0
    for u in range(part[0], part[1]):
        shift, num_kept = offsets[u] - starts[u], 0
        for e in range(starts[u], ends[u]):
            prefetch(cursor, indices[min(e + 2 * _AHEAD, len(indices) - 1)])
            if keep[e + shift]:
                places[size], smaller[size] = fetch_add(cursor, indices[e], 1), u
                prefetch(out, places[size])
                num_kept += 1
                size += 1
                if size == _BATCH:
                    size = _write(places, smaller, size, out)
        place = fetch_add(cursor, u, num_kept)
        for e in range(starts[u], ends[u]):
            if keep[e + shift]:
                out[place] = indices[e]
                place += 1
    _write(places, smaller, size, out)


@kernel(allocates=False)
def _write(places, values, size, out):
    for i in range(size):
        out[places[i]] = values[i]
    return 0


def median_weight(weights: NDArray[np.float32]) -> float:
    """The median of the entries, which is that of the edges; 1 where there are none."""
    return float(np.median(weights)) if len(weights) else 1.0


def strengths(weights: NDArray[np.float32], median: float) -> NDArray[np.float32]:
    """The strength of each weight; above 0 and finite whatever the weights are.

    >>> strengths(np.array([5.0, 15.0, 5115.0], np.float32), median=5.0).tolist()
    [1.0, 2.0, 10.0]
    """
    return np.maximum(np.log1p(weights / np.float64(median)) / np.log(2.0), _LEAST_STRENGTH).astype(np.float32)


def write_strengths(path: Path, weights: NDArray[np.float32], median: float) -> NDArray[np.float32]:
    """The strengths, written to a .npy file block by block and mapped."""
    out = create_npy(path, np.float32, weights.shape)
    for first in range(0, len(weights), _WEIGHTS_PER_BLOCK):
        out[first : first + _WEIGHTS_PER_BLOCK] = strengths(weights[first : first + _WEIGHTS_PER_BLOCK], median)
    out.flush()
    return out
