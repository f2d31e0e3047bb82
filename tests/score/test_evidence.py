"""Evidence by rank: no tail drowns the others, ties share the middle, what cannot tell says nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from hcm_scale.score.evidence import KINDS, middle_ranks, surprise, weigh


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e300, -4.0]), min_size=1, max_size=40))
def test_middle_ranks__equal_average_ranks(values):
    expected = (rankdata(values) - 0.5) / len(values)
    np.testing.assert_allclose(middle_ranks(np.array(values)), expected)


def test_middle_ranks__leave_out_what_is_not_known():
    known = np.array([True, False, True])
    assert middle_ranks(np.array([1.0, 99.0, 2.0]), known).tolist() == [0.25, 0.5, 0.75]
    assert middle_ranks(np.array([1.0, 2.0]), np.zeros(2, bool)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("stretch", [np.exp, lambda v: v**3, lambda v: 1e9 * v])
def test_score__does_not_depend_on_how_long_a_tail_is(stretch):
    rng = np.random.default_rng(0)
    numbers = {kind: rng.normal(size=50) for kind in KINDS}
    has = np.ones(50, bool)
    stretched = numbers | {"hop": stretch(numbers["hop"])}
    np.testing.assert_allclose(weigh(stretched, has).score, weigh(numbers, has).score)


def test_score__puts_the_first_of_one_kind_before_one_that_is_a_little_odd_in_all():
    numbers = {kind: np.arange(1_000.0) for kind in KINDS}
    numbers = {
        kind: np.random.default_rng(i).permutation(1_000.0 * values) for i, (kind, values) in enumerate(numbers.items())
    }
    for kind in KINDS:
        numbers[kind][:2] = 500_000.0, 650_000.0
    numbers["hop"][0] = 1e9
    first, second = weigh(numbers, np.ones(1_000, bool)).score[:2]
    assert first > second


def test_score__a_kind_without_differences_changes_no_order():
    rng = np.random.default_rng(0)
    numbers = {"hop": rng.normal(size=30), "attributes": rng.normal(size=30)}
    has = np.ones(30, bool)
    silent = numbers | {"closure": np.zeros(30)}
    np.testing.assert_allclose(weigh(silent, has).score - weigh(numbers, has).score, surprise(np.array([0.5]))[0])


def test_score__judges_a_node_without_neighbours_by_its_attributes_alone():
    numbers = {kind: np.array([5.0, 1.0, 2.0, 3.0]) for kind in KINDS}
    has = np.array([False, True, True, True])
    before = weigh(numbers, has).score
    numbers["hop"] = np.array([-7.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(weigh(numbers, has).score, before)
