"""Many (data set, seed, method), several at a time, their outcomes appended to one file of JSON lines as they come.

Problems are made first, each once, in one folder that goes when all is done. Then every method runs in a process of its
own, `jobs` at a time, in the order given: long ones first is quickest. What ran out of memory beside others is run
again alone; the later line counts (see table.py).
"""

import json
import sys
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from bench.accuracy.problem import prepare
from bench.accuracy.runner import CONTEXT, Limits, run_method, start_server
from bench.page import commit

_WRITING = threading.Lock()


class Task(NamedTuple):
    """One method on one problem."""

    data: str
    seed: int
    method: str


def run_all(tasks: list[Task], limits: Limits, data_dir: Path, out: Path, jobs: int = 1) -> None:
    """Runs every task and appends what came of it to `out`."""
    start_server(limits.threads)
    with tempfile.TemporaryDirectory(prefix="hcm-accuracy-") as scratch:
        folders = prepare_all(tasks, data_dir, Path(scratch), jobs)
        short = _run(tasks, folders, limits, out, jobs)
        if jobs > 1:
            _run(short, folders, limits, out, 1)


def prepare_all(tasks: Iterable[Task], data_dir: Path, scratch: Path, jobs: int) -> dict[tuple[str, int], Path]:
    """The folder of every problem that occurs, made by as many processes as there are jobs."""
    folders = {(task.data, task.seed): scratch / f"{task.data}-{task.seed}" for task in tasks}
    with ProcessPoolExecutor(jobs, mp_context=CONTEXT) as pool:
        for folder in folders.values():
            folder.mkdir()
        made = [pool.submit(prepare, data, seed, data_dir, folder) for (data, seed), folder in folders.items()]
        for one in made:
            one.result()
    return folders


def _run(tasks: list[Task], folders: dict[tuple[str, int], Path], limits: Limits, out: Path, jobs: int) -> list[Task]:
    """Runs the tasks, `jobs` at a time; those that ran out of memory."""
    stop = threading.Event()

    def one(task: Task) -> bool:
        outcomes = [] if stop.is_set() else run_method(task.method, folders[task.data, task.seed], limits, stop)
        append([{**task._asdict(), **outcome} for outcome in outcomes if outcome["status"] != "stopped"], limits, out)
        return any(outcome["status"] == "memory" for outcome in outcomes)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return [task for task, is_short in zip(tasks, pool.map(one, tasks), strict=True) if is_short]
        finally:
            stop.set()  # where the run is ended from outside, the methods under way are too


def append(lines: list[dict[str, Any]], limits: Limits, out: Path) -> None:
    """Adds outcomes to the file, with what they were measured on, and says them."""
    stamp = {"device": limits.device, "threads": limits.threads, "commit": commit(), "date": str(date.today())}
    with _WRITING, open(out, "a") as stream:
        stream.writelines(json.dumps({**line, **stamp}) + "\n" for line in lines)
    for line in lines:
        said = f"{line['auc']:.3f}" if line["status"] == "ok" else f"{line['status']}: {line['reason']}"
        print(f"{line['data']} seed {line['seed']}: {line['row']} {said}", file=sys.stderr, flush=True)
