"""The Langevin chain: batches in, one step each, one small event out; after burn-in some events carry a sample.

`run_chain` is a generator and owns nothing but the step: its caller decides what to print, log and write, and may stop
or save the chain at any event. A chain is its parameters, its kernel's state and the number of steps done; noise, step
size and batches are functions of that number. All parameters share one vector: the model's tensors are views of it, the
step is a formula on it, and ranks reduce it in one call. Memory: the vector, its gradient, the noise, the kernel's
state. Losses stay on the device until a `Meter` is read, so a step never waits for the one before it.

`Meter` averages steps between two log lines and stops a chain that has diverged. `RankingConvergence` tells when one
more sample no longer changes the ranking. `Journal` writes what a run reports: a live line, and `metrics.jsonl` with
one object per line: step, epoch, loss, accuracy (per class), num_pairs, step_size, pairs_per_second, rss_bytes.

`Recorder` measures the batches of a GPU by a CUDA graph, recorded once and replayed: one launch instead of a hundred,
which take Python longer than a small batch takes the GPU. Batches that live in the same tensors at every step
(`is_static`) are recorded after a few ordinary steps; others are always run in the ordinary way. A replay overwrites
the outputs of the one before, hence the one copy of loss and counts; the gradient has been used by then.
"""

import contextlib
import dataclasses
import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from hcm_scale.base import files
from hcm_scale.base.console import Progress
from hcm_scale.base.threads import torch_threads
from hcm_scale.posterior.sgld import KERNELS, ChainPlan, State, noise_at, step_

METRICS = "metrics.jsonl"
_LEAST_SAMPLES = 4  # before a ranking may have converged: means of fewer agree too easily by chance
_WARM_UP_STEPS = 3  # compile kernels, make library handles and settle the allocator, none of which can be recorded

SumRanks = Callable[[Tensor], Tensor]  # (k,) of this rank -> the sum over all ranks, the same on each


class NonFiniteLossError(FloatingPointError):
    """The chain diverged; the message names the step and the likely cause."""


@dataclass(eq=False)
class Chain:
    """A model whose parameters are views of one vector, and the number of steps done."""

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
        """Copy of the parameters by name, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.model.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """Content of a checkpoint, besides the number of steps."""
        return {"parameters": self.vector, **{f"state.{name}": value for name, value in self.state.items()}}

    def restore(self, num_done: int, tensors: dict[str, Tensor]) -> None:
        """Continues where `tensors` were taken."""
        self.vector.copy_(tensors["parameters"])
        named = (name for name in tensors if name.startswith("state."))
        self.state = {name.removeprefix("state."): tensors[name].to(self.vector.device) for name in named}
        self.num_done = num_done


@dataclass(frozen=True, eq=False)
class Step:
    """One step; the tensors are on the device and not yet waited for."""

    t: int
    epoch: int
    step_size: float
    loss: Tensor  # (): mean over the pairs of the batch, before the step
    correct: Tensor  # (C,): pairs of each class predicted correctly
    seen: Tensor  # (C,): pairs of each class
    sample: dict[str, Tensor] | None  # the parameters after the step, where the plan keeps them


class Measured(NamedTuple):
    """Gradient of the mean loss as one vector, loss (), and counts per class (C,); of this rank's slice of a batch."""

    gradient: Tensor
    loss: Tensor
    correct: Tensor
    seen: Tensor


def measure(model: nn.Module, batch: Any) -> Measured:
    """Loss, gradient and counts of a batch, without waiting for the device; pairs of hop -100 are padding."""
    logits = model(batch)
    loss = functional.cross_entropy(logits, batch.hop)
    gradient = torch.cat([piece.reshape(-1) for piece in torch.autograd.grad(loss, list(model.parameters()))])
    logits = logits.detach()
    of_class = batch.hop[:, None] == torch.arange(logits.shape[1], device=batch.hop.device)
    hits = of_class & (logits.argmax(1) == batch.hop)[:, None]
    return Measured(gradient, loss.detach(), hits.sum(0, dtype=logits.dtype), of_class.sum(0, dtype=logits.dtype))


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
    measure: Callable[[nn.Module, Any], Measured] = measure,
) -> Iterator[Step]:
    """Steps of the chain over `batches` (the first is step `chain.num_done`) until the plan is done or they end.

    `num_pairs` is N, the number of labelled pairs; the temperature is 1 / N unless given. `prior` is the precision of
    the Gaussian prior, the paper's weight decay. Where ranks share each batch, `sum_ranks` joins them: gradient, loss
    and counts are then those of the whole batch. `measure` may be a faster way to the same numbers.
    """
    for name, value in (("temperature", temperature), ("prior", prior)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"posterior.{name}={value} must be a number of at least 0")

    heat = 1.0 / num_pairs if temperature is None else temperature
    move = functools.partial(step_, kernel=KERNELS[kernel], temperature=heat, prior_over_n=prior / num_pairs)

    def steps() -> Iterator[Step]:
        for t, batch in zip(range(chain.num_done, plan.num_steps), batches, strict=False):
            measured = measure(chain.model, batch)
            if sum_ranks is not None:
                measured = _whole_batch(sum_ranks, *measured)
            gradient, loss, correct, seen = measured
            step_size, noise = plan.step_size_at(t), noise_at(seed, t, chain.vector)
            move(chain.vector, gradient, chain.state, noise, t=t, step_size=step_size)
            chain.num_done = t + 1
            yield Step(t, batch.epoch, step_size, loss, correct, seen, chain.sample() if plan.keeps(t) else None)

    return steps()


