"""What a run says while it works: one live line, one JSON line per reading, TensorBoard where it is asked for.

`metrics.jsonl` holds one object a line: step, epoch, loss, accuracy (per class), num_pairs, step_size,
pairs_per_second, rss_bytes; other lines, such as a trend, carry their own names beside `step`. A resumed run first
drops the lines after the step it resumes from, so that every step is logged once.
"""

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from hcm_scale.base import files
from hcm_scale.base.console import bar
from hcm_scale.posterior.sgld import KERNELS, ChainPlan, State, noise_at, step_

# ----------------------------------------------------------------------------
# The loop: batches in, one Langevin step each, one small event out; after burn-in some events carry a sample.
#
# `run_chain` is a generator and owns nothing but the step: its caller decides what to print, log and write, and may
# stop or save the chain at any event, because between events the chain is at rest. A chain is its parameters, its
# kernel's state and the number of steps done; noise, step size and batches are functions of that number. Losses stay
# on the device until a `Meter` is read, so a step never waits for the one before it.
#
# All parameters share one vector: the model's tensors are views of it, the step is a formula on it, and ranks reduce
# it in one call. Memory: the vector, its gradient, the noise, the kernel's state.


SumRanks = Callable[[Tensor], Tensor]  # (k,) of this rank -> the sum over all ranks, the same on each


class NonFiniteLossError(FloatingPointError):
    """The chain diverged; the message names the step and the likely cause."""


@dataclass(eq=False)
class Chain:
    """A model whose parameters are views of one vector, and how far it has come."""

    model: nn.Module
    vector: Tensor
    state: State = field(default_factory=dict)
    num_done: int = 0

    @staticmethod
    def start(model: nn.Module) -> "Chain":
        """Moves the parameters of a model, already on its device, into one vector."""
        vector = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        nn.utils.vector_to_parameters(vector, model.parameters())
        return Chain(model, vector)

    def sample(self) -> dict[str, Tensor]:
        """A copy of the parameters by name, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.model.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold, besides the number of steps."""
        return {"parameters": self.vector, **{f"state.{name}": value for name, value in self.state.items()}}

    def restore(self, num_done: int, tensors: dict[str, Tensor]) -> None:
        """Continues where `tensors` were taken."""
        self.vector.copy_(tensors["parameters"])
        named = (name for name in tensors if name.startswith("state."))
        self.state = {name.removeprefix("state."): tensors[name].to(self.vector.device) for name in named}
        self.num_done = num_done


@dataclass(frozen=True, eq=False)
class Step:
    """What one step tells; the tensors are on the device and not yet waited for."""

    t: int
    epoch: int
    step_size: float
    loss: Tensor  # (): mean over the pairs of the batch, before the step
    correct: Tensor  # (C,): pairs of each class predicted rightly
    seen: Tensor  # (C,): pairs of each class
    sample: dict[str, Tensor] | None  # the parameters after the step, where the plan keeps them


class Measured(NamedTuple):
    """What a batch says about the parameters; of this rank's slice where ranks share it."""

    gradient: Tensor  # of the mean loss, all parameters as one vector
    loss: Tensor  # ()
    correct: Tensor  # (C,)
    seen: Tensor  # (C,)


def measure(model: nn.Module, batch: Any) -> Measured:
    """Loss, gradient and counts of a batch; a pair of hop -100 fills a place and counts nowhere."""
    logits = model(batch)
    loss = functional.cross_entropy(logits, batch.hop)
    gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(model.parameters()))])
    return Measured(gradient, loss.detach(), *class_counts(logits.detach(), batch.hop))


Measure = Callable[[nn.Module, Any], Measured]


