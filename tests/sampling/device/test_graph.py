"""Rows of Â drawn on a device, on CPU tensors: exact, unbiased, without replacement, and from a uniform shuffle."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from hcm_scale.base.spmm import gcn_scale
from hcm_scale.model import HopModel
from hcm_scale.sampling import NeighborSampler
from hcm_scale.sampling.device.graph import draw_blocks, draw_rows, graph_bytes, graph_to, shuffled

N, ALL = 60, 2**31 - 1


def device_graph(csr, num_attributes=3, weights=None):
    x = np.random.default_rng(0).standard_normal((len(csr[0]) - 1, num_attributes)).astype(np.float32)
    return graph_to("cpu", *csr, x, weights=weights)


def dense_rows(graph, targets, limit, key):
    """The drawn rows of Â as a matrix, entry by entry."""
    starts, nodes, weights = draw_rows(graph, targets, limit, key)
    row = np.repeat(np.arange(len(targets)), starts.diff().numpy())
    assert len(set(zip(row.tolist(), nodes.tolist(), strict=True))) == len(row)  # without replacement
    out = np.zeros((len(targets), graph.num_nodes))
    out[row, nodes] = weights
    return out


def dense_gcn(csr, weights=None):
    indptr, indices = csr
    out, scale = np.eye(len(indptr) - 1), gcn_scale(indptr, weights)
    for u in range(len(indptr) - 1):
        row = slice(indptr[u], indptr[u + 1])
        out[u, indices[row]] = 1 if weights is None else weights[row]
    return out * scale[:, None] * scale[None, :]


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def weighted_csr(request, random_csr):
    csr = random_csr(N, 300)
    return csr, np.random.default_rng(2).uniform(0.5, 2, len(csr[1])).astype(np.float32) if request.param else None


def test_draw_rows__all_is_the_gcn_matrix(weighted_csr):
    csr, weights = weighted_csr
    graph = device_graph(csr, weights=weights)
    np.testing.assert_allclose(dense_rows(graph, torch.arange(N), ALL, 0), dense_gcn(csr, weights), rtol=1e-6)


def test_draw_rows__weights_of_edges_multiply_the_same_draw(random_csr):
    csr = random_csr(N, 300)
    weights = np.random.default_rng(2).lognormal(0, 2, len(csr[1])).astype(np.float32)
    ones, weighted = device_graph(csr), device_graph(csr, weights=weights)
    factor = dense_gcn(csr, weights) / np.where(dense_gcn(csr) > 0, dense_gcn(csr), 1)
    for key in range(5):
        plain, found = (dense_rows(graph, torch.arange(N), 3, key) for graph in (ones, weighted))
        np.testing.assert_allclose(found, plain * factor, rtol=1e-5)


def test_draw_rows__is_unbiased(random_csr):
    csr = random_csr(N, 300)
    graph = device_graph(csr)
    mean = np.mean([dense_rows(graph, torch.arange(N), 3, key) for key in range(300)], axis=0)
    exact = dense_gcn(csr)
    assert abs(mean.sum() / exact.sum() - 1) < 0.01
    assert np.abs(mean - exact).max() < 6 * exact.max() * np.sqrt(4 / 300)
    np.testing.assert_allclose(np.diag(mean), np.diag(exact), rtol=1e-5)


def test_draw_rows__draws_at_most_the_limit_and_depends_on_key_and_node_alone(random_csr):
    csr = random_csr(N, 300)
    graph, order = device_graph(csr), torch.randperm(N)
    rows = dense_rows(graph, torch.arange(N), 4, key=7)
    assert np.array_equal((rows > 0).sum(1), np.minimum(np.diff(csr[0]), 4) + 1)
    assert np.array_equal(dense_rows(graph, order, 4, key=7), rows[order.numpy()])
    assert not np.array_equal(dense_rows(graph, torch.arange(N), 4, key=8), rows)


def test_draw_blocks__all_is_what_the_cpu_samples(random_csr):
    csr = random_csr(N, 150)
    graph, seeds = device_graph(csr), torch.tensor([5, 0, 31])
    nodes, blocks = draw_blocks(graph, seeds, [ALL, ALL], 0)
    other_nodes, others = NeighborSampler(*csr, gcn_scale(csr[0]), [None, None], seed=0)(seeds.numpy(), 0)
    assert nodes[:3].tolist() == [5, 0, 31]
    assert len(nodes.unique()) == len(nodes) == blocks[0].num_sources
    assert blocks[0].num_targets == blocks[1].num_sources
    model = HopModel(3, 4, width=8)
    z = model.encode(graph.x[nodes], blocks)
    torch.testing.assert_close(z, model.encode(graph.x[torch.from_numpy(other_nodes)], others))


def test_graph_bytes__are_those_of_the_tensors(random_csr):
    indices = random_csr(500, 3000)[1]
    plain, weighted = (graph_bytes(500, indices, 20, weighted=which) for which in (False, True))
    graph = device_graph(random_csr(500, 3000), 20, np.ones(len(indices), np.float32))
    tensors = graph.indptr, graph.indices, graph.scale, graph.x, graph.weights
    assert weighted - plain == graph.weights.nbytes
    assert weighted == sum(tensor.nbytes for tensor in tensors) - 8  # of the last of n + 1 starts


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_shuffled__is_a_bijection(size, word):
    order = shuffled(torch.arange(size), torch.tensor(size), torch.tensor(word))
    assert order.sort().values.tolist() == list(range(size))


def test_shuffled__is_a_bijection_of_millions():
    order = shuffled(torch.arange(1_000_003), torch.tensor(1_000_003), torch.tensor(5))
    assert torch.bincount(order, minlength=1_000_003).max() == 1
    assert (order - torch.arange(1_000_003)).abs().double().mean() == pytest.approx(1_000_003 / 3, rel=0.01)


def test_shuffled__takes_sizes_up_to_2_31():
    size = torch.tensor(2**31 - 1)
    order = shuffled(torch.tensor([0, 1, 2**31 - 2]), size, torch.tensor(9))
    assert len(set(order.tolist())) == 3
    assert (order >= 0).all()
    assert (order < size).all()


@pytest.mark.parametrize(("size", "count"), [(6, 3), (11, 10)])
def test_shuffled__draws_every_subset_alike(size, count):
    words = torch.randint(0, 2**32, (50_000,), generator=torch.Generator().manual_seed(0))
    draws = shuffled(torch.arange(count), torch.tensor(size), words[:, None]).sort(1).values
    assert (draws.diff(dim=1) > 0).all()
    seen = torch.unique(draws, dim=0, return_counts=True)[1]
    assert len(seen) == math.comb(size, count)
    assert chisquare(seen.numpy()).pvalue > 1e-3
