"""Every baseline against its formula, or against chance on a small planted graph where it should find something."""

import functools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import linalg, sparse

from bench.accuracy import amen, hcm, lof, madan, pygod_methods, resgcn, trivial
from bench.accuracy.methods import METHODS, PYGOD
from bench.accuracy.problem import Problem, open_problem, prepare
from bench.pygod_batches import WholeGraph
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.score import metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    out = tmp_path_factory.mktemp("problem")
    prepare("Planted", 0, Path("nowhere"), out)
    return open_problem(out)


def small(random_csr, num_nodes=40, num_edges=90, width=5, seed=0) -> Problem:
    indptr, indices = random_csr(num_nodes, num_edges, seed)
    x = np.random.default_rng(seed).normal(size=(num_nodes, width)).astype(np.float32)
    return Problem("small", seed, Graph(indptr, indices, x=x), x)


def auc_of(problem: Problem, score: np.ndarray, kind: int) -> float:
    chosen = (problem.graph.kind == kind) | (problem.graph.kind == 0)
    return metrics.roc_auc(problem.graph.y[chosen], score[chosen])


# ---- scores without learning, and LOF


def test_trivial__equals_its_names(random_csr):
    problem = small(random_csr)
    scores = trivial.run(problem, "cpu")
    for v in range(40):
        neighbors = problem.graph.indices[problem.graph.indptr[v] : problem.graph.indptr[v + 1]]
        x = problem.x[v]
        norm = np.sqrt((x**2).sum())
        apart = [np.linalg.norm(x - problem.x[u]) for u in neighbors]
        unlike = [1 - (x @ problem.x[u]) / np.linalg.norm(x) / np.linalg.norm(problem.x[u]) for u in neighbors]
        assert scores["degree"][v] == len(neighbors) == -scores["minus degree"][v]
        assert scores["attribute norm"][v] == pytest.approx(norm, rel=1e-5)
        assert scores["half norm, half root degree"][v] == pytest.approx((norm + len(neighbors) ** 0.5) / 2, rel=1e-5)
        assert scores["distance to neighbours"][v] == pytest.approx(np.mean(apart) if apart else 0, rel=1e-5)
        assert scores["cosine distance to neighbours"][v] == pytest.approx(np.mean(unlike) if unlike else 0, abs=1e-5)


def test_direction__is_out_less_in(random_csr):
    problem = small(random_csr)
    assert not trivial.direction(problem, "cpu")["out-degree less in-degree"].any()
    indptr, indices = random_csr(len(problem.x), 300, directed=True)
    arcs = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(problem.x),) * 2)
    one_way = Graph(indptr, indices, directed=True)
    found = trivial.direction(replace(problem, one_way=one_way), "cpu")["out-degree less in-degree"]
    np.testing.assert_array_equal(found, arcs.sum(axis=1) - arcs.sum(axis=0))


def test_lof__finds_far_attributes_and_not_cliques(planted):
    score = lof.run(planted, "cpu")["LOF"]
    assert auc_of(planted, score, 2) > 0.7
    assert abs(auc_of(planted, score, 1) - 0.5) < 0.15


# ---- AMEN


def slow_normality(problem: Problem, x: np.ndarray, root: bool) -> np.ndarray:
    """Straight from the formula, with a dense adjacency."""
    n, out = problem.graph.num_nodes, []
    a = np.zeros((n, n))
    a[problem.sources, problem.graph.indices] = 1
    k, arcs = a.sum(axis=1), a.sum()
    surprise = 1 - np.minimum(1, np.outer(k, k) / arcs)
    for v in range(n):
        inside = np.flatnonzero((a[v] > 0) | (np.arange(n) == v))
        others = np.setdiff1d(np.arange(n), inside)
        within, across = np.ix_(inside, inside), np.ix_(inside, others)
        best = []
        for f in np.flatnonzero((k[:, None] * x)[inside].sum(axis=0) > 0):
            similar = np.outer(x[:, f], x[:, f])
            internal = ((a - np.outer(k, k) / arcs) * similar)[within].sum()
            external = (a * surprise * similar)[across].sum()
            floor = k[inside].sum() ** 2 / arcs
            share = external / ((a * surprise)[within].sum() + external) if external else 0
            best.append((internal + floor) / (len(inside) ** 2 + floor) - share)
        positive = np.maximum(best, 0)
        out.append(np.linalg.norm(positive) if root and positive.any() else max(best, default=-2))
    return np.array(out)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_amen__equals_the_formula(random_csr, root, seed):
    problem = small(random_csr, seed=seed)
    x = amen.unit_range(problem.x)
    np.testing.assert_allclose(amen.normality(problem, sparse.csr_array(x), root), slow_normality(problem, x, root))


