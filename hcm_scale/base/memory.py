"""How much memory there is, whether work fits into it, and one error for when it runs out anyway.

Free memory is the least that any limit leaves:

    the machine     what the system calls available: free, or held by caches that it drops when asked
    cgroups         memory.max (version 2) or memory.limit_in_bytes (version 1) of this process's group and of those
                    above it, less what the group uses; pages of files, which the system drops, do not count as used
    the user        world.memory_gib, less what this process holds already: its libraries count
    the shell       `ulimit -v` (RLIMIT_AS), less the address space in use: mapped files count there, resident or not

A limit that cannot be read is ignored. What a process holds is its resident memory without pages of files (RssAnon). A
`Need` is what work will take beyond that: bytes held, and bytes of mapped files, which the system drops under pressure
but which take address space, as every thread does. A `Budget` compares.

When memory runs out, Python and numba raise MemoryError, numpy and pyarrow subclasses of it, torch a RuntimeError, the
system an OSError 12, a thread without room for its stack a RuntimeError, and a library that cannot be loaded an
ImportError. `raising_out_of_memory` turns them all into OutOfMemoryError.
"""

import contextlib
import ctypes
import errno
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from hcm_scale.base import cgroups

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_UNBOUNDED = 1 << 60  # version 1 writes "no limit" as a huge number
_THREAD_ADDRESS = 72 << 20  # of a stack, and of what malloc sets aside for a thread
_ARENA_MAX = -8  # of glibc's mallopt: for how many threads malloc sets memory aside
_SHORTAGE = ("allocate memory", "bad_alloc", "start new thread", "not enough memory", "out of memory", "map segment")
Choice = TypeVar("Choice")


class Free(NamedTuple):
    """Bytes that may still be held, which limit that is, and bytes of address space, None if unlimited."""

    held: int
    bound: str
    address: int | None = None


def _address_space() -> int | None:
    """Bytes that `ulimit -v` leaves; None if there is no such limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else max(0, limit - _status_bytes("VmSize"))


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def anonymous_bytes() -> int:
    """Resident bytes of this process without mapped files; 0 if the system does not say."""
    return _status_bytes("RssAnon")


def peak_rss_bytes() -> int:
    """The highest resident memory of this process since `reset_peak_rss`, or since its start."""
    if peak := _status_bytes("VmHWM"):
        return peak
    if resource is None:
        return psutil.Process().memory_info().peak_wset  # as Windows calls it
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak_rss() -> None:
    """Forgets the highest resident memory so far; does nothing where the system has no such switch."""
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")


def _status_bytes(name: str) -> int:
    """One line of /proc/self/status, in bytes; 0 if the system does not say."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def cgroup_limits(own: Path = cgroups.OWN, root: Path = cgroups.ROOT) -> Iterator[tuple[int, int]]:
    """(limit, used), in bytes, of every cgroup with a limit that this process is in, whichever the version.

    Both lists of file pages are reclaimed before the group is refused memory; tmpfs is in neither.
    """
    for folder, version in cgroups.own_groups("memory", own, root):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            limit, used = (int((folder / name).read_text()) for name in names)
            counts = dict(entry.split() for entry in (folder / "memory.stat").read_text().splitlines())
            if limit < _UNBOUNDED:
                prefix = "" if version == 2 else "total_"
                cached = sum(int(counts.get(f"{prefix}{kind}", 0)) for kind in ("active_file", "inactive_file"))
                yield limit, max(0, used - cached)


class Need(NamedTuple):
    """What work will take beyond what the process has: bytes held, bytes of mapped files; options that reduce it."""

    held: int
    mapped: int = 0
    change: str = ""


_LIBRARIES = Need(240 << 20, 1000 << 20)  # torch, numba, pyarrow and scipy, loaded


