"""Blocks against dense rows of Â: exact where everything is drawn, right on average where it is not."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hcm_scale.base.spmm import gcn_scale
from hcm_scale.sampling import NeighborSampler

stateless_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample_blocks(indptr, indices, scale, seeds, fan_outs, *, step, **options):
    return NeighborSampler(indptr, indices, scale, fan_outs, **options)(seeds, step)


def dense_gcn(indptr, indices):
    """Slow twin of the weights: the n x n matrix Â."""
    num_nodes = len(indptr) - 1
    a = np.eye(num_nodes)
    for u in range(num_nodes):
        a[u, indices[indptr[u] : indptr[u + 1]]] = 1.0
    scale = 1.0 / np.sqrt(np.diff(indptr) + 1.0)
    return scale[:, None] * a * scale[None, :]


def dense(block):
    """Slow twin of a block: a (targets, sources) matrix."""
    out = np.zeros((block.num_targets, block.num_sources))
    rows = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
    np.add.at(out, (rows, block.indices.numpy()), block.weights.numpy())
    return out


def in_graph(block, nodes, num_nodes):
    """A block's rows over all nodes of the graph."""
    out = np.zeros((block.num_targets, num_nodes))
    out[:, nodes[: block.num_sources]] = dense(block)
    return out


def equal(a, b):
    same = [torch.equal(x, y) for x, y in ((a.indptr, b.indptr), (a.indices, b.indices), (a.weights, b.weights))]
    return all(same) and a.num_sources == b.num_sources


def forward(layers, x, weights):
    """A GCN in NumPy: relu between layers, none after the last."""
    for i, (matrix, w) in enumerate(zip(layers, weights, strict=True)):
        x = matrix @ x @ w
        x = np.maximum(x, 0) if i + 1 < len(weights) else x
    return x


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_sample_blocks__all_equals_the_full_graph_forward_over_many_small_batches(random_csr, num_layers):
    indptr, indices = random_csr(200, 900, seed=num_layers)
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(200, 7)), [rng.normal(size=(7, 7)) for _ in range(num_layers)]
    full = forward([dense_gcn(indptr, indices)] * num_layers, x, weights)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [None] * num_layers, seed=0)
    for step, seeds in enumerate(np.array_split(rng.permutation(200), 40)):
        nodes, blocks = sample(seeds, step)
        out = forward([dense(block) for block in blocks], x[nodes], weights)
        np.testing.assert_allclose(out, full[seeds], atol=1e-5 * np.abs(full).max())


@stateless_fixture
@given(seed=st.integers(0, 10**6), fan_outs=st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=3))
def test_sample_blocks__structure(random_csr, seed, fan_outs):
    indptr, indices = random_csr(60, 300, seed)
    seeds = np.random.default_rng(seed).choice(60, 9, replace=False)
    nodes, blocks = sample_blocks(indptr, indices, gcn_scale(indptr), seeds, fan_outs, seed=seed, step=3)
    assert nodes[:9].tolist() == seeds.tolist()
    assert len(set(nodes.tolist())) == len(nodes) == blocks[0].num_sources
    assert [b.num_targets for b in blocks] == [b.num_sources for b in blocks[1:]] + [9]
    for block, fan_out in zip(blocks, fan_outs, strict=True):
        for i, u in enumerate(nodes[: block.num_targets]):
            own, *drawn = nodes[block.indices[block.indptr[i] : block.indptr[i + 1]]].tolist()
            neighbours = indices[indptr[u] : indptr[u + 1]].tolist()
            assert own == u
            assert len(drawn) == len(set(drawn)) == min(len(neighbours), fan_out or 60)
            assert set(drawn) <= set(neighbours)


@pytest.mark.parametrize("fan_out", [1, 3, 8, 20])
def test_sample_blocks__is_unbiased(random_csr, fan_out):
    indptr, indices = random_csr(40, 300, seed=5)
    seeds, num_draws = np.arange(0, 40, 5), 2000
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [fan_out], seed=1)
    draws = [sample(seeds, step) for step in range(num_draws)]
    total = sum(in_graph(block, nodes, 40) for nodes, (block,) in draws)
    exact = dense_gcn(indptr, indices)[seeds]
    largest_boost = np.diff(indptr).max() / fan_out
    np.testing.assert_allclose(total / num_draws, exact, atol=5 * exact.max() * np.sqrt(largest_boost / num_draws))
    np.testing.assert_allclose((total / num_draws)[range(8), seeds], exact[range(8), seeds], rtol=1e-5)


