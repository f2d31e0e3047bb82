"""Kernels for GPUs on a graph of more entries than 32 bits number: a ring whose nodes know all up to 54 steps away."""

import numpy as np
import pytest
import torch

from hcm_scale.base.device import copy_to_device
from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.base.spmm_device import propagate_into
from hcm_scale.base.triton_jit import AVAILABLE
from hcm_scale.hops import choose_sources, label, label_hops
from hcm_scale.score import device, nodes
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.triangles_device import triangles_on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed"),
]
DEVICE, NUM_NODES, STEPS = "cuda", 20_000_000, 54


@pytest.fixture(scope="module")
def csr():
    steps = np.arange(-STEPS, STEPS + 1, dtype=np.int32)
    indices = np.add.outer(np.arange(NUM_NODES, dtype=np.int32), steps[steps != 0])
    across = np.r_[:STEPS, NUM_NODES - STEPS : NUM_NODES]
    indices[across] = np.sort(indices[across] % NUM_NODES, axis=1)
    return np.arange(NUM_NODES + 1) * indices.shape[1], indices.ravel()


@pytest.fixture(scope="module")
def edges(csr):
    assert len(csr[1]) > 1 << 31
    return edge_index(*csr)


def hops_of(edges, period):
    """Some hop of every edge."""
    return (np.arange(edges.num_edges, dtype=np.int32) % period).astype(np.float32) / period + 1


def test_propagate_into__makes_the_rows_of_the_cores(csr):
    x = np.random.default_rng(0).random((NUM_NODES, 3), np.float32)
    out = torch.empty(x.shape, device=DEVICE)
    held = (copy_to_device(array, DEVICE) for array in (*csr, gcn_scale(csr[0])))
    assert propagate_into(out, *held, x)
    np.testing.assert_array_equal(out.cpu(), propagate(*csr, x))


def test_edge_ends__are_those_of_the_cores(edges):
    left, right = device.edge_ends(edges, torch.device(DEVICE))
    for first in (0, edges.num_edges // 2, edges.num_edges - 1000):
        part = slice(first, first + 1000)
        wanted = edges.edges(part.start, part.stop)
        np.testing.assert_array_equal(left[part].cpu(), wanted[0])
        np.testing.assert_array_equal(right[part].cpu(), wanted[1])


def test_average_on_device__is_that_of_the_cores(edges):
    means, var = [hops_of(edges, 997), hops_of(edges, 101)], hops_of(edges, 7)
    *found, found_iv = device.average_on_device(edges, means, var, 0.8, DEVICE)
    ahp, iv = nodes.average_hops(edges, means, var, 0.2)
    np.testing.assert_array_equal(found, ahp)
    np.testing.assert_allclose(found_iv, iv, rtol=1e-12)


def test_triangles_on_device__are_as_many_as_a_ring_has(edges):
    found = triangles_on_device(edges, None, DEVICE)
    np.testing.assert_array_equal(found, np.full(NUM_NODES, 3 * STEPS * (STEPS - 1) // 2))


def test_label_hops__are_those_of_the_cores(csr, monkeypatch):
    sources = choose_sources(csr[0], num_sources=600, seed=0)
    options = {"classes": 4, "pairs_per_class": 20, "seed": 1, "sources_per_block": 600}
    cores = label_hops(*csr, sources, **options)
    monkeypatch.setattr(label, "sharing_pays", lambda *_, **__: True)
    for block, wanted in zip(label_hops(*csr, sources, device=DEVICE, **options), cores, strict=True):
        for name in ("u", "v", "hop", "counts"):
            np.testing.assert_array_equal(getattr(block, name), getattr(wanted, name))
