"""The first propagation: exact, in any chunks."""

import numpy as np
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.base.spmm import propagate
from hcm_scale.features import propagate as features
from hcm_scale.features.propagate import open_propagated, propagate_features
from hcm_scale.graph import Graph


@pytest.fixture
def graph(random_csr):
    return Graph(*random_csr(60, 150))


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)


def test_propagate__equals_the_dense_product_in_any_chunks(graph, x, tmp_path, monkeypatch):
    dense = np.eye(60)
    for u in range(60):
        dense[u, graph.indices[graph.indptr[u] : graph.indptr[u + 1]]] = 1
    scale = 1 / np.sqrt(graph.degrees + 1)
    expected = scale[:, None] * dense * scale @ x
    whole = propagate_features(graph, x, tmp_path / "whole")
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(features, "CHUNK_ROWS", 7)
    assert np.array_equal(propagate_features(graph, x, tmp_path / "chunked"), whole)


def test_propagate__is_mapped_and_not_writable(graph, x, tmp_path):
    made = propagate_features(graph, x, tmp_path / "propagated")
    assert not made.flags.writeable
    assert np.array_equal(open_propagated(tmp_path / "propagated"), made)
    np.testing.assert_array_equal(made, propagate(graph.indptr, graph.indices, x))


def test_features__are_refused_where_they_do_not_fit(graph, x, tmp_path):
    with pytest.raises(ValueError, match=r"\(59, 5\).*60 rows"):
        propagate_features(graph, x[:59], tmp_path / "p")
    with pytest.raises(ValueError, match="float64"):
        propagate_features(graph, x.astype(np.float64), tmp_path / "p")
    x[41, 2] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity, at or beside node"):
        propagate_features(graph, x, tmp_path / "p")


def test_open_propagated__refuses_an_unfinished_folder(graph, x, tmp_path):
    propagate_features(graph, x, tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(FolderError, match="unfinished"):
        open_propagated(tmp_path)
