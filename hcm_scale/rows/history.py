"""Unlike its own history: rows whose amount is far from what their payer, and their payee, usually see.

    deviation(row) = |log amount - median of the account's other rows| / spread * sqrt((k - 1) / (k + 1))

for the k rows of the payer, and the same for the payee where it has at least four, so that a shop's usual ticket or a
landlord's usual rent is not strange, and for rows of the same pair a week away or more where there are two, in units of
the payer's spread: a supplier whose invoices are larger than others' is not strange either. A row has the smallest of
the three. What is paid again, by the same payer to the same payee, the same amount to a tenth, at two other such times,
deviates by nothing: a salary, or a standing order, is history itself. The spread is that of the account's own amounts
(median absolute deviation), drawn to the usual one as if five rows had it. Currencies are compared by themselves: each
has its own median taken off first. Rows without an amount are as if they were not there.

An account's evidence is how many of its rows, at either end, are among the first e^-3, e^-4 or e^-5 of all rows, have
an amount that the pair had within a day before, where it has no habit of that, or are negative, as refunds are: against
how many are so of like rows, whose payees receive about as often: a shop's tickets are less regular than a
rent. The most surprising of the five counts: many odd rows say more than one that is very odd. The shape of the null
(rows.py) is the largest at which no more than a twentieth of the accounts looks strange. False alarms: one who pays
rarely, and each time another amount.

A category is new for a payer that had none of it in its first f rows, five at least. Of the n rows since then up to one
of that category, k are of it. With a rate that is drawn to that of all rows, P, as if by four rows more, their number
would be beta-binomial, and the rows and categories that the payer had are so many tries:

    X ~ BetaBinomial(n, 4 P, f + 4 (1 - P)),    value(row) = -log P(X >= k) - log(rows so far) - log(categories so far)

The most that a payer's rows say counts for it, less the
choice between this and odd amounts; a row has its share of what the k rows say (`row_share`). Cost: a sort of the
amounts of each account, and of the pairs; memory 72 bytes a row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_slices
from hcm_scale.rows.rows import DAY, NO_CATEGORY, ByAccount, Rows, Values, row_share, share_accounts, surprises

_CUTS = (3.0, 4.0, 5.0)  # surprise of a row's rank from which on it is odd
NUM_CUTS = len(_CUTS) + 2  # and two sorts of rows
_SHAPES = (100.0, 30.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5)
_MOST_USUAL = -math.log(0.05) + 0.2  # surprise of the 95 % quantile of accounts
_PRIOR_ROWS = 5.0
_USUAL_SPREAD = 0.7  # of log amounts, where no account shows one
_SOME_ROWS = 4
_APART, _SAME = 7 * DAY, 0.1  # seconds, and log amounts, of payments that recur
_EQUAL = 1e-3  # log amounts of payments that are the same
TWICE, NEGATIVE = 1, 2  # sorts of odd rows
_REGULAR = 0.25  # share of the pair's rows at other times that are the same
_FAR_APART = 13 * DAY  # of those that no burst has: about the longest window
_SOME_APART = 2  # rows of a pair that show what is usual for it
_DRAWN = 64  # rows of a pair that are looked at
_SOME_BEFORE, _PRIOR_OF_CATEGORY = 5, 4.0  # rows of a payer without a category; rows that have it as all do
_STEP = 0.1  # nats, of the table of ranks
_DIGITS = 20  # classes of accounts by their number of rows
_PRIOR_OF_CLASS = 50.0  # rows


class History(NamedTuple):
    """Surprise of every account, (n,); deviation of every row, (m,); log amount over the payer's usual one, (m,).

    `cuts` say which rows are odd, and how many are usual (`_count_odd`). Rows that are `regular`, (m,), are paid by the
    same pair at another time too: no burst has them (burst.py). `sort`, (m,), is `TWICE` or `NEGATIVE`, else 0.
    """

    of_accounts: Values
    of_rows: Values
    over_usual: Values
    cuts: Values
    is_regular: NDArray[np.bool_]
    sort: NDArray[np.uint8]
    new_category: Values  # what each row's category says of it, (m,)

    @property
    def surprises(self) -> Values:
        """-log of the share of rows that deviate as much, or are of the same sort, (m,); 0 of those that do neither.

        Or what the row's category says, where that is more.
        """
        other = np.maximum(rank_surprise(self.of_rows), surprise_of_sort(self.sort, self.cuts))
        return np.maximum(other, self.new_category)


def history(rows: Rows, before: Rows | None = None, cuts: Values | None = None) -> History:
    """How unlike their own histories accounts and rows are; 0 of rows without an amount.

    `before` are earlier rows of the same accounts, which are history too and are not judged; `cuts` are those of an
    earlier table, by which odd rows are told.
    """
    if before is None:
        deviation, over_usual, of_pairs = _of_rows(rows)
        whole, is_own = rows, np.ones(len(rows), np.bool_)
    else:
        whole, is_own = before.joined(rows)
        deviation, over_usual, of_pairs = _of_rows(whole)
        deviation, over_usual, of_pairs = deviation[is_own], over_usual[is_own], of_pairs.where(is_own)
    sort = _sorts(rows, of_pairs)
    has_amount = ~np.isnan(rows.amount)
    some = rows if has_amount.all() else rows.where(has_amount)
    of_accounts, cuts = _count_odd(some, deviation[has_amount], sort[has_amount], cuts)
    of_payers, of_categories = (values[is_own] for values in new_categories(whole, category_shares(whole), len(whole)))
    if of_payers.any():
        np.maximum.at(of_accounts, rows.payer, of_payers - math.log(2.0))
    return History(of_accounts, deviation, over_usual, cuts, of_pairs.is_regular, sort, of_categories)


def category_shares(rows: Rows) -> Values:
    """The share of rows of every category among those that have one, (256,)."""
    counts = np.bincount(rows.category, minlength=NO_CATEGORY + 1)[:NO_CATEGORY]
    return np.append(np.maximum(counts, 0.5) / max(1, counts.sum()), 1.0)


def new_categories(rows: Rows, shares: Values, num_all: int) -> tuple[Values, Values]:
    """Of every row, (m,): what it and those before it say of its payer by their category, and its share of that.

    `shares` are those of a whole table of `num_all` rows.
    """
    value, share = np.zeros(len(rows)), np.zeros(len(rows))
    if rows.has_times and (rows.category != NO_CATEGORY).any():
        share_accounts(rows.out, _find_new, *rows.out, rows.category, shares, float(num_all), (value, share))
    return value, share


@kernel
def _find_new(part: Any, indptr: Any, rows: Any, category: Any, shares: Any, num_all: float, out: Any) -> None:
    """Fills what rows of categories that are new to their payers say, and their shares of that."""
    value, share = out
    first, seen = np.zeros(len(shares), np.int64), np.zeros(len(shares), np.int64)
    for account in range(part[0], part[1]):
        seen[:] = 0
        num_rows, num_seen = 0, 0
        for row in rows[indptr[account] : indptr[account + 1]]:
            kind = category[row]
            if kind == NO_CATEGORY:
                continue
            if seen[kind] == 0:
                first[kind] = num_rows
                num_seen += 1
            seen[kind] += 1
            num_rows += 1
            if first[kind] < _SOME_BEFORE:
                continue
            usual = _PRIOR_OF_CATEGORY * shares[kind]
            others = first[kind] + _PRIOR_OF_CATEGORY - usual
            nats = _beta_surprise(float(seen[kind]), float(num_rows - first[kind]), usual, others)
            value[row] = max(0.0, nats - math.log(num_rows) - math.log(num_seen))
            share[row] = row_share(value[row], float(seen[kind]), num_all)


@kernel(allocates=False)
def _beta_surprise(count: float, size: float, a: float, b: float) -> float:
    """-log P(X >= count), X beta-binomial of `size` with a and b; 0 up to the mean."""
    if count * (a + b) <= size * a:
        return 0.0
    log_choices = math.lgamma(size + 1.0) - math.lgamma(count + 1.0) - math.lgamma(size - count + 1.0)
    log_ways = math.lgamma(count + a) + math.lgamma(size - count + b) - math.lgamma(size + a + b)
    log_chance = log_choices + log_ways + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    ratio = (size - count) * (count + a) / ((count + 1.0) * max(size - count - 1.0 + b, 1e-9))  # of the next chance
    return max(0.0, math.log(1.0 - min(ratio, 0.99)) - log_chance)


def _of_rows(rows: Rows) -> "tuple[Values, Values, PairHistory]":
    """Deviation of every row, its log amount over its payer's usual one, (m,) each, and what its pair says."""
    has_amount = np.isfinite(rows.amount)
    if not has_amount.all():
        out = np.zeros(len(rows)), np.zeros(len(rows)), _no_pairs(len(rows))
        *values, of_pairs = _of_rows(rows.where(has_amount))
        for whole, some in zip((*out[:2], *out[2]), (*values, *of_pairs), strict=True):
            whole[has_amount] = some
        return out
    amount = rows.amount - _currency_medians(rows)[rows.currency]
    by_payer, over_usual, spread = _deviations(rows.out, rows.payer, amount)
    by_payee, _, _ = _deviations(rows.into, rows.payee, amount)
    by_payee[(np.diff(rows.into.indptr) < _SOME_ROWS)[rows.payee]] = np.inf
    of_pairs = _compare_with_pair(rows)
    deviation = np.fmin(np.minimum(by_payer, by_payee), np.abs(of_pairs.over) / spread[rows.payer])
    deviation[of_pairs.is_again] = 0.0
    return deviation, over_usual, of_pairs


