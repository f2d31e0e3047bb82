"""One small harness for all benchmarks.

A theme is a module with `cases(size)`, which yields `Case`s: one question, several contenders on the same data. For each case
the harness runs every contender once and throws that away (compilation, caches), checks what it returned, then runs all of
them in turn, several times, so that a slow minute of the machine falls on everybody. It keeps the median and the spread,
writes one JSON line per contender, and compares each ratio with its stated floor.
"""

import importlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SIZES = ("smoke", "quick", "full")
_VERSIONS = (
    "torch",
    "torch-geometric",
    "torch-sparse",
    "numba",
    "numpy",
    "scipy",
    "pyarrow",
    "igraph",
    "networkx",
    "pygod",
)


@dataclass(frozen=True)
class Contender:
    """One way to do the work: `run()` does it once, `verify(result)` raises if the result is wrong."""

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
class Case:
    """One question: who does more of `unit` in a second."""

    title: str
    unit: str
    contenders: list[Contender]
    floors: list[Floor] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What one contender did in one case."""

    case: str
    name: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int


def measure(case: Case, repeats: int) -> list[Result]:
    """Rates of all contenders, interleaved; the first, verified round does not count."""
    for contender in case.contenders:
        contender.verify(contender.run())
    rates: dict[str, list[float]] = {contender.name: [] for contender in case.contenders}
    for _ in range(repeats):
        for contender in case.contenders:
            started = time.perf_counter()
            result = contender.run()
            seconds = time.perf_counter() - started
            amount = contender.amount(result) if callable(contender.amount) else contender.amount
            rates[contender.name].append(amount / seconds)
    return [
        Result(case.title, name, case.unit, statistics.median(seen), min(seen), max(seen), repeats)
        for name, seen in rates.items()
    ]


def judge(case: Case, results: list[Result]) -> list[tuple[Floor, float]]:
    """Each stated floor with the ratio that was measured."""
    median = {result.name: result.median for result in results}
    return [(floor, median[floor.ours] / median[floor.peer]) for floor in case.floors]


def hardware() -> str:
    """The machine in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    import os

    gpu = ""
    import torch

    if torch.cuda.is_available():
        gpu = f", {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores {model}{gpu}, {platform.system()}, Python {platform.python_version()}"


def versions() -> str:
    """The packages that matter, with their versions; what is not installed is named absent."""
    found = []
    for name in _VERSIONS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def commit() -> str:
    """The commit that was measured, marked where the tree had changes."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def markdown(theme: str, size: str, measured: list[tuple[Case, list[Result]]]) -> str:
    """The dated page of one theme."""
    lines = [f"# {theme}, {size}, {date.today()}", "", f"{hardware()}. {versions()}.", ""]
    lines += [f"Command: `python -m bench {theme}{' --full' if size == 'full' else ''}`. Commit: {commit()}.", ""]
    for case, results in measured:
        lines += [
            f"## {case.title}",
            "",
            f"| contender | median {case.unit} | low to high | repeats |",
            "|---|---|---|---|",
        ]
        lines += [f"| {r.name} | {r.median:,.4g} | {r.low:,.4g} to {r.high:,.4g} | {r.repeats} |" for r in results]
        lines += [f"| {name} | absent | | |" for name in case.absent]
        verdicts = judge(case, results)
        if verdicts:
            lines += ["", "| claim | floor | measured | |", "|---|---|---|---|"]
            for floor, ratio in verdicts:
                verdict = "holds" if ratio >= floor.ratio else "FAILS"
                lines.append(f"| {floor.ours} against {floor.peer} | {floor.ratio:g} x | {ratio:.3g} x | {verdict} |")
        lines += ["", *(f"- {note}" for note in case.notes), ""] if case.notes else [""]
    return "\n".join(lines)


def run_theme(theme: str, size: str, repeats: int, out: Path = RESULTS) -> bool:
    """Measures a theme, writes its JSON lines and its page, and says whether every floor held."""
    module = importlib.import_module(f"bench.{theme}")
    measured, held = [], True
    stream: Iterator[Case] = module.cases(size)
    for case in stream:
        print(f"{theme}: {case.title}", file=sys.stderr, flush=True)
        results = measure(case, repeats)
        measured.append((case, results))
        held &= size == "smoke" or all(ratio >= floor.ratio for floor, ratio in judge(case, results))
    page = markdown(theme, size, measured)
    print(page)
    if size != "smoke":
        _write(theme, page, [asdict(result) for _, results in measured for result in results], out)
    return held


def _write(theme: str, page: str, rows: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    where = platform.machine() if "NVIDIA" not in page else "h200" if "H200" in page else "cuda"
    stem = out / f"{theme}_{where}_{date.today()}"
    stem.with_suffix(".md").write_text(page)
    stem.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
