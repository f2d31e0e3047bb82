"""Memory that ran out in spite of all, told in one way: libraries have a dozen words for it.

Python and numba raise MemoryError, numpy and pyarrow kinds of it, torch a RuntimeError, the system an OSError 12, a
thread that has no room for its stack a RuntimeError, and a library that cannot be loaded an ImportError.
"""

import contextlib
import errno
from collections.abc import Iterator

_SHORTAGE = ("allocate memory", "bad_alloc", "start new thread", "not enough memory", "out of memory", "map segment")


class OutOfMemoryError(MemoryError):
    """Memory ran out in spite of all; the message says where."""


@contextlib.contextmanager
def shortage_told(where: str) -> Iterator[None]:
    """Any error by which a library says that memory ran out becomes an OutOfMemoryError that says where."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        if not is_shortage(error):
            raise
        raise OutOfMemoryError(f"{where}: {told(error)}") from error


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, or no room for a thread.

    >>> is_shortage(RuntimeError("can't start new thread")), is_shortage(ValueError("seed=-1"))
    (True, False)
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    known = isinstance(error, RuntimeError | OSError | ImportError)
    return known and any(words in str(error).lower() for words in _SHORTAGE)


def told(error: BaseException) -> str:
    """An error on one line, with the words "memory ran out" where that is what it means.

    >>> told(MemoryError()), told(OSError(12, "Cannot allocate memory")), told(ValueError("seed=-1"))
    ('memory ran out', 'memory ran out ([Errno 12] Cannot allocate memory)', 'seed=-1')
    """
    if isinstance(error, OutOfMemoryError) or not is_shortage(error):
        return str(error)
    said = str(error).partition("\n")[0]
    return f"memory ran out ({said})" if said else "memory ran out"
