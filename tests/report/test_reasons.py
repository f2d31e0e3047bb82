"""Reasons in numbers against slow twins: every triangle by hand."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence, cosine_distance, neighbors_of, usual_distance, usual_hop
from hcm_scale.report.explain import explain, source_of
from hcm_scale.report.reasons import NOTABLE_SHARE, _hops, far_group, first_by_kind
from hcm_scale.score.closure import far_cut, mark_far
from hcm_scale.score.evidence import KINDS
from hcm_scale.score.table import kind_rank

World = Callable[..., Any]


def slow_lengths(graph: Graph, edge_mean: np.ndarray) -> dict[frozenset[int], float]:
    pairs = [(u, int(v)) for u in range(graph.num_nodes) for v in neighbors_of(graph, u) if v > u]
    return {frozenset(pair): float(mean) for pair, mean in zip(pairs, edge_mean, strict=True)}


@pytest.mark.parametrize("num_nodes", [16, 80])  # dense, and as thin as graphs are
def test_far_group__are_the_neighbours_of_the_far_triangles(scored_world: World, num_nodes: int):
    world = scored_world(num_nodes)
    evidence = Evidence.of(*world)
    length = slow_lengths(world.graph, world.edge_mean)
    far = dict(zip(length, mark_far(world.edge_mean, far_cut(world.edge_mean, 0.4)).tolist(), strict=True))
    for node in range(num_nodes):
        around = neighbors_of(world.graph, node).tolist()
        closed = [
            (u, v)
            for u, v in itertools.combinations(around, 2)
            if all(far.get(frozenset(pair)) for pair in ((u, v), (node, u), (node, v)))
        ]
        value, count, pairs, far_pairs = far_group(evidence, node, _hops(evidence), len(closed))
        members = {end for pair in closed for end in pair}
        joined = [pair for pair in itertools.combinations(members, 2) if frozenset(pair) in length]
        assert (count, pairs, far_pairs) == (len(members), len(joined), len(closed))
        if closed:
            assert value == pytest.approx(np.mean([length[frozenset(pair)] for pair in closed]), rel=1e-5)
        else:
            assert value is None


def test_reasons__are_the_notable_kinds_the_strongest_first(scored_world: World):
    world = scored_world(200, rank_by="score")
    evidence = Evidence.of(*world)
    for row in world.scores.to_pylist():
        places = {kind: row[kind_rank(kind)] for kind in KINDS}
        told = [reason.kind for reason in explain(evidence, row["node"]).reasons]
        assert [places[kind] for kind in told] == sorted(places[kind] for kind in told)
        notable = {kind for kind, place in places.items() if place <= NOTABLE_SHARE * 200}
        assert set(told) == notable or (not notable and len(told) == 1)
        assert places[told[0]] == min(places.values())
        assert row["evidence"] == told[0] or places[row["evidence"]] == places[told[0]]


def test_reasons__without_ranks_by_kind_tell_the_hops(scored_world: World):
    world = scored_world(kinds=False)
    (reason,) = explain(Evidence.of(*world), 3).reasons
    assert (reason.kind, reason.rank) == ("hop", None)


def test_reasons__of_a_node_without_neighbours_are_its_attributes(scored_world: World):
    world = scored_world()
    lonely = Graph(np.zeros(61, np.int64), np.zeros(0, np.int32), x=world.graph.x, columns=world.graph.columns)
    none = np.zeros(0, np.float32)
    scores = world.scores.drop_columns("degree").append_column("degree", [np.zeros(60, np.int64)])
    found = explain(Evidence.of(lonely, None, scores, none, none, world.x), 5)
    assert [reason.kind for reason in found.reasons] == ["attributes"]
    assert found.differences  # against the mean of all nodes


def test_usual__is_a_median_and_none_without_edges(scored_world: World):
    world = scored_world()
    assert usual_hop(world.edge_mean) == pytest.approx(np.median(world.edge_mean))
    assert usual_hop(np.full(3, np.nan, np.float32)) is None
    rows = np.repeat(np.arange(60), world.graph.degrees)
    wanted = np.median(cosine_distance(world.x[rows], world.x[world.graph.indices]))
    assert usual_distance(world.graph, world.x) == pytest.approx(wanted)
    assert usual_distance(world.graph, None) is None


def test_differences__tell_a_hashed_text_once_and_by_its_name(scored_world: World):
    columns = ("age", *(f"name#{bucket}" for bucket in range(6)))
    world = scored_world(columns=columns)
    found = explain(Evidence.of(*world), 0).differences
    assert [d.column for d in found if d.is_text] == ["name"]
    assert all("#" not in d.column for d in found)
    assert source_of("ticket#7", ("ticket#7", "age")) == ("ticket#7", False)


def test_heads__are_the_first_by_each_kind_with_ties_by_node(scored_world: World):
    world = scored_world(200, rank_by="score")
    graph, table = world.graph, world.scores
    found = first_by_kind(graph, table, 7)
    assert list(found) == list(KINDS)
    for kind, rows in found.items():
        wanted = sorted(zip(table[kind_rank(kind)].to_pylist(), table["node"].to_pylist(), strict=True))[:7]
        assert [(row["place"], row["node"]) for row in rows] == wanted
    same = table.set_column(table.column_names.index("hop_rank"), "hop_rank", [np.full(200, 100)])
    assert "hop" not in first_by_kind(graph, same, 7)
    assert first_by_kind(graph, scored_world(kinds=False).scores, 7) == {}


def test_evidence__distances_need_features(scored_world: World):
    world = scored_world(rank_by="score")
    without = Evidence.of(*replace_x(world))
    told = [r for row in range(60) for r in explain(without, row).reasons if r.kind.startswith("context")]
    assert told
    assert all(reason.value is None for reason in told)


def replace_x(world: Any) -> tuple[Any, ...]:
    return (replace(world.graph), *world[1:5], None)
