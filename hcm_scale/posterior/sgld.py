"""One step of each sampler and optimiser, on all parameters as one vector w, and the plan of a chain.

    w <- w - (eps / 2) d + sqrt(eps * temperature * m) xi,      xi ~ N(0, I)
    g  = g_mean + (prior / N) w                                 the gradient of U / N, U the negative log posterior

| kernel | direction d              | metric m | with                                                                  |
|--------|--------------------------|----------|-----------------------------------------------------------------------|
| sgld   | g                        | 1        | Welling and Teh 2011                                                  |
| psgld  | G g                      | G        | G = 1 / (floor + sqrt(V)), V a running mean of g^2: Li et al. 2016    |
| sgd    | g                        | none     | sgld without its noise: the paper's ablation                          |
| adam   | mean / (sqrt(V) + 1e-8)  | none     | Kingma and Ba 2015 with learning rate eps / 2                         |

g_mean is the gradient of the MEAN loss of a batch and N the number of labelled pairs. Multiplying U / N by N and eps by
1 / N gives the textbook step on U, so the posterior has temperature 1 / N here; at temperature 1 the signal is N times
weaker than the noise. Of pSGLD the term Gamma, the divergence of G, is left out, as the authors do: G changes slowly.
V starts at zero and is corrected for it as in Adam, so that the first steps are not ten times the later ones. Kernels
keep what they need in `state`, a dict of vectors like w. Memory: w, g, the noise, and the state.

Step size and kept samples are functions of the step t, so there is nothing to resume:

    constant      eps_0
    polynomial    a (b + t)^-gamma, a such that it starts at eps_0

The polynomial satisfies the conditions of convergence (steps sum to infinity, their squares do not) for gamma in
(0.5, 1]. After burn-in every `thin_steps`-th state is kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hcm_scale.base.rng import key

_DECAY_OFFSET, _DECAY_POWER = 100.0, 0.55  # b and gamma of the polynomial
_NOISE = 0x5617D  # separates the noise from other draws of the same seed
_FLOOR = 1e-5  # of the preconditioner

State = dict[str, Tensor]
Kernel = Callable[[Tensor, State, int], tuple[Tensor, Tensor | float | None]]


@torch.no_grad()
def step_(
    w: Tensor,
    g_mean: Tensor,
    state: State,
    noise: Tensor,
    *,
    kernel: Kernel,
    t: int,
    step_size: float,
    temperature: float,
    prior_over_n: float = 0.0,
) -> None:
    """Moves w by the formula above, in place; t counts from 0.

    >>> w = torch.tensor([1.0, 2.0])
    >>> step_(w, torch.tensor([4.0, 0.0]), {}, torch.ones(2), kernel=sgld, t=0, step_size=0.5, temperature=2.0)
    >>> w.tolist()
    [1.0, 3.0]
    """
    g = g_mean.add(w, alpha=prior_over_n)
    direction, metric = kernel(g, state, t)
    w.add_(direction, alpha=-step_size / 2)
    if isinstance(metric, Tensor):
        w.addcmul_(metric.sqrt(), noise, value=math.sqrt(step_size * temperature))
    elif metric is not None:
        w.add_(noise, alpha=math.sqrt(step_size * temperature * metric))


def noise_at(seed: int, t: int, reference: Tensor) -> Tensor:
    """Standard normals for step t, a function of (seed, t): equal on every rank, on devices of the same kind.

    A CPU and a GPU draw different ones: drawing on the CPU for both would make a GPU wait at every step.
    """
    generator = torch.Generator(reference.device).manual_seed(key(seed, _NOISE, t))
    return torch.randn(reference.shape, generator=generator, dtype=reference.dtype, device=reference.device)


def sgld(g: Tensor, state: State, t: int) -> tuple[Tensor, float]:
    return g, 1.0


def psgld(g: Tensor, state: State, t: int, *, decay: float = 0.99) -> tuple[Tensor, Tensor]:
    square = _running_mean(state, "square", g * g, t, decay)
    metric = 1.0 / (_FLOOR + square.sqrt())
    return metric * g, metric


def sgd(g: Tensor, state: State, t: int) -> tuple[Tensor, None]:
    return g, None


def adam(g: Tensor, state: State, t: int) -> tuple[Tensor, None]:
    mean = _running_mean(state, "mean", g, t, 0.9)
    square = _running_mean(state, "square", g * g, t, 0.999)
    return mean / (square.sqrt() + 1e-8), None


KERNELS: dict[str, Kernel] = {"psgld": psgld, "sgld": sgld, "sgd": sgd, "adam": adam}


def _running_mean(state: State, name: str, value: Tensor, t: int, decay: float) -> Tensor:
    """Exponential mean in `state` after the (t + 1)-th `value`, corrected for its zero start."""
    mean = state.setdefault(name, torch.zeros_like(value))
    mean.lerp_(value, 1.0 - decay)
    return mean / (1.0 - decay ** (t + 1))


@dataclass(frozen=True)
class ChainPlan:
    """A chain from its first step to its last: `burn_in_steps`, then `num_samples` samples, `thin_steps` steps apart.

    >>> plan = ChainPlan("constant", 0.01, burn_in_steps=10, num_samples=2, thin_steps=5)
    >>> plan.num_steps, [t for t in range(plan.num_steps) if plan.keeps(t)]
    (20, [14, 19])
    """

    schedule: str
    step_size: float
    burn_in_steps: int
    num_samples: int  # the most, where `stop_correlation` may end the chain sooner
    thin_steps: int
    stop_correlation: float | None = None  # ends the chain (`RankingConvergence`); None: all samples are drawn

    @property
    def num_steps(self) -> int:
        return self.burn_in_steps + self.thin_steps * self.num_samples

    def step_size_at(self, t: int) -> float:
        """Step size eps_t for t = 0, 1, ..."""
        if self.schedule == "polynomial":
            return self.step_size * _DECAY_OFFSET**_DECAY_POWER * (_DECAY_OFFSET + t) ** -_DECAY_POWER
        return self.step_size

    def keeps(self, t: int) -> bool:
        """Whether the parameters after step t are a sample."""
        return self.num_kept(t + 1) > self.num_kept(t)

    def num_kept(self, num_done: int) -> int:
        """Number of samples that the first `num_done` steps give."""
        return max(num_done - self.burn_in_steps, 0) // self.thin_steps
