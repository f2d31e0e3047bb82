"""The score stage, whole: samples and a graph in, a folder that joins back to the data out."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from hcm_scale.base.files import MANIFEST, FolderError
from hcm_scale.base.spmm import propagate
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.posterior.samples import Samples, open_samples, seal_samples, write_sample
from hcm_scale.run.stages import scoring_of
from hcm_scale.score import triangles
from hcm_scale.stages import score as stage
from hcm_scale.stages.edges import View

N, Q = 60, 5
PLAIN = replace(scoring_of(Config()), trim=0.0, rank_by="ahp")
SIZES = {"num_attributes": Q, "num_classes": 4, "width": 8, "head_width": 16, "num_layers": 2}


def write_samples(folder: Path, *, num_samples: int = 4, directed: bool = False) -> Samples:
    model = SIZES | {"directed": directed}
    hashes = []
    for i in range(num_samples):
        net = HopModel(**model, seed=i)
        hashes.append(write_sample(folder, i, {name: value.detach() for name, value in net.named_parameters()}))
    return seal_samples(folder, hashes, model)


def score(graph, structure, features, samples, out, propagated=False, **options):
    """The stage with no neighbour left out and AHP as the ranking, apart from `options`; a view for each structure."""
    scoring = replace(PLAIN, **{name: options.pop(name) for name in [*options] if hasattr(PLAIN, name)})
    usual = {"state": "memory", "chunk_edges": None, "device": "cpu", "features": features}
    samples = samples if isinstance(samples, Samples) else open_samples(samples)
    structures = structure if isinstance(structure, list) else [structure]
    views = [View(one, features, samples) for one in structures]
    return stage.score(graph, views, out, options=scoring, propagated=propagated, **usual | options)


@pytest.fixture
def samples(tmp_path) -> Path:
    write_samples(tmp_path / "samples")
    return tmp_path / "samples"


@pytest.fixture
def graph(random_csr) -> Graph:
    indptr, indices = random_csr(N - 1, 150)
    indptr = np.append(indptr, indptr[-1])  # the last node is isolated
    ids = pa.array([f"user {v}" for v in range(N)])
    kind = (np.arange(N) % 20 == 3).astype(np.uint8) + 2 * (np.arange(N) % 20 == 7).astype(np.uint8)
    return Graph(indptr, indices, y=(kind > 0).astype(np.uint8), kind=kind, ids=ids)


@pytest.fixture
def structure(graph, random_csr) -> Graph:
    """Another graph over the same nodes, as purification leaves it."""
    indptr, indices = random_csr(N, 90, seed=5)
    return Graph(indptr, indices)


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, Q)).astype(np.float32)


@torch.no_grad()
def slow_scores(graph, structure, features, samples):
    """The slow twin: every sample's model asked for every edge, then plain averages over neighbours."""
    hops = []
    rows = np.repeat(np.arange(N), np.diff(graph.indptr))
    for sample in samples:
        model = HopModel(**samples.model)
        model.load_state_dict(sample)
        z = embed_graph(model, structure.indptr, structure.indices, features, propagated=False)
        logits = model.predict(z[rows], z[graph.indices])
        hops.append((logits.double().softmax(1) @ torch.arange(1.0, 5.0, dtype=torch.float64)).numpy())
    mean, var = np.mean(hops, 0), np.var(hops, 0)
    average = [[part[rows == v].mean() if (rows == v).any() else 0.0 for v in range(N)] for part in (mean, var)]
    return np.array(average)


def test_score__equals_the_slow_twin(graph, structure, features, samples, tmp_path):
    result = score(graph, structure, features, samples, tmp_path / "scores")
    ahp, iv = slow_scores(graph, structure, features, open_samples(samples))
    table = result.table()
    node = table["node"].to_numpy()
    np.testing.assert_allclose(table["ahp"].to_numpy(), ahp[node], atol=1e-6)
    np.testing.assert_allclose(table["iv"].to_numpy(), iv[node], atol=1e-6)
    assert table["rank"].to_pylist() == list(range(1, N + 1))
    assert table["id"].to_pylist() == [f"user {v}" for v in node]
    assert table["flags"].to_pylist()[-1] == "isolated"
    assert result.num_samples == 4


def test_score__asks_the_device_for_triangles(graph, structure, features, samples, tmp_path, monkeypatch):
    """Those of unlike, of all and of far edges; what the device counts stands in the table."""
    asked, answer = [], np.zeros(N, np.int64)

    def count(_edges, used, device, _pays):
        asked.append((device, used is None))
        return answer

    monkeypatch.setattr(triangles, "_count_on_device", count)
    found = score(graph, structure, features, samples, tmp_path / "none", device="cpu:0").table()
    assert asked == [("cpu:0", True), ("cpu:0", False), ("cpu:0", False)]
    for name in ("context_closure", "cohesion", "closure"):
        assert not found[name].to_numpy().any()
    answer[5] = 7
    found = score(graph, structure, features, samples, tmp_path / "some", device="cpu:0").table()
    for name in ("context_closure", "cohesion", "closure"):
        np.testing.assert_array_equal(found["node"].to_numpy()[found[name].to_numpy() > 0], [5])


