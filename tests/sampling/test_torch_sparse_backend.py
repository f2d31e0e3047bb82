"""The torch-sparse backend means the same as ours: equal blocks where all is drawn, equal on average elsewhere."""

import sys

import numpy as np
import pytest
import torch

from hcm_scale.base.spmm import gcn_scale
from hcm_scale.sampling import BACKENDS


@pytest.fixture
def torch_sparse(random_csr):
    """Skips, with the reason, where torch-sparse is not installed."""
    try:
        BACKENDS["torch_sparse"](*random_csr(5, 9), np.ones(5, np.float32), [2], seed=0)
    except ValueError as error:
        pytest.skip(str(error))


def rows(nodes, block, num_nodes):
    """A block's rows over all nodes of the graph."""
    out = np.zeros((block.num_targets, num_nodes))
    targets = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
    out[targets, nodes[block.indices]] = block.weights
    return out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hub_cap", [None, 1000])
def test_sample_blocks__all_equals_ours(torch_sparse, random_csr, hub_cap, weighted):
    indptr, indices = random_csr(80, 300)
    weights = np.random.default_rng(2).lognormal(0, 2, len(indices)).astype(np.float32) if weighted else None
    seeds = np.array([7, 3, 50, 79])
    args, how = (indptr, indices, gcn_scale(indptr, weights)), {"seed": 0, "hub_cap": hub_cap, "weights": weights}
    nodes, ours = BACKENDS["numba"](*args, [None, None], **how)(seeds, 0)
    their_nodes, theirs = BACKENDS["torch_sparse"](*args, [None, None], **how)(seeds, 0)
    assert their_nodes[:4].tolist() == seeds.tolist()
    assert sorted(nodes.tolist()) == sorted(their_nodes.tolist())
    for mine, other in zip(ours, theirs, strict=True):
        order = np.argsort(nodes[: mine.num_targets]), np.argsort(their_nodes[: mine.num_targets])
        expected, found = rows(nodes, mine, 80)[order[0]], rows(their_nodes, other, 80)[order[1]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert (mine.num_targets, mine.num_sources) == (other.num_targets, other.num_sources)


@pytest.mark.parametrize("fan_out", [2, 3, 6])
def test_sample_blocks__has_the_expectation_of_ours(torch_sparse, random_csr, fan_out):
    indptr, indices = random_csr(40, 300, seed=5)
    seeds, num_draws = np.arange(40), 400
    scale, late = gcn_scale(indptr), np.zeros((40, 40), bool)
    for u in range(40):  # torch-sparse draws the last neighbours of a row less often
        late[u, indices[indptr[u] : indptr[u + 1]][-fan_out:]] = True
    exact = rows(*one(BACKENDS["numba"](indptr, indices, scale, [None], seed=0)(seeds, 0)), 40)
    for backend in ("numba", "torch_sparse"):
        sample = BACKENDS[backend](indptr, indices, scale, [fan_out], seed=1)
        mean = sum(rows(*one(sample(seeds, step)), 40) for step in range(num_draws)) / num_draws
        np.testing.assert_allclose(mean, exact, atol=6 * exact.max() * np.sqrt(10 / fan_out / num_draws))
        np.testing.assert_allclose(mean[late].sum(), exact[late].sum(), rtol=0.02)
        np.testing.assert_allclose(mean.sum(), exact.sum(), rtol=0.01)


def one(sampled):
    """Nodes and the only block."""
    nodes, (block,) = sampled
    return nodes, block


def test_sample_blocks__draws_without_replacement_and_repeatably(torch_sparse, random_csr):
    indptr, indices = random_csr(80, 900)
    sample = BACKENDS["torch_sparse"](indptr, indices, gcn_scale(indptr), [4, None], seed=0, hub_cap=6)
    state = torch.random.get_rng_state()
    nodes, blocks = sample(np.arange(10), 0)
    again, _ = sample(np.arange(10), 0)
    other, _ = sample(np.arange(10), 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert nodes.tolist() == again.tolist() != other.tolist()
    for block, fan_out in zip(blocks, (4, 6), strict=True):
        for i, u in enumerate(nodes[: block.num_targets]):
            own, *drawn = block.indices[block.indptr[i] : block.indptr[i + 1]].tolist()
            assert own == i
            assert len(set(drawn)) == len(drawn) == min(fan_out, indptr[u + 1] - indptr[u])


def test_sampler__names_the_extra_where_torch_sparse_is_absent(random_csr, monkeypatch):
    indptr, indices = random_csr(5, 9)
    monkeypatch.setitem(sys.modules, "torch_sparse", None)
    with pytest.raises(ValueError, match=r"pip install 'hcm-scale\[sparse\]'"):
        BACKENDS["torch_sparse"](indptr, indices, gcn_scale(indptr), [3], seed=0)


@pytest.mark.parametrize(("fan_outs", "hub_cap"), [([1], None), ([5, None], 1)])
def test_sampler__refuses_a_single_draw_which_torch_sparse_gets_wrong(random_csr, fan_outs, hub_cap):
    indptr, indices = random_csr(5, 9)
    with pytest.raises(ValueError, match="needs 2 or more"):
        BACKENDS["torch_sparse"](indptr, indices, gcn_scale(indptr), fan_outs, seed=0, hub_cap=hub_cap)
