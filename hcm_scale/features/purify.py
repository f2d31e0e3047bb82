"""How alike neighbours are: drops the least similar edges, weighs the others, and says what features tell of edges.

`edge_similarity` gives every edge a number, `find_dropped` marks the lower part, a bit an entry of the CSR, and
`without_dropped` makes the graph of the others; `purify` is both:

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

`neighbor_signal` says how much the features of nodes tell about who is joined to whom, from a few thousand edges: the
chance that two neighbours have features more alike, by their cosine, than the ends of two different edges, which are as
often nodes of many edges. It is 1/2 where attributes are noise: 0.49 to 0.50 on graphs whose attributes were replaced
by noise, 0.69 on the embedded data set, 0.73 on Cora, 0.90 on Reddit, 0.53 on DBLP with 20 components. The loss of the
training says less: with a few hubs or a thin graph, distances show in the mean of noise over neighbours (DBLP: 0.91
with its attributes, 0.93 with noise, of 1.39). Edges are evenly spaced, so that the same graph always has the same
signal. `attribute_trust` makes of it a number for the weights of evidence.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale import plugins
from hcm_scale.base.jit import fetch_add, kernel, prefetch
from hcm_scale.base.names import SIMILARITIES
from hcm_scale.base.npy import create_npy, read_only
from hcm_scale.base.order import first_not_below, value_at
from hcm_scale.base.threads import positions_where, run_in_slices, run_in_threads
from hcm_scale.graph import lookup
from hcm_scale.graph.store import Attributes, Graph, SparseRows

_NUM_TASKS = 256
_AHEAD = 8  # neighbours between prefetching a row of attributes and reading it
_WEIGHTS_PER_BLOCK = 1 << 20
_OWN_EDGES = 1 << 14  # that a similarity of a plug-in measures at a time
_LEAST_STRENGTH = np.finfo(np.float32).tiny
_MIN_EDGES, _NUM_EDGES = 512, 1 << 13  # with fewer edges the signal is too uncertain
_TRUST_EDGES, _TRUST_VALUES = 1 << 16, 1 << 21  # edges, and values of their ends, of which there may be twice as many
_NOISE, _SIGNAL = 0.505, 0.515  # signals up to which attributes are no witnesses, and from which on they are

Ends = tuple[NDArray[Any], NDArray[Any]]


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
    indptr: NDArray[np.int64], indices: NDArray[Any], x: Attributes, similarity: str, *, directed: bool = False
) -> NDArray[np.float32]:
    """The similarity of every edge's two ends, f32 (num_edges,), in edge order.

    >>> x = np.array([[0, 0], [3, 4]], np.float32)
    >>> edge_similarity(np.array([0, 1, 2]), np.array([1, 0], np.int32), x, "euclidean").tolist()
    [-5.0]
    """
    assert x.shape[0] == len(indptr) - 1
    spans = _edge_spans(indptr, indices, directed)
    if similarity not in SIMILARITIES:
        return _own_similarity(similarity, spans, indices, x)
    out = np.empty(spans.offsets[-1], np.float32)
    if isinstance(x, SparseRows):
        data = x.data if similarity != "jaccard" else (x.data != 0).astype(np.float32)
        squares = np.empty(x.shape[0], np.float64)
        run_in_threads(len(squares), sparse_squares, x.indptr, data, squares)
        attributes = SparseAttributes(x.indptr, x.indices, data, x.num_columns, squares)
        fill: Any = sparse_similarity
        arguments: Any = spans, indices, attributes, SIMILARITIES.index(similarity), out
    else:
        fill, arguments = _DENSE_KERNELS[similarity], (*spans, indices, np.ascontiguousarray(x, np.float32), out)
    run_in_threads(_NUM_TASKS, fill, *arguments)
    return out


def _own_similarity(name: str, spans: EdgeSpans, indices: NDArray[Any], x: Attributes) -> NDArray[np.float32]:
    """Similarities of the edges by a plug-in, a function of both ends' rows, (k, q) each, to (k,)."""
    measure, said = plugins.load("similarities", name), f"purify.similarity={name.partition('@')[0]}"
    out = np.empty(spans.offsets[-1], np.float32)
    for begin in range(0, len(out), _OWN_EDGES):
        edges = np.arange(begin, min(begin + _OWN_EDGES, len(out)))
        u = np.searchsorted(spans.offsets, edges, side="right") - 1
        v = indices[edges - spans.offsets[u] + spans.starts[u]]
        rows = [x.csr()[end].toarray() if isinstance(x, SparseRows) else np.asarray(x)[end] for end in (u, v)]
        values = np.asarray(measure(*rows), np.float32)
        if values.shape != edges.shape or not np.isfinite(values).all():
            raise ValueError(
                f"{said} must return a finite number of each of {len(edges)} edges, {edges.shape}, not {values.shape}"
            )
        out[edges] = values
    return out


