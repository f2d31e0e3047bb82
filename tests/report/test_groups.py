"""Groups among the first nodes: a planted clique is one, a ring is one, a hub glues nothing."""

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.graph import Graph
from hcm_scale.report import wording
from hcm_scale.report.groups import find_groups, groups, num_first


def graph_of(pairs: list[tuple[int, int]], num_nodes: int) -> Graph:
    both = sorted({(u, v) for a, b in pairs for u, v in ((a, b), (b, a))})
    rows = np.array([u for u, _ in both], np.int64)
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=num_nodes))].astype(np.int64)
    return Graph(indptr, np.array([v for _, v in both], np.int32))


def clique(members: range) -> list[tuple[int, int]]:
    return [(u, v) for u in members for v in members if u < v]


def ring(members: range) -> list[tuple[int, int]]:
    return [(u, u + 1) for u in members[:-1]] + [(members[0], members[-1])]


def test_find_groups__a_clique_and_a_ring_are_two_groups_whatever_joins_them():
    bridge = [(3, 12), (5, 14)]
    graph = graph_of([*clique(range(12)), *ring(range(12, 20)), *bridge], 25)
    assert find_groups(graph, list(range(25))) == [list(range(12)), list(range(12, 20))]


def test_find_groups__a_hub_glues_nothing():
    hub = [(99, v) for v in range(99)]
    graph = graph_of([*clique(range(8)), *clique(range(8, 16)), *hub], 100)
    assert find_groups(graph, list(range(100))) == [list(range(8)), list(range(8, 16))]


@pytest.mark.parametrize("pairs", [[(0, 1)], [(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3), (0, 4)], []])
def test_find_groups__pairs_chains_and_stars_are_none(pairs: list[tuple[int, int]]):
    assert find_groups(graph_of(pairs, 6), list(range(6))) == []


def test_find_groups__edges_by_chance_do_not_hide_a_planted_clique():
    rng = np.random.default_rng(0)
    chance = [(int(u), int(v)) for u, v in rng.integers(0, 100, (120, 2)) if u != v]
    graph = graph_of([*clique(range(12)), *chance], 100)
    found = find_groups(graph, list(range(100)))
    assert set(range(12)) == set(found[0])


def block(left: range, right: range) -> list[tuple[int, int]]:
    return [(u, v) for u in left for v in right]


def test_groups__a_block_between_two_sides_is_one_and_says_so():
    rng = np.random.default_rng(0)
    chance = [(int(u), int(v)) for u, v in zip(rng.integers(0, 50, 60), rng.integers(50, 100, 60), strict=True)]
    pairs = [*block(range(6), range(50, 58)), *block(range(10, 20), range(60, 64))[1:], *chance]
    nodes = np.r_[90:100, 50:64, 0:20]
    table = pa.table({"id": nodes, "node": nodes, "rank": range(1, len(nodes) + 1), "evidence": ["cohesion"] * 44})
    first, second = groups(graph_of(pairs, 100), table)
    assert {member["id"] for member in first["members"]} == {*range(6), *range(50, 58)}
    assert wording.group_text(first) == "each of 6 joined to each of 8, tight group (cohesion)"
    assert {member["id"] for member in second["members"]} == {*range(10, 20), *range(60, 64)}
    assert wording.group_text(second) == "39 of 40 pairs of 10 with 4 joined, tight group (cohesion)"


def test_find_groups__looks_at_the_given_nodes_only_and_in_their_order():
    graph = graph_of(clique(range(6)), 8)
    assert find_groups(graph, [7, 5, 4, 6, 2]) == [[1, 2, 4]]
    assert find_groups(graph, []) == []


def test_find_groups__arcs_join_either_way():
    graph = Graph(np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int32), directed=True)
    assert find_groups(graph, [0, 1, 2]) == [[0, 1, 2]]


def test_groups__tell_what_members_share():
    graph = graph_of(clique(range(4)), 6)
    kinds = ["closure", "hop", "closure", "closure", "hop", "hop"]
    labels = {"y": np.array([1, 1, 1, 1, 0, 0], np.uint8), "kind": np.array([1, 1, 1, 1, 0, 0], np.uint8)}
    table = pa.table({"id": list("abcdef"), "node": range(6), "rank": range(1, 7), "evidence": kinds, **labels})
    (found,) = groups(graph, table)
    assert [member["id"] for member in found["members"]] == list("abcd")
    told = "all joined to each other, group of strangers (closure) for 3 of them, known as structural anomaly"
    assert wording.group_text(found) == told


def test_num_first__is_as_many_as_are_flagged_within_limits():
    def table(num_flagged: int) -> pa.Table:
        return pa.table({"flagged": np.arange(5000) < num_flagged})

    assert [num_first(table(n)) for n in (0, 300, 4000)] == [100, 300, 1000]
    assert num_first(pa.table({"node": range(7)})) == 7
