"""Rows that come after a run's: what slow loops say of each, in one table, in days, in any order of rows."""

import numpy as np
import pytest

from hcm_scale.rows.burst import WINDOWS as LENGTHS
from hcm_scale.rows.burst import bursts
from hcm_scale.rows.chain import WINDOWS, chains
from hcm_scale.rows.flow import MOST_ROWS, fitting_share
from hcm_scale.rows.history import history, rank_table, surprise_of
from hcm_scale.rows.rows import COLUMNS, DAY, HOUR, Rows, row_share, surprise
from hcm_scale.rows.stream import REACH, ROW, arrivals, judge_bursts, judge_chains, judge_history
from tests.rows.conftest import random_rows
from tests.rows.test_burst import slow_usual
from tests.rows.test_history import slow_is_habit, slow_marks, slow_new_category, slow_pair

SHAPES = ("plain", "equal times", "days", "missing", "two currencies", "to oneself", "one account", "hub", "months")


def scale_of(rows):
    made = history(rows)
    ranks = rank_table(made.of_rows)
    return {"history_ranks": ranks, "history_cuts": made.cuts, "burst_shapes": bursts(rows).shapes}


def as_records(rows, table=0):
    records = np.zeros(len(rows), ROW)
    for name in COLUMNS:
        records[name] = getattr(rows, name)
    records["table"] = table
    return records


class Judged:
    """What the three say of new rows."""

    def __init__(self, *given):
        arrived = arrivals(*given)
        each = [judge(arrived) for judge in (judge_history, judge_bursts, judge_chains)]
        self.surprises, (self.history, self.burst, self.chains) = (
            np.stack([judged.surprises for judged in each], axis=1),
            [judged.told for judged in each],
        )


def later(rows, shape, seed=7):
    """Rows of the same accounts and two more, from ten days before the end on, shuffled, some of them far too late."""
    rng = np.random.default_rng(seed)
    new = as_records(random_rows(shape, seed, shuffled=True))
    new["time"] += rows.time[-1] - 10 * DAY - new["time"].min()
    new["time"][:3] = rows.time[-1] - 30 * DAY, np.nan, rows.time[-1]
    for end in ("payer", "payee"):
        new[end] = np.where(
            rng.random(len(new)) < 0.1, rng.integers(rows.num_accounts, rows.num_accounts + 2), new[end]
        )
    return new


@pytest.fixture(params=SHAPES)
def case(request):
    with np.errstate(invalid="ignore"):
        rows = random_rows(request.param, 3)
        new = later(rows, request.param)
    return rows, scale_of(rows), new, Judged(rows, scale_of(rows), np.zeros(0, ROW), new, rows.num_accounts + 2)


def in_order(rows, new):
    """Rows that are not too late: (payer, payee, time, comparable amount, number among the new ones or below 0)."""
    has_any = (new["payer"] != new["payee"]) & np.isfinite(new["amount"])
    amount = np.where(has_any, new["amount"] + 2_000.0 * new["currency"], np.nan)
    own = zip(rows.payer, rows.payee, rows.time, rows.comparable, strict=True)
    every = [(*row, -1 - i) for i, row in enumerate(own)]
    placed = np.flatnonzero(new["time"] >= rows.time[-1] - REACH)
    every += [(new["payer"][i], new["payee"][i], new["time"][i], amount[i], i) for i in placed]
    return sorted(every, key=lambda row: row[2])  # stable


def slow_pair_of_new(rows, row):
    """As `slow_pair`, of a record."""
    same = (rows.payer == row["payer"]) & (rows.payee == row["payee"])
    paid = np.nan if row["payer"] == row["payee"] else row["amount"] + 2_000.0 * row["currency"]
    return slow_pair(rows.time[same], rows.comparable[same], row["time"], paid)


