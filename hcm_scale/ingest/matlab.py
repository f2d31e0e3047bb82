"""MATLAB v5 files (save -v6, -v7) to a graph folder: numbers, dense or sparse; every size is checked before its use.

Two families of names are known: A, X, gnd and Network, Attributes, Label. Only `gnd` is taken as anomaly labels: the
`Label` of the second family holds classes. `keys` names others. Variables are loaded whole, so a file whose variables
unpack to more than `policy.max_bytes` is refused before that; sparse matrices stay sparse.

A file is a header of 128 bytes and elements: a tag (type, bytes), then data. A variable is an element of type 14, or of
type 15, which is deflated and has such an element in it. Inside are elements again: class and flags, dimensions, name,
then the values by columns, or of a sparse matrix the rows, the column starts and the values. Values are stored in any
type that holds them. An element of up to four bytes lies in its own tag, others are padded to eight bytes. Listing a
file unpacks the first bytes of each variable only.
"""

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, check_indptr, check_keys, write_arrays
from hcm_scale.ingest.matrices import INTEGERS, edges_of_matrix
from hcm_scale.ingest.policy import InputError, Policy, naming_origin, reading

_HEADER_BYTES, _TAG_BYTES, _PEEKED_BYTES = 128, 8, 1 << 12
_MATRIX, _COMPRESSED = 14, 15
_SPARSE, _NUMERIC = 5, range(6, 16)
_COMPLEX = 0x0800
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


@dataclass(frozen=True)
class Variable:
    """A variable of a file: what its own header says, and where it lies."""

    path: Path
    start: int  # of the element, after its tag
    packed_bytes: int  # 0: not deflated
    order: str  # of bytes, as numpy says it
    name: str
    kind: int
    is_complex: bool
    shape: tuple[int, ...]
    num_bytes: int  # unpacked

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.name}"

    @property
    def is_sparse(self) -> bool:
        return self.kind == _SPARSE

    def blocks(self) -> list[NDArray[Any]]:
        """[values] by columns, or [rows, column starts, values] of a sparse matrix; each as long as its tag says."""
        if self.is_complex or not (self.is_sparse or self.kind in _NUMERIC) or len(self.shape) != 2:
            raise InputError(f"{self.where} is no matrix of real numbers; legal are such of shape (n, d)")
        with open(self.path, "rb") as stream:
            stream.seek(self.start)
            if self.packed_bytes:  # a byte more than there is makes zlib check its sum
                data = _inflated(stream, self.packed_bytes, _TAG_BYTES + self.num_bytes + 1, self.where)[_TAG_BYTES:]
            else:
                data = memoryview(stream.read(self.num_bytes))
        if len(data) != self.num_bytes:
            raise InputError(f"{self.where} is torn: it says {self.num_bytes:,} bytes and has fewer or more")
        bodies = list(_elements(data, self.order, self.where))[3:]
        for kind, body in bodies:
            if kind not in _TYPES or len(body) % np.dtype(_TYPES[kind]).itemsize:
                legal = f"legal are whole numbers of {_TYPES}"
                raise InputError(f"{self.where} has {len(body):,} bytes of type {kind}; {legal}")
        if len(bodies) != (num_blocks := 3 if self.is_sparse else 1):
            raise InputError(f"{self.where} has {len(bodies)} blocks of numbers; legal are {num_blocks}")
        typed = [(_TYPES[kind], body) for kind, body in bodies]
        return [np.frombuffer(body, self.order + dtype).astype(dtype, copy=False) for dtype, body in typed]

    def dense(self) -> NDArray[Any]:
        if self.is_sparse:
            raise InputError(f"{self.where} is sparse; legal is a dense matrix")
        values = self.blocks()[0]
        if len(values) != math.prod(self.shape):
            raise InputError(f"{self.where} has {len(values):,} values; its shape {self.shape} asks for another number")
        return values.reshape(self.shape, order="F")


