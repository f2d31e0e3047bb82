"""Steps against formulas: analytic posteriors, gradient descent, torch's optimisers, an independent package. Plans."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.posterior import sgld

PRECISION = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
MEAN = torch.tensor([1.0, -2.0], dtype=torch.float64)
PLAN = sgld.ChainPlan("constant", 0.01, burn_in_steps=300, num_samples=20, thin_steps=10)


def gaussian_chains(kernel, state, *, t0=0, num_pairs=50, num_chains=2000, num_steps=600, step_size=0.02):
    """Many chains at once on U / N with U = N/2 (w - mean)' P (w - mean): the posterior is N(mean, (N P)^-1)."""
    w = MEAN.repeat(num_chains, 1)
    for t in range(num_steps):
        g = (w - MEAN) @ PRECISION
        noise = sgld.noise_at(0, t, w)
        sgld.step_(w, g, state, noise, kernel=kernel, t=t0 + t, step_size=step_size, temperature=1 / num_pairs)
    return w, torch.linalg.inv(num_pairs * PRECISION)


def assert_is_posterior(w, covariance):
    spread = covariance.diagonal().sqrt() / len(w) ** 0.5
    assert bool(((w.mean(0) - MEAN).abs() < 4 * spread).all())
    found = torch.cov(w.T)
    # 2,000 chains know a covariance to about 3 %; a step of 0.02 adds a bias below 1 %
    torch.testing.assert_close(found, covariance, rtol=0.1, atol=0.1 * float(covariance.diagonal().min()))


def test_sgld__samples_the_gaussian_posterior():
    assert_is_posterior(*gaussian_chains(sgld.KERNELS["sgld"], {}))


def test_psgld__samples_the_same_posterior_under_a_fixed_metric():
    square = torch.tensor([4.0, 0.25], dtype=torch.float64).repeat(2000, 1)
    slow = functools.partial(
        sgld.KERNELS["psgld"], decay=1 - 1e-9
    )  # so slow a mean, so late in the run, that V stands still
    w, covariance = gaussian_chains(slow, {"square": square}, t0=10**11, num_steps=900)
    assert_is_posterior(w, covariance)


@pytest.mark.parametrize("kernel", ["sgld", "psgld"])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_step__noise_has_the_variance_of_the_formula(kernel, temperature):
    w, g = torch.zeros(200_000), torch.full((200_000,), 0.5)
    sgld.step_(
        w, g, {}, sgld.noise_at(3, 0, w), kernel=sgld.KERNELS[kernel], t=0, step_size=0.2, temperature=temperature
    )
    metric = 1.0 if kernel == "sgld" else 1 / (1e-5 + 0.5)
    assert float(w.mean()) == pytest.approx(-0.1 * metric * 0.5, abs=5e-3)
    assert float(w.var()) == pytest.approx(0.2 * temperature * metric, rel=0.02, abs=1e-12)


def test_step__temperature_zero_is_gradient_descent():
    cold, plain = torch.tensor([3.0, -1.0]), torch.tensor([3.0, -1.0])
    for t in range(5):
        arguments = {"t": t, "step_size": 0.1, "temperature": 0.0, "prior_over_n": 0.01}
        sgld.step_(cold, cold.clone(), {}, sgld.noise_at(0, t, cold), kernel=sgld.KERNELS["sgld"], **arguments)
        plain -= 0.05 * (plain + 0.01 * plain)
    torch.testing.assert_close(cold, plain)


def test_step__sgd_ignores_the_noise():
    hot, cold = torch.ones(3), torch.ones(3)
    sgld.step_(hot, torch.ones(3), {}, torch.ones(3), kernel=sgld.KERNELS["sgd"], t=0, step_size=0.1, temperature=5.0)
    sgld.step_(cold, torch.ones(3), {}, torch.ones(3), kernel=sgld.KERNELS["sgld"], t=0, step_size=0.1, temperature=0.0)
    assert torch.equal(hot, cold)


