"""Weights of edges in an explanation: on a terminal, in a dict, on the page."""

from dataclasses import replace

import numpy as np
import pytest

from hcm_scale.graph.lookup import spread_to_entries
from hcm_scale.report import wording
from hcm_scale.report.card import card
from hcm_scale.report.evidence import Evidence, percentiles
from hcm_scale.report.explain import EdgeWeight, Explanation, Neighbor, explain
from hcm_scale.report.page import templates


@pytest.fixture
def evidence(scored_world):
    """A scored graph whose edges weigh 1, 2, 3, ..."""
    graph, *others = scored_world()
    weights = spread_to_entries(graph.indptr, graph.indices, np.arange(1, graph.num_edges + 1, dtype=np.float32))
    return Evidence.of(replace(graph, weights=weights, info={"weights": "am\x1bount"}), *others)


def test_weights__are_those_of_the_node_s_own_edges(evidence):
    graph = evidence.graph
    for node in range(graph.num_nodes):
        row = slice(graph.indptr[node], graph.indptr[node + 1])
        weight_of = dict(zip(graph.indices[row].tolist(), graph.weights[row].tolist(), strict=True))
        for neighbor in explain(evidence, node).neighbors:
            found, lighter = neighbor.weight, np.mean(graph.weights < weight_of[neighbor.node])
            assert (found.name, found.value) == ("am\x1bount", weight_of[neighbor.node])
            assert found.percent == pytest.approx(100 * lighter, abs=1.5)
            assert 0 <= found.percent <= 99


def test_percentiles__say_nothing_of_weights_that_are_all_the_same(evidence):
    same = np.full(evidence.graph.num_arcs, 5, np.float32)
    assert percentiles(same).tolist() == [5] * 101
    assert np.searchsorted(percentiles(same), 5) == 0


def test_weights__stand_beside_the_neighbour_on_a_terminal():
    heavy, light = EdgeWeight("am\x1bount", 1200.0, 99), EdgeWeight("am\x1bount", 0.5, 3)
    neighbors = Neighbor("b", 1, 3.0, 0.1, True, weight=heavy), Neighbor("c", 2, 1.0, 0.1, False, weight=light)
    lines = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, neighbors, ())).splitlines()
    assert "neighbour    predicted hop   edge       am\ufffdount" in lines
    assert "b             3.00 ± 0.10    dropped    1,200.00 (heavier than 99 % of edges)" in lines
    assert "c             1.00 ± 0.10    kept       0.50 (heavier than 3 % of edges)" in lines
    typed = (replace(neighbors[0], types=("call", "mail")), neighbors[1])
    lines = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, typed, ())).splitlines()
    assert "neighbour    predicted hop   edge       type         am\ufffdount" in lines
    assert "c             1.00 ± 0.10    kept                    0.50 (heavier than 3 % of edges)" in lines


def test_weights__stand_on_the_card(evidence):
    shown = card(evidence, 0, 4, 5)
    made = templates().from_string('{% from "card.html" import card %}{{ card(node, 9) }}').render(node=shown)
    first = shown["neighbors"][0]["weight"]
    assert f"ount {first['value']:,.2f} (heavier than {first['percent']} % of edges)</small>" in made
    assert first == explain(evidence, 0).as_dict()["neighbors"][0]["weight"]
