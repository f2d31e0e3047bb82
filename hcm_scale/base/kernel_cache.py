"""The folder in which compiled kernels are cached.

numba writes the files (`base/jit.py`). The folder's name decides when they are out of date:

    hcm_scale-VARIANT-DIGEST    VARIANT: hash of the package's path, the Python version and NUMBA_BOUNDSCHECK
                                DIGEST: hash of the source files below and of the versions of numba and numpy

An edit compiles everything again, so that no kernel is ever older than its sources, unless it is of a file without
kernels in a room above all that have some. When a folder is made, those of the same variant with other digests are
removed. It lies in NUMBA_CACHE_DIR where that is set, else in
the first of these that can be written: `__pycache__` of the package, the user's cache folder, a temporary folder. One
that cannot be written serves too if all kernels are there already, as in an image that was built by root.

Compiled code is a pickle, which can run anything: folders that everybody can write, or that belong to somebody other
than this user, root and the owner of the sources, are not used.

Triton keeps what it compiles for GPUs in a folder of its own. This module imports neither numba nor numpy.
"""

import contextlib
import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from hcm_scale.base.files import hash_file, hash_value

PACKAGE = Path(__file__).resolve().parents[1]
_MANY = 60  # kernels compiled: a default run needs about a hundred, other commands a few
_WITHOUT_KERNELS = [
    "cases",
    "cli",
    "config.py",
    "detector",
    "posterior",
    "ranks",
    "report",
    "review",
    "run",
    "serve",
    "stages",
    "sweep",
]


@functools.cache
def kernel_folder() -> Path | None:
    """The folder of compiled kernels, which is made if needed; None if no folder can be written."""
    identity = str(PACKAGE), sys.implementation.cache_tag, os.environ.get("NUMBA_BOUNDSCHECK", "")
    variant = hash_value(identity)[:8]
    name = f"hcm_scale-{variant}-{_digest()}"
    for parent in _parents():
        folder = parent / name
        is_new = not folder.exists()
        with contextlib.suppress(OSError):
            parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(mode=0o755, exist_ok=True)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
        if _is_trusted(parent) and _is_trusted(folder) and (is_writable or num_compiled(folder) >= _MANY):
            for old in parent.glob(f"hcm_scale-{variant}-{'?' * 16}") if is_new else ():
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            return folder
    return None


def is_compiled() -> bool:
    """Whether the kernels of a run were compiled before."""
    folder = kernel_folder()
    return folder is not None and num_compiled(folder) >= _MANY


def num_compiled(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.nbi"))


def _parents() -> Iterator[Path]:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given).resolve()
        return
    yield PACKAGE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # this user has no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "hcm_scale"
    yield Path(tempfile.gettempdir()).resolve() / f"hcm_scale-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _is_trusted(folder: Path) -> bool:
    """Whether a folder exists into which nobody else can put code; the sticky bit of /tmp keeps others out."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or not hasattr(os, "getuid"):
        return stat.S_ISDIR(status.st_mode)
    is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    return not is_open and status.st_uid in {os.getuid(), 0, PACKAGE.stat().st_uid}


def kernel_sources() -> list[str]:
    """The source files that compiled kernels depend on, by their names in the package."""
    named = ((path.relative_to(PACKAGE), path) for path in sorted(PACKAGE.rglob("*.py")))
    return [
        name.as_posix()
        for name, path in named
        if name.parts[0] not in _WITHOUT_KERNELS or b"base.jit import" in path.read_bytes()
    ]


def _digest() -> str:
    sources = [(name, hash_file(PACKAGE / name)) for name in kernel_sources()]
    return hash_value([sources, [version(name) for name in ("numba", "llvmlite", "numpy")]])[:16]
