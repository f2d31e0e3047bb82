"""What a theme leaves behind: a dated Markdown page with hardware, versions, command and commit, and JSON lines.

The first JSON line is the context, each further one a row of a table or a verdict. Figures lie beside them as PNG and
SVG. A page of the same theme, machine and day is replaced.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.harness import Table

_VERSIONS = (
    "torch", "torch-geometric", "torch-sparse", "numba", "numpy", "scipy", "pyarrow", "igraph", "networkx",
    "python-graphblas", "pygod", "duckdb",
)  # fmt: skip


def write(theme: str, size: str, tables: Sequence[Table], out: Path) -> str:
    """Writes page, JSON lines and figures under `out`; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{theme}_{size}_{machine_name()}_{date.today()}"
    figures = [table.figure for table in tables if table.figure is not None]
    names = [stem if i == 0 else f"{stem}_{i}" for i in range(len(figures))]
    for name, figure in zip(names, figures, strict=True):
        for ending in ("png", "svg"):
            figure.savefig(out / f"{name}.{ending}", dpi=160)
    page = markdown(theme, size, tables, names)
    (out / f"{stem}.md").write_text(page)
    (out / f"{stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _lines(theme, size, tables)))
    return page


def markdown(theme: str, size: str, tables: Sequence[Table], figures: Sequence[str] = ()) -> str:
    """The page of one theme."""
    about = context(theme, size)
    lines = [f"# {theme}, {size}, {about['date']}", "", f"{about['hardware']}. {about['versions']}.", ""]
    lines += [f"Command: `{about['command']}`. Commit: {about['commit']}.", ""]
    lines += [part for name in figures for part in (f"![{theme}]({name}.svg)", "")]
    for table in tables:
        lines += [f"## {table.title}", "", *_rows(table), ""]
        if table.verdicts and size != "smoke":
            lines += ["| claim | bound | measured | |", "|---|---|---|---|"]
            lines += [
                f"| {v.claim} | {v.bound} | {v.measured} | {'holds' if v.holds else 'FAILS'} |" for v in table.verdicts
            ]
            lines.append("")
        lines += [f"- {note}" for note in table.notes] + [""] * bool(table.notes)
    return "\n".join(lines)


def _rows(table: Table) -> Iterator[str]:
    keys = list(table.rows[0]) if table.rows else ["peer", "state"]
    yield f"| {' | '.join(key.replace('_', ' ') for key in keys)} |"
    yield "|---" * len(keys) + "|"
    for row in table.rows:
        yield f"| {' | '.join(_shown(row[key]) for key in keys)} |"
    for name in table.absent:
        yield f"| {name} | absent {'|' * (len(keys) - 1)}"


def _shown(value: Any) -> str:
    """A number as a person reads it.

    >>> _shown(1234567), _shown(1234567.8), _shown(0.123456), _shown(None)
    ('1,234,567', '1,234,568', '0.1235', '')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _lines(theme: str, size: str, tables: Sequence[Table]) -> Iterator[dict[str, Any]]:
    yield context(theme, size)
    for table in tables:
        yield from ({"table": table.title, **row} for row in table.rows)
        yield from ({"table": table.title, "peer": name, "state": "absent"} for name in table.absent)
        yield from ({"table": table.title, **vars(verdict)} for verdict in table.verdicts)


def context(theme: str, size: str) -> dict[str, Any]:
    """What a number is worth nothing without."""
    flag = "" if size == "quick" else f" --{size}"
    return {
        "theme": theme,
        "size": size,
        "date": str(date.today()),
        "hardware": hardware(),
        "versions": versions(),
        "command": f"python -m bench {theme}{flag}",
        "commit": commit(),
    }


def hardware() -> str:
    """The machine in words."""
    import torch

    names = [line.split(":", 1)[1].strip() for line in _probe("lscpu") if line.startswith("Model name:")]
    model = names[0] if names else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = f"{os.cpu_count()} cores {model} ({platform.machine()}), {memory:.0f} GiB{gpu}"
    return f"{cores}, {platform.system()}, Python {platform.python_version()}"


def machine_name() -> str:
    """A short name for file names."""
    import torch

    gpu = torch.cuda.get_device_name().split()[-1].lower() if torch.cuda.is_available() else ""
    return f"{platform.machine()}_{os.cpu_count()}cores{'_' + gpu if gpu else ''}"


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
    """The commit that was measured, marked where the tree had changes; results of this run are no changes."""
    name = "".join(_probe("git", "rev-parse", "--short", "HEAD")) or "unknown"
    changed = [line for line in _probe("git", "status", "--porcelain") if "bench/results/" not in line]
    return f"{name} with changes" if changed else name


def _probe(*command: str) -> list[str]:
    """The lines that a command prints; none where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
