"""New .npy files that are written through a memory map.

A map of a sparse file asks the disk for room when a page is first touched, and where there is none left the process is
killed by a signal. Here room is taken when the file is made, so that a full disk is an error like any other.
"""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np

_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def map_new(path: Path, dtype: Any, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """A new array of zeros in a .npy file at `path`, mapped for writing; OSError where the disk has no room for it."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    try:
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    except AttributeError:  # a system without the call
        pass
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            path.unlink()
            raise OSError(error.errno, f"{error.strerror}: {array.nbytes:,} bytes are needed", str(path)) from error
    return array
