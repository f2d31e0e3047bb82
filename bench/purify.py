"""Edge similarities: edges a second, three measures over 20 dense attributes, against NumPy in chunks.

The goal is stated as a number and not as a ratio: 20 million edges a second on two cores.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench import data
from bench.bfs import RMAT_SCALE
from bench.harness import Case, Contender
from hcm_scale.features.purify import SIMILARITIES, edge_similarity
from hcm_scale.graph.store import Graph

CHUNK_EDGES = 1 << 16  # NumPy at its best: the gathered rows of a chunk stay in the cache


def cases(size: str) -> Iterator[Case]:
    """All measures on R-MAT."""
    graph = data.rmat(RMAT_SCALE[size])
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    upper = rows < graph.indices
    ends = rows[upper], graph.indices[upper]
    contenders = [ours(graph, measure, ends) for measure in SIMILARITIES]
    contenders.append(numpy_euclidean(graph, ends))
    title = f"20 attributes; R-MAT, {data.describe(graph)}"
    yield Case(title, "edges/s", contenders, notes=["goal: 20 million edges a second on two cores"])


Ends = tuple[NDArray[np.int64], NDArray[np.int32]]


def ours(graph: Graph, similarity: str, ends: Ends) -> Contender:
    """Every edge's similarity."""
    assert isinstance(graph.x, np.ndarray)
    x = graph.x

    def verify(values: NDArray[np.float32]) -> None:
        some = np.linspace(0, graph.num_edges - 1, 100).astype(int)
        a, b = x[ends[0][some]].astype(np.float64), x[ends[1][some]].astype(np.float64)
        np.testing.assert_allclose(values[some], slow_similarity(similarity, a, b), rtol=1e-5, atol=1e-6)

    run = lambda: edge_similarity(graph.indptr, graph.indices, x, similarity)  # noqa: E731
    return Contender(f"hcm_scale {similarity}", run, graph.num_edges, verify)


def slow_similarity(similarity: str, a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """By the definitions, (edges, q) each."""
    if similarity == "euclidean":
        return -np.linalg.norm(a - b, axis=1)
    if similarity == "cosine":
        return (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return ((a != 0) & (b != 0)).sum(axis=1) / ((a != 0) | (b != 0)).sum(axis=1)


def numpy_euclidean(graph: Graph, ends: Ends) -> Contender:
    """What one writes first."""
    assert isinstance(graph.x, np.ndarray)
    x, (u, v) = graph.x, ends

    def run() -> NDArray[np.float32]:
        out = np.empty(len(u), np.float32)
        for first in range(0, len(u), CHUNK_EDGES):
            part = slice(first, first + CHUNK_EDGES)
            out[part] = -np.linalg.norm(x[u[part]] - x[v[part]], axis=1)
        return out

    return Contender("NumPy euclidean, in chunks", run, len(u), ours(graph, "euclidean", ends).verify)
