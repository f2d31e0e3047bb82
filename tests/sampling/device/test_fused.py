"""The fused kernels against the explicit rows of `draw_rows`, and training on a GPU end to end."""

import functools
import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from bench.weights import spread_to_entries
from hcm_scale.base.spmm import propagate
from hcm_scale.base.triton_jit import AVAILABLE
from hcm_scale.config import Config
from hcm_scale.model import HopModel, aggregate
from hcm_scale.posterior import loop
from hcm_scale.posterior.samples import load_checkpoint, open_samples
from hcm_scale.run.stages import label_options, recipe_of
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.graph import draw_rows, graph_to
from hcm_scale.sampling.pairs import Cut
from hcm_scale.stages import train as train_batches
from hcm_scale.stages.label import label
from hcm_scale.synthetic.families import community, rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed"),
]
DEVICE = torch.device("cuda")
DEFAULT = recipe_of(Config())
HOW = {"workers": 1, "record": train_batches.Record(checkpoint_every=10, log_every=20)}


def make_graph(num_attributes=20, width=128):
    graph = rmat(12, num_attributes=num_attributes)
    columns = gpu.fused_columns(num_attributes, width, DEVICE)
    return graph_to(DEVICE, graph.indptr, graph.indices, graph.x, columns)


def test_choose_fit__takes_explicit_blocks_where_edges_have_weights(problem):
    graph, _, labels = problem
    options = {"batch_pairs": 32, "limits": (10,), "widths": (64, 64), "exact_first_hop": True}
    weighted = replace(graph, weights=np.ones(graph.num_arcs, np.float32))
    fits = [gpu.choose_fit(DEVICE, given, 20, labels, **options) for given in (graph, weighted)]
    assert [fit.columns for fit in fits] == [32, None]


def plain_sums(batch, weight, bias):
    """The same sums over explicit entries."""
    starts, nodes, weights = draw_rows(batch.graph, batch.ends.long(), batch.limit, int(batch.key))
    hidden = torch.relu(batch.graph.x[nodes, : len(weight)] @ weight + bias) * weights[:, None]
    row = torch.repeat_interleave(starts.diff())
    return hidden.new_zeros(len(batch.ends), weight.shape[1]).index_add(0, row, hidden)


@pytest.mark.parametrize("limit", [1, 10, 50, 2**31 - 1])
@pytest.mark.parametrize(("num_attributes", "width"), [(20, 128), (3, 16), (33, 64), (64, 128)])
def test_sum_hidden__equals_explicit_rows_forward_and_backward(limit, num_attributes, width):
    graph = make_graph(num_attributes, width)
    ends = torch.randint(0, graph.num_nodes, (1001,), device=DEVICE, dtype=torch.int32)
    key = torch.tensor([7_654_321_987_654_321], device=DEVICE)
    batch = gpu.EndsBatch(graph, ends, ends[:500].long(), key, limit, 0, 0)
    weight = torch.randn(num_attributes, width, device=DEVICE, requires_grad=True)
    bias = torch.randn(width, device=DEVICE, requires_grad=True)
    sums, spread = batch.sum_hidden(weight, bias)
    got, wanted = aggregate(spread, sums), plain_sums(batch, weight, bias)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    back = torch.randn_like(got)
    for mine, theirs in zip(
        torch.autograd.grad(got, (weight, bias), back), torch.autograd.grad(wanted, (weight, bias), back), strict=True
    ):
        assert (mine - theirs).norm() < 1e-4 * theirs.norm()


def test_draw_into__equals_plain_draw():
    pairs = torch.arange(70_000, device=DEVICE, dtype=torch.int32)
    held = gpu.DevicePairs(pairs, pairs + 100_000, torch.tensor([0, 20_000, 50_000, 70_000], device=DEVICE))
    ends = torch.full((2048,), -1, dtype=torch.int32, device=DEVICE)
    hop = torch.full((1024,), -1, device=DEVICE)
    gpu.draw_into(held, torch.tensor([31, 1031, 2**50 + 17], device=DEVICE), ends, hop)
    u, v, klass = gpu.draw(held, 31, 1031, 2**50 + 17)
    assert torch.equal(ends[:1000], u)
    assert torch.equal(ends[1024:2024], v)
    assert torch.equal(hop[:1000], klass)
    assert (hop[1000:] == -100).all()
    assert (ends[1000:1024] == 0).all()


def fused_batches(graph, seed=0, first_step=0):
    generator = torch.Generator(DEVICE).manual_seed(5)
    u, v = torch.randint(0, graph.num_nodes, (2, 40_000), device=DEVICE, dtype=torch.int32, generator=generator)
    pairs = gpu.DevicePairs(u, v, torch.arange(0, 40_001, 10_000, device=DEVICE))
    return gpu.fused_batches(graph, pairs, Cut(20_001, 4, 0, 1), 10, seed=seed, first_step=first_step)


