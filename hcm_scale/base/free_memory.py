"""What this process may still take of memory: the least that any limit leaves.

    the machine     what the system calls available: free, or held by caches that it drops when asked
    a cgroup        memory.max (version 2) or memory.limit_in_bytes (version 1) of this process's group and of those
                    above it, less what the group uses; file caches that can be dropped do not count as used
    the shell       `ulimit -v` (RLIMIT_AS), less the address space in use: mapped files count there, resident or not

A number that cannot be read bounds nothing.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")
_UNBOUNDED = 1 << 60  # version 1 writes "no limit" as a huge number


class Free(NamedTuple):
    """Bytes that may still be held and whose limit that is; bytes of address space, None where they are unlimited."""

    held: int
    bound: str
    address: int | None = None


def free_memory(allowed: int | None = None, sharers: int = 1) -> Free:
    """An even share of what is free now, or of what the user allows, where several processes take from it."""
    held, bound = psutil.virtual_memory().available, "free on this machine"
    for limit, used in cgroup_limits():
        if limit - used < held:
            held, bound = max(0, limit - used), f"left of the {gib(limit)} of this container"
    if allowed is not None:
        held, bound = allowed, "allowed by world.memory_gib"
    if sharers > 1:
        bound = f"this rank's share of {gib(held)} {bound}"
    return Free(held // sharers, bound, _address_space())


def _address_space() -> int | None:
    """Bytes that `ulimit -v` leaves; None where there is no such limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else max(0, limit - _status_bytes("VmSize"))


def gib(num_bytes: int) -> str:
    """Bytes as a person reads them."""
    return f"{num_bytes / 2**30:.2f} GiB"


def anonymous_bytes() -> int:
    """What this process holds itself, without the pages of mapped files; 0 where the system does not say."""
    return _status_bytes("RssAnon")


def _status_bytes(name: str) -> int:
    """One line of /proc/self/status, in bytes."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def cgroup_limits(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> Iterator[tuple[int, int]]:
    """(limit, used), in bytes, of every cgroup with a limit that this process is in, whichever the version."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _limits(root / "memory", path, *names)


def _limits(mount: Path, path: str, limit: str, used: str, cached: str) -> Iterator[tuple[int, int]]:
    """The group at `path` and those above it; in a container the mount itself may be the group."""
    group = mount / path.lstrip("/")
    for place in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            bytes_allowed, bytes_used = int((place / limit).read_text()), int((place / used).read_text())
            counts = dict(entry.split() for entry in (place / "memory.stat").read_text().splitlines())
            if bytes_allowed < _UNBOUNDED:
                yield bytes_allowed, bytes_used - int(counts.get(cached, 0))
        if place == mount:
            return