def run_chain(
    chain: Chain,
    batches: Iterable[Any],
    plan: ChainPlan,
    *,
    kernel: str,
    num_pairs: int,
    temperature: float | None,
    prior: float,
    seed: int,
    sum_ranks: SumRanks | None = None,
    measure: Measure = measure,
) -> Iterator[Step]:
    """Runs the chain over `batches` (the first is step `chain.num_done`) until the plan is done or they end.

    `num_pairs` is N, the number of labelled pairs; the temperature is 1 / N unless given. `prior` is the
    precision of the Gaussian prior, the paper's weight decay. Where ranks share each batch, `sum_ranks` joins them:
    gradient, loss and counts are then those of the whole batch. `measure` may be a faster way to the same numbers.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r} must be one of {', '.join(KERNELS)}")
    if num_pairs < 1:
        raise ValueError(f"num_pairs={num_pairs} must be at least 1")
    for name, value in (("temperature", temperature), ("prior", prior)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value} must be a number of at least 0")
    move: dict[str, Any] = {
        "kernel": KERNELS[kernel],
        "temperature": 1.0 / num_pairs if temperature is None else temperature,
        "prior_over_n": prior / num_pairs,
    }
    return _steps(chain, batches, plan, move, seed, sum_ranks, measure)


def _steps(
    chain: Chain,
    batches: Iterable[Any],
    plan: ChainPlan,
    move: dict[str, Any],
    seed: int,
    sum_ranks: SumRanks | None,
    measure: Measure,
) -> Iterator[Step]:
    for t, batch in zip(range(chain.num_done, plan.num_steps), batches, strict=False):
        gradient, loss, correct, seen = measure(chain.model, batch)
        if sum_ranks is not None:
            gradient, loss, correct, seen = whole_batch(sum_ranks, gradient, loss, correct, seen)
        step_size, noise = plan.step_size_at(t), noise_at(seed, t, chain.vector)
        step_(chain.vector, gradient, chain.state, noise, t=t, step_size=step_size, **move)
        chain.num_done = t + 1
        sample = chain.sample() if plan.keeps(t) else None
        yield Step(t, batch.epoch, step_size, loss, correct, seen, sample)


def whole_batch(
    sum_ranks: SumRanks, gradient: Tensor, loss: Tensor, correct: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same four of the whole batch, from those of this rank's slice: slices count by their pairs, in one exchange.

    >>> whole_batch(lambda v: v + torch.tensor([9.0, 6, 1, 3]), *map(torch.tensor, ([1.0], 2.0, [1.0], [1.0])))
    (tensor([2.5000]), tensor(2.), tensor([2.]), tensor([4.]))
    """
    parts = [gradient * seen.sum(), (loss * seen.sum()).reshape(1), correct, seen]
    gradient, loss, correct, seen = sum_ranks(torch.cat(parts)).split([len(part) for part in parts])
    return gradient / seen.sum(), loss[0] / seen.sum(), correct, seen


def class_counts(logits: Tensor, hop: Tensor) -> tuple[Tensor, Tensor]:
    """Per class: how many pairs were predicted rightly, and how many there were; (C,) each, without waiting."""
    of_class = hop[:, None] == torch.arange(logits.shape[1], device=hop.device)
    hits = of_class & (logits.argmax(1) == hop)[:, None]
    return hits.sum(0, dtype=logits.dtype), of_class.sum(0, dtype=logits.dtype)


# ----------------------------------------------------------------------------
# Sums up steps between two log lines, and stops a chain that has diverged.
#
# Reading a number waits for the device, so losses are gathered as they come and read together. A non-finite loss is
# then found up to one reading late, but named by its own step; whoever writes a sample or a checkpoint reads first.


@dataclass(frozen=True)
class Metrics:
    """Means over the steps since the last reading."""

    step: int  # steps done
    epoch: int
    loss: float
    accuracy: tuple[float, ...]  # per class; nan for a class that was not seen
    num_pairs: int
    step_size: float


@dataclass(eq=False)
class Meter:
    """Gathers steps; `read` returns their means, or raises where a loss was not finite."""

    num_pairs: int
    temperature: float | None = None
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(replace(step, sample=None))  # parameters are kept by whoever writes them

    def check(self, chain: Chain) -> None:
        """Raises NonFiniteLossError if a gathered loss, or a parameter by now, is not finite. Waits for the device."""
        if not self.steps:
            return
        finite = torch.stack([step.loss for step in self.steps]).isfinite().tolist()
        if all(finite) and bool(chain.vector.isfinite().all()):
            return
        first = self.steps[finite.index(False)] if not all(finite) else self.steps[-1]
        what = f"the loss is {first.loss.item()}" if not all(finite) else "a parameter is no longer finite"
        cause = likely_cause(first.t, first.step_size, self.temperature, self.num_pairs)
        raise NonFiniteLossError(f"step {first.t} (epoch {first.epoch}): {what}. Likely cause: {cause}")

    def read(self, chain: Chain) -> Metrics:
        """The means of what was gathered, at least one step; forgets it."""
        self.check(chain)
        last = self.steps[-1]
        correct = torch.stack([step.correct for step in self.steps]).sum(0).tolist()
        seen = torch.stack([step.seen for step in self.steps]).sum(0).tolist()
        loss = float(torch.stack([step.loss for step in self.steps]).mean())
        self.steps = []
        accuracy = tuple(c / s if s else math.nan for c, s in zip(correct, seen, strict=True))
        return Metrics(last.t + 1, last.epoch, loss, accuracy, int(sum(seen)), last.step_size)


