"""Signal: how much the features of nodes say about who is joined to whom, from a few thousand edges.

`neighbor_signal` is the chance that two neighbours have features more alike, by their cosine, than the ends of two
different edges, which are as often nodes of many edges. It is 1/2 where attributes are noise: 0.49 to 0.50 on graphs
whose attributes were replaced by noise, 0.69 on the embedded data set, 0.73 on Cora, 0.90 on Reddit, 0.53 on DBLP with
20 components. The loss of the training says less: with a few hubs or a thin graph, distances show in the mean of noise
over neighbours (DBLP: 0.91 with its attributes, 0.93 with noise, of 1.39). Edges are evenly spaced, so that the same
graph always has the same signal.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph

_MIN_EDGES, _NUM_EDGES = 512, 1 << 13  # with fewer edges the signal is too uncertain

Ends = tuple[NDArray[Any], NDArray[Any]]


def attribute_signal(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """`neighbor_signal` of a graph whose nodes have these features; None with few edges or no features."""
    ends = signal_edges(graph)
    return None if features is None or ends is None else neighbor_signal(*(features[nodes] for nodes in ends))


def signal_edges(graph: Graph) -> Ends | None:
    """Both ends of the edges that show the signal; None where there are too few."""
    return None if graph.num_edges < _MIN_EDGES else spaced_edges(graph, _NUM_EDGES)


def spaced_edges(graph: Graph, count: int) -> Ends:
    """Both ends of about `count` evenly spaced edges, at most twice as many."""
    arcs = np.arange(0, graph.num_arcs, max(1, graph.num_arcs // count))
    return np.searchsorted(graph.indptr, arcs, side="right") - 1, graph.indices[arcs]


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
