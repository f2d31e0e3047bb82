"""Evidence by surprise: no tail drowns the others, ties share the middle, what cannot tell says nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from hcm_scale.base.order import double_places, num_known
from hcm_scale.score.evidence import KINDS, ranks_of, weigh_evidence


def middle_ranks(values, known=None):
    return ranks_of(double_places(values, known), num_known(values, known))


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e300, -4.0]), min_size=1, max_size=40))
def test_middle_ranks__equal_average_ranks(values):
    expected = (rankdata(values) - 0.5) / len(values)
    np.testing.assert_allclose(middle_ranks(np.array(values)), expected)


def test_middle_ranks__leave_out_what_is_not_known():
    known = np.array([True, False, True])
    assert middle_ranks(np.array([1.0, 99.0, 2.0]), known).tolist() == [0.25, 0.5, 0.75]
    assert middle_ranks(np.array([1.0, 2.0]), np.zeros(2, bool)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_score__of_the_bulk_does_not_depend_on_how_long_a_tail_is(kind):
    rng = np.random.default_rng(0)
    numbers = {kind: rng.normal(size=1_000) for kind in KINDS}
    has, usual = np.ones(1_000, bool), numbers[kind] < np.quantile(numbers[kind], 0.95)
    for stretch in (np.exp, lambda v: v**3, lambda v: 1e9 * v):
        stretched = numbers | {kind: stretch(numbers[kind])}
        np.testing.assert_allclose(
            weigh_evidence(stretched, has).score[usual], weigh_evidence(numbers, has).score[usual]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_score__grows_with_a_number_and_slowly_beyond_what_a_rank_can_say(kind):
    rng = np.random.default_rng(1)
    numbers = {name: rng.normal(size=1_000) for name in KINDS}
    has, found = np.ones(1_000, bool), []
    for value in (3.0, 30.0, 300.0, 1e6, 1e300):
        numbers[kind][0] = value
        found.append(weigh_evidence(numbers, has).score[0])
    assert np.all(np.diff(found) > 0)
    assert found[3] - found[0] < 2 * np.log(1_000) + np.log(1e8)
    assert np.isfinite(found).all()


def test_score__does_not_hold_the_size_of_a_group_against_its_members():
    rng = np.random.default_rng(2)
    numbers = {kind: rng.normal(size=1_000) for kind in KINDS}
    for size in (1, 30):
        numbers["closure"][:size] = 20.0
        first = weigh_evidence(numbers, np.ones(1_000, bool)).score[0]
        numbers["closure"][:size] = rng.normal(size=size)
        assert first > 8.0


def test_score__puts_the_first_of_one_kind_before_one_that_is_a_little_odd_in_all():
    numbers = {kind: np.arange(1_000.0) for kind in KINDS}
    numbers = {
        kind: np.random.default_rng(i).permutation(1_000.0 * values) for i, (kind, values) in enumerate(numbers.items())
    }
    for kind in KINDS:
        numbers[kind][:2] = 500_000.0, 650_000.0
    numbers["hop"][0] = 1e9
    first, second = weigh_evidence(numbers, np.ones(1_000, bool)).score[:2]
    assert first > second


def test_score__a_kind_without_differences_changes_no_order():
    rng = np.random.default_rng(0)
    numbers = {"hop": rng.normal(size=30), "attributes": rng.normal(size=30)}
    has = np.ones(30, bool)
    silent = numbers | {"closure": np.zeros(30)}
    np.testing.assert_array_equal(weigh_evidence(silent, has).score, weigh_evidence(numbers, has).score)


def test_score__judges_a_node_without_neighbours_by_its_attributes_alone():
    numbers = {kind: np.array([5.0, 1.0, 2.0, 3.0]) for kind in KINDS}
    has = np.array([False, True, True, True])
    before = weigh_evidence(numbers, has).score
    numbers["hop"] = np.array([-7.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(weigh_evidence(numbers, has).score, before)
