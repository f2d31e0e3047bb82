"""Chains: the best one by trying all rows before, and amounts that come back to where they began."""

from itertools import pairwise

import numpy as np
import pytest

from hcm_scale.rows import chain as module
from hcm_scale.rows.chain import WINDOWS, chain_through, chains
from hcm_scale.rows.flow import MOST_ROWS, fitting_share
from hcm_scale.rows.rows import DAY, HOUR, Rows
from tests.rows.test_flow import passes


def slow_steps(rows, window, share):
    """Surprise of the best chain that ends in each row, of its last step, and the row before."""
    score, step, before = np.zeros(len(rows)), np.zeros(len(rows)), np.full(len(rows), -1)
    for row in range(len(rows)):
        into = np.flatnonzero(rows.payee == rows.payer[row])
        soon = [r for r in into if r < row and rows.time[r] >= rows.time[row] - window]
        fitting = [r for r in soon if passes(rows, r, row)]
        if not fitting or len(soon) >= MOST_ROWS:
            continue
        others = [r for r in into[:: max(1, len(into) // 64)] if r not in soon]
        alike = sum(passes(rows, r, row) for r in others)
        mean = len(soon) * (alike + 10 * share) / (len(others) + 10)
        before[row] = max(fitting, key=lambda r: (score[r], r))
        step[row] = -np.log(1 - np.exp(-mean))
        score[row] = score[before[row]] + step[row]
    return score, step, before


def slow_within(rows, window, share):
    score, step, before = slow_steps(rows, window, share)
    onward, after, back = np.zeros(len(rows)), np.full(len(rows), -1), np.zeros(len(rows))
    for row in reversed(range(len(rows))):
        ways = [(step[s] + onward[s], s) for s in np.flatnonzero(before == row) if step[s] + onward[s] > 0]
        onward[row], after[row] = max(ways, default=(0.0, -1))
    for row in range(len(rows)):
        chain = [row]
        while before[chain[-1]] >= 0 and len(chain) <= 16:
            chain.append(before[chain[-1]])
            if rows.payer[chain[-1]] == rows.payee[row]:
                value = score[row] - score[chain[-1]] + np.log(len(rows) / (rows.payee == rows.payee[row]).sum())
                back[chain] = np.maximum(back[chain], value)
                break
    return np.maximum(score + onward, back), before, after


def slow_chains(rows):
    windows = [window for window in WINDOWS if window >= rows.resolution]
    best, before, after = np.zeros(len(rows)), np.full(len(rows), -1), np.full(len(rows), -1)
    for window in windows:
        values, back, ahead = slow_within(rows, window, fitting_share(rows))
        better = values > best
        best, before, after = (np.where(better, *each) for each in ((values, best), (back, before), (ahead, after)))
    best = np.maximum(best - np.log(max(1, len(windows))), 0)
    own = [np.r_[best[rows.payer == v], best[rows.payee == v]] for v in range(rows.num_accounts)]
    return [max(max(x, default=0) - np.log(max(1, len(x))), 0) for x in own], best, before, after


def test_chains__equal_the_slow_twin(rows, same_by_threads):
    for one, slow in zip(same_by_threads(chains, rows), slow_chains(rows), strict=True):
        np.testing.assert_allclose(one, slow, rtol=1e-9, atol=1e-9)


def test_through__every_row_pays_on_what_the_row_before_brought(rows):
    result = chains(rows)
    for row in range(len(rows)):
        chain = chain_through(result.before, result.after, row)
        assert row in chain
        for one, other in pairwise(chain):
            assert one < other
            assert rows.payee[one] == rows.payer[other]
            assert passes(rows, one, other)


def test_chains__do_not_depend_on_the_order_of_rows_nor_on_clock_or_unit(disguised):
    for one, other in zip(*map(chains, disguised), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pause", [3, 20, 100])
@pytest.mark.parametrize("seed", range(3))
def test_chains__a_round_trip_of_six_accounts_leads(life, pause, seed):
    rng = np.random.default_rng(seed)
    who = rng.choice(life.quiet(100), 6, replace=False)
    time = 80 * DAY + np.cumsum(rng.uniform(0.5, 1, 6)) * pause * HOUR
    rows, new = life.rows(who, np.roll(who, -1), time, 500 * np.cumprod(rng.uniform(0.95, 0.99, 6)))
    result = chains(rows)
    assert set(np.argsort(-result.of_accounts)[:6]) == set(who)
    assert set(np.argsort(-result.of_rows)[:6]) == set(new)
    for row in new:
        chain = chain_through(result.before, result.after, int(row))
        first = chain.index(new[0])
        assert chain[first : first + 6] == new.tolist()


def test_chains__what_an_account_pays_itself_is_none(life):
    who = life.quiet(1)[0]
    time = np.arange(8) * HOUR + 80 * DAY
    rows, new = life.rows(who, who, time, 500.0)
    result = chains(rows)
    assert not result.of_rows[new].any()
    assert result.of_accounts[who] <= chains(life.rows()[0]).of_accounts[who] + 1e-9


def hub(num_soon):
    """So many rows of like amounts into one account, then one out of it that fits them all, long after others."""
    payer, payee = np.r_[np.arange(1, 401), 0], np.r_[np.zeros(400, int), 1]
    time = np.r_[np.arange(400 - num_soon) * DAY, 900 * DAY + np.arange(num_soon + 1)]
    amount = np.r_[1.3 ** np.arange(400 - num_soon), np.full(num_soon, 1e-3), 0.95e-3]
    return Rows.of(401, payer, payee, time, amount)


def test_chains__an_account_with_many_rows_in_the_window_is_not_asked():
    """The loops over rows before one, and over those that show how many fit, end at 64 and 127, a way back at 16."""
    assert chains(hub(MOST_ROWS - 1)).before[-1] >= 0
    assert chains(hub(MOST_ROWS)).before[-1] == -1


def test_chains__of_a_hub_try_rows_in_proportion_to_its_rows(monkeypatch):
    tried = []
    for num_rows in (500, 2_000):
        calls = [0]

        def count(came, left, calls=calls):
            calls[0] += 1
            return came == left

        monkeypatch.setattr(module, "fits", count)
        payer, payee = np.arange(num_rows) % 2, 1 - np.arange(num_rows) % 2
        rows = Rows.of(2, payer, payee, np.arange(num_rows) * 1.0, np.arange(num_rows) % 50 + 1.0)
        out = *np.zeros((2, num_rows)), np.full(num_rows, -1)
        module._follow.py_func((payer, payee, rows.time, rows.amount), rows.into, np.zeros(2, int), DAY, 0.1, out)
        tried.append(calls[0])
    assert tried[1] <= 5 * tried[0] <= 5 * (MOST_ROWS + 127) * 500


def test_chains__of_a_hub_of_many_rows_end():
    rng = np.random.default_rng(0)
    is_in, others = rng.random(200_000) < 0.5, rng.integers(1, 1_000, 200_000)
    ends = np.where(is_in, others, 0), np.where(is_in, 0, others)
    assert np.isfinite(chains(Rows.of(1_000, *ends, rng.random(200_000) * DAY, others + 0.5)).of_rows).all()
