"""Schedules as functions of t."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.posterior.sgld import SCHEDULES, ChainPlan, cyclical, polynomial

PLAN = ChainPlan("constant", 0.01, 100.0, 0.55, cycle_steps=200, burn_in_steps=300, num_samples=20, thin_steps=10)


def test_constant__stays():
    assert {replace(PLAN, step_size=0.3).step_size_at(t) for t in (0, 7, 10**6)} == {0.3}


def test_polynomial__starts_at_the_step_size_and_falls_as_the_formula_says():
    plan = replace(PLAN, step_size=0.3, schedule="polynomial", decay_offset=10.0, decay_power=0.6)
    assert plan.step_size_at(0) == pytest.approx(0.3)
    a = 0.3 * 10**0.6
    assert plan.step_size_at(90) == pytest.approx(a * 100**-0.6) == pytest.approx(polynomial(90, a, 10, 0.6))


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 5), st.sampled_from(SCHEDULES))
def test_plan__keeps_exactly_its_samples_the_last_at_the_last_step(burn_in, thinning, num_samples, schedule):
    steps = {"burn_in_steps": burn_in, "thin_steps": thinning, "cycle_steps": 2 * thinning}
    plan = replace(PLAN, schedule=schedule, num_samples=num_samples, **steps)
    kept = [t for t in range(plan.num_steps) if plan.keeps(t)]
    assert len(kept) == num_samples
    assert kept[0] >= burn_in
    assert kept[-1] == plan.num_steps - 1
    for done in range(plan.num_steps + 1):
        assert plan.num_kept(done) == sum(t < done for t in kept)


def test_cyclical__is_smallest_where_a_sample_is_kept():
    plan = replace(PLAN, step_size=1.0, schedule="cyclical", burn_in_steps=3, cycle_steps=8, num_samples=3)
    for t in range(plan.burn_in_steps, plan.num_steps):
        if plan.keeps(t):
            assert plan.step_size_at(t) == min(plan.step_size_at(t - k) for k in range(8))
            assert plan.step_size_at(t + 1) == 1.0
    assert cyclical(4, 1.0, 8) == pytest.approx((1 + math.cos(math.pi / 2)) / 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "linear"}, "schedule='linear' must be one of constant, polynomial, cyclical"),
        ({"step_size": 0.0}, "step_size=0.0"),
        ({"step_size": math.nan}, "step_size=nan"),
        ({"decay_offset": -1.0}, "decay_offset=-1.0"),
        ({"decay_power": 0.5}, r"decay_power=0.5 must lie in \(0.5, 1\]"),
        ({"burn_in_steps": -1}, "burn_in_steps=-1"),
        ({"thin_steps": 0}, "thin_steps=0"),
        ({"cycle_steps": 0}, "cycle_steps=0"),
        ({"num_samples": 0}, "num_samples=0"),
    ],
)
def test_plan__refuses_impossible_values(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **wrong)


@pytest.mark.parametrize(
    ("epochs", "epoch_steps", "expected"), [(None, 1, 300), (5, 7, 100), (5, 40, 200), (5, 90, 300)]
)
def test_burn_in__is_so_many_epochs_but_a_hundred_steps_and_no_more_than_planned(epochs, epoch_steps, expected):
    assert replace(PLAN, burn_in_epochs=epochs).within(epoch_steps).burn_in_steps == expected