def test_history__of_a_new_row_is_that_by_the_rows_of_its_ends(case):
    rows, scale, new, judged = case
    has = np.isfinite(rows.amount)
    middles = {code: np.median(rows.amount[has & (rows.currency == code)]) for code in np.unique(rows.currency[has])}
    amount = np.array([a - middles.get(c, 0.0) for a, c in zip(rows.amount, rows.currency, strict=True)])

    def spread(values):
        return 1.4826 * np.median(np.abs(values - np.median(values)))

    def spread_of(ends, account):
        own = amount[has & (ends == account)]
        groups = [amount[has & (ends == a)] for a in np.unique(ends[has])]
        usual = np.median([s for g in groups if len(g) >= 5 and (s := spread(g)) > 0] or [0.7])
        k, own_spread = len(own), spread(own) if len(own) > 1 else 0.0
        return np.sqrt((k * own_spread**2 + 5 * usual**2) / (k + 5))

    def deviation(ends, account, value, fewest):
        own = amount[has & (ends == account)]
        k = len(own)
        return np.inf if k < fewest else abs(value - np.median(own)) / spread_of(ends, account) * np.sqrt(k / (k + 2))

    for i in range(0, len(new), 5):
        value = new["amount"][i] - middles.get(new["currency"][i], 0.0)
        slow = min(deviation(rows.payer, new["payer"][i], value, 1), deviation(rows.payee, new["payee"][i], value, 4))
        is_again, _, over = slow_pair_of_new(rows, new[i])
        if new["payer"][i] < rows.num_accounts:
            slow = np.fmin(slow, abs(over) / spread_of(rows.payer, new["payer"][i]))
        assert judged.history.of_rows[i] == pytest.approx(0.0 if is_again or not np.isfinite(slow) else slow)
    of_rows = surprise_of(judged.history.of_rows, scale["history_ranks"])
    of_sort = np.array([0.0, *(-np.log(np.clip(scale["history_cuts"][3:, 0], 1e-9, 1.0)))])
    others = np.maximum(of_rows, of_sort[judged.history.sort])
    of_category = slow_categories_of_new(rows, new)
    assert judged.surprises[:, 0] == pytest.approx(np.maximum(others, of_category), rel=1e-9)
    if rows.has_times:
        assert np.array_equal(judged.history.has_new_category, judged.surprises[:, 0] > others)


def slow_categories_of_new(rows, new):
    """What the category of each new row says after those of its payer before it; the shares are those of the run."""
    out = np.zeros(len(new))
    counts = np.maximum(np.bincount(rows.category, minlength=256)[:255], 0.5) / max(1, (rows.category < 255).sum())
    placed = [i for i in range(len(new)) if new["time"][i] >= rows.time[-1] - REACH] if rows.has_times else []
    for i in placed:
        before = [j for j in placed if new["payer"][j] == new["payer"][i]]
        before = [j for j in before if (new["time"][j], j) <= (new["time"][i], i)]
        own = (rows.payer == new["payer"][i]) & (rows.time <= new["time"][i])
        seen = sorted([*((t, c) for t, c in zip(rows.time[own], rows.category[own], strict=True))], key=lambda e: e[0])
        seen += [(new["time"][j], new["category"][j]) for j in sorted(before, key=lambda j: (new["time"][j], j))]
        seen.sort(key=lambda each: each[0])  # stable: rows of the run come first
        codes = np.array([code for _, code in seen if code != 255])
        if new["category"][i] != 255:
            out[i] = slow_new_category(codes, counts, len(rows))[1]
    return out


def test_history__of_a_new_row_has_its_sort(case):
    rows, _, new, judged = case
    every, marks = in_order(rows, new), slow_marks(rows) == 1
    for at, (payer, payee, time, amount, number) in enumerate(every):
        if number < 0:
            continue
        before = [row for row in every[:at] if row[:2] == (payer, payee) and time - row[2] <= DAY]
        is_twice = any(abs(row[3] - amount) <= 1e-3 for row in before) and rows.has_times
        is_habit = slow_is_habit(rows, marks, payer, payee, time)
        expected = 2 if np.isneginf(new["amount"][number]) else int(is_twice and not is_habit)
        assert judged.history.sort[number] == expected


def test_rows__that_the_run_or_a_table_before_holds_meet_no_copy_of_theirs():
    rows = random_rows("plain", 3)
    last = as_records(rows.where(rows.time > rows.time[-1] - REACH))
    nothing, kept = np.zeros(0, ROW), later(rows, "plain")
    kept = kept[np.isfinite(kept["time"]) & (kept["time"] >= rows.time[-1] - REACH)]
    again = Judged(rows, scale_of(rows), nothing, last.copy(), rows.num_accounts)
    expected = (history(rows).sort == 1)[rows.time > rows.time[-1] - REACH]
    assert not (again.history.sort == 1)[~expected].any()
    alone, grown = (
        Judged(rows, scale_of(rows), before, kept.copy(), rows.num_accounts + 2) for before in (nothing, kept)
    )
    np.testing.assert_array_equal(grown.surprises, alone.surprises)


def test_surprise_of__is_that_of_the_rank_to_a_tenth_of_a_nat():
    values = np.random.default_rng(0).lognormal(0, 1, 5_000) * (np.arange(5_000) % 3 > 0)
    ranks = -np.log([(values >= value).mean() for value in values[:300]])
    given = surprise_of(values[:300], rank_table(values))
    assert (given[values[:300] == 0] == 0).all()
    assert np.abs(given - ranks)[values[:300] > 0].max() < 0.11


