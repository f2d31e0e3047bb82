"""Claims about edge similarities and purification, each against a loop over the edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import io, sparse

from hcm_scale.features import purify as purification
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.synthetic.families import rmat

SIMILARITIES = ("jaccard", "cosine", "euclidean")


def slow_one(a, b, similarity):
    """The obvious twin for one edge."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if similarity == "jaccard":
        either = ((a != 0) | (b != 0)).sum()
        return ((a != 0) & (b != 0)).sum() / either if either else 0.0
    if similarity == "cosine":
        scale = np.linalg.norm(a) * np.linalg.norm(b)
        return a @ b / scale if scale else 0.0
    return -np.linalg.norm(a - b)


def edges_of(indptr, indices, directed=False):
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    chosen = np.ones(len(rows), bool) if directed else indices > rows
    return rows[chosen], indices[chosen]


def slow_purify(graph, x, similarity, num_dropped):
    """The obvious twin: sort all edges by (f32 similarity, number), cut, rebuild by scipy."""
    u, v = edges_of(graph.indptr, graph.indices, graph.directed)
    values = np.array([slow_one(x[a], x[b], similarity) for a, b in zip(u, v, strict=True)], np.float32)
    if graph.weights is not None:
        strength = dict(zip(zip(*edges_of(graph.indptr, graph.indices, True), strict=True), graph.weights, strict=True))
        say = 0.25 - 2 ** -np.array([strength[edge] for edge in zip(u, v, strict=True)]) / 2
        values = values + np.std(values, dtype=np.float64) * say
    keep = np.sort(np.argsort(values, kind="stable")[num_dropped:])
    u, v = u[keep], v[keep]
    if not graph.directed:
        u, v = np.r_[u, v], np.r_[v, u]
    matrix = sparse.csr_array((np.ones(len(u)), (u, v)), shape=(graph.num_nodes,) * 2)
    matrix.sort_indices()
    return matrix.indptr, matrix.indices


