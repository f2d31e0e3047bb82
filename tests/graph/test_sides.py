"""Sides against a walk from the smallest node of every component, one edge at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from hcm_scale.graph import Graph
from hcm_scale.graph.lookup import two_sides


def graph_of(num_nodes, u, v, directed=False):
    ends = (u, v) if directed else (np.r_[u, v], np.r_[v, u])
    matrix = sparse.csr_array((np.ones(len(ends[0]), bool), ends), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    return Graph(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), directed=directed)


def slow_sides(num_nodes, pairs):
    joined = [set() for _ in range(num_nodes)]
    for u, v in pairs:
        joined[u].add(v)
        joined[v].add(u)
    side = [-1] * num_nodes
    for start in range(num_nodes):
        waiting = [start] if joined[start] and side[start] < 0 else []
        for v in waiting:
            side[v] = max(side[v], 0)
            for w in joined[v]:
                if side[w] < 0:
                    side[w] = 1 - side[v]
                    waiting.append(w)
                elif side[w] == side[v]:
                    return None
    return side


@given(st.integers(2, 60), st.integers(0, 120), st.integers(0, 999), st.booleans(), st.sampled_from([0, 1, 120]))
def test_two_sides__equal_a_walk(num_nodes, num_edges, seed, directed, num_stray):
    rng = np.random.default_rng(seed)
    u, v = rng.integers(0, num_nodes, (2, num_edges))
    side = rng.integers(0, 2, num_nodes)
    kept = (u != v) & ((side[u] != side[v]) | (np.arange(num_edges) < num_stray))
    u, v = u[kept], v[kept]
    found, wanted = two_sides(graph_of(num_nodes, u, v, directed)), slow_sides(num_nodes, zip(u, v, strict=True))
    assert (None if found is None else found.tolist()) == wanted


def test_two_sides__of_a_long_path_and_of_many_components_agree():
    path = np.random.default_rng(0).permutation(100_000)  # trees by the order of numbers are deep here
    sides = two_sides(graph_of(100_000, path[:-1], path[1:]))
    assert (sides[path[:-1]] + sides[path[1:]] == 1).all()
    users, shops = np.arange(5_000), np.arange(5_000) // 3 + 5_000
    assert two_sides(graph_of(7_000, users, shops))[:5_000].max() == 0
