"""Work in threads of one process: kernels on parts of arrays, and whole tasks beside each other.

Kernels release the GIL, so plain threads run them on all cores. numba's `prange` is no faster, and makes a kernel take
two to four times as long to compile. `numba.set_num_threads` says how many threads there are. A part writes what is its
own, or adds integers, so results do not depend on which thread takes it. Signals are answered between two parts.

A thread cannot be stopped from outside. Long tasks of `run_concurrently` call `check_cancelled` now and then, which
raises once a task beside them has failed or the user has interrupted.

numba, numpy and torch are imported where they are used: the command line starts without them.
"""

import contextlib
import contextvars
import itertools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from hcm_scale.base.cgroups import cpu_quota

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Part = TypeVar("Part")
Result = TypeVar("Result")
_PARTS_PER_THREAD = 16  # a part of hubs then does not keep the other threads waiting
_SLICE = 1 << 18
_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancelled", default=None)


def num_cores() -> int:
    """Cores that this process may use, by its affinity and the quota of its container, where the system says so."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return usable if quota is None else max(1, min(usable, math.ceil(quota)))


def run_in_threads(num_tasks: int, kernel: Callable[..., Any], *arguments: Any) -> None:
    """Calls kernel((first, last), *arguments) for ranges that make up the tasks 0 .. num_tasks - 1."""
    import numba

    threads = min(numba.get_num_threads(), num_tasks)
    num_ranges = max(1, min(num_tasks, threads * _PARTS_PER_THREAD))
    bounds = [num_tasks * i // num_ranges for i in range(num_ranges + 1)]
    share_parts(threads, itertools.pairwise(bounds), lambda _, tasks: kernel(tasks, *arguments))


def run_in_slices(length: int, work: Callable[[slice], Any], size: int = _SLICE) -> None:
    """Calls work(part) for slices that make up 0 .. length - 1; for numpy, which releases the GIL while it computes."""
    map_slices(length, work, size)


def map_slices(length: int, work: Callable[[slice], Result], size: int = _SLICE) -> list[Result]:
    """The results of work(part) for slices that make up 0 .. length - 1, in order, whatever the number of threads.

    >>> map_slices(5, lambda part: (part.start, part.stop), size=2)
    [(0, 2), (2, 4), (4, 5)]
    """
    import numba

    chunks = [slice(first, min(first + size, length)) for first in range(0, length, size)]
    results: dict[int, Result] = {}
    threads = min(numba.get_num_threads(), len(chunks))
    share_parts(threads, chunks, lambda _, chunk: results.__setitem__(chunk.start, work(chunk)))
    return [results[chunk.start] for chunk in chunks]


def positions_where(length: int, mask: "Callable[[slice], NDArray[Any]]") -> "NDArray[np.int64]":
    """The positions, in order, where mask(part) is not 0, for slices that make up 0 .. length - 1.

    >>> import numpy as np
    >>> positions_where(4, lambda part: np.array([3, 0, 0, 5])[part]).tolist()
    [0, 3]
    """
    import numpy as np

    positions = map_slices(length, lambda chunk: chunk.start + np.flatnonzero(mask(chunk)))
    return np.concatenate([np.empty(0, np.int64), *positions])


def prefetch(
    items: Iterable[Part], make: Callable[[Part], Result], *, depth: int, workers: int = 1
) -> Generator[Result]:
    """Yields make(item) in order, prepared ahead by `workers` threads; one more takes the items from their iterator.

    At most `depth` results are ready or in the making. An error, of the iterator or of `make`, is raised where its
    result would have come, and nothing after it is yielded. Closing the generator early, or dropping it, stops the
    threads and closes the iterator. `make` should spend its time without the GIL and leave the thread pools of torch
    and numba to the consumer.

    >>> list(prefetch(range(5), lambda item: item * item, depth=2, workers=2))
    [0, 1, 4, 9, 16]
    """
    waiting: Any = iter(items)
    reader, makers, end = ThreadPoolExecutor(1), ThreadPoolExecutor(workers), object()

    def work(item: Future[Any]) -> Any:
        return end if item.result() is end else make(item.result())

    def promise() -> Future[Any]:
        return makers.submit(work, reader.submit(next, waiting, end))

    try:
        promised = deque(promise() for _ in range(depth))
        while (value := promised.popleft().result()) is not end:
            promised.append(promise())
            yield value
            del value  # or its memory would live on while the next is waited for
    finally:
        for pool in (makers, reader):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (makers, reader):
            pool.shutdown()
        if hasattr(waiting, "close"):
            waiting.close()


def share_parts(num_threads: int, items: Iterable[Part], work: Callable[[int, Part], Any]) -> None:
    """Calls work(thread, part) for every part; thread 0 is this one. The first error is raised here.

    >>> made = []
    >>> share_parts(2, "abc", lambda thread, part: made.append(part))
    >>> sorted(made)
    ['a', 'b', 'c']
    """
    waiting = iter(list(items))
    errors: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            for item in waiting:
                if errors:
                    return
                work(thread, item)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=run, args=(thread,)) for thread in range(1, num_threads)]
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


@contextlib.contextmanager
def kernel_threads(num_threads: int) -> Iterator[None]:
    """Within the block, kernels that this thread calls run in so many threads."""
    import numba

    had = numba.get_num_threads()
    numba.set_num_threads(num_threads)
    try:
        yield
    finally:
        numba.set_num_threads(had)


@contextlib.contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Within the block, torch uses so many threads; None leaves it alone.

    Threads that share a small product wait for each other longer than they work: on cores that others use too, a step
    of training takes ten times as long with two threads as with one.
    """
    import torch

    had = torch.get_num_threads()
    if num_threads is None or num_threads == had:  # setting the same number costs as much as a small product
        yield
        return
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(had)


class CancelledError(RuntimeError):
    """Ends a task because one beside it has failed."""


def check_cancelled() -> None:
    """Raises CancelledError if a task beside the one of this thread has failed."""
    cancelled = _cancelled.get()
    if cancelled is not None and cancelled.is_set():
        raise CancelledError("other work beside this has failed")


def run_concurrently(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks; the first runs in this thread, where an interrupt arrives. The first error is raised.

    Kernels of every task use as many threads as those of the caller.

    >>> run_concurrently([lambda: 1, lambda: 2])
    [1, 2]
    """
    cancelled, ended = threading.Event(), [threading.Event() for _ in tasks]
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    numba = sys.modules.get("numba")  # not imported here: it takes half a second, and some callers have no kernels
    num_threads = numba.get_num_threads() if numba else 0

    def run(index: int) -> None:
        _cancelled.set(cancelled)
        try:
            if numba:
                numba.set_num_threads(num_threads)
            results[index] = tasks[index]()
        except BaseException as error:
            errors.append(error)
            cancelled.set()
        finally:
            ended[index].set()

    for index in range(1, len(tasks)):
        threading.Thread(target=contextvars.copy_context().run, args=(run, index), daemon=True).start()
    contextvars.copy_context().run(run, 0)
    try:
        for event in ended:  # not `join`, which takes a thread for ended once it was interrupted
            event.wait()
    except BaseException as error:
        errors.append(error)
        cancelled.set()
        for event in ended:
            event.wait()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(tasks))]
