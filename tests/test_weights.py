"""Weights of edges from one end of a run to the other."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

from bench.weights import spread_to_entries
from hcm_scale.cli import commands
from hcm_scale.config import Config
from hcm_scale.features import propagate as propagation
from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import open_samples
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.run.stages import recipe_of
from hcm_scale.sampling.pairs import PairBatch
from hcm_scale.shards import open_labels
from hcm_scale.stages import purify, score, train
from hcm_scale.synthetic import families
from hcm_scale.synthetic.inject import inject

COMPARED = ("ahp", "iv", "closure", "context", "residual", "score", "rank")


def small(run_dir: Path, trained: Path | None = None) -> Config:
    config = Config(run_dir=str(run_dir), trained=None if trained is None else str(trained))
    config.world.device = "cpu"
    config.hops.num_sources, config.hops.pairs_per_class = 100, 20
    config.model.width, config.model.head_width, config.sampling.fan_out = 16, 16, ["4"]
    config.posterior.burn_in_steps, config.posterior.num_samples, config.posterior.thin_steps = 8, 2, 2
    return config


def with_weights(graph: Graph, values: np.ndarray) -> Graph:
    return replace(graph, weights=spread_to_entries(graph.indptr, graph.indices, values.astype(np.float32)))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return families.community(300, num_attributes=5, seed=1)


@pytest.fixture(scope="module")
def runs(graph, tmp_path_factory) -> dict[str, Path]:
    """Finished runs: without weights, with the same of all edges, and with amounts of a heavy tail."""
    amounts = np.random.default_rng(0).lognormal(4, 2, graph.num_edges)
    given = {"none": graph, "equal": with_weights(graph, np.full(graph.num_edges, 120.0))}
    given["amounts"] = with_weights(graph, amounts)
    folders = {name: tmp_path_factory.mktemp("weights") / name for name in given}
    for name, folder in folders.items():
        pipeline.run(small(folder), until="score", graph=given[name])
    return folders


def by_node(run_dir: Path, name: str) -> list[float]:
    return FinishedRun(run_dir).table.sort_by("node")[name].to_pylist()


def test_equal_weights__score_as_none_do_bit_for_bit(runs):
    for name in COMPARED:
        assert by_node(runs["equal"], name) == by_node(runs["none"], name)
    assert by_node(runs["amounts"], "ahp") != by_node(runs["none"], "ahp")


def test_purified__holds_the_strengths_of_all_edges_and_of_the_kept(runs):
    graph = Graph.open(runs["amounts"] / "graph")
    made = purify.open_purified(runs["amounts"] / "purified", graph)
    assert made.weight_median == pytest.approx(np.median(graph.weights))
    np.testing.assert_allclose(made.strengths(), np.log2(1 + graph.weights / made.weight_median), rtol=1e-4)
    made.graph.check()
    assert made.graph.num_edges < graph.num_edges
    assert purify.open_purified(runs["none"] / "purified").strengths() is None


def dense_gcn(graph: Graph, strengths: np.ndarray) -> np.ndarray:
    matrix = sparse.csr_array((strengths.astype(np.float64), graph.indices, graph.indptr)).toarray() + np.eye(300)
    scale = 1 / np.sqrt(matrix.sum(axis=1))
    return scale[:, None] * matrix * scale


def expected_hops(gcn: np.ndarray, x: np.ndarray, sample: dict, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The slow twin of the model, over dense matrices: Â X comes in."""
    p = {name: value.double().numpy() for name, value in sample.items()}
    z = gcn @ np.maximum(x @ p["encoder.0.weight"] + p["encoder.0.bias"], 0) @ p["encoder.1.weight"]
    apart = np.abs((z + p["encoder.1.bias"])[u] - (z + p["encoder.1.bias"])[v])
    hidden = np.maximum(apart @ p["head.0.weight"] + p["head.0.bias"], 0)
    likely = np.exp(hidden @ p["head.1.weight"] + p["head.1.bias"])
    return likely @ np.arange(1, 5) / likely.sum(axis=1)


