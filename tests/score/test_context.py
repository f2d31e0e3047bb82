"""Context and residual against plain loops, and what they are meant to see."""

import math

import numpy as np
import pytest

from hcm_scale.features.purify import edge_similarity
from hcm_scale.score.context import NUM_BINS, context, surprise_of_bins
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.residual import residual


def slow_context(index, distance):
    """The slow twin: ranks by sorting bins, a sum over each row."""
    bins = np.minimum((distance * (NUM_BINS / 2)).astype(np.int64), NUM_BINS - 1)
    out = np.zeros(index.num_nodes)
    for v in range(index.num_nodes):
        total = 0.0
        for e in index.of_node(v):
            rank = ((bins < bins[e]).sum() + 0.5 * (bins == bins[e]).sum()) / len(bins)
            total += -math.log(1 - rank)
        d = len(index.of_node(v))
        out[v] = ((total / d) ** (1 / 3) - 1 + 1 / (9 * d)) * math.sqrt(9 * d) if d else 0.0
    return out


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_context__equals_the_slow_twin(random_csr, directed, ties):
    index = edge_index(*random_csr(60, 150, directed=directed), directed=directed)
    rng = np.random.default_rng(1)
    distance = rng.choice([0.0, 1.0, 2.0], index.num_edges) if ties else rng.uniform(0, 2, index.num_edges)
    distance = distance.astype(np.float32)
    np.testing.assert_allclose(context(index, distance), slow_context(index, distance), rtol=1e-6, atol=1e-6)


def test_context__of_equal_distances_depends_on_the_degree_alone(random_csr):
    index = edge_index(*random_csr(40, 90))
    found, degree = context(index, np.ones(index.num_edges, np.float32)), np.diff(index.indptr)
    for d in np.unique(degree):
        assert np.ptp(found[degree == d]) == 0


def test_context__of_random_edges_is_about_standard_normal(random_csr):
    index = edge_index(*random_csr(4_000, 40_000))
    distance = np.random.default_rng(0).uniform(0, 2, index.num_edges).astype(np.float32)
    found = context(index, distance)
    assert abs(found.mean()) < 0.1
    assert abs(found.std() - 1) < 0.1


def test_context__refuses_distances_of_another_graph(random_csr):
    index = edge_index(*random_csr(20, 30))
    with pytest.raises(ValueError, match="distances have shape"):
        context(index, np.ones(7, np.float32))


def test_surprise_of_bins__rises_and_has_a_mean_of_about_one():
    distance = np.random.default_rng(0).beta(2, 5, 100_000).astype(np.float32)
    table = surprise_of_bins(distance)
    assert (np.diff(table) >= 0).all()
    assert abs(table[(distance * (NUM_BINS / 2)).astype(int)].mean() - 1) < 0.01


def slow_residual(indptr, indices, x, ridge=1e-3):
    """The slow twin: one dense least-squares problem."""
    x = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    rows = [indices[indptr[v] : indptr[v + 1]] for v in range(len(x))]
    around = np.array([x[row].mean(axis=0) if len(row) else np.zeros(x.shape[1]) for row in rows])
    squares = around.T @ around
    squares += ridge * np.trace(squares) / len(squares) * np.eye(len(squares))
    return np.linalg.norm(x - around @ np.linalg.solve(squares, around.T @ x), axis=1)


def test_residual__equals_the_slow_twin_in_any_chunks(random_csr, monkeypatch):
    indptr, indices = random_csr(70, 160)
    x = np.random.default_rng(0).normal(1, 2, (70, 4)).astype(np.float32)
    expected = slow_residual(indptr, indices, x)
    for chunk in (1 << 15, 7):
        monkeypatch.setattr("hcm_scale.score.residual.CHUNK_ROWS", chunk)
        np.testing.assert_allclose(residual(indptr, indices, x), expected, rtol=1e-5)


def test_residual__is_the_distance_to_the_middle_where_neighbours_say_nothing(random_csr):
    indptr, indices = random_csr(3_000, 15_000)
    x = np.random.default_rng(0).normal(size=(3_000, 3)).astype(np.float32)
    np.testing.assert_allclose(residual(indptr, indices, x), np.linalg.norm(x - x.mean(axis=0), axis=1), atol=0.3)


def test_residual__is_far_for_attributes_that_the_neighbourhood_does_not_predict():
    indptr, indices = np.arange(0, 2 * 201, 2), np.array([[(v - 1) % 200, (v + 1) % 200] for v in range(200)])
    indices = np.sort(indices, axis=1).ravel().astype(np.int32)
    x = np.stack([np.cos(np.arange(200) * 2 * np.pi / 200), np.sin(np.arange(200) * 2 * np.pi / 200)], axis=1)
    x[50] = -x[50]  # as long as all others, but of the other side of the ring
    assert residual(indptr, indices, x.astype(np.float32)).argmax() == 50


def test_residual__of_constant_features_is_zero(random_csr):
    indptr, indices = random_csr(30, 60)
    np.testing.assert_array_equal(residual(indptr, indices, np.full((30, 2), 3, np.float32)), 0.0)


def test_context__sees_a_node_that_is_unlike_its_neighbours(random_csr):
    indptr, indices = random_csr(100, 400)
    x = np.random.default_rng(0).normal(1, 0.1, (100, 5)).astype(np.float32)
    x[int(np.diff(indptr).argmax())] *= -1
    distance = 1 - edge_similarity(indptr, indices, x, "cosine")
    assert context(edge_index(indptr, indices), distance).argmax() == np.diff(indptr).argmax()
