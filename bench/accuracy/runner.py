"""Runs a method in a process of its own under a limit of memory and of time; running into either is an outcome.

The process is forked from a server that has imported what methods need and done nothing else, so that it starts at
once; for a GPU it is started afresh, because imports touch the driver and no forked child could use it then. Its
resident memory, and that of its children, is read ten times a second; over the limit, or past the time, it is killed
with them. (A limit on address space would not do: CUDA and thread pools reserve far more than they use.)
"""

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from bench.accuracy import worker
from bench.accuracy.methods import METHODS
from bench.accuracy.worker import Outcome

CONTEXT = get_context("forkserver")
Process = ForkServerProcess | SpawnProcess
_IMPORTED = [
    "bench.accuracy.worker",
    "bench.accuracy.hcm",
    "bench.accuracy.problem",
    "sklearn.neighbors",
    "pygod.detector",
]
_PROCESSES = threading.Lock()  # multiprocessing keeps one list of children for all threads
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


def start_server(threads: int) -> None:
    """Starts the server unless one runs; kernels and linear algebra in all its children use so many threads."""
    with _PROCESSES, mock.patch.dict(os.environ, _variables(threads)):  # two at once would leave the variables behind
        CONTEXT.set_forkserver_preload(_IMPORTED)
        forkserver.ensure_running()


def _variables(threads: int) -> dict[str, str]:
    return {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


def run_method(method: str, folder: Path, limits: Limits, stop: threading.Event | None = None) -> list[Outcome]:
    """The outcome of every row of `method` on the problem in `folder`; `stop` ends it, from another thread."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; it is one of {', '.join(METHODS)}")
    start_server(limits.threads)
    with tempfile.TemporaryDirectory() as scratch:
        result, log = Path(scratch) / "result.json", Path(scratch) / "log"
        process = start(log, limits, worker.work, method, folder, limits.device, result)
        verdict, peak = watch(process, limits, stop)
        if result.is_file():
            outcomes = json.loads(result.read_text())
        else:
            said = verdict or ("failed", f"exit {process.exitcode}: {_tail(log)}")
            outcomes = [{"row": row, "status": said[0], "reason": said[1]} for row in METHODS[method].rows]
        return [{**outcome, "peak_rss_bytes": peak} for outcome in outcomes]


def start(log: Path, limits: Limits, function: Callable[..., Any], *arguments: Any) -> Process:
    """Calls a function in a process of its own, which leads a session of its own and writes what it says to `log`."""
    context = get_context("spawn") if limits.device == "cuda" else CONTEXT
    process = context.Process(target=_apart, args=(log, function, *arguments))
    with _PROCESSES, mock.patch.dict(os.environ, _variables(limits.threads)):
        process.start()
    return process


def _apart(log: Path, function: Callable[..., Any], *arguments: Any) -> None:
    os.setsid()
    said = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    function(*arguments)


def watch(process: Process, limits: Limits, stop: threading.Event | None = None) -> tuple[tuple[str, str] | None, int]:
    """Waits for a process; (status, reason) where it had to be killed, and the peak memory seen."""
    assert process.pid is not None, "a process that was started has a number"
    started, peak, verdict = time.monotonic(), 0, None
    try:
        while _is_alive(process) and verdict is None:
            peak = max(peak, _resident_bytes(process.pid))
            if peak > limits.memory_bytes:
                verdict = ("memory", f"over {limits.memory_bytes / 2**30:.3g} GiB")
            elif time.monotonic() - started > limits.seconds:
                verdict = ("time", f"over {limits.seconds:g} s")
            elif stop is not None and stop.is_set():
                verdict = ("stopped", "the run was ended")
            else:
                time.sleep(_WATCH_SECONDS)
    finally:
        while _is_alive(process):
            _kill(process, process.pid)
            time.sleep(_WATCH_SECONDS / 10)
    return verdict, peak


def _is_alive(process: Process) -> bool:
    with _PROCESSES:
        return process.is_alive()


def _kill(process: Process, pid: int) -> None:
    """With its children, once it leads a session; it may not have come that far."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


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


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-_TAIL:]
