"""Residuals against one dense least-squares problem, and what they are meant to see."""

import numpy as np

from hcm_scale.score.kinds.attributes import residual


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
        monkeypatch.setattr("hcm_scale.score.kinds.attributes.CHUNK_ROWS", chunk)
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
