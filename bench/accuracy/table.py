"""JSON lines of outcomes to one Markdown page: a table a data set, mean and deviation over seeds, beside the paper's.

A row keeps its place whatever happened to it: what did not finish says why, what was not run says so. Where a
(data set, row, seed) occurs twice the later line counts.
"""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.accuracy.methods import all_rows, printed
from bench.accuracy.problem import DATA

Line = dict[str, Any]
WORDS = {"absent": "absent", "memory": "out of memory", "time": "out of time", "failed": "failed"}
_HEAD = "| method | ROC-AUC | structural | attribute | paper | seeds | seconds | peak memory |"


def markdown(lines: Iterable[Line], about: list[str]) -> str:
    """The page: what it was measured on, then one table per data set that occurs."""
    kept = latest(lines)
    page = ["# Accuracy", "", *(f"- {said}" for said in about), ""]
    for data in DATA:
        of_data = [line for line in kept if line["data"] == data]
        if of_data:
            page += [f"## {data}", "", _HEAD, "|---" * 8 + "|"]
            page += [_row(data, row, [line for line in of_data if line["row"] == row]) for row in all_rows()]
            page += [*_notes(of_data), ""]
    return "\n".join(page)


def read_lines(path: Path) -> list[Line]:
    """The outcomes in a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def latest(lines: Iterable[Line]) -> list[Line]:
    """One line per (data set, row, seed)."""
    return list({(line["data"], line["row"], line["seed"]): line for line in lines}.values())


def _row(data: str, row: str, lines: list[Line]) -> str:
    done = [line for line in lines if line["status"] == "ok"]
    paper = printed(row, data)
    cells = [
        row,
        *(spread([line[kind] for line in done if kind in line]) for kind in ("auc", "structural", "attribute")),
    ]
    if not done:
        cells[1] = WORDS[lines[-1]["status"]] if lines else "not run"
    cells += ["" if paper is None else three(paper), f"{len(done)} of {len(lines)}" if lines else "-"]
    cells += [f"{statistics.mean(line['seconds'] for line in done):.3g}" if done else ""]
    cells += [f"{max(line['peak_rss_bytes'] for line in lines) / 2**30:.2f} GiB" if lines else ""]
    return f"| {' | '.join(cells)} |"


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation, three digits.

    >>> spread([0.5, 0.7]), spread([0.5]), spread([])
    ('.600 ± .141', '.500', '-')
    """
    if not values:
        return "-"
    mean = three(statistics.mean(values))
    return f"{mean} ± {three(statistics.stdev(values))}" if len(values) > 1 else mean


def three(value: float) -> str:
    """A share with three digits and no leading zero."""
    return f"{value:.3f}".removeprefix("0")


def _notes(lines: list[Line]) -> list[str]:
    """Each reason once, under the table."""
    reasons = {
        f"- {line['row']}: {WORDS[line['status']]}, {line['reason']}": None for line in lines if line["status"] != "ok"
    }
    return ["", *reasons] if reasons else []
