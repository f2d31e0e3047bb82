"""Payments in the order of time, and what the kinds of evidence about them share.

A row has a payer and a payee (accounts by number), a time in seconds, an amount, and a currency by number. `Rows.of`
sorts by time, rows of equal time staying in their order. Amounts are logarithms from here on: -inf where it is below 0,
as of a refund, NaN where there is none, or where it is 0 or infinite; such rows still count in bursts.

Every kind turns counts into a surprise in nats, -log P(a usual account has as many). Usual counts are those of a
Poisson distribution whose mean differs from account to account by a gamma of some shape: human activity comes in
bursts, and a shape that the table itself shows keeps it from looking strange.

`share_accounts` calls a kernel for ranges of accounts that have about as many rows each. Memory: 30 bytes a row, and 8
for each index by account.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import share_parts

HOUR, DAY = 3_600.0, 86_400.0
_PARTS_PER_THREAD = 16
_MOST = 1.08  # what rows that belong together can say, of the most that the rank of a single row can
COLUMNS = ("payer", "payee", "time", "amount", "currency", "category")  # of rows
NO_CATEGORY = 255
_APART = 2_000.0  # of log amounts in two currencies: more than two amounts can be
Values = NDArray[np.float64]
Numbers = NDArray[np.int64]


class ByAccount(NamedTuple):
    """The rows of each account in the order of time: those of account v are rows[indptr[v] : indptr[v + 1]]."""

    indptr: Numbers
    rows: Numbers

    def of(self, account: int) -> Numbers:
        return self.rows[self.indptr[account] : self.indptr[account + 1]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows by time: payer, payee, seconds, logarithm of the amount, numbers of currency and category; (m,) each."""

    num_accounts: int
    payer: NDArray[Any]
    payee: NDArray[Any]
    time: Values
    amount: Values
    currency: NDArray[np.uint8]
    category: NDArray[np.uint8]

    @staticmethod
    def of(
        num_accounts: int,
        payer: NDArray[Any],
        payee: NDArray[Any],
        time: NDArray[Any],
        amount: NDArray[Any] | None = None,
        currency: NDArray[np.uint8] | None = None,
        category: NDArray[np.uint8] | None = None,
    ) -> "Rows":
        """The rows in the order of their times.

        >>> Rows.of(3, np.array([0, 1]), np.array([1, 2]), np.array([5.0, 4.0]), np.array([1.0, -2.0])).amount.tolist()
        [-inf, 0.0]
        """
        order = np.argsort(time, kind="stable")
        logs = log_amounts(np.full(len(order), np.nan) if amount is None else np.asarray(amount, np.float64))
        codes = np.zeros(len(order), np.uint8) if currency is None else currency
        times = np.asarray(time, np.float64)
        sorts = np.full(len(order), NO_CATEGORY, np.uint8) if category is None else category
        return Rows(num_accounts, payer[order], payee[order], times[order], logs[order], codes[order], sorts[order])

    def where(self, chosen: NDArray[np.bool_]) -> "Rows":
        """Some of the rows."""
        return Rows(self.num_accounts, *(getattr(self, name)[chosen] for name in COLUMNS))

    def joined(self, later: "Rows") -> tuple["Rows", NDArray[np.bool_]]:
        """These rows and others of the same accounts in the order of time, and which are the others."""
        columns = [np.concatenate([getattr(self, name), getattr(later, name)]) for name in COLUMNS]
        order = np.argsort(columns[2], kind="stable")
        return Rows(self.num_accounts, *(column[order] for column in columns)), order >= len(self)

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def out(self) -> ByAccount:
        """Rows by payer."""
        return by_account(self.payer, self.num_accounts)

    @cached_property
    def into(self) -> ByAccount:
        """Rows by payee."""
        return by_account(self.payee, self.num_accounts)

    @cached_property
    def num_rows(self) -> Numbers:
        """Rows of each account, at either end, (n,)."""
        counts: Numbers = np.diff(self.out.indptr) + np.diff(self.into.indptr)
        return counts

    @cached_property
    def comparable(self) -> Values:
        """Log amounts, far from each other in two currencies, (m,); NaN if below 0, or where an account pays itself."""
        has_any = (self.payer != self.payee) & np.isfinite(self.amount)
        return np.where(has_any, self.amount + _APART * self.currency, np.nan)

    @property
    def has_times(self) -> bool:
        """Whether rows are at more than one time; a table that has no time is at one."""
        return len(self) > 0 and bool(self.time[-1] > self.time[0])

    def windows(self, lengths: tuple[float, ...]) -> list[float]:
        """Those lengths of time that the table can tell; none where all rows are at one time."""
        return [length for length in lengths if self.has_times and length >= self.resolution]

    @cached_property
    def resolution(self) -> float:
        """Seconds between two times that differ, as they mostly do: a day where the table has dates alone."""
        steps = np.diff(self.time)
        steps = steps[steps > 0.0]
        return float(np.quantile(steps, 0.1)) if len(steps) else DAY


