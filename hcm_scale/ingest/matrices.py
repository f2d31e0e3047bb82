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

from hcm_scale.graph.build import Chunk
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, Edges, write_arrays
from hcm_scale.ingest.attributes import check_sparse
from hcm_scale.ingest.npy_stream import SLICE_ENTRIES, NpyFile, open_arrays
from hcm_scale.ingest.policy import Policy

ROLES = ("edge_index", "indptr", "indices", "x", "x_indptr", "x_indices", "x_data", "x_shape", "y")
_BLOCK_BYTES = 1 << 22
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
    arrays = _renamed(open_arrays(path), keys or {}, path)
    attributes = _attributes(arrays) if x is None else _attribute_file(Path(x))
    labels = open_arrays(Path(y)) if y is not None else arrays
    named = labels.get("y") if y is None or "y" in labels else next(iter(labels.values()))
    return write_arrays(out, path.name, edges_of(arrays, path), attributes, named.load() if named else None, policy)


def _renamed(arrays: Arrays, keys: Mapping[str, str], path: Path) -> Arrays:
    for role, name in keys.items():
        if role not in ROLES:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(ROLES)}")
        if name not in arrays:
            raise ValueError(f"graph.keys={{{role!r}: {name!r}}} is not in {path.name}; it holds {sorted(arrays)}")
    if path.suffix == ".npy":
        return {"edge_index": next(iter(arrays.values()))}
    return {**arrays, **{role: arrays[name] for role, name in keys.items()}}


def edges_of(arrays: Arrays, path: Path) -> Edges:
    """The edges among named arrays, whichever way they are kept."""
    if "edge_index" in arrays:
        return _from_edge_index(arrays["edge_index"])
    if "format" in arrays:
        return _from_scipy(arrays, path)
    if "indptr" in arrays and "indices" in arrays:
        return _from_csr(arrays["indptr"].load(), arrays["indices"])
    raise ValueError(f"{path.name} holds no edges: edge_index, or indptr and indices; it holds {sorted(arrays)}")


def _from_edge_index(array: NpyFile) -> Edges:
    if len(array.shape) != 2 or array.shape[0] != 2:
        raise ValueError(f"{array.name} has shape {array.shape}; legal is (2, E)")
    num_rows = array.shape[1]

    def chunks() -> Iterator[Chunk]:
        if array.fortran:  # stored as pairs, one after the other
            for pairs in array.read_slices(0, 2 * num_rows, 2 * SLICE_ENTRIES):
                yield pairs[0::2], pairs[1::2]
        else:
            yield from zip(array.read_slices(0, num_rows), array.read_slices(num_rows, 2 * num_rows), strict=True)

    return Edges(chunks)


def _from_csr(indptr: NDArray[Any], indices: NpyFile, data: NpyFile | None = None, flip: bool = False) -> Edges:
    """CSR (or, flipped, CSC) entries as edges; stored zeros in `data` are none."""
    num_entries = indices.size
    if (
        indptr.ndim != 1
        or not len(indptr)
        or indptr[0] != 0
        or indptr[-1] != num_entries
        or (np.diff(indptr) < 0).any()
    ):
        raise ValueError(f"indptr must rise from 0 to the {num_entries:,} entries of indices")

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

    return Edges(chunks, len(indptr) - 1)


def _rows_of(indptr: NDArray[Any], start: int, stop: int) -> NDArray[np.int64]:
    """The row of each CSR entry start .. stop - 1."""
    first, last = np.searchsorted(indptr, start, "right") - 1, np.searchsorted(indptr, stop, "left")
    counts = np.diff(np.clip(indptr[first : last + 1], start, stop))
    return np.repeat(np.arange(first, last), counts)


def _from_scipy(arrays: Arrays, path: Path) -> Edges:
    shape = tuple(arrays["shape"].load().tolist())
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{path.name} holds a matrix of shape {shape}; an adjacency matrix must be square")
    kind = arrays["format"].load().item()
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind in ("csr", "csc"):
        return _from_csr(arrays["indptr"].load(), arrays["indices"], arrays["data"], flip=kind == "csc")
    return edges_of_matrix(sparse.load_npz(path))


def edges_of_matrix(matrix: Any) -> Edges:
    """The nonzero entries of a square matrix in memory, dense or sparse, as edges."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the adjacency matrix has shape {matrix.shape}; it must be square")
    entries = sparse.coo_array(matrix)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, entries.nnz, SLICE_ENTRIES):
            part = slice(start, start + SLICE_ENTRIES)
            stored = entries.data[part] != 0
            yield entries.row[part][stored], entries.col[part][stored]

    return Edges(chunks, int(matrix.shape[0]))


def _attributes(arrays: Arrays) -> DenseRows | SparseRows | None:
    if "x" in arrays:
        return _dense(arrays["x"])
    if "x_indptr" not in arrays or "x_indices" not in arrays:
        return None
    indices = arrays["x_indices"].load()
    data = arrays["x_data"].load() if "x_data" in arrays else np.ones(len(indices), np.float32)
    width = int(arrays["x_shape"].load()[1]) if "x_shape" in arrays else None
    return check_sparse(arrays["x_indptr"].load(), indices, data, width)


def _attribute_file(path: Path) -> DenseRows | SparseRows:
    arrays = open_arrays(path)
    if "format" in arrays:
        return SparseRows.of(sparse.load_npz(path))
    return _dense(arrays["x"] if "x" in arrays else next(iter(arrays.values())))


def _dense(array: NpyFile) -> DenseRows:
    if len(array.shape) != 2 or array.dtype.kind not in "iufb":
        raise ValueError(f"{array.name} is {array.dtype} of shape {array.shape}; legal are numbers of shape (n, d)")
    rows = max(1, _BLOCK_BYTES // max(1, array.dtype.itemsize * array.shape[1]))
    return DenseRows((array.shape[0], array.shape[1]), lambda: array.row_blocks(rows))
