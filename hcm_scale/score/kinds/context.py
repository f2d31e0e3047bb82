"""Unlike its neighbours: how far a node's attributes are from theirs, beyond what is usual over edges of the graph.

The distance of an edge, between 0 and 2, is 1 - cosine of the features at its ends. Its surprise is -log(1 - rank among
all edges), which over the edges of a graph has the exponential distribution. If the d edges of a node were drawn from
all edges, the sum of their surprises would have a gamma distribution; Wilson and Hilferty's cube root turns it into a
z-score:

    z(v) = (cbrt(sum / d) - 1 + 1 / 9d) * sqrt(9d)

But edges of one node are alike: nodes differ by a variance tau of their own, and with a thousand neighbours a
difference in the third digit would be ten deviations. So z(v) has the variance 1 + tau d over the nodes, and

    context(v) = z(v) / sqrt(1 + tau d),

with the tau at which the median of context(v)^2 over the nodes is that of a normal number: the size of an effect leads
the list, not the number of neighbours. One unusual neighbour of two still does not outweigh ten of twelve. Distances
are counted in bins of equal width, and surprises are added up as integers, so that results do not depend on the
threads. Memory: 8 bytes per node and half a megabyte per thread; the caller holds the distances, 4 bytes per edge.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import fetch_add, kernel, prefetch
from hcm_scale.base.threads import run_in_slices, run_in_threads
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.kinds.around import Around, distances_of_edges
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import Column, Kind, Reason, Values
from hcm_scale.score.kinds.phrases import held_against, like_text

NUM_BINS = 1 << 16
_BINS_PER_UNIT = NUM_BINS / 2.0
_AHEAD = 16  # neighbours between prefetching a sum and adding to it
_LEAST = 1e-12  # probability of an edge to be as far as the farthest
_SPREAD_NODES = 1 << 20
_MEDIAN_SQUARE = 0.454936  # median of the square of a normal number
_UNIT = 2.0**-27  # surprises are added up as multiples of it: those of 2^31 edges stay below 2^63


def context(
    edges: EdgeIndex, distance: NDArray[np.float32], surprise: NDArray[np.float64], spread: float | None = None
) -> tuple[NDArray[np.float64], float]:
    """z-score of every node's distances to its neighbours, (n,), 0 for nodes without any, and the spread tau.

    `surprise` is that of every bin (`surprise_of_bins`); a spread that is given comes from another graph.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> distance = np.array([0.5, 1.5], np.float32)
    >>> context(path, distance, surprise_of_bins(distance))[0].round(2).tolist()
    [-0.68, -0.01, 0.67]
    """
    if distance.shape != (edges.num_edges,):
        raise ValueError(f"distances have shape {distance.shape}; this graph has {edges.num_edges} edges")
    units = np.rint(np.clip(surprise, 0.0, -np.log(_LEAST)) / _UNIT).astype(np.int64)
    total, out = np.zeros(edges.num_nodes, np.int64), np.zeros(edges.num_nodes)
    run_in_threads(edges.num_nodes, add_surprise, edges.for_kernels, distance, units, total)

    def standardize(part: slice) -> None:
        degree = np.diff(edges.indptr[part.start : part.stop + 1])
        ninth = 1.0 / (9.0 * np.maximum(degree, 1))
        z_score = (np.cbrt(total[part] * _UNIT / np.maximum(degree, 1)) - 1.0 + ninth) / np.sqrt(ninth)
        out[part] = np.where(degree > 0, z_score, 0.0)

    def shrink(part: slice) -> None:
        out[part] /= np.sqrt(1.0 + spread * np.diff(edges.indptr[part.start : part.stop + 1]))

    run_in_slices(len(out), standardize)
    spread = node_spread(edges.indptr, out) if spread is None else spread
    run_in_slices(len(out), shrink)
    return out, spread


def node_spread(indptr: NDArray[np.int64], z_score: NDArray[np.float64]) -> float:
    """The variance tau between nodes, from the z-scores of some nodes, evenly spaced; 0 where edges are independent.

    >>> node_spread(np.arange(0, 404, 4), np.repeat([2.0, -2.0], 50)).__round__(2)
    1.95
    """
    nodes = np.arange(0, len(z_score), max(1, len(z_score) // _SPREAD_NODES))
    degree = indptr[nodes + 1] - indptr[nodes]
    squares, degree = z_score[nodes][degree > 0] ** 2, degree[degree > 0]
    own = (squares / _MEDIAN_SQUARE - 1.0) / degree  # the tau at which the square of a node is the wanted median
    return max(0.0, float(np.median(own))) if len(own) else 0.0


def surprise_of_bins(distance: NDArray[np.float32]) -> NDArray[np.float64]:
    """-log(1 - rank) of every bin of distances, the rank being that of its middle edge among all edges."""
    counts = np.zeros((numba.get_num_threads(), NUM_BINS), np.int64)
    run_in_threads(len(counts), count_bins, distance, counts)
    in_bin = counts.sum(axis=0)
    middle = np.cumsum(in_bin) - 0.5 * in_bin
    return -np.log1p(-np.minimum(middle / max(1, len(distance)), 1.0 - _LEAST))


@kernel(inline="always")
def _bin(distance):
    return min(max(np.int64(distance * _BINS_PER_UNIT), 0), NUM_BINS - 1)


@kernel
def count_bins(part, distance, counts):
    """counts[task, b] = edges of the task's range whose distance falls into bin b; starts as zeros."""
    num_tasks = len(counts)
    for task in range(part[0], part[1]):
        for e in range(task * len(distance) // num_tasks, (task + 1) * len(distance) // num_tasks):
            counts[task, _bin(distance[e])] += 1


@kernel(allocates=False)
def add_surprise(part, edges, distance, surprise, out):
    """out[v] += surprises, as integers, of the bins of all of v's edges, drawn or not.

    An edge is visited at its smaller end; on a directed graph it counts there only.
    """
    indptr, indices, start, directed = edges
    for u in range(part[0], part[1]):
        shift, own = indptr[u + 1] - start[u + 1], 0
        for e in range(start[u], start[u + 1]):
            gained = surprise[_bin(distance[e])]
            own += gained
            if not directed:
                prefetch(out, indices[min(shift + e + _AHEAD, len(indices) - 1)])
                fetch_add(out, indices[shift + e], gained)
        fetch_add(out, u, own)


def _numbers(inputs: KindInputs) -> list[Values]:
    (surprise,) = inputs.measured(lambda: [surprise_of_bins(inputs.distance)], "surprise")
    spread = None if inputs.reference is None else float(inputs.reference["spread"][0])
    values, spread = context(inputs.edges, inputs.distance, surprise, spread)
    inputs.measured(lambda: [spread], "spread")
    return [values]


def _reason(around: Around) -> dict[str, Any]:
    return {} if around.evidence.features is None else around.mean_length(CONTEXT.name, distances_of_edges)


def _sentence(e: Any, r: Reason) -> str:
    if r.value is None:
        return "its attributes differ"
    own, usual, _ = held_against(r.value, r.usual, 2, like_text(e))
    average = ", on average" * (r.count > 1)
    return f"its attributes differ from those around it by {own} on a scale from 0 to 2{average}{usual}"


CONTEXT = Kind(
    name="context",
    columns={"context": Column("distance of attributes to the neighbours'")},
    title="unlike its neighbours",
    short="Unlike",
    help="Its attributes are unlike those of its neighbours.",
    numbers=_numbers,
    needs_attributes=True,
    weight=lambda facts: facts.of_context,
    stored={
        "surprise": lambda array: array is not None and array.shape == (NUM_BINS,),
        "spread": lambda array: array is not None and array.shape == (1,) and 0.0 <= array[0] < np.inf,
    },
    follows_differences=True,
    reason=_reason,
    sentence=_sentence,
)
