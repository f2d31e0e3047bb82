"""`prefetch(items, make)` yields make(item) for every item, in order, while threads work on the next ones.

At most `depth` results are ready or in the making, so memory is bounded by `depth + 1` results. The workers also take
the items from their iterator, one worker at a time. An exception, of the iterator or of `make`, is raised where its
result would have come; nothing after it is yielded. Closing the generator early, or dropping it, stops the threads and
closes the iterator before it returns.

`make` should spend its time without the GIL (kernels with nogil=True) and leave torch's and numba's thread pools to
the consumer: a second pool would take the cores from the model.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any


@dataclass
class WaitClock:
    """How long the consumer waited, and for how many results."""

    waited_seconds: float = 0.0
    num_results: int = 0


def prefetch(
    items: Iterable[Any],
    make: Callable[[Any], Any],
    *,
    depth: int = 4,
    workers: int = 1,
    clock: WaitClock | None = None,
) -> Iterator[Any]:
    """Yields make(item) in order, prepared ahead; `clock` adds up how long the caller waited.

    >>> list(prefetch(range(5), lambda item: item * item, depth=2, workers=2))
    [0, 1, 4, 9, 16]
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if depth < workers:
        raise ValueError(f"depth={depth} must be at least workers={workers}, or some workers would never work")
    return _results(_Queue(iter(items), make, threading.Semaphore(depth)), workers, clock or WaitClock())


def _results(queue: "_Queue", workers: int, clock: WaitClock) -> Iterator[Any]:
    # daemons: a consumer that dies holding this generator must not keep the process from ending
    threads = [threading.Thread(target=queue.work, daemon=True) for _ in range(workers)]
    try:
        for thread in threads:
            thread.start()
        while True:
            started = time.perf_counter()
            result = queue.promised.get()
            if result is None:
                return
            value = result.result()
            clock.waited_seconds += time.perf_counter() - started
            clock.num_results += 1
            del result  # while the consumer holds the value the queue must not, or its memory would live on
            queue.room.release()
            yield value
            del value
    finally:
        queue.stopped = True
        for _ in threads:
            queue.room.release()
        for thread in threads:
            if thread.is_alive():
                thread.join()
        if hasattr(queue.items, "close"):
            queue.items.close()


@dataclass(eq=False)
class _Queue:
    """State shared by the workers: the items, and their promised results in the same order; None ends them."""

    items: Iterator[Any]
    make: Callable[[Any], Any]
    room: threading.Semaphore
    promised: "SimpleQueue[Future[Any] | None]" = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def work(self) -> None:
        while True:
            self.room.acquire()
            task = self._promise()
            if task is None:
                self.room.release()  # the other workers wait for room too, and must see the end
                return
            item, result = task
            try:
                result.set_result(self.make(item))
            except BaseException as error:
                result.set_exception(error)
            del task, item, result

    def _promise(self) -> "tuple[Any, Future[Any]] | None":
        """The next item and the future of its result; None at the end."""
        with self.lock:
            if self.stopped:
                return None
            result: Future[Any] = Future()
            try:
                item = next(self.items)
            except BaseException as error:
                self.stopped = True
                ended = isinstance(error, StopIteration)
                if not ended:
                    result.set_exception(error)
                self.promised.put(None if ended else result)
                return None
            self.promised.put(result)
            return item, result