def _sorts(rows: Rows, of_pairs: "PairHistory") -> NDArray[np.uint8]:
    """Which rows are second ones and no habit, and which are negative, (m,)."""
    sort = np.where(of_pairs.is_twice & ~of_pairs.is_habit, TWICE, 0).astype(np.uint8)
    sort[np.isneginf(rows.amount)] = NEGATIVE
    return sort


def surprise_of_sort(sort: NDArray[np.uint8], cuts: Values) -> Values:
    """-log of the share of rows of this sort, (m,), 0 without one; `cuts` are those of a history."""
    return np.append(0.0, -np.log(np.clip(cuts[len(_CUTS) :, 0], 1e-9, 1.0)))[sort]


class PairHistory(NamedTuple):
    """By others of a row's pair: whether it is paid again, is regular, is the second within a day, (m,) each.

    `over` is the log amount over that of the pair at other times, or NaN.
    """

    is_again: NDArray[np.bool_]
    is_regular: NDArray[np.bool_]
    is_twice: NDArray[np.bool_]
    is_habit: NDArray[np.bool_]
    over: Values

    def where(self, chosen: NDArray[np.bool_]) -> "PairHistory":
        is_again, is_regular, is_twice, is_habit = (values[chosen] for values in self[:4])
        return PairHistory(is_again, is_regular, is_twice, is_habit, self.over[chosen])