def test_bursts__of_a_new_row_are_those_of_the_windows_that_end_in_it(case):
    rows, scale, new, judged = case
    lengths = [length for length in LENGTHS if length >= rows.resolution] or [rows.resolution]
    every, span = in_order(rows, new), rows.time[-1] - rows.time[0]
    starts = [np.r_[rows.time[rows.payer == v], rows.time[rows.payee == v]] for v in range(rows.num_accounts)]
    slow, usual_of, sequence = np.zeros(len(new)), {}, as_records(rows)
    regular = {-1 - i: slow_pair_of_new(rows, row)[1] for i, row in enumerate(sequence)}
    regular |= {i: slow_pair_of_new(rows, row)[1] for i, row in enumerate(new)}
    every = [row for row in every if not regular[row[4]]]
    for at, (*ends, time, _, number) in enumerate(every):
        best, size = 0.0, 1
        for side, own in enumerate((rows.payer, rows.payee) if number >= 0 else ()):
            account, counts = ends[side], np.unique(own, return_counts=True)[1]
            for k, length in enumerate(lengths):
                within = [row for row in every[: at + 1] if row[2] >= time - length]
                count = sum(row[side] == account for row in within)
                if count < 3 or length > span / 3:
                    continue
                times, usual = rows.time[own == account], 0.0
                rate = (counts.mean() + 1) * length / span
                if account < rows.num_accounts and len(starts[account]):
                    if (side, account, k) not in usual_of:
                        usual_of[side, account, k] = slow_usual(times, length, span, (0, -1))
                    usual = usual_of[side, account, k]
                    rate = (len(times) + 1) * length / max(rows.time[-1] - starts[account].min(), 3 * length)
                busy = max(1.0, len(within) / len(rows) * span / length)
                value = surprise(count, max(rate * busy, usual), scale["burst_shapes"][side][k])
                value -= np.log(span / length * 2 * len(lengths))
                best, size = max((best, size), (value, count))
        slow[number] = max(slow[number], row_share(best, size, len(rows))) if number >= 0 else slow[number]
    np.testing.assert_allclose(judged.surprises[:, 1], slow, atol=1e-9)


def fits(came, left):
    return np.log(0.9) - 1e-9 <= left - came <= 0