def test_scores__are_those_of_dense_matrices_of_strengths(runs):
    graph = Graph.open(runs["amounts"] / "graph")
    made = purify.open_purified(runs["amounts"] / "purified", graph)
    u = np.repeat(np.arange(300), graph.degrees)
    first = u < graph.indices
    wanted = []
    for view, structure, weights in (
        ("purified", made.graph, made.graph.weights),
        ("original", graph, made.strengths()),
    ):
        gcn = dense_gcn(structure, weights)
        x = propagation.open_propagated(runs["amounts"] / f"propagated-{view}")
        np.testing.assert_allclose(x, gcn @ made.features, atol=1e-5)
        samples = open_samples(runs["amounts"] / f"train-{view}" / "samples")
        wanted.append(np.mean([expected_hops(gcn, x, s, u[first], graph.indices[first]) for s in samples], axis=0))
    hops = score.open_scores(runs["amounts"] / "scores").edges().mean
    np.testing.assert_allclose(hops, np.mean(wanted, axis=0), rtol=3e-4)  # as they are stored, rounded


def test_trained__measures_weights_by_the_median_of_the_trained_graph(runs, graph, tmp_path):
    same = Graph.open(runs["amounts"] / "graph")
    pipeline.run(small(tmp_path / "same", runs["amounts"]), until="score", graph=same)
    for name in COMPARED:
        assert by_node(tmp_path / "same", name) == by_node(runs["amounts"], name)
    heavier = replace(same, weights=same.weights * np.float32(4), path=None)
    pipeline.run(small(tmp_path / "heavier", runs["amounts"]), until="score", graph=heavier)
    assert by_node(tmp_path / "heavier", "ahp") != by_node(runs["amounts"], "ahp")
    medians = [purify.open_purified(tmp_path / name / "purified").weight_median for name in ("same", "heavier")]
    assert medians == [purify.open_purified(runs["amounts"] / "purified").weight_median] * 2


def test_trained__refuses_a_graph_with_weights_for_one_without_and_the_other_way(runs, graph, tmp_path):
    weighted = Graph.open(runs["amounts"] / "graph")
    with pytest.raises(ValueError, match=r"this graph has some and the trained one none: weights of edges \(graph"):
        pipeline.run(small(tmp_path / "a", runs["none"]), until="score", graph=weighted)
    with pytest.raises(ValueError, match="this graph has none and the trained one some: weights of edges"):
        pipeline.run(small(tmp_path / "b", runs["amounts"]), until="score", graph=graph)


def test_training__sums_over_the_same_matrix(runs):
    made = purify.open_purified(runs["amounts"] / "purified", Graph.open(runs["amounts"] / "graph"))
    recipe, nodes = recipe_of(Config()), np.arange(300)
    recipe = replace(recipe, batching=replace(recipe.batching, fan_outs=(None,), hub_cap=None))
    pairs = PairBatch(0, 0, nodes, nodes, np.zeros(300, np.int64))
    training = train.Training(made.graph, made.features, open_labels(runs["amounts"] / "labels"), recipe, seed=0)
    (block,) = train.batch_maker(training)(pairs).blocks
    arrays = tuple(tensor.numpy() for tensor in (block.weights, block.indices, block.indptr))
    found = sparse.csr_array(arrays, shape=(300, 300)).toarray()
    np.testing.assert_allclose(found, dense_gcn(made.graph, made.graph.weights), rtol=1e-5)


@pytest.mark.parametrize("directed", [False, True])
def test_inject__keeps_weights_and_gives_new_edges_the_median(graph, directed):
    weights = spread_to_entries(graph.indptr, graph.indices, np.arange(1, graph.num_edges + 1, dtype=np.float32))
    given = replace(graph, weights=weights, directed=directed)
    planted = inject(given, num_cliques=3, clique_size=6, num_attribute_anomalies=0)
    planted.check()
    before, after = (
        dict(zip(zip(np.repeat(np.arange(300), g.degrees), g.indices, strict=True), g.weights, strict=True))
        for g in (given, planted)
    )
    assert {arc: after[arc] for arc in before} == before
    assert {after[arc] for arc in after.keys() - before.keys()} == {np.median(weights)}


def test_doctor_and_export__tell_weights(runs, tmp_path):
    graph = Graph.open(runs["amounts"] / "graph")
    said = commands.doctor([str(runs["amounts"] / "graph")])
    assert f"weights       weight, {graph.weights.min():,.4g} to {graph.weights.max():,.4g}, median" in said
    assert "weights" not in commands.doctor([str(runs["none"] / "graph")])
    commands.doctor([str(runs["amounts"])])
    commands.export_run([str(runs["amounts"]), str(tmp_path / "near.graphml"), "--top", "2"])
    found = nx.read_graphml(tmp_path / "near.graphml", node_type=int)
    for u, v, weight in found.edges(data="weight"):
        row = slice(graph.indptr[u], graph.indptr[u + 1])
        assert weight == pytest.approx(graph.weights[row][graph.indices[row].tolist().index(v)], rel=1e-6)
