"""Kernels compiled ahead, in a process of their own, while a run that starts cold does its first stages.

numba compiles under one lock and holds the GIL, so a thread would gain nothing; a second process uses a second core. It
walks `hcm_scale.warm` from the last stage backwards and meets the run half way: who needs what the other is compiling
waits for it (`kept.alone`). It may die or be late: the run then compiles by itself. It ends with the run.

A stamp beside the compiled kernels says that all were compiled for the package as it is: no process is then started,
which is found out from the names, sizes and times of the package's files alone.
"""

import atexit
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hcm_scale.base import kept
from hcm_scale.base.cores import num_cores

PACKAGE = Path(__file__).resolve().parents[1]
_STAMP = "ready.nbc."
_CODE = "from hcm_scale.base.parent import end_with_parent as first; first(); from hcm_scale.warm import main; main()"
_running: list[subprocess.Popen[bytes]] = []


def start() -> None:
    """Starts compiling ahead, where something may be missing, can be kept, and there is a core for it."""
    if _running or is_ready() or kept.writable(PACKAGE) is None or num_cores() < 2:
        return
    scratch = tempfile.mkdtemp(prefix="hcm-scale-ahead-")
    command = [sys.executable, "-c", _CODE, scratch]
    quiet = subprocess.DEVNULL
    _running.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))
    atexit.register(stop, scratch)


def stop(scratch: str) -> None:
    """Ends the process, finished or not, and removes its files."""
    for process in _running:
        process.kill()
        process.wait()
    _running.clear()
    shutil.rmtree(scratch, ignore_errors=True)


def num_compiling() -> int:
    """Processes that compile for this run, itself among them."""
    return 1 + sum(process.poll() is None for process in _running)


def is_ready() -> bool:
    """Whether everything was compiled for the package as it is."""
    return any((folder / stamp()).exists() for folder in kept.folders(PACKAGE))


def set_ready(name: str) -> None:
    """Notes that everything is compiled for the package of this stamp."""
    target = kept.writable(PACKAGE)
    if target is not None:
        for old in target.glob(f"{_STAMP}*"):
            old.unlink(missing_ok=True)
        (target / name).touch()


def stamp() -> str:
    """The name of the file that says that everything was compiled for the package as it is."""
    numba = importlib.util.find_spec("numba")
    sources = [*sorted(PACKAGE.rglob("*.py")), *([Path(numba.origin)] if numba and numba.origin else [])]
    known = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    where = sys.implementation.cache_tag, os.environ.get("NUMBA_BOUNDSCHECK")
    return f"{_STAMP}{hashlib.sha256(repr((known, where)).encode()).hexdigest()[:20]}"
