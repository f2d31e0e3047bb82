"""Work done at the same time in threads of one process, which ends as one: all of it, or the first error.

A thread cannot be stopped from outside. Long work asks now and then whether it is still wanted (`check_wanted`), and is
told no once other work beside it has failed or the user has interrupted.
"""

import contextlib
import contextvars
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray

# ----------------------------------------------------------------------------
# Kernels on all threads: ranges of tasks, each taken by whoever is free.
#
# Plain threads can do this because kernels run without the GIL. numba's `prange` runs no faster, and makes a kernel
# take two to four times as long to compile. `numba.set_num_threads` says how many threads there are. Who makes a task
# never shows in what it writes: a task writes what is its own, or adds integers. Between two parts a signal is
# answered.


_PARTS_PER_THREAD = 16  # a part of hubs then does not keep the other threads waiting
Part = TypeVar("Part")
Made = TypeVar("Made")


def run_in_threads(num_tasks: int, kernel: Callable[..., Any], *arguments: Any) -> None:
    """Calls kernel((first, last), *arguments) for ranges that make up the tasks 0 .. num_tasks - 1."""
    threads = min(numba.get_num_threads(), num_tasks)
    parts = max(1, min(num_tasks, threads * _PARTS_PER_THREAD))
    bounds = [num_tasks * i // parts for i in range(parts + 1)]
    share_parts(threads, itertools.pairwise(bounds), lambda _, part: kernel(part, *arguments))


def run_in_slices(length: int, work: Callable[[slice], Any], size: int = 1 << 18) -> None:
    """Calls work(part) for slices that make up 0 .. length - 1: numpy lets go of the GIL while it computes.

    Slices do not depend on the number of threads, nor does what is computed from each alone.
    """
    parts = [slice(first, min(first + size, length)) for first in range(0, length, size)]
    share_parts(min(numba.get_num_threads(), len(parts)), parts, lambda _, part: work(part))


def map_slices(length: int, work: Callable[[slice], Any], size: int = 1 << 18) -> list[Any]:
    """What work(part) returns of each slice, in their order.

    >>> map_slices(5, lambda part: (part.start, part.stop), size=2)
    [(0, 2), (2, 4), (4, 5)]
    """
    found: dict[int, Any] = {}

    def keep(part: slice) -> None:
        found[part.start] = work(part)

    run_in_slices(length, keep, size)
    return [found[first] for first in sorted(found)]


def positions_where(length: int, mask: Callable[[slice], NDArray[Any]]) -> NDArray[np.int64]:
    """The positions, in order, where mask(part) is not 0, of slices that make up 0 .. length - 1.

    >>> positions_where(4, lambda part: np.array([3, 0, 0, 5])[part]).tolist()
    [0, 3]
    """
    found = map_slices(length, lambda part: part.start + np.flatnonzero(mask(part)))
    return np.concatenate([np.empty(0, np.int64), *found])


@contextlib.contextmanager
def kernel_threads(num_threads: int) -> Iterator[None]:
    """Has the kernels that this thread calls work with so many threads, for a while."""
    had = numba.get_num_threads()
    numba.set_num_threads(num_threads)
    try:
        yield
    finally:
        numba.set_num_threads(had)


def map_in_order(num_threads: int, parts: Iterable[Part], work: Callable[[Part], Made]) -> Generator[Made]:
    """work(part) for every part, in order. Threads make those that come next: as many as they are, and one more.

    An error is raised in its turn. Who stops early closes the iterator, which waits for what was begun.

    >>> list(map_in_order(2, "abc", str.upper))
    ['A', 'B', 'C']
    """
    with ThreadPoolExecutor(num_threads) as pool:
        waiting = iter(parts)
        coming = deque(pool.submit(work, part) for part in itertools.islice(waiting, num_threads + 1))
        while coming:
            yield coming.popleft().result()
            coming.extend(pool.submit(work, part) for part in itertools.islice(waiting, 1))


def share_parts(num_threads: int, parts: Iterable[Part], work: Callable[[int, Part], Any]) -> None:
    """Calls work(me, part) for every part; `me` numbers the thread, 0 being this one. The first error is raised here.

    >>> made = []
    >>> share_parts(2, "abc", lambda me, part: made.append(part))
    >>> sorted(made)
    ['a', 'b', 'c']
    """
    waiting = iter(list(parts))
    errors: list[BaseException] = []

    def run(me: int) -> None:
        try:
            for part in waiting:
                if errors:
                    return
                work(me, part)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=run, args=(me,)) for me in range(1, num_threads)]
    try:
        for helper in helpers:
            helper.start()
        run(0)
        for helper in helpers:
            helper.join()
    except BaseException as error:  # a signal while the others work: they end with the parts that they are at
        errors.append(error)
    for helper in helpers:
        if helper.ident is not None:
            helper.join()
    if errors:
        raise errors[0]


# ----------------------------------------------------------------------------
# How many cores this process may use; macOS and Windows tell how many the machine has.


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ----------------------------------------------------------------------------
# How many threads torch works with, for a while.
#
# Threads that share a small product wait for each other longer than they work, and on cores that others use too they
# wait for a turn of the scheduler at every product: a step of training then takes ten times as long with two threads
# as with one.


@contextlib.contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Has torch work with so many threads; None leaves it alone."""
    had = torch.get_num_threads()
    if num_threads is None or num_threads == had:  # setting the same number costs as much as a small product
        yield
        return
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(had)


Result = TypeVar("Result")
_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("unwanted", default=None)


class CancelledError(RuntimeError):
    """Ends work that is no longer wanted, because other work beside it has failed."""


def check_cancelled() -> None:
    """Raises UnwantedError where the work of this thread is no longer wanted."""
    unwanted = _cancelled.get()
    if unwanted is not None and unwanted.is_set():
        raise CancelledError("other work beside this has failed")


def run_concurrently(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks; the first runs in this thread, where an interrupt arrives. The first error is raised.

    Kernels of every task use as many threads as those of the caller.

    >>> run_concurrently([lambda: 1, lambda: 2])
    [1, 2]
    """
    unwanted, ended = threading.Event(), [threading.Event() for _ in tasks]
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    kernels = sys.modules.get("numba")  # not imported here: it takes half a second, and some callers have no kernels
    num_threads = kernels.get_num_threads() if kernels else 0

    def run(index: int) -> None:
        _cancelled.set(unwanted)
        try:
            if kernels:
                kernels.set_num_threads(num_threads)
            results[index] = tasks[index]()
        except BaseException as error:
            errors.append(error)
            unwanted.set()
        finally:
            ended[index].set()

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, index), daemon=True)
        for index in range(1, len(tasks))
    ]
    for thread in threads:
        thread.start()
    contextvars.copy_context().run(run, 0)
    try:
        for event in ended:  # not `join`, which takes a thread for ended once it was interrupted
            event.wait()
    except BaseException as error:
        errors.append(error)
        unwanted.set()
        for event in ended:
            event.wait()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(tasks))]
