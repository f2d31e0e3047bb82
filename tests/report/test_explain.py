"""Explanations against slow twins: dictionaries of edges, dense attributes."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.readers import read_tables
from hcm_scale.report.evidence import Evidence, column_moments, row_mean
from hcm_scale.report.explain import Difference, Explanation, Neighbor, explain, first_days, value_text
from hcm_scale.report.wording import explanation_text
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.nodes import score_nodes
from hcm_scale.score.table import row_groups

World = Callable[..., Any]


def scores_table(graph, scores, rank_by):
    return pa.concat_tables(make() for make in row_groups(graph, scores, rank_by))


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
    evidence = Evidence.of(*world)
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


def test_explain__rank_and_percentile_are_those_of_the_table(scored_world: World):
    world = scored_world()
    evidence = Evidence.of(*world)
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
    evidence = Evidence.of(replace(world.graph, x=held), *world[1:])
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
    found = explain(Evidence.of(*world._replace(scores=rows.replace_schema_metadata(told))), 0)
    assert (found.flags_end, found.fdr) == (judged["p"][2].as_py(), 0.2)
    rows = rows.drop_columns(["flagged"]).append_column("flagged", pa.array([False] * 60))
    assert explain(Evidence.of(*world._replace(scores=rows)), 0).flags_end is None


def test_row_mean__sparse_equals_dense():
    x = sparse.random_array((50, 9), density=0.3, rng=np.random.default_rng(0)).astype(np.float32)
    rows = np.array([3, 4, 4, 49])
    np.testing.assert_allclose(row_mean(SparseRows.of(x), rows), row_mean(x.toarray(), rows), rtol=1e-6)
    np.testing.assert_allclose(column_moments(SparseRows.of(x)), column_moments(x.toarray()), rtol=1e-6)
    assert row_mean(x.toarray(), np.array([], np.int64)).tolist() == [0.0] * 9


def test_explain__of_a_node_without_neighbours_and_without_attributes():
    graph = Graph(np.array([0, 1, 2, 2]), np.array([1, 0], np.int32))
    mean, var = np.array([2.0], np.float32), np.array([0.25], np.float32)
    scores = score_nodes(edge_index(graph.indptr, graph.indices), EdgeHops(mean, var), trim=0.0)
    evidence = Evidence.of(graph, None, scores_table(graph, scores, rank_by="ahp"), mean, var)
    lonely = explain(evidence, 2)
    assert (lonely.degree, lonely.id, lonely.differences) == (0, 2, ())
    assert "no neighbours" in explanation_text(lonely)
    assert "rank 3 of 3" in explanation_text(lonely)
    other = explain(evidence, 0)
    assert other.neighbors == (Neighbor(1, 1, 2.0, 0.5, None, rank=2),)
    assert "its only neighbour looks 2.0 hops away" in explanation_text(other)


def test_explain__directed_arcs_are_numbered_as_they_lie():
    graph = Graph(np.array([0, 2, 2, 3]), np.array([1, 2, 0], np.int32), directed=True)
    mean, var = np.array([1.0, 3.0, 2.0], np.float32), np.zeros(3, np.float32)
    scores = score_nodes(edge_index(graph.indptr, graph.indices, directed=True), EdgeHops(mean, var), trim=0.0)
    evidence = Evidence.of(graph, None, scores_table(graph, scores, rank_by="ahp"), mean, var)
    assert [(n.node, n.hop) for n in explain(evidence, 0).neighbors] == [(2, 3.0), (1, 1.0)]
    assert [(n.node, n.hop) for n in explain(evidence, 2).neighbors] == [(0, 2.0)]


def test_explain__edges_that_were_not_scored_come_last(scored_world: World):
    world = scored_world()
    mean = world.edge_mean.copy()
    first_edge = min(number for (u, _), number in slow_edges(world.graph).items() if u == 0)
    mean[first_edge] = np.nan
    found = explain(Evidence.of(*world[:3], mean, world.edge_var), 0)
    assert found.neighbors[-1].hop is None
    assert "not scored" in explanation_text(found)
    json.dumps(found.as_dict(), allow_nan=False)


def test_text__is_aligned_and_moves_no_cursor():
    evil = made(
        id="\x1b[2Jboo", differences=(Difference("a\nb", 1.0, 2.0, -3.0), Difference("long" * 30, 1.0, 2.0, 2.5))
    )
    lines = explanation_text(evil, limit=3).splitlines()
    assert "\x1b" not in explanation_text(evil)
    assert "and 2 nearer" in lines
    assert len({line.index("±") for line in lines if "±" in line}) == 1
    assert max(map(len, lines)) <= 120


def test_as_dict__is_json_and_tells_how_many_neighbours_there_are():
    body = json.loads(json.dumps(made().as_dict(limit=2), allow_nan=False))
    assert (len(body["neighbors"]), body["degree"], body["rank"]) == (2, 5, 3)


def test_explain__refuses_what_does_not_belong_together(scored_world: World):
    world = scored_world()
    with pytest.raises(ValueError, match="edge_mean has shape"):
        Evidence.of(*world[:3], world.edge_mean[1:], world.edge_var)
    with pytest.raises(ValueError, match="scores has 59 rows"):
        Evidence.of(world.graph, world.purified, world.scores.slice(1), world.edge_mean, world.edge_var)
    with pytest.raises(ValueError, match="purified has 1 nodes"):
        Evidence.of(world.graph, Graph(np.array([0, 0]), np.zeros(0, np.int32)), *world[2:])
    with pytest.raises(ValueError, match="node=60 is not in this graph"):
        explain(Evidence.of(*world), 60)


def test_dates__are_known_from_what_the_ingest_noted(tmp_path):
    days = pa.array([0, 1, 40], pa.date32())
    moments = pa.array([0, 90_000, 7_200], pa.timestamp("s"))
    nodes = pa.table(
        {"id": [0, 1, 2], "day": days, "moment": moments, "wait": moments.cast(pa.int64()).cast(pa.duration("s"))}
    )
    graph = read_tables(tmp_path / "graph", pa.table({"source": [0, 1], "target": [1, 2]}), nodes)
    assert first_days(graph) == {"day": "1970-01-01", "moment": "1970-01-01T00:00"}
    assert graph.x is not None
    assert [value_text(float(row[1]), first_days(graph)["moment"]) for row in graph.x][1] == "1970-01-02 01:00"