@dataclass(frozen=True)
class Budget:
    """The memory that a rank may take: its share of what is free, or of what the user allows for whole processes."""

    allowed_bytes: int | None = None
    sharers: int = 1
    num_threads: int = 1
    spare_bytes: int = 0  # left free by whoever chooses a way, for work that is not a stage's own

    def free(self) -> Free:
        """The share of one rank, now."""
        held, bound = psutil.virtual_memory().available, "free on this machine"
        for limit, used in cgroup_limits():
            if limit - used < held:
                held, bound = max(0, limit - used), f"left of the {gib(limit)} of this container"
        if self.allowed_bytes is not None:
            held, bound = self.allowed_bytes, "allowed by world.memory_gib"
        if self.sharers > 1:
            bound = f"this rank's share of {gib(held)} {bound}"
        if self.allowed_bytes is None:
            return Free(held // self.sharers, bound, _address_space())
        held = (held - self._parent_bytes) // self.sharers - anonymous_bytes()
        return Free(max(0, held), f"left of what is {bound}", _address_space())

    @property
    def _parent_bytes(self) -> int:
        """What the process that started several ranks holds."""
        return _LIBRARIES.held if self.sharers > 1 else 0

    def least_gib(self, need: Need) -> float:
        """The smallest world.memory_gib in which this need fits, in hundredths, one of them to spare."""
        whole = (need.held + anonymous_bytes()) * self.sharers + self._parent_bytes
        return math.ceil(whole / 2**30 * 100 + 1) / 100

    def lacks(self, *needs: Need) -> str:
        """Message saying which limit these needs together exceed; empty if they fit.

        >>> Budget(1).lacks(Need(3 << 30))
        'about 3.00 GiB more memory are needed and 0.00 GiB are left of what is allowed by world.memory_gib'
        """
        free, held = self.free(), sum(need.held for need in needs)
        if held > free.held:
            more = "more memory" if self.allowed_bytes is not None else "of memory"
            return f"about {gib(held)} {more} are needed and {gib(free.held)} are {free.bound}"
        address = held + sum(need.mapped for need in needs) + self.num_threads * _THREAD_ADDRESS
        if free.address is not None and address > free.address:
            return f"about {gib(address)} of address space are needed and `ulimit -v` leaves {gib(free.address)}"
        return ""

    def choose(self, ways: Sequence[tuple[Choice, Need]]) -> tuple[Choice, Need]:
        """The first of several ways to work that fits, the fastest being first; the last if none does."""
        return next((way for way in ways if not self.lacks(way[1], Need(self.spare_bytes))), ways[-1])


def check_start() -> None:
    """ValueError if the libraries do not fit into memory: one of them would wait for ever.

    Under `ulimit -v` nothing sets address space aside: where there is a GiB more of it, the allocator of torch and
    Arrow would take that, and leave less to the rest; so would malloc, for every thread.
    """
    if lacked := Budget(num_threads=0).lacks(_LIBRARIES):
        raise ValueError(f"before any data is read {lacked}")
    if _address_space() is not None:
        os.environ.setdefault("MIMALLOC_ARENA_RESERVE", "0")
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # of the ranks that this process starts
        _call_libc("mallopt", _ARENA_MAX, 1)


def release_unused() -> None:
    """Gives freed memory back to the system, so that what one stage held is not held in the next."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    _call_libc("malloc_trim", 0)


def _call_libc(function: str, *numbers: int) -> None:
    """Calls a function of glibc; does nothing where there is none."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*numbers)


class OutOfMemoryError(MemoryError):
    """Memory ran out; the message says in which work."""


@contextlib.contextmanager
def raising_out_of_memory(where: str) -> Iterator[None]:
    """Within the block, errors that mean that memory ran out become an OutOfMemoryError that says where."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        if not _is_shortage(error):
            raise
        said = str(error).partition("\n")[0]
        raise OutOfMemoryError(f"{where}: memory ran out{said and f' ({said})'}") from error


def _is_shortage(error: BaseException) -> bool:
    """Whether an error means that there is no memory left, or no room for a thread."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    may_be = isinstance(error, RuntimeError | OSError | ImportError)
    return may_be and any(words in str(error).lower() for words in _SHORTAGE)
