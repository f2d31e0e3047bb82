"""Rows that come after those of a run, each judged by itself and only by what was before it.

`arrivals` puts them in order among the rows before them; each kind of evidence judges them by a function of that.

A row is held against the rows of the run, the rows that were judged since (`kept`), and the rows of its own table that
have an earlier time; of equal times the run comes first, then one table after the other as they came. So a table gives
the same numbers at once and cut into days. What is usual is that of the run alone, and stays:

- history: the median and spread of the amounts that its payer pays, its payee receives, and the pair has, in the run;
  the surprise is that of the deviation's rank among the run's rows, or of a row that is negative, or the second within
  a day, or what its category says after all rows of its payer before it (history.py);
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
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    PairHistory,
    category_shares,
    compare_with_run,
    find_twice,
    history_of_new,
    new_categories,
    surprise_of,
    surprise_of_sort,
)
from hcm_scale.rows.rows import COLUMNS, NO_CATEGORY, Numbers, Rows, Values, beyond, share_accounts, surprise

REACH = LENGTHS[-1]
ROW = np.dtype(
    [
        ("payer", "<i4"),
        ("payee", "<i4"),
        ("time", "<f8"),
        ("amount", "<f8"),
        ("currency", "u1"),
        ("category", "u1"),
        ("table", "<i4"),
    ]
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


class Chains(NamedTuple):
    """What the chains of new rows are told from: where these stand in the sequence, and the row before each of it."""

    sequence: Records
    position: Numbers
    before: Numbers  # (windows, rows of the sequence), -1 for none

    def to(self, row: int) -> Records:
        """The last rows of the best chain that ends in a row, in order."""
        at = int(self.position[row])
        before, steps = self.before[int(self.sequence["chain"][at].argmax())], [at]
        while len(steps) < MOST_TOLD and before[steps[-1]] >= 0:
            steps.append(int(before[steps[-1]]))
        return self.sequence[steps[::-1]]


class Judged(NamedTuple):
    """What a kind says of new rows in their order: surprises, (m,), and what sentences are made of."""

    surprises: Values
    told: Any


@dataclass(frozen=True, eq=False)
class Arrivals:
    """New rows among those that they are held against: the run's, and those kept since.

    `sequence` holds the rows that bursts and chains are looked for in, by time; `position` is where a new row stands in
    it, -1 for nowhere. `scale` is what the run's scores were measured by.
    """

    rows: Rows
    scale: Mapping[str, Values]
    new: Records
    sequence: Records
    is_new: NDArray[np.bool_]  # of the sequence
    position: Numbers
    num_accounts: int

    @property
    def is_placed(self) -> NDArray[np.bool_]:
        return self.position >= 0

    @property
    def own(self) -> Numbers:
        """The positions of those that stand in the sequence."""
        return self.position[self.is_placed]

    @cached_property
    def placed(self) -> Rows:
        return _as_rows(self.sequence, self.num_accounts)

    @cached_property
    def of_pairs(self) -> PairHistory:
        """The sequence, and then the new rows, beside the run's rows of the same pair."""
        return compare_with_run(self.rows, _as_rows(np.concatenate([self.sequence, self.new]), self.num_accounts))


def arrivals(rows: Rows, scale: Mapping[str, Values], kept: Records, new: Records, num_accounts: int) -> Arrivals:
    """New rows among the run's `rows` and those `kept` since; ends are below `num_accounts`."""
    has_times = rows.has_times
    is_placed = (new["time"] >= rows.time[-1] - REACH) & has_times
    last = not_among(_last_rows(rows) if has_times else np.zeros(0, ROW), new)
    kept = not_among(kept, new)
    earlier = len(last) + len(kept)
    joined = np.concatenate([last, kept, new[is_placed]])
    order = np.lexsort((joined["table"], joined["time"]))
    is_new, position = order >= earlier, np.full(len(new), -1)
    position[np.flatnonzero(is_placed)[order[is_new] - earlier]] = np.flatnonzero(is_new)
    return Arrivals(rows, scale, new, joined[order], is_new, position, num_accounts)


