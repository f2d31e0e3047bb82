"""The first propagation: exact, once, and never over somebody else's folder."""

import numpy as np
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.base.spmm import propagate
from hcm_scale.features import propagate as features
from hcm_scale.features.propagate import fingerprint_features, propagate_features
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
    monkeypatch.setattr(features, "_CHUNK_ROWS", 7)
    assert np.array_equal(propagate_features(graph, x, tmp_path / "chunked"), whole)


def test_propagate__is_kept_until_its_inputs_change(graph, x, tmp_path):
    out = tmp_path / "propagated"
    first = propagate_features(graph, x, out)
    assert not first.flags.writeable
    stamp = (out / "x.npy").stat().st_mtime_ns
    propagate_features(graph, x, out)
    assert (out / "x.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(propagate_features(graph, 2 * x, out), 2 * first)


def test_propagate__leaves_foreign_folders_alone(graph, x, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(FolderError, match="mine"):
        propagate_features(graph, x, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_features__are_refused_where_they_do_not_fit(graph, x, tmp_path):
    with pytest.raises(ValueError, match="59 rows; the graph has 60"):
        propagate_features(graph, x[:59], tmp_path / "p")
    with pytest.raises(ValueError, match="float32"):
        fingerprint_features(x.astype(np.float64))
    x[41, 2] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity, first in row 41"):
        propagate_features(graph, x, tmp_path / "p")


def test_fingerprint__is_of_the_content(x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    assert fingerprint_features(np.load(tmp_path / "x.npy", mmap_mode="r")) == fingerprint_features(x)
    assert fingerprint_features(x.reshape(30, 10)) != fingerprint_features(x)
    assert fingerprint_features(x + 1) != fingerprint_features(x)


def test_propagate_features__of_another_graph_is_made_again(random_csr, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    for seed in (0, 1):
        graph = Graph(*random_csr(40, 90, seed=seed))
        expected = propagate(graph.indptr, graph.indices, x)
        np.testing.assert_array_equal(propagate_features(graph, x, tmp_path / "p"), expected)
