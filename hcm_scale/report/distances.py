"""How far the ends of an edge are from each other in their features, and what is usual over the edges of a graph.

What is usual is a median over at most a few ten thousand edges, evenly spaced in their order, so that it costs the same
on any graph and is the same every time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices
from hcm_scale.graph.store import Graph

_HOPS = 1 << 20  # edges looked at for a usual hop
_PAIRS = 1 << 14  # for a usual distance
_SEEN = 1 << 14  # of those edges, by a thread at a time


def cosine_distance(own: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """1 - cosine of rows with each other, or of one row with many; 1 where a row is zero.

    >>> cosine_distance(np.array([1.0, 0.0]), np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.0, 1.0, 1.0]
    """
    own, others = np.asarray(own, np.float64), np.asarray(others, np.float64)
    lengths = np.linalg.norm(own, axis=-1) * np.linalg.norm(others, axis=-1)
    products = (own * others).sum(axis=-1)
    return 1.0 - np.divide(products, lengths, out=np.zeros(np.shape(lengths)), where=lengths > 0)


def usual_hop(edge_mean: NDArray[np.float32]) -> float | None:
    """The median predicted hop of an edge; None where no edge was scored."""
    chosen = edge_mean[:: max(1, len(edge_mean) // _HOPS)]
    seen = np.empty(len(chosen), edge_mean.dtype)
    in_slices(len(seen), lambda part: np.copyto(seen[part], chosen[part]), _SEEN)  # each is on a page of its own
    seen = seen[np.isfinite(seen)]
    return float(np.median(seen)) if len(seen) else None


def highest_hop(edge_mean: NDArray[np.float32]) -> float:
    """The largest predicted hop of an edge; 0 where no edge was scored."""
    found = [0.0]
    in_slices(len(edge_mean), lambda part: found.append(float(np.fmax.reduce(edge_mean[part], initial=0.0))))
    return max(found)


def usual_distance(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """The median distance of features over an edge; None without features or edges."""
    if features is None or graph.num_arcs == 0:
        return None
    arcs = np.arange(0, graph.num_arcs, max(1, graph.num_arcs // _PAIRS))
    left = np.searchsorted(graph.indptr, arcs, side="right") - 1
    return float(np.median(cosine_distance(features[left], features[graph.indices[arcs]])))
