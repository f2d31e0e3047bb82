"""Reasons in numbers against slow twins: every triangle by hand."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.base.names import NO_COLUMN
from hcm_scale.graph import Graph
from hcm_scale.report.explain import explain
from hcm_scale.report.reasons import first_by_kind
from hcm_scale.report.wording import all_reasons
from hcm_scale.score.kinds import around
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.kinds.closure import far_cut, mark_far

World = Callable[..., Any]
MANY = 2 * (1 << 18) + 5  # nodes: more than two slices


def neighbors_of(graph: Graph, node: int) -> np.ndarray:
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]]


def slow_lengths(graph: Graph, edge_mean: np.ndarray) -> dict[frozenset[int], float]:
    pairs = [(u, int(v)) for u in range(graph.num_nodes) for v in neighbors_of(graph, u) if v > u]
    return {frozenset(pair): float(mean) for pair, mean in zip(pairs, edge_mean, strict=True)}


@pytest.mark.parametrize("num_nodes", [16, 80])  # dense, and as thin as graphs are
def test_reasons__a_group_are_the_neighbours_of_the_far_triangles(scored_world: World, num_nodes: int):
    world = scored_world(num_nodes)
    column = world.scores.column_names.index("closure_rank")
    first = world.scores.set_column(column, "closure_rank", [np.ones(num_nodes, np.int32)])  # a reason of every node
    evidence = world._replace(scores=first).evidence()
    length = slow_lengths(world.graph, world.edge_mean)
    far = dict(zip(length, mark_far(world.edge_mean, far_cut(world.edge_mean, 0.4)).tolist(), strict=True))
    for node in range(num_nodes):
        others = neighbors_of(world.graph, node).tolist()
        closed = [
            (u, v)
            for u, v in itertools.combinations(others, 2)
            if all(far.get(frozenset(pair)) for pair in ((u, v), (node, u), (node, v)))
        ]
        reason = next((reason for reason in explain(evidence, node).reasons if reason.kind == "closure"), None)
        assert (reason is None) == (not closed)  # without a triangle there is nothing to tell
        if reason is None:
            continue
        members = {end for pair in closed for end in pair}
        joined = [pair for pair in itertools.combinations(members, 2) if frozenset(pair) in length]
        assert (reason.count, reason.pairs, reason.far_pairs) == (len(members), len(joined), len(closed))
        assert reason.value == pytest.approx(np.mean([length[frozenset(pair)] for pair in closed]), rel=1e-5)


def test_reasons__of_a_hub_are_told_without_a_look_at_pairs(scored_world: World, monkeypatch):
    """A hub is a node whose neighbours have more edges than are looked at; all of them are here."""
    world = scored_world(16, rank_by="score")
    ones = [np.ones(16, np.int32)]
    for name in ("closure_rank", "context_closure_rank"):  # reasons of every node
        world = world._replace(scores=world.scores.set_column(world.scores.column_names.index(name), name, ones))
    evidence = world.evidence()
    every = [explain(evidence, node) for node in range(16)]
    monkeypatch.setattr(around, "MAX_STEPS", 0)
    seen = set()
    for found in every:
        hub = explain(evidence, found.node)
        assert [reason.kind for reason in hub.reasons] == [reason.kind for reason in found.reasons]
        for own, known in zip(hub.reasons, found.reasons, strict=True):
            if own.kind.endswith("closure"):
                seen.add(own.kind)
                assert (own.value, own.rank, own.far_pairs) == (None, known.rank, 0)
                assert "close triangles" in all_reasons(hub)
            elif own.kind == "cohesion":
                assert own.value is None
            else:
                assert own == known
    assert "closure" in seen


def test_reasons__are_the_notable_kinds_causes_and_then_the_strongest_first(scored_world: World):
    world = scored_world(200, rank_by="score")
    evidence = world.evidence()
    for row in world.scores.to_pylist():
        places = {kind: row[f"{kind}_rank"] for kind in KINDS}
        told = [reason.kind for reason in explain(evidence, row["node"]).reasons]
        causes = told.index("attributes") if "attributes" in told else 0
        assert not {"hop", "context"} & set(told[:causes])
        silent = {kind for kind in ("closure", "context_closure", "cohesion") if row[kind] <= 0.0}
        notable = {kind for kind, place in places.items() if place <= 0.05 * 200} - silent
        assert set(told) == notable or (not notable and len(told) == 1)
        others = [kind for kind in told if kind != "attributes"]
        assert [places[kind] for kind in others] == sorted(places[kind] for kind in others)
        strongest = min(place for kind, place in places.items() if kind not in silent)
        assert strongest in {places[told[0]], places[(others or told)[0]]}


def test_reasons__of_a_node_with_one_neighbour_do_not_begin_with_hops(scored_world: World):
    world = scored_world(60, rank_by="score")
    ones = {"hop_rank": pa.int32(), "context_rank": pa.int32(), "degree": pa.int64()}

    def first(degree: int) -> str:
        scores = world.scores
        for name, kind in ones.items():
            values = np.full(60, degree if name == "degree" else 1 + (name == "context_rank"))
            scores = scores.set_column(scores.column_names.index(name), name, pa.array(values, kind))
        evidence = world._replace(scores=scores).evidence()
        kinds = [reason.kind for reason in explain(evidence, 7).reasons]
        return kinds[0] if "context" in kinds and "hop" in kinds else ""

    assert first(2) == "hop"
    assert first(1) == "context"


def test_reasons__an_extreme_value_comes_before_what_follows_from_it_and_not_before_stronger_kinds(scored_world: World):
    world = scored_world(60, rank_by="score")
    ranks = {"cohesion_rank": 1, "attributes_rank": 60, "hop_rank": 2}
    scores, x = world.scores, np.asarray(world.graph.x).copy()
    for name, rank in ranks.items():
        at = scores.column_names.index(name)
        scores = scores.set_column(at, name, pa.array(np.full(60, rank), scores.schema.field(at).type))
    scores = scores.set_column(scores.column_names.index("cohesion"), "cohesion", pa.array(np.ones(60)))
    x[7] = 1e3
    evidence = world._replace(scores=scores, graph=replace(world.graph, x=x)).evidence()
    kinds = [reason.kind for reason in explain(evidence, 7).reasons]
    assert kinds[:2] == ["cohesion", "attributes"]
    assert "hop" in kinds[2:]


def test_reasons__are_none_whose_number_is_usual(scored_world: World, monkeypatch):
    """As that its neighbours look four hops away where those of all like it do."""
    evidence, nodes = scored_world(200, rank_by="score").evidence(), range(60)
    before = {node: [reason.kind for reason in explain(evidence, node).reasons] for node in nodes}
    assert any("hop" in kinds for kinds in before.values())
    monkeypatch.setattr(around.Around, "mean_length", lambda *_: {"value": 4.0, "usual": 3.99, "count": 1})
    for node, kinds in before.items():
        own = [kind for kind in kinds if kind not in ("hop", "context")]
        now = [reason.kind for reason in explain(evidence, node).reasons]
        assert now == own if own else (len(now) == 1 and now[0] not in ("hop", "context"))


def test_reasons__name_no_kind_that_weighs_nothing(scored_world: World):
    world = scored_world(200, rank_by="score")

    def told(scores: pa.Table) -> set[str]:
        evidence = world._replace(scores=scores).evidence()
        return {reason.kind for node in range(200) for reason in explain(evidence, node).reasons}

    metadata = {**world.scores.schema.metadata, b"faint": b"closure"}
    assert told(world.scores) - told(world.scores.replace_schema_metadata(metadata)) == {"closure"}


def test_reasons__of_a_node_without_neighbours_are_its_attributes(scored_world: World):
    world = scored_world()
    lonely = Graph(np.zeros(61, np.int64), np.zeros(0, np.int32), x=world.graph.x, columns=world.graph.columns)
    none = np.zeros(0, np.float32)
    none_of = {"degree": np.zeros(60, np.int64), "cohesion": np.zeros(60)}
    scores = world.scores.drop_columns([*none_of])
    for name, values in none_of.items():
        scores = scores.append_column(name, [values])
    found = explain(type(world)(lonely, None, scores, none, none, world.x).evidence(), 5)
    assert [reason.kind for reason in found.reasons] == ["attributes"]
    assert found.differences  # against the mean of all nodes


def test_differences__tell_a_hashed_text_once_and_by_its_name(scored_world: World):
    columns = ("age", *(f"name#{bucket}" for bucket in range(6)))
    world = scored_world(columns=columns)
    found = explain(world.evidence(), 0).differences
    assert [d.column for d in found if d.is_text] == ["name"] == [found[-1].column]
    assert not found[-1].notable
    assert all("#" not in d.column for d in found)
    plain = explain(scored_world(columns=("ticket#7", "age")).evidence(), 0).differences
    assert {d.column: d.is_text for d in plain} == {"ticket#7": False, "age": False}


def test_first_by_kind__are_the_first_by_each_kind_with_ties_by_node(scored_world: World):
    world = scored_world(200, rank_by="score")
    graph, table = world.graph, world.scores
    found = first_by_kind(graph, table, 7)
    assert list(found) == list(KINDS)
    for kind, rows in found.items():
        ranks = table[f"{kind}_rank"].to_pylist()
        wanted = sorted(zip(ranks, table["node"].to_pylist(), strict=True))[:7]
        wanted = [pair for pair in wanted if pair[0] < max(ranks)]  # who has nothing of a kind is not among its first
        assert [(row["place"], row["node"]) for row in rows] == wanted
    assert min(map(len, found.values())) < 7
    same = table.set_column(table.column_names.index("hop_rank"), "hop_rank", [np.full(200, 100)])
    assert "hop" not in first_by_kind(graph, same, 7)


def test_evidence__distances_need_features(scored_world: World):
    world = scored_world(rank_by="score")
    without = world._replace(x=None).evidence()
    told = [r for row in range(60) for r in explain(without, row).reasons if r.kind.startswith("context")]
    assert told
    assert all(reason.value is None for reason in told)


@pytest.mark.parametrize("most", [3, MANY])
def test_first_by_kind__are_the_first_of_all_slices(most: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(2)
    empty = Graph(np.zeros(MANY + 1, np.int64), np.zeros(0, np.int32))
    node, places = rng.permutation(MANY), rng.integers(0, most, MANY).astype(np.int32)
    first = np.lexsort((node, places))[:10]
    wanted = [
        {"id": u, "node": u, "rank": row + 1, "place": place}
        for u, row, place in zip(node[first].tolist(), first.tolist(), places[first].tolist(), strict=True)
    ]
    ranks = {f"{kind}_rank": places if kind == "context" else np.full(MANY, 5) for kind in KINDS}
    table = pa.table(ranks | {"node": node, "evidence": node})
    for count in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=count: count)
        assert first_by_kind(empty, table, 10) == {"context": wanted}


def test_differences__are_against_neighbours_that_have_a_value_and_none_of_columns_of_other_types(scored_world: World):
    """Two types of which neither is compared by itself: nodes 40 to 59 have no age, and no other has a size."""
    world = scored_world(60, columns=("age", "age is null", "size", "size is null"))
    is_shop = np.arange(60) >= 40
    x = np.random.default_rng(0).normal(10.0, 1.0, (60, 4)).astype(np.float32)
    x[:, 1], x[:, 3] = NO_COLUMN * is_shop, NO_COLUMN * ~is_shop
    evidence = world._replace(graph=replace(world.graph, x=x)).evidence()
    for node in range(60):
        around = neighbors_of(evidence.graph, node)
        like = around[is_shop[around] == is_shop[node]]
        for found in explain(evidence, node).differences:
            assert found.column == ("size" if is_shop[node] else "age")
            expected = x[like, 2 if is_shop[node] else 0].mean() if len(like) else None
            assert found.neighbors == (None if expected is None else pytest.approx(expected, rel=1e-5))
