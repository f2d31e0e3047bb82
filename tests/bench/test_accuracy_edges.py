"""Planted edges are what their kinds say, and the obvious scores are those of a slow count."""

import numpy as np
import pytest

from bench.accuracy.edges import KINDS, RECIPES, markdown, obvious, plant_edges
from bench.accuracy.worlds import world
from bench.accuracy.zoo import edges


def made(name: str, num_nodes: int = 1_000):
    before = world(name, num_nodes, 0, RECIPES.get(name))
    return before, plant_edges(before, 0)


@pytest.mark.parametrize("name", ["tidy", "sparse_edges", "bipartite"])
def test_plant_edges__adds_as_many_of_every_kind_and_nothing_else(name):
    before, planted = made(name)
    counts = np.bincount(planted.kind, minlength=5)[1:]
    assert (counts == counts[0]).all()
    assert counts[0] >= 10
    assert planted.graph.num_edges == before.graph.num_edges + 3 * counts[0]  # rewired edges go from elsewhere
    old = {*zip(*(end.tolist() for end in edges(before.graph)), strict=True)}
    ends = list(zip(*(end.tolist() for end in planted.ends), strict=True))
    assert all((pair in old) == (kind == 0) for pair, kind in zip(ends, planted.kind.tolist(), strict=True))


def test_plant_edges__kinds_are_what_they_say():
    before, planted = made("tidy")
    left, right = planted.ends
    apart = before.groups[left] != before.groups[right]
    assert apart[planted.kind == 1 + KINDS.index("between")].all()
    graph = before.graph
    rows = [set(graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()) for v in range(graph.num_nodes)]
    near = np.flatnonzero(planted.kind == 1 + KINDS.index("near"))
    assert all(rows[left[e]] & rows[right[e]] for e in near)
    _, sided = made("bipartite")
    types = world("bipartite", 1_000, 0).types
    assert (types[sided.ends[0]] != types[sided.ends[1]]).all()


def test_obvious__common_neighbours_and_cosine_are_those_of_a_slow_count():
    before, planted = made("tidy")
    graph, (left, right) = planted.graph, planted.ends
    x = np.asarray(before.graph.x)
    found = obvious(planted, x, 0)
    rows = [set(graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()) for v in range(graph.num_nodes)]
    assert found["common neighbours"].tolist() == [
        -len(rows[u] & rows[v]) for u, v in zip(left.tolist(), right.tolist(), strict=True)
    ]
    cosine = (x[left[0]] @ x[right[0]]) / np.linalg.norm(x[left[0]]) / np.linalg.norm(x[right[0]])
    assert found["cosine"][0] == pytest.approx(-cosine, abs=1e-5)
    assert found["GAE"].shape == left.shape


def test_markdown__has_a_row_for_every_world_and_kind():
    lines = [{"world": "tidy", "method": "ours"} | {kind: [0.9, 0.25] for kind in KINDS} for _ in range(2)]
    rows = markdown(lines).splitlines()
    assert len(rows) == 2 + len(KINDS)
    assert rows[2] == "| tidy | random | .900 / .250 |"