def test_score__says_how_good_it_is_per_kind(graph, structure, features, samples, tmp_path):
    found = score(graph, structure, features, samples, tmp_path / "scores").metrics
    assert set(found) == {"score", "strange", "ahp", "hav"}
    assert set(found["ahp"]["by_kind"]) == {"structural", "attribute"}
    unknown = replace(graph, y=None, kind=None)
    assert score(unknown, structure, features, samples, tmp_path / "unknown").metrics is None
    all_normal = replace(graph, y=np.zeros(N, np.uint8), kind=None)
    assert score(all_normal, structure, features, samples, tmp_path / "normal").metrics is None


@pytest.mark.parametrize(
    "options",
    [{"state": "disk"}, {"chunk_edges": 7}, {"chunk_rows": 11}],
    ids=lambda options: next(iter(options)),
)
def test_score__how_it_is_computed_changes_nothing(graph, structure, features, samples, tmp_path, options):
    plain = score(graph, structure, features, samples, tmp_path / "plain")
    other = score(graph, structure, features, samples, tmp_path / "other", **options)
    for name in ("ahp", "iv", "hav"):
        np.testing.assert_allclose(by_node(other, name), by_node(plain, name), atol=1e-6)
    for got, wanted in zip(other.edges(), plain.edges(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6)  # they are rounded


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_score__on_disk_and_by_ranks_ends_in_the_same_bytes(
    graph, structure, features, samples, tmp_path, together, num_ranks
):
    plain = score(graph, structure, features, samples, tmp_path / "plain", chunk_edges=40, chunk_rows=16)

    def of_rank(world):
        options = {"state": "disk", "chunk_edges": 40, "chunk_rows": 16, "world": world}
        return score(graph, structure, features, samples, tmp_path / "other", **options)

    together(num_ranks, of_rank)
    names = {path.name for path in plain.folder.iterdir()}
    assert names == {path.name for path in (tmp_path / "other").iterdir()}
    for name in names:
        assert (tmp_path / "other" / name).read_bytes() == (plain.folder / name).read_bytes()


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_score__is_left_to_the_cores_where_a_gpu_has_no_room(
    graph, structure, features, samples, tmp_path, monkeypatch, caplog, precision
):
    by_cores = score(graph, structure, features, samples, tmp_path / "cores")
    monkeypatch.setattr(stage, "has_room", lambda *given: False)
    options = {"device": "cuda", "precision": precision}
    found = score(graph, structure, features, samples, tmp_path / "gpu", **options)
    assert "no GPU memory for x and an embedding of 60 nodes: scoring on the CPU" in caplog.text
    for path in by_cores.folder.iterdir():
        assert (found.folder / path.name).read_bytes() == path.read_bytes()


def by_node(result, name):
    table = result.table()
    return table[name].to_numpy()[np.argsort(table["node"].to_numpy())]


def test_score__propagated_features_give_the_same(graph, structure, features, samples, tmp_path):
    plain = score(graph, structure, features, samples, tmp_path / "plain")
    once = propagate(structure.indptr, structure.indices, features)
    again = score(graph, structure, once, samples, tmp_path / "again", propagated=True)
    np.testing.assert_allclose(by_node(again, "ahp"), by_node(plain, "ahp"), atol=1e-6)


def test_score__a_mapped_graph_and_a_directed_one(random_csr, features, tmp_path, caplog):
    graph = Graph(*random_csr(N, 200, directed=True), directed=True).save(tmp_path / "graph")
    samples = write_samples(tmp_path / "samples", directed=True)
    table = score(graph, graph, features, samples, tmp_path / "scores", state="disk").table()
    without = graph.degrees[table["node"].to_numpy()] == 0
    assert [bool(text) for text in table["flags"].to_pylist()] == without.tolist()
    assert "graph.directed=true counts no triangles of far edges" in caplog.text


def test_score__trim_and_rank_by_reach_the_table(graph, structure, features, samples, tmp_path):
    options = {"trim": 0.3, "rank_by": "hav", "hop": "argmax"}
    result = score(graph, structure, features, samples, tmp_path / "scores", **options)
    table = result.table()
    assert np.all(np.diff(table["hav"].to_numpy()) <= 0)
    assert result.rank_by == "hav"


def test_score__a_graph_without_edges(features, samples, tmp_path):
    empty = Graph(np.zeros(N + 1, np.int64), np.empty(0, np.int32))
    for state in ("memory", "disk"):
        result = score(empty, empty, features, samples, tmp_path / state, state=state)
        assert set(result.table()["flags"].to_pylist()) == {"isolated"}
        assert len(result.edges().mean) == 0


def test_score__that_failed_is_unfinished_and_comes_whole_when_it_is_repeated(
    graph, structure, features, samples, tmp_path
):
    whole = score(graph, structure, features, samples, tmp_path / "whole")
    sample = (samples / "sample-00002.safetensors").read_bytes()
    (samples / "sample-00002.safetensors").write_bytes(sample[:-1] + b"?")
    with pytest.raises(FolderError, match=r"sample-00002\.safetensors is missing or damaged"):
        score(graph, structure, features, samples, tmp_path / "scores", state="disk")
    with pytest.raises(FolderError, match="unfinished"):
        stage.open_scores(tmp_path / "scores")
    (samples / "sample-00002.safetensors").write_bytes(sample)
    score(graph, structure, features, samples, tmp_path / "scores", state="disk")
    for path in whole.folder.iterdir():
        assert (tmp_path / "scores" / path.name).read_bytes() == path.read_bytes()


def test_score__removes_the_parts_of_ranks_that_were_killed(graph, structure, features, samples, tmp_path):
    (tmp_path / "scores" / "parts" / "rank-1").mkdir(parents=True)
    score(graph, structure, features, samples, tmp_path / "scores")
    assert not (tmp_path / "scores" / "parts").exists()


def test_score__the_same_inputs_give_the_same_bytes(graph, structure, features, samples, tmp_path):
    for name in ("a", "b"):
        score(graph, structure, features, samples, tmp_path / name)
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()
    assert (tmp_path / "a" / "scores.parquet").read_bytes() == (tmp_path / "b" / "scores.parquet").read_bytes()


def zscores(values, among):
    return (values - values[among].mean()) / values[among].std()


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_score__of_two_views_averages_edges_and_strange_adds_them(graph, structure, features, samples, tmp_path, state):
    one = score(graph, structure, features, samples, tmp_path / "purified")
    two = score(graph, graph, features, samples, tmp_path / "original")
    both = score(graph, [structure, graph], features, samples, tmp_path / "scores", state=state)
    scored = graph.degrees > 0
    total = sum((a - a[scored].mean()) / a[scored].std() for a in (by_node(one, "ahp"), by_node(two, "ahp")))
    strange = by_node(both, "strange") - zscores(by_node(both, "closure"), scored)
    np.testing.assert_allclose(np.ptp((strange - zscores(total, scored))[scored]), 0, atol=1e-6)
    mean_ahp = (by_node(one, "ahp") + by_node(two, "ahp")) / 2  # nothing is trimmed here
    np.testing.assert_allclose(by_node(both, "ahp"), mean_ahp, rtol=1e-6)
    np.testing.assert_allclose(both.edges().mean, (one.edges().mean + two.edges().mean) / 2, rtol=2e-4)  # rounded
    np.testing.assert_allclose(both.edges().var, (one.edges().var + two.edges().var) / 2, rtol=2e-3, atol=1e-6)
    assert both.num_samples == 8
    assert sorted(path.name for path in both.folder.iterdir()) == sorted(path.name for path in one.folder.iterdir())
    assert both.metrics["ahp"]["num_anomalies"] == 6


def test_open_scores__reads_what_score_returned(graph, structure, features, samples, tmp_path):
    result = score(graph, structure, features, samples, tmp_path / "scores")
    assert stage.open_scores(tmp_path / "scores") == result


def test_score__refuses_bad_input_before_any_work(graph, structure, features, samples, tmp_path):
    directed = write_samples(tmp_path / "directed", directed=True)
    with pytest.raises(ValueError, match="a model of directed graphs; this graph is undirected"):
        score(graph, structure, features, directed, tmp_path / "scores")
    assert not (tmp_path / "scores").exists()


def test_scores_table__of_the_stage_has_the_promised_columns(graph, structure, features, samples, tmp_path):
    names = score(graph, structure, features, samples, tmp_path / "scores").table().column_names
    evidence = ["ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual"]
    evidence += ["cohesion", "score"]
    ranks = ["hop_rank", "closure_rank", "context_rank", "context_closure_rank", "attributes_rank", "cohesion_rank"]
    judged = ["evidence", *ranks, "p", "flagged"]
    assert names == ["id", "node", *evidence, *judged, "rank", "degree", "flags", "y", "kind"]


def test_score__far_share_reaches_closure(graph, structure, features, samples, tmp_path):
    def column(name, out, **options):
        return by_node(score(graph, structure, features, samples, tmp_path / out, **options), name)

    assert not np.array_equal(column("closure", "few", far_share=0.3), column("closure", "many", far_share=0.9))


def test_gpu__predicts_while_attributes_are_scored():
    both = threading.Barrier(2, timeout=60)
    assert stage._predict_and_compute("cuda", both.wait, both.wait) in {(0, 1), (1, 0)}
    assert stage._predict_and_compute("cuda", lambda: 1, None) == (1, None)
    assert stage._predict_and_compute("cpu", threading.get_ident, threading.get_ident) == (threading.get_ident(),) * 2


def test_stability__is_not_told_where_very_many_nodes_are_flagged(
    graph, structure, features, samples, tmp_path, monkeypatch
):
    """The first hundred of thousands that stand out are a draw, which says nothing about the list."""
    views = [structure, graph]
    assert score(graph, views, features, samples, tmp_path / "few", rank_by="score").stability is not None
    monkeypatch.setattr(stage, "_MANY_FLAGGED", -1)
    assert score(graph, views, features, samples, tmp_path / "many", rank_by="score").stability is None
