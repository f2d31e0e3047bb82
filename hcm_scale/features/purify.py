"""Drops the least similar edges: `edge_similarity` gives every edge a number, `purify` keeps the upper part.

| similarity | of two attribute rows a and b                         | by definition           |
|------------|-------------------------------------------------------|-------------------------|
| jaccard    | columns non-zero in both / columns non-zero in either | 0 where neither has any |
| cosine     | a . b / (norm of a * norm of b)                       | 0 where a or b is zero  |
| euclidean  | minus the norm of a - b, so that larger is nearer     |                         |

Where edges have weights, those of `strength.py`, a heavy edge is evidence that it belongs: to its similarity are added
1/4 - 2^-strength / 2 standard deviations of all similarities. That is 0 for a typical edge, up to 1/4 for a heavy one,
down to -1/4 for a light one: attributes decide, and weights among edges that are about as similar.

Edges are numbered by their (u < v) CSR order; on a directed graph arcs are the edges. Exactly floor(ratio * m) edges
go; of equally similar ones those with the lowest numbers. Sums are in float64, results f32; sparse attributes are
never made dense. Memory: 9 bytes an edge beside the result, 14 more where edges have weights, and 24 a node.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.largest import value_at
from hcm_scale.base.names import SIMILARITIES
from hcm_scale.base.row_kernels import sort_rows
from hcm_scale.base.threads import in_slices, in_threads, where
from hcm_scale.features import purify_kernels as kernels
from hcm_scale.graph import by_edge
from hcm_scale.graph.store import Attributes, Graph, SparseRows

_DENSE_KERNELS = {
    "jaccard": kernels.dense_jaccard,
    "cosine": kernels.dense_cosine,
    "euclidean": kernels.dense_euclidean,
}

CSR = tuple[NDArray[np.int64], NDArray[Any]]


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

    With `share` = (i, k) of the i-th of k runs of edges alone, which make up all of them.

    >>> x = np.array([[0, 0], [3, 4]], np.float32)
    >>> edge_similarity(np.array([0, 1, 2]), np.array([1, 0], np.int32), x, "euclidean").tolist()
    [-5.0]
    """
    _check(len(indptr) - 1, x, similarity)
    spans = _edge_spans(indptr, indices, directed)
    first, last = (kernels.NUM_TASKS * at // share[1] for at in (share[0], share[0] + 1))
    out = np.empty(spans.offsets[-1], np.float32)  # what nobody writes to takes no memory
    if isinstance(x, SparseRows):
        data = x.data if similarity != "jaccard" else (x.data != 0).astype(np.float32)
        squares = np.empty(x.shape[0], np.float64)
        in_threads(len(squares), kernels.sparse_squares, x.indptr, data, squares)
        attributes = kernels.SparseAttributes(x.indptr, x.indices, data, x.num_columns, squares)
        measure = SIMILARITIES.index(similarity)
        measured: Any = kernels.sparse_similarity, spans, indices, attributes, measure, out
    else:
        dense = np.ascontiguousarray(x, np.float32)
        measured = _DENSE_KERNELS[similarity], *spans, indices, dense, out
    in_threads(last - first, lambda part, kernel, *rest: kernel((part[0] + first, part[1] + first), *rest), *measured)
    borders = np.searchsorted(spans.offsets, [len(out) * task // kernels.NUM_TASKS for task in (first, last)])
    return out[slice(*spans.offsets[borders])]


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

    Weights of edges, which must be strengths, are kept.

    With `like`, a purified graph, those edges go that are less similar than the ones that it kept, however many.
    `measure` finds the similarities, as `edge_similarity` does.

    >>> triangle = Graph(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], np.int32))
    >>> purify(triangle, np.array([[0], [1], [5]], np.float32), similarity="euclidean", ratio=0.34).indices.tolist()
    [1, 0, 2, 1]
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"purify.ratio={ratio!r} is out of range; it runs from 0 up to, and without, 1")
    _check(graph.num_nodes, x, similarity)
    if like is not None:
        return _purify_like(graph, x, like.info["purified"], measure)
    num_dropped = num_least_similar(graph, ratio)
    info: dict[str, Any] = {
        "similarity": similarity,
        "ratio": float(ratio),
        "num_edges_before": graph.num_edges,
        "num_edges_dropped": num_dropped,
        "threshold": None,
        "dropped_at_threshold": 0.0,  # the share that went of the edges that are just as similar
    }
    if num_dropped == 0:
        return _purified(graph, None, info)
    values = measure(graph.indptr, graph.indices, x, similarity, directed=graph.directed)
    if graph.weights is not None:
        info["spread"] = float(np.std(values, dtype=np.float64))
        values += _say_of_weights(graph, info["spread"])
    keep, info["threshold"], info["dropped_at_threshold"] = keep_most_similar(values, num_dropped)
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
        values += _say_of_weights(graph, before["spread"])
    keep, at = values >= before["threshold"], np.flatnonzero(values == before["threshold"])
    keep[at[: round(before["dropped_at_threshold"] * len(at))]] = False
    info["num_edges_dropped"] = len(keep) - int(np.count_nonzero(keep))
    return _purified(graph, keep, info)