@contextlib.contextmanager
def training_settings(device: torch.device | str, num_threads: int | None = None) -> Iterator[None]:
    """Within the block a GPU is the current one, with products in TF32: the noise of a batch far exceeds its rounding.

    On the CPU torch works with `num_threads` threads, if given.
    """
    if torch.device(device).type != "cuda":
        with torch_threads(num_threads):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class Recorder:
    """Measures batches as `measure` does; holds one recording, of one model and one set of batch tensors."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._gave_up = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Any = None
        self._gradient = self._numbers = torch.empty(0)
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Measured:
        if not getattr(batch, "is_static", False) or batch.hop.device.type != "cuda":
            return measure(model, batch)
        self._num_seen += 1
        if self._num_seen <= _WARM_UP_STEPS:
            return self._on_side_stream(model, batch)
        if self._graph is None and not self._gave_up:
            self._record(model, batch)
        if self._graph is None:
            return measure(model, batch)
        assert batch.hop.data_ptr() == self._batch.hop.data_ptr(), "a static batch in other memory than before"
        self._graph.replay()
        numbers = self._numbers.clone()
        num_classes = (len(numbers) - 1) // 2
        return Measured(self._gradient, numbers[0], numbers[1 : 1 + num_classes], numbers[1 + num_classes :])

    def _on_side_stream(self, model: nn.Module, batch: Any) -> Measured:
        """One ordinary step on a side stream: autograd binds to the stream that it first ran on."""
        main = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            measured = measure(model, batch)
        main.wait_stream(self._stream)
        for tensor in measured:
            tensor.record_stream(main)
        return measured

    def _record(self, model: nn.Module, batch: Any) -> None:
        """Records one step; if that fails, warns, and all steps are run in the ordinary way, which is only slower."""
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may go on using the device meanwhile: the readers of pairs, a process group's watchdog
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                measured = measure(model, batch)
                numbers: list[Tensor] = [measured.loss.reshape(1), measured.correct, measured.seen]
                self._gradient, self._numbers = measured.gradient, torch.cat(numbers)
        except RuntimeError as error:
            warnings.warn(f"steps are not recorded, and so slower: {error}", stacklevel=4)
            self._gave_up = True
            return
        self._graph, self._batch = graph, batch


def _whole_batch(sum_ranks: SumRanks, gradient: Tensor, loss: Tensor, correct: Tensor, seen: Tensor) -> Measured:
    """The numbers of the whole batch from those of this rank's slice, weighted by pairs, in one exchange.

    >>> _whole_batch(lambda v: v + torch.tensor([9.0, 6, 1, 3]), *map(torch.tensor, ([1.0], 2.0, [1.0], [1.0])))
    Measured(gradient=tensor([2.5000]), loss=tensor(2.), correct=tensor([2.]), seen=tensor([4.]))
    """
    pieces = [gradient * seen.sum(), (loss * seen.sum()).reshape(1), correct, seen]
    gradient, loss, correct, seen = sum_ranks(torch.cat(pieces)).split([len(piece) for piece in pieces])
    return Measured(gradient / seen.sum(), loss[0] / seen.sum(), correct, seen)


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
    """Collects steps, so that the device is waited for only when they are read.

    A non-finite loss is found late, but named by its own step; read before writing a sample or a checkpoint.
    """

    num_pairs: int
    temperature: float | None = None
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(replace(step, sample=None))  # parameters are held by whoever writes them

    def check(self, chain: Chain) -> None:
        """Raises NonFiniteLossError if a collected loss, or a parameter by now, is not finite. Waits for the device."""
        if not self.steps:
            return
        finite = torch.stack([step.loss for step in self.steps]).isfinite().tolist()
        if all(finite) and bool(chain.vector.isfinite().all()):
            return
        first = self.steps[finite.index(False)] if not all(finite) else self.steps[-1]
        what = f"the loss is {first.loss.item()}" if not all(finite) else "a parameter is no longer finite"
        cause = self._likely_cause(first)
        raise NonFiniteLossError(f"step {first.t} (epoch {first.epoch}): {what}. Likely cause: {cause}")

    def _likely_cause(self, step: Step) -> str:
        if step.t == 0:
            return (
                "an attribute is NaN, infinite or huge: the weights had not moved yet. "
                "Check or standardise the attributes"
            )
        if self.temperature is not None and self.temperature * self.num_pairs > 10:
            times = f"{self.temperature * self.num_pairs:,.0f} times the default 1 / N = {1 / self.num_pairs:g}"
            return f"posterior.temperature={self.temperature:g} is {times}: noise drowns the signal"
        remedy = "halve posterior.step_size, or take posterior.kernel=psgld"
        return f"a step of {step.step_size:g} is too large for these data: {remedy}"

    def read(self, chain: Chain) -> Metrics:
        """Means of the collected steps, at least one; forgets them."""
        self.check(chain)
        last = self.steps[-1]
        correct, seen, losses = (
            torch.stack([getattr(step, name) for step in self.steps]) for name in ("correct", "seen", "loss")
        )
        self.steps = []
        num_seen = seen.sum(0).tolist()
        accuracy = tuple(c / s if s else math.nan for c, s in zip(correct.sum(0).tolist(), num_seen, strict=True))
        return Metrics(last.t + 1, last.epoch, float(losses.mean()), accuracy, int(sum(num_seen)), last.step_size)


class RankingConvergence:
    """Whether one more sample still changes the ranking of edges: a stopping rule without labels.

    The `probe` edges are predicted under every sample and ranked by their mean hop over the samples so far. The ranking
    has settled when, from the fourth sample on, Spearman's correlation of the rankings without and with the newest
    sample is at least `settled`. It bounds what one more sample would change, no more (docs/lab/detector.md). A resumed
    chain adds the samples it has kept. Memory: the probe's batch and one number per edge of it.
    """

    def __init__(self, model: nn.Module, probe: Any, settled: float) -> None:
        self._model, self._probe, self._settled = model, probe, settled
        self._num_samples = 0
        self.has_settled = False
        self._mean = torch.zeros(len(probe.hop), dtype=torch.float64)

    @torch.no_grad()
    def add(self, sample: Mapping[str, Tensor]) -> None:
        """Adds the newest sample and updates `has_settled`."""
        device = self._probe.hop.device
        placed = {name: value.to(device) for name, value in sample.items()}
        chances = torch.func.functional_call(self._model, placed, (self._probe,)).softmax(1).double().cpu()
        hop = chances @ torch.arange(1.0, chances.shape[1] + 1, dtype=torch.float64)
        self._num_samples += 1
        before, self._mean = self._mean, torch.lerp(self._mean, hop, 1 / self._num_samples)
        if self._num_samples >= _LEAST_SAMPLES:
            self.has_settled = _rank_correlation(before, self._mean) >= self._settled


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of two vectors; equal values keep their order, and fewer than two values agree."""
    ranks = torch.stack([vector.argsort(stable=True).argsort().double() for vector in (a, b)])
    return 1.0 if len(a) < 2 else round(float(torch.corrcoef(ranks)[0, 1]), 12)


