"""Evidence that a node hangs on hubs."""

import numpy as np


def hub_share(graph, features: np.ndarray) -> np.ndarray:
    """Mean log degree of a node's neighbours, (n,); of one without neighbours the median, which says nothing."""
    degrees = np.diff(graph.indptr)
    row = np.repeat(np.arange(graph.num_nodes), degrees)
    total = np.bincount(row, np.log1p(degrees[graph.indices]), graph.num_nodes)
    mean = total / np.maximum(degrees, 1)
    linked = degrees > 0
    return np.where(linked, mean, np.median(mean[linked]) if linked.any() else 0.0)


hub_share.words = "Its neighbours are hubs, by the mean logarithm of their degrees"