def _edge_spans(indptr: NDArray[np.int64], indices: NDArray[Any], directed: bool) -> EdgeSpans:
    if directed:
        return EdgeSpans(indptr[:-1], indptr[1:], indptr)
    starts = np.empty(len(indptr) - 1, np.int64)
    run_in_threads(len(starts), lookup.first_above, indptr, indices, starts)
    offsets = np.zeros(len(indptr), np.int64)
    run_in_slices(len(starts), lambda chunk: np.subtract(indptr[1:][chunk], starts[chunk], out=offsets[1:][chunk]))
    return EdgeSpans(starts, indptr[1:], np.cumsum(offsets, out=offsets))


@kernel
def _task_rows(task, offsets):
    """The rows (first, last) of a task: borders where the running edge count passes the task's share."""
    num_edges = offsets[-1]
    first = first_not_below(offsets, 0, len(offsets), num_edges * task // _NUM_TASKS)
    last = first_not_below(offsets, 0, len(offsets), num_edges * (task + 1) // _NUM_TASKS)
    return first, min(last, len(offsets) - 1)


@kernel(inline="always")
def _prefetch_row(x, indices, e):
    width = x.shape[1]
    first = np.int64(indices[min(e + _AHEAD, len(indices) - 1)]) * width
    prefetch(x, first)
    prefetch(x, first + width - 1)


@kernel(allocates=False, fastmath={"reassoc", "contract"})
def dense_euclidean(span, starts, ends, offsets, indices, x, out):
    """out[e] = -|x[u] - x[v]|."""
    for task in range(span[0], span[1]):
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
def dense_cosine(span, starts, ends, offsets, indices, x, out):
    """out[e] = x[u] . x[v] / (|x[u]| |x[v]|), or 0 where a norm is 0."""
    for task in range(span[0], span[1]):
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
def dense_jaccard(span, starts, ends, offsets, indices, x, out):
    """out[e] = shared non-zero columns of u and v, over the columns non-zero in either; 0 where there are none."""
    for task in range(span[0], span[1]):
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
def sparse_squares(span, x_indptr, x_data, out):
    for i in range(span[0], span[1]):
        total = 0.0
        for k in range(x_indptr[i], x_indptr[i + 1]):
            total += np.float64(x_data[k]) * np.float64(x_data[k])
        out[i] = total


@kernel
def sparse_similarity(span, spans, indices, x, measure, out):
    """out[e] = the similarity of u and v. Row u is spread into a dense strip once; a neighbour costs its entries."""
    starts, ends, offsets = spans
    x_indptr, x_indices, x_data, num_columns, squares = x
    for task in range(span[0], span[1]):
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


def purify(graph: Graph, x: Attributes, *, like: Graph | None = None, **how: Any) -> Graph:
    """The graph's structure without the floor(ratio * m) least similar edges: same nodes, no attributes, no labels.

    Weights of edges, which must be strengths, are kept. With `like`, a purified graph, those edges go that are less
    similar than the ones that it kept, however many. The other options are those of `find_dropped`.

    >>> triangle = Graph(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], np.int32))
    >>> purify(triangle, np.array([[0], [1], [5]], np.float32), similarity="euclidean", ratio=0.34).indices.tolist()
    [1, 0, 2, 1]
    """
    before = None if like is None else like.info["purified"]
    return without_dropped(graph, *find_dropped(graph, x, before=before, **how))


def find_dropped(
    graph: Graph, x: Attributes, *, similarity: str, ratio: float, before: dict[str, Any] | None = None
) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Which entries of the graph's CSR go, a bit each as `mark_dropped` sets them, and what was decided.

    `before` is what another purification decided.
    """
    if before is not None:
        return _find_dropped_like(graph, x, before)
    num_dropped = num_least_similar(graph, ratio)
    keep, threshold, share, spread = None, None, 0.0, {}
    if num_dropped:
        values = edge_similarity(graph.indptr, graph.indices, x, similarity, directed=graph.directed)
        if graph.weights is not None:
            spread = {"spread": float(np.std(values, dtype=np.float64))}
            values += _weight_bonus(graph, **spread)
        keep, threshold, share = _keep_most_similar(values, num_dropped)
        del values
    info = {
        "similarity": similarity,
        "ratio": float(ratio),
        "num_edges_before": graph.num_edges,
        "num_edges_dropped": num_dropped,
        "threshold": threshold,
        "dropped_at_threshold": share,  # of the edges that are just as similar
        **spread,
    }
    return _marks(graph, keep), info


def num_least_similar(graph: Graph, ratio: float) -> int:
    """How many edges a share is, as a decimal: .29 of 100 is 29, and floor(0.29 * 100) in floating point is 28."""
    return math.floor(Fraction(str(float(ratio))) * graph.num_edges)


def _find_dropped_like(graph: Graph, x: Attributes, before: dict[str, Any]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """The edges below the threshold of an earlier purification, and its share of those at it."""
    info = before | {"num_edges_before": graph.num_edges, "num_edges_dropped": 0}
    if before["threshold"] is None:
        return _marks(graph, None), info
    values = edge_similarity(graph.indptr, graph.indices, x, before["similarity"], directed=graph.directed)
    if graph.weights is not None:
        values += _weight_bonus(graph, before["spread"])
    keep, at = values >= before["threshold"], np.flatnonzero(values == before["threshold"])
    keep[at[: round(before["dropped_at_threshold"] * len(at))]] = False
    info["num_edges_dropped"] = len(keep) - int(np.count_nonzero(keep))
    return _marks(graph, keep), info


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
    run_in_slices(len(values), lambda chunk: np.greater_equal(values[chunk], threshold, out=keep[chunk]))
    equal = positions_where(len(values), lambda chunk: values[chunk] == threshold)
    num_tied = num_dropped - (len(keep) - int(np.count_nonzero(keep)))
    keep[equal[:num_tied]] = False
    return keep, float(threshold), num_tied / len(equal)


def _marks(graph: Graph, keep: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
    """The bits of all entries, 1 where the edge is not kept; none where all are."""
    if keep is None:
        return np.zeros(0, np.uint8)
    marks = np.zeros(marks_size(graph.num_arcs), np.uint8)
    spans = _edge_spans(graph.indptr, graph.indices, graph.directed)
    run_in_threads(graph.num_nodes, mark_dropped, graph.indptr, graph.indices, spans, keep, graph.directed, marks)
    return marks


def marks_size(num_arcs: int) -> int:
    return (num_arcs + 7) // 8


def without_dropped(
    graph: Graph, marks: NDArray[np.uint8], info: dict[str, Any], allocate: Callable[..., NDArray[Any]] = np.empty
) -> Graph:
    """The structure without the marked entries, in arrays that allocate(shape, dtype) makes."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    marks = read_only(marks)
    if len(marks):
        indptr = allocate(len(graph.indptr), np.int64)
        indptr[0] = 0
        run_in_threads(graph.num_nodes, count_kept, graph.indptr, marks, indptr[1:])
        np.cumsum(indptr, out=indptr)
        indices = allocate(int(indptr[-1]), graph.indices.dtype)
        run_in_threads(graph.num_nodes, copy_kept, graph.indptr, graph.indices, marks, indptr, indices)
        if graph.weights is not None:
            weights = allocate(len(indices), np.float32)
            run_in_threads(graph.num_nodes, copy_kept, graph.indptr, graph.weights, marks, indptr, weights)
            weights.setflags(write=False)
        indptr.setflags(write=False)
        indices.setflags(write=False)
    return Graph(indptr, indices, weights=weights, directed=graph.directed, info={"purified": info})


@kernel
def mark_dropped(span, indptr, indices, spans, keep, directed, marks):
    """Sets bit e % 8 of marks[e // 8], which is 0, for both entries e of every edge that is not kept.

    An edge is met at its smaller end, and looked for in the row of the other.
    """
    starts, ends, offsets = spans
    for u in range(span[0], span[1]):
        for e in range(starts[u], ends[u]):
            if keep[offsets[u] + e - starts[u]]:
                continue
            fetch_add(marks, e >> 3, 1 << (e & 7))
            if not directed:
                low, high = indptr[indices[e]], indptr[indices[e] + 1]
                while low < high:
                    middle = (low + high) >> 1
                    if indices[middle] < u:
                        low = middle + 1
                    else:
                        high = middle
                fetch_add(marks, low >> 3, 1 << (low & 7))


@kernel(inline="always")
def _is_marked(marks, e):
    return (marks[e >> 3] >> (e & 7)) & 1 != 0


@kernel(allocates=False)
def count_kept(span, indptr, marks, counts):
    for u in range(span[0], span[1]):
        count = 0
        for e in range(indptr[u], indptr[u + 1]):
            count += not _is_marked(marks, e)
        counts[u] = count


@kernel(allocates=False)
def copy_kept(span, indptr, values, marks, starts, out):
    """out[starts[u] ...] = the values of the entries of row u that are not marked."""
    for u in range(span[0], span[1]):
        position = starts[u]
        for e in range(indptr[u], indptr[u + 1]):
            if not _is_marked(marks, e):
                out[position] = values[e]
                position += 1


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


def attribute_signal(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """`neighbor_signal` of a graph whose nodes have these features; None with few edges or no features."""
    ends = signal_edges(graph)
    return None if features is None or ends is None else neighbor_signal(*(features[nodes] for nodes in ends))


def attribute_trust(indptr: NDArray[np.int64], indices: NDArray[Any], features: NDArray[np.float32]) -> float:
    """0 where neighbours are no more alike than any two nodes, 1 where they clearly are, or there are few edges.

    A signal counts as one standard deviation of noise more, so that a small graph is given the benefit of the doubt.
    """
    if len(indices) < 2 * _MIN_EDGES:
        return 1.0
    left, right = _spaced(indptr, indices, min(_TRUST_EDGES, 1 + _TRUST_VALUES // max(1, features.shape[1])))
    signal = neighbor_signal(features[left], features[right]) + (6.0 * len(left)) ** -0.5
    return float(np.clip((signal - _NOISE) / (_SIGNAL - _NOISE), 0.0, 1.0))


def signal_edges(graph: Graph) -> Ends | None:
    """Both ends of the edges that show the signal; None where there are too few."""
    return None if graph.num_edges < _MIN_EDGES else spaced_edges(graph, _NUM_EDGES)


def spaced_edges(graph: Graph, count: int) -> Ends:
    """Both ends of about `count` evenly spaced edges, at most twice as many."""
    return _spaced(graph.indptr, graph.indices, count)


def _spaced(indptr: NDArray[np.int64], indices: NDArray[Any], count: int) -> Ends:
    arcs = np.arange(0, len(indices), max(1, len(indices) // count))
    return np.searchsorted(indptr, arcs, side="right") - 1, indices[arcs]


def neighbor_signal(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """The chance that two neighbours are more alike than ends of different edges, from the features of edges' ends.

    >>> ends = np.eye(4, dtype=np.float32)
    >>> neighbor_signal(ends, ends), neighbor_signal(ends, np.roll(ends, 1, axis=0))
    (1.0, 0.5)
    """
    joined = cosine_distance(left, right)
    others = np.sort(cosine_distance(left, np.roll(right, len(right) // 2, axis=0)))
    first, last = (np.searchsorted(others, joined, side=side) for side in ("left", "right"))
    return float((len(others) - last + 0.5 * (last - first)).mean() / len(others))


def cosine_distance(own: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """1 - cosine of rows with each other, or of one row with many; 1 where a row is zero.

    >>> cosine_distance(np.array([1.0, 0.0]), np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.0, 1.0, 1.0]
    """
    own, others = np.asarray(own, np.float64), np.asarray(others, np.float64)
    lengths = np.linalg.norm(own, axis=-1) * np.linalg.norm(others, axis=-1)
    products = (own * others).sum(axis=-1)
    return 1.0 - np.divide(products, lengths, out=np.zeros(np.shape(lengths)), where=lengths > 0)
