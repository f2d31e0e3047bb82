"""Passed on: matches by trying all pairs, and amounts that leave soon after they came."""

import numpy as np
import pytest

from hcm_scale.rows import flow as module
from hcm_scale.rows.flow import MOST_ROWS, WINDOWS, fits, fitting_share, flows
from hcm_scale.rows.rows import DAY, HOUR, Rows, row_share, surprise


def passes(rows, came, left):
    """Whether the second row is 90 to 100 % of the first, in its currency, and neither is to oneself."""
    apart = all(rows.payer[row] != rows.payee[row] for row in (came, left))
    change = rows.comparable[left] - rows.comparable[came]
    return apart and rows.currency[came] == rows.currency[left] and change <= 0 and np.exp(change) > 0.9 - 1e-9


def slow_flows(rows):
    of_accounts, of_rows, came_by = np.zeros(rows.num_accounts), np.zeros(len(rows)), np.full(len(rows), -1)
    windows, usual = [window for window in WINDOWS if window >= rows.resolution], fitting_share(rows)
    for account in range(rows.num_accounts):
        came, left = np.flatnonzero(rows.payee == account), np.flatnonzero(rows.payer == account)
        fitting, best = {(c, row) for c in came for row in left if passes(rows, c, row)}, {}
        for window in windows:
            pairs, matches = [], {}
            for row in left:
                before = [c for c in came if c < row][-MOST_ROWS:]
                pairs += (soon := [(c, row) for c in before if rows.time[c] >= rows.time[row] - window])
                free = [c for c, _ in soon if (c, row) in fitting and c not in matches.values()]
                matches |= {row: free[-1]} if free else {}
            inside = fitting & set(pairs)
            share = (len(fitting - inside) + 20 * usual) / (len(came) * len(left) - len(pairs) + 20)
            value = surprise(len(matches), len(pairs) * share, 100.0) - np.log(len(windows))
            if len(matches) >= 2 and value > of_accounts[account]:
                of_accounts[account], best = value, matches
        for row, c in best.items():
            came_by[row] = c
            shared = row_share(of_accounts[account], 2 * len(best), len(rows))
            of_rows[[row, c]] = np.maximum(of_rows[[row, c]], shared)
    return of_accounts, of_rows, came_by


def test_flows__equal_the_slow_twin(rows, same_by_threads):
    for one, slow in zip(same_by_threads(flows, rows), slow_flows(rows), strict=True):
        np.testing.assert_allclose(one, slow, rtol=1e-9, atol=1e-9)