def test_step__sgld_equals_an_independent_package():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about its own defaults at import
        posteriors = pytest.importorskip("posteriors")

    start, num_pairs, eps = torch.tensor([0.3, -1.2, 2.0]), 40, 0.05
    target = torch.tensor([1.0, 0.0, -1.0])
    data_loss = lambda w: (w - target).square().sum()  # noqa: E731  the mean loss of a batch
    prior = 0.7

    def log_posterior(w, batch):
        return -(data_loss(w) + prior / num_pairs / 2 * w.square().sum()), torch.empty(0)

    # theirs: w + lr * grad + N(0, 2 lr T); ours with eps = 2 lr: w - eps/2 grad + N(0, eps T)
    theirs = posteriors.sgmcmc.sgld.build(log_posterior, lr=eps / 2, temperature=1 / num_pairs)
    torch.manual_seed(11)
    expected, _ = theirs.update(theirs.init(start), None)
    torch.manual_seed(11)
    w = start.clone()
    gradient = torch.func.grad(data_loss)(w)
    options = {"step_size": eps, "temperature": 1 / num_pairs, "prior_over_n": prior / num_pairs}
    sgld.step_(w, gradient, {}, torch.randn_like(w), kernel=sgld.KERNELS["sgld"], t=0, **options)
    torch.testing.assert_close(w, expected.params)


@pytest.mark.parametrize(
    ("kernel", "optimiser"),
    [
        ("adam", lambda w: torch.optim.Adam([w], lr=0.05)),
        ("sgd", lambda w: torch.optim.SGD([w], lr=0.05)),
    ],
)
def test_step__optimisers_equal_torchs_with_half_the_step_size(kernel, optimiser):
    ours, theirs = torch.tensor([3.0, -1.0, 0.2]), torch.tensor([3.0, -1.0, 0.2], requires_grad=True)
    torchs, state = optimiser(theirs), {}
    for t in range(6):
        sgld.step_(
            ours, ours**3, state, torch.ones(3), kernel=sgld.KERNELS[kernel], t=t, step_size=0.1, temperature=1.0
        )
        theirs.grad = theirs.detach() ** 3
        torchs.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_psgld__metric_is_one_over_the_root_mean_square(gradients):
    state: dict = {}
    for t, value in enumerate(gradients):
        _, metric = sgld.KERNELS["psgld"](torch.tensor([value], dtype=torch.float64), state, t)
    weights = 0.99 ** np.arange(len(gradients))[::-1]
    square = (weights * np.square(gradients)).sum() / weights.sum()
    assert float(metric) == pytest.approx(1 / (1e-5 + square**0.5), rel=1e-6)


def test_noise__is_a_function_of_seed_and_step():
    like = torch.zeros(1000)
    torch.manual_seed(0)
    first = sgld.noise_at(1, 5, like)
    torch.manual_seed(1)
    assert torch.equal(first, sgld.noise_at(1, 5, like))
    assert not torch.equal(first, sgld.noise_at(1, 6, like))
    assert not torch.equal(first, sgld.noise_at(2, 5, like))


def test_constant__stays():
    assert {replace(PLAN, step_size=0.3).step_size_at(t) for t in (0, 7, 10**6)} == {0.3}


def test_polynomial__starts_at_the_step_size_and_falls_as_the_formula_says():
    plan = replace(PLAN, step_size=0.3, schedule="polynomial")
    assert plan.step_size_at(0) == pytest.approx(0.3)
    assert plan.step_size_at(900) == pytest.approx(0.3 * 100**0.55 * 1000**-0.55)


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 5), st.sampled_from(["constant", "polynomial"]))
def test_plan__keeps_exactly_its_samples_the_last_at_the_last_step(burn_in, thinning, num_samples, schedule):
    steps = {"burn_in_steps": burn_in, "thin_steps": thinning}
    plan = replace(PLAN, schedule=schedule, num_samples=num_samples, **steps)
    kept = [t for t in range(plan.num_steps) if plan.keeps(t)]
    assert len(kept) == num_samples
    assert kept[0] >= burn_in
    assert kept[-1] == plan.num_steps - 1
    for done in range(plan.num_steps + 1):
        assert plan.num_kept(done) == sum(t < done for t in kept)
