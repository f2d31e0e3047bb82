"""NumPy and scipy files, and scipy matrices in memory, to a graph folder.

| what       | arrays                                                                                                  |
|------------|---------------------------------------------------------------------------------------------------------|
| edges      | `edge_index` (2, E), or CSR `indptr` + `indices`, or a matrix saved by scipy.sparse.save_npz            |
| weights    | `edge_weight` (E), or the values of that matrix, where graph.weights asks for them                      |
| attributes | `x` (n, d), or CSR `x_indptr` + `x_indices` [+ `x_data`, ones if absent] [+ `x_shape`]                  |
| labels     | `y` (n), 1 = anomaly                                                                                    |

`read_matrices` looks for them in one .npz, in a folder of .npy files, or in one .npy (the edge_index); `keys` maps a
name of this table to the file's own name. What is asked for of an archive is unpacked beside the new folder, what it
unpacks to being checked before; edges and dense attributes are read from a map of the file, piece by piece, and are
never in memory as a whole. Pickles are refused, and a header must promise the bytes that follow. Stored zeros of an
adjacency matrix are no edges.

`read_sparse` takes an adjacency matrix and attributes in memory. Of attributes in a table (pandas, Polars, Arrow) the
names of columns are kept; a pandas index of distinct texts or whole numbers, other than the plain 0 .. n - 1, has the
ids of the nodes.
"""

import contextlib
import functools
import math
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from hcm_scale.base.console import shorten
from hcm_scale.base.npy import open_npy, read_header
from hcm_scale.graph.build import MAX_NODES
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, Edges, WeightedChunk, check_indptr, check_keys, write_arrays
from hcm_scale.ingest.policy import InputError, Offenders, Policy, check_growth, naming_origin, reading, shown_names
from hcm_scale.ingest.table_files import check_distinct, index_of, is_table

NUMBERS, INTEGERS, _ANY = "iufb", "iu", "biufcmMSUV"  # kinds of numpy types
_ROLES = ("edge_index", "edge_weight", "indptr", "indices", "x", "x_indptr", "x_indices", "x_data", "x_shape", "y")
_FORMATS = ("csr", "csc", "coo")  # of scipy files
MAX_COLUMNS = (1 << 31) - 1
_SLICE_ENTRIES, _COPIED_BYTES = 1 << 18, 1 << 22
_IN_MEMORY, _TABLE = "scipy matrix", "the table of attributes"


def read_matrices(out: Path | str, path: Path, keys: Mapping[str, str], policy: Policy) -> Graph:
    """Reads the arrays at `path` (.npz, .npy or a folder of .npy) into the graph folder `out`; returns it opened."""
    with naming_origin(path.name), contextlib.ExitStack() as stack:
        out = Path(out)
        scratch = out.with_name(f".{out.name}-unpacked.{os.getpid()}.tmp")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        held = _open_arrays(path, scratch, policy.max_bytes, stack)
        check_keys(keys, _ROLES, sorted(held), path.name)
        arrays = held | {role: held[name] for role, name in keys.items()}
        if path.suffix == ".npy" and not path.is_dir():
            arrays = {"edge_index": held[path.stem]}
        labels = arrays["y"].require(_ANY, "numbers") if "y" in arrays else None
        edges = _find_edges(arrays, path, policy.weights)
        return write_arrays(out, path.name, edges, _attributes(arrays), labels, policy)


def read_sparse(out: Path | str, adjacency: Any, x: Any, policy: Policy) -> Graph:
    """Writes an (n, n) matrix and attributes (n, d), sparse, dense or None, to the folder `out`; returns it opened."""
    if adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(f"the adjacency matrix has shape {adjacency.shape}; legal is (n, n)")
    edges, ids = edges_of_matrix(adjacency.tocoo(), _IN_MEMORY), _index_ids(x)
    return write_arrays(out, _IN_MEMORY, edges, _attributes_in_memory(x), None, policy, ids=ids)


class Held(NamedTuple):
    """One array of the input: what messages call it, and where its .npy file is, once it is unpacked."""

    name: str
    unpacked: Callable[[], Path]

    def require(self, kinds: str, legal: str, dims: int | None = None) -> NDArray[Any]:
        """The array, mapped; an error that says what is legal where the type or the number of dimensions is another."""
        path = self.unpacked()
        with reading(f"{self.name} is not a .npy array"), open(path, "rb") as stream:
            shape, _, dtype = read_header(stream)
            num_bytes = path.stat().st_size - stream.tell()
        if dtype.hasobject:
            raise InputError(f"{self.name} holds Python objects (a pickle); legal are plain arrays")
        promised = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or promised != num_bytes:
            raise InputError(
                f"{self.name} is torn: its header says {dtype} of shape {shape}, which is {promised:,} bytes; "
                f"{num_bytes:,} follow"
            )
        if dtype.kind not in kinds or dims not in (None, len(shape)):
            raise InputError(f"{self.name} is {dtype} of shape {shape}; legal are {legal}")
        return open_npy(path)


