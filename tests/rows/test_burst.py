"""Bursts: windows counted by trying all, an even time by hand, and rhythms that are none."""

import numpy as np
import pytest

from hcm_scale.rows import burst as module
from hcm_scale.rows.burst import WINDOWS, bursts, even_time, first_meetings
from hcm_scale.rows.history import history
from hcm_scale.rows.rows import DAY, HOUR, row_share, surprise


def slow_even_time(time, step):
    """Nine tenths of a bin's length by its share of the rows, one tenth by its plain length."""
    end = time[-1] - time[0] + step
    num_bins = int(max(2, end / step))
    edges = np.linspace(0, end, num_bins + 1)
    at = np.searchsorted(edges, time - time[0], side="right") - 1
    lengths = [end * (0.9 * (at == bin).mean() + 0.1 / num_bins) for bin in range(num_bins)]
    within = (time - time[0] - edges[at]) / np.diff(edges)[at]
    return [sum(lengths[:bin]) + share * lengths[bin] for bin, share in zip(at, within, strict=True)]


def busiest(times, length, taken):
    """The first and last position of the window with the most rows, none of them taken."""
    best = 0, -1
    for last in range(len(times)):
        for first in range(last + 1):
            if (
                last - first > best[1] - best[0]
                and times[last] - times[first] <= length
                and not taken[first : last + 1].any()
            ):
                best = first, last
    return best


