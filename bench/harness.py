"""One small harness for all benchmarks.

A theme is a module with `cases(size)`, a stream of questions. A `Case` has several contenders for the same work: the
harness runs each once and throws that run away (compilation, caches) after checking what it returned, then runs all of
them in turn, several times, so that a slow minute of the machine falls on everybody; median and spread are kept. A
`Table` was measured by its theme, because its rows are not rates or each needs a process of its own.

Both end in verdicts. A claim that does not hold makes the command fail.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = ("smoke", "quick", "full")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Contender:
    """One way to do the work: `run()` does it once, `verify(result)` raises if the result is wrong.

    `amount` is how much work a run is, a number or a function of the result.
    """

    name: str
    run: Callable[[], Any]
    amount: float | Callable[[Any], float]
    verify: Callable[[Any], None]


@dataclass(frozen=True)
class Floor:
    """The claim: `ours` does at least `ratio` times what `peer` does in the same time."""

    ours: str
    peer: str
    ratio: float


@dataclass(frozen=True)
class Verdict:
    """A claim, what bounds it, what was measured, and whether it holds."""

    claim: str
    bound: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Case:
    """One question: who does more of `unit`. `absent` names the peers that are not here, and why."""

    title: str
    unit: str
    contenders: Sequence[Contender]
    floors: Sequence[Floor] = ()
    absent: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows of equal keys, units in the keys; `figure` is a matplotlib figure that belongs beside them."""

    title: str
    rows: Sequence[dict[str, Any]]
    verdicts: Sequence[Verdict] = ()
    absent: Sequence[str] = ()
    notes: Sequence[str] = ()
    figure: Any = None


@dataclass(frozen=True)
class Rate:
    """What one contender did in one case: the median of `repeats` rates, the slowest and the fastest."""

    contender: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int


def at_least(claim: str, measured: float, bound: float, unit: str) -> Verdict:
    """The claim that a number reaches a bound.

    >>> at_least("ours against theirs", 12.3456, 10, "x")
    Verdict(claim='ours against theirs', bound='at least 10 x', measured='12.3 x', holds=True)
    """
    return Verdict(claim, f"at least {bound:g} {unit}", f"{measured:.3g} {unit}", measured >= bound)


def at_most(claim: str, measured: float, bound: float, unit: str) -> Verdict:
    """The claim that a number stays within a bound; NaN, for what did not finish, does not."""
    return Verdict(claim, f"at most {bound:g} {unit}", f"{measured:.3g} {unit}", measured <= bound)


def measure(case: Case, repeats: int) -> list[Rate]:
    """Rates of all contenders, interleaved; the first, verified round does not count."""
    for contender in case.contenders:
        contender.verify(contender.run())
    rates: dict[str, list[float]] = {contender.name: [] for contender in case.contenders}
    for _ in range(repeats):
        for contender in case.contenders:
            rates[contender.name].append(_rate(contender))
    return [
        Rate(name, case.unit, statistics.median(seen), min(seen), max(seen), repeats) for name, seen in rates.items()
    ]


def _rate(contender: Contender) -> float:
    """One timed run; its result is let go of before the next contender needs the memory."""
    started = time.perf_counter()
    result = contender.run()
    seconds = time.perf_counter() - started
    return (contender.amount(result) if callable(contender.amount) else contender.amount) / seconds


def judge(case: Case, rates: Sequence[Rate]) -> list[Verdict]:
    """Each stated floor against the ratio of the medians."""
    median = {rate.contender: rate.median for rate in rates}
    return [
        at_least(f"{floor.ours} against {floor.peer}", median[floor.ours] / median[floor.peer], floor.ratio, "x")
        for floor in case.floors
    ]


def as_table(case: Case, repeats: int) -> Table:
    """The case, measured and judged."""
    rates = measure(case, repeats)
    rows = [vars(rate) for rate in rates]
    return Table(case.title, rows, judge(case, rates), case.absent, case.notes)
