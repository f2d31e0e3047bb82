"""Arrays named in a .npz archive or a folder of .npy files, read in pieces; pickles are refused.

`NpyFile.read_slices` decodes a flat range of entries piece by piece, from disk or through the archive's inflater, so an
array is never in memory as a whole unless `load` is asked for it.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
SLICE_ENTRIES = 1 << 18


@dataclass(frozen=True)
class NpyFile:
    """One .npy file, on disk or in an archive: its header, and how to open it."""

    name: str
    open: Callable[[], IO[bytes]]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @staticmethod
    def of(name: str, open_file: Callable[[], IO[bytes]]) -> "NpyFile":
        """Reads the header; refuses what is not a plain array."""
        with open_file() as stream:
            try:
                version = np.lib.format.read_magic(stream)
                shape, fortran, dtype = _HEADERS[version](stream)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{name} is not a .npy array: {error}") from error
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects (a pickle); legal are plain arrays")
        return NpyFile(name, open_file, shape, dtype, fortran)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def load(self) -> NDArray[Any]:
        """The whole array."""
        with self.open() as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    def read_slices(self, start: int, stop: int, entries: int = SLICE_ENTRIES) -> Iterator[NDArray[Any]]:
        """Yields the entries start .. stop - 1 in the order of the file, `entries` at a time."""
        with self.open() as stream:
            _HEADERS[np.lib.format.read_magic(stream)](stream)
            stream.seek(start * self.dtype.itemsize, 1)
            while start < stop:
                count = min(entries, stop - start)
                data = stream.read(count * self.dtype.itemsize)
                if len(data) < count * self.dtype.itemsize:
                    raise ValueError(f"{self.name} is torn: it ends before entry {stop:,}")
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


def open_arrays(path: Path) -> Mapping[str, NpyFile]:
    """The arrays of a .npz archive, of a folder of .npy files, or of one .npy file, by name."""
    if path.is_dir():
        return {p.stem: _on_disk(p) for p in sorted(path.glob("*.npy"))}
    if path.suffix == ".npy":
        return {path.stem: _on_disk(path)}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path} cannot be read as .npz: {error}") from error
    return {name.removesuffix(".npy"): _in_archive(path, name) for name in members}


def _on_disk(path: Path) -> NpyFile:
    return NpyFile.of(path.name, lambda: open(path, "rb"))


def _in_archive(path: Path, member: str) -> NpyFile:
    return NpyFile.of(f"{path.name}:{member.removesuffix('.npy')}", lambda: zipfile.ZipFile(path).open(member))