def _no_pairs(size: int) -> PairHistory:
    is_again, is_regular, is_twice, is_habit = np.zeros((4, size), np.bool_)
    return PairHistory(is_again, is_regular, is_twice, is_habit, np.full(size, np.nan))


def _compare_with_pair(rows: Rows) -> PairHistory:
    """Of all rows, by others of the same pair."""
    out = _no_pairs(len(rows))
    if rows.has_times:
        share_accounts(rows.out, _find_again, *rows.out, rows.payee, rows.time, rows.comparable, out)
    return out


@kernel
def _find_again(part: Any, indptr: Any, rows: Any, payee: Any, time: Any, amount: Any, out: Any) -> None:
    """Compares rows with those of the same pair, of those that are looked at."""
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        own = own[np.argsort(payee[own], kind="mergesort")]  # rows of a pair stay in the order of time
        low = 0
        while low < len(own):
            high = low + 1
            while high < len(own) and payee[own[high]] == payee[own[low]]:
                high += 1
            if high > low + 1:
                _compare_within(own[low:high], payee, time, amount, out)
            low = high


@kernel
def _compare_within(own: Any, payee: Any, time: Any, amount: Any, out: Any) -> None:
    """Compares rows of a pair with each other."""
    _mark_twice(own, payee, time, amount, out[2])
    marked = own[out[2][own]]
    for row in marked:
        out[3][row] = _is_habit(marked, time, time[row])
    if time[own[-1]] - time[own[0]] < _APART:
        return
    drawn = own[:: max(1, len(own) // _DRAWN)]
    drawn = drawn[np.argsort(amount[drawn])]  # NaN last
    for row in own:
        _compare_with(drawn, time, amount, time[row], amount[row], row, out)


def find_twice(rows: Rows) -> NDArray[np.bool_]:
    """Whether the pair of a row has its amount within a day before, (m,)."""
    out = np.zeros(len(rows), np.bool_)
    share_accounts(rows.out, _find_twice, *rows.out, rows.payee, rows.time, rows.comparable, out)
    return out


def sorts_among(rows: Rows, own: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The sorts of some rows, (k,), rising, as if nothing were a habit."""
    sort, order = np.zeros(len(own), np.uint8), np.lexsort((rows.payee[own], rows.payer[own]))
    ends = rows.payer[own].astype(np.int64) * rows.num_accounts + rows.payee[own]
    is_twice = np.zeros(len(own), np.bool_)
    _mark_twice(order, ends, rows.time[own], rows.comparable[own], is_twice)
    sort[is_twice] = TWICE
    sort[np.isneginf(rows.amount[own])] = NEGATIVE
    return sort


@kernel
def _find_twice(part: Any, indptr: Any, rows: Any, payee: Any, time: Any, amount: Any, out: Any) -> None:
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        _mark_twice(own[np.argsort(payee[own], kind="mergesort")], payee, time, amount, out)


@kernel(allocates=False)
def _mark_twice(own: Any, payee: Any, time: Any, amount: Any, is_twice: Any) -> None:
    """Marks rows of a payer, by payee and time, whose amount the payee has within a day before."""
    for i in range(len(own)):
        for j in range(i - 1, max(-1, i - 1 - _DRAWN), -1):
            if payee[own[j]] != payee[own[i]] or time[own[i]] - time[own[j]] > DAY:
                break
            if abs(amount[own[i]] - amount[own[j]]) <= _EQUAL:
                is_twice[own[i]] = True
                break


@kernel(allocates=False)
def _is_habit(marked: Any, time: Any, when: float) -> bool:
    """Whether two of the marked rows of a pair, of those that are looked at, are a week away or more."""
    count = 0
    for other in marked[:: max(1, len(marked) // _DRAWN)]:
        count += abs(time[other] - when) >= _APART
    return count >= 2


@kernel(allocates=False)
def _compare_with(drawn: Any, time: Any, amount: Any, when: float, paid: float, row: int, out: Any) -> None:
    """Compares what is paid with rows in the order of their amounts."""
    is_again, is_regular, _, _, over = out
    num_apart, num_same, num_far, num_far_same = 0, 0, 0, 0
    for other in drawn:
        apart, is_same = abs(time[other] - when), abs(amount[other] - paid) <= _SAME
        if apart >= _APART and not math.isnan(amount[other]):
            num_apart += 1
            num_same += is_same
            num_far += apart >= _FAR_APART
            num_far_same += is_same and apart >= _FAR_APART
    is_again[row] = num_same >= 2
    is_regular[row] = num_far_same > 0 and num_far_same >= _REGULAR * num_far
    if num_apart < _SOME_APART:
        return
    count, middle = 0, 0.0
    for other in drawn:
        if abs(time[other] - when) >= _APART and not math.isnan(amount[other]):
            middle += 0.5 * amount[other] * ((count == (num_apart - 1) // 2) + (count == num_apart // 2))
            count += 1
    over[row] = (paid - middle) * math.sqrt(num_apart / (num_apart + 2.0))


class NewHistory(NamedTuple):
    """Of later rows, (m,): deviation, log amount over the payer's usual one, rows that say what is usual, and sort.

    `has_new_category` is whether the category says most, where that was asked for.
    """

    of_rows: Values
    over_usual: Values
    num_usual: NDArray[np.int64]
    sort: NDArray[np.uint8]
    has_new_category: NDArray[np.bool_] | None = None


def history_of_new(rows: Rows, new: Rows, of_pairs: PairHistory) -> NewHistory:
    """How unlike the histories that `rows` show later ones are; accounts that these do not have come after theirs."""
    some, num_accounts = rows.where(np.isfinite(rows.amount)), rows.num_accounts
    medians, by_end, amount = _currency_medians(some), [], np.where(np.isfinite(new.amount), new.amount, np.nan)
    for by, ends, fewest in ((some.out, new.payer, 1), (some.into, new.payee, _SOME_ROWS)):
        _, middle, spread = _usual_amounts(by, some.amount - medians[some.currency])
        at = np.minimum(ends, num_accounts)
        count, spread = np.append(np.diff(by.indptr), 0)[at], np.append(spread, 1.0)[at]
        over = amount - medians[new.currency] - np.append(middle, 0.0)[at]
        deviation = np.abs(over) / spread * np.sqrt(count / (count + 2.0))
        by_end.append((np.where(count >= fewest, deviation, np.inf), over, count, spread))
    deviation = np.fmin(np.minimum(by_end[0][0], by_end[1][0]), np.abs(of_pairs.over) / by_end[0][3])
    is_said = np.isfinite(deviation) & ~of_pairs.is_again
    return NewHistory(np.where(is_said, deviation, 0.0), *by_end[0][1:3], _sorts(new, of_pairs))


def compare_with_run(rows: Rows, new: Rows) -> PairHistory:
    """Of later rows, as `_compare_with_pair`, by the rows of the pair in the run; none is paid twice."""
    out, num_accounts = _no_pairs(len(new)), rows.num_accounts
    has_both = np.maximum(new.payer, new.payee) < num_accounts
    asked = np.zeros((2, num_accounts), np.bool_)
    asked[0, new.payer[has_both]] = asked[1, new.payee[has_both]] = True
    own = np.flatnonzero(asked[0, rows.payer] & asked[1, rows.payee])
    pairs = rows.payer[own].astype(np.int64) * num_accounts + rows.payee[own]
    order = np.lexsort((own, pairs))
    is_twice = np.zeros(len(own), np.bool_)
    _mark_twice(order, pairs, rows.time[own], rows.comparable[own], is_twice)
    marked = order[is_twice[order]]
    order = np.lexsort((rows.comparable[own], pairs))
    pair = np.where(has_both, new.payer.astype(np.int64) * num_accounts + new.payee, -1)
    groups = []
    for some in (order, marked):
        low, high = np.searchsorted(pairs[some], pair), np.searchsorted(pairs[some], pair, "right")
        groups.append((own[some], low, high))
    _find_before(groups[0], groups[1], (rows.time, rows.comparable), (new.time, new.comparable), out)
    return out


@kernel(allocates=False)
def _find_before(of_pairs: Any, of_marked: Any, of_run: Any, of_new: Any, out: Any) -> None:
    """Compares later rows with those of the pair in the run, of those that are looked at."""
    (own, low, high), (marked, first, last), (time, amount), (when, paid) = of_pairs, of_marked, of_run, of_new
    for row in range(len(when)):
        drawn = own[low[row] : high[row] : max(1, (high[row] - low[row]) // _DRAWN)]
        if len(drawn):
            _compare_with(drawn, time, amount, when[row], paid[row], row, out)
            out[3][row] = _is_habit(marked[first[row] : last[row]], time, when[row])


def rank_surprise(values: Values) -> Values:
    """-log of the share of values that are as large; 0 of those that are 0.

    >>> rank_surprise(np.array([0.0, 3.0, 1.0, 0.0])).round(2).tolist()
    [0.0, 1.39, 0.69, 0.0]
    """
    ordered, out = np.sort(values), np.empty(len(values))

    def fill(part: slice) -> None:
        as_large = len(values) - np.searchsorted(ordered, values[part], side="left")
        out[part] = np.where(values[part] > 0.0, -np.log(as_large / len(values)), 0.0)

    run_in_slices(len(values), fill)
    return out


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


def _deviations(by: ByAccount, ends: NDArray[Any], amount: Values) -> tuple[Values, Values, Values]:
    """Deviation of every row from its account's others, log amount over their median, (m,), and spreads, (n,)."""
    over, _, spread = _usual_amounts(by, amount)
    counts = np.diff(by.indptr)
    factor = np.sqrt(np.maximum(counts - 1.0, 0.0) / (counts + 1.0)) / spread
    return np.abs(over) * factor[ends], over, spread


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


def _count_odd(rows: Rows, deviation: Values, sort: NDArray[np.uint8], cuts: Values | None) -> tuple[Values, Values]:
    """Surprise of the number of odd rows of every account, and the cuts, as given or as these rows show them.

    A cut is the deviation from which on a row is odd, or the share of rows of a sort, the shape of the null, and the
    rates of odd rows by class.
    """
    classes, some, out = _classes(rows), rows.num_rows >= 3, np.zeros(rows.num_accounts)
    used = np.zeros((NUM_CUTS, 2 + _DIGITS)) if cuts is None else cuts
    if cuts is None and len(rows):
        used[: len(_CUTS), 0] = np.quantile(deviation, -np.expm1(-np.array(_CUTS)), method="higher")
        used[len(_CUTS) :, 0] = np.maximum(np.bincount(sort, minlength=3)[1:], 1) / len(rows)  # none is rare
    sizes = np.bincount(classes, minlength=_DIGITS)
    for number, own in enumerate(used):
        if number < len(_CUTS):
            is_odd, share = (deviation >= own[0]) & (deviation > 0.0), math.exp(-_CUTS[number])
        else:
            is_odd, share = sort == number - len(_CUTS) + 1, own[0]
        if cuts is None:
            of_class = np.bincount(classes[is_odd], minlength=_DIGITS)
            own[2:] = (of_class + _PRIOR_OF_CLASS * share) / (sizes + _PRIOR_OF_CLASS)
        counts, means = _of_ends(rows, is_odd), _of_ends(rows, own[2:][classes])
        for shape in _SHAPES if cuts is None else own[1:2]:
            own[1], values = shape, surprises(counts, means, shape)
            if not some.any() or np.quantile(values[some], 0.95) <= _MOST_USUAL:
                break
        np.maximum(out, values - math.log(NUM_CUTS), out=out)
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
