"""NumPy and scipy files to a graph folder, by the names of their arrays, streamed and without pickles.

| what       | arrays                                                                                        |
|------------|-----------------------------------------------------------------------------------------------|
| edges      | `edge_index` (2, E), or CSR `indptr` + `indices`, or a matrix saved by scipy.sparse.save_npz  |
| attributes | `x` (n, d), or CSR `x_indptr` + `x_indices` [+ `x_data`, ones if absent] [+ `x_shape`]        |
| labels     | `y` (n), 1 = anomaly                                                                          |

They are looked for in one .npz, in a folder of .npy files, or in one .npy (the edge_index); `x` and `y` may be files of
their own. `keys` maps a name of this table to the file's own name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.graph.build import MAX_NODES, Chunk
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, Edges, write_arrays
from hcm_scale.ingest.attributes import check_indptr, check_sparse
from hcm_scale.ingest.errors import InputError, naming, reading
from hcm_scale.ingest.npy_stream import INTEGERS, NUMBERS, SLICE_ENTRIES, NpyFile, open_arrays
from hcm_scale.ingest.policy import Policy

ROLES = ("edge_index", "indptr", "indices", "x", "x_indptr", "x_indices", "x_data", "x_shape", "y")
_SCIPY_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
    "bsr": ("data", "indices", "indptr"),
}
_BLOCK_BYTES = 1 << 22
_SHOWN_NAMES = 20
Arrays = Mapping[str, NpyFile]


def read_matrices(
    out: Path | str,
    path: str | Path,
    *,
    x: str | Path | None = None,
    y: str | Path | None = None,
    keys: Mapping[str, str] | None = None,
    policy: Policy = Policy(),  # noqa: B008
) -> Graph:
    """Reads the arrays at `path` (.npz, .npy or a folder of .npy) into the graph folder `out`; returns it opened."""
    path = Path(path)
    with naming(path.name):
        arrays = _renamed(open_arrays(path, policy.max_bytes), keys or {}, path)
        attributes = _attributes(arrays) if x is None else _attribute_file(Path(x), policy.max_bytes)
        labels = arrays.get("y") if y is None else _only("y", Path(y), policy.max_bytes)
        edges = edges_of(arrays, path)
        return write_arrays(out, path.name, edges, attributes, labels.load() if labels else None, policy)


def _only(name: str, path: Path, max_bytes: int) -> NpyFile:
    """The array of this name in a file, or its first one."""
    arrays = open_arrays(path, max_bytes)
    if not arrays:
        raise InputError(f"{path.name} holds no array")
    return arrays[name] if name in arrays else next(iter(arrays.values()))


def _renamed(arrays: Arrays, keys: Mapping[str, str], path: Path) -> Arrays:
    for role, name in keys.items():
        if role not in ROLES:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(ROLES)}")
        if name not in arrays:
            raise InputError(f"graph.keys={{{role!r}: {name!r}}} is not in {path.name}; it holds {_listed(arrays)}")
    if path.suffix == ".npy":
        return {"edge_index": next(iter(arrays.values()))}
    return {**arrays, **{role: arrays[name] for role, name in keys.items()}}


def _listed(arrays: Arrays) -> str:
    """The names, cut short where there are many."""
    names = sorted(arrays)
    return str(names) if len(names) <= _SHOWN_NAMES else f"{names[:_SHOWN_NAMES]} and {len(names) - _SHOWN_NAMES} more"


def edges_of(arrays: Arrays, path: Path) -> Edges:
    """The edges among named arrays, whichever way they are kept."""
    if "edge_index" in arrays:
        return _from_edge_index(arrays["edge_index"])
    if "format" in arrays:
        return _from_scipy(arrays, path)
    if "indptr" in arrays and "indices" in arrays:
        return _from_csr(arrays["indptr"], arrays["indices"])
    raise InputError(f"{path.name} holds no edges: edge_index, or indptr and indices; it holds {_listed(arrays)}")


def _from_edge_index(array: NpyFile) -> Edges:
    array.require(NUMBERS, "whole numbers of shape (2, E)", dims=2)
    if array.shape[0] != 2:
        raise InputError(f"{array.name} has shape {array.shape}; legal is (2, E)")
    num_rows = array.shape[1]

    def chunks() -> Iterator[Chunk]:
        if array.fortran:  # stored as pairs, one after the other
            for pairs in array.read_slices(0, 2 * num_rows, 2 * SLICE_ENTRIES):
                yield pairs[0::2], pairs[1::2]
        else:
            yield from zip(array.read_slices(0, num_rows), array.read_slices(num_rows, 2 * num_rows), strict=True)

    return Edges(chunks, num_rows)


def _from_csr(pointers: NpyFile, indices: NpyFile, data: NpyFile | None = None, flip: bool = False) -> Edges:
    """CSR (or, flipped, CSC) entries as edges; stored zeros in `data` are none."""
    indices.require(NUMBERS, "whole numbers of shape (E)", dims=1)
    num_entries = indices.size
    indptr = pointers.require(INTEGERS, "integers of shape (n + 1)", dims=1).load()
    indptr = check_indptr(indptr, num_entries, "indptr")
    if data is not None and data.require(NUMBERS, "numbers of shape (E)", dims=1).size != num_entries:
        raise InputError(
            f"{data.name} has {data.size:,} entries and {indices.name} {num_entries:,}; they must be equal"
        )

    def chunks() -> Iterator[Chunk]:
        values = data.read_slices(0, num_entries) if data is not None else None
        start = 0
        for columns in indices.read_slices(0, num_entries):
            rows = _rows_of(indptr, start, start + len(columns))
            start += len(columns)
            if values is not None:
                stored = next(values) != 0
                rows, columns = rows[stored], columns[stored]
            yield (columns, rows) if flip else (rows, columns)

    return Edges(chunks, num_entries, len(indptr) - 1)


def _rows_of(indptr: NDArray[Any], start: int, stop: int) -> NDArray[np.int64]:
    """The row of each CSR entry start .. stop - 1."""
    first, last = np.searchsorted(indptr, start, "right") - 1, np.searchsorted(indptr, stop, "left")
    counts = np.diff(np.clip(indptr[first : last + 1], start, stop))
    return np.repeat(np.arange(first, last), counts)


def _from_scipy(arrays: Arrays, path: Path) -> Edges:
    kind, shape = _scipy_header(arrays, path)
    if shape[0] != shape[1]:
        raise InputError(f"{path.name} holds a matrix of shape {shape}; an adjacency matrix must be square")
    if kind in ("csr", "csc"):
        data, indices, indptr = (_part(arrays, name, path) for name in _SCIPY_PARTS[kind])
        edges = _from_csr(indptr, indices, data, flip=kind == "csc")
        if edges.num_nodes != shape[0]:
            raise InputError(f"{path.name}:indptr is of {edges.num_nodes:,} rows; {path.name}:shape says {shape}")
        return edges
    return edges_of_matrix(_scipy_matrix(arrays, path), path.name)


def _scipy_header(arrays: Arrays, path: Path) -> tuple[str, tuple[int, int]]:
    """Format and shape of a matrix that scipy.sparse.save_npz wrote."""
    text = arrays["format"].require("SU", "one of csr, csc, coo, dia, bsr", dims=0).load().item()
    numbers = _part(arrays, "shape", path).require(INTEGERS, "two integers", dims=1).load().tolist()
    kind = text.decode("latin1") if isinstance(text, bytes) else text
    if kind not in _SCIPY_PARTS or len(numbers) != 2 or not 0 <= min(numbers) <= max(numbers) <= MAX_NODES:
        raise InputError(
            f"{path.name} holds a {kind!r} matrix of shape {numbers}; legal are {', '.join(_SCIPY_PARTS)} of up to "
            f"{MAX_NODES:,} rows and columns"
        )
    return kind, (numbers[0], numbers[1])


def _scipy_matrix(arrays: Arrays, path: Path) -> Any:
    """The matrix in memory, all of its indices checked."""
    kind, shape = _scipy_header(arrays, path)
    names = _SCIPY_PARTS[kind]
    parts = {name: _part(arrays, name, path) for name in names}
    for name, part in parts.items():
        part.require(NUMBERS if name == "data" else INTEGERS, "numbers" if name == "data" else "integers")
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


def _part(arrays: Arrays, name: str, path: Path) -> NpyFile:
    if name not in arrays:
        raise InputError(f"{path.name} is a scipy file without {name!r}; it holds {_listed(arrays)}")
    return arrays[name]


def edges_of_matrix(matrix: Any, origin: str) -> Edges:
    """The nonzero entries of a square matrix in memory, dense or sparse, as edges."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the adjacency matrix of {origin} has shape {matrix.shape}; it must be square")
    entries = sparse.coo_array(matrix)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, entries.nnz, SLICE_ENTRIES):
            part = slice(start, start + SLICE_ENTRIES)
            stored = entries.data[part] != 0
            yield entries.row[part][stored], entries.col[part][stored]

    return Edges(chunks, entries.nnz, int(matrix.shape[0]))