def likely_cause(t: int, step_size: float, temperature: float | None, num_pairs: int) -> str:
    """Why a loss is not finite, as far as three numbers tell."""
    if t == 0:
        return (
            "an attribute is NaN, infinite or huge: the weights had not moved yet. Check or standardise the attributes"
        )
    if temperature is not None and temperature * num_pairs > 10:
        times = f"{temperature * num_pairs:,.0f} times the default 1 / N = {1 / num_pairs:g}"
        return f"posterior.temperature={temperature:g} is {times}: noise drowns the signal"
    remedy = "halve posterior.step_size, or take posterior.kernel=psgld"
    return f"a step of {step_size:g} is too large for these data: {remedy}"


# ----------------------------------------------------------------------------
# When to stop drawing samples: once one more no longer moves the ranking. A rule without labels.
#
# A probe of edges is predicted under every sample; their mean hop over the samples so far ranks them. The chain has
# settled when the rankings without and with the newest sample agree, by Spearman's correlation, and four samples are
# the least. Means of more samples move less, so this bounds what one more sample would change, no more than that
# (docs/detector.md has the figures). All of it is a function of the samples: a resumed chain shows it those it kept.
#
# Memory: the probe's batch and one number a probed edge.


_LEAST_SAMPLES = 4  # means of fewer agree too easily by chance, and a variance of fewer says little


class RankingConvergence:
    """Hears of one sample after the other, and says whether the ranking has settled."""

    def __init__(self, model: nn.Module, probe: Any, settled: float) -> None:
        self._model, self._probe, self._settled = model, probe, settled
        self._num_samples = 0
        self.has_settled = False
        self._mean = torch.zeros(len(probe.hop), dtype=torch.float64)

    @torch.no_grad()
    def add(self, sample: Mapping[str, Tensor]) -> None:
        """Takes the newest sample in; `has_settled` says whether it hardly moved the ranking of the probed edges."""
        device = self._probe.hop.device
        placed = {name: value.to(device) for name, value in sample.items()}
        chances = torch.func.functional_call(self._model, placed, (self._probe,)).softmax(1).double().cpu()
        hop = chances @ torch.arange(1.0, chances.shape[1] + 1, dtype=torch.float64)
        self._num_samples += 1
        before, self._mean = self._mean, torch.lerp(self._mean, hop, 1 / self._num_samples)
        if self._num_samples >= _LEAST_SAMPLES:
            self.has_settled = rank_correlation(before, self._mean) >= self._settled


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of two vectors; equal values keep their order, and a vector without a spread agrees.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 9.0, 5.0]))
    0.8
    """
    ranks = torch.stack([vector.argsort(stable=True).argsort().double() for vector in (a, b)])
    return 1.0 if len(a) < 2 else round(float(torch.corrcoef(ranks)[0, 1]), 12)


METRICS = "metrics.jsonl"


class Journal:
    """Holds the metrics file, the live line and the TensorBoard writer of one run; close it, or use `with`."""

    def __init__(self, folder: Path, num_steps: int, num_done: int = 0, *, tensorboard: bool = False) -> None:
        truncate_journal(folder / METRICS, num_done)
        self._lines = open(folder / METRICS, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
        self._bar = bar(num_steps, "step", folder.name, initial=num_done)
        self._board = _board(folder / "tensorboard", num_done) if tensorboard else None
        self._last_told_at = time.perf_counter()

    def tell(self, metrics: Metrics) -> None:
        """One reading, to all three."""
        now = time.perf_counter()
        speed, self._last_told_at = metrics.num_pairs / (now - self._last_told_at), now
        rss_bytes = psutil.Process().memory_info().rss
        self.write({**dataclasses.asdict(metrics), "pairs_per_second": speed, "rss_bytes": rss_bytes})
        self._bar.set_postfix(
            loss=f"{metrics.loss:.3f}",
            accuracy="/".join(f"{value:.2f}" for value in metrics.accuracy),
            pairs=f"{speed:,.0f}/s",
            eps=f"{metrics.step_size:.2g}",
            memory=f"{rss_bytes / 2**30:.1f}GiB",
            refresh=False,
        )
        self._bar.update(metrics.step - self._bar.n)

    def write(self, line: dict[str, Any]) -> None:
        """One JSON line; numbers go to TensorBoard too. JSON has no NaN: it is written as null."""
        plain = {name: _plain(value) for name, value in line.items()}
        self._lines.write(json.dumps(plain) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in plain.items():
                if isinstance(value, float | int) and name != "step":
                    self._board.add_scalar(name, value, plain["step"])

    def close(self) -> None:
        self._lines.close()
        self._bar.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def truncate_journal(path: Path, num_done: int) -> None:
    """Drops the lines of steps after `num_done`, and those that cannot be read, such as one that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= num_done:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    files.write_bytes(path, b"".join(kept))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _board(folder: Path, num_done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("tensorboard=true is ignored: pip install tensorboard", stacklevel=3)
        return None
    return SummaryWriter(str(folder), purge_step=num_done + 1)
