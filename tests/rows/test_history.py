"""Unlike its own history: medians of the others by hand, and what is odd to both ends of a row."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import betabinom

from hcm_scale.rows import history as module
from hcm_scale.rows.history import history
from hcm_scale.rows.rows import DAY, row_share, surprises


def slow_deviations(ends, amount, num_accounts):
    """Of every row: deviation from the others of its account, log amount over their median, and the spread."""
    own = [np.flatnonzero(ends == account) for account in range(num_accounts)]
    spread = [1.4826 * np.median(np.abs(amount[r] - np.median(amount[r]))) if len(r) > 1 else 0.0 for r in own]
    usual = np.median([s for s, r in zip(spread, own, strict=True) if len(r) >= 5 and s > 0] or [0.7])
    deviation, over, spreads = np.zeros((3, len(amount)))
    for rows, its_spread in zip(own, spread, strict=True):
        k = len(rows)
        drawn = np.sqrt((k * its_spread**2 + 5 * usual**2) / (k + 5))
        spreads[rows] = drawn
        for row in rows if k > 1 else []:
            over[row] = amount[row] - np.median(amount[rows[rows != row]])
            deviation[row] = abs(over[row]) / drawn * np.sqrt((k - 1) / (k + 1))
    return deviation, over, spreads


def slow_history(rows):
    with_amount = np.flatnonzero(np.isfinite(rows.amount))
    payer, payee, amount, code = (x[with_amount] for x in (rows.payer, rows.payee, rows.amount, rows.currency))
    amount = amount - [np.median(amount[code == own]) for own in code]
    by_payer, over, spread = slow_deviations(payer, amount, rows.num_accounts)
    by_payee, _, _ = slow_deviations(payee, amount, rows.num_accounts)
    few = np.array([(payee == account).sum() < 4 for account in payee], bool)
    deviation = np.where(few, by_payer, np.minimum(by_payer, by_payee))
    is_again, is_regular, over_pair = slow_pairs(rows.where(np.isfinite(rows.amount)))
    deviation = np.fmin(deviation, np.abs(over_pair) / spread)
    deviation[is_again > 0] = 0.0
    of_rows, over_usual, regular = np.zeros((3, len(rows)))
    of_rows[with_amount], over_usual[with_amount], regular[with_amount] = deviation, over, is_regular
    sort = slow_sorts(rows)
    counted = ~np.isnan(rows.amount)
    return slow_counts(rows.where(counted), of_rows[counted], sort[counted]), of_rows, over_usual, regular, sort


def slow_pair(time, amount, when, paid):
    """Whether a row is paid again and regular, and its log amount over that of its pair at times a week away."""
    assert len(time) < 128  # of more the module looks at some
    apart, has = np.abs(time - when), ~np.isnan(amount)
    some, far = amount[has & (apart >= 7 * DAY)], amount[has & (apart >= 13 * DAY)]
    num_same = (np.abs(far - paid) <= 0.1).sum()
    over = (paid - np.median(some)) * np.sqrt(len(some) / (len(some) + 2)) if len(some) >= 2 else np.nan
    return (np.abs(some - paid) <= 0.1).sum() >= 2, num_same > 0 and num_same >= 0.25 * len(far), over


def slow_pairs(rows):
    out = np.zeros((3, len(rows)))
    for row, ends in enumerate(zip(rows.payer, rows.payee, strict=True)):
        same = (rows.payer == ends[0]) & (rows.payee == ends[1])
        out[:, row] = slow_pair(rows.time[same], rows.comparable[same], rows.time[row], rows.comparable[row])
    return out


def slow_new_category(codes, shares, num_all):
    """What the last of a payer's categories says of it, and its share of that."""
    kind, first = codes[-1], int(np.argmax(codes == codes[-1]))
    count, size, usual = int((codes == kind).sum()), len(codes) - first, 4.0 * shares[kind]
    if first < 5 or count * (first + 4.0) <= size * usual:
        return 0.0, 0.0
    chances = betabinom(size, usual, first + 4.0 - usual)
    ratio = math.exp(chances.logpmf(count + 1) - chances.logpmf(count)) if count < size else 0.0
    nats = max(0.0, math.log(1.0 - min(ratio, 0.99)) - chances.logpmf(count))
    nats = max(0.0, nats - math.log(len(codes)) - math.log(len(np.unique(codes))))
    return nats, row_share(nats, count, num_all)


