"""Passed on: amounts that leave an account soon after they came, nearly whole.

A row into an account and a later row out of it, within five hours, thirty or a week, match where the second is 90 to
100 % of the first, in the same currency; each row matches once, the latest first; what an account pays itself matches
nothing. An account's matches are held against

    pairs within the window * share of matches among all other pairs of a row in and a row out,

drawn to the share over the whole table as if twenty pairs had it: an account whose amounts are all alike matches by
chance. Of a busy account the last 64 rows before each payment are looked at. A row has the surprise of its account,
shared by the rows that match in the window that surprises most (`row_share`). Cost: rows times those of a window, 64 at
most, and a sort of amounts; memory 24 bytes a row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.rows.rows import DAY, HOUR, Rows, Values, row_share, share_accounts, surprise

WINDOWS = (5 * HOUR, 30 * HOUR, 7 * DAY)
MOST_ROWS = 64  # of an account that are looked at before a payment
LEAST_SHARE = math.log(0.9) - 1e-9  # of an amount that is passed on; 90 of 100 is enough however it is rounded
_PRIOR_PAIRS = 20.0
_SHAPE = 100.0  # of the null: nearly Poisson
_DRAWN = 200_000


class Flow(NamedTuple):
    """Surprise of every account, (n,), and row, (m,); for rows out that match, the row in, (m,), else -1."""

    of_accounts: Values
    of_rows: Values
    came_by: NDArray[np.int64]


def flows(rows: Rows) -> Flow:
    """How surprisingly much of what came to every account was passed on, by the most telling window."""
    found = Flow(np.zeros(rows.num_accounts), np.zeros(len(rows)), np.full(len(rows), -1))
    windows = np.array(rows.windows(WINDOWS))
    values, matched = (rows.time, rows.comparable), (found.of_accounts, found.came_by)
    share_accounts(rows.out, _match, rows.into, rows.out, values, windows, fitting_share(rows), matched)
    num_matched = np.bincount(rows.payer[found.came_by >= 0], minlength=rows.num_accounts)
    _share_rows(rows.payer, num_matched, *found)
    return found


def fitting_share(rows: Rows) -> float:
    """Share of pairs of amounts of which the second is 90 to 100 % of the first, by drawn ones, one at least."""
    amounts = rows.comparable[np.isfinite(rows.comparable)]
    if not len(amounts):
        return 0.0
    first, second = np.random.default_rng(0).choice(amounts, (2, _DRAWN))
    return max(1.0 / _DRAWN, float(np.mean((second - first >= LEAST_SHARE) & (second <= first))))


@kernel(allocates=False)
def fits(came: float, left: float) -> bool:
    """Whether the second of two log amounts is 90 to 100 % of the first; False where there is none."""
    return LEAST_SHARE <= left - came <= 0.0


@kernel
def _num_fitting(came: Any, left: Any) -> int:
    """Number of pairs of log amounts, each sorted, NaN last, that fit."""
    low, high, total = 0, 0, 0
    for value in left[: np.count_nonzero(~np.isnan(left))]:
        while low < len(came) and came[low] < value:
            low += 1
        while high < len(came) and came[high] <= value - LEAST_SHARE:
            high += 1
        total += max(0, high - low)
    return total


@kernel
def _match(part: Any, into: Any, out: Any, values: Any, windows: Any, usual_share: float, matched: Any) -> None:
    """Matches rows out with rows in, account by account; the window that surprises most stays."""
    (in_ptr, in_rows), (out_ptr, out_rows), (time, amount), (of_accounts, came_by) = into, out, values, matched
    for account in range(part[0], part[1]):
        came, left = in_rows[in_ptr[account] : in_ptr[account + 1]], out_rows[out_ptr[account] : out_ptr[account + 1]]
        if len(came) < 2 or len(left) < 2:
            continue
        all_fitting = -1
        for window in windows:
            is_used = np.zeros(len(came), np.bool_)
            by = np.full(len(left), -1)
            num_pairs, num_fitting, num_matched, low, high = 0, 0, 0, 0, 0
            for i in range(len(left)):
                row = left[i]
                while high < len(came) and came[high] < row:
                    high += 1
                while low < high and time[came[low]] < time[row] - window:
                    low += 1
                for j in range(high - 1, max(low, high - MOST_ROWS) - 1, -1):
                    num_pairs += 1
                    if fits(amount[came[j]], amount[row]):
                        num_fitting += 1
                        if not is_used[j] and by[i] < 0:
                            is_used[j], by[i] = True, came[j]
                            num_matched += 1
            if num_matched < 2:
                continue
            if all_fitting < 0:
                all_fitting = _num_fitting(np.sort(amount[came]), np.sort(amount[left]))
            others = max(0.0, float(len(came)) * len(left) - num_pairs)
            share = (max(0, all_fitting - num_fitting) + _PRIOR_PAIRS * usual_share) / (others + _PRIOR_PAIRS)
            value = surprise(num_matched, num_pairs * share, _SHAPE) - math.log(len(windows))
            if value > of_accounts[account]:
                of_accounts[account] = value
                came_by[left] = by


@kernel(allocates=False)
def _share_rows(payer: Any, num_matched: Any, of_accounts: Any, of_rows: Any, came_by: Any) -> None:
    for row in range(len(payer)):
        if came_by[row] >= 0:
            shared = row_share(of_accounts[payer[row]], 2.0 * num_matched[payer[row]], len(payer))
            for either in (row, came_by[row]):
                of_rows[either] = max(of_rows[either], shared)