def list_variables(path: Path) -> dict[str, Variable]:
    """The variables of a file by name."""
    variables: dict[str, Variable] = {}
    file_bytes = path.stat().st_size
    with open(path, "rb") as stream:
        order = _check_header(path.name, stream.read(_HEADER_BYTES))
        while tag := stream.read(_TAG_BYTES):
            start = stream.tell()
            kind, size = _tag(tag, order)
            if len(tag) < _TAG_BYTES or start + size > file_bytes:
                raise InputError(f"{path.name} is torn: byte {start - len(tag):,} begins what the file does not hold")
            where, packed_bytes = f"{path.name} byte {start - _TAG_BYTES:,}", 0
            if kind == _COMPRESSED:
                packed_bytes, head = size, _inflated(stream, size, _TAG_BYTES, where)
                if len(head) < _TAG_BYTES:
                    raise InputError(f"{where} is torn: nothing can be unpacked")
                kind, num_bytes = _tag(head, order)
                stream.seek(start)  # not to its end: the sum of a variable that nobody asks for may be wrong
                data = _inflated(stream, size, _TAG_BYTES + min(num_bytes, _PEEKED_BYTES), where)[_TAG_BYTES:]
            else:
                num_bytes, data = size, memoryview(stream.read(min(size, _PEEKED_BYTES)))
            if kind != _MATRIX:
                legal = f"{_MATRIX} (a variable) and {_COMPRESSED} (a packed one)"
                raise InputError(f"{where} is of type {kind}; legal are {legal}")
            facts = _facts(data, order, where)
            variable = Variable(path, start, packed_bytes, order, *facts, num_bytes)
            if variable.name in variables:
                raise InputError(f"{path.name} holds {variable.name!r} twice; legal is one variable of a name")
            if variable.name:  # one without a name is MATLAB's own
                variables[variable.name] = variable
            stream.seek(start + size)
    return variables


def _check_header(name: str, header: bytes) -> str:
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128], "")
    major = header[125 if order == "<" else 124] if order else 0
    if major != 1:
        kind = "MATLAB v7.3 (HDF5)" if major == 2 else "no MATLAB v5 file"
        raise InputError(f"{name} is {kind}; legal is v5: save('-v7', ...)")
    return order


def _facts(data: memoryview, order: str, where: str) -> tuple[str, int, bool, tuple[int, ...]]:
    heads = list(itertools.islice(_elements(data, order, where, whole=False), 3))
    (_, flags), (dims_kind, dims), (_, name) = heads if len(heads) == 3 else [(0, b"")] * 3
    if len(flags) != 8 or dims_kind != 5 or len(dims) % 4:
        raise InputError(f"{where} is no variable: flags, dimensions and a name were expected")
    bits = int(np.frombuffer(flags, f"{order}u4")[0])
    shape = tuple(np.frombuffer(dims, f"{order}i4").tolist())
    if min(shape, default=-1) < 0:
        raise InputError(f"{where} has the dimensions {shape}; legal are numbers from 0 on")
    return bytes(name).decode("latin1"), bits & 0xFF, bool(bits & _COMPLEX), shape


def _tag(data: bytes | memoryview, order: str) -> tuple[int, int]:
    kind, size = np.frombuffer(bytes(data[:_TAG_BYTES]).ljust(_TAG_BYTES, b"\0"), f"{order}u4").tolist()
    return kind, size


def _inflated(stream: BinaryIO, packed_bytes: int, num_bytes: int, where: str) -> memoryview:
    """The first `num_bytes` of what is deflated in `packed_bytes`; fewer where there are not so many."""
    with reading(f"{where} cannot be unpacked"):
        inflater, out = zlib.decompressobj(), bytearray()
        while packed_bytes and len(out) < num_bytes and not inflater.eof:
            data = stream.read(min(packed_bytes, 1 << 20))
            packed_bytes -= len(data)
            while data and len(out) < num_bytes:
                out += inflater.decompress(data, num_bytes - len(out))
                data = inflater.unconsumed_tail
        return memoryview(out)


