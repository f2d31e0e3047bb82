"""The peers of the BFS, each a function (graph, sources, levels) -> Contender; ImportError where it is not installed.

scipy     `dijkstra(unweighted, limit)`: distances, stops at the limit. `breadth_first_order` has no limit: it walks the
          component, and is there to show what the limit is worth.
igraph    `neighborhood(order)`: the nodes within so many hops. `neighborhood_size`: their number.
networkx  `single_source_shortest_path_length(cutoff)`: a dict of distances.
graphblas a frontier per source as rows of one Boolean matrix, masked by what has been seen, times the adjacency matrix.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csgraph

from bench import data
from bench.harness import Contender
from hcm_scale.graph.store import Graph

Sources = NDArray[np.int64]
NEIGHBORHOOD, DIJKSTRA = "igraph neighborhood", "scipy dijkstra(limit)"


def within(graph: Graph, source: int, levels: int) -> NDArray[np.int64]:
    """The nodes at most `levels` hops from the source, itself among them; plain and slow, for checks alone."""
    reached = np.zeros(graph.num_nodes, bool)
    reached[source] = True
    for _ in range(levels):
        rows = np.flatnonzero(reached)
        reached[np.concatenate([graph.indices[graph.indptr[u] : graph.indptr[u + 1]] for u in rows])] = True
    return np.flatnonzero(reached)


def scipy_dijkstra(graph: Graph, sources: Sources, levels: int) -> Contender:
    matrix = data.adjacency(graph)

    def verify(distance: NDArray[np.float64]) -> None:
        found = np.flatnonzero(np.isfinite(distance[0]))
        np.testing.assert_array_equal(found, within(graph, int(sources[0]), levels))

    options: dict[str, Any] = {"unweighted": True, "indices": sources, "limit": levels}
    return Contender(DIJKSTRA, lambda: csgraph.dijkstra(matrix, **options), len(sources), verify)


def scipy_order(graph: Graph, sources: Sources, levels: int) -> Contender:
    matrix, few = data.adjacency(graph), sources[:3]

    def run() -> list[NDArray[np.int32]]:
        return [csgraph.breadth_first_order(matrix, s, directed=True, return_predecessors=False) for s in few]

    def verify(orders: list[NDArray[np.int32]]) -> None:
        near = within(graph, int(few[0]), levels)
        assert set(orders[0][: len(near)].tolist()) == set(near.tolist())

    return Contender("scipy breadth_first_order (no limit)", run, len(few), verify)


@functools.lru_cache(maxsize=1)
def _igraph(graph: Graph) -> Any:
    """The graph in igraph's own form; its making is not timed."""
    import igraph

    rows = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), graph.degrees)
    upper = rows < graph.indices
    return igraph.Graph(n=graph.num_nodes, edges=np.column_stack([rows[upper], graph.indices[upper]]))


def igraph_neighborhood(graph: Graph, sources: Sources, levels: int) -> Contender:
    peer, vertices = _igraph(graph), sources.tolist()

    def verify(found: list[list[int]]) -> None:
        assert sorted(found[0]) == within(graph, vertices[0], levels).tolist()

    return Contender(NEIGHBORHOOD, lambda: peer.neighborhood(vertices, order=levels), len(vertices), verify)


def igraph_sizes(graph: Graph, sources: Sources, levels: int) -> Contender:
    peer, vertices = _igraph(graph), sources.tolist()

    def verify(found: list[int]) -> None:
        assert found[0] == len(within(graph, vertices[0], levels))

    name = "igraph neighborhood_size (one number)"
    return Contender(name, lambda: peer.neighborhood_size(vertices, order=levels), len(vertices), verify)


def networkx_lengths(graph: Graph, sources: Sources, levels: int) -> Contender:
    import networkx

    peer = networkx.from_scipy_sparse_array(data.adjacency(graph, np.int8))
    lengths = networkx.single_source_shortest_path_length

    def run() -> list[dict[int, int]]:
        return [dict(lengths(peer, source, cutoff=levels)) for source in sources.tolist()]

    def verify(found: list[dict[int, int]]) -> None:
        assert sorted(found[0]) == within(graph, int(sources[0]), levels).tolist()

    return Contender("networkx single_source_shortest_path_length", run, len(sources), verify)


def graphblas_levels(graph: Graph, sources: Sources, levels: int) -> Contender:
    import graphblas as gb

    indptr, indices = graph.indptr.astype(np.uint64), graph.indices.astype(np.uint64)
    matrix = gb.Matrix.from_csr(indptr, indices, True, ncols=graph.num_nodes)
    shape = {"nrows": len(sources), "ncols": graph.num_nodes, "dtype": bool}

    def run() -> Any:
        front = gb.Matrix.from_coo(np.arange(len(sources)), sources, True, **shape)
        seen = front.dup()
        for _ in range(levels):
            front(~seen.S, replace=True) << gb.semiring.any_pair(front @ matrix)
            seen(front.S) << True
        seen.wait()
        return seen

    def verify(seen: Any) -> None:
        found = seen[0, :].new().to_coo(values=False)[0]
        np.testing.assert_array_equal(found.astype(np.int64), within(graph, int(sources[0]), levels))

    return Contender("graphblas any_pair, masked", run, len(sources), verify)
