"""Batches made on a device, on CPU tensors: the same law as the CPU's sampler; what fits; what a resume repeats."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.base.spmm import gcn_scale
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.run.stages import label_options
from hcm_scale.sampling import sample_blocks
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.fused import distinct
from hcm_scale.sampling.device.graph import DeviceGraph, draw_blocks, draw_rows, graph_bytes, graph_to, layer_key
from hcm_scale.sampling.device.pairs import draw, epoch_key, pairs_to
from hcm_scale.sampling.pairs import Cut, cut_epoch, pair_batches
from hcm_scale.stages.label import label

N, ALL = 60, 2**31 - 1


def device_graph(csr, num_attributes=3, weights=None) -> DeviceGraph:
    x = np.random.default_rng(0).standard_normal((len(csr[0]) - 1, num_attributes)).astype(np.float32)
    return graph_to("cpu", *csr, x, weights=weights)


def dense_rows(graph: DeviceGraph, targets, limit, key) -> np.ndarray:
    """The drawn rows of Â as a matrix, entry by entry."""
    starts, nodes, weights = draw_rows(graph, targets, limit, key)
    row = np.repeat(np.arange(len(targets)), starts.diff().numpy())
    assert len(set(zip(row.tolist(), nodes.tolist(), strict=True))) == len(row)  # without replacement
    out = np.zeros((len(targets), graph.num_nodes))
    out[row, nodes] = weights
    return out


def dense_gcn(csr, weights=None) -> np.ndarray:
    indptr, indices = csr
    out, scale = np.eye(len(indptr) - 1), gcn_scale(indptr, weights)
    for u in range(len(indptr) - 1):
        row = slice(indptr[u], indptr[u + 1])
        out[u, indices[row]] = 1 if weights is None else weights[row]
    return out * scale[:, None] * scale[None, :]


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """All pairs of a ring with chords."""
    around = np.arange(N)
    rows = np.sort(np.stack([(around + step) % N for step in (-2, -1, 1, 2)], 1), axis=1)
    graph = Graph(np.arange(0, rows.size + 1, 4, dtype=np.int64), rows.ravel().astype(np.int32))
    options = label_options(Config()) | {"num_sources": None, "pairs_per_class": None, "row_group_rows": 50}
    return label(graph, tmp_path_factory.mktemp("labels") / "labels", **options)


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
    other_nodes, others = sample_blocks(*csr, gcn_scale(csr[0]), seeds.numpy(), [None, None], seed=0, step=0)
    assert nodes[:3].tolist() == [5, 0, 31]
    assert len(nodes.unique()) == len(nodes) == blocks[0].num_sources
    assert blocks[0].num_targets == blocks[1].num_sources
    model = HopModel(3, 4, width=8)
    z = model.encode(graph.x[nodes], blocks)
    torch.testing.assert_close(z, model.encode(graph.x[torch.from_numpy(other_nodes)], others))


def test_draw__shows_every_drawn_pair_once_with_its_class(labels):
    pairs = pairs_to("cpu", labels)
    least = min(labels.stored)
    stored = [
        {tuple(sorted(pair)) for group in labels.row_groups(hop) for pair in zip(*labels.read(group), strict=True)}
        for hop in range(1, labels.classes + 1)
    ]
    u, v, hop = draw(pairs, 0, labels.classes * least, epoch_key(0, 3))
    for klass in range(labels.classes):
        mine = list(zip(u[hop == klass].tolist(), v[hop == klass].tolist(), strict=True))
        assert len(set(mine)) == len(mine) == least
        assert {tuple(sorted(pair)) for pair in mine} <= stored[klass]


def test_draw__pieces_are_those_of_the_whole_and_epochs_differ(labels):
    pairs = pairs_to("cpu", labels)
    whole = draw(pairs, 0, 100, epoch_key(0, 0))
    for one, other in zip(whole, draw(pairs, 37, 61, epoch_key(0, 0)), strict=True):
        assert torch.equal(one[37:61], other)
    assert not torch.equal(whole[1], draw(pairs, 0, 100, epoch_key(0, 1))[1])
    assert not torch.equal(whole[1], draw(pairs, 0, 100, epoch_key(1, 0))[1])


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("limits", [(4,), (4, 3), (ALL,)])
def test_block_batches__resume_and_feed_the_model(labels, random_csr, on_device, limits):
    graph = device_graph(random_csr(N, 300))
    settings = {"batch_pairs": 50, "sampling_ratio": 0.5}
    cut = cut_epoch(labels, **settings)

    def batches(first_step):
        epoch, step = divmod(first_step, cut.num_steps)
        host = pair_batches(labels, seed=3, epoch_start=epoch, step_start=step, **settings)
        source = pairs_to("cpu", labels) if on_device else host
        return gpu.block_batches(graph, source, cut, limits, seed=3, first_step=first_step)

    late = cut.num_steps + 1
    whole, resumed = list(itertools.islice(batches(0), late + 1))[-1], next(batches(late))
    assert (whole.epoch, whole.step) == (resumed.epoch, resumed.step) == (1, 1)
    for name in ("nodes", "x", "left", "right", "hop"):
        assert torch.equal(getattr(whole, name), getattr(resumed, name))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(whole.blocks, resumed.blocks, strict=True))
    start, stop = cut(1)
    model = HopModel(3, labels.classes, width=8, num_layers=len(limits) + 1)
    assert model(resumed).shape == (stop - start, labels.classes)
    assert torch.equal(resumed.hop, torch.arange(start, stop) % labels.classes)


def test_block_batches__are_shared_by_any_number_of_ranks(labels, random_csr):
    graph, pairs = device_graph(random_csr(N, 300)), pairs_to("cpu", labels)

    def ends(rank, world):
        cut = cut_epoch(labels, batch_pairs=50, sampling_ratio=0.5, rank=rank, num_ranks=world)
        batch = next(gpu.block_batches(graph, pairs, cut, (4,), seed=0))
        return batch.nodes[batch.left], batch.nodes[batch.right], batch.hop

    for world in (2, 3):
        slices = [ends(rank, world) for rank in range(world)]
        for whole, parts in zip(ends(0, 1), zip(*slices, strict=True), strict=True):
            assert torch.equal(whole, torch.cat(parts))


@dataclass(frozen=True)
class PlainSums:
    """What an `EndsBatch` is to a model, over explicit rows."""

    graph: DeviceGraph
    ends: torch.Tensor
    limit: int
    key: int

    def sum_hidden(self, weight, bias):
        nodes, spread = distinct(self.ends)
        known = nodes[nodes >= 0]
        starts, near, weights = draw_rows(self.graph, known, self.limit, self.key)
        hidden = torch.relu(self.graph.x[near] @ weight + bias) * weights[:, None]
        sums = torch.zeros(len(nodes), weight.shape[1])
        return sums.index_add(0, torch.repeat_interleave(starts.diff()), hidden), spread


def test_model__of_summed_rows_is_that_of_blocks(labels, random_csr):
    graph, pairs = device_graph(random_csr(N, 300)), pairs_to("cpu", labels)
    cut = cut_epoch(labels, batch_pairs=50, sampling_ratio=0.5)
    batch = next(gpu.block_batches(graph, pairs, cut, (4,), seed=0))
    ends = batch.nodes[torch.cat([batch.left, batch.right])]
    summed = PlainSums(graph, ends, 4, layer_key(gpu.step_key(0, 0, 0), 0))
    model = HopModel(3, labels.classes, width=8)
    torch.testing.assert_close(model(summed), model(batch))
    gradients = [torch.autograd.grad(model(b).square().sum(), list(model.parameters())) for b in (summed, batch)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_distinct__leads_from_each_node_to_its_ends(ends):
    nodes, block = distinct(torch.tensor(ends))
    assert nodes.tolist() == sorted(set(ends)) + [-1] * (len(ends) - len(set(ends)))
    assert nodes[block.indices.long()].tolist() == ends
    rows = torch.repeat_interleave(block.t_indptr.diff())
    assert torch.equal(nodes[rows], torch.tensor(ends)[block.t_indices.long()])


def test_fused_batches__hold_the_hosts_pairs_in_the_same_tensors(labels, random_csr):
    graph = device_graph(random_csr(N, 300))
    settings = {"batch_pairs": 47, "sampling_ratio": 0.4}
    cut = cut_epoch(labels, **settings)
    host = pair_batches(labels, seed=3, **settings)
    made = gpu.fused_batches(graph, pair_batches(labels, seed=3, **settings), cut, 4, seed=3)
    places, sizes, keys = set(), set(), set()
    for item, batch in itertools.islice(zip(host, made, strict=False), cut.num_steps + 2):
        count, room = len(item.hop), cut.most
        assert batch.ends[:count].tolist() == item.u.tolist()
        assert batch.ends[room : room + count].tolist() == item.v.tolist()
        assert batch.hop.tolist() == item.hop.tolist() + [-100] * (room - count)
        assert (batch.epoch, batch.step) == (item.epoch, item.step)
        places |= {(batch.ends.data_ptr(), batch.hop.data_ptr(), batch.key.data_ptr())}
        sizes |= {count}
        keys |= {int(batch.key)}
    assert len(places) == 1
    assert len(sizes) == 2  # batches differ by one pair, shapes do not
    assert len(keys) == cut.num_steps + 2


def test_cut__most_is_the_largest_slice():
    for num_pairs, num_steps, world in itertools.product((7, 40, 101), (1, 3, 7), (1, 2, 3)):
        cuts = [Cut(num_pairs, num_steps, rank, world) for rank in range(world)]
        sizes = [stop - start for cut in cuts for start, stop, _ in map(cut, range(num_steps))]
        assert max(sizes) == cuts[0].most


@pytest.mark.parametrize(
    ("free", "wanted"),
    [(10**9, gpu.Fit(True, None)), (700_000, gpu.Fit(False, None)), (100_000, None)],
    ids=["all", "graph", "nothing"],
)
def test_plan__takes_what_fits(random_csr, free, wanted):
    indices = random_csr(500, 3000)[1]
    labels = SimpleNamespace(
        num_pairs=200_000, stored=(50_000,) * 4, plan=SimpleNamespace(index_type=np.dtype(np.int32))
    )
    options = {"batch_pairs": 32, "limits": (10,), "widths": (16, 16), "exact_first_hop": True, "free_bytes": free}
    assert gpu.choose_fit("cpu", 500, indices, 20, labels, **options) == wanted


def test_plan__makes_room_for_weights(random_csr):
    indices = random_csr(500, 3000)[1]
    plain, weighted = (graph_bytes(500, indices, 20, weighted=which) for which in (False, True))
    graph = device_graph(random_csr(500, 3000), 20, np.ones(len(indices), np.float32))
    tensors = graph.indptr, graph.indices, graph.scale, graph.x, graph.weights
    assert weighted - plain == graph.weights.nbytes
    assert weighted == sum(tensor.nbytes for tensor in tensors) - 8  # of the last of n + 1 starts


def test_plan__leaves_classes_beyond_32_bits_on_the_host(random_csr):
    labels = SimpleNamespace(num_pairs=4, stored=(2**31, 4), plan=SimpleNamespace(index_type=np.dtype(np.int32)))
    options = {"batch_pairs": 8, "limits": (10,), "widths": (16, 16), "exact_first_hop": True, "free_bytes": 10**9}
    assert gpu.choose_fit("cpu", 50, random_csr(50, 90)[1], 3, labels, **options) == gpu.Fit(False, None)


def test_graph_to__refuses_attributes_of_another_graph(random_csr):
    with pytest.raises(ValueError, match="x has 4 rows; the graph has 50 nodes"):
        graph_to("cpu", *random_csr(50, 90), np.zeros((4, 2), np.float32))
