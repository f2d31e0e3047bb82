"""Unlike its own history: rows whose amount is far from what their payer, and their payee, usually see.

    deviation(row) = |log amount - median of the account's other rows| / spread * sqrt((k - 1) / (k + 1))

for the k rows of the payer, and the same for the payee; a row has the smaller of both where the payee has at least
four, so that a shop's usual ticket or a landlord's usual rent is not strange. What is paid again, by the same payer to
the same payee, the same amount to a tenth, at two other times a week away or more, deviates by nothing: a salary, or a
standing order, is history itself. The spread is that of the account's own amounts (median absolute deviation), drawn to
the usual one as if five rows had it. Currencies are compared by themselves: each has its own median taken off first.
Rows without an amount are as if they were not there.

An account's evidence is how many of its rows, at either end, are among the first e^-3, e^-4 or e^-5 of all rows,
against how many are so of like rows, whose payees receive about as often: a shop's tickets are less regular than a
rent. The most surprising of the three counts: many odd rows say more than one that is very odd. The shape of the null
(rows.py) is the largest at which no more than a twentieth of the accounts looks strange. False alarms: one who pays
rarely, and each time another amount. Cost: a sort of the amounts of each account, and of the pairs; memory 56 bytes a
row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.rows.rows import DAY, ByAccount, Rows, Values, share_accounts, surprises

_CUTS = (3.0, 4.0, 5.0)  # surprise of a row's rank from which on it is odd
_SHAPES = (100.0, 30.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5)
_MOST_USUAL = -math.log(0.05) + 0.2  # surprise of the 95 % quantile of accounts
_PRIOR_ROWS = 5.0
_USUAL_SPREAD = 0.7  # of log amounts, where no account shows one
_SOME_ROWS = 4
_APART, _SAME = 7 * DAY, 0.1  # seconds, and log amounts, of payments that recur
_DRAWN = 64  # rows of a pair that are looked at
_STEP = 0.1  # nats, of the table of ranks
_DIGITS = 20  # classes of accounts by their number of rows
_PRIOR_OF_CLASS = 50.0  # rows


class History(NamedTuple):
    """Surprise of every account, (n,); deviation of every row, (m,); log amount over the payer's usual one, (m,).

    `cuts` say which rows are odd, and how many are usual (`_count_odd`).
    """

    of_accounts: Values
    of_rows: Values
    over_usual: Values
    cuts: Values


def history(rows: Rows, before: Rows | None = None, cuts: Values | None = None) -> History:
    """How unlike their own histories accounts and rows are; 0 of rows without an amount.

    `before` are earlier rows of the same accounts, which are history too and are not judged; `cuts` are those of an
    earlier table, by which odd rows are told.
    """
    if before is None:
        deviation, over_usual = _of_rows(rows)
    else:
        whole, is_own = before.joined(rows)
        deviation, over_usual = (values[is_own] for values in _of_rows(whole))
    has_amount = np.isfinite(rows.amount)
    some = rows if has_amount.all() else rows.where(has_amount)
    of_accounts, cuts = _count_odd(some, deviation[has_amount], cuts)
    return History(of_accounts, deviation, over_usual, cuts)


def _of_rows(rows: Rows) -> tuple[Values, Values]:
    """Deviation of every row, and its log amount over its payer's usual one, (m,) each."""
    has_amount = np.isfinite(rows.amount)
    if not has_amount.all():
        of_rows, over_usual = np.zeros((2, len(rows)))
        of_rows[has_amount], over_usual[has_amount] = _of_rows(rows.where(has_amount))
        return of_rows, over_usual
    amount = rows.amount - _currency_medians(rows)[rows.currency]
    by_payer, over_usual = _deviations(rows.out, rows.payer, amount)
    by_payee, _ = _deviations(rows.into, rows.payee, amount)
    by_payee[(np.diff(rows.into.indptr) < _SOME_ROWS)[rows.payee]] = np.inf
    deviation = np.minimum(by_payer, by_payee)
    deviation[is_recurring(rows)] = 0.0
    return deviation, over_usual


def is_recurring(rows: Rows) -> NDArray[np.bool_]:
    """Whether the same pair has the same amount at two other times, (m,)."""
    out = np.zeros(len(rows), np.bool_)
    share_accounts(rows.out, _find_again, *rows.out, rows.payee, rows.time, rows.comparable, out)
    return out


