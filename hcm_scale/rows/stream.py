"""Rows that come after those of a run, each judged by itself and only by what was before it.

A row is held against the rows of the run, the rows that were judged since (`kept`), and the rows of its own table that
have an earlier time; of equal times the run comes first, then one table after the other as they came. So a table gives
the same numbers at once and cut into days. What is usual is that of the run alone, and stays:

- history: the median and spread of the amounts that its payer pays, its payee receives, and the pair has, in the run;
  the surprise is that of the deviation's rank among the run's rows, or of a row that is negative, or the second within
  a day (history.py);
- burst: rows out of its payer, and into its payee, within an hour to two weeks up to it, against the larger of the
  account's rate in the run since its first row, times how much busier all accounts are in that window than in the run,
  and what its third busiest window in the run leads to expect; an account that the run does not have is held against
  the mean of those that it has. The surprise is shared by the rows of the window; rows that are regular by the run's
  are left out (burst.py);
- chain: the best chain that ends in the row; how often amounts fit by chance is seen in the run's rows into its payer
  (chain.py).

Bursts reach back `REACH`, and rows of the run are looked at from twice that before its end on. A row that is dated
further back has its history alone, as has one without a time. Cost: of new rows a few passes and sorts, an account with
all rows costs no more; of the run the medians of amounts, and the busiest windows of accounts that are asked about.
Memory: 200 bytes a row, new, kept, or of the run's end.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_concurrently
from hcm_scale.rows.burst import WINDOWS as LENGTHS
from hcm_scale.rows.burst import usual_most, window_lengths
from hcm_scale.rows.chain import DRAWN, MOST_TOLD, PRIOR_ROWS, WINDOWS, best_before
from hcm_scale.rows.flow import fits, fitting_share
from hcm_scale.rows.history import (
    NewHistory,
    compare_with_run,
    find_twice,
    history_of_new,
    surprise_of,
    surprise_of_sort,
)
from hcm_scale.rows.rows import Numbers, Rows, Values, beyond, share_accounts, surprise

REACH = LENGTHS[-1]
KINDS = (0, 1, 3)  # of the four, by number, that a row is judged by before others follow it
ROW = np.dtype(
    [("payer", "<i4"), ("payee", "<i4"), ("time", "<f8"), ("amount", "<f8"), ("currency", "u1"), ("table", "<i4")]
    + [("chain", "<f8", (len(WINDOWS),))]
)  # the logarithm of the amount; the table by its number; the score of the best chain that ends here, by window
_LEAST_SHARE = 1e-5  # of amounts that fit, where the run has none
Records = NDArray[Any]


class Burst(NamedTuple):
    """Of rows, (m,): surprise, the rows of the window, seconds since its first, and whether they have one payee."""

    of_rows: Values
    num_rows: Numbers
    seconds: Values
    is_in: NDArray[np.bool_]


class Judged(NamedTuple):
    """What is said of new rows in their order: surprises by `KINDS`, (m, 3), and what sentences are made of.

    `sequence` holds the rows that bursts and chains were looked for in, by time; `position` is where a new row stands
    in it, -1 for nowhere; `before` is the position of the row before in a chain, by window, or -1.
    """

    surprises: Values
    history: NewHistory
    burst: Burst
    sequence: Records
    position: Numbers
    before: Numbers

    def chain_to(self, row: int) -> Records:
        """The last rows of the best chain that ends in a row, in order."""
        at = int(self.position[row])
        before, steps = self.before[int(self.sequence["chain"][at].argmax())], [at]
        while len(steps) < MOST_TOLD and before[steps[-1]] >= 0:
            steps.append(int(before[steps[-1]]))
        return self.sequence[steps[::-1]]


def judge(rows: Rows, scale: Mapping[str, Values], kept: Records, new: Records, num_accounts: int) -> Judged:
    """What the run's `rows`, and rows `kept` since, say of new ones; ends are below `num_accounts`.

    `scale` is what the run's scores were measured by. Fills the chains of new rows.
    """
    end, has_times = rows.time[-1], rows.has_times
    is_placed = (new["time"] >= end - REACH) & has_times
    last = not_among(_last_rows(rows) if has_times else np.zeros(0, ROW), new)
    kept = not_among(kept, new)
    earlier = len(last) + len(kept)
    joined = np.concatenate([last, kept, new[is_placed]])
    order = np.lexsort((joined["table"], joined["time"]))
    sequence, is_new = joined[order], order >= earlier
    position, placed = np.full(len(new), -1), _as_rows(sequence, num_accounts)
    position[np.flatnonzero(is_placed)[order[is_new] - earlier]] = np.flatnonzero(is_new)
    of_both = compare_with_run(rows, _as_rows(np.concatenate([sequence, new]), num_accounts))
    is_first, own = np.arange(len(sequence) + len(new)) < len(sequence), position[is_placed]
    of_new = of_both.where(~is_first)
    of_new.is_twice[is_placed] = find_twice(placed)[own]
    history = history_of_new(rows, _as_rows(new, num_accounts), of_new)
    surprises = np.zeros((len(new), len(KINDS)))
    if "history_ranks" in scale:
        of_sort = surprise_of_sort(history.sort, scale["history_cuts"])
        surprises[:, 0] = np.maximum(surprise_of(history.of_rows, scale["history_ranks"]), of_sort)
    before = _extend_chains(rows, placed, is_new, sequence["chain"])
    is_asked = ~of_both.is_regular[is_first]
    bursts = _bursts(rows, placed.where(is_asked), is_new[is_asked], scale.get("burst_shapes"))
    bursts = Burst(*(_spread(values, is_asked) for values in bursts))
    num_windows = int(np.count_nonzero(_has_window(rows)))
    bursts = Burst(*(_spread(values[own], is_placed) for values in bursts))
    surprises[:, 1] = bursts.of_rows
    surprises[is_placed, 2] = np.maximum(sequence["chain"][own].max(axis=1) - math.log(max(1, num_windows)), 0.0)
    new["chain"][is_placed] = sequence["chain"][own]
    return Judged(surprises, history, bursts, sequence, position, before)


def not_among(records: Records, new: Records) -> Records:
    """Those that are none of the new ones, told again, as where a table has grown: no row comes before itself."""
    return records[beyond(_as_rows(records, 0), _as_rows(new, 0))]


def _as_rows(records: Records, num_accounts: int) -> Rows:
    columns = (np.ascontiguousarray(records[name]) for name in ("payer", "payee", "time", "amount", "currency"))
    return Rows(num_accounts, *columns)


def _spread(values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Values of the chosen ones, 0 of others."""
    out = np.zeros(len(chosen), values.dtype)
    out[chosen] = values
    return out