def test_amen__takes_sparse_attributes_as_present_or_absent(random_csr):
    problem = small(random_csr)
    raw = SparseRows.of(sparse.random_array((40, 12), density=0.3, rng=1) * 7)
    problem = replace(problem, graph=replace(problem.graph, x=raw))
    x = amen.unit_attributes(problem)
    assert set(x.data) == {1.0}
    expected = -slow_normality(problem, x.toarray(), False)
    np.testing.assert_allclose(amen.run(problem, "cpu")["AMEN"], expected)


def test_amen__an_egonet_of_strangers_is_stranger_than_a_community():
    # Two cliques of six; 0 .. 5 share attribute 0, 6 .. 11 share nothing.
    block = np.kron(np.eye(2), np.ones((6, 6))) - np.eye(12)
    graph = sparse.csr_array(block)
    x = np.zeros((12, 8), np.float32)
    x[:6, 0] = 1
    x[np.arange(6, 12), np.arange(1, 7)] = 1
    problem = Problem("two", 0, Graph(graph.indptr.astype(np.int64), graph.indices.astype(np.int32), x=x), x)
    score = amen.run(problem, "cpu")["AMEN"]
    assert score[6:].min() > score[:6].max()


# ---- MADAN


def test_madan__concentration_is_the_norm_of_the_heat_kernels_columns(random_csr):
    matrix = madan.laplacian(small(random_csr))
    dense = matrix.toarray()
    np.testing.assert_allclose(dense.sum(axis=1), 0, atol=1e-12)
    largest = np.linalg.eigvalsh(dense)[-1]
    scales = (0.5, 10.0, 300.0)
    expected = [np.linalg.norm(linalg.expm(-t * dense / largest), axis=0) for t in scales]
    np.testing.assert_allclose(madan.concentration(matrix, scales), expected, atol=1e-6)


def test_madan__blocks_of_columns_do_not_matter(random_csr, monkeypatch):
    matrix = madan.laplacian(small(random_csr))
    whole = madan.concentration(matrix, madan.SCALES)
    monkeypatch.setattr(madan, "_COLUMNS", 7)
    np.testing.assert_allclose(madan.concentration(matrix, madan.SCALES), whole, atol=1e-9)


def test_madan__heat_stays_at_a_node_unlike_its_neighbours(planted):
    assert auc_of(planted, madan.run(planted, "cpu")["MADAN"], 2) > 0.7


def test_madan__without_edges_no_node_is_stranger_than_another():
    x = np.eye(5, dtype=np.float32)
    problem = Problem("bare", 0, Graph(np.zeros(6, np.int64), np.zeros(0, np.int32), x=x), x)
    score = madan.run(problem, "cpu")["MADAN"]
    assert np.isfinite(score).all()
    assert np.ptp(score) == 0


# ---- ResGCN


def test_resgcn__adjacency_loss_equals_the_dense_one(random_csr):
    adjacency, gcn = resgcn.sparse_matrices(small(random_csr), "cpu")
    code = torch.randn((40, 6), generator=torch.Generator().manual_seed(0))
    dense = adjacency.to_dense()
    torch.testing.assert_close(resgcn.adjacency_loss(code, adjacency), (dense - code @ code.T).square().sum())
    closed = dense + torch.eye(40)
    scale = closed.sum(1).rsqrt()
    torch.testing.assert_close(gcn.to_dense(), scale[:, None] * closed * scale)


def test_resgcn__beats_chance(planted, monkeypatch):
    monkeypatch.setattr(resgcn, "EPOCHS", 40)
    assert metrics.roc_auc(planted.graph.y, resgcn.run(planted, "cpu")["ResGCN"]) > 0.55


