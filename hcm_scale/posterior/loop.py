"""The loop: batches in, one Langevin step each, one small event out; after burn-in some events carry a sample.

`run_chain` is a generator and owns nothing but the step: its caller decides what to print, log and write, and may stop
or save the chain at any event, because between events the chain is at rest. A chain is its parameters, its kernel's
state and the number of steps done; noise, step size and batches are functions of that number. Losses stay on the
device until a `Meter` is read, so a step never waits for the one before it.

All parameters share one vector: the model's tensors are views of it, the step is a formula on it, and ranks reduce it
in one call. Memory: the vector, its gradient, the noise, the kernel's state.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hcm_scale.posterior.schedules import ChainPlan
from hcm_scale.posterior.sgld import KERNELS, State, noise_at, step_

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
