"""Checks that arrays are a graph, whole and once, before any kernel reads them.

Types and shapes come first, then the values of one file after the other; the first fault is a ValueError that names the
array, the place and what is legal. Kernels return the place of a fault or -1 and never read outside their arrays,
whatever these hold: that rows do not fall comes first, then `first_stray`, then `arc_sum`, which rely on what was
verified before them.

Costs one pass over every array, in threads, and no memory. Whether every arc has its reverse, of the same weight, is
told by a sum: arcs that lead up add a hash of their ends and weight, arcs that lead down subtract it. Who does not know
its key, drawn for every check, makes it 0 for other arcs by a chance of 2^-64. Only where it is not 0 the arc is looked
for, with 40 bytes an arc. `bench/verify.py` has times.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.npy import FINITE, Rule, first_illegal
from hcm_scale.base.rng import mix
from hcm_scale.base.threads import map_slices

Arrays = Mapping[str, NDArray[Any]]
TYPES = {  # by name: the types and the number of dimensions that are legal
    "indptr": (("<i8",), 1),
    "indices": (("<i4", "<i8"), 1),
    "edge_types": (("<u2",), 1),
    "weights": (("<f4",), 1),
    "x": (("<f4", "<f2"), 2),
    "x_indptr": (("<i8",), 1),
    "x_indices": (("<i4",), 1),
    "x_data": (("<f4",), 1),
    "y": (("|u1",), 1),
    "kind": (("|u1",), 1),
    "ids": (("<i8",), 1),
    "ids_offsets": (("<i8",), 1),
    "ids_bytes": (("|u1",), 1),
    "node_types": (("|u1",), 1),
    "node_type_names": (("|u1",), 1),
}
PAYMENTS = {"payer": "<i4", "payee": "<i4", "time": "<f8", "amount": "<f8", "currency": "|u1", "number": "<i8"}
_ROWS = tuple(f"row_{name}" for name in PAYMENTS)
TYPES |= {f"row_{name}": ((dtype,), 1) for name, dtype in PAYMENTS.items()} | {"row_category": (("|u1",), 1)}
_TOGETHER = (
    *(("indptr", "indices"), ("x_indptr", "x_indices", "x_data"), ("ids_offsets", "ids_bytes")),
    ("node_types", "node_type_names"),
    _ROWS,
)
NO_TYPE = 255  # in node_types: the node has none
_WEIGHTS: Rule = (lambda block: np.isfinite(block) & (block > 0), "weights must be finite and above 0")
_NO_WEIGHTS = np.empty(0, np.uint32)


def check_arrays(
    arrays: Arrays, directed: bool, num_columns: int, columns: Sequence[str], *, distinct: bool = True
) -> None:
    """ValueError with the first fault of a graph's arrays, given by the names of their files.

    That ids are `distinct` takes longer and more memory than all else, and nothing breaks where they are not.
    """
    check_names(arrays)
    for name, array in arrays.items():
        check_shape(name, array.dtype.str, array.shape)
    num_nodes = len(arrays["indptr"]) - 1
    if num_nodes < 1:
        raise ValueError(f"indptr has {num_nodes + 1} entries; a graph has one node at least, and one entry more")
    _check_rows("indptr", "indices", arrays, num_nodes, loops=False)
    num_arcs = len(arrays["indices"])
    lengths = {"edge_types": num_arcs, "weights": num_arcs, "x": num_nodes, "x_indptr": num_nodes + 1}
    lengths |= {"y": num_nodes, "kind": num_nodes, "ids": num_nodes, "ids_offsets": num_nodes + 1}
    lengths["node_types"] = num_nodes
    for name, length in lengths.items():
        if name in arrays:
            _check_length(name, arrays[name], length)
    if "weights" in arrays:
        _check_values("weights", arrays["weights"], _WEIGHTS)
    if not directed:
        _check_symmetric(**{name: arrays[name] for name in ("indptr", "indices", "weights") if name in arrays})
    _check_attributes(arrays, num_columns, columns)
    for name, largest in (("y", 1), ("kind", 2)):
        if name in arrays and (most := int(arrays[name].max())) > largest:
            raise ValueError(f"{name} holds {most} at node {int(arrays[name].argmax())}; legal are 0 to {largest}")
    _check_ids(arrays, num_nodes, distinct)
    if "row_time" in arrays:
        _check_payments(arrays, num_nodes)
    if "node_types" in arrays:
        names, codes = type_names_of(arrays), arrays["node_types"]
        if (is_none := (codes >= len(names)) & (codes != NO_TYPE)).any():
            at = int(is_none.argmax())
            legal = f"0 to {len(names) - 1}, and {NO_TYPE} for none"
            raise ValueError(f"node_types holds {codes[at]} at node {at}; legal are {legal}")


def _check_payments(arrays: Arrays, num_nodes: int) -> None:
    """Refuses rows of other lengths, of ends that are no nodes, and times that fall."""
    for name in (*_ROWS, *(["row_category"] * ("row_category" in arrays))):
        _check_length(name, arrays[name], len(arrays["row_time"]))
    for name in _ROWS[:2]:
        rule = (lambda block: (block >= 0) & (block < num_nodes), f"nodes are 0 to {num_nodes - 1}")
        _check_values(name, arrays[name], rule)
    _check_values("row_time", arrays["row_time"], FINITE)
    if (at := _first_fall(arrays["row_time"])) >= 0:
        raise ValueError(f"row_time falls at row {at}; rows stand in the order of time")
    if len(arrays["row_number"]) and arrays["row_number"].min() < 0:
        raise ValueError(f"row_number holds {arrays['row_number'].min()}; legal are 0 and above")


def check_names(names: Mapping[str, Any]) -> None:
    """Refuses names that are none of a graph's arrays, and arrays without those that belong to them."""
    for name in names:
        if name not in TYPES:
            raise ValueError(f"{name!r} is no array of a graph; legal are {', '.join(TYPES)}")
    if "indptr" not in names:
        raise ValueError("indptr is missing")
    for group in _TOGETHER:
        absent = [name for name in group if name not in names]
        if absent and len(absent) < len(group):
            raise ValueError(f"{absent[0]} is missing beside {next(name for name in group if name in names)}")
    for one, other in (("x", "x_indptr"), ("ids", "ids_offsets")):
        if one in names and other in names:
            raise ValueError(f"{one} and {other} say the same thing: a graph has one of them")


