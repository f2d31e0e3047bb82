"""From labelled pairs to a batch that a model can use alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.sampling import NeighborSampler, make_batch, prefetch
from hcm_scale.sampling.pairs import PairBatch


def random_pairs(num_nodes, num_pairs, epoch=0, step=0):
    rng = np.random.default_rng((epoch, step))
    u, v, hop = rng.integers(0, num_nodes, (3, num_pairs))
    return PairBatch(epoch=epoch, step=step, u=u, v=v, hop=hop % 4)


def multiply(block, x):
    crow, col, weights = block.indptr.long(), block.indices.long(), block.weights.double()
    rows = torch.repeat_interleave(torch.arange(block.num_targets), crow.diff())
    return torch.zeros(block.num_targets, x.shape[1], dtype=torch.double).index_add_(0, rows, weights[:, None] * x[col])


def all_tensors(batch):
    values = (value for part in (batch, *batch.blocks) for value in vars(part).values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def same(a, b):
    ours, theirs = all_tensors(a), all_tensors(b)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), num_pairs=st.integers(1, 80), num_layers=st.integers(0, 3))
def test_make_batch__positions_lead_back_to_the_pairs(random_csr, seed, num_pairs, num_layers):
    indptr, indices = random_csr(50, 200, seed)
    x = np.random.default_rng(seed).normal(size=(50, 3)).astype(np.float32)
    pairs = random_pairs(50, num_pairs, step=seed)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [4] * num_layers, seed=seed)
    batch = make_batch(pairs, x, sample)
    assert batch.nodes[batch.left].tolist() == pairs.u.tolist()
    assert batch.nodes[batch.right].tolist() == pairs.v.tolist()
    assert batch.num_seeds == len({*pairs.u.tolist(), *pairs.v.tolist()})
    assert max(batch.left.max(), batch.right.max()) < batch.num_seeds
    assert (batch.x.numpy() == x[batch.nodes.numpy()]).all()
    assert (batch.hop.tolist(), batch.epoch, batch.step) == (pairs.hop.tolist(), 0, seed)
    assert [batch.left.dtype, batch.hop.dtype, batch.nodes.dtype] == [torch.int64] * 3


def test_make_batch__full_batch_is_a_batch_of_everything(random_csr):
    indptr, indices = random_csr(60, 250)
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [None, None], seed=0)
    batch = make_batch(random_pairs(60, 2000), x, sample)
    assert sorted(batch.nodes.tolist()) == list(range(60))
    out = multiply(batch.blocks[1], multiply(batch.blocks[0], batch.x.double()))
    whole = propagate(indptr, indices, propagate(indptr, indices, x))
    np.testing.assert_allclose(out, whole[batch.nodes[: batch.num_seeds].numpy()], atol=1e-5)


def test_make_batch__draws_anew_every_epoch(random_csr):
    indptr, indices = random_csr(60, 600)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [3], seed=0)
    pairs = random_pairs(60, 40)
    later = PairBatch(epoch=1, step=0, u=pairs.u, v=pairs.v, hop=pairs.hop)
    x = np.zeros((60, 1), np.float32)
    assert same(make_batch(pairs, x, sample), make_batch(pairs, x, sample))
    assert not same(make_batch(pairs, x, sample), make_batch(later, x, sample))


def test_make_batch__same_batches_at_any_number_of_workers(random_csr):
    indptr, indices = random_csr(300, 3000)
    x = np.random.default_rng(0).normal(size=(300, 20)).astype(np.float32)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [5, None], seed=0, hub_cap=9)
    steps = [random_pairs(300, 64, step=step) for step in range(25)]
    expected = [make_batch(pairs, x, sample) for pairs in steps]
    for workers in (1, 2, 5):
        found = list(prefetch(steps, lambda pairs: make_batch(pairs, x, sample), depth=6, workers=workers))
        assert all(map(same, expected, found))


def test_make_batch__may_run_beside_numba_s_own_thread_pool(random_csr):
    indptr, indices = random_csr(300, 3000)
    x = np.ones((300, 64), np.float32)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [5], seed=0)
    whole = propagate(indptr, indices, x)
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(make_batch, random_pairs(300, 64, step=step), x, sample) for step in range(50)]
        assert all((propagate(indptr, indices, x) == whole).all() for _ in range(20))
        assert all(result.result().num_seeds for result in made)


@pytest.mark.parametrize("input_gradients", [True, False])
def test_make_batch__carries_the_transposes_that_gradients_need(random_csr, input_gradients):
    indptr, indices = random_csr(60, 250)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [3, 3], seed=0)
    batch = make_batch(random_pairs(60, 9), np.zeros((60, 2), np.float32), sample, input_gradients=input_gradients)
    assert [block.t_indptr is not None for block in batch.blocks] == [input_gradients, True]


def test_mini_batch__to_moves_every_tensor(random_csr):
    indptr, indices = random_csr(60, 250)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [3, 3], seed=0)
    batch = make_batch(random_pairs(60, 9), np.zeros((60, 2), np.float32), sample, input_gradients=False)
    moved = batch.to("meta", non_blocking=True)
    assert {tensor.device.type for tensor in all_tensors(moved)} == {"meta"}
    assert len(all_tensors(moved)) == len(all_tensors(batch))
    assert moved.num_seeds == batch.num_seeds


def test_make_batch__reads_attributes_from_a_memory_map(random_csr, tmp_path):
    indptr, indices = random_csr(60, 250)
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [3], seed=0)
    assert same(make_batch(random_pairs(60, 9), x, sample), make_batch(random_pairs(60, 9), mapped, sample))


@pytest.mark.gpu
def test_mini_batch__pin_keeps_every_value(random_csr):
    indptr, indices = random_csr(60, 250)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [3], seed=0)
    batch = make_batch(random_pairs(60, 9), np.zeros((60, 2), np.float32), sample)
    pinned = batch.map(torch.Tensor.pin_memory)
    assert all(tensor.is_pinned() for tensor in all_tensors(pinned))
    assert same(pinned.to("cuda", non_blocking=True).to("cpu"), batch)
