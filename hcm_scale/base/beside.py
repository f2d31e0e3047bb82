"""Work done at the same time in threads of one process, which ends as one: all of it, or the first error.

A thread cannot be stopped from outside. Long work asks now and then whether it is still wanted (`check_wanted`), and is
told no once other work beside it has failed or the user has interrupted.
"""

import contextvars
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")
_unwanted: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("unwanted", default=None)


class UnwantedError(RuntimeError):
    """Ends work that is no longer wanted, because other work beside it has failed."""


def check_wanted() -> None:
    """Raises UnwantedError where the work of this thread is no longer wanted."""
    unwanted = _unwanted.get()
    if unwanted is not None and unwanted.is_set():
        raise UnwantedError("other work beside this has failed")


def side_by_side(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks; the first runs in this thread, where an interrupt arrives. The first error is raised.

    Kernels of every task use as many threads as those of the caller.

    >>> side_by_side([lambda: 1, lambda: 2])
    [1, 2]
    """
    unwanted, ended = threading.Event(), [threading.Event() for _ in tasks]
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    kernels = sys.modules.get("numba")  # not imported here: it takes half a second, and some callers have no kernels
    num_threads = kernels.get_num_threads() if kernels else 0

    def run(index: int) -> None:
        _unwanted.set(unwanted)
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
