"""`python -m bench.accuracy.summary FILES... --out docs/figures/accuracy`: one table and one figure of all graphs.

Reads JSON lines of `python -m bench.accuracy` and writes OUT.md, OUT.svg and OUT.png. Rows are methods, by their mean
rank over the graphs (see ranks.py), columns graphs: the mean ROC-AUC over seeds and, where there are several, the
standard deviation. Of a PyGOD detector that ran on raw attributes and on features, the one with the better mean rank
among all rows is kept, and named (a choice by labels, in the detector's favour); `--both` keeps both. Where some seeds
did not finish, the others count and the cell says how many; where none did, or the method was not run, the cell says so
and the method is behind all others there.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.critical import draw
from bench.accuracy.methods import METHODS, PYGOD, RAW
from bench.accuracy.problem import DATA
from bench.accuracy.ranks import ALPHA, critical_difference, mean_ranks
from bench.accuracy.table import WORDS, Line, latest, read_lines, three


class Summary(NamedTuple):
    """What the table and the figure say: rows sorted by mean rank."""

    rows: list[str]
    graphs: list[str]
    cells: dict[tuple[str, str], list[Line]]
    ranks: dict[str, float]
    difference: float


def summarise(lines: list[Line], both: bool = False) -> Summary:
    """Ranks every row of the lines on every graph of the lines."""
    cells: dict[tuple[str, str], list[Line]] = {}
    for line in latest(lines):
        cells.setdefault((line["row"], line["data"]), []).append(line)
    rows, graphs = (
        sorted({row for row, _ in cells}),
        [data for data in DATA if any(data == found for _, found in cells)],
    )
    ranks = _ranks(rows, graphs, cells)
    if not both:
        rows = [row for row in rows if ranks[row] <= ranks.get(other_variant(row), np.inf)]
        rows = [row for row in rows if not (row.endswith(RAW) and row.removesuffix(RAW) in rows)]  # features if equal
        ranks = _ranks(rows, graphs, cells)
    difference = critical_difference(len(rows), len(graphs))
    return Summary(sorted(rows, key=lambda row: (ranks[row], row)), graphs, cells, ranks, difference)


def other_variant(row: str) -> str:
    """A detector's row on raw attributes from that on features, and the other way round.

    >>> other_variant("GAE"), other_variant("GAE, raw"), other_variant("LOF")
    ('GAE, raw', 'GAE', 'LOF, raw')
    """
    return row.removesuffix(RAW) if row.endswith(RAW) else f"{row}{RAW}"


def mean_auc(lines: list[Line]) -> float:
    """The mean over the seeds that finished; nan where none did."""
    done = [line["auc"] for line in lines if line["status"] == "ok"]
    return statistics.mean(done) if done else np.nan


def _ranks(rows: list[str], graphs: list[str], cells: dict[tuple[str, str], list[Line]]) -> dict[str, float]:
    values: NDArray[np.float64] = np.array([[mean_auc(cells.get((row, data), [])) for data in graphs] for row in rows])
    return dict(zip(rows, mean_ranks(values).tolist(), strict=True))


def markdown(summary: Summary) -> str:
    """The table, and under it how it is to be read."""
    head = ["method", *summary.graphs, "mean AUC", "mean rank"]
    page = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(_row(row, summary) for row in summary.rows), ""]
    said = f"{len(summary.rows)} methods on {len(summary.graphs)} graphs"
    page.append(f"Two methods differ (Nemenyi, {ALPHA:g}) from {summary.difference:.2f} ranks on: {said}.")
    return "\n".join(page)


def _row(row: str, summary: Summary) -> str:
    means = [mean_auc(summary.cells.get((row, data), [])) for data in summary.graphs]
    done = [value for value in means if not np.isnan(value)]
    mean = "-" if not done else three(statistics.mean(done))
    if 0 < len(done) < len(means):
        mean += f" <sub>of {len(done)}</sub>"
    cells = [full_name(row), *(cell(summary.cells.get((row, data), [])) for data in summary.graphs)]
    return f"| {' | '.join([*cells, mean, f'{summary.ranks[row]:.2f}'])} |"


def full_name(row: str) -> str:
    """How the table calls a row: what a PyGOD detector was given is always said.

    >>> full_name("GAE"), full_name("GAE, raw"), full_name("LOF")
    ('GAE, features', 'GAE, raw', 'LOF')
    """
    return f"{row}, features" if row in PYGOD else row


def cell(lines: list[Line]) -> str:
    """One method on one graph, over seeds."""
    done = [line["auc"] for line in lines if line["status"] == "ok"]
    if not done:
        return WORDS[lines[-1]["status"]] if lines else "not run"
    apart = statistics.stdev(done) if len(done) > 1 else 0.0
    small = f"± {three(apart)}" if apart >= 0.0005 else ""  # most scores without learning do not know the seed
    if len(done) < len(lines):
        small += f" {len(done)} of {len(lines)}"
    return f"{three(statistics.mean(done))} <sub>{small.strip()}</sub>" if small else three(statistics.mean(done))


def main(arguments: list[str] | None = None) -> int:
    """Reads, writes, prints the table."""
    options = parse(arguments)
    lines = [line for path in options.files for line in read_lines(path)]
    chosen = [line for line in lines if not options.methods or line["method"] in options.methods]
    if not chosen:
        print("no outcome of these methods in these files", file=sys.stderr)
        return 1
    summary = summarise(chosen, options.both)
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    figure = draw({full_name(row): summary.ranks[row] for row in summary.rows}, summary.difference)
    for ending in ("svg", "png"):
        figure.savefig(out.with_name(f"{out.name}.{ending}"), dpi=160)
    out.with_name(f"{out.name}.md").write_text(markdown(summary) + "\n")
    print(markdown(summary))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy.summary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines")
    parser.add_argument("--out", type=Path, required=True, help="the files to write, without their endings")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[], help="only these; default: all that occur")
    parser.add_argument("--both", action="store_true", help="keep raw attributes and features of every detector")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
