"""Chains: amounts that go from account to account, nearly whole, each paid by the one who was paid before.

Row s may follow row r where the payer of s is the payee of r, s comes within the window after r (eight hours, thirty,
or a week), and pays 90 to 100 % of it in the same currency; what an account pays itself follows nothing. How surprising
a step is depends on the account: with `mean` rows in the window that would fit by chance,

    step(s) = -log P(Poisson(mean) > 0),   mean = rows in the window * share of the account's other rows in that fit,

the share drawn to that of the whole table as if ten rows had it. A hub, which always has something that fits, adds
nothing; one with 64 rows in the window or more is not asked. A chain's surprise is the sum of its steps, and every row
has that of the best chain through it: the best that ends in it, and the best way on. Where a chain comes back to an
account that it passed, the surprise of coming back there, log(rows / rows into it), is added to all rows between.

An account has that of its best row, less the logarithm of its number of rows. Rows are visited once in the order of
time for each window. Memory: 60 bytes a row and window.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_concurrently
from hcm_scale.rows.flow import MOST_ROWS, fits, fitting_share
from hcm_scale.rows.rows import DAY, HOUR, Rows, Values, largest

WINDOWS = (8 * HOUR, 30 * HOUR, 7 * DAY)
PRIOR_ROWS = 10.0
_MOST_STEPS = 16  # of a chain that comes back
MOST_TOLD = 64  # rows of a chain that are told, either way
DRAWN = 64  # rows of an account that show how many fit


class Chain(NamedTuple):
    """Surprise of every account, (n,), and row, (m,), and the rows before and after each in its best chain, or -1."""

    of_accounts: Values
    of_rows: Values
    before: NDArray[np.int64]
    after: NDArray[np.int64]


def chain_through(before: NDArray[Any], after: NDArray[Any], row: int) -> list[int]:
    """The rows of the chain through a row, in order, by the rows before and after each, -1 for none.

    >>> chain_through(np.array([-1, 0, -1, 1]), np.array([1, 3, -1, -1]), 1)
    [0, 1, 3]
    """
    steps = np.empty(3 * MOST_TOLD, np.int64)
    first, end = _walk(before, after, row, steps)
    return steps[first:end].tolist()


@kernel(allocates=False)
def _walk(before: Any, after: Any, row: int, steps: Any) -> Any:
    """Fills the steps from the middle on, either way; where they begin and end."""
    first, end = MOST_TOLD, MOST_TOLD + 1
    steps[first] = row
    while end - first < MOST_TOLD and 0 <= before[steps[first]] < steps[first]:  # a file of others may not fall
        first -= 1
        steps[first] = before[steps[first + 1]]
    while end - first < 2 * MOST_TOLD and after[steps[end - 1]] > steps[end - 1]:
        steps[end] = after[steps[end - 1]]
        end += 1
    return first, end


def chains(rows: Rows) -> Chain:
    """The most surprising chain through every row, over all windows."""
    windows = rows.windows(WINDOWS)
    share = fitting_share(rows)
    tasks = [lambda window=window: _chains_within(rows, window, share) for window in windows]
    found = run_concurrently(tasks) if tasks else []
    best = np.zeros(len(rows))
    before, after = np.full((2, len(rows)), -1)
    for value, back, ahead in found:
        is_better = value > best
        for out, values in ((best, value), (before, back), (after, ahead)):
            out[is_better] = values[is_better]
    np.maximum(best - math.log(max(1, len(windows))), 0.0, out=best)
    of_accounts = np.maximum(largest(rows, best) - np.log(np.maximum(rows.num_rows, 1)), 0.0)
    return Chain(of_accounts, best, before, after)


def _chains_within(rows: Rows, window: float, share: float) -> tuple[Values, NDArray[np.int64], NDArray[np.int64]]:
    """Surprise of the best chain through every row, and the rows before and after it there, or -1."""
    score, step, onward, back_again = np.zeros((4, len(rows)))
    before, after = np.full((2, len(rows)), -1)
    seen = np.zeros(rows.num_accounts, np.int64)
    of_rows = rows.payer, rows.payee, rows.time, rows.comparable
    _follow(of_rows, rows.into, seen, window, share, (score, step, before))
    _lead_on(before, step, onward, after)
    _come_back(rows.payer, rows.payee, before, score, np.diff(rows.into.indptr), back_again)
    return np.maximum(score + onward, back_again), before, after


@kernel(allocates=False)
def best_before(row: int, into: Any, time: Any, amount: Any, window: float, score: Any) -> Any:
    """Of rows `into` the payer of a row: how many are in the window before it, and the one of the best chain that fits.

    -1 where none fits, or where they are too many to be asked.
    """
    count, best = 0, -1
    while count < min(len(into), MOST_ROWS) and time[into[len(into) - 1 - count]] >= time[row] - window:
        other = into[len(into) - 1 - count]
        count += 1
        if fits(amount[other], amount[row]):
            best = other if best < 0 or score[other] > score[best] else best
    return count, -1 if count == MOST_ROWS else best


@kernel(allocates=False)
def _follow(of_rows: Any, into: Any, seen: Any, window: float, usual_share: float, out: Any) -> None:
    """Fills the surprise of the best chain that ends in each row, its last step, and the row before."""
    (payer, payee, time, amount), (in_ptr, in_rows), (score, step, before) = of_rows, into, out
    for row in range(len(payer)):
        begin, had = in_ptr[payer[row]], seen[payer[row]]  # rows into an account stand in the order of time
        seen[payee[row]] += 1
        count, best = best_before(row, in_rows[begin : begin + had], time, amount, window, score)
        if best < 0:
            continue
        size = in_ptr[payer[row] + 1] - begin
        others, fitting = 0, 0
        for k in range(0, size, max(1, size // DRAWN)):
            if k < had - count or k >= had:
                others += 1
                fitting += fits(amount[in_rows[begin + k]], amount[row])
        mean = count * (fitting + PRIOR_ROWS * usual_share) / (others + PRIOR_ROWS)
        step[row] = -math.log(-math.expm1(-mean))
        score[row], before[row] = score[best] + step[row], best


@kernel(allocates=False)
def _lead_on(before: Any, step: Any, onward: Any, after: Any) -> None:
    """Fills the surprise of the best way on from each row, and the next row on it."""
    for row in range(len(before) - 1, -1, -1):
        other = before[row]
        if other >= 0 and step[row] + onward[row] > onward[other]:
            onward[other], after[other] = step[row] + onward[row], row


@kernel(allocates=False)
def _come_back(payer: Any, payee: Any, before: Any, score: Any, num_in: Any, out: Any) -> None:
    """Fills, for rows of chains that come back to an account, the surprise of that chain and of coming back."""
    for row in range(len(before)):
        start = row
        for _ in range(_MOST_STEPS):
            start = before[start]
            if start < 0 or payer[start] == payee[row]:
                break
        if start < 0 or payer[start] != payee[row]:
            continue
        value = score[row] - score[start] + math.log(len(before) / num_in[payee[row]])
        other = row
        while True:
            out[other] = max(out[other], value)
            if other == start:
                break
            other = before[other]
