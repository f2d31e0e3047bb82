"""NumPy and scipy files to a graph folder, by the names of their arrays, streamed and without pickles.

| what       | arrays                                                                                        |
|------------|-----------------------------------------------------------------------------------------------|
| edges      | `edge_index` (2, E), or CSR `indptr` + `indices`, or a matrix saved by scipy.sparse.save_npz  |
| weights    | `edge_weight` (E), or the values of that matrix, where graph.weights asks for them            |
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

from hcm_scale.graph.build import Chunk
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest import scipy_file
from hcm_scale.ingest.arrays import DenseRows, Edges, write_arrays
from hcm_scale.ingest.attributes import check_indptr, check_sparse
from hcm_scale.ingest.edge_weights import Weighed
from hcm_scale.ingest.errors import InputError, naming
from hcm_scale.ingest.npy_stream import INTEGERS, NUMBERS, SLICE_ENTRIES, Arrays, NpyFile, listed, open_arrays
from hcm_scale.ingest.policy import Offenders, Policy

ROLES = ("edge_index", "edge_weight", "indptr", "indices", "x", "x_indptr", "x_indices", "x_data", "x_shape", "y")
_BLOCK_BYTES = 1 << 22


def read_matrices(
    out: Path | str,
    path: str | Path,
    *,
    keys: Mapping[str, str] | None = None,
    policy: Policy = Policy(),  # noqa: B008
) -> Graph:
    """Reads the arrays at `path` (.npz, .npy or a folder of .npy) into the graph folder `out`; returns it opened."""
    path = Path(path)
    with naming(path.name):
        arrays = _renamed(open_arrays(path, policy.max_bytes), keys or {}, path)
        labels = arrays["y"].load() if "y" in arrays else None
        return write_arrays(out, path.name, edges_of(arrays, path), _attributes(arrays), labels, policy)


def _renamed(arrays: Arrays, keys: Mapping[str, str], path: Path) -> Arrays:
    for role, name in keys.items():
        if role not in ROLES:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(ROLES)}")
        if name not in arrays:
            raise InputError(f"graph.keys={{{role!r}: {name!r}}} is not in {path.name}; it holds {listed(arrays)}")
    if path.suffix == ".npy" and not path.is_dir():
        return {"edge_index": next(iter(arrays.values()))}
    return {**arrays, **{role: arrays[name] for role, name in keys.items()}}


def edges_of(arrays: Arrays, path: Path) -> Edges:
    """The edges among named arrays, whichever way they are kept."""
    if "edge_index" in arrays:
        return _from_edge_index(arrays["edge_index"], arrays.get("edge_weight"))
    if "format" in arrays:
        return _from_scipy(arrays, path)
    if "indptr" in arrays and "indices" in arrays:
        return _from_csr(arrays["indptr"], arrays["indices"], weights=arrays.get("edge_weight"))
    raise InputError(f"{path.name} holds no edges: edge_index, or indptr and indices; it holds {listed(arrays)}")


def _from_edge_index(array: NpyFile, weights: NpyFile | None) -> Edges:
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

    def weighed(values: NpyFile) -> Iterator[Weighed]:
        _check_values(values, num_rows, array.name)
        for (u, v), part in zip(chunks(), values.read_slices(0, num_rows), strict=True):
            yield u, v, part

    return Edges(chunks, num_rows, weighed=None if weights is None else lambda: weighed(weights))


def _from_csr(
    pointers: NpyFile,
    indices: NpyFile,
    data: NpyFile | None = None,
    flip: bool = False,
    weights: NpyFile | None = None,
) -> Edges:
    """CSR (or, flipped, CSC) entries as edges, which weigh `data` or `weights`; stored zeros in `data` are none."""
    indices.require(NUMBERS, "whole numbers of shape (E)", dims=1)
    num_entries = indices.size
    indptr = pointers.require(INTEGERS, "integers of shape (n + 1)", dims=1).load()
    indptr = check_indptr(indptr, num_entries, "indptr")
    if data is not None:
        _check_values(data, num_entries, indices.name)

    def entries() -> Iterator[Chunk]:
        start = 0
        for columns in indices.read_slices(0, num_entries):
            rows = _rows_of(indptr, start, start + len(columns))
            start += len(columns)
            yield (columns, rows) if flip else (rows, columns)

    def weighed(values: NpyFile) -> Iterator[Weighed]:
        _check_values(values, num_entries, indices.name)
        found = ((u, v, part) for (u, v), part in zip(entries(), values.read_slices(0, num_entries), strict=True))
        return _nonzero(found) if values is data else found

    def chunks() -> Iterator[Chunk]:
        return entries() if data is None else ((u, v) for u, v, _ in weighed(data))

    values = weights if data is None else data
    return Edges(chunks, num_entries, len(indptr) - 1, None if values is None else lambda: weighed(values))


def _check_values(values: NpyFile, num_entries: int, beside: str) -> None:
    """Refuses values of edges that are not as many as the edges."""
    if values.require(NUMBERS, "numbers of shape (E)", dims=1).size != num_entries:
        raise InputError(f"{values.name} has {values.size:,} entries and {beside} {num_entries:,}; they must be equal")


def _rows_of(indptr: NDArray[Any], start: int, stop: int) -> NDArray[np.int64]:
    """The row of each CSR entry start .. stop - 1."""
    first, last = np.searchsorted(indptr, start, "right") - 1, np.searchsorted(indptr, stop, "left")
    counts = np.diff(np.clip(indptr[first : last + 1], start, stop))
    return np.repeat(np.arange(first, last), counts)


def _from_scipy(arrays: Arrays, path: Path) -> Edges:
    kind, shape = scipy_file.header(arrays, path)
    if shape[0] != shape[1]:
        raise InputError(f"{path.name} holds a matrix of shape {shape}; an adjacency matrix must be square")
    if kind in ("csr", "csc"):
        data, indices, indptr = (scipy_file.part(arrays, name, path) for name in scipy_file.PARTS[kind])
        edges = _from_csr(indptr, indices, data, flip=kind == "csc")
        if edges.num_nodes != shape[0]:
            raise InputError(f"{path.name}:indptr is of {edges.num_nodes:,} rows; {path.name}:shape says {shape}")
        return edges
    return edges_of_matrix(scipy_file.matrix(arrays, path), path.name)


def edges_of_matrix(matrix: Any, origin: str) -> Edges:
    """The nonzero entries of a square matrix in memory, dense or sparse, as edges."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the adjacency matrix of {origin} has shape {matrix.shape}; it must be square")
    entries = sparse.coo_array(matrix)

    def weighed() -> Iterator[Weighed]:
        for start in range(0, entries.nnz, SLICE_ENTRIES):
            part = slice(start, start + SLICE_ENTRIES)
            yield entries.row[part], entries.col[part], entries.data[part]

    def chunks() -> Iterator[Chunk]:
        return ((u, v) for u, v, _ in _nonzero(weighed()))

    return Edges(chunks, entries.nnz, int(matrix.shape[0]), lambda: _nonzero(weighed()))


def _nonzero(entries: Iterator[Weighed]) -> Iterator[Weighed]:
    """The entries of an adjacency matrix but zeros; raises at the end where some are no finite numbers."""
    bad = Offenders("values are not finite", "the adjacency matrix", "legal are numbers, 0 where there is no edge")
    for u, v, values in entries:
        bad.add(~np.isfinite(values), lambda i: f"row {u[i]:,} column {v[i]:,}: {values[i]}")  # noqa: B023
        stored = values != 0
        yield u[stored], v[stored], values[stored]
    bad.check()


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


def _dense(array: NpyFile) -> DenseRows:
    array.require(NUMBERS, "numbers of shape (n, d)", dims=2)
    rows = max(1, _BLOCK_BYTES // max(1, array.dtype.itemsize * array.shape[1]))
    return DenseRows((array.shape[0], array.shape[1]), lambda: array.row_blocks(rows))