def slow_new_categories(rows):
    """As `slow_new_category`, of every row."""
    out = np.zeros((2, len(rows)))
    shares = np.maximum(np.bincount(rows.category, minlength=256)[:255], 0.5) / max(1, (rows.category < 255).sum())
    for row in range(len(rows)) if rows.has_times else ():
        own = rows.category[: row + 1][rows.payer[: row + 1] == rows.payer[row]]
        if own[-1] < 255:
            out[:, row] = slow_new_category(own[own < 255], shares, len(rows))
    return out


def slow_marks(rows):
    """1 of a row whose pair has its amount within a day before, 2 of one that is negative."""
    sort = np.where(np.isneginf(rows.amount), 2, 0)
    for row in range(len(rows)) if rows.has_times else ():
        before = np.arange(row)
        same = (rows.payer[before] == rows.payer[row]) & (rows.payee[before] == rows.payee[row])
        same &= (rows.time[row] - rows.time[before] <= DAY) & (
            np.abs(rows.comparable[before] - rows.comparable[row]) <= 1e-3
        )
        sort[row] = max(sort[row], same.any())
    return sort


def slow_sorts(rows):
    """As `slow_marks`, 0 for a habit."""
    sort = slow_marks(rows)
    return np.array(
        [
            0 if sort[row] == 1 and slow_is_habit(rows, sort == 1, *at) else sort[row]
            for row, at in enumerate(zip(rows.payer, rows.payee, rows.time, strict=True))
        ],
        int,
    )


def slow_is_habit(rows, is_twice, payer, payee, time):
    """Whether the pair has two marked rows a week away."""
    marked = is_twice & (rows.payer == payer) & (rows.payee == payee)
    return (np.abs(rows.time[marked] - time) >= 7 * DAY).sum() >= 2


def slow_counts(rows, deviation, sort):
    """Odd rows of an account at either end, against its number of rows."""
    payer, payee = rows.payer, rows.payee
    best, n = np.zeros(rows.num_accounts), range(rows.num_accounts)
    num_rows = np.array([(payer == v).sum() + (payee == v).sum() for v in n])
    odd = []
    for cut in (3, 4, 5):
        least = np.quantile(deviation, 1 - np.exp(-cut), method="higher") if len(deviation) else 0
        odd.append(((deviation >= least) & (deviation > 0), np.exp(-cut)))
    odd += [(sort == which, (sort == which).mean() if len(sort) else 0.0) for which in (1, 2)]
    for is_odd, share in odd:
        counts = np.array([(is_odd & (payer == v)).sum() + (is_odd & (payee == v)).sum() for v in n], float)
        received = [int((payee == v).sum()).bit_length() for v in payee]
        rate = np.zeros(len(payee))
        for row, digits in enumerate(received):
            alike = np.array(received) == digits
            rate[row] = ((is_odd & alike).sum() + 50 * share) / (alike.sum() + 50)
        means = np.array([rate[payer == v].sum() + rate[payee == v].sum() for v in n], float)
        for shape in module._SHAPES:
            values = surprises(counts, means, shape)
            some = values[num_rows >= 3]
            if not len(some) or np.quantile(some, 0.95) <= -np.log(0.05) + 0.2:
                break
        best = np.maximum(best, values - np.log(5))
    return best


