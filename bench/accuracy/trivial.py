"""Scores that learn nothing: the length of a node's features, its degree, both, how far its neighbours look; direction.

Planted attributes come from the farthest of fifty nodes, which is largely an effect of length, and planted cliques
raise the degree: a learned score that does not beat these has learned nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.problem import Problem

Scores = dict[str, NDArray[np.float64]]
_ARCS = 1 << 18


def run(problem: Problem, device: str) -> Scores:
    """Those that need no directions, by the names of their rows."""
    norm = np.linalg.norm(problem.x, axis=1).astype(np.float64)
    root = np.sqrt(problem.graph.degrees)
    return {
        "attribute norm": norm,
        "degree": problem.graph.degrees.astype(np.float64),
        "minus degree": -problem.graph.degrees.astype(np.float64),
        "half norm, half root degree": 0.5 * norm + 0.5 * root,
        "distance to neighbours": neighbor_distance(problem),
        "cosine distance to neighbours": cosine_distance(problem),
    }


def direction(problem: Problem, device: str) -> Scores:
    """Out-degree less in-degree of the file's own arcs: what a method that is given directions has to beat.

    The same number for every node where no file had directions.
    """
    score = np.zeros(problem.graph.num_nodes)
    if problem.one_way is not None:
        score = problem.one_way.degrees - np.bincount(problem.one_way.indices, minlength=len(score)).astype(np.float64)
    return {"out-degree less in-degree": score}


def neighbor_distance(problem: Problem) -> NDArray[np.float64]:
    """The mean Euclidean distance of a node's features to those of its neighbours, (n,); 0 for a node without any."""
    return neighbor_mean(problem, arc_distances(problem, problem.x))


def cosine_distance(problem: Problem) -> NDArray[np.float64]:
    """The mean of 1 - cosine between a node's features and those of its neighbours, (n,); 0 for a node without any.

    Rows of length 1 are sqrt(2 - 2 cosine) apart. A row of zeros stays one: its cosine with any other counts as 1/2.
    """
    unit = problem.x / np.maximum(np.linalg.norm(problem.x, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return neighbor_mean(problem, arc_distances(problem, unit) ** 2 / 2)


def neighbor_mean(problem: Problem, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the arcs that leave a node, (n,), of one value an arc."""
    total = np.bincount(problem.sources, values, minlength=problem.graph.num_nodes)
    return total / np.maximum(problem.graph.degrees, 1)


def arc_distances(problem: Problem, x: NDArray[Any]) -> NDArray[np.float64]:
    """The Euclidean distance of the rows of x at the two ends of every arc, (num_arcs,)."""
    sources, targets = problem.sources, problem.graph.indices
    out = np.empty(len(sources))
    for first in range(0, len(sources), _ARCS):
        part = slice(first, first + _ARCS)
        out[part] = np.linalg.norm(x[sources[part]] - x[targets[part]], axis=1)
    return out