@pytest.mark.parametrize("fan_out", [1, 3, 8, None])
def test_sample_blocks__weights_of_edges_multiply_the_same_draw(random_csr, fan_out):
    indptr, indices = random_csr(40, 300, seed=5)
    weights = np.random.default_rng(2).lognormal(0, 2, len(indices)).astype(np.float32)
    seeds, scale, factor = np.arange(0, 40, 5), gcn_scale(indptr, weights), np.eye(40)
    factor[np.repeat(np.arange(40), np.diff(indptr)), indices] = weights
    for step in range(20):
        args = indptr, indices, scale, seeds, [fan_out]
        nodes, (plain,) = sample_blocks(*args, seed=1, step=step)
        same_nodes, (weighted,) = sample_blocks(*args, seed=1, step=step, weights=weights)
        assert nodes.tolist() == same_nodes.tolist()
        expected = in_graph(plain, nodes, 40) * factor[seeds]
        np.testing.assert_allclose(in_graph(weighted, nodes, 40), expected, rtol=1e-6)


def test_sample_blocks__draws_every_subset_equally_often():
    star = np.r_[0, 5, np.arange(6, 11)], np.r_[1:6, 0, 0, 0, 0, 0].astype(np.int32)
    for fan_out in (2, 3):  # 3 of 5 goes by leaving 2 out
        sample = NeighborSampler(*star, np.ones(6, np.float32), [fan_out], seed=0)
        subsets = [frozenset(sample(np.array([0]), step)[0][1:].tolist()) for step in range(5000)]
        counts = [subsets.count(subset) for subset in set(subsets)]
        assert len(counts) == 10
        assert max(abs(count - 500) for count in counts) < 5 * np.sqrt(500)


def test_sample_blocks__layers_steps_and_seeds_draw_apart(random_csr):
    indptr, indices = random_csr(50, 600)
    args = indptr, indices, gcn_scale(indptr), np.arange(10)
    _, (first, last) = sample_blocks(*args, [4, 4], seed=0, step=0)
    _, (_, again) = sample_blocks(*args, [4, 4], seed=0, step=0)
    _, (_, other_step) = sample_blocks(*args, [4, 4], seed=0, step=1)
    _, (_, other_seed) = sample_blocks(*args, [4, 4], seed=1, step=0)
    assert equal(last, again)
    assert not equal(last, other_step)
    assert not equal(last, other_seed)
    assert not torch.equal(first.indices[: len(last.indices)], last.indices)


def test_sample_blocks__a_draw_depends_on_the_node_and_not_on_its_company(random_csr):
    indptr, indices = random_csr(50, 600)
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [4], seed=0)
    together, (block,) = sample(np.arange(50), 0)
    for u in range(50):
        alone, _ = sample(np.array([u]), 0)
        assert together[block.indices[block.indptr[u] : block.indptr[u + 1]]].tolist() == alone.tolist()


def test_sampler__same_blocks_at_any_thread_count(random_csr):
    indptr, indices = random_csr(500, 5000)
    batches = [np.random.default_rng(step).choice(500, 64, replace=False) for step in range(30)]
    sample = NeighborSampler(indptr, indices, gcn_scale(indptr), [5, None], seed=3, hub_cap=12)
    expected = [sample(seeds, step) for step, seeds in enumerate(batches)]
    before = numba.get_num_threads()
    try:
        for num_threads in (1, before):
            numba.set_num_threads(num_threads)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(sample, batches, range(30)))
            for (nodes, blocks), (other_nodes, others) in zip(expected, found, strict=True):
                assert nodes.tolist() == other_nodes.tolist()
                assert all(map(equal, blocks, others))
    finally:
        numba.set_num_threads(before)


