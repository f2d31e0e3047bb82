"""Unlike its own history: medians of the others by hand, and what is odd to both ends of a row."""

import numpy as np
import pytest

from hcm_scale.rows import history as module
from hcm_scale.rows.history import history
from hcm_scale.rows.rows import DAY, surprises


def slow_deviations(ends, amount, num_accounts):
    """Deviation of every row from the others of its account, and log amount over their median, by the docstring."""
    own = [np.flatnonzero(ends == account) for account in range(num_accounts)]
    spread = [1.4826 * np.median(np.abs(amount[r] - np.median(amount[r]))) if len(r) > 1 else 0.0 for r in own]
    usual = np.median([s for s, r in zip(spread, own, strict=True) if len(r) >= 5 and s > 0] or [0.7])
    deviation, over = np.zeros((2, len(amount)))
    for rows, its_spread in zip(own, spread, strict=True):
        k = len(rows)
        drawn = np.sqrt((k * its_spread**2 + 5 * usual**2) / (k + 5))
        for row in rows if k > 1 else []:
            over[row] = amount[row] - np.median(amount[rows[rows != row]])
            deviation[row] = abs(over[row]) / drawn * np.sqrt((k - 1) / (k + 1))
    return deviation, over


def slow_history(rows):
    with_amount = np.flatnonzero(~np.isnan(rows.amount))
    payer, payee, amount, code = (x[with_amount] for x in (rows.payer, rows.payee, rows.amount, rows.currency))
    amount = amount - [np.median(amount[code == own]) for own in code]
    by_payer, over = slow_deviations(payer, amount, rows.num_accounts)
    by_payee, _ = slow_deviations(payee, amount, rows.num_accounts)
    few = np.array([(payee == account).sum() < 4 for account in payee], bool)
    deviation = np.where(few, by_payer, np.minimum(by_payer, by_payee))
    deviation[slow_recurring(payer, payee, rows.time[with_amount], rows.amount[with_amount], code)] = 0.0
    of_rows, over_usual = np.zeros((2, len(rows)))
    of_rows[with_amount], over_usual[with_amount] = deviation, over
    return slow_counts(rows, payer, payee, deviation), of_rows, over_usual


def slow_recurring(payer, payee, time, amount, code):
    """Whether the same pair has the same amount at two other times a week away, for pairs of few rows."""
    out = np.zeros(len(payer), bool)
    for row in range(len(payer)):
        if payer[row] == payee[row]:
            continue
        same = (payer == payer[row]) & (payee == payee[row]) & (code == code[row])
        assert same.sum() < 128  # of more the module looks at some
        again = same & (np.abs(amount - amount[row]) <= 0.1) & (np.abs(time - time[row]) >= 7 * DAY)
        out[row] = again.sum() >= 2
    return out


def slow_counts(rows, payer, payee, deviation):
    """Odd rows of an account at either end, against its number of rows."""
    best, n = np.zeros(rows.num_accounts), range(rows.num_accounts)
    num_rows = np.array([(payer == v).sum() + (payee == v).sum() for v in n])
    for cut in (3, 4, 5):
        least = np.quantile(deviation, 1 - np.exp(-cut), method="higher") if len(deviation) else 0
        is_odd = (deviation >= least) & (deviation > 0)
        counts = np.array([(is_odd & (payer == v)).sum() + (is_odd & (payee == v)).sum() for v in n], float)
        received = [int((payee == v).sum()).bit_length() for v in payee]
        rate = np.zeros(len(payee))
        for row, digits in enumerate(received):
            alike = np.array(received) == digits
            rate[row] = ((is_odd & alike).sum() + 50 * np.exp(-cut)) / (alike.sum() + 50)
        means = np.array([rate[payer == v].sum() + rate[payee == v].sum() for v in n], float)
        for shape in module._SHAPES:
            values = surprises(counts, means, shape)
            some = values[num_rows >= 3]
            if not len(some) or np.quantile(some, 0.95) <= -np.log(0.05) + 0.2:
                break
        best = np.maximum(best, values - np.log(3))
    return best


def test_history__equals_the_slow_twin(rows, same_by_threads):
    for one, slow in zip(same_by_threads(history, rows), slow_history(rows), strict=False):
        np.testing.assert_allclose(one, slow, rtol=1e-9, atol=1e-9)


def test_history__does_not_depend_on_the_order_of_rows_nor_on_clock_or_unit(disguised):
    for one, other in zip(*map(history, disguised), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_history__payments_of_a_tenth_of_the_usual_are_among_the_first(life, seed):
    rng = np.random.default_rng(seed)
    who, persons = rng.choice(life.quiet(60)), life.persons
    kept = life.payer != who
    less = life._replace(**{name: getattr(life, name)[kept] for name in ("payer", "payee", "time", "amount")})
    amount = np.exp(rng.normal(4.0, 0.1, 31)) * np.where(np.arange(31) < 14, 0.1, 1.0)
    rows, new = less.rows(who, rng.choice(persons[persons != who], 31), rng.uniform(0, 180, 31) * DAY, amount)
    result = history(rows)
    assert result.of_accounts[who] > np.quantile(result.of_accounts, 0.98)
    assert (result.over_usual[new[:14]] < -1.5).all()
    assert np.median(result.of_rows[new[:14]]) > np.quantile(result.of_rows, 0.95)


def test_history__a_shop_s_usual_ticket_is_not_strange(life):
    rows, _ = life.rows()
    result = history(rows)
    assert result.of_accounts[life.shops].max() < np.quantile(result.of_accounts, 0.99)
    own = np.isin(rows.payee, life.shops)
    assert np.median(result.of_rows[own]) < np.quantile(result.of_rows, 0.8)


def test_history__what_is_paid_every_month_is_not_strange_and_the_same_at_once_is(life):
    rng = np.random.default_rng(0)
    who, payee = rng.choice(life.persons, 2, replace=False)
    amount = np.full(5, 40.0 * np.exp(np.mean(np.log(life.amount[life.payer == who]))))
    for days, is_usual in ((np.arange(5) * 30.0 + 2, True), (np.full(5, 70.0), False)):
        rows, new = life.rows(np.repeat(who, 5), np.repeat(payee, 5), days * DAY, amount)
        assert (history(rows).of_rows[new] == 0.0).all() == is_usual


def test_history__an_account_without_amounts_says_nothing_and_hides_nothing(life):
    rows, _ = life.rows()
    before = history(rows)
    blank, new = life.rows(life.persons[:50], life.persons[50:100], np.arange(50) * 1e5 + 0.5, np.nan)
    after = history(blank)
    np.testing.assert_array_equal(after.of_accounts, before.of_accounts)
    np.testing.assert_array_equal(np.delete(after.of_rows, new), before.of_rows)
    assert not after.of_rows[new].any()
