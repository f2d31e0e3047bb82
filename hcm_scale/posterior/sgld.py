"""One step of each sampler and optimiser, on all parameters as one vector w.

    w <- w - (eps / 2) d + sqrt(eps * temperature * m) xi,      xi ~ N(0, I)
    g  = g_mean + (prior / N) w                                 the gradient of U / N, U the negative log posterior

| kernel | direction d              | metric m | with                                                                  |
|--------|--------------------------|----------|-----------------------------------------------------------------------|
| sgld   | g                        | 1        | Welling and Teh 2011                                                  |
| psgld  | G g                      | G        | G = 1 / (floor + sqrt(V)), V a running mean of g^2: Li et al. 2016    |
| sgd    | g                        | none     | sgld without its noise: what an ablation compares                     |
| adam   | mean / (sqrt(V) + 1e-8)  | none     | Kingma and Ba 2015 with learning rate eps / 2                         |

g_mean is the gradient of the MEAN loss of a batch and N the number of labelled pairs. Multiplying U / N by N and eps by
1 / N gives back the textbook step on U, so the posterior has temperature 1 / N here, and 1 means a signal N times
weaker than the noise. Of pSGLD the term Gamma, the divergence of G, is left out, as the authors do: G changes slowly.
V starts at zero and is corrected for it as in Adam, so that the first steps are not ten times the later ones.

Kernels keep what they need in `state`, a dict of vectors like w. Memory: w, g, the noise, and the state.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hcm_scale.base.rng import key

State = dict[str, Tensor]
Kernel = Callable[[Tensor, State, int], tuple[Tensor, Tensor | float | None]]

_NOISE = 0x5617D  # separates the noise's randomness from all else that is drawn from the same seed


def sgld(g: Tensor, state: State, t: int) -> tuple[Tensor, float]:
    return g, 1.0


def psgld(g: Tensor, state: State, t: int, *, decay: float = 0.99, floor: float = 1e-5) -> tuple[Tensor, Tensor]:
    square = running_mean(state, "square", g * g, t, decay)
    metric = 1.0 / (floor + square.sqrt())
    return metric * g, metric


def sgd(g: Tensor, state: State, t: int) -> tuple[Tensor, None]:
    return g, None


def adam(g: Tensor, state: State, t: int, *, betas: tuple[float, float] = (0.9, 0.999)) -> tuple[Tensor, None]:
    mean = running_mean(state, "mean", g, t, betas[0])
    square = running_mean(state, "square", g * g, t, betas[1])
    return mean / (square.sqrt() + 1e-8), None


KERNELS: dict[str, Kernel] = {"psgld": psgld, "sgld": sgld, "sgd": sgd, "adam": adam}


def running_mean(state: State, name: str, value: Tensor, t: int, decay: float) -> Tensor:
    """Folds the (t + 1)-th `value` into the exponential mean in `state`; returns it corrected for its zero start."""
    mean = state.setdefault(name, torch.zeros_like(value))
    mean.lerp_(value, 1.0 - decay)
    return mean / (1.0 - decay ** (t + 1))


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


def noise_at(seed: int, t: int, like: Tensor) -> Tensor:
    """Standard normals for step t, a function of (seed, t): equal on every rank, on devices of the same kind.

    They are drawn where they are needed. A CPU and a GPU draw different ones from the same seed; drawing on the CPU for
    both would make a GPU wait at every step.
    """
    generator = torch.Generator(like.device).manual_seed(key(seed, _NOISE, t))
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
