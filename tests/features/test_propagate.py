"""The first propagation: exact, in any chunks, and to the bit the same on a GPU."""

import importlib.util

import numpy as np
import pytest
import torch

from hcm_scale.base.spmm import Propagated, propagate
from hcm_scale.features import propagate as features
from hcm_scale.graph import Graph
from hcm_scale.sampling.device import graph as device_graph
from hcm_scale.synthetic.families import rmat

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


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
    whole = features.propagate_features(graph, x, tmp_path / "whole")
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(features, "_ROWS_AT_ONCE", 7)
    assert np.array_equal(features.propagate_features(graph, x, tmp_path / "chunked"), whole)


def test_propagate__is_mapped_and_not_writable(graph, x, tmp_path):
    made = features.propagate_features(graph, x, tmp_path / "propagated")
    assert not made.flags.writeable
    assert np.array_equal(features.open_propagated(tmp_path / "propagated"), made)
    np.testing.assert_array_equal(made, propagate(graph.indptr, graph.indices, x))


def test_open_propagated__refuses_an_unfinished_folder(graph, x, tmp_path):
    features.propagate_features(graph, x, tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match="unfinished"):
        features.open_propagated(tmp_path)


@pytest.mark.parametrize(("scale", "num_attributes"), [(12, 7), (8, 20), (0, 20)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_propagated__is_made_on_the_device_with_the_bits_of_the_cores(scale, num_attributes, device, monkeypatch):
    monkeypatch.setattr(device_graph, "_MANY_ENTRIES", 0 if device == "cuda" else 1 << 62)
    if device == "cuda":
        monkeypatch.setattr(device_graph, "copy_into_device", None)  # the cores make no row
    graph = rmat(scale, num_attributes=num_attributes)
    lazy = Propagated(graph.indptr, graph.indices, np.asarray(graph.x))
    found = device_graph.graph_to(device, graph.indptr, graph.indices, lazy, 32).x
    wanted = propagate(graph.indptr, graph.indices, np.asarray(graph.x))
    np.testing.assert_array_equal(found[:, :num_attributes].cpu(), wanted)
    assert not found[:, num_attributes:].any()
    assert lazy.shape == wanted.shape


def test_propagated__gives_rows_of_any_nodes(graph, x):
    weights = np.ones(graph.num_arcs, np.float32)
    for lazy in (Propagated(graph.indptr, graph.indices, x), Propagated(graph.indptr, graph.indices, x, weights)):
        nodes = np.array([7, 59, 0, 7])
        np.testing.assert_array_equal(lazy.rows(nodes), np.asarray(lazy)[nodes])
        np.testing.assert_array_equal(lazy.keeping(np.array([59, 30, 7, 0])).rows(nodes), np.asarray(lazy)[nodes])
        assert len(lazy) == 60