Arrays = dict[str, Held]


def _open_arrays(path: Path, scratch: Path, max_bytes: int, stack: contextlib.ExitStack) -> Arrays:
    """The arrays of a folder of .npy files, of one such file, or of a .npz archive, which `stack` closes, by name.

    What is asked for of an archive is unpacked into `scratch`.
    """
    if path.is_dir() or path.suffix == ".npy":
        paths = [p for p in sorted(path.glob("*.npy")) if p.is_file()] if path.is_dir() else [path]
        return {p.stem: Held(p.name, functools.partial(Path, p)) for p in paths}
    with reading(f"{path} cannot be read as .npz"):
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    check_growth(path.name, path.stat().st_size, sum(member.file_size for member in members), max_bytes)
    arrays: Arrays = {}
    for number, member in enumerate(members):
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise InputError(f"{path.name} holds {name!r} twice; legal is one array of a name")
        where = f"{path.name}:{name}"
        unpack = functools.partial(_unpack, archive, member, scratch / f"{number}.npy", where)
        arrays[name] = Held(where, functools.cache(unpack))
    return arrays


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, out: Path, name: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    with reading(f"{name} cannot be unpacked"), archive.open(member) as packed, open(out, "wb") as stream:
        shutil.copyfileobj(packed, stream, _COPIED_BYTES)
    return out


def _find_edges(arrays: Arrays, path: Path, weights: bool) -> Edges:
    """The edges among named arrays, whichever way they are stored; with edge_weight where `weights` asks for them."""
    given = arrays.get("edge_weight") if weights else None
    if "edge_index" in arrays:
        index = arrays["edge_index"].require(NUMBERS, "whole numbers of shape (2, E)", dims=2)
        if index.shape[0] != 2:
            raise InputError(f"{arrays['edge_index'].name} has shape {index.shape}; legal is (2, E)")
        source, target = index
        return Edges.of(source, target, _values(given, len(source), arrays["edge_index"].name))
    if "format" in arrays:
        return _from_scipy(arrays, path)
    if "indptr" in arrays and "indices" in arrays:
        return _from_csr(arrays["indptr"], arrays["indices"], given)
    held = shown_names(sorted(arrays))
    raise InputError(f"{path.name} holds no edges: edge_index, or indptr and indices; it holds {held}")


def _values(values: Held | None, num_entries: int, beside: str) -> NDArray[Any] | None:
    if values is None:
        return None
    numbers = values.require(NUMBERS, "numbers of shape (E)", dims=1)
    if len(numbers) != num_entries:
        raise InputError(f"{values.name} has {len(numbers):,} entries and {beside} {num_entries:,}; they must be equal")
    return numbers


def _from_csr(pointers: Held, held: Held, given: Held | None, is_matrix: bool = False, flip: bool = False) -> Edges:
    """CSR (or, flipped, CSC) entries as edges of weight `given`, which are no edges where a matrix has zeros."""
    indices = held.require(NUMBERS, "whole numbers of shape (E)", dims=1)
    indptr = pointers.require(INTEGERS, "integers of shape (n + 1)", dims=1)
    indptr, values = check_indptr(indptr, len(indices), "indptr"), _values(given, len(indices), held.name)

    def chunks() -> Iterator[WeightedChunk]:
        for start in range(0, len(indices), _SLICE_ENTRIES):
            stop = min(start + _SLICE_ENTRIES, len(indices))
            first, last = np.searchsorted(indptr, start, "right") - 1, np.searchsorted(indptr, stop, "left")
            counts: NDArray[Any] = np.diff(np.clip(indptr[first : last + 1], start, stop))
            ends = np.repeat(np.arange(first, last), counts), indices[start:stop]
            yield *(ends[::-1] if flip else ends), None if values is None else values[start:stop]

    taken = (lambda: _nonzero(chunks())) if is_matrix else chunks
    return Edges(taken, len(indices), len(indptr) - 1, has_weights=values is not None)


def _from_scipy(arrays: Arrays, path: Path) -> Edges:
    """The edges of a matrix that scipy.sparse.save_npz wrote, all of its indices checked; CSR and CSC are streamed."""

    def held(name: str) -> Held:
        if name not in arrays:
            held = shown_names(sorted(arrays))
            raise InputError(f"{path.name} is a scipy file without {name!r}; it holds {held}")
        return arrays[name]

    text = arrays["format"].require("SU", "one of csr, csc, coo, dia, bsr", dims=0).item()
    shape = tuple(held("shape").require(INTEGERS, "two integers", dims=1).tolist())
    kind = text.decode("latin1") if isinstance(text, bytes) else text
    if kind not in _FORMATS or len(shape) != 2 or not 0 <= min(shape) <= max(shape) <= MAX_NODES:
        raise InputError(
            f"{path.name} holds a {shorten(kind)!r} matrix of shape {shorten(str(shape))}; legal are "
            f"{', '.join(_FORMATS)} of up to {MAX_NODES:,} rows and columns"
        )
    if shape[0] != shape[1]:
        raise InputError(f"{path.name} holds a matrix of shape {shape}; an adjacency matrix must be square")
    if kind != "coo":
        edges = _from_csr(held("indptr"), held("indices"), held("data"), is_matrix=True, flip=kind == "csc")
        if edges.num_nodes != shape[0]:
            raise InputError(f"{path.name}:indptr is of {edges.num_nodes:,} rows; {path.name}:shape says {shape}")
        return edges
    values = held("data").require(NUMBERS, "numbers")
    ends = tuple(held(name).require(INTEGERS, "integers") for name in ("row", "col"))
    with reading(f"{path.name} is no coo matrix"):
        matrix = scipy.sparse.coo_array((values, ends), shape=shape)
    return edges_of_matrix(matrix, path.name)


