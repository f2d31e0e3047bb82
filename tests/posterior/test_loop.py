"""The loop on a toy problem: events, samples, exact resume, divergence named, when a ranking has settled."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from hcm_scale.posterior import loop, sgld

SAMPLER = {"temperature": None, "prior": 5e-8, "seed": 0}
PLAN = sgld.ChainPlan("constant", 0.05, burn_in_steps=4, num_samples=3, thin_steps=3)


@dataclass(frozen=True)
class ToyBatch:
    x: Tensor
    hop: Tensor
    epoch: int = 0


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        with torch.no_grad():
            for value in self.parameters():
                value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, batch: ToyBatch) -> Tensor:
        return self.layer(batch.x)


def batch_at(step: int) -> ToyBatch:
    generator = torch.Generator().manual_seed(step)
    return ToyBatch(torch.randn(16, 3, generator=generator), torch.randint(0, 4, (16,), generator=generator), step // 5)


def run(chain: loop.Chain, plan: sgld.ChainPlan = PLAN, **options):
    batches = (batch_at(step) for step in range(chain.num_done, 10**6))
    return loop.run_chain(chain, batches, plan, **{"kernel": "psgld", "num_pairs": 100, **SAMPLER, **options})


@pytest.mark.parametrize("kernel", ["sgld", "psgld", "sgd", "adam"])
def test_run_chain__one_event_a_step_and_the_planned_samples(kernel):
    chain = loop.Chain.start(Toy())
    events = list(run(chain, kernel=kernel))
    assert [event.t for event in events] == list(range(PLAN.num_steps))
    assert [event.t for event in events if event.sample] == [6, 9, 12]
    last = events[-1].sample
    assert set(last) == {"layer.weight", "layer.bias"}
    assert torch.equal(torch.cat([last["layer.weight"].flatten(), last["layer.bias"]]), chain.vector)


def test_run_chain__samples_are_copies():
    samples = [event.sample for event in run(loop.Chain.start(Toy())) if event.sample]
    assert not torch.equal(samples[0]["layer.weight"], samples[1]["layer.weight"])


def test_run_chain__first_step_equals_the_formula():
    chain, plain = loop.Chain.start(Toy()), Toy()
    next(run(chain, kernel="sgld", temperature=0.0, prior=3.0))
    loss = nn.functional.cross_entropy(plain(batch_at(0)), batch_at(0).hop)
    for value, gradient in zip(plain.parameters(), torch.autograd.grad(loss, list(plain.parameters())), strict=True):
        value.data -= 0.025 * (gradient + 3.0 / 100 * value.data)
    torch.testing.assert_close(chain.vector, nn.utils.parameters_to_vector(plain.parameters()).detach())


def test_run_chain__equals_the_formula_with_noise_and_decreasing_steps():
    plan = replace(PLAN, schedule="polynomial", thin_steps=1, num_samples=2)
    chain, plain = loop.Chain.start(Toy()), Toy()
    list(run(chain, plan, kernel="sgld", prior=3.0, seed=7, num_pairs=50))
    for t in range(6):
        loss = nn.functional.cross_entropy(plain(batch_at(t)), batch_at(t).hop)
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(plain.parameters()))])
        vector, step_size = nn.utils.parameters_to_vector(plain.parameters()).detach(), plan.step_size_at(t)
        noise = (step_size / 50) ** 0.5 * sgld.noise_at(7, t, vector)  # the temperature is 1 / N
        vector = vector - step_size / 2 * (gradient + 3.0 / 50 * vector) + noise
        nn.utils.vector_to_parameters(vector, plain.parameters())
    assert plan.step_size_at(5) < plan.step_size_at(0)
    torch.testing.assert_close(chain.vector, vector)


@pytest.mark.parametrize("kernel", ["sgld", "psgld", "sgd", "adam"])
@pytest.mark.parametrize("stop", [1, 6, 7, 12])
def test_run_chain__resumed_from_its_tensors_is_bit_identical(kernel, stop):
    whole = loop.Chain.start(Toy())
    expected = list(run(whole, kernel=kernel))
    first = loop.Chain.start(Toy())
    events = run(first, kernel=kernel)
    for _ in range(stop):
        next(events)
    tensors = {name: value.clone() for name, value in first.tensors().items()}
    second = loop.Chain.start(Toy())
    second.restore(first.num_done, tensors)
    resumed = list(run(second, kernel=kernel))
    assert [event.t for event in resumed] == list(range(stop, PLAN.num_steps))
    assert torch.equal(whole.vector, second.vector)
    for event, other in zip(expected[stop:], resumed, strict=True):
        assert torch.equal(event.loss, other.loss)
        assert (event.sample is None) == (other.sample is None)


def test_run_chain__means_over_the_pairs_of_all_ranks():
    two, one = loop.Chain.start(Toy()), loop.Chain.start(Toy())
    twin = next(run(two, kernel="sgd", sum_ranks=lambda vector: vector * 2, prior=0.0))  # two ranks with equal slices
    alone = next(run(one, kernel="sgd", prior=0.0))
    torch.testing.assert_close(two.vector, one.vector)
    torch.testing.assert_close(twin.loss, alone.loss)
    assert twin.seen.tolist() == (2 * alone.seen).tolist()
    assert twin.correct.tolist() == (2 * alone.correct).tolist()


def test_meter__means_and_accuracy_per_class():
    chain, meter = loop.Chain.start(Toy()), loop.Meter(num_pairs=100)
    events = run(chain)
    seen, losses = [], []
    for _ in range(5):
        event = next(events)
        meter.add(event)
        losses.append(float(event.loss))
        seen.append(event.seen)
    metrics = meter.read(chain)
    assert (metrics.step, metrics.epoch, metrics.num_pairs, metrics.step_size) == (5, 0, 80, 0.05)
    assert metrics.loss == pytest.approx(sum(losses) / 5)
    assert all(0 <= value <= 1 for value in metrics.accuracy)
    assert meter.steps == []


def test_run_chain__counts_the_pairs_of_each_class():
    batch, model = batch_at(0), Toy()
    predicted = model(batch).argmax(1).tolist()
    batch.hop[3] = -100  # fills a place
    event = next(loop.run_chain(loop.Chain.start(model), [batch], PLAN, kernel="sgd", num_pairs=100, **SAMPLER))
    hops = batch.hop.tolist()
    assert event.seen.tolist() == [hops.count(k) for k in range(4)]
    assert event.correct.tolist() == [sum(p == h == k for p, h in zip(predicted, hops, strict=True)) for k in range(4)]


@pytest.mark.parametrize(
    ("step", "temperature", "cause"),
    [
        (0, None, "an attribute is NaN, infinite or huge"),
        (2, 1.0, "posterior.temperature=1 is 100 times the default"),
        (2, None, "a step of 0.05 is too large for these data: halve posterior.step_size"),
    ],
)
def test_meter__names_the_step_and_the_cause_of_a_nan(step, temperature, cause):
    chain, meter = loop.Chain.start(Toy()), loop.Meter(100, temperature)
    batches = [batch_at(t) for t in range(4)]
    batches[step] = ToyBatch(torch.full((16, 3), math.nan), batches[step].hop, 7)
    for event in loop.run_chain(chain, batches, PLAN, kernel="sgld", num_pairs=100, **SAMPLER):
        meter.add(event)
    with pytest.raises(
        loop.NonFiniteLossError, match=rf"step {step} \(epoch 7\): the loss is nan. Likely cause: {cause}"
    ):
        meter.read(chain)


def test_meter__catches_parameters_that_broke_after_the_last_loss():
    chain, meter = loop.Chain.start(Toy()), loop.Meter(num_pairs=100)
    meter.add(next(run(chain)))
    chain.vector[0] = math.inf
    with pytest.raises(loop.NonFiniteLossError, match="parameter is no longer finite"):
        meter.check(chain)


def test_journal__of_a_resumed_run_keeps_the_line_of_its_step_and_drops_later_and_torn_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    torn = b'{"step": \xb4}\n' + b"[" * 100_000 + b'\n[]\n{"step": 12}\n{"st'
    path.write_bytes(b'{"step": 4}\n{"step": 8}\n' + torn)
    with loop.Journal(tmp_path, 20, num_done=8) as journal:
        journal.write({"step": 9, "loss": math.nan})
    assert path.read_text() == '{"step": 4}\n{"step": 8}\n{"step": 9, "loss": null}\n'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, r"posterior\.temperature=-1.0"),
        ({"prior": math.inf}, "prior=inf"),
    ],
)
def test_run_chain__refuses_impossible_values(wrong, message):
    with pytest.raises(ValueError, match=message):
        run(loop.Chain.start(Toy()), **wrong)  # at the door, before the first step


class Line(nn.Module):
    """Logits of two classes: 0, and x w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, batch):
        score = batch.x @ self.w
        return torch.stack([torch.zeros_like(score), score], 1)


