""".npy files: new ones, written at once or through a memory map, and those that are there, mapped.

A full disk is an error with the path and the bytes needed. A map of a sparse file asks the disk for room when a page is
first touched, and where there is none left the process is killed by a signal. Here room is taken when the file is made.
"""

import errno
import math
import os
import re
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_PLAIN_HEADER = re.compile(
    rb"\{'descr': '([<>|][biufc]\d+)', 'fortran_order': (True|False), 'shape': \(((?:\d+,|\d+(?:, \d+)+)?)\), \} *\n"
)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def create_npy(path: Path, dtype: Any, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """A new array of zeros in a .npy file at `path`, mapped for writing; OSError where the disk has no room for it."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    _take_room(path, array.nbytes)
    return array


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of the .npy file that a stream stands at the beginning of.

    numpy reads a header with Python's parser, which fails now and then where two threads use it at once (up to Python
    3.11.7: "AST constructor recursion depth mismatch"), so a header as numpy writes it is read here. All others are
    numpy's, and so are their errors: ValueError, or any other of that parser.
    """
    version = np.lib.format.read_magic(stream)
    begins = stream.tell()
    if version == (1, 0):
        found = _PLAIN_HEADER.fullmatch(stream.read(int.from_bytes(stream.read(2), "little")))
        if found is not None:
            descr, fortran, shape = (part.decode() for part in found.groups())
            return tuple(int(side) for side in shape.split(",") if side), fortran == "True", np.dtype(descr)
        stream.seek(begins)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in headers:
        raise ValueError(f"it is a .npy array of version {version}; legal are {sorted(headers)}")
    return headers[version](stream)


def open_npy(path: Path) -> NDArray[Any]:
    """The array of a .npy file, mapped for reading."""
    with open(path, "rb") as stream:
        shape, fortran, dtype = read_header(stream)
        offset = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{path} holds Python objects; legal are plain arrays")
    if math.prod(shape) == 0:  # nothing cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C").view(np.ndarray)


def create_file(path: Path, num_bytes: int) -> None:
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


def save_npy(path: Path, array: NDArray[Any]) -> None:
    """Writes an array to a .npy file at `path`."""
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise _named(error, path, array.nbytes) from error


def _named(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The same error with the path; a write that came to no end has no number from numpy, and means a full disk."""
    number = error.errno or errno.ENOSPC
    return OSError(number, f"{os.strerror(number)}: {num_bytes:,} bytes are needed", str(path))
