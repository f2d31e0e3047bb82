"""What explanations are computed from, against plain formulas at any number of threads; the hint of weak attributes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from hcm_scale.features.purify import attribute_signal
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.report.evidence import Evidence, highest_hop
from hcm_scale.report.wording import unstable_text, weak_attributes_text
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.synthetic import families

World = Callable[..., Any]
MANY = 2 * (1 << 18) + 5  # nodes: more than two slices


def cosine_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between the rows of two arrays."""
    return 1 - (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "get_num_threads", lambda: request.param)


@pytest.mark.usefixtures("threads")
def test_evidence__of_many_nodes_is_that_of_the_plain_formulas():
    rng = np.random.default_rng(4)
    node, degrees = rng.permutation(MANY), np.r_[np.zeros(MANY - 10, np.int64), np.arange(10)]
    graph = Graph(np.r_[0, np.cumsum(degrees)], np.zeros(45, np.int32), directed=True)
    hops = np.full(45, np.nan, np.float32)
    evidence = Evidence.of(graph, None, pa.table({"node": node}), hops, hops)
    assert (node[evidence.row_of_node] == np.arange(MANY)).all()
    assert (evidence.num_scored, evidence.usual_hop, evidence.usual_distance) == (9, None, None)
    hops[::3] = np.arange(1, 16)
    assert Evidence.of(graph, None, pa.table({"node": node}), hops, hops).usual_hop == 8


@pytest.mark.usefixtures("threads")
def test_highest_hop__is_that_of_all_edges():
    hops = np.random.default_rng(3).uniform(1, 4, MANY).astype(np.float32)
    hops[::3] = np.nan
    hops[-2] = 5
    assert highest_hop(hops) == 5
    assert highest_hop(hops[:0]) == highest_hop(np.full(3, np.nan, np.float32)) == 0


def test_evidence__usual_numbers_are_medians_over_edges(scored_world: World):
    world = scored_world()
    evidence = world.evidence()
    assert evidence.usual_hop == pytest.approx(np.median(world.edge_mean))
    rows = np.repeat(np.arange(60), world.graph.degrees)
    wanted = np.median(cosine_distance(world.x[rows], world.x[world.graph.indices]))
    assert evidence.usual_distance == pytest.approx(wanted)


def test_evidence__moments_of_sparse_attributes_are_those_of_dense_ones(scored_world: World):
    world = scored_world()
    x = sparse.random_array((60, 9), density=0.3, rng=np.random.default_rng(0)).astype(np.float32)
    dense, held = (
        world._replace(graph=replace(world.graph, x=form, columns=())).evidence()
        for form in (x.toarray(), SparseRows.of(x))
    )
    np.testing.assert_allclose(held.mean, dense.mean, rtol=1e-6)
    np.testing.assert_allclose(held.spread, x.toarray().astype(float).std(axis=0), rtol=1e-6)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return families.community(1000, num_attributes=8, seed=1)


def test_weak_text__is_said_of_noise_and_of_nothing_else(graph):
    noise = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    signal, shares = (
        attribute_signal(graph, noise),
        {"attributes": 0.38, "hop": 0.41, "closure": 0.206, "cohesion": 0.004},
    )
    assert weak_attributes_text(signal, KINDS, shares) == (
        "The attributes say little about who is joined to whom: two neighbours are more alike than nodes of different "
        f"edges in {100 * signal:.0f}% of cases, where 50% is chance. What is said of far or unlike neighbours is weak "
        "evidence here: it makes 62% of the scores of the first 1% of the nodes (neighbours seem far 41%, odd "
        "attributes 38%, group of strangers 21%). Columns that say what a node is, such as its branch or country, "
        "would help."
    )
    ends = "is weak evidence here. Columns that say what a node is, such as its branch or country, would help."
    assert weak_attributes_text(signal, KINDS, {}).endswith(ends)
    few = weak_attributes_text(signal, KINDS, {"cohesion": 0.996, "hop": 0.004})
    assert "of cases, where 50% is chance. Columns that say" in few  # nothing rests on them
    for told in (attribute_signal(graph, np.asarray(graph.x)), None):
        assert weak_attributes_text(told, KINDS, {}) == ""


def test_unstable_text__is_said_where_a_fourth_of_the_first_nodes_changes():
    assert unstable_text(0.74).startswith("Only 74% of the first nodes stay so by either encoder alone")
    assert unstable_text(0.75) == unstable_text(None) == ""


def test_attribute_signal__is_the_share_of_pairs_that_are_farther_than_an_edge(graph):
    x = np.asarray(graph.x)
    sources = np.repeat(np.arange(1000), np.diff(graph.indptr))
    joined = cosine_distance(x[sources], x[graph.indices])
    pairs = np.random.default_rng(0).integers(0, len(sources), (2, 20_000))
    apart = cosine_distance(x[sources[pairs[0]]], x[graph.indices[pairs[1]]])
    slow = np.mean([(apart > distance).mean() for distance in joined[::7]])
    assert attribute_signal(graph, x) == pytest.approx(slow, abs=0.02)
    assert attribute_signal(graph, np.ones((1000, 3), np.float32)) == 0.5
    assert attribute_signal(replace(graph, indptr=np.zeros(1001, np.int64), indices=graph.indices[:0]), x) is None