def test_chains__that_end_in_a_new_row_are_those_of_all_rows_before(case):
    rows, _, new, judged = case
    share, windows = fitting_share(rows), [window for window in WINDOWS if window >= rows.resolution]
    every, best = in_order(rows, new), np.zeros(len(new))
    every = [row for row in every if row[4] >= 0 or row[2] >= rows.time[-1] - 2 * REACH]
    for window in windows:
        score = np.zeros(len(every))
        of_run = [at for at, row in enumerate(every) if row[4] < 0]
        for among in (of_run, range(len(every))):  # rows of the run know none of the new ones
            for at in among:
                payer, _, time, amount, number = every[at]
                soon = [i for i in among if i < at and every[i][1] == payer and every[i][2] >= time - window]
                fitting = [i for i in soon if fits(every[i][3], amount)]
                if (number < 0 and among is not of_run) or not fitting or len(soon) >= MOST_ROWS:
                    continue
                others = np.flatnonzero(rows.payee == payer)
                others = others[:: max(1, len(others) // 64)]
                others = [i for i in others if not time - window <= rows.time[i] <= time]
                alike = sum(fits(rows.comparable[i], amount) for i in others)
                mean = len(soon) * (alike + 10 * share) / (len(others) + 10)
                score[at] = score[max(fitting, key=lambda i: score[i])] - np.log(1 - np.exp(-mean))
        for at, row in enumerate(every):
            if row[4] >= 0:
                best[row[4]] = max(best[row[4]], score[at])
    slow = np.maximum(best - np.log(max(1, len(windows))), 0)
    np.testing.assert_allclose(judged.surprises[:, 2], slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("days", [1, 7])
def test_judge__in_days_or_at_once_is_the_same(life, days):
    rows, _ = life.rows()
    is_run = rows.time < 120 * DAY
    run, new = rows.where(is_run), as_records(rows.where(~is_run))
    new["payee"][::50] = rows.num_accounts  # one that the run does not have
    scale, whole = scale_of(run), Judged(run, scale_of(run), np.zeros(0, ROW), new, rows.num_accounts + 1)
    kept, blocks = np.zeros(0, ROW), []
    for table, first in enumerate(np.arange(120, 181, days)):
        some = new[(new["time"] >= first * DAY) & (new["time"] < (first + days) * DAY)].copy()
        some["table"] = table
        blocks.append(Judged(run, scale, kept, some, rows.num_accounts + 1).surprises)
        kept = np.concatenate([kept, some])
        kept = kept[kept["time"] >= kept["time"].max(initial=0.0) - REACH]
    np.testing.assert_array_equal(np.concatenate(blocks), whole.surprises)
    assert (whole.surprises > 3.0).any(axis=0).all()


@pytest.fixture(scope="module")
def month(life):
    """The run's rows, its scale, and the rows of the month after."""
    rows, _ = life.rows()
    run = rows.where(rows.time < 150 * DAY)
    return run, scale_of(run), rows.where(rows.time >= 150 * DAY)


def judged_with(month, *columns):
    """Surprises of ordinary rows, and of these beside them."""
    run, scale, rest = month
    payer, payee, time, amount = np.broadcast_arrays(*columns)
    planted = Rows.of(run.num_accounts, payer, payee, time, amount)
    new = np.concatenate([as_records(rest), as_records(planted)])
    return Judged(run, scale, np.zeros(0, ROW), new, run.num_accounts), len(rest)


def test_judge__an_odd_amount_leads(life, month):
    payer, payee = life.quiet(30)[:2]
    judged, first = judged_with(month, [payer], [payee], 160 * DAY, np.median(life.amount[life.payer == payer]) / 40)
    assert judged.surprises[first:, 0].min() >= np.sort(judged.surprises[:first, 0])[-5]


def test_judge__a_burst_leads_and_has_its_rows_and_time(life, month):
    who = life.quiet(40)
    judged, first = judged_with(month, who[1:21], who[0], 165 * DAY + np.arange(20) * HOUR / 2, 50.0)
    assert judged.surprises[first + 6 :, 1].min() > judged.surprises[:first, 1].max()
    assert (judged.burst.num_rows[-1], judged.burst.is_in[-1]) == (20, True)
    assert judged.burst.seconds[-1] == pytest.approx(9.5 * HOUR)


def test_judge__a_chain_that_began_in_the_run_goes_on_and_leads(life, month):
    run, _, rest = month
    who = life.quiet(60)[::10]
    time = 150 * DAY + (np.arange(5) - 2.5) * 4 * HOUR
    chain = Rows.of(run.num_accounts, who[:-1], who[1:], time, 700 * 0.97 ** np.arange(5))
    run, _ = run.joined(chain.where(time < 150 * DAY))
    new = np.concatenate([as_records(chain.where(time >= 150 * DAY)), as_records(rest)])
    judged = Judged(run, scale_of(run), np.zeros(0, ROW), new, run.num_accounts)
    assert set(np.argsort(-judged.surprises[:, 2])[:2]) == {0, 1}
    assert judged.chains.to(1)["payer"].tolist() == who[:-1].tolist()
    assert judged.surprises[1, 2] == pytest.approx(
        chains(run.joined(chain.where(time >= 150 * DAY))[0]).of_rows.max(), rel=0.2
    )


def test_judge__of_one_account_in_all_rows_ends():
    rng = np.random.default_rng(0)
    rows = Rows.of(3, *rng.integers(0, 2, (2, 200_000)), rng.random(200_000) * 100 * DAY, np.full(200_000, 5.0))
    new = as_records(rows)
    new["time"] += 100 * DAY
    judged = Judged(rows, {"burst_shapes": np.ones((2, 6))}, np.zeros(0, ROW), new, 3)
    assert np.isfinite(judged.surprises).all()


def test_chain_to__of_very_many_rows_are_the_last_of_them():
    many = np.arange(500)
    rows = Rows.of(501, many, many + 1, 100 * DAY + many, np.full(500, 5.0))
    judged = Judged(random_rows("plain", 0), {}, np.zeros(0, ROW), as_records(rows), 501)
    assert judged.chains.to(499)["payer"].tolist() == list(range(436, 500))
    assert judged.chains.to(9)["payer"].tolist() == list(range(10))


def test_judge__without_rows_or_times():
    rows = random_rows("plain", 0)
    empty = Judged(rows, scale_of(rows), np.zeros(0, ROW), np.zeros(0, ROW), 12)
    assert empty.surprises.shape == (0, 3)
    timeless = Rows.of(12, rows.payer, rows.payee, np.zeros(len(rows)), np.exp(rows.amount))
    judged = Judged(
        timeless,
        {k: v for k, v in scale_of(rows).items() if k != "burst_shapes"},
        np.zeros(0, ROW),
        as_records(timeless),
        12,
    )
    assert judged.surprises[:, 0].any()
    assert not judged.surprises[:, 1:].any()