def test_sample_blocks__hub_cap_bounds_only_hubs_and_only_where_fan_out_is_all():
    hub = np.r_[0, 100, np.arange(101, 201)], np.r_[1:101, np.zeros(100)].astype(np.int32)
    seeds, scale = np.array([0, 1]), gcn_scale(hub[0])
    _, (capped,) = sample_blocks(*hub, scale, seeds, [None], seed=0, step=0, hub_cap=10)
    assert capped.indptr.tolist() == [0, 11, 13]
    np.testing.assert_allclose(capped.weights[1:11], 10 * scale[0] * scale[1], rtol=1e-5)
    np.testing.assert_allclose(capped.weights[11:], [scale[1] ** 2, scale[0] * scale[1]], rtol=1e-5)
    _, (fixed,) = sample_blocks(*hub, scale, seeds, [20], seed=0, step=0, hub_cap=10)
    assert fixed.indptr.tolist() == [0, 21, 23]


def test_sample_blocks__isolated_nodes_keep_their_self_loop():
    nodes, blocks = sample_blocks(
        np.zeros(4, np.int64),
        np.zeros(0, np.int32),
        np.ones(3, np.float32),
        np.array([2, 0]),
        [None, 3],
        seed=0,
        step=0,
    )
    assert nodes.tolist() == [2, 0]
    for block in blocks:
        assert dense(block).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_sample_blocks__without_layers_is_the_seeds(random_csr):
    indptr, indices = random_csr(9, 20)
    nodes, blocks = sample_blocks(indptr, indices, gcn_scale(indptr), np.array([4, 2]), [], seed=0, step=0)
    assert (nodes.tolist(), blocks) == ([4, 2], ())


def test_sample_blocks__reads_memory_maps_and_wide_indices(random_csr, tmp_path):
    indptr, indices = random_csr(80, 500)
    args = gcn_scale(indptr), np.arange(20), [3, None]
    np.save(tmp_path / "indices.npy", indices)
    mapped = np.load(tmp_path / "indices.npy", mmap_mode="r").view(np.ndarray)
    _, expected = sample_blocks(indptr, indices, *args, seed=0, step=0)
    for same in (mapped, indices.astype(np.int64)):
        _, found = sample_blocks(indptr, same, *args, seed=0, step=0)
        assert all(map(equal, expected, found))


def test_scratch__forgets_earlier_batches_also_when_its_numbers_run_out(random_csr):
    indptr, indices = random_csr(30, 100)
    args = indptr, indices, gcn_scale(indptr)
    sample = NeighborSampler(*args, [2, 2], seed=0)
    sample(np.array([0]), 0)
    scratch = sample._local.scratch
    scratch.base = 2**31 - 130  # as after many batches; the fourth from here starts over
    for step in range(8):
        seeds = np.arange(step, 30, 3)
        nodes, blocks = sample(seeds, step)
        fresh_nodes, fresh = sample_blocks(*args, seeds, [2, 2], seed=0, step=step)
        assert nodes.tolist() == fresh_nodes.tolist()
        assert all(map(equal, blocks, fresh))
    assert scratch.base < 1000


@stateless_fixture
@given(seed=st.integers(0, 10**6))
def test_with_transpose__is_the_transpose(random_csr, seed):
    indptr, indices = random_csr(40, 150, seed)
    seeds = np.arange(0, 40, 7)
    _, blocks = sample_blocks(indptr, indices, gcn_scale(indptr), seeds, [3, 4], seed=seed, step=0)
    for block in blocks:
        full = block.with_transpose()
        rows = np.repeat(np.arange(block.num_sources), np.diff(full.t_indptr))
        back = np.zeros((block.num_sources, block.num_targets))
        np.add.at(back, (rows, full.t_indices.numpy()), full.t_weights.numpy())
        assert (dense(block) == back.T).all()


@pytest.mark.parametrize("seeds", [[-1], [0, 9]])
def test_sample_blocks__refuses_seeds_outside_the_graph(random_csr, seeds):
    indptr, indices = random_csr(9, 20)
    with pytest.raises(ValueError, match="nodes run from 0 to 8"):
        sample_blocks(indptr, indices, gcn_scale(indptr), np.array(seeds), [2], seed=0, step=0)
