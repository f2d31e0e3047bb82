"""Runs a method in a process of its own under a limit of memory and of time; running into either is an outcome.

The process's resident memory, and that of its children, is read ten times a second; over the limit, or past the time,
it is killed with them. (A limit on address space would not do: CUDA and thread pools reserve far more than they use.)
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.accuracy.methods import METHODS
from bench.accuracy.worker import Outcome

ROOT = Path(__file__).resolve().parents[2]
_WATCH_SECONDS = 0.1
_TAIL = 300


@dataclass(frozen=True)
class Limits:
    """What one method may use on one problem."""

    memory_bytes: int
    seconds: float
    threads: int
    device: str

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "seconds", "threads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device={self.device!r} must be cpu or cuda")


def run_method(method: str, folder: Path, limits: Limits) -> list[Outcome]:
    """The outcome of every row of `method` on the problem in `folder`."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; it is one of {', '.join(METHODS)}")
    with tempfile.TemporaryDirectory() as scratch:
        result, log = Path(scratch) / "result.json", Path(scratch) / "log"
        command = [sys.executable, "-m", "bench.accuracy.worker", method, str(folder), limits.device, str(result)]
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment(limits.threads),
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            verdict, peak = watch(process, limits)
        if result.is_file():
            outcomes = json.loads(result.read_text())
        else:
            said = verdict or ("failed", f"exit {process.returncode}: {_tail(log)}")
            outcomes = [{"row": row, "status": said[0], "reason": said[1]} for row in METHODS[method].rows]
        return [{**outcome, "peak_rss_bytes": peak} for outcome in outcomes]


def watch(process: "subprocess.Popen[bytes]", limits: Limits) -> tuple[tuple[str, str] | None, int]:
    """Waits for a process of its own session; (status, reason) where it had to be killed, and the peak memory seen."""
    started, peak, verdict = time.monotonic(), 0, None
    try:
        while process.poll() is None and verdict is None:
            peak = max(peak, _resident_bytes(process.pid))
            if peak > limits.memory_bytes:
                verdict = ("memory", f"over {limits.memory_bytes / 2**30:.3g} GiB")
            elif time.monotonic() - started > limits.seconds:
                verdict = ("time", f"over {limits.seconds:g} s")
            else:
                time.sleep(_WATCH_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # start_new_session made it the leader of its own group
            process.wait()
    return verdict, peak


def _resident_bytes(pid: int) -> int:
    try:
        parent = psutil.Process(pid)
        return sum(_rss(process) for process in (parent, *parent.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _environment(threads: int) -> dict[str, str]:
    count = str(threads)
    return {**os.environ, "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "NUMBA_NUM_THREADS": count}


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-_TAIL:]
