"""The folders in which compiled kernels are kept, and who writes there.

For the kernels of a source folder these are tried in turn, up to the first that can be written:

    NUMBA_CACHE_DIR        where it is set
    __pycache__            beside the source
    the user's cache       $XDG_CACHE_HOME/hcm_scale or ~/.cache/hcm_scale
    a temporary folder     hcm_scale-UID where the system keeps those

Code is loaded from all of them, so that what was compiled into an image serves a user who may not write there. Compiled
code is a pickle, which can do anything: a folder that everybody can write, or that belongs to somebody other than this
user, root and the owner of the source, is passed over, and the last two must be this user's alone.
"""

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
_LOCK = "kernels.nbc.lock"
_WAIT_SECONDS, _LOOK_SECONDS = 60.0, 0.02
_LOCKS = 1 << 30  # bytes of the lock file, one for each file that may be made: two that share one wait for each other


@functools.cache
def folders(source: Path) -> tuple[Path, ...]:
    """Where to look for the kernels of a source folder."""
    found: list[Path] = []
    for folder, is_private in _candidates(source):
        if _can_trust(folder, is_private, source):
            found.append(folder)
            if _can_write(folder):
                break
    return tuple(found)


@functools.cache
def writable(source: Path) -> Path | None:
    """Where to keep the kernels of a source folder; None where that is nowhere. The log is told what is unusual."""
    last = next(reversed(folders(source)), None)
    found = last if last is not None and _can_write(last) else None
    if found is None:
        _tell("compiled kernels cannot be kept, as no folder can be written: set NUMBA_CACHE_DIR to one that can")
    elif found != source / "__pycache__":
        _tell(f"compiled kernels are kept in {found.parent}")
    return found


def write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """While this is open no other process makes the file; true where one was at it, and has ended or took too long.

    The lock of a process that dies is gone with it.
    """
    place = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "little") % _LOCKS
    until, waited = time.monotonic() + _WAIT_SECONDS, False
    file = None if fcntl is None else _lock_file(path.parent)
    while file is not None and time.monotonic() < until:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            break
        except BlockingIOError:
            waited = True
            time.sleep(_LOOK_SECONDS)
        except OSError:  # no locks here
            break
    try:
        yield waited
    finally:
        with contextlib.suppress(OSError):
            if file is not None:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


@functools.cache
def _lock_file(folder: Path) -> int | None:
    """A descriptor that stays open: closing it would give up every lock that this process holds in the folder."""
    with contextlib.suppress(OSError):
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    return None


@functools.cache
def _tell(message: str) -> None:
    log.info("%s", message)


def _candidates(source: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it must be this user's alone)."""
    name = f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / name, False
    yield source / "__pycache__", False
    with contextlib.suppress(RuntimeError):  # this user has no home
        home = os.environ.get("XDG_CACHE_HOME")
        yield (Path(home) if home else Path.home() / ".cache") / "hcm_scale" / name, True
    yield Path(tempfile.gettempdir()) / f"hcm_scale-{_user()}" / name, True


def _can_trust(folder: Path, is_private: bool, source: Path) -> bool:
    """Makes the folder where it can be made; whether it is there, and nobody else puts code into it."""
    with contextlib.suppress(OSError):
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for part in (folder.parent, folder):
            with contextlib.suppress(OSError):
                part.mkdir(mode=0o700 if is_private else 0o755, exist_ok=True)
        owners = {_user()} if is_private else {_user(), 0, source.stat().st_uid}
        for part in (folder.parent, folder) if is_private else (folder,):
            found = part.lstat()
            if part.is_symlink() or found.st_uid not in owners or found.st_mode & (0o022 if is_private else 0o002):
                return False
        return folder.is_dir()
    return False


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