def _say_of_weights(graph: Graph, spread: float) -> NDArray[np.float32]:
    """What the weight of every edge adds to its similarity; `spread` is the standard deviation of similarities."""
    assert graph.weights is not None
    strength = graph.weights[by_edge.first_entries(graph.indptr, graph.indices, graph.directed)]
    return np.asarray(spread * (0.25 - np.exp2(-strength) / 2), np.float32)


def _purified(graph: Graph, keep: NDArray[np.bool_] | None, info: dict[str, Any]) -> Graph:
    """The structure of the kept edges, or of all."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    if keep is not None:
        indptr, indices = _keep_edges(graph, keep)
        if weights is not None:
            kept = weights[by_edge.first_entries(graph.indptr, graph.indices, graph.directed)][keep]
            weights = by_edge.spread(indptr, indices, kept, graph.directed)
    return Graph(indptr, indices, weights=weights, directed=graph.directed, info={"purified": info})


def keep_most_similar(values: NDArray[np.float32], num_dropped: int) -> tuple[NDArray[np.bool_], float, float]:
    """All but the num_dropped (>= 1) smallest values (of equals the first go first), the largest that went, and the
    share that went of those that equal it.

    >>> keep_most_similar(np.array([5, 1, 3, 1, 1, 1], np.float32), 2)
    (array([ True, False,  True, False,  True,  True]), 1.0, 0.5)
    """
    threshold = np.float32(value_at(values, len(values) - num_dropped + 1))
    keep = np.empty(len(values), bool)
    in_slices(len(values), lambda part: np.greater_equal(values[part], threshold, out=keep[part]))
    equal = where(len(values), lambda part: values[part] == threshold)
    num_tied = num_dropped - (len(keep) - int(np.count_nonzero(keep)))
    keep[equal[:num_tied]] = False
    return keep, float(threshold), num_tied / len(equal)


def _check(num_nodes: int, x: Attributes, similarity: str) -> None:
    if similarity not in SIMILARITIES:
        raise ValueError(f"purify.similarity={similarity!r} is unknown; it is one of {', '.join(SIMILARITIES)}")
    if x.shape[0] != num_nodes:
        raise ValueError(f"x has {x.shape[0]} rows; the graph has {num_nodes} nodes")


def _edge_spans(indptr: NDArray[np.int64], indices: NDArray[Any], directed: bool) -> kernels.EdgeSpans:
    if directed:
        return kernels.EdgeSpans(indptr[:-1], indptr[1:], indptr)
    starts = np.empty(len(indptr) - 1, np.int64)
    in_threads(len(starts), kernels.first_above, indptr, indices, starts)
    offsets = np.zeros(len(indptr), np.int64)
    in_slices(len(starts), lambda part: np.subtract(indptr[1:][part], starts[part], out=offsets[1:][part]))
    return kernels.EdgeSpans(starts, indptr[1:], np.cumsum(offsets, out=offsets))


def _keep_edges(graph: Graph, keep: NDArray[np.bool_]) -> CSR:
    """The CSR of the kept edges."""
    if graph.directed:
        return np.concatenate([[0], np.cumsum(keep)])[graph.indptr], graph.indices[keep]
    of_edges = graph.indices, _edge_spans(graph.indptr, graph.indices, directed=False), keep
    indptr = np.zeros_like(graph.indptr)
    in_threads(graph.num_nodes, kernels.count_kept, *of_edges, indptr[1:])
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], graph.indices.dtype)
    in_threads(graph.num_nodes, kernels.list_kept, *of_edges, indptr[:-1].copy(), indices)
    in_threads(graph.num_nodes, sort_rows, indptr, indices)
    return indptr, indices
