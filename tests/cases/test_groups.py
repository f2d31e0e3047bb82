"""Dense groups: what holds an edge, against the same counted slowly, and what a group grows by."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from scipy.stats import entropy, poisson

from hcm_scale.cases.groups import Structure, dense_groups, grown_groups, poisson_surprise
from tests.helpers import small_graph


def structure(edges, num_nodes: int, side=None) -> Structure:
    pairs = sorted({pair for u, v in edges if u != v for pair in ((u, v), (v, u))})
    left = np.array([u for u, _ in pairs], np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(left, minlength=num_nodes))])
    sides = None if side is None else np.array(side, np.int8)
    return Structure(indptr, np.array([v for _, v in pairs], np.int32), sides)


def random_edges(num_nodes: int, num_edges: int, rng) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in rng.integers(0, num_nodes, (num_edges, 2)).tolist()]


def slow_groups(graph: Structure, nodes) -> list[set[int]]:
    """Components of the edges that hold, by sets, scipy's Poisson distribution and an entropy."""
    inside = set(nodes.tolist())
    every = {u: {*graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist()} for u in inside}
    near = {u: every[u] & inside for u in inside}
    degree = {u: int(graph.indptr[u + 1] - graph.indptr[u]) for u in inside}
    rate = sum(d * (d - 1) for d in degree.values()) / float(graph.indptr[-1]) ** 2
    q = min(0.25, 2.0 * sum(degree.values()) / float(graph.indptr[-1]))
    held, weak = nx.Graph(), nx.Graph()
    held.add_nodes_from(inside)
    for u in inside:
        for v in near[u]:
            shared = len(near[u] & near[v])
            mean = degree[u] * degree[v] * rate
            surprise = -poisson.logsf(shared - 1, mean) if shared > mean else 0.0
            least = math.log(max(degree[u], degree[v])) + 3.0
            if surprise > least:
                share = shared / len(every[u] & every[v])
                surprise = len(every[u] & every[v]) * entropy([share, 1.0 - share], [q, 1.0 - q]) if share > q else 0.0
                if surprise > least:
                    held.add_edge(u, v)
                elif surprise > 1.0:
                    weak.add_edge(u, v)
    parts = list(nx.connected_components(held))
    for one, other in itertools.combinations(parts, 2):
        if 3 * sum(weak.has_edge(u, v) for u in one for v in other) >= len(one) * len(other):
            held.add_edge(min(one), min(other))
    return sorted((set(part) for part in nx.connected_components(held) if len(part) > 1), key=min)


@pytest.mark.parametrize("seed", range(4))
def test_dense_groups__are_components_of_edges_that_hold(seed):
    rng = np.random.default_rng(seed)
    edges = random_edges(300, 900, rng)
    for first, size in ((0, 10), (40, 7)):
        edges += list(itertools.combinations(range(first, first + size), 2))
    edges += [pair for pair in itertools.combinations(range(80, 110), 2) if rng.random() < 0.5]
    graph = structure(edges, 300)
    nodes = np.unique(np.concatenate([np.r_[0:10, 40:47, 80:110], rng.integers(0, 300, 60)]))
    found = dense_groups(graph, nodes)
    assert [set(group.core.tolist()) for group in found] == slow_groups(graph, nodes)
    assert {*range(10)} in [set(group.core.tolist()) & {*range(10)} for group in found]


def test_dense_groups__in_a_graph_of_two_sides_are_blocks_of_both():
    rng = np.random.default_rng(0)
    users, shops = rng.integers(0, 300, 1200), rng.integers(300, 400, 1200)
    block = list(itertools.product(range(8), range(300, 308)))
    graph = structure([*zip(users.tolist(), shops.tolist(), strict=True), *block], 400, [0] * 300 + [1] * 100)
    nodes = np.unique(np.concatenate([np.arange(8), np.arange(300, 308), rng.integers(0, 400, 40)]))
    (group,) = (group for group in dense_groups(graph, nodes) if len(group.core) > 8)
    assert {*range(8), *range(300, 308)} <= set(group.core.tolist())
    assert len(group.core) < 24


def test_dense_groups__a_hub_joins_nothing_together():
    cliques = [list(range(first, first + 8)) for first in (1, 20, 40, 60)]
    edges = [pair for clique in cliques for pair in itertools.combinations(clique, 2)]
    edges += [(0, other) for other in range(1, 400)] + random_edges(400, 600, np.random.default_rng(1))
    nodes = np.unique([0, *itertools.chain(*cliques)])
    groups = [{*group.core.tolist()} for group in dense_groups(structure(edges, 400), nodes)]
    assert sorted(len(group & {*clique}) for group in groups for clique in cliques if group & {*clique}) == [8] * 4


@pytest.mark.parametrize("seed", range(3))
def test_dense_groups__stay_apart_in_a_graph_of_communities_whose_edges_share_neighbours_anyway(seed):
    rng = np.random.default_rng(seed)
    pairs = [pair for low in range(0, 4000, 20) for pair in itertools.combinations(range(low, low + 20), 2)]
    edges = [pair for pair in pairs if rng.random() < 0.35] + random_edges(4000, 4000, rng)
    cliques = rng.permutation(4000)[:360].reshape(30, 12)
    edges += [pair for clique in cliques.tolist() for pair in itertools.combinations(sorted(clique), 2)]
    nodes = np.unique(np.concatenate([cliques.ravel(), rng.integers(0, 4000, 160)]))
    groups = [{*group.core.tolist()} for group in dense_groups(structure(edges, 4000), nodes)]
    assert max(map(len, groups)) <= 14
    assert all(any({*clique} <= group for group in groups) for clique in cliques.tolist())


def test_grown_groups__take_members_that_do_not_stand_out_and_no_others():
    edges = [*itertools.combinations(range(12), 2), *random_edges(500, 1500, np.random.default_rng(2))]
    graph = structure(edges, 500)
    (group,) = grown_groups(graph, [np.arange(8)])
    assert group.grown.tolist() == [8, 9, 10, 11]
    (pair,) = grown_groups(graph, [np.arange(2)])
    assert not len(pair.grown)


@pytest.mark.parametrize("nodes", [[], [3]])
def test_dense_groups__of_fewer_than_two_nodes_are_none(nodes):
    graph = small_graph()
    assert dense_groups(Structure(graph.indptr, graph.indices, None), np.array(nodes, np.int64)) == []


def test_poisson_surprise__is_near_that_of_scipy():
    for count, mean in [(1, 0.01), (3, 0.5), (10, 2.0), (40, 12.0), (200, 20.0), (3, 1e-9)]:
        assert poisson_surprise(float(count), mean) == pytest.approx(-poisson.logsf(count - 1, mean), rel=0.05, abs=0.3)
    assert poisson_surprise(2.0, 5.0) == 0.0
