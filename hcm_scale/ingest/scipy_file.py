"""Matrices that scipy.sparse.save_npz wrote, from the arrays of their archive, checked before scipy sees an index."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.printable import in_short
from hcm_scale.graph.build import MAX_NODES
from hcm_scale.ingest.errors import InputError, reading
from hcm_scale.ingest.npy_stream import INTEGERS, NUMBERS, Arrays, NpyFile, listed

PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
    "bsr": ("data", "indices", "indptr"),
}


def header(arrays: Arrays, path: Path) -> tuple[str, tuple[int, int]]:
    """Format and shape of a matrix that scipy.sparse.save_npz wrote."""
    text = arrays["format"].require("SU", "one of csr, csc, coo, dia, bsr", dims=0).load().item()
    numbers = part(arrays, "shape", path).require(INTEGERS, "two integers", dims=1).load().tolist()
    kind = text.decode("latin1") if isinstance(text, bytes) else text
    if kind not in PARTS or len(numbers) != 2 or not 0 <= min(numbers) <= max(numbers) <= MAX_NODES:
        raise InputError(
            f"{path.name} holds a {in_short(kind)!r} matrix of shape {in_short(str(numbers))}; legal are "
            f"{', '.join(PARTS)} of up to {MAX_NODES:,} rows and columns"
        )
    return kind, (numbers[0], numbers[1])


def matrix(arrays: Arrays, path: Path) -> Any:
    """The matrix in memory, all of its indices checked."""
    kind, shape = header(arrays, path)
    names = PARTS[kind]
    parts = {name: part(arrays, name, path) for name in names}
    for name, array in parts.items():
        array.require(NUMBERS if name == "data" else INTEGERS, "numbers" if name == "data" else "integers")
    loaded = [parts[name].load() for name in names]
    with reading(f"{path.name} is no {kind} matrix"):
        if kind == "dia":
            return _from_diagonals(loaded[0], loaded[1], shape)
        if kind == "coo":
            return sparse.coo_array((loaded[0], (loaded[1], loaded[2])), shape=shape)
        made: Any = getattr(sparse, f"{kind}_array")(tuple(loaded), shape=shape)
        made.check_format(full_check=True)
        return made


def _from_diagonals(data: NDArray[Any], offsets: NDArray[Any], shape: tuple[int, int]) -> sparse.coo_array:
    """data[k, j] is at row j - offsets[k] and column j; scipy's own way takes as long as the matrix is wide."""
    columns = np.broadcast_to(np.arange(data.shape[1]), data.shape)
    rows = columns - offsets.astype(np.int64)[:, None]
    inside = (rows >= 0) & (rows < shape[0]) & (columns < shape[1]) & (data != 0)
    return sparse.coo_array((data[inside], (rows[inside], columns[inside])), shape=shape)


def part(arrays: Arrays, name: str, path: Path) -> NpyFile:
    if name not in arrays:
        raise InputError(f"{path.name} is a scipy file without {name!r}; it holds {listed(arrays)}")
    return arrays[name]