class Journal(contextlib.ExitStack):
    """Metrics file and live line of one run; close it, or use `with`.

    A resumed run first drops the lines after step `num_done`, so that every step is logged once.
    """

    def __init__(self, folder: Path, num_steps: int, num_done: int = 0) -> None:
        super().__init__()
        _truncate(folder / METRICS, num_done)
        self._lines = self.enter_context(open(folder / METRICS, "a", encoding="utf-8"))  # noqa: SIM115
        self._bar = self.enter_context(Progress(num_steps, "step", folder.name, initial=num_done))
        self._last_told_at = time.perf_counter()

    def write_metrics(self, metrics: Metrics) -> None:
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
        """Writes one JSON line. JSON has no NaN: it is written as null."""
        self._lines.write(json.dumps({name: _plain(value) for name, value in line.items()}) + "\n")
        self._lines.flush()


def _truncate(path: Path, num_done: int) -> None:
    """Drops the lines of steps after `num_done`, and those that cannot be read, such as one that a kill cut short."""
    if path.exists():
        steps = ((line, record.get("step")) for line, record in _lines(path))
        files.write_bytes(path, b"".join(line + b"\n" for line, at in steps if type(at) is int and at <= num_done))


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a metrics.jsonl that are whole, and their objects; none if there is no file."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield line, record


def _plain(value: Any) -> Any:
    """JSON-able value: tuples as lists, numbers that are not finite as None."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without those that a killed run left incomplete; empty if there is no file."""
    return [record for _, record in _lines(path)]