def _last_rows(rows: Rows) -> Records:
    """The rows of the run that are looked at, with the chains that end in them."""
    last = rows.where(rows.time >= rows.time[-1] - 2.0 * REACH)
    records = np.zeros(len(last), ROW)
    for name in ("payer", "payee", "time", "amount", "currency"):
        records[name] = getattr(last, name)
    records["table"] = -1
    _extend_chains(rows, last, np.ones(len(last), np.bool_), records["chain"])
    return records


def _has_window(rows: Rows) -> NDArray[np.bool_]:
    return np.array(WINDOWS) >= rows.resolution


def _extend_chains(rows: Rows, placed: Rows, is_new: NDArray[np.bool_], scores: Values) -> Numbers:
    """Fills scores of new rows, (m, windows), and returns the row before each, (windows, m), or -1."""
    before, share = np.full(scores.shape[::-1], -1), max(_LEAST_SHARE, fitting_share(rows))
    of_rows = placed.payer, placed.payee, placed.time, placed.comparable, *placed.into
    of_run = rows.time, rows.comparable, *rows.into

    def extend(k: int) -> None:
        seen, score = np.zeros(placed.num_accounts, np.int64), np.ascontiguousarray(scores[:, k])
        _follow_new(of_rows, of_run, is_new, seen, WINDOWS[k], share, (score, before[k]))
        scores[:, k] = score

    tasks = [partial(extend, k) for k in np.flatnonzero(_has_window(rows)).tolist()]
    if tasks:
        run_concurrently(tasks)
    return before