def test_history__equals_the_slow_twin(rows, same_by_threads):
    fast, slow = same_by_threads(history, rows), slow_history(rows)
    of_payers, of_rows = slow_new_categories(rows)
    np.testing.assert_allclose(fast.new_category, of_rows, rtol=1e-9, atol=1e-9)
    np.maximum.at(slow[0], rows.payer, of_payers - np.log(2))
    for one, other in zip((*fast[:3], fast.is_regular, fast.sort), slow, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


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


def test_history__one_of_many_suppliers_whose_invoices_are_larger_is_not_strange(life):
    rng = np.random.default_rng(1)
    who, *payees = rng.choice(life.persons, 9, replace=False)
    usual = np.exp(np.mean(np.log(life.amount[life.payer == who])))
    own = np.where(np.arange(48) % 8 == 0, 60.0, 1.0) * usual * np.exp(rng.normal(0.0, 0.3, 48))
    rows, new = life.rows(who, np.tile(payees, 6), np.repeat(np.arange(6) * 30.0 + 3, 8) * DAY, own)
    usually = history(rows).of_rows[new[::8]]
    rows, new = life.rows(who, [*payees[1:], payees[0]], np.arange(1, 9) * 10 * DAY, own[1:9])
    assert usually.max() < 0.5 * history(rows).of_rows[new[-1]]


@pytest.mark.parametrize("how", ["one", "several", "usual"])
def test_history__one_whose_payments_turn_to_a_category_that_it_never_had_leads(life, how):
    rows, _ = life.rows()
    rng, who = np.random.default_rng(0), life.quiet(1)[0]
    category = (rng.random(len(rows)) < 0.3).astype(np.uint8) + 2 * (rng.random(len(rows)) < 0.03).astype(np.uint8)
    own = rows.out.of(who)
    category[own] = np.arange(len(own)) % 2
    if how != "usual":
        category[own[-6:]] = 2 if how == "one" else [2, 3, 2, 3, 2, 3]
    result = history(replace(rows, category=category))
    first = np.argsort(-result.of_accounts)[:6]
    assert (who in first) == (how != "usual")
    assert (result.new_category[own[-6:]].max() > 3.0) == (how != "usual")
    assert np.quantile(result.new_category, 0.99) < 2.0


@pytest.mark.parametrize("sort", [module.TWICE, module.NEGATIVE])
def test_history__one_who_pays_twice_or_has_refunds_leads(life, sort):
    rng = np.random.default_rng(0)
    who, time = rng.choice(life.quiet(60)), rng.uniform(5, 175, 6) * DAY
    payee = rng.choice(life.payee[life.payer == who], 6)
    if sort == module.TWICE:
        paid = np.exp(rng.normal(np.mean(np.log(life.amount[life.payer == who])), 0.2, 6))
        rows, new = life.rows(who, np.tile(payee, 2), np.r_[time, time + 30.0], np.tile(paid, 2))
        new = new[6:]
    else:
        rows, new = life.rows(who, payee, time, -50.0)
    result = history(rows)
    assert result.of_accounts.argmax() == who
    assert (result.sort[new] == sort).all()
    assert (result.surprises[new] > 5.0).all()
    assert (module.sorts_among(rows, rows.out.of(who)) == result.sort[rows.out.of(who)]).all()


def test_history__what_a_pair_has_twice_every_time_is_usual(life):
    who, payee = life.quiet(2)
    time = np.repeat(np.arange(5, 175, 10) * DAY, 2)
    rows, new = life.rows(who, payee, time + np.tile([0.0, 60.0], 17), 2.4)
    assert not history(rows).sort[new].any()


def test_history__an_account_without_amounts_says_nothing_and_hides_nothing(life):
    rows, _ = life.rows()
    before = history(rows)
    blank, new = life.rows(life.persons[:50], life.persons[50:100], np.arange(50) * 1e5 + 0.5, np.nan)
    after = history(blank)
    np.testing.assert_array_equal(after.of_accounts, before.of_accounts)
    np.testing.assert_array_equal(np.delete(after.of_rows, new), before.of_rows)
    assert not after.of_rows[new].any()


def test_first_refund_or_duplicate__is_as_rare_as_one_in_all_rows(life):
    rows, _ = life.rows(0, np.array([1]), np.array([DAY]), np.array([50.0]))
    made = history(rows.where(rows.amount > -np.inf))
    assert not (made.sort == module.NEGATIVE).any()
    nats = module.surprise_of_sort(np.array([module.NEGATIVE], np.uint8), made.cuts)
    assert nats[0] == pytest.approx(np.log(len(rows)), abs=0.1)
    refund = rows.where(np.arange(len(rows)) == 0)
    refund.amount[:] = -np.inf
    assert history(refund, rows, made.cuts).of_accounts.max() < np.log(len(rows))
