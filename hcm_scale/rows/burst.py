"""Bursts: many rows of an account within an hour, a day, a week or two, where few are usual.

Time is first made even: a second in which all rows together are twice as many counts as two (`even_time`), so that
everybody's month end, weekday and hour are taken out. Windows are lengths of that time. The most rows of an account in
any window of a length, in or out, are held against the larger of

- its own rate, without the window, since its first row: a new account is busy from then on, one that wakes up is not;
- what its third busiest other window of that length leads to expect: an employer who pays salaries every month has a
  rhythm, not a burst.

Rows that the same pair has at another time too, of the same amount, are left out where history knows them
(`History.is_regular`): two paydays in two months are no bursts either. The same is asked of rows that join two accounts
for the first time. The surprise is less the logarithm of the number of windows that were tried. The null's shape is how
much more often rows of one account share a window, over all accounts but the extreme ones, than they would by chance. A
row has the surprise of the burst that it is part of, shared by its rows. Cost: a few passes over the rows for each
length; memory 33 bytes a row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_slices
from hcm_scale.rows.rows import DAY, HOUR, ByAccount, Rows, Values, row_share, share_accounts, surprise

WINDOWS = (HOUR, 6 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY)  # three weeks may hold two ends of a month, or one
_UNEVEN = 0.9  # share of the even time that follows the rows; the rest is plain time
_KNOWN_SHARE = 0.15  # of the table's time, at its beginning: partners met there may have been known before
_FEWEST = 3  # rows that make a burst
_LEAST_EXCESS, _MOST_EXCESS = 0.02, 2.0  # of pairs of rows in one window, over what chance gives


class Burst(NamedTuple):
    """Surprise of every account, (n,), and row, (m,); the first and last row of each account's burst, (n, 2), or -1.

    `shapes` are those of the null for rows out and in, (2, lengths).
    """

    of_accounts: Values
    of_rows: Values
    ends: NDArray[np.int64]
    shapes: Values


def bursts(rows: Rows, is_regular: NDArray[np.bool_] | None = None) -> Burst:
    """The most surprising burst of every account, of rows in or out; of those that are not regular."""
    if is_regular is not None and is_regular.any() and rows.has_times:
        kept = np.flatnonzero(~is_regular)
        some = bursts(rows.where(~is_regular))
        of_rows = np.zeros(len(rows))
        of_rows[kept] = some.of_rows
        ends = np.where(some.ends >= 0, np.append(kept, -1)[some.ends], -1)
        return Burst(some.of_accounts, of_rows, ends, some.shapes)
    lengths = window_lengths(rows)
    shapes = np.ones((2, len(lengths)))
    found = Burst(np.zeros(rows.num_accounts), np.zeros(len(rows)), np.full((rows.num_accounts, 2), -1), shapes)
    if len(rows) < _FEWEST or not rows.has_times:
        return found
    time = even_time(rows.time, max(HOUR, rows.resolution))
    first = np.full(rows.num_accounts, np.inf)
    for ends in (rows.payer, rows.payee):
        np.minimum.at(first, ends, time)
    is_new = first_meetings(rows) & (time > time[0] + _KNOWN_SHARE * (time[-1] - time[0]))
    for end, by in enumerate((rows.out, rows.into)):
        ratios = np.array([_sharing(by, time, first, length) for length in lengths])
        shapes[end] = 1.0 / np.clip(ratios - 1.0, _LEAST_EXCESS, _MOST_EXCESS)
        share_accounts(by, _scan, by, (time, first, is_new), (lengths, shapes[end]), found[:3])
    np.maximum(found.of_accounts - math.log(2.0), 0.0, out=found.of_accounts)
    return found


def window_lengths(rows: Rows) -> Values:
    """Lengths of the windows that are no shorter than the steps of the table's time."""
    return np.array([length for length in WINDOWS if length >= rows.resolution] or [rows.resolution])


def even_time(time: Values, step: float) -> Values:
    """Times since the first, which rise, in a measure in which all rows together are nearly even; as long as before."""
    time = time - time[0]
    end = float(time[-1]) + step
    num_bins = int(min(1 << 20, max(2.0, end / step)))
    edges = np.linspace(0.0, end, num_bins + 1)
    counts = np.diff(np.searchsorted(time, edges))
    shares = _UNEVEN * counts / len(time) + (1.0 - _UNEVEN) / num_bins
    even, out = np.concatenate([[0.0], np.cumsum(shares)]) * end, np.empty(len(time))

    def fill(part: slice) -> None:
        out[part] = np.interp(time[part], edges, even)

    run_in_slices(len(time), fill)
    return out


