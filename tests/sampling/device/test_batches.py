"""Batches made on a device, on CPU tensors: what fits; what a resume repeats; what ranks share."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.graph import draw_rows, graph_to
from hcm_scale.sampling.pairs import cut_epoch, pair_batches

N, ALL = 60, 2**31 - 1


@pytest.fixture
def graph(random_csr):
    x = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
    return graph_to("cpu", *random_csr(N, 300), x)


@pytest.fixture(scope="module")
def labels(tmp_path_factory, make_labels):
    return make_labels(tmp_path_factory.mktemp("labels") / "labels", [53, 55, 58, N], 2, 20)


def test_draw__shows_every_drawn_pair_once_with_its_class(labels):
    pairs = gpu.pairs_to("cpu", labels)
    least = min(labels.stored)
    stored = [
        {tuple(sorted(pair)) for group in labels.row_groups(hop) for pair in zip(*labels.read(group), strict=True)}
        for hop in range(1, labels.classes + 1)
    ]
    u, v, hop = gpu.draw(pairs, 0, labels.classes * least, 3)
    for klass in range(labels.classes):
        mine = list(zip(u[hop == klass].tolist(), v[hop == klass].tolist(), strict=True))
        assert len(set(mine)) == len(mine) == least
        assert {tuple(sorted(pair)) for pair in mine} <= stored[klass]


def test_draw__pieces_are_those_of_the_whole_and_keys_differ(labels):
    pairs = gpu.pairs_to("cpu", labels)
    whole = gpu.draw(pairs, 0, 100, 7)
    for one, other in zip(whole, gpu.draw(pairs, 37, 61, 7), strict=True):
        assert torch.equal(one[37:61], other)
    assert not torch.equal(whole[1], gpu.draw(pairs, 0, 100, 8)[1])


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("limits", [(4,), (4, 3), (ALL,)])
def test_block_batches__resume_and_feed_the_model(labels, graph, on_device, limits):
    cut = cut_epoch(labels, batch_pairs=50, sampling_ratio=0.5)

    def batches(first_step):
        host = pair_batches(labels, cut, seed=3, first_step=first_step)
        source = gpu.pairs_to("cpu", labels) if on_device else host
        return gpu.block_batches(graph, source, cut, limits, seed=3, first_step=first_step)

    late = cut.num_steps + 1
    made, resumed = list(itertools.islice(batches(0), late + 1)), next(batches(late))
    whole = made[-1]
    assert not torch.equal(made[0].nodes[made[0].right], made[-2].nodes[made[-2].right])  # epochs differ
    assert (whole.epoch, whole.step) == (resumed.epoch, resumed.step) == (1, 1)
    for name in ("nodes", "x", "left", "right", "hop"):
        assert torch.equal(getattr(whole, name), getattr(resumed, name))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(whole.blocks, resumed.blocks, strict=True))
    start, stop = cut(1)
    model = HopModel(3, labels.classes, width=8, num_layers=len(limits) + 1)
    assert model(resumed).shape == (stop - start, labels.classes)
    assert torch.equal(resumed.hop, torch.arange(start, stop) % labels.classes)


def test_block_batches__are_shared_by_any_number_of_ranks(labels, graph):
    pairs = gpu.pairs_to("cpu", labels)

    def ends(rank, world):
        cut = cut_epoch(labels, batch_pairs=50, sampling_ratio=0.5, rank=rank, num_ranks=world)
        batch = next(gpu.block_batches(graph, pairs, cut, (4,), seed=0))
        return batch.nodes[batch.left], batch.nodes[batch.right], batch.hop

    for world in (2, 3):
        slices = [ends(rank, world) for rank in range(world)]
        for whole, parts in zip(ends(0, 1), zip(*slices, strict=True), strict=True):
            assert torch.equal(whole, torch.cat(parts))


def plain_sums(batch, weight, bias):
    """Slow twin of `EndsBatch.sum_hidden`, over explicit rows."""
    nodes, spread = gpu.distinct(batch.ends)
    known = nodes[nodes >= 0].long()
    starts, near, weights = draw_rows(batch.graph, known, batch.limit, int(batch.key))
    hidden = torch.relu(batch.graph.x[near] @ weight + bias) * weights[:, None]
    sums = torch.zeros(len(nodes), weight.shape[1])
    return sums.index_add(0, torch.repeat_interleave(starts.diff()), hidden), spread


def test_model__of_summed_rows_is_that_of_blocks(labels, graph):
    cut = cut_epoch(labels, batch_pairs=50, sampling_ratio=0.5)
    batch, fused = (
        next(make(graph, pair_batches(labels, cut, seed=0), cut, limit, seed=0))
        for make, limit in ((gpu.block_batches, (4,)), (gpu.fused_batches, 4))
    )
    summed = SimpleNamespace(sum_hidden=lambda weight, bias: plain_sums(fused, weight, bias))
    num_pairs = len(batch.hop)
    assert (fused.hop[num_pairs:] == -100).all()
    model = HopModel(3, labels.classes, width=8)
    torch.testing.assert_close(model(summed)[:num_pairs], model(batch))
    gradients = [
        torch.autograd.grad(model(b)[:num_pairs].square().sum(), list(model.parameters())) for b in (summed, batch)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_distinct__leads_from_each_node_to_its_ends(ends):
    nodes, block = gpu.distinct(torch.tensor(ends))
    assert nodes.tolist() == sorted(set(ends)) + [-1] * (len(ends) - len(set(ends)))
    assert nodes[block.indices.long()].tolist() == ends
    rows = torch.repeat_interleave(block.t_indptr.diff())
    assert torch.equal(nodes[rows], torch.tensor(ends)[block.t_indices.long()])


def test_fused_batches__hold_the_hosts_pairs_in_the_same_tensors(labels, graph):
    cut = cut_epoch(labels, batch_pairs=17, sampling_ratio=0.4)
    host = pair_batches(labels, cut, seed=3)
    made = gpu.fused_batches(graph, pair_batches(labels, cut, seed=3), cut, 4, seed=3)
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


def test_cut__most_is_the_largest_slice(labels):
    for batch_pairs, world in itertools.product((17, 50, 10**6), (1, 2, 3)):
        settings = {"batch_pairs": batch_pairs, "sampling_ratio": 0.5, "num_ranks": world}
        cuts = [cut_epoch(labels, rank=rank, **settings) for rank in range(world)]
        sizes = [stop - start for cut in cuts for start, stop in map(cut, range(cut.num_steps))]
        assert max(sizes) == cuts[0].most


@pytest.mark.parametrize(
    ("free", "wanted"),
    [(10**9, gpu.Fit(True, None)), (700_000, gpu.Fit(False, None)), (100_000, None)],
    ids=["all", "graph", "nothing"],
)
def test_choose_fit__takes_what_fits(random_csr, monkeypatch, free, wanted):
    monkeypatch.setattr(gpu.base_device, "free_bytes", lambda device: free)
    labels = SimpleNamespace(
        num_pairs=200_000, stored=(50_000,) * 4, plan=SimpleNamespace(index_type=np.dtype(np.int32))
    )
    options = {"batch_pairs": 32, "limits": (10,), "widths": (16, 16), "exact_first_hop": True}
    assert gpu.choose_fit("cpu", Graph(*random_csr(500, 3000)), 20, labels, **options) == wanted


def test_choose_fit__leaves_classes_beyond_32_bits_on_the_host(random_csr):
    labels = SimpleNamespace(num_pairs=4, stored=(2**31, 4), plan=SimpleNamespace(index_type=np.dtype(np.int32)))
    options = {"batch_pairs": 8, "limits": (10,), "widths": (16, 16), "exact_first_hop": True}
    assert gpu.choose_fit("cpu", Graph(*random_csr(50, 90)), 3, labels, **options) == gpu.Fit(False, None)