@kernel
def _find_again(part: Any, indptr: Any, rows: Any, payee: Any, time: Any, amount: Any, out: Any) -> None:
    """Marks rows of which two others of the pair, of those that are looked at, are repeats."""
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        own = own[np.argsort(payee[own])]
        low = 0
        while low < len(own):
            high = low + 1
            while high < len(own) and payee[own[high]] == payee[own[low]]:
                high += 1
            step = max(1, (high - low) // _DRAWN)
            for i in range(low, high):
                count = 0
                for j in range(low, high, step):
                    apart = abs(time[own[j]] - time[own[i]])
                    count += apart >= _APART and abs(amount[own[j]] - amount[own[i]]) <= _SAME
                out[own[i]] = count >= 2
            low = high


class NewHistory(NamedTuple):
    """Of later rows, (m,): deviation, log amount over the payer's usual one, and how many rows say what is usual."""

    of_rows: Values
    over_usual: Values
    num_usual: NDArray[np.int64]


def history_of_new(rows: Rows, new: Rows) -> NewHistory:
    """How unlike the histories that `rows` show later ones are; accounts that these do not have come after theirs."""
    some, num_accounts = rows.where(np.isfinite(rows.amount)), rows.num_accounts
    medians, by_end = _currency_medians(some), []
    for by, ends, fewest in ((some.out, new.payer, 1), (some.into, new.payee, _SOME_ROWS)):
        _, middle, spread = _usual_amounts(by, some.amount - medians[some.currency])
        at = np.minimum(ends, num_accounts)
        count = np.append(np.diff(by.indptr), 0)[at]
        over = new.amount - medians[new.currency] - np.append(middle, 0.0)[at]
        deviation = np.abs(over) / np.append(spread, 1.0)[at] * np.sqrt(count / (count + 2.0))
        by_end.append((np.where(count >= fewest, deviation, np.inf), over, count))
    deviation = np.minimum(by_end[0][0], by_end[1][0])
    is_again = np.zeros(len(new), np.bool_)
    pairs = rows.payer.astype(np.int64) * num_accounts + rows.payee
    order, has_both = np.argsort(pairs, kind="stable"), np.maximum(new.payer, new.payee) < num_accounts
    pair = np.where(has_both, new.payer.astype(np.int64) * num_accounts + new.payee, -1)
    pairs = pairs[order]
    low, high = np.searchsorted(pairs, pair), np.searchsorted(pairs, pair, "right")
    values = (rows.time, rows.comparable), (new.time, new.comparable)
    _find_before((order, low, high), *values, is_again)
    return NewHistory(np.where(np.isfinite(deviation) & ~is_again, deviation, 0.0), *by_end[0][1:])


@kernel(allocates=False)
def _find_before(of_pairs: Any, of_run: Any, of_new: Any, out: Any) -> None:
    """Marks later rows of which two rows of the pair, of those that are looked at, are repeats."""
    (order, low, high), (time, amount), (own, paid) = of_pairs, of_run, of_new
    for row in range(len(out)):
        count = 0
        for k in range(low[row], high[row], max(1, (high[row] - low[row]) // _DRAWN)):
            apart = abs(time[order[k]] - own[row])
            count += apart >= _APART and abs(amount[order[k]] - paid[row]) <= _SAME
        out[row] = count >= 2


def rank_table(deviation: Values) -> Values:
    """The deviations that so many tenths of a nat of surprise begin at, 0, 1, 2, ...; from those of all rows."""
    steps = _STEP * np.arange(int(math.log(max(1, len(deviation))) / _STEP) + 1)
    return np.quantile(deviation, -np.expm1(-steps), method="higher") if len(deviation) else np.zeros(1)


def surprise_of(deviation: Values, table: Values) -> Values:
    """The surprise that a deviation has by its rank among those of `rank_table`."""
    return np.where(deviation > 0.0, np.interp(deviation, table, _STEP * np.arange(len(table))), 0.0)


def _currency_medians(rows: Rows) -> Values:
    out = np.zeros(256)
    for code in np.unique(rows.currency):
        out[code] = np.median(rows.amount[rows.currency == code])
    return out


def _deviations(by: ByAccount, ends: NDArray[Any], amount: Values) -> tuple[Values, Values]:
    """Deviation of every row from the other rows of its account, and log amount over their median, (m,) each."""
    over, _, spread = _usual_amounts(by, amount)
    counts = np.diff(by.indptr)
    factor = np.sqrt(np.maximum(counts - 1.0, 0.0) / (counts + 1.0)) / spread
    return np.abs(over) * factor[ends], over


def _usual_amounts(by: ByAccount, amount: Values) -> tuple[Values, Values, Values]:
    """Log amount over the median of an account's other rows, (m,); median and spread of every account, (n,)."""
    over, middle, spreads = np.zeros(len(amount)), np.zeros(len(by.indptr) - 1), np.full(len(by.indptr) - 1, np.nan)
    share_accounts(by, _compare, *by, amount, over, middle, spreads)
    counts = np.diff(by.indptr)
    shown = spreads[(counts >= _PRIOR_ROWS) & (spreads > 0.0)]
    usual = float(np.median(shown)) if len(shown) else _USUAL_SPREAD
    own = np.nan_to_num(spreads) ** 2
    return over, middle, np.sqrt((counts * own + _PRIOR_ROWS * usual**2) / (counts + _PRIOR_ROWS))


@kernel
def _compare(part: Any, indptr: Any, rows: Any, amount: Any, over: Any, middles: Any, spreads: Any) -> None:
    """Fills log amounts over the median of an account's other rows, and the median and spread of each account."""
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        count = len(own)
        if count == 1:
            middles[account] = amount[own[0]]
        if count < 2:
            continue
        order = np.argsort(amount[own])
        values = amount[own][order]
        middle = 0.5 * (values[(count - 1) // 2] + values[count // 2])
        middles[account] = middle
        distances = np.sort(np.abs(values - middle))
        spreads[account] = 1.4826 * 0.5 * (distances[(count - 1) // 2] + distances[count // 2])
        low, high = (count - 2) // 2, (count - 1) // 2  # the middle of the others, where the row comes after them
        for i in range(count):
            below, above = low + (low >= i), high + (high >= i)
            over[own[order[i]]] = values[i] - 0.5 * (values[below] + values[above])


def _count_odd(rows: Rows, deviation: Values, cuts: Values | None) -> tuple[Values, Values]:
    """Surprise of the number of odd rows of every account, and the cuts, as given or as these rows show them.

    A cut is the deviation from which on a row is odd, the shape of the null, and the rates of odd rows by class.
    """
    classes, some, out = _classes(rows), rows.num_rows >= 3, np.zeros(rows.num_accounts)
    used = np.zeros((len(_CUTS), 2 + _DIGITS)) if cuts is None else cuts
    if cuts is None and len(rows):
        used[:, 0] = np.quantile(deviation, -np.expm1(-np.array(_CUTS)), method="higher")
    sizes = np.bincount(classes, minlength=_DIGITS)
    for cut, own in zip(_CUTS, used, strict=True):
        is_odd = (deviation >= own[0]) & (deviation > 0.0)
        if cuts is None:
            of_class = np.bincount(classes[is_odd], minlength=_DIGITS)
            own[2:] = (of_class + _PRIOR_OF_CLASS * math.exp(-cut)) / (sizes + _PRIOR_OF_CLASS)
        counts, means = _of_ends(rows, is_odd), _of_ends(rows, own[2:][classes])
        for shape in _SHAPES if cuts is None else own[1:2]:
            own[1], values = shape, surprises(counts, means, shape)
            if not some.any() or np.quantile(values[some], 0.95) <= _MOST_USUAL:
                break
        np.maximum(out, values - math.log(len(_CUTS)), out=out)
    return out, used


def _classes(rows: Rows) -> NDArray[np.int64]:
    """By the binary digits of how many rows the payee receives, (m,)."""
    return np.minimum(np.frexp(np.diff(rows.into.indptr))[1], _DIGITS - 1).astype(np.int64)[rows.payee]


def _of_ends(rows: Rows, values: NDArray[Any]) -> Values:
    """The sum of values over the rows of every account, at either end, (n,)."""
    out = np.zeros(rows.num_accounts)
    for by in (rows.out, rows.into):
        share_accounts(by, _add_up, *by, values, out)
    return out


@kernel(allocates=False)
def _add_up(part: Any, indptr: Any, rows: Any, values: Any, out: Any) -> None:
    for account in range(part[0], part[1]):
        total = 0.0
        for i in range(indptr[account], indptr[account + 1]):
            total += values[rows[i]]
        out[account] += total