def judge_history(arrived: Arrivals) -> Judged:
    """Told from a `NewHistory`."""
    new, scale = arrived.new, arrived.scale
    of_new = arrived.of_pairs.where(np.arange(len(arrived.sequence) + len(new)) >= len(arrived.sequence))
    of_new.is_twice[arrived.is_placed] = find_twice(arrived.placed)[arrived.own]
    history: NewHistory = history_of_new(arrived.rows, _as_rows(new, arrived.num_accounts), of_new)
    if "history_ranks" not in scale:
        return Judged(np.zeros(len(new)), history)
    of_sort = surprise_of_sort(history.sort, scale["history_cuts"])
    others = np.maximum(surprise_of(history.of_rows, scale["history_ranks"]), of_sort)
    by_category = _new_categories(arrived)
    return Judged(np.maximum(others, by_category), history._replace(has_new_category=by_category > others))


def _new_categories(arrived: Arrivals) -> Values:
    """What the categories of new rows say, after all rows of their payers in the run and since."""
    later, out = arrived.sequence["table"] >= 0, np.zeros(len(arrived.new))
    if (arrived.new["category"] == NO_CATEGORY).all():
        return out
    is_asked = np.zeros(arrived.num_accounts, np.bool_)
    is_asked[arrived.new["payer"]] = True
    before = replace(arrived.rows.where(is_asked[arrived.rows.payer]), num_accounts=arrived.num_accounts)
    whole, is_later = before.joined(_as_rows(arrived.sequence[later], arrived.num_accounts))
    share = np.zeros(len(arrived.sequence))
    share[later] = new_categories(whole, category_shares(arrived.rows), len(arrived.rows))[1][is_later]
    out[arrived.is_placed] = share[arrived.own]
    return out


def judge_bursts(arrived: Arrivals) -> Judged:
    """Told from a `Burst`."""
    is_asked = ~arrived.of_pairs.is_regular[: len(arrived.sequence)]
    of_asked = arrived.placed.where(is_asked), arrived.is_new[is_asked]
    bursts = _bursts(arrived.rows, *of_asked, arrived.scale.get("burst_shapes"))
    bursts = Burst(*(_spread(_spread(values, is_asked)[arrived.own], arrived.is_placed) for values in bursts))
    return Judged(bursts.of_rows, bursts)


def judge_chains(arrived: Arrivals) -> Judged:
    """Told from `Chains`; fills the chains of new rows."""
    sequence, own, is_placed = arrived.sequence, arrived.own, arrived.is_placed
    before = _extend_chains(arrived.rows, arrived.placed, arrived.is_new, sequence["chain"])
    num_windows, surprises = int(np.count_nonzero(_has_window(arrived.rows))), np.zeros(len(is_placed))
    surprises[is_placed] = np.maximum(sequence["chain"][own].max(axis=1) - math.log(max(1, num_windows)), 0.0)
    arrived.new["chain"][is_placed] = sequence["chain"][own]
    return Judged(surprises, Chains(sequence, arrived.position, before))


def not_among(records: Records, new: Records) -> Records:
    """Those that are none of the new ones, told again, as where a table has grown: no row comes before itself."""
    return records[beyond(_as_rows(records, 0), _as_rows(new, 0))]


def _as_rows(records: Records, num_accounts: int) -> Rows:
    return Rows(num_accounts, *(np.ascontiguousarray(records[name]) for name in COLUMNS))


def _spread(values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Values of the chosen ones, 0 of others."""
    out = np.zeros(len(chosen), values.dtype)
    out[chosen] = values
    return out


def _last_rows(rows: Rows) -> Records:
    """The rows of the run that are looked at, with the chains that end in them."""
    last = rows.where(rows.time >= rows.time[-1] - 2.0 * REACH)
    records = np.zeros(len(last), ROW)
    for name in COLUMNS:
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
