"""`prefetch(items, make)` yields make(item) for every item, in order, while threads work on the next ones.

At most `depth` results are ready or in the making, so memory is bounded by `depth + 1` results. One more thread takes
the items from their iterator. An exception, of the iterator or of `make`, is raised where its result would have come;
nothing after it is yielded. Closing the generator early, or dropping it, stops the threads and closes the iterator
before it returns.

`make` should spend its time without the GIL (kernels with nogil=True) and leave torch's and numba's thread pools to
the consumer: a second pool would take the cores from the model.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_END = object()


def prefetch(items: Iterable[Any], make: Callable[[Any], Any], *, depth: int = 4, workers: int = 1) -> Iterator[Any]:
    """Yields make(item) in order, prepared ahead by `workers` threads.

    >>> list(prefetch(range(5), lambda item: item * item, depth=2, workers=2))
    [0, 1, 4, 9, 16]
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if depth < workers:
        raise ValueError(f"depth={depth} must be at least workers={workers}, or some workers would never work")
    return _results(iter(items), make, depth, workers)


def _results(items: Iterator[Any], make: Callable[[Any], Any], depth: int, workers: int) -> Iterator[Any]:
    reader, makers = ThreadPoolExecutor(1), ThreadPoolExecutor(workers)

    def work(item: Future[Any]) -> Any:
        return _END if item.result() is _END else make(item.result())

    def promise() -> Future[Any]:
        return makers.submit(work, reader.submit(next, items, _END))

    try:
        promised = deque(promise() for _ in range(depth))
        while (value := promised.popleft().result()) is not _END:
            promised.append(promise())
            yield value
            del value  # or its memory would live on while the next is waited for
    finally:
        for pool in (makers, reader):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (makers, reader):
            pool.shutdown()
        if hasattr(items, "close"):
            items.close()