def _elements(data: memoryview, order: str, where: str, whole: bool = True) -> Iterator[tuple[int, memoryview]]:
    """(type, data) of the elements of a variable; where not `whole`, the data may end anywhere."""
    at = 0
    while at + _TAG_BYTES <= len(data):
        kind, size = _tag(data[at:], order)
        body, step = at + _TAG_BYTES, _TAG_BYTES + -(-size // 8) * 8
        is_small = bool(kind >> 16)  # up to four bytes, in the second half of the tag
        if is_small:
            kind, size, body, step = kind & 0xFFFF, kind >> 16, at + 4, _TAG_BYTES
        if (is_small and size > 4) or body + size > len(data):
            if whole:
                raise InputError(f"{where} is torn: its byte {at:,} begins {size:,} bytes; {len(data) - body:,} follow")
            return
        yield kind, data[body : body + size]
        at += step


KNOWN = {"adjacency": ("A", "Network"), "attributes": ("X", "Attributes"), "label": ("gnd",)}


def read_mat(out: Path | str, path: Path, keys: Mapping[str, str], policy: Policy) -> Graph:
    """Reads a .mat file into the graph folder `out`, opened; `keys` maps adjacency, attributes, label to names."""
    with naming_origin(path.name):
        chosen = _choose(path, keys)
        unpacked = sum(variable.num_bytes for variable in chosen.values())
        if unpacked > policy.max_bytes:
            raise ValueError(f"{unpacked:,} bytes to unpack; {policy.max_bytes:,} are the most: save arrays as .npz")
        adjacency = chosen["adjacency"]
        edges = edges_of_matrix(_matrix(adjacency, adjacency.shape[0]), adjacency.where)
        x: SparseRows | DenseRows | None = None
        if "attributes" in chosen:
            matrix = _matrix(chosen["attributes"], adjacency.shape[0])
            x = DenseRows(matrix) if isinstance(matrix, np.ndarray) else SparseRows.of(matrix)
        y = chosen["label"].dense() if "label" in chosen else None
        return write_arrays(out, path.name, edges, x, y, policy)


def _choose(path: Path, keys: Mapping[str, str]) -> dict[str, Variable]:
    """Role -> variable: what `keys` says, else a known name that the file has."""
    held = list_variables(path)
    check_keys(keys, KNOWN, held, path.name)
    chosen: dict[str, str] = {}
    for role, usual in KNOWN.items():
        names = [keys[role]] if role in keys else [name for name in usual if name in held]
        if len(names) > 1:
            raise InputError(f"{path.name} holds {' and '.join(names)}; graph.keys={{{role!r}: name}} says which it is")
        if names:
            chosen[role] = names[0]
    if "adjacency" not in chosen:
        remedy = f"graph.keys={{'adjacency': name}} names one of {list(held)}"
        raise InputError(f"{path.name} holds none of {KNOWN['adjacency']}; {remedy}")
    return {role: held[name] for role, name in chosen.items()}


def _matrix(variable: Variable, num_rows: int) -> "np.ndarray | scipy.sparse.csc_array":
    """A variable of `num_rows` rows, all of its indices checked."""
    if len(variable.shape) != 2 or variable.shape[0] != num_rows:
        raise InputError(f"{variable.where} has shape {variable.shape}; legal is ({num_rows}, d)")
    if not variable.is_sparse:
        return variable.dense()
    rows, starts, values = variable.blocks()
    whole = rows.dtype.kind in INTEGERS and starts.dtype.kind in INTEGERS
    num_entries = int(starts[-1]) if whole and len(starts) == variable.shape[1] + 1 else -1
    if not 0 <= num_entries <= min(len(rows), len(values)):
        raise InputError(
            f"{variable.where} of shape {variable.shape} has {len(rows):,} rows, {len(starts):,} column starts and "
            f"{len(values):,} values, which do not fit"
        )
    rows, values = rows[:num_entries], values[:num_entries]
    if num_entries and not 0 <= rows.min() <= rows.max() < num_rows:
        raise InputError(f"{variable.where} names the rows {rows.min()} .. {rows.max()}; legal are 0 .. {num_rows - 1}")
    indptr = check_indptr(starts, num_entries, f"column starts of {variable.name}")
    return scipy.sparse.csc_array((values, rows.astype(np.int32, copy=False), indptr), variable.shape)
