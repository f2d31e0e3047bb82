"""Whether work fits into memory, asked before it begins, and which of several ways to do it does.

Bytes held are the process's own; pages of mapped files are not, because the system drops them when it needs them. Both
take address space, which `ulimit -v` bounds, and so does every thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hcm_scale.base.free_memory import Free, free_memory, gib

_THREAD_ADDRESS = 72 << 20  # of a stack, and of what malloc sets aside for a thread
Choice = TypeVar("Choice")


class Need(NamedTuple):
    """What work will take beyond what the process has: bytes held, bytes of files mapped; options that make it less."""

    held: int
    mapped: int = 0
    change: str = ""


_LIBRARIES = Need(200 << 20, 1000 << 20)  # torch, numba, pyarrow and scipy, loaded


@dataclass(frozen=True)
class Budget:
    """What may be taken: what is free, or what the user allows, shared by the ranks of one machine."""

    allowed_bytes: int | None = None
    sharers: int = 1
    num_threads: int = 1

    def free(self) -> Free:
        """The share of one rank, now."""
        return free_memory(self.allowed_bytes, self.sharers)

    def lacks(self, *needs: Need) -> str:
        """What there is too little of for work with these needs at the same time, in words; empty where it fits."""
        held, mapped = sum(need.held for need in needs), sum(need.mapped for need in needs)
        return lack(Need(held, mapped + self.num_threads * _THREAD_ADDRESS), self.free())

    def choose(self, ways: Sequence[tuple[Choice, Need]]) -> tuple[Choice, Need]:
        """The first way, the fastest being first, that fits; the last where none does."""
        return next((way for way in ways if not self.lacks(way[1])), ways[-1])


def check_start() -> None:
    """Refuses to load libraries where they do not fit: one of them waits for memory for ever."""
    if lacked := lack(_LIBRARIES, free_memory()):
        raise ValueError(f"before any data is read {lacked}")


def lack(need: Need, free: Free) -> str:
    """What there is too little of, in words; empty where there is enough.

    >>> lack(Need(3 << 30), Free(1 << 30, "free on this machine"))
    'about 3.00 GiB of memory are needed and 1.00 GiB are free on this machine'
    """
    if need.held > free.held:
        return f"about {gib(need.held)} of memory are needed and {gib(free.held)} are {free.bound}"
    address = need.held + need.mapped
    if free.address is not None and address > free.address:
        return f"about {gib(address)} of address space are needed and `ulimit -v` leaves {gib(free.address)}"
    return ""