def test_flows__do_not_depend_on_the_order_of_rows_nor_on_clock_or_unit(disguised):
    for one, other in zip(*map(flows, disguised), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_fits__ninety_of_a_hundred_do_however_logarithms_are_rounded():
    for amount in range(1, 2_000):
        logs = np.log([amount, 0.9 * amount, 0.8999 * amount, 1.0001 * amount])
        assert [fits(logs[0], log) for log in logs] == [True, True, False, False]
    assert not fits(np.nan, 1.0)
    assert not fits(1.0, np.nan)


def test_fitting_share__is_about_that_of_all_pairs(rows):
    amounts = rows.comparable[~np.isnan(rows.comparable)]
    share = np.mean([[fits(came, left) for left in amounts] for came in amounts]) if len(amounts) else 0
    assert fitting_share(rows) == pytest.approx(share, abs=0.005)


def planted(life, seed, count=8):
    rng = np.random.default_rng(seed)
    who, amount = rng.choice(life.quiet(60)), rng.lognormal(4.5, 0.7, count)
    came = rng.uniform(5, 170, count) * DAY
    left = came + rng.uniform(0.3, 5, count) * HOUR
    others = rng.choice(life.persons[life.persons != who], (2, count))
    ends = np.r_[others[0], np.full(count, who)], np.r_[np.full(count, who), others[1]]
    return who, *life.rows(*ends, np.r_[came, left], np.r_[amount, amount * rng.uniform(0.95, 0.99, count)])


@pytest.mark.parametrize("seed", range(3))
def test_flows__eight_amounts_passed_on_within_five_hours_lead(life, seed):
    who, rows, new = planted(life, seed)
    result = flows(rows)
    assert result.of_accounts.argmax() == who
    assert result.came_by[new[8:]].tolist() == new[:8].tolist()
    assert set(np.argsort(-result.of_rows)[:16]) == set(new)


@pytest.mark.parametrize("seed", range(3))
def test_flows__an_account_whose_amounts_are_all_equal_does_not_lead(life, seed):
    """It is paid and pays three times a day, so that something that fits always came just before."""
    rng, count = np.random.default_rng(seed), 540
    who, (come, go) = life.quiet(60)[seed], rng.uniform(0, 180, (2, count)) * DAY
    others = rng.choice(life.persons[life.persons != who], (2, count))
    ends = np.r_[others[0], np.full(count, who)], np.r_[np.full(count, who), others[1]]
    rows, _ = life.rows(*ends, np.r_[come, go], 20.0)
    result = flows(rows)
    assert (result.came_by[rows.payer == who] >= 0).sum() > 100 or result.of_accounts[who] == 0
    assert result.of_accounts[who] < np.quantile(result.of_accounts, 0.95)


def test_flows__a_row_has_the_larger_of_what_its_two_accounts_say(life):
    """The same amounts go through two accounts in turn: a row between them is out of one and into the other."""
    rng, amount = np.random.default_rng(0), np.exp(np.linspace(3, 8, 8))
    first, second = life.quiet(2)
    time = np.sort(rng.uniform(5, 170, 8)) * DAY
    ends = np.r_[life.persons[200:208], np.full(8, first), np.full(8, second)]
    payees = np.r_[np.full(8, first), np.full(8, second), life.persons[300:308]]
    times, sizes = np.r_[time, time + HOUR, time + 2 * HOUR], np.r_[amount, 0.99 * amount, 0.98 * amount]
    rows, new = life.rows(ends, payees, times, sizes)
    result = flows(rows)
    shares = [row_share(result.of_accounts[who], 16.0, len(rows)) for who in (first, second)]
    np.testing.assert_allclose(result.of_rows[new[8:16]], max(shares))


def hub(num_rows, gap):
    """Rows into one account, each a size of its own, and one out of it that fits the row `gap` before alone."""
    sizes = 1.3 ** np.arange(num_rows)
    payer, payee = np.r_[np.arange(1, num_rows + 1), 0, 0], np.r_[np.zeros(num_rows, int), 1, 2]
    amount = np.r_[sizes, sizes[-gap] * 0.95, sizes[-1] * 0.95]
    return Rows.of(num_rows + 1, payer, payee, np.arange(num_rows + 2) * 60.0, amount)


def test_flows__of_a_busy_account_the_last_rows_alone_are_looked_at():
    assert flows(hub(100, MOST_ROWS)).came_by[-2:].tolist() == [100 - MOST_ROWS, 99]
    assert flows(hub(100, MOST_ROWS + 1)).came_by[-2:].tolist() == [-1, -1], "one match is none"


def test_flows__of_a_hub_try_pairs_in_proportion_to_its_rows(monkeypatch):
    """Other loops are over rows, and over the two sorted lists of `_num_fitting`, whose ends only rise."""
    tried = []
    for num_rows in (500, 2_000):
        calls = [0]

        def count(came, left, calls=calls):
            calls[0] += 1
            return came == left

        monkeypatch.setattr(module, "fits", count)
        amount = np.random.default_rng(0).random(num_rows)
        came, left, time = np.arange(0, num_rows, 2), np.arange(1, num_rows, 2), np.arange(num_rows) * 1.0
        ends = (np.array([0, len(came)]), came), (np.array([0, len(left)]), left)
        out = np.zeros(1), np.full(num_rows, -1)
        module._match.py_func((0, 1), *ends, (time, amount), np.array(WINDOWS), 0.1, out)
        tried.append(calls[0])
    assert tried[1] <= 5 * tried[0] <= 5 * len(WINDOWS) * MOST_ROWS * 500


def test_flows__of_a_hub_of_many_rows_end():
    rng = np.random.default_rng(0)
    is_in = rng.random(200_000) < 0.5
    others = rng.integers(1, 1_000, 200_000)
    rows = Rows.of(
        1_000, np.where(is_in, others, 0), np.where(is_in, 0, others), rng.random(200_000) * DAY, others + 0.5
    )
    assert np.isfinite(flows(rows).of_accounts).all()