def settling(settled: float, num_edges: int = 200) -> loop.RankingConvergence:
    x = torch.randn(num_edges, 3, generator=torch.Generator().manual_seed(0))
    return loop.RankingConvergence(Line(), SimpleNamespace(x=x, hop=torch.zeros(num_edges, dtype=torch.long)), settled)


def test_settling__ends_at_the_fourth_of_equal_samples():
    watched = settling(1.0)
    found = []
    for _ in range(5):
        watched.add({"w": torch.tensor([1.0, 2.0, 3.0])})
        found.append(watched.has_settled)
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize(("settled", "ends"), [(0.999, False), (0.2, True)])
def test_settling__hears_how_far_the_newest_sample_moves_the_mean(settled, ends):
    """The fourth sample ranks the edges the other way round, with the weight of all three before."""
    watched = settling(settled)
    for _ in range(3):
        watched.add({"w": torch.tensor([0.1, 0.0, 0.0])})
    watched.add({"w": torch.tensor([0.0, 0.4, 0.0])})
    assert watched.has_settled is ends


@pytest.mark.parametrize(("margin", "ends"), [(1e-6, True), (-1e-6, False)])
def test_settling__compares_spearmans_correlation(margin, ends):
    weights = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    hops = 1 + torch.sigmoid(x @ weights.T).double()
    wanted = float(spearmanr(hops[:, :3].mean(1), hops.mean(1)).statistic)
    watched = settling(wanted - margin)
    for w in weights:
        watched.add({"w": w})
    assert watched.has_settled is ends


@pytest.mark.parametrize("num_edges", [0, 1])
def test_settling__of_next_to_no_edges_ends_at_the_fourth_sample(num_edges):
    watched = settling(1.0, num_edges)
    for _ in range(4):
        watched.add({"w": torch.ones(3)})
    assert watched.has_settled


def test_read_records__leaves_out_what_a_killed_run_left_incomplete(tmp_path):
    torn = b"[]\n\xb4\n" + b"[" * 100_000 + b'\n{"step": 3, "lo'
    (tmp_path / loop.METRICS).write_bytes(b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n' + torn)
    assert loop.read_records(tmp_path / loop.METRICS) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    assert loop.read_records(tmp_path / "missing.jsonl") == []
