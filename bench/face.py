"""How soon the command answers: processor seconds, user and system, of a whole process from its start to its end.

Processor seconds, because a busy machine stretches the clock more. Each command runs three times after one that does
not count, and the median is kept. The page is the first that `hcm-scale serve` shows, made without a server. What is
explained and served is a run of 1,000 nodes; `end_to_end` times runs.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.end_to_end import OPTIONS, planted
from bench.harness import Table, at_most

NODES = {"smoke": 300, "quick": 1_000, "full": 1_000}
PAGE = (
    "from hcm_scale.cli.imports import quickly\nwith quickly():\n    from hcm_scale.run.finished import FinishedRun\n"
)
PAGE += "    from hcm_scale.serve.server import Views\nViews(FinishedRun({!r})).page()"
WRONG = "a wrong option"
MOST_SECONDS = {"--help": 0.5, "options": 0.5, WRONG: 0.5, "explain": 1.0, "the first page of serve": 1.0}


def cases(size: str) -> Iterator[Table]:
    """One table: a row a command."""
    with tempfile.TemporaryDirectory(prefix="bench-face-") as root:
        graph, run_dir = planted(NODES[size], Path(root) / "graph"), f"{root}/run"
        command = [sys.executable, "-m", "hcm_scale"]
        processor_seconds([*command, "run", str(graph), "world.device=cpu", f"run_dir={run_dir}", *OPTIONS[size]])
        asked = {
            "--help": [*command, "--help"],
            "options": [*command, "options"],
            WRONG: [*command, "run", "purify.ratoi=0.1"],
            "explain": [*command, "explain", run_dir, "0"],
            "the first page of serve": [sys.executable, "-c", PAGE.format(run_dir)],
        }
        rows, verdicts = [], []
        for name, words in asked.items():
            times = [processor_seconds(words, 2 if name == WRONG else 0) for _ in range(2 if size == "smoke" else 4)]
            rows.append({"command": name, "processor_seconds": statistics.median(times[1:])})
            verdicts.append(at_most(name, rows[-1]["processor_seconds"], MOST_SECONDS[name], "s"))
    yield Table("processor seconds of one process", rows, verdicts)


def processor_seconds(words: list[str], status: int = 0) -> float:
    """Those of a process and its children; Python keeps compiled modules, as it does for users."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
