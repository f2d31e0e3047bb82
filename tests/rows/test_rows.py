"""What the kinds of evidence about payments share: order, indices by account, and the surprise of a count."""

import numpy as np
import pytest
from scipy.stats import nbinom

from hcm_scale.base.threads import kernel_threads
from hcm_scale.rows.rows import DAY, Rows, by_account, largest, row_share, share_accounts, surprise, surprises


def test_rows__are_sorted_by_time_and_equal_times_stay_in_order():
    time, ends = np.array([3, 1, 2, 1, 3]), np.arange(5)
    rows = Rows.of(5, ends, ends[::-1], time, np.array([1.0, 0.0, -1.0, np.nan, np.inf]), ends.astype(np.uint8))
    assert rows.payer.tolist() == [1, 3, 2, 0, 4]
    assert rows.payee.tolist() == [3, 1, 2, 4, 0]
    assert rows.currency.tolist() == [1, 3, 2, 0, 4]
    np.testing.assert_array_equal(rows.amount, [np.nan, np.nan, -np.inf, 0.0, np.nan])


def test_by_account__equals_the_slow_twin(rows):
    for by, ends in ((rows.out, rows.payer), (rows.into, rows.payee)):
        for account in range(rows.num_accounts):
            own = by.rows[by.indptr[account] : by.indptr[account + 1]]
            np.testing.assert_array_equal(own, np.flatnonzero(ends == account))
    ends = np.r_[rows.payer, rows.payee].tolist()
    assert rows.num_rows.tolist() == [ends.count(account) for account in range(rows.num_accounts)]


def test_comparable__amounts_of_two_currencies_or_to_oneself_are_far_from_each_other():
    ends, codes = np.array([0, 0, 0]), np.array([0, 1, 0], np.uint8)
    rows = Rows.of(2, ends, np.array([1, 1, 0]), np.arange(3), np.array([1e308, 5e-324, 7.0]), codes)
    first, second, own = rows.comparable
    assert second - first > 1
    assert np.isnan(own)


def test_resolution__is_a_day_where_there_are_dates_alone():
    days, ends = np.random.default_rng(0).integers(0, 90, 500), np.zeros(500, int)
    assert Rows.of(1, ends, ends, days * DAY).resolution == DAY
    assert Rows.of(1, ends, ends, days * DAY + np.arange(500)).resolution < 60
    assert Rows.of(1, ends[:1], ends[:1], days[:1]).resolution == DAY


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ends", [[], [0] * 50, [3, 3, 1], list(range(40)), [39] * 9 + [0]])
def test_share_accounts__every_account_comes_once(ends, threads):
    seen = np.zeros(40, int)

    def work(accounts):
        seen[accounts[0] : accounts[1]] += 1

    with kernel_threads(threads):
        share_accounts(by_account(np.array(ends, np.int64), 40), work)
    assert seen.tolist() == [1] * 40


@pytest.mark.parametrize("shape", [0.5, 1.0, 5.0, 100.0])
def test_surprise__is_that_of_a_count_whose_mean_varies(shape):
    for mean in (1e-6, 0.03, 1.0, 7.5, 300.0):
        for count in range(1, 1_000, 13):
            exact = -nbinom.logsf(count - 1, shape, shape / (mean + shape))
            if 1.0 < exact < 600.0 and count > 1.5 * mean:
                assert surprise(count, mean, shape) == pytest.approx(exact, rel=0.05, abs=0.25), (count, mean)
        counts = np.arange(2_000.0)
        values = surprises(counts, np.full(2_000, mean), shape)
        assert (np.diff(values) >= -1e-9).all(), "more is more surprising"
        assert not values[counts <= mean].any()


def test_surprise__of_extreme_counts_is_finite():
    for count in (0.0, 1.0, 1e3, 1e9):
        for mean in (0.0, 1e-300, 1.0, 1e9):
            assert all(np.isfinite(surprise(count, mean, shape)) for shape in (0.5, 100.0))


def test_row_share__is_hardly_more_than_chance_brings_about_once_in_all_rows():
    assert row_share(100.0, 1.0, 1_000.0) == pytest.approx(1.08 * np.log(1_000))
    assert row_share(5.0, 10.0, 1_000.0) == pytest.approx(5 - np.log(10))
    assert row_share(1.0, 10.0, 1_000.0) == 0.0


def test_largest__equals_the_slow_twin(rows):
    values = np.random.default_rng(0).random(len(rows))
    slow = [max([0.0, *values[(rows.payer == v) | (rows.payee == v)]]) for v in range(rows.num_accounts)]
    np.testing.assert_array_equal(largest(rows, values), slow)
