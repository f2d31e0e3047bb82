"""Arrays named in a .npz archive or a folder of .npy files, read in pieces; pickles are refused.

`NpyFile.read_slices` decodes a flat range of entries piece by piece, from disk or through the archive's inflater, so an
array is never in memory as a whole unless `load` is asked for it. The bytes that a header promises must be those that
the file or the archive's directory has, and what an archive unpacks to is known before it is.
"""

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import read_header
from hcm_scale.ingest.errors import InputError, check_growth, reading

SLICE_ENTRIES = 1 << 18
_SHOWN_NAMES = 20
NUMBERS, INTEGERS = "iufb", "iu"  # kinds of numpy types


@dataclass(frozen=True)
class NpyFile:
    """One .npy file, on disk or in an archive: its header, and how to open it."""

    name: str
    open: Callable[[], IO[bytes]]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    data_start: int

    @staticmethod
    def of(name: str, open_file: Callable[[], IO[bytes]], num_bytes: int) -> "NpyFile":
        """Reads the header of a file of `num_bytes`; refuses what is not a plain array of just that size."""
        with reading(f"{name} is not a .npy array"), open_file() as stream:
            shape, fortran, dtype = read_header(stream)
            start = stream.tell()
        if dtype.hasobject:
            raise InputError(f"{name} holds Python objects (a pickle); legal are plain arrays")
        promised = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or promised != num_bytes - start:
            raise InputError(
                f"{name} is torn: its header says {dtype} of shape {shape}, which is {promised:,} bytes; "
                f"{num_bytes - start:,} follow"
            )
        return NpyFile(name, open_file, shape, dtype, fortran, start)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def require(self, kinds: str, legal: str, dims: int | None = None) -> "NpyFile":
        """Itself, or an error that says what is legal where the type or the number of dimensions is another."""
        if self.dtype.kind not in kinds or dims not in (None, len(self.shape)):
            raise InputError(f"{self.name} is {self.dtype} of shape {self.shape}; legal are {legal}")
        return self

    def load(self) -> NDArray[Any]:
        """The whole array."""
        flat, start = np.empty(self.size, self.dtype), 0
        for piece in self.read_slices(0, self.size):
            flat[start : start + len(piece)] = piece
            start += len(piece)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")

    def read_slices(self, start: int, stop: int, entries: int = SLICE_ENTRIES) -> Iterator[NDArray[Any]]:
        """Yields the entries start .. stop - 1 in the order of the file, `entries` at a time."""
        with reading(f"{self.name} cannot be unpacked"), self.open() as stream:
            stream.seek(self.data_start + start * self.dtype.itemsize)
            while start < stop:
                count = min(entries, stop - start)
                data = stream.read(count * self.dtype.itemsize)
                if len(data) < count * self.dtype.itemsize:
                    raise InputError(f"{self.name} is torn: it ends before entry {stop:,}")
                yield np.frombuffer(data, self.dtype)
                start += count

    def row_blocks(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yields blocks of rows of a matrix; one stored by columns is loaded whole first."""
        if self.fortran:
            whole = self.load()
            yield from (whole[start : start + rows] for start in range(0, len(whole), rows))
            return
        for flat in self.read_slices(0, self.size, rows * self.shape[1]):
            yield flat.reshape(-1, self.shape[1])


Arrays = Mapping[str, NpyFile]


def open_arrays(path: Path, max_bytes: int) -> Arrays:
    """The arrays of a .npz archive, of a folder of .npy files, or of one .npy file, by name."""
    if path.is_dir():
        return {p.stem: _on_disk(p) for p in sorted(path.glob("*.npy")) if p.is_file()}
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path} is not there; legal are .npy and .npz files, and folders of .npy files")
    if path.suffix == ".npy":
        return {path.stem: _on_disk(path)}
    with reading(f"{path} cannot be read as .npz"):
        archive = zipfile.ZipFile(path)  # open as long as an array of it is
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    check_growth(path.name, path.stat().st_size, sum(member.file_size for member in members), max_bytes)
    found: dict[str, NpyFile] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise InputError(f"{path.name} holds {name!r} twice; legal is one array of a name")
        found[name] = _in_archive(archive, member, f"{path.name}:{name}")
    return found


def _on_disk(path: Path) -> NpyFile:
    return NpyFile.of(path.name, lambda: open(path, "rb"), path.stat().st_size)


def _in_archive(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NpyFile:
    return NpyFile.of(name, lambda: archive.open(member), member.file_size)


def listed(arrays: Arrays) -> str:
    """The names, cut short where there are many."""
    names = sorted(arrays)
    return str(names) if len(names) <= _SHOWN_NAMES else f"{names[:_SHOWN_NAMES]} and {len(names) - _SHOWN_NAMES} more"
