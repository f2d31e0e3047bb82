"""One job in a process of its own: seconds, peak memory, and what ended it.

A job is a function `job(**arguments) -> run`: calling it prepares (imports, compilation, opening files), and `run()`,
of which alone time and memory are measured, returns a dict of facts. `run_apart` starts it under a cap of the address
space and of time. Running out of either is a result, not an error.

`process_seconds` is the whole life of the process instead, from its start to its end, as somebody who types a command
waits for it.

Peak RSS counts pages of mapped files too, which the system may drop at will; peak anonymous memory does not. The first
is the process's own high-water mark since it was prepared, the second is polled from outside every 10 ms.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hcm_scale.base.memory import peak_rss_bytes, reset_peak_rss

Job = Callable[..., Callable[[], dict[str, Any]]]
_POLL_SECONDS = 0.01
_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "cannot allocate memory", "bad_alloc", "MemoryError")
_READY, _DONE = "ready", "done"


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `state` is "done", or says why it did not get there."""

    state: str
    seconds: float = float("nan")
    peak_rss_bytes: float = float("nan")
    peak_anonymous_bytes: float = float("nan")
    process_seconds: float = float("nan")
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.state == "done"


def run_apart(
    job: Job,
    arguments: dict[str, Any],
    *,
    limit_seconds: float,
    cap_bytes: int | None = None,
    apart: bool = True,
    environment: dict[str, str] | None = None,
    cores: Sequence[int] = (),
) -> Outcome:
    """Runs a module-level job in a process of its own; with `apart` off in this one, which smoke tests use.

    `environment` adds to the variables of that process, `cores` are those that it may use; none: all.
    """
    if not apart:
        return _run_here(job, arguments)
    name = f"{job.__module__}:{job.__qualname__}"
    command = [
        sys.executable,
        "-m",
        "bench.apart",
        name,
        json.dumps(arguments),
        str(cap_bytes or 0),
        json.dumps(list(cores)),
    ]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaints:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=os.environ | (environment or {}),
            cwd=Path(__file__).parents[1],
            stdout=said,
            stderr=complaints,
            start_new_session=True,  # a job may have workers of its own: they go with it
        )
        try:
            peak, in_time = _watch(process, said.fileno(), limit_seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lived = time.perf_counter() - started
        if not in_time:
            return Outcome(f"over {limit_seconds:g} s", peak_anonymous_bytes=peak)
        said.seek(0)
        complaints.seek(0)
        texts = said.read().decode(), complaints.read().decode(errors="replace")
        return replace(_outcome(process.returncode, *texts, peak), process_seconds=lived)


def _run_here(job: Job, arguments: dict[str, Any]) -> Outcome:
    run = job(**arguments)
    started = time.perf_counter()
    facts = run()
    seconds = time.perf_counter() - started
    return Outcome("done", seconds, peak_rss_bytes(), process_seconds=seconds, facts=facts)


def _watch(process: "subprocess.Popen[bytes]", output: int, limit_seconds: float) -> tuple[float, bool]:
    """Waits; (the most anonymous memory seen since the job was prepared, whether it ended in time).

    Preparing has the same limit as the run, and a clock of its own.
    """
    peak, prepared, started = 0, False, time.perf_counter()
    while process.poll() is None:
        if time.perf_counter() - started > limit_seconds:
            return peak, False
        if not prepared and os.fstat(output).st_size > 0:
            peak, prepared, started = 0, True, time.perf_counter()
        peak = max(peak, _anonymous_bytes(process.pid))
        time.sleep(_POLL_SECONDS)
    return peak, True


def _anonymous_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _outcome(code: int, said: str, complaints: str, peak: float) -> Outcome:
    """What the process printed and how it ended, read as a result."""
    last = said.splitlines()[-1] if said else ""
    if code == 0 and last.startswith(_DONE):
        return Outcome("done", peak_anonymous_bytes=peak, **json.loads(last.removeprefix(_DONE)))
    if any(word.lower() in complaints.lower() for word in _MEMORY_WORDS) or code == -signal.SIGKILL:
        return Outcome("out of memory", peak_anonymous_bytes=peak)
    reason = complaints.strip().splitlines()[-1][:160] if complaints.strip() else f"exit code {code}"
    return Outcome(f"failed: {reason}", peak_anonymous_bytes=peak)


def main(name: str, arguments: str, cap_bytes: int, cores: list[int]) -> None:
    """The other side: prepares, says so, runs, and prints what was measured."""
    if cores:
        os.sched_setaffinity(0, cores)
    if cap_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (cap_bytes, cap_bytes))
    module, function = name.split(":")
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the job itself prints is not the result
    run = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(_READY, file=said, flush=True)
    reset_peak_rss()
    started = time.perf_counter()
    facts = run()
    seconds = time.perf_counter() - started
    body = {"seconds": seconds, "peak_rss_bytes": peak_rss_bytes(), "facts": facts}
    print(f"{_DONE}{json.dumps(body)}", file=said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
