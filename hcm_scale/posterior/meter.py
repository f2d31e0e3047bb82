"""Sums up steps between two log lines, and stops a chain that has diverged.

Reading a number waits for the device, so losses are gathered as they come and read together. A non-finite loss is then
found up to one reading late, but named by its own step; whoever writes a sample or a checkpoint reads first.
"""

import math
from dataclasses import dataclass, field, replace

import torch

from hcm_scale.posterior.loop import Chain, NonFiniteLossError, Step


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
