""".npy files: written at once or through a memory map, and mapped for reading.

A full disk is an OSError with the path and the bytes needed. A map of a sparse file asks the disk for room when a page
is first touched, and a signal kills the process if there is none: so room is allocated when the file is made.
"""

import errno
import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.memory import Budget, Need
from hcm_scale.base.threads import map_slices, prefetch

_PLAIN_HEADER = re.compile(
    rb"\{'descr': '([<>|][biufc]\d+)', 'fortran_order': (True|False), 'shape': \(((?:\d+,|\d+(?:, \d+)+)?)\), \} *\n"
)
Rule = tuple[Callable[[NDArray[Any]], NDArray[np.bool_]], str]  # which values are legal, in words too
FINITE: Rule = (np.isfinite, "values must be finite")
_CHUNK, _CONVERTERS = 1 << 20, 4  # numbers converted at a time; threads that do
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def create_npy(path: Path, dtype: Any, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """A new array of zeros in a .npy file at `path`, mapped for writing; OSError where the disk has no room for it."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with open(path, "r+b") as stream:
        _allocate(stream, path, array.nbytes)
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
        header = _PLAIN_HEADER.fullmatch(stream.read(int.from_bytes(stream.read(2), "little")))
        if header is not None:
            descr, fortran, shape = (field.decode() for field in header.groups())
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


def open_array(
    path: Path, dtype: Any, shape: tuple[int | None, ...], remedy: str = "", legal: Rule | None = None
) -> NDArray[Any]:
    """The array of a .npy file of a folder that anybody may have written, mapped for reading.

    FolderError, ending in the remedy, unless it is there, whole, in C order, of this type and shape, where None is any
    length, and all of its values are `legal`.
    """
    then = remedy and f"; {remedy}"
    if not path.is_file():
        raise files.FolderError(f"{path} is missing{then}")
    with open(path, "rb") as stream:
        try:
            own_shape, fortran, kind = read_header(stream)
        except Exception as error:  # numpy parses Python's own syntax here, and any of its errors may come out
            raise files.FolderError(f"{path} is damaged: it has no header of a .npy file{then}") from error
        offset = stream.tell()
    fits = len(own_shape) == len(shape) and all(b in (a, None) for a, b in zip(own_shape, shape, strict=True))
    if kind != np.dtype(dtype) or not fits:
        wanted = f"{np.dtype(dtype)} ({', '.join('n' if side is None else str(side) for side in shape)})"
        raise files.FolderError(f"{path} holds {kind} {own_shape}; legal is {wanted}{then}")
    if fortran and len(shape) > 1:
        raise files.FolderError(f"{path} is in Fortran order; legal is C order{then}")
    num_bytes, expected = path.stat().st_size, offset + kind.itemsize * math.prod(own_shape)
    if num_bytes != expected:
        raise files.FolderError(f"{path} is torn: {num_bytes} bytes, {expected} expected{then}")
    array = open_npy(path)

    def check(rule: Rule) -> None:
        if (at := first_illegal(array, rule[0])) >= 0:
            raise files.FolderError(f"{path} holds {array.reshape(-1)[at]} as its value {at}; {rule[1]}{then}")

    if legal is not None:
        files.check_once([path], lambda: check(legal))
    return array


def first_illegal(array: NDArray[Any], is_legal: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> int:
    """The position, counted in one dimension, of the first value that is not legal; -1 if all are."""
    flat = array.reshape(-1)

    def first(chunk: slice) -> int:
        legal = is_legal(flat[chunk])
        return -1 if legal.all() else chunk.start + int(np.argmin(legal))

    return next((at for at in map_slices(len(flat), first) if at >= 0), -1)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to: for numba arrays that were made are then of the type of mapped ones."""
    view = array.view()
    view.setflags(write=False)
    return view


def new_array(shape: Any, dtype: Any, near: Path, budget: Budget, beside: int = 0) -> NDArray[Any]:
    """An uninitialised array: in memory, if `beside` more bytes fit too, else in a file without a name near `near`."""
    num_bytes = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
    fits = not budget.lacks(Need(num_bytes + beside + budget.spare_bytes))
    if fits or not num_bytes or not os.access(near, os.W_OK):
        return np.empty(shape, dtype)
    return nameless_array(shape, dtype, near)


def nameless_array(shape: Any, dtype: Any, near: Path) -> NDArray[Any]:
    """Zeros in a file without a name in the folder `near`, which ends with the array, or with the process."""
    with tempfile.TemporaryFile(dir=near) as stream:
        num_bytes = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        stream.truncate(num_bytes)
        _allocate(stream, near, num_bytes)
        return np.memmap(stream, dtype, "r+", shape=shape).view(np.ndarray)


def create_file(path: Path, num_bytes: int) -> None:
    """A new file of zeros at `path`; OSError where the disk has no room for it."""
    with open(path, "wb") as stream:
        stream.truncate(num_bytes)
        _allocate(stream, path, num_bytes)


def _allocate(stream: IO[bytes], path: Path, num_bytes: int) -> None:
    """Allocates the room of an open file on the disk, or removes it and raises; the message names `num_bytes`."""
    try:
        os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
    except AttributeError:  # a system without the call
        pass
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            if path.is_file():
                path.unlink()
            raise _with_path(error, path, num_bytes) from error


def save_npy(path: Path, array: NDArray[Any]) -> None:
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise _with_path(error, path, array.nbytes) from error


def save_converted(path: Path, values: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """As save_npy(path, convert(values)) of a function of single numbers, a chunk at a time.

    Pages of a mapped file would each be a fault of its own, and cost more than the writing.
    """
    dtype = convert(values[:0]).dtype
    described = {"descr": dtype.str, "fortran_order": False, "shape": values.shape}
    chunks = (values[first : first + _CHUNK] for first in range(0, len(values), _CHUNK))
    try:
        with open(path, "wb") as stream:
            np.lib.format.write_array_header_1_0(stream, described)
            for chunk in prefetch(chunks, convert, depth=_CONVERTERS, workers=_CONVERTERS):
                stream.write(chunk.data)
    except OSError as error:
        raise _with_path(error, path, values.size * dtype.itemsize) from error


def _with_path(error: OSError, path: Path, num_bytes: int) -> OSError:
    """The same error with the path; numpy gives an incomplete write no number, and it means a full disk."""
    number = error.errno or errno.ENOSPC
    return OSError(number, f"{os.strerror(number)}: {num_bytes:,} bytes are needed", str(path))
