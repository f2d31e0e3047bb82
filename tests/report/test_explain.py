"""Explanations against slow twins: dictionaries of edges, dense attributes; types and weights of edges."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kinds import hops_of, inputs_of, scores_of
from scipy import sparse

from bench.weights import spread_to_entries
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.ingest.readers import read_tables
from hcm_scale.report import card, page, wording
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import Difference, Explanation, Neighbor, explain
from hcm_scale.score import table as ranked_table
from hcm_scale.score.edge_index import edge_index

World = Callable[..., Any]


def scored(graph: Graph, mean: np.ndarray, var: np.ndarray | None = None) -> Evidence:
    """Evidence of a graph whose edges have these predicted hops."""
    var = np.zeros(len(mean)) if var is None else var
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    scores = scores_of(inputs_of(edges, hops=hops_of(edges, mean.astype(np.float32), var.astype(np.float32))))
    table = pa.concat_tables(make() for make in ranked_table.row_groups(graph, scores, "ahp"))
    return Evidence.of(graph, None, table, mean.astype(np.float32), var.astype(np.float32))


def slow_edges(graph: Graph) -> dict[tuple[int, int], int]:
    """(u, v) of every edge to its number, both ways round."""
    numbers, number = {}, 0
    for u in range(graph.num_nodes):
        for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist():
            if v > u:
                numbers[u, v] = numbers[v, u] = number
                number += 1
    return numbers


def made(**changes: Any) -> Explanation:
    """An explanation written by hand."""
    neighbors = tuple(Neighbor(f"n{i}", i, hop, 0.1, i < 2) for i, hop in enumerate((3.6, 3.1, 3.0, 1.2, 1.1)))
    base = Explanation(
        "A", 7, 3, 1000, {"ahp": 2.4, "iv": 0.01}, None, neighbors, (Difference("size", 9.0, 1.0, 8.123),)
    )
    return replace(base, **changes)


def test_explain__agrees_with_a_dictionary_of_edges(scored_world: World):
    world = scored_world()
    evidence = world.evidence()
    numbers = slow_edges(world.graph)
    kept = slow_edges(world.purified)
    for node in range(world.graph.num_nodes):
        found = explain(evidence, node)
        assert {n.node for n in found.neighbors} == {v for u, v in numbers if u == node}
        for neighbor in found.neighbors:
            edge = numbers[node, neighbor.node]
            assert neighbor.hop == pytest.approx(world.edge_mean[edge])
            assert neighbor.std == pytest.approx(np.sqrt(world.edge_var[edge]))
            assert neighbor.dropped == ((node, neighbor.node) not in kept)
            assert neighbor.id == f"node-{neighbor.node}"
        hops = [n.hop for n in found.neighbors]
        assert hops == sorted(hops, reverse=True)
        assert found.scores["ahp"] == pytest.approx(np.mean(hops), rel=1e-5)
        assert found.num_dropped == sum(bool(n.dropped) for n in found.neighbors)


def test_explain__lists_as_many_neighbours_as_are_asked_for_and_counts_all(scored_world: World):
    world = scored_world()
    evidence = world.evidence()
    for node in range(world.graph.num_nodes):
        found = explain(evidence, node)
        for most in (0, 1, 3):
            few = explain(evidence, node, num_neighbors=most)
            assert few.neighbors == found.neighbors[:most]
            assert few.as_dict(most) == found.as_dict(most)
            assert wording.dropped_text(few) == wording.dropped_text(found)
    nodes = world.scores["node"].to_pylist()
    assert wording.reasons_of(evidence, nodes) == [wording.all_reasons(explain(evidence, node)) for node in nodes]


def test_explain__rank_and_percentile_are_those_of_the_table(scored_world: World):
    world = scored_world()
    evidence = world.evidence()
    for row in world.scores.to_pylist():
        found = explain(evidence, row["node"])
        assert (found.rank, found.id, found.scores["hav"], found.degree) == (
            row["rank"],
            row["id"],
            row["hav"],
            row["degree"],
        )
        assert found.percentile == pytest.approx(100 * (60 - row["rank"]) / 60)
        assert found.label == ("anomaly" if row["y"] else "normal")


@pytest.mark.parametrize("as_sparse", [False, True])
def test_explain__differences_are_deviations_from_the_neighbours_mean(scored_world: World, as_sparse: bool):
    world = scored_world(columns=tuple(f"c{i}" for i in range(12)))
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(60, 12)) * (rng.random((60, 12)) < 0.4)).astype(np.float32)
    x[:, 3] = 5.0  # no spread: cannot set a node apart
    held = SparseRows.of(sparse.csr_array(x)) if as_sparse else x
    evidence = world._replace(graph=replace(world.graph, x=held)).evidence()
    for node in (0, 17, 59):
        row = world.graph.indices[world.graph.indptr[node] : world.graph.indptr[node + 1]]
        spread = x.astype(np.float64).std(axis=0)
        wanted = np.divide(x[node] - x[row].mean(axis=0), spread, out=np.zeros(12), where=spread > 0)
        found = explain(evidence, node, num_differences=12)
        sizes = [abs(d.deviations) for d in found.differences]
        assert sizes == sorted(sizes, reverse=True)
        got = {d.column: d.deviations for d in found.differences}
        assert "c3" not in got
        for column, value in enumerate(wanted):
            assert got.get(f"c{column}", 0.0) == pytest.approx(value, abs=1e-5)


def test_explain__knows_where_flags_end(scored_world: World):
    world = scored_world()
    rows = world.scores
    judged = {"p": pa.array(np.linspace(0.001, 0.9, 60)), "flagged": pa.array(np.arange(60) < 3)}
    for name, values in judged.items():
        rows = rows.drop_columns([name] if name in rows.column_names else []).append_column(name, values)
    told = rows.schema.metadata | {b"fdr": b"0.2"}
    found = explain(world._replace(scores=rows.replace_schema_metadata(told)).evidence(), 0)
    assert (found.flags_end, found.fdr) == (judged["p"][2].as_py(), 0.2)
    rows = rows.drop_columns(["flagged"]).append_column("flagged", pa.array([False] * 60))
    assert explain(world._replace(scores=rows).evidence(), 0).flags_end is None


def test_explain__of_a_node_without_neighbours_and_without_attributes():
    graph = Graph(np.array([0, 1, 2, 2]), np.array([1, 0], np.int32))
    evidence = scored(graph, np.array([2.0]), np.array([0.25]))
    lonely = explain(evidence, 2)
    assert (lonely.degree, lonely.id, lonely.differences) == (0, 2, ())
    assert "No edge leads from it" in wording.explanation_text(lonely)
    assert "rank 3 of 3" in wording.explanation_text(lonely)
    other = explain(evidence, 0)
    assert other.neighbors == (Neighbor(1, 1, 2.0, 0.5, None, rank=2),)
    assert "its only neighbour looks 2.0 hops away" in wording.explanation_text(other)


def test_explain__directed_arcs_are_numbered_as_they_lie():
    graph = Graph(np.array([0, 2, 2, 3]), np.array([1, 2, 0], np.int32), directed=True)
    evidence = scored(graph, np.array([1.0, 3.0, 2.0]))
    assert [(n.node, n.hop) for n in explain(evidence, 0).neighbors] == [(2, 3.0), (1, 1.0)]
    assert [(n.node, n.hop) for n in explain(evidence, 2).neighbors] == [(0, 2.0)]


def test_explain__edges_that_were_not_scored_come_last(scored_world: World):
    world = scored_world()
    mean = world.edge_mean.copy()
    first_edge = min(number for (u, _), number in slow_edges(world.graph).items() if u == 0)
    mean[first_edge] = np.nan
    found = explain(world._replace(edge_mean=mean, x=None).evidence(), 0)
    assert found.neighbors[-1].hop is None
    assert "not scored" in wording.explanation_text(found)
    json.dumps(found.as_dict(), allow_nan=False)


def test_text__is_aligned_and_moves_no_cursor():
    evil = made(
        id="\x1b[2Jboo", differences=(Difference("a\nb", 1.0, 2.0, -3.0), Difference("long" * 30, 1.0, 2.0, 2.5))
    )
    lines = wording.explanation_text(evil, limit=3).splitlines()
    assert "\x1b" not in wording.explanation_text(evil)
    assert "and 2 nearer" in lines
    assert len({line.index("±") for line in lines if "±" in line}) == 1
    assert max(map(len, lines)) <= 120


def test_as_dict__is_json_and_tells_how_many_neighbours_there_are():
    body = json.loads(json.dumps(made().as_dict(limit=2), allow_nan=False))
    assert (len(body["neighbors"]), body["degree"], body["rank"]) == (2, 5, 3)


def test_explain__refuses_a_node_that_is_not_there(scored_world: World):
    with pytest.raises(ValueError, match="node=60 is not in this graph"):
        explain(scored_world().evidence(), 60)


def test_explain__dates_are_known_from_what_the_ingest_noted(tmp_path):
    days = pa.array([0, 1, 40], pa.date32())
    moments = pa.array([0, 90_000, 7_200], pa.timestamp("s"))
    waits = moments.cast(pa.int64()).cast(pa.duration("s"))
    nodes = pa.table({"id": [0, 1, 2], "day": days, "moment": moments, "wait": waits})
    graph = read_tables(tmp_path / "graph", pa.table({"source": [0, 1], "target": [1, 2]}), nodes)
    found = {d.column: d for d in explain(scored(graph, np.ones(2)), 1).differences}
    first = {"day": "1970-01-01", "moment": "1970-01-01T00:00", "wait": None}
    assert {name: d.first_day for name, d in found.items()} == first
    assert "1970-01-02 01:00" in wording.explanation_text(explain(scored(graph, np.ones(2)), 1))


def test_explain__one_row_more_than_usual_makes_no_value_extreme(tmp_path):
    """Of 60 accounts that pay 8 to 12 others one has a round amount among its 30, and one nothing else."""
    rng = np.random.default_rng(0)
    rows = [(payer, (payer + step) % 60) for payer in range(60) for step in range(1, 9 + payer % 5)]
    rows += [(0, payee) for payee in range(1, 60, 3)]
    payer, payee = np.array(rows).T
    amount = rng.uniform(5.0, 90.0, len(rows)).round(2) + 0.003
    amount[np.flatnonzero(payer == 0)[:1]], amount[payer == 1] = 300.0, 400.0
    table = pa.table({"source": payer, "target": payee, "amount": amount})
    graph = read_tables(tmp_path / "graph", table)
    evidence = scored(graph, np.ones(graph.num_edges))
    extreme = [{d.column: d.counts for d in explain(evidence, node).differences if d.extreme} for node in (0, 1)]
    assert "round amount, as source" not in extreme[0]
    assert extreme[1]["round amount, as source"] == (9, 9)


STAR = Graph(
    np.array([0, 2, 3, 4]),
    np.array([1, 2, 0, 0], np.int32),
    info={"edge_types": ["call", "mail"]},
    edge_types=np.array([3, 2, 3, 2], np.uint16),
)


def test_explain__edge_types_are_those_of_the_node_s_own_row():
    def types(graph: Graph, node: int) -> dict[int, tuple[str, ...]]:
        return {n.node: n.types for n in explain(scored(graph, np.ones(2)), node).neighbors}

    assert types(STAR, 0) == {1: ("call", "mail"), 2: ("mail",)}
    assert types(STAR, 2) == {0: ("mail",)}
    assert types(replace(STAR, edge_types=None), 0) == {1: (), 2: ()}
    assert types(replace(STAR, info={"edge_types": 5}), 0) == {1: (), 2: ()}
    assert "dropped" not in (text := wording.explanation_text(explain(scored(STAR, np.array([3.0, 1.0])), 0)))
    assert [line.split()[-1] for line in text.splitlines()[-2:]] == ["mail", "mail"]


@pytest.fixture
def weighted(scored_world: World) -> Evidence:
    """A scored graph whose edges weigh 1, 2, 3, ..."""
    graph, *others = scored_world()
    weights = spread_to_entries(graph.indptr, graph.indices, np.arange(1, graph.num_edges + 1, dtype=np.float32))
    return Evidence.of(replace(graph, weights=weights, info={"weights": "am\x1bount"}), *others)


def test_explain__edge_weights_are_those_of_the_node_s_own_edges(weighted: Evidence):
    graph = weighted.graph
    for node in range(graph.num_nodes):
        row = slice(graph.indptr[node], graph.indptr[node + 1])
        weight_of = dict(zip(graph.indices[row].tolist(), graph.weights[row].tolist(), strict=True))
        for neighbor in explain(weighted, node).neighbors:
            found, lighter = neighbor.weight, np.mean(graph.weights < weight_of[neighbor.node])
            assert (found.name, found.value) == ("am\x1bount", weight_of[neighbor.node])
            assert found.percent == pytest.approx(100 * lighter, abs=1.5)
            assert 0 <= found.percent <= 99


def test_explain__equal_weights_are_heavier_than_none(weighted: Evidence):
    same = np.full(weighted.graph.num_arcs, 5, np.float32)
    found = Evidence.of(
        replace(weighted.graph, weights=same), None, weighted.scores, weighted.edge_mean, weighted.edge_var
    )
    assert {n.weight.percent for n in explain(found, 0).neighbors if n.weight} == {0}


def test_card__weights_stand_on_the_card(weighted: Evidence):
    shown = card.card(weighted, 0, 4, 5)
    made = page.templates().from_string('{% from "card.html" import card %}{{ card(node, 9) }}').render(node=shown)
    first = shown["neighbors"][0]["weight"]
    assert f"ount {first['value']:,.2f} (heavier than {first['percent']} % of edges)</small>" in made
    assert first == explain(weighted, 0).as_dict()["neighbors"][0]["weight"]
