"""The order of floats found by all threads, against numpy's."""

import numpy as np
import pytest

from hcm_scale.base import order as module
from hcm_scale.base.order import Sorted, double_places, order

RNG = np.random.default_rng(0)
ARRAYS = {
    "normal": RNG.normal(size=5_000),
    "tied": np.round(RNG.exponential(size=5_000), 1),
    "one value": np.full(777, 2.5),
    "zeros of both signs": np.where(RNG.random(999) < 0.5, 0.0, -0.0),
    "huge and tiny": np.concatenate(
        [RNG.normal(size=300) * 10.0 ** RNG.integers(-300, 300, 300), [np.inf, -np.inf, 0]]
    ),
    "one": np.array([4.0]),
}


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch):
    monkeypatch.setattr(module, "_FEW", 0)


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_order__is_that_of_a_stable_sort(values):
    np.testing.assert_array_equal(order(values), np.argsort(values, kind="stable"))


def test_order__puts_what_is_no_number_last():
    assert order(np.array([np.nan, 1.0, -np.nan, np.inf])).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_double_places__counts_those_above_twice_and_equals_once(values):
    some = RNG.choice(len(values), min(40, len(values)), replace=False)
    above = np.array([np.count_nonzero(values > value) for value in values[some]])
    equal = np.array([np.count_nonzero(values == value) for value in values[some]])
    np.testing.assert_array_equal(double_places(values)[some], 2 * above + equal + 1)


def test_sorted__has_the_quantiles_of_numpy():
    shares = [0.0, 0.002, 0.5, 0.731, 1.0]
    for values in (ARRAYS["normal"], ARRAYS["tied"], ARRAYS["one"]):
        np.testing.assert_allclose(Sorted(values).quantiles(shares), np.quantile(values, shares), rtol=1e-14)