def _attributes(arrays: Arrays) -> DenseRows | SparseRows | None:
    if "x" in arrays:
        return _dense(arrays["x"])
    if "x_indptr" not in arrays or "x_indices" not in arrays:
        return None
    indptr = arrays["x_indptr"].require(INTEGERS, "integers of shape (n + 1)", dims=1).load()
    indices = arrays["x_indices"].require(NUMBERS, "whole numbers of one dimension", dims=1).load()
    data: NDArray[Any] = np.ones(len(indices), np.float32)
    if "x_data" in arrays:
        data = arrays["x_data"].require(NUMBERS, "numbers of one dimension", dims=1).load()
    width = None
    if "x_shape" in arrays:
        shape = arrays["x_shape"].require(INTEGERS, "the integers n and d", dims=1).load().tolist()
        if len(shape) != 2 or shape[0] != len(indptr) - 1:
            raise InputError(f"{arrays['x_shape'].name} is {shape}; legal is [{len(indptr) - 1}, d]")
        width = shape[1]
    return check_sparse(indptr, indices, data, width)


def _attribute_file(path: Path, max_bytes: int) -> DenseRows | SparseRows:
    arrays = open_arrays(path, max_bytes)
    if "format" not in arrays:
        return _dense(_only("x", path, max_bytes))
    return SparseRows.of(_scipy_matrix(arrays, path))


def _dense(array: NpyFile) -> DenseRows:
    array.require(NUMBERS, "numbers of shape (n, d)", dims=2)
    rows = max(1, _BLOCK_BYTES // max(1, array.dtype.itemsize * array.shape[1]))
    return DenseRows((array.shape[0], array.shape[1]), lambda: array.row_blocks(rows))
