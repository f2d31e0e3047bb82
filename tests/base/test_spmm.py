"""Sparse products against scipy, at any thread count."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from hcm_scale.base import spmm


def dense_gcn(indptr, indices, weights=None):
    n, weights = len(indptr) - 1, np.ones(len(indices)) if weights is None else weights
    adjacency = sparse.csr_array((weights, indices, indptr), shape=(n, n)).toarray() + np.eye(n)
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    return scale[:, None] * adjacency * scale


@given(st.integers(1, 40), st.integers(0, 120), st.integers(0, 50), st.integers(1, 33))
def test_propagate__equals_the_dense_product(num_nodes, num_edges, seed, width):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((num_nodes, num_nodes)) < num_edges / max(num_nodes**2, 1), 1)
    matrix = sparse.csr_array((upper | upper.T).astype(np.int8))
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    x = rng.normal(size=(num_nodes, width)).astype(np.float32)
    np.testing.assert_allclose(spmm.propagate(indptr, indices, x), dense_gcn(indptr, indices) @ x, atol=1e-5)
    weights = rng.lognormal(0, 2, len(indices)).astype(np.float32)
    weighted = spmm.propagate(indptr, indices, x, weights)
    np.testing.assert_allclose(weighted, dense_gcn(indptr, indices, weights) @ x, atol=1e-5)


def test_propagate__with_weights_of_one_gives_the_same_bits_as_without(random_csr):
    indptr, indices = random_csr(300, 900)
    x = np.random.default_rng(3).normal(size=(300, 21)).astype(np.float32)
    ones = np.ones(len(indices), np.float32)
    assert np.array_equal(spmm.propagate(indptr, indices, x, ones), spmm.propagate(indptr, indices, x))
    assert ones.flags.writeable


def test_csr_row_range__equals_scipy():
    matrix = sparse.random_array((700, 300), density=0.05, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(300, 17)).astype(np.float32)
    out = np.zeros((700, 17), np.float32)
    for first, last in ((0, 100), (100, 101), (101, 700)):
        spmm.csr_row_range(matrix.indptr, matrix.indices, matrix.data, x, first, last, out)
    np.testing.assert_allclose(out, matrix @ x, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 16, 129])
def test_csr_row_range__takes_empty_rows_hubs_and_any_width(width, dtype):
    rng = np.random.default_rng(2)
    degree = np.array([0, 1, 500, 0, 2, 0])
    indptr, indices = np.concatenate([[0], np.cumsum(degree)]), rng.integers(0, 40, degree.sum())
    weights, x = rng.normal(size=len(indices)).astype(dtype), rng.normal(size=(40, width)).astype(dtype)
    out = np.full((6, width), np.nan, dtype)
    spmm.csr_row_range(indptr, indices, weights, x, 0, 6, out)
    np.testing.assert_allclose(out, sparse.csr_array((weights, indices, indptr), shape=(6, 40)) @ x, atol=1e-4)


def test_propagate__takes_columns_of_a_wider_array(random_csr):
    indptr, indices = random_csr(300, 900)
    x = np.random.default_rng(3).normal(size=(300, 40)).astype(np.float32)
    assert np.array_equal(spmm.propagate(indptr, indices, x[:, ::2]), spmm.propagate(indptr, indices, x[:, ::2].copy()))


@pytest.mark.parametrize("threads", [1, 2])
def test_gcn_rows__do_not_depend_on_threads(random_csr, threads):
    indptr, indices = random_csr(3000, 9000)
    x = np.random.default_rng(1).normal(size=(3000, 5)).astype(np.float32)
    expected, before = spmm.propagate(indptr, indices, x), numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        assert np.array_equal(spmm.propagate(indptr, indices, x), expected)
    finally:
        numba.set_num_threads(before)


def test_gcn_rows__of_a_range_equal_the_whole(random_csr):
    indptr, indices = random_csr(1000, 5000)
    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    whole, part = spmm.propagate(indptr, indices, x), np.empty((300, 8), np.float32)
    spmm.gcn_rows((0, 300), indptr, indices, spmm.gcn_weights(indptr), x, 400, part)
    assert np.array_equal(part, whole[400:700])