def some_rows(num_rows, num_columns, seed=0):
    """Small integers with zeros and zero rows, so that ties are many and all arithmetic is exact."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 4, (num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.5)
    x[:3] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_columns", [1, 3, 20, 37])
def test_edge_similarity__equals_a_loop(random_csr, similarity, kind, directed, num_columns):
    indptr, indices = random_csr(80, 300, seed=num_columns, directed=directed)
    x = some_rows(80, num_columns)
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    u, v = edges_of(indptr, indices, directed)
    expected = [slow_one(x[a], x[b], similarity) for a, b in zip(u, v, strict=True)]
    fast = purification.edge_similarity(indptr, indices, rows, similarity, directed=directed)
    assert fast.dtype == np.float32
    np.testing.assert_allclose(fast, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_edge_similarity__is_the_same_at_any_thread_count(similarity, all_threads):
    graph = rmat(12, num_attributes=7)
    rows = SparseRows.of(sparse.csr_array(np.maximum(graph.x, 0)))
    for x in (graph.x, rows):
        alone = purification.edge_similarity(graph.indptr, graph.indices, x, similarity)
        with all_threads():
            np.testing.assert_array_equal(
                purification.edge_similarity(graph.indptr, graph.indices, x, similarity), alone
            )


def test_edge_similarity__stays_finite_and_right_on_huge_values():
    x = np.array([[3e20, 0], [0, 4e20]], np.float32)
    csr = np.array([0, 1, 2]), np.array([1, 0], np.int32)
    for rows in (x, SparseRows.of(sparse.csr_array(x))):
        assert purification.edge_similarity(*csr, rows, "euclidean")[0] == pytest.approx(-5e20, rel=1e-6)
        assert purification.edge_similarity(*csr, rows, "cosine")[0] == 0


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.5, 0.99])
def test_purify__equals_sort_and_cut(random_csr, similarity, kind, directed, ratio):
    graph = Graph(*random_csr(60, 250, seed=7, directed=directed), directed=directed)
    x = some_rows(60, 5)
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    result = purification.purify(graph, rows, similarity=similarity, ratio=ratio)
    num_dropped = int(np.floor(ratio * graph.num_edges))
    assert result.num_edges == graph.num_edges - num_dropped
    indptr, indices = slow_purify(graph, x, similarity, num_dropped)
    np.testing.assert_array_equal(result.indptr, indptr)
    np.testing.assert_array_equal(result.indices, indices)
    assert result.indices.dtype == graph.indices.dtype
    assert result.directed == directed


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("directed", [False, True])
def test_purify__of_weighted_edges_equals_sort_and_cut_and_keeps_their_weights(random_csr, similarity, directed):
    indptr, indices = random_csr(60, 250, seed=7, directed=directed)
    rows = np.repeat(np.arange(60), np.diff(indptr))
    ends = (rows, indices) if directed else (np.minimum(rows, indices), np.maximum(rows, indices))
    weights = (0.01 + (ends[0] * 61 + ends[1]) % 97 / 30).astype(np.float32)
    graph = Graph(indptr, indices, directed=directed, weights=weights)
    result = purification.purify(graph, some_rows(60, 5), similarity=similarity, ratio=0.3)
    result.check()
    expected = slow_purify(graph, some_rows(60, 5), similarity, int(0.3 * graph.num_edges))
    np.testing.assert_array_equal(result.indptr, expected[0])
    np.testing.assert_array_equal(result.indices, expected[1])
    before = dict(zip(zip(rows, indices, strict=True), weights, strict=True))
    kept = zip(np.repeat(np.arange(60), np.diff(result.indptr)), result.indices, strict=True)
    assert result.weights.tolist() == [before[arc] for arc in kept]
    again = purification.purify(graph, some_rows(60, 5), similarity=similarity, ratio=0.3, like=result)
    np.testing.assert_array_equal(again.indices, result.indices)
    np.testing.assert_array_equal(again.weights, result.weights)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_purify__of_edges_that_weigh_the_same_drops_the_same(random_csr, similarity):
    graph, x = Graph(*random_csr(60, 250, seed=7)), some_rows(60, 5)
    typical = Graph(graph.indptr, graph.indices, weights=np.ones(graph.num_arcs, np.float32))
    plain, weighted = (purification.purify(g, x, similarity=similarity, ratio=0.2) for g in (graph, typical))
    np.testing.assert_array_equal(weighted.indices, plain.indices)


@given(st.integers(2, 40), st.integers(0, 120), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.9]))
def test_purify__drops_the_exact_number_from_any_graph(num_nodes, num_pairs, seed, ratio):
    u, v = np.random.default_rng(seed).integers(0, num_nodes, (2, num_pairs))
    matrix = sparse.csr_array((np.ones(2 * num_pairs), (np.r_[u, v], np.r_[v, u])), shape=(num_nodes, num_nodes))
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    graph = Graph(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
    result = purification.purify(graph, some_rows(num_nodes, 4, seed), similarity="euclidean", ratio=ratio)
    assert graph.num_edges - result.num_edges == round(ratio * 100) * graph.num_edges // 100
    kept = sparse.csr_array((np.ones(result.num_arcs), result.indices, result.indptr), shape=matrix.shape)
    assert (kept != kept.T).nnz == 0
    assert ((matrix > 0).astype(int) - kept).min() >= 0


def test_purify__takes_the_ratio_as_the_decimal_it_was_written():
    star = sparse.csr_array(np.pad(np.ones((1, 100)), ((0, 100), (1, 0))))
    star = (star + star.T).tocsr()
    graph = Graph(star.indptr.astype(np.int64), star.indices.astype(np.int32))
    result = purification.purify(graph, some_rows(101, 2), similarity="cosine", ratio=0.29)
    assert result.info["purified"]["num_edges_dropped"] == 29


def test_purify__of_ratio_0_changes_nothing(random_csr):
    graph = Graph(*random_csr(30, 60), x=some_rows(30, 2), y=np.zeros(30, np.uint8))
    result = purification.purify(graph, graph.x, similarity="cosine", ratio=0)
    assert result.indptr is graph.indptr
    assert result.indices is graph.indices
    assert result.x is None
    assert result.y is None
    assert result.info["purified"]["num_edges_dropped"] == 0


def test_purify__records_what_it_did(random_csr, tmp_path):
    graph = Graph(*random_csr(50, 200))
    result = purification.purify(graph, some_rows(50, 3), similarity="euclidean", ratio=0.2).save(tmp_path / "p")
    info = result.info["purified"]
    assert info["num_edges_before"] - info["num_edges_dropped"] == result.num_edges
    assert info["threshold"] < 0
    assert (info["similarity"], info["ratio"]) == ("euclidean", 0.2)


@pytest.mark.parametrize("name", ["BlogCatalog.mat", "Flickr.mat"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_purify__of_real_sparse_counts(real_data, name, similarity):
    content = io.loadmat(real_data(name))
    network = sparse.csr_array(content["Network"])
    graph = Graph(network.indptr.astype(np.int64), network.indices.astype(np.int32))
    x = SparseRows.of(content["Attributes"])
    result = purification.purify(graph, x, similarity=similarity, ratio=0.2)
    assert result.num_edges == graph.num_edges - graph.num_edges // 5
    values = purification.edge_similarity(graph.indptr, graph.indices, x, similarity)
    u, v = edges_of(graph.indptr, graph.indices)
    rows = x.csr()
    for e in range(0, graph.num_edges, graph.num_edges // 20):
        a, b = rows[[u[e]]].toarray()[0], rows[[v[e]]].toarray()[0]
        assert values[e] == pytest.approx(slow_one(a, b, similarity), rel=1e-5)


def as_words(num_rows):
    return SparseRows.of(sparse.random_array((num_rows, 150), density=0.05, rng=0, dtype=np.float32))


@pytest.mark.parametrize("similarity", ["jaccard", "euclidean"])
def test_purify__like_itself_drops_the_same_edges(random_csr, similarity):
    graph, x = Graph(*random_csr(60, 300)), as_words(60)  # most pairs of rows share no word: ties at the threshold
    first = purification.purify(graph, x, similarity=similarity, ratio=0.3)
    again = purification.purify(graph, x, similarity=similarity, ratio=0.3, like=first)
    np.testing.assert_array_equal(again.indices, first.indices)
    assert again.info == first.info


def test_purify__like_another_keeps_to_its_threshold(random_csr):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    first = purification.purify(Graph(*random_csr(60, 300)), x, similarity="euclidean", ratio=0.2)
    other = Graph(*random_csr(60, 200, seed=3))
    kept = purification.purify(other, 2 * x, similarity="euclidean", ratio=0.2, like=first)
    values = purification.edge_similarity(other.indptr, other.indices, 2 * x, "euclidean")
    assert kept.num_edges == np.sum(values > first.info["purified"]["threshold"]) < 0.7 * other.num_edges


def test_strengths__do_not_know_the_unit_and_give_a_typical_edge_one(tmp_path, monkeypatch):
    weights = np.random.default_rng(0).lognormal(5, 2, 1001).astype(np.float32)
    found = purification.write_strengths(tmp_path / "w.npy", weights, purification.median_weight(weights))
    assert np.median(found) == pytest.approx(1)
    monkeypatch.setattr("hcm_scale.features.purify._WEIGHTS_PER_BLOCK", 100)
    cents = purification.write_strengths(
        tmp_path / "cents.npy", 100 * weights, purification.median_weight(100 * weights)
    )
    np.testing.assert_allclose(cents, found, rtol=1e-5)
    assert np.array_equal(np.argsort(found, kind="stable"), np.argsort(weights, kind="stable"))


def test_strengths__are_finite_and_above_zero_at_any_weight(tmp_path):
    limits = np.finfo(np.float32)
    weights = np.array([limits.smallest_subnormal, limits.tiny, 1, limits.max], np.float32)
    for median in (float(limits.max), float(limits.tiny)):
        found = purification.write_strengths(tmp_path / "w.npy", weights, median)
        assert (found > 0).all()
        assert np.isfinite(found).all()
    assert purification.median_weight(np.zeros(0, np.float32)) == 1


def test_strengths__leave_a_node_its_other_neighbours_beside_an_outlier(tmp_path):
    """Of ten edges one weighs a million times the others: it would be all of the row, and is two thirds."""
    found = purification.write_strengths(tmp_path / "w.npy", np.array([1e6, *[1.0] * 9], np.float32), 1.0)
    assert found[0] / (1 + found.sum()) == pytest.approx(19.93 / 29.93, abs=0.001)