def check_shape(name: str, dtype: Any, shape: Any) -> None:
    """Refuses a type or a shape that an array of this name cannot have."""
    types, num_dimensions = TYPES[name]
    if dtype not in types:
        raise ValueError(f"{name} is of type {dtype!r}; legal is {' or '.join(types)}")
    whole = isinstance(shape, list | tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not whole or len(shape) != num_dimensions:
        raise ValueError(f"{name} has shape {shape!r}; it must have {num_dimensions} dimension(s)")


def _check_rows(pointers: str, entries: str, arrays: Arrays, num_columns: int, *, loops: bool) -> None:
    """Refuses rows that fall or end elsewhere than their entries, and entries outside, unsorted, repeated or loops."""
    indptr, indices = arrays[pointers], arrays[entries]
    if indptr[0] != 0 or indptr[-1] != len(indices):
        legal = f"0 to {len(indices)}, the length of {entries}"
        raise ValueError(f"{pointers} runs from {indptr[0]} to {indptr[-1]}; it must run from {legal}")
    if (row := _first_fall(indptr)) >= 0:
        raise ValueError(f"{pointers} falls from {indptr[row]} to {indptr[row + 1]} at row {row}; it must never fall")
    strays = lambda chunk: first_stray(chunk.start, chunk.stop, indptr, indices, num_columns, loops)  # noqa: E731
    if (at := _first(map_slices(len(indptr) - 1, strays))) >= 0:
        row = int(np.searchsorted(indptr, at, side="right")) - 1
        no_loops = "" if loops else f", and none is {row} itself"
        raise ValueError(
            f"{entries} holds {indices[at]} in row {row}; a row's entries are 0 to {num_columns - 1}, each larger than "
            f"the one before it{no_loops}"
        )


def _first(positions: Sequence[int]) -> int:
    """The first place of a fault that parts of an array have, -1 where none has."""
    return next((at for at in positions if at >= 0), -1)


def _first_fall(indptr: NDArray[np.int64]) -> int:
    """The first row that ends before it begins."""

    def first(chunk: slice) -> int:
        falls = indptr[chunk.start + 1 : chunk.stop + 1] < indptr[chunk]
        return chunk.start + int(falls.argmax()) if falls.any() else -1

    return _first(map_slices(len(indptr) - 1, first))


def _check_symmetric(indptr: NDArray[np.int64], indices: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
    """Refuses an arc without its reverse, or whose reverse has another weight."""
    seed, marks = secrets.randbits(63), _NO_WEIGHTS if weights is None else weights.view(np.uint32)
    sums = map_slices(len(indptr) - 1, lambda chunk: arc_sum(chunk.start, chunk.stop, indptr, indices, marks, seed))
    if sum(sums) % 2**64 == 0:
        return
    rows, num_nodes = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), len(indptr) - 1
    back = indices.astype(np.int64) * num_nodes + rows
    mirror = np.minimum(np.searchsorted(keys := rows * num_nodes + indices, back), len(keys) - 1)
    for at in np.flatnonzero(keys[mirror] != back)[:1]:
        u, v = rows[at], indices[at]
        raise ValueError(f"indices holds the arc {u} -> {v} and not {v} -> {u}; such a graph must be declared directed")
    if weights is not None:
        at = int(np.argmax(weights != weights[mirror]))
        u, v = rows[at], indices[at]
        raise ValueError(
            f"weights holds {weights[at]} for {u} -> {v} and another weight for {v} -> {u}; they must be equal unless "
            "the graph is directed"
        )


def _check_attributes(arrays: Arrays, num_columns: int, columns: Sequence[str]) -> None:
    width = 0
    if "x" in arrays:
        _check_values("x", arrays["x"], FINITE)
        width = arrays["x"].shape[1]
    elif "x_indptr" in arrays:
        _check_rows("x_indptr", "x_indices", arrays, num_columns, loops=True)
        _check_length("x_data", arrays["x_data"], len(arrays["x_indices"]))
        _check_values("x_data", arrays["x_data"], FINITE)
        width = num_columns
    if num_columns != width:
        raise ValueError(f"x has {width} columns, and num_columns says {num_columns}")
    if columns and len(columns) != width:
        raise ValueError(f"columns holds {len(columns)} names for {width} attributes")


def _check_length(name: str, array: NDArray[Any], length: int) -> None:
    if len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries; {length} were expected")


def _check_values(name: str, array: NDArray[np.float32], rule: Rule) -> None:
    if (at := first_illegal(array, rule[0])) >= 0:
        raise ValueError(f"{name} holds {array.reshape(-1)[at]} as its value {at}; {rule[1]}")


def _check_ids(arrays: Arrays, num_nodes: int, distinct: bool) -> None:
    if "ids_offsets" in arrays:
        offsets, data = arrays["ids_offsets"], arrays["ids_bytes"]
        if offsets[0] != 0 or offsets[-1] != len(data) or _first_fall(offsets) >= 0:
            raise ValueError(f"ids_offsets must run from 0 to {len(data)}, the length of ids_bytes, and never fall")
    ids, name = ids_of(arrays), "ids" if "ids" in arrays else "ids_bytes"
    if ids is None:
        return
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} holds bytes that are no UTF-8: {error}") from error
    if distinct and (count := pc.count_distinct(ids).as_py()) < num_nodes:
        raise ValueError(f"{name} holds {count} different ids for {num_nodes} nodes; each node has its own")