def slow_usual(times, length, span, window):
    """By the third busiest window besides, or the second or first where there are hardly more."""
    taken, size = np.zeros(len(times), bool), 0
    taken[window[0] : window[1] + 1] = True
    for _ in range(min(3, int(span / length) // 2)):
        first, last = busiest(times, length, taken)
        size = last - first + 1
        taken[first : last + 1] = True
    z = 0.8 * np.sqrt(2 * np.log(max(span / length / 3, 1)))
    return (np.sqrt(size + z * z / 4) - z / 2) ** 2


def slow_shape(ends, time, first, length):
    ratios = []
    for account in np.unique(ends):
        times, span = time[ends == account], time[-1] - first[account]
        _, together = np.unique(times // length, return_counts=True)
        if len(times) >= 8 and span >= 6 * length:
            pairs = len(times) * (len(times) - 1)
            ratios.append((together * (together - 1)).sum() / pairs * span / length)
    ratio = np.minimum(ratios, np.quantile(ratios, 0.95)).mean() if len(ratios) >= 20 else 1.0
    return 1 / np.clip(ratio - 1, 0.02, 2)


def slow_bursts(rows):
    of_accounts, of_rows, ends_of = (
        np.zeros(rows.num_accounts),
        np.zeros(len(rows)),
        np.full((rows.num_accounts, 2), -1),
    )
    if len(rows) < 3:
        return of_accounts, of_rows, ends_of
    lengths = [length for length in WINDOWS if length >= rows.resolution] or [rows.resolution]
    time = even_time(rows.time, max(HOUR, rows.resolution))
    both = np.r_[rows.payer, rows.payee], np.r_[time, time]
    first = np.array([min(both[1][both[0] == v], default=np.inf) for v in range(rows.num_accounts)])
    is_new = first_meetings(rows) & (time > time[0] + 0.15 * (time[-1] - time[0]))
    for ends in (rows.payer, rows.payee):
        shapes = {length: slow_shape(ends, time, first, length) for length in lengths}
        for account in np.unique(ends):
            own = np.flatnonzero(ends == account)
            span, best = time[-1] - first[account], (0.0, 0, -1)
            for length in (length for length in lengths if length <= span / 3 and len(own) >= 3):
                window = busiest(time[own], length, np.zeros(len(own), bool))
                if window[1] - window[0] < 2:
                    continue
                usual = slow_usual(time[own], length, span, window)
                for some in (np.arange(len(own)), np.flatnonzero(is_new[own])):
                    low, high = busiest(time[own[some]], length, np.zeros(len(some), bool))
                    size = high - low + 1
                    rate = (len(some) - size + 1) * length / span
                    value = surprise(size, max(rate, usual), shapes[length]) - np.log(span / length * 2 * len(lengths))
                    if size >= 3 and value > best[0]:
                        best = value, some[low], some[high]
            value, low, high = best
            within = own[low : high + 1]
            if value > of_accounts[account]:
                of_accounts[account], ends_of[account] = value, own[[low, high]]
            if len(within):
                of_rows[within] = np.maximum(of_rows[within], row_share(value, len(within), len(rows)))
    return np.maximum(of_accounts - np.log(2), 0), of_rows, ends_of


def test_bursts__equal_the_slow_twin(rows, same_by_threads):
    for one, slow in zip(same_by_threads(bursts, rows)[:3], slow_bursts(rows), strict=True):
        np.testing.assert_allclose(one, slow, rtol=1e-9, atol=1e-9)


def test_even_time__equals_the_slow_twin_and_is_as_long_as_before():
    rng = np.random.default_rng(0)
    time = np.sort(np.r_[rng.uniform(0, 50 * DAY, 300), rng.uniform(20 * DAY, 21 * DAY, 500)]) + 1e9
    even = even_time(time, HOUR)
    np.testing.assert_allclose(even, slow_even_time(time, HOUR), rtol=1e-9)
    assert (np.diff(even) >= 0).all()
    assert even[-1] - even[0] == pytest.approx(time[-1] - time[0], rel=0.01)


def test_first_meetings__equal_the_slow_twin(rows):
    pairs = list(zip(rows.payer.tolist(), rows.payee.tolist(), strict=True))
    assert first_meetings(rows).tolist() == [pair not in pairs[:row] for row, pair in enumerate(pairs)]


def test_bursts__do_not_depend_on_the_order_of_rows_nor_on_clock_or_unit(disguised):
    for one, other in zip(*map(bursts, disguised), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_in", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_bursts__twelve_payments_in_a_day_lead(life, is_in, seed):
    rng = np.random.default_rng(seed)
    who, others = rng.choice(life.quiet(60)), rng.choice(life.persons, 12)
    time = (30 * rng.integers(1, 5) + rng.integers(3, 25) + rng.random(12)) * DAY
    rows, new = life.rows(*((others, who) if is_in else (who, others)), time, 60.0)
    result = bursts(rows)
    assert result.of_accounts.argmax() == who
    first, last = result.ends[who]
    assert first <= new.min() + 200
    assert last >= new.max() - 200
    assert result.of_rows[new].min() > np.quantile(result.of_rows, 0.98)


def test_bursts__neither_salaries_nor_rents_are_any(life):
    values = bursts(life.rows()[0]).of_accounts
    assert values[[life.employer, life.landlord, *life.shops]].max() < 1


def test_bursts__nor_are_two_paydays_in_two_months(life):
    rows, _ = life.rows()
    rows = rows.where(rows.time < rows.time[0] + 60 * DAY)
    assert bursts(rows).of_accounts[life.employer] > 100
    assert bursts(rows, history(rows).is_regular).of_accounts[life.employer] < 1


def test_bursts__of_rows_that_are_not_regular_are_those_of_a_table_without_them(rows):
    is_regular = np.random.default_rng(0).random(len(rows)) < 0.3
    whole, kept = bursts(rows, is_regular), np.flatnonzero(~is_regular)
    if not rows.has_times:
        return
    some = bursts(rows.where(~is_regular))
    np.testing.assert_array_equal(whole.of_accounts, some.of_accounts)
    np.testing.assert_array_equal(whole.of_rows[kept], some.of_rows)
    assert not whole.of_rows[is_regular].any()
    shown = some.ends[:, 0] >= 0
    np.testing.assert_array_equal(whole.ends[shown], kept[some.ends[shown]])
    assert (whole.ends[~shown] == -1).all()


def test_bursts__nor_is_everybody_s_month_end_or_one_busy_day(life):
    rng = np.random.default_rng(0)
    rows, _ = life.rows(*rng.choice(life.persons, (2, 3_000)), rng.uniform(100, 101, 3_000) * DAY, 60.0)
    values = bursts(rows).of_accounts
    assert np.quantile(values, 0.99) < np.log(life.num_accounts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "even_time", lambda time, step: time - time[0])
        plain = bursts(rows).of_accounts
    assert np.quantile(plain, 0.9) > 2 * np.quantile(values, 0.9), "in plain time it is"


class Counted(np.ndarray):
    """Times that count how often one of them is read."""

    reads = 0

    def __getitem__(self, key):
        Counted.reads += 1
        return np.ndarray.__getitem__(self, key)


def test_most_within__reads_every_time_of_a_hub_a_few_times_whatever_the_window():
    """Every other loop of the module is over accounts, rows or windows, of which there are six."""
    times = np.sort(np.random.default_rng(0).random(20_000)).view(Counted)
    for length in (0.0, 1e-3, 0.5, 2.0):
        Counted.reads = 0
        module._most_within.py_func(times, np.zeros(len(times), bool), length)
        assert Counted.reads <= 4 * len(times)
