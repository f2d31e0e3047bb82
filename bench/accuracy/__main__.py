"""`python -m bench.accuracy --data BlogCatalog Amazon --seeds 0-4 --methods lof hcm-best`

Runs each method on each problem in a process of its own, `--jobs` at a time, adds one JSON line per row and seed to the
output file as it goes, and writes the Markdown tables beside it; `python -m bench.accuracy.summary` makes one of all. A
(data set, method, seed) whose rows are all in the file is not run again, so a run that was stopped goes on where it
was; `--again` runs it anyway.
"""

import argparse
import itertools
import os
import signal
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.many import Task, run_all
from bench.accuracy.methods import METHODS
from bench.accuracy.problem import DATA, parse_name, parse_seeds, zoo_of
from bench.accuracy.runner import Limits
from bench.accuracy.table import latest, markdown, read_lines
from bench.harness import RESULTS
from bench.page import commit, hardware, machine_name, versions


def main(arguments: list[str] | None = None) -> int:
    """Runs, writes, prints the table; 1 when a method failed. Absent, out of memory and out of time are results."""
    options = parse(arguments)
    if options.teach:
        from bench.accuracy.teach import main as teach

        return teach(options)
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    limits = Limits(int(options.memory_gib * 2**30), options.time_limit, options.threads, options.device)
    drop_cut_line(out)
    done = [] if options.again else read_lines(out)
    tasks = [Task(*parts) for parts in itertools.product(options.data, options.seeds, options.methods)]
    missing = [task for task in tasks if not is_done(task.method, task.data, task.seed, done)]
    if missing:
        run_all(missing, limits, options.data_dir, out, options.jobs)
    lines = [line for path in (*options.join, out) for line in read_lines(path)]
    about = [f"{hardware()}. {versions()}.", f"Commit {commit()}, {date.today()}.", f"Command: `{command(arguments)}`"]
    page = markdown(lines, about)
    out.with_suffix(".md").write_text(page + "\n")
    print(page)
    return 1 if any(line["status"] == "failed" for line in latest(read_lines(out))) else 0


def drop_cut_line(path: Path) -> None:
    """Removes what follows the last line's end: a run that was killed while writing left it."""
    text = path.read_text() if path.is_file() else ""
    if not text.endswith("\n") and text:
        path.write_text(text[: text.rfind("\n") + 1])


def is_done(method: str, data: str, seed: int, lines: list[dict[str, Any]]) -> bool:
    """Whether every row of a method on a problem has an outcome other than absent, which an installation cures."""
    seen = {
        line["row"] for line in lines if (line["data"], line["seed"]) == (data, seed) and line["status"] != "absent"
    }
    return seen.issuperset(METHODS[method].rows)


def data_name(text: str) -> str:
    """A name that `problem.prepare` knows, or an organic world of `teach.py`."""
    if ":" in text:
        from bench.accuracy.teach import worlds_taught

        if text not in worlds_taught():
            raise argparse.ArgumentTypeError(f"data={text!r} is unknown; it is one of {', '.join(worlds_taught())}")
        return text
    try:
        parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def command(arguments: list[str] | None) -> str:
    """The command as a person would type it."""
    return " ".join(["python -m bench.accuracy", *(sys.argv[1:] if arguments is None else arguments)])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", nargs="+", type=data_name, default=None, help=f"default: those of the paper; {', '.join(DATA)}"
    )
    parser.add_argument(
        "--teach", action="store_true", help="what verdicts are worth (`teach.py`), all data by default"
    )
    parser.add_argument("--zoo", action="store_true", help="plant the twelve problems of the zoo into every data set")
    parser.add_argument("--seeds", nargs="+", type=parse_seeds, default=[[0]], help="numbers or ranges: 0-4 7")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("HCM_DATA", "data")))
    parser.add_argument("--out", type=Path, default=None, help="JSON lines; default: by machine, under bench/results")
    parser.add_argument("--join", nargs="*", type=Path, default=[], help="files of other machines to show in the table")
    parser.add_argument("--memory-gib", type=float, default=16.0)
    parser.add_argument("--time-limit", type=float, default=1800.0, help="seconds for one method on one problem")
    parser.add_argument("--jobs", type=int, default=1, help="how many methods run at a time")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--again", action="store_true", help="run also what is in the output file already")
    options = parser.parse_args(arguments)
    options.seeds = sorted({seed for group in options.seeds for seed in group})
    if options.teach:
        return options
    options.data = options.data or ["BlogCatalog", "Flickr", "Amazon", "Enron"]
    options.data = [name for base in options.data for name in zoo_of(base)] if options.zoo else options.data
    if options.jobs < 1:
        parser.error(f"--jobs={options.jobs} must be at least 1")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out = options.out or RESULTS / f"accuracy_{machine_name()}.jsonl"
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a method under way is ended too (runner.watch)
    sys.exit(main())