def first_meetings(rows: Rows) -> NDArray[np.bool_]:
    """Whether a row is the first from its payer to its payee, (m,)."""
    out = np.zeros(len(rows), np.bool_)
    share_accounts(rows.out, _find_first, *rows.out, rows.payee, out)
    return out


@kernel
def _find_first(part: Any, indptr: Any, rows: Any, payee: Any, out: Any) -> None:
    """Marks the first row of every pair of a payer's."""
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        own = own[np.argsort(payee[own])]
        low = 0
        while low < len(own):
            first, high = own[low], low + 1
            while high < len(own) and payee[own[high]] == payee[own[low]]:
                first = min(first, own[high])
                high += 1
            out[first] = True
            low = high


def _sharing(by: ByAccount, time: Values, first: Values, length: float) -> float:
    """How many times as often as by chance two rows of an account share a window of this length."""
    ratios = np.full(len(by.indptr) - 1, np.nan)
    share_accounts(by, _share_windows, *by, time, first, length, ratios)
    shown = ratios[np.isfinite(ratios)]
    return float(np.minimum(shown, np.quantile(shown, 0.95)).mean()) if len(shown) >= 20 else 1.0


@kernel(allocates=False)
def _share_windows(part: Any, indptr: Any, rows: Any, time: Any, first: Any, length: float, ratios: Any) -> None:
    end = time[-1]
    for account in range(part[0], part[1]):
        low, high = indptr[account], indptr[account + 1]
        span = end - first[account]
        if high - low < 8 or span < 6.0 * length:
            continue
        pairs, inside, window = 0.0, 0, -1
        for i in range(low, high):
            at = int(time[rows[i]] // length)
            if at != window:
                inside, window = 0, at
            pairs += 2.0 * inside
            inside += 1
        count = float(high - low)
        ratios[account] = pairs / (count * (count - 1.0)) * (span / length)


@kernel(allocates=False)
def _most_within(times: Any, left_out: Any, length: float) -> Any:
    """The most times within a window that are not left out, and the position of the last of them."""
    most, at, first, inside = 0, -1, 0, 0
    for i in range(len(times)):
        if left_out[i]:
            first, inside = i + 1, 0
            continue
        inside += 1
        while times[i] - times[first] > length:
            first += 1
            inside -= 1
        if inside > most:
            most, at = inside, i
    return most, at


@kernel
def usual_most(times: Any, at: int, most: int, length: float, span: float) -> float:
    """The mean at which the third busiest other window would have as many as it has."""
    left_out = np.zeros(len(times), np.bool_)
    left_out[at - most + 1 : at + 1] = True
    third, turns = 0, min(3, int(span / length) // 2)
    for _ in range(turns):
        third, last = _most_within(times, left_out, length)
        if third == 0:
            break
        left_out[last - third + 1 : last + 1] = True
    z = 0.8 * math.sqrt(2.0 * math.log(max(span / length / 3.0, 1.0)))  # of the largest of so many windows, about
    return (math.sqrt(third + z * z / 4.0) - z / 2.0) ** 2


@kernel
def _scan(part: Any, by: Any, when: Any, windows: Any, out: Any) -> None:
    """Finds the most surprising window of every account."""
    (indptr, rows), (time, first, is_new), (lengths, shapes), (of_accounts, of_rows, ends) = by, when, windows, out
    for account in range(part[0], part[1]):
        own = rows[indptr[account] : indptr[account + 1]]
        count = len(own)
        if count < 3:
            continue
        times, new, none = time[own], np.flatnonzero(is_new[own]), np.zeros(count, np.bool_)
        span = max(time[-1] - first[account], times[-1] - times[0])
        best, low, high = 0.0, 0, -1
        for k in range(len(lengths)):
            length = lengths[k]
            if length > span / 3.0:
                break
            most, at = _most_within(times, none, length)
            if most < 3:
                continue
            usual = usual_most(times, at, most, length, span)
            tried = math.log(span / length) + math.log(2.0 * len(lengths))
            value = surprise(most, max((count - most + 1.0) * length / span, usual), shapes[k]) - tried
            if value > best:
                best, low, high = value, at - most + 1, at
            most, at = _most_within(times[new], none[: len(new)], length)
            if most >= 3:
                value = surprise(most, max((len(new) - most + 1.0) * length / span, usual), shapes[k]) - tried
                if value > best:
                    best, low, high = value, new[at - most + 1], new[at]
        if best > of_accounts[account]:
            of_accounts[account] = best
            ends[account, 0], ends[account, 1] = own[low], own[high]
        shared = row_share(best, high - low + 1.0, len(time)) if high >= low else 0.0
        for i in range(low, high + 1):
            of_rows[own[i]] = max(of_rows[own[i]], shared)
