""".npy files: written at once or through a memory map, and mapped for reading.

A full disk is an OSError with the path and the bytes needed. A map of a sparse file asks the disk for room when a page
is first touched, and a signal kills the process if there is none: so room is allocated when the file is made.
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
    _allocate(path, array.nbytes)
    return array


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of the .npy file at whose beginning a stream stands.

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
    _allocate(path, num_bytes)


def _allocate(path: Path, num_bytes: int) -> None:
    """Allocates the room of a file on the disk, or removes it and raises; the message names `num_bytes`."""
    try:
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    except AttributeError:  # a system without the call
        pass
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            path.unlink()
            raise _with_path(error, path, num_bytes) from error


def save_npy(path: Path, array: NDArray[Any]) -> None:
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise _with_path(error, path, array.nbytes) from error


def _with_path(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The same error with the path; numpy gives an incomplete write no number, and it means a full disk."""
    number = error.errno or errno.ENOSPC
    return OSError(number, f"{os.strerror(number)}: {num_bytes:,} bytes are needed", str(path))