def ids_of(arrays: Arrays) -> pa.Array | None:
    """The user's own ids as an Arrow array over the same memory, where there are any."""
    if "ids_offsets" not in arrays:
        return pa.array(arrays["ids"]) if "ids" in arrays else None
    offsets, data = pa.py_buffer(arrays["ids_offsets"]), pa.py_buffer(arrays["ids_bytes"])
    return pa.LargeStringArray.from_buffers(len(arrays["ids_offsets"]) - 1, offsets, data)


def type_names_of(arrays: Arrays) -> tuple[str, ...]:
    """The names of the types of nodes, by code."""
    return tuple(arrays["node_type_names"].tobytes().decode().split("\0"))


@kernel
def first_stray(first, last, indptr, indices, num_columns, loops):
    """The first entry of some rows that is outside 0 .. num_columns - 1, not above the one before it, or a loop."""
    for row in range(first, last):
        before = -1
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            if column <= before or column >= num_columns or (column == row and not loops):
                return at
            before = column
    return -1


@kernel
def arc_sum(first, last, indptr, indices, marks, seed):
    """The sum of a hash of every arc of some rows, by its lower end, its upper end and its mark, if any; of those that
    lead down minus the hash: sums of all rows add up to 0 where each arc has its reverse.
    """
    total = np.int64(0)
    for row in range(first, last):
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            word = mix(mix(seed, min(row, column)), max(row, column))
            if len(marks):
                word = mix(word, marks[at])
            total += np.int64(word) if column > row else -np.int64(word)
    return total