def beyond(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """Which rows others do not hold, (m,): of rows that are equal in all columns, as many as there are more of."""
    kept = np.ones(len(rows), np.bool_)
    if not len(others):
        return kept
    own = np.flatnonzero((rows.time >= np.nanmin(others.time)) & (rows.time <= np.nanmax(others.time)))
    if not len(own):
        return kept
    names = "payer", "payee", "time", "amount", "currency"
    parts = [(getattr(others, name), getattr(rows, name)[own]) for name in names]
    columns = [np.concatenate(part) + 0.0 for part in parts]
    order = np.lexsort([np.arange(len(columns[0])), *columns])  # of equal ones the others come first
    keys = np.stack(columns, axis=1)[order].view(np.int64)  # NaN equals NaN
    group = np.cumsum(np.append(True, (keys[1:] != keys[:-1]).any(axis=1))) - 1
    place = np.arange(len(order)) - np.searchsorted(group, group)
    num_others = np.bincount(group, weights=order < len(others))[group]
    is_own = order >= len(others)
    kept[own[order[is_own] - len(others)]] = place[is_own] >= 2 * num_others[is_own]
    return kept


def log_amounts(amounts: Values) -> Values:
    """Logarithms of amounts; -inf of those below 0, NaN of those that are 0 or infinite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.where((amounts > 0.0) & (amounts < np.inf), np.log(amounts), np.nan)
    logs[(amounts < 0.0) & (amounts > -np.inf)] = -np.inf
    return logs


def by_account(ends: NDArray[Any], num_accounts: int) -> ByAccount:
    """The rows of each account by one of their ends, in order.

    >>> by_account(np.array([1, 0, 1]), 2).rows.tolist()
    [1, 0, 2]
    """
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=num_accounts))])
    rows = np.empty(len(ends), np.int64)
    _place(ends, indptr[:-1].copy(), rows)
    return ByAccount(indptr, rows)


@kernel
def _place(ends: Any, at: Any, rows: Any) -> None:
    for row in range(len(ends)):
        account = ends[row]
        rows[at[account]] = row
        at[account] += 1


def share_accounts(by: ByAccount, work: Callable[..., Any], *arguments: Any) -> None:
    """Calls work((first, last), *arguments) for ranges of accounts that have about as many rows each."""
    threads, num_accounts = numba.get_num_threads(), len(by.indptr) - 1
    wanted = np.linspace(0, by.indptr[-1] + num_accounts, threads * _PARTS_PER_THREAD + 1)
    bounds = np.unique(np.searchsorted(by.indptr + np.arange(num_accounts + 1), wanted))
    share_parts(threads, itertools.pairwise(bounds.tolist()), lambda _, part: work(part, *arguments))


@kernel(allocates=False)
def surprise(count: float, mean: float, shape: float) -> float:
    """-log P(X >= count), X a Poisson count whose mean varies by a gamma of this shape; 0 up to the mean."""
    if count <= mean or count == 0.0:
        return 0.0
    p = max(mean, 1e-9) / (max(mean, 1e-9) + shape)
    log_choices = math.lgamma(count + shape) - math.lgamma(shape) - math.lgamma(count + 1.0)
    ratio = (count + shape) / (count + 1.0) * p  # of the next chance to this one; it falls from there on
    return max(0.0, math.log(1.0 - min(ratio, 0.999)) - log_choices - shape * math.log1p(-p) - count * math.log(p))


@kernel
def surprises(counts: Any, means: Any, shape: float) -> Any:
    """`surprise` of every count, (n,)."""
    out = np.zeros(len(counts))
    for i in range(len(counts)):
        out[i] = surprise(counts[i], means[i], shape)
    return out


@kernel(allocates=False)
def row_share(value: float, num_rows: float, num_all: float) -> float:
    """What a surprise says of each of the rows that make it: hardly more than chance can bring about in all rows."""
    return max(0.0, min(value, _MOST * math.log(num_all)) - math.log(num_rows))


def largest(rows: Rows, values: Values) -> Values:
    """The largest of a number over the rows of each account, at either end, (n,); 0 without rows."""
    out = np.zeros(rows.num_accounts)
    for ends in (rows.payer, rows.payee):
        _largest(ends, values, out)
    return out


@kernel(allocates=False)
def _largest(ends: Any, values: Any, out: Any) -> None:
    for row in range(len(ends)):
        out[ends[row]] = max(out[ends[row]], values[row])