@kernel(allocates=False)
def _follow_new(of_rows: Any, of_run: Any, is_new: Any, seen: Any, window: float, usual_share: float, out: Any) -> None:
    """As `chain._follow`, of new rows alone; amounts that fit by chance are those of the run outside of the window."""
    (payer, payee, time, amount, in_ptr, in_rows), (score, before) = of_rows, out
    run_time, run_amount, run_ptr, run_rows = of_run
    for row in range(len(payer)):
        begin, had = in_ptr[payer[row]], seen[payer[row]]
        seen[payee[row]] += 1
        count, best = best_before(row, in_rows[begin : begin + had], time, amount, window, score)
        if best < 0:
            continue
        before[row] = best
        if not is_new[row]:
            continue
        others, fitting = 0, 0
        if payer[row] < len(run_ptr) - 1:
            low, high = run_ptr[payer[row]], run_ptr[payer[row] + 1]
            for k in range(low, high, max(1, (high - low) // DRAWN)):
                other = run_rows[k]
                if run_time[other] < time[row] - window or run_time[other] > time[row]:
                    others += 1
                    fitting += fits(run_amount[other], amount[row])
        mean = count * (fitting + PRIOR_ROWS * usual_share) / (others + PRIOR_ROWS)
        score[row] = score[best] - math.log(-math.expm1(-mean))


def _bursts(rows: Rows, placed: Rows, is_new: NDArray[np.bool_], shapes: Values | None) -> Burst:
    """The most surprising window that ends in each new row of those that are placed."""
    size, num_own = len(placed), rows.num_accounts
    best, seconds = np.zeros((2, size))
    result = Burst(best, np.zeros(size, np.int64), seconds, np.zeros(size, np.bool_))
    lengths, span = window_lengths(rows), float(rows.time[-1] - rows.time[0])
    if shapes is None or shapes.shape[1] != len(lengths):
        return result
    first = np.full(num_own, np.inf)
    for ends in (rows.payer, rows.payee):
        np.minimum.at(first, ends, rows.time)
    sides = ((rows.out, placed.out, placed.payer), (rows.into, placed.into, placed.payee))
    for side, (of_run, by, ends) in enumerate(sides):
        counts = np.diff(of_run.indptr)
        is_asked = np.bincount(ends[is_new], minlength=placed.num_accounts)[:num_own] > 0
        usual = np.zeros((placed.num_accounts, len(lengths)))
        share_accounts(of_run, _usual_windows, of_run, rows.time, is_asked, lengths, span, usual)
        for k in np.flatnonzero(lengths <= span / 3.0).tolist():
            length = float(lengths[k])
            rate = np.full(placed.num_accounts, (1.0 + counts[counts > 0].mean()) * length / span)
            since = np.where(np.isfinite(first), rows.time[-1] - first, np.nan)
            own = (counts + 1.0) * length / np.maximum(since, 3.0 * length)
            rate[:num_own] = np.where(np.isfinite(own), own, rate[:num_own])
            within = np.arange(1, size + 1) - np.searchsorted(placed.time, placed.time - length)
            busy = np.maximum(1.0, within * span / (len(rows) * length))
            tried = math.log(span / length) + math.log(2.0 * len(lengths))
            of_window = length, float(shapes[side, k]), tried, side == 1
            share_accounts(by, _trail, by, placed.time, is_new, (rate, usual[:, k].copy(), busy), of_window, result)
    shared = np.minimum(best, math.log(len(rows))) - np.log(np.maximum(result.num_rows, 1))
    return result._replace(of_rows=np.maximum(shared, 0.0))


@kernel
def _usual_windows(part: Any, by: Any, time: Any, is_asked: Any, lengths: Any, span: float, usual: Any) -> None:
    indptr, rows = by
    for account in range(part[0], part[1]):
        if is_asked[account] and indptr[account + 1] > indptr[account]:
            times = time[rows[indptr[account] : indptr[account + 1]]]
            for k in range(len(lengths)):
                usual[account, k] = usual_most(times, -1, 0, lengths[k], span)


@kernel(allocates=False)
def _trail(part: Any, by: Any, time: Any, is_new: Any, expected: Any, of_window: Any, out: Any) -> None:
    """Keeps, for every new row of some accounts, the window that ends in it where it surprises more than others."""
    (indptr, rows), (rate, usual, busy), (length, shape, tried, is_into) = by, expected, of_window
    best, counts, seconds, is_in = out
    for account in range(part[0], part[1]):
        first = indptr[account]
        for i in range(indptr[account], indptr[account + 1]):
            row = rows[i]
            while time[row] - time[rows[first]] > length:
                first += 1
            count = i - first + 1
            if count < 3 or not is_new[row]:
                continue
            value = surprise(count, max(rate[account] * busy[row], usual[account]), shape) - tried
            if value > best[row]:
                best[row], counts[row], is_in[row] = value, count, is_into
                seconds[row] = time[row] - time[rows[first]]
