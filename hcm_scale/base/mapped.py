"""New .npy files, written at once or through a memory map; a full disk is an error with the path and the bytes needed.

A map of a sparse file asks the disk for room when a page is first touched, and where there is none left the process is
killed by a signal. Here room is taken when the file is made.
"""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def map_new(path: Path, dtype: Any, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """A new array of zeros in a .npy file at `path`, mapped for writing; OSError where the disk has no room for it."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    _take_room(path, array.nbytes)
    return array


def new_file(path: Path, num_bytes: int) -> None:
    """A new file of zeros at `path`; OSError where the disk has no room for it."""
    with open(path, "wb") as stream:
        stream.truncate(num_bytes)
    _take_room(path, num_bytes)


def _take_room(path: Path, num_bytes: int) -> None:
    """Has the disk give room to a file that is there, or removes it; `num_bytes` are those to speak of."""
    try:
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    except AttributeError:  # a system without the call
        pass
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            path.unlink()
            raise _named(error, path, num_bytes) from error


def save_new(path: Path, array: NDArray[Any]) -> None:
    """Writes an array to a .npy file at `path`."""
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise _named(error, path, array.nbytes) from error


def _named(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The same error with the path; a write that came to no end has no number from numpy, and means a full disk."""
    number = error.errno or errno.ENOSPC
    return OSError(number, f"{os.strerror(number)}: {num_bytes:,} bytes are needed", str(path))