def test_recorder__replays_what_measure_computes():
    graph, recorder = make_graph(), loop.Recorder()
    model = HopModel(20, 4).cuda()
    loop.Chain.start(model)
    for number, batch in enumerate(itertools.islice(fused_batches(graph), 9)):
        got, wanted = recorder(model, batch), loop.measure(model, batch)
        assert int(got.seen.sum()) == int((batch.hop >= 0).sum()) == (5001 if number % 4 == 3 else 5000)
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    assert recorder._graph is not None


def test_run_chain__recorded_resumed_and_repeated_is_bit_identical():
    graph, plan = make_graph(), replace(DEFAULT.plan, burn_in_steps=20, num_samples=1)

    def run(stop):
        chain = loop.Chain.start(HopModel(20, 4).cuda())
        options = asdict(DEFAULT.langevin) | {"num_pairs": 20_000, "seed": 0}
        first = itertools.islice(fused_batches(graph), stop)
        losses = [float(step.loss) for step in loop.run_chain(chain, first, plan, measure=loop.Recorder(), **options)]
        if stop < plan.num_steps:
            saved = {name: value.clone() for name, value in chain.tensors().items()}
            chain = loop.Chain.start(HopModel(20, 4).cuda())
            chain.restore(stop, saved)
            later = fused_batches(graph, first_step=stop)
            losses += [
                float(step.loss) for step in loop.run_chain(chain, later, plan, measure=loop.Recorder(), **options)
            ]
        return chain.vector, losses

    whole, losses = run(plan.num_steps)
    for stop in (plan.num_steps, 11):
        again, other = run(stop)
        assert other == losses
        assert torch.equal(again, whole)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    graph = community(3000, num_attributes=20, seed=1)
    options = label_options(Config()) | {"num_sources": 200, "pairs_per_class": None}
    labels = label(graph, tmp_path_factory.mktemp("labels") / "labels", **options)
    return graph, propagate(graph.indptr, graph.indices, graph.x.astype(np.float32)), labels


def last_loss(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["loss"]


def recipe_for(num_layers):
    return replace(
        DEFAULT,
        network=replace(DEFAULT.network, num_layers=num_layers, width=32),
        batching=replace(DEFAULT.batching, batch_pairs=1024, fan_outs=(20,)),
        plan=replace(DEFAULT.plan, schedule="constant", burn_in_steps=40, num_samples=2),
    )


@pytest.fixture(scope="module")
def cpu_loss(problem, tmp_path_factory):
    @functools.cache
    def train_once(num_layers):
        out = tmp_path_factory.mktemp("cpu")
        train_batches.train(train_batches.Training(*problem, recipe_for(num_layers), seed=0), out, device="cpu", **HOW)
        return last_loss(out)

    return train_once


@pytest.mark.parametrize("place", ["all on the device", "pairs on the host", "batches from the host"])
@pytest.mark.parametrize("num_layers", [2, 1, 3])
def test_train__every_path_learns_what_the_cpu_learns(problem, cpu_loss, tmp_path, monkeypatch, place, num_layers):
    fits = {"pairs on the host": lambda fit: gpu.Fit(False, fit.columns), "batches from the host": lambda fit: None}
    whole = train_batches.gpu_fit
    monkeypatch.setattr(train_batches, "gpu_fit", lambda *a: fits.get(place, lambda fit: fit)(whole(*a)))
    train_batches.train(
        train_batches.Training(*problem, recipe_for(num_layers), seed=0), tmp_path, device="cuda", **HOW
    )
    assert last_loss(tmp_path) == pytest.approx(cpu_loss(num_layers), abs=0.08)
    samples = open_samples(tmp_path / "samples")
    assert len(samples) == 2
    assert load_checkpoint(tmp_path / "checkpoints", tmp_path / "samples").num_done == 60


def test_train__with_weights_learns_what_the_cpu_learns(problem, tmp_path):
    graph, _, labels = problem
    weights = np.random.default_rng(0).lognormal(0, 1, graph.num_edges).astype(np.float32)
    weighted = replace(graph, weights=spread_to_entries(graph.indptr, graph.indices, weights))
    x = propagate(graph.indptr, graph.indices, graph.x.astype(np.float32), weighted.weights)
    for device in ("cpu", "cuda"):
        train_batches.train(
            train_batches.Training(weighted, x, labels, recipe_for(2), seed=0), tmp_path / device, device=device, **HOW
        )
    assert last_loss(tmp_path / "cuda") == pytest.approx(last_loss(tmp_path / "cpu"), abs=0.08)