def edges_of_matrix(matrix: Any, origin: str) -> Edges:
    """The nonzero entries of a square matrix in memory, dense or sparse, as edges."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the adjacency matrix of {origin} has shape {matrix.shape}; it must be square")
    entries = scipy.sparse.coo_array(matrix)
    held = Edges.of(entries.row, entries.col, entries.data, int(matrix.shape[0]))
    return replace(held, chunks=lambda: _nonzero(held.chunks()))


def _nonzero(entries: Iterator[WeightedChunk]) -> Iterator[WeightedChunk]:
    """The entries of an adjacency matrix but zeros; raises at the end where some are no finite numbers."""
    bad = Offenders("values are not finite", "the adjacency matrix", "legal are numbers, 0 where there is no edge")
    for u, v, values in entries:
        bad.add(~np.isfinite(values), lambda i: f"row {u[i]:,} column {v[i]:,}: {values[i]}")  # noqa: B023
        stored = values != 0
        yield u[stored], v[stored], values[stored]
    bad.check()


def _attributes(arrays: Arrays) -> DenseRows | SparseRows | None:
    if "x" in arrays:
        x = arrays["x"].require(NUMBERS, "numbers of shape (n, d)", dims=2)
        return DenseRows(np.ascontiguousarray(x))  # one stored by columns is loaded whole
    if "x_indptr" not in arrays or "x_indices" not in arrays:
        return None
    indptr = np.array(arrays["x_indptr"].require(INTEGERS, "integers of shape (n + 1)", dims=1))
    indices = np.array(arrays["x_indices"].require(INTEGERS, "integers of one dimension", dims=1))
    data: NDArray[Any] = np.ones(len(indices), np.float32)
    if "x_data" in arrays:
        data = np.array(arrays["x_data"].require(NUMBERS, "numbers of one dimension", dims=1))
    low, top = (int(indices.min()), int(indices.max())) if len(indices) else (0, -1)
    width = top + 1
    if "x_shape" in arrays:
        shape = arrays["x_shape"].require(INTEGERS, "the integers n and d", dims=1).tolist()
        if len(shape) != 2 or shape[0] != len(indptr) - 1:
            raise InputError(f"{arrays['x_shape'].name} is {shape}; legal is [{len(indptr) - 1}, d]")
        width = shape[1]
    if low < 0 or top >= width or width > MAX_COLUMNS:
        most = width if "x_shape" in arrays and 0 <= width <= MAX_COLUMNS else MAX_COLUMNS
        raise ValueError(f"x_indices run from {low} to {top} of {width} columns; legal are 0 .. {most - 1}")
    if len(data) != len(indices):
        raise ValueError(f"x_data has {len(data):,} entries and x_indices {len(indices):,}; they must be equal")
    starts = check_indptr(indptr, len(indices), "x_indptr")
    return SparseRows(starts, indices.astype(np.int32, copy=False), data.astype(np.float32, copy=False), width)


def _attributes_in_memory(x: Any) -> DenseRows | SparseRows | None:
    if x is None:
        return None
    if hasattr(x, "tocsr"):
        return SparseRows.of(x)
    dense = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    if dense.ndim != 2 or dense.dtype.kind not in NUMBERS:
        raise InputError(f"attributes have shape {dense.shape} and type {dense.dtype}; legal are numbers (n, d)")
    names = list(getattr(x, "column_names" if hasattr(x, "column_names") else "columns", ())) if is_table(x) else []
    check_distinct(names, _TABLE)
    return DenseRows(dense, () if names == list(range(len(names))) else tuple(map(str, names)))


def _index_ids(x: Any) -> pa.Array | None:
    """The ids of the nodes that the index of a pandas table has; None where it has none."""
    index = index_of(x)
    if index is None or not index.is_unique or index.hasnans or index.inferred_type not in ("string", "integer"):
        return None
    if index.inferred_type == "integer" and index.min() == 0 and index.max() == len(index) - 1:
        raise InputError(
            f"the pandas index of {_TABLE} holds 0 .. {len(index) - 1} in another order than the rows of the matrix; "
            "x.sort_index() puts the rows x into that order, x.reset_index(drop=True) says that they are in it"
        )
    with reading(f"the pandas index of {_TABLE} cannot be the ids of nodes"):
        return pa.array(index.tolist())