def test_resgcn__is_a_function_of_its_seed(random_csr, monkeypatch):
    monkeypatch.setattr(resgcn, "EPOCHS", 3)
    problem = small(random_csr)
    first, again, other = (resgcn.run(replace(problem, seed=seed), "cpu")["ResGCN"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


# ---- PyGOD


@pytest.fixture
def short_pygod(monkeypatch):
    """PyGOD's detectors, trained for two epochs."""
    detectors = pytest.importorskip("pygod.detector")
    for name in PYGOD:
        monkeypatch.setattr(detectors, name, functools.partial(getattr(detectors, name), epoch=2))


@pytest.mark.filterwarnings("ignore")  # of PyGOD and what it imports, not ours to mend
@pytest.mark.parametrize("name", PYGOD)
def test_pygod__scores_every_node(name, random_csr, short_pygod):
    problem = small(random_csr, num_edges=200)  # GUIDE knows no node without edges
    ((row, score),) = METHODS[name.lower()].load()(problem, "cpu").items()
    assert row == name
    assert score.shape == (40,)
    assert np.isfinite(score).all()


@pytest.mark.filterwarnings("ignore")
def test_pygod__raw_attributes_are_the_graphs_own(random_csr, short_pygod):
    problem = small(random_csr)
    raw = replace(problem, graph=replace(problem.graph, x=SparseRows.of(sparse.random_array((40, 12), rng=1) * 7)))
    scores = {**METHODS["gae"].load()(raw, "cpu"), **METHODS["gae-raw"].load()(raw, "cpu")}
    assert set(scores) == {"GAE", "GAE, raw"}
    as_features = replace(raw, x=pygod_methods.raw_attributes(raw))
    np.testing.assert_array_equal(METHODS["gae"].load()(as_features, "cpu")["GAE"], scores["GAE, raw"])
    np.testing.assert_array_equal(METHODS["gae"].load()(problem, "cpu")["GAE"], scores["GAE"])


def test_whole_graph__is_one_batch_in_the_graphs_order(random_csr):
    data = pygod_methods.as_data(small(random_csr), raw=False)
    (batch,) = WholeGraph(data, "cpu")
    assert batch.batch_size == 40
    assert batch.n_id.tolist() == list(range(40))
    assert torch.equal(batch.x, data.x)
    assert torch.equal(batch.edge_index, data.edge_index)


# ---- ours

WRITTEN = ("blogcatalog", "flickr", "acm", "amazon", "enron")  # the data sets that have settings of their own


@pytest.mark.parametrize(
    "experiment", [None, *(f"{family}/{data}" for family in ("paper", "best") for data in WRITTEN)]
)
def test_hcm__settings_are_what_hydra_composes(experiment):
    pytest.importorskip("hydra")
    from hcm_scale.cli.overrides import compose_config, composing

    with composing():
        config = compose_config([f"experiment={experiment}"] if experiment else [])
    for key, value in hcm.settings(experiment).items():
        room, name = key.split(".")
        assert getattr(getattr(config, room), name) == value, key
    assert hcm.is_directed(experiment) == getattr(config.graph, "directed", False)


def test_hcm__a_missing_experiment_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"best/nowhere\.yaml is missing"):
        hcm.settings("best/nowhere")


def test_hcm__the_default_says_nothing_but_seed_and_device(planted, monkeypatch):
    said = []

    class Spy:
        scores = np.zeros(600)

        def __init__(self, *options, **more):
            said.append((options, more))

        def fit(self, graph):
            assert graph is planted.graph
            return self

    monkeypatch.setattr(hcm, "HCM", Spy)
    assert set(hcm.default(planted, "cpu")) == set(METHODS["hcm-default"].rows)
    assert said == [((), {"seed": 0, "device": "cpu"})]


def test_hcm__runs_without_hydra_and_fills_its_rows(planted, monkeypatch):
    short = {"posterior.burn_in_steps": 5, "posterior.num_samples": 2, "posterior.thin_steps": 1, "model.width": 16}
    monkeypatch.setattr(hcm, "settings", lambda experiment: short)
    monkeypatch.setitem(sys.modules, "hydra", None)
    assert set(hcm.paper(planted, "cpu")) == set(METHODS["hcm-paper"].rows)
    scores = hcm.best(planted, "cpu")
    assert set(scores) == set(METHODS["hcm-best"].rows)
    assert all(score.shape == (600,) and np.isfinite(score).all() for score in scores.values())
