"""Runs of several processes that can be watched and hurt from outside, and children that go through many cases."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TINY = [
    *("graph=community", "graph.num_nodes=400", "hops.num_sources=60"),
    *("model.width=8", "model.head_width=8", "sampling.batch_pairs=128"),
    *("posterior.burn_in_steps=250", "posterior.num_samples=4", "posterior.thin_steps=5"),
    "posterior.checkpoint_every=7",
    *("world.device=cpu", "world.threads=1", "world.timeout_seconds=30"),
]
COMMAND = (sys.executable, "-m", "hcm_scale", "run", *TINY)
ENDS_WITHIN_SECONDS = 240  # far past a start, a restart and a run on a busy machine; a hang is longer than any number


@dataclass
class Running:
    """A command and the folder in which it runs."""

    process: subprocess.Popen
    run_dir: Path
    printed: Path

    def step(self) -> int:
        """Training steps told so far."""
        path = self.run_dir / "train-purified" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)

    def pids(self, rank: int) -> list[int]:
        """The processes that were this rank, oldest first."""
        path = self.run_dir / "ranks" / f"rank-{rank}.log"
        return [int(pid) for pid in re.findall(r"process (\d+)", path.read_text())] if path.is_file() else []

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while not ready():
            assert self.process.poll() is None, f"ended too early:\n{self.output()}"
            assert time.monotonic() < deadline, f"never came so far:\n{self.output()}"
            time.sleep(0.02)

    def finish(self) -> int:
        """Waits for the end, which must come; the exit status."""
        try:
            return self.process.wait(ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job hangs:\n{self.output()}")

    def output(self) -> str:
        return self.printed.read_text()

    def samples(self) -> dict[str, bytes]:
        folder = self.run_dir / "train-purified" / "samples"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}

    def kill_all(self) -> None:
        """SIGKILL to the command and all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def tiny() -> list[str]:
    """Options of a run of seconds."""
    return TINY


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Running]]:
    """Starts a command in a process group of its own; whatever is left of it is killed after the test."""
    started: list[Running] = []

    def begin(*overrides: str, command: tuple[str, ...] = COMMAND, name: str = "run", **environ: str) -> Running:
        run_dir, output = tmp_path / name, tmp_path / f"output-{len(started)}"
        variables = {key: value for key, value in os.environ.items() if "RANK" not in key} | {"OMP_NUM_THREADS": "1"}
        with open(output, "w") as stream:
            process = subprocess.Popen(
                [*command, f"run_dir={run_dir}", *overrides],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=variables | environ,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
            )
        started.append(Running(process, run_dir, output))
        return started[-1]

    yield begin
    for running in started:
        running.kill_all()


@pytest.fixture
def go_through() -> Callable[[str, Path, range], list[str]]:
    """Runs the cases of a script, `python SCRIPT FOLDER FIRST LAST`, and returns those that went wrong, a line each.

    The script prints `begins`, then how it ended, for every case. A child that crashes or hangs has done so in the case
    that it began last, and is followed by one that goes on after it.
    """

    def go(script: str, folder: Path, cases: range) -> list[str]:
        wrong, first = [], cases.start
        places = (*Path(__file__).parents[1:3], os.environ.get("PYTHONPATH", ""))  # of helpers.py and of the package
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
        while first < cases.stop:
            command = [sys.executable, script, str(folder), str(first), str(cases.stop)]
            output = folder / "output"
            with open(output, "w") as stream:
                process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environ)
                try:
                    status = str(process.wait(ENDS_WITHIN_SECONDS + 5 * (cases.stop - first)))
                except subprocess.TimeoutExpired:
                    process.kill()
                    status = "hangs"
            told = output.read_text(errors="replace")
            lines = [line.split("\t") for line in told.splitlines() if line.count("\t") == 2]
            assert lines, told
            wrong += [" ".join(line) for line in lines if line[0] in ("silent", "unnamed", "traceback")]
            if status != "0":
                wrong.append(f"status {status} in {' '.join(lines[-1])}: {told[-500:]}")
            first = int(lines[-1][1]) + 1
        return wrong

    return go
