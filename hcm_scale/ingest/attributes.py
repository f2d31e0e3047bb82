"""Attribute matrices to the store's files, dense row block by row block or sparse as CSR, with values checked.

Dense: one block beside the mapped `x.npy`. Sparse: the CSR once, and a sorted copy only where it came unsorted or with
repeats. Values that are not finite as float32 are counted, and refused or replaced.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.mapped import map_new, open_npy
from hcm_scale.base.names import DEGREE
from hcm_scale.graph.store import SparseRows
from hcm_scale.ingest.policy import Offenders, Policy, not_finite

_REPAIR_ROWS = 1 << 14
MAX_COLUMNS = (1 << 31) - 1


@dataclass(frozen=True)
class FeatureCounts:
    """What was written as attributes: names (where known), width, and what was filled in."""

    columns: tuple[str, ...] = ()
    num_columns: int = 0
    imputed: int = 0
    nonfinite: int = 0
    details: tuple[dict[str, Any], ...] = ()


def write_dense(
    folder: Path, blocks: Iterable[NDArray[Any]], shape: tuple[int, int], nonfinite: str, added: int = 0
) -> FeatureCounts:
    """Writes x.npy (shape[0] + added, shape[1]) from row blocks; added rows get the column means."""
    x = map_new(folder / "x.npy", np.float32, (shape[0] + added, shape[1]))
    bad = not_finite("the rows of x")
    start = 0
    for block in blocks:
        stop = start + len(block)
        x[start:stop] = block  # what overflows float32 is found by the next line
        wrong = ~np.isfinite(x[start:stop])
        bad.add(wrong.ravel(), lambda i: f"row {start + i // shape[1]:,} column {i % shape[1]}")  # noqa: B023
        start = stop
    if start != shape[0]:
        raise ValueError(f"x has {start:,} rows; {shape[0]:,} were expected")
    if nonfinite == "error":
        bad.check()
    if bad.count or added:
        _repair(x, shape[0], nonfinite)
    x.flush()
    return FeatureCounts(num_columns=shape[1], imputed=added * shape[1], nonfinite=bad.count)


def _repair(x: NDArray[np.float32], num_rows: int, nonfinite: str) -> None:
    """Fills in values that are not finite, and the rows after `num_rows`, block by block."""
    total, present = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for start in range(0, num_rows, _REPAIR_ROWS):
        block = np.asarray(x[start : min(start + _REPAIR_ROWS, num_rows)])
        good = np.isfinite(block)
        total += np.where(good, block, 0).sum(axis=0, dtype=np.float64)
        present += good.sum(axis=0)
    mean = (total / np.maximum(present, 1)).astype(np.float32)
    filler = mean if nonfinite == "mean" else np.zeros_like(mean)
    for start in range(0, num_rows, _REPAIR_ROWS):
        block = x[start : min(start + _REPAIR_ROWS, num_rows)]
        block[...] = np.where(np.isfinite(block), block, filler)
    x[num_rows:] = mean


def write_sparse(folder: Path, rows: SparseRows, nonfinite: str, added: int = 0) -> FeatureCounts:
    """Writes x_indptr.npy, x_indices.npy and x_data.npy; added rows are empty."""
    rows = _canonical(rows)
    wrong = ~np.isfinite(rows.data)
    bad = not_finite("the rows of x")
    bad.add(wrong, lambda i: f"row {np.searchsorted(rows.indptr, i, 'right') - 1:,} column {rows.indices[i]}")
    if nonfinite == "error":
        bad.check()
    if bad.count:
        rows = _replaced(rows, wrong, nonfinite)
    indptr = np.concatenate([rows.indptr, np.full(added, rows.indptr[-1])]) if added else rows.indptr
    np.save(folder / "x_indptr.npy", np.asarray(indptr, np.int64), allow_pickle=False)
    np.save(folder / "x_indices.npy", np.asarray(rows.indices, np.int32), allow_pickle=False)
    np.save(folder / "x_data.npy", np.asarray(rows.data, np.float32), allow_pickle=False)
    return FeatureCounts(num_columns=rows.num_columns, imputed=added, nonfinite=bad.count)


def _canonical(rows: SparseRows) -> SparseRows:
    """The same rows with sorted columns, no repeats and no stored zeros; a copy only where one is needed."""
    ascending = np.diff(rows.indices) > 0
    starts = rows.indptr[1:-1]
    ascending[starts[(starts > 0) & (starts < len(rows.indices))] - 1] = True  # a new row may start anywhere
    if ascending.all() and rows.data.all():
        return rows
    return SparseRows.of(rows.csr())


def _replaced(rows: SparseRows, wrong: NDArray[np.bool_], nonfinite: str) -> SparseRows:
    """Entries that are not finite become zero (and vanish) or the mean of their column over all other rows."""
    data = np.where(wrong, 0, rows.data).astype(np.float32)
    if nonfinite == "mean":
        used, columns = np.unique(rows.indices, return_inverse=True)  # there may be far more columns than entries
        total = np.bincount(columns, data.astype(np.float64), len(used))
        good = rows.shape[0] - np.bincount(columns[wrong], minlength=len(used))
        data[wrong] = (total / np.maximum(good, 1))[columns[wrong]]
    return SparseRows.of(sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape))


def check_indptr(indptr: NDArray[Any], num_entries: int, name: str) -> NDArray[np.int64]:
    """Row starts as int64, refused where they do not rise from 0 to `num_entries`."""
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != num_entries or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{name} must rise from 0 to the {num_entries:,} entries of indices")
    return indptr.astype(np.int64, copy=False)


def check_sparse(indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], width: int | None) -> SparseRows:
    """CSR parts as `SparseRows`, refused where they do not fit together."""
    if indices.dtype.kind == "f" and not (indices == np.floor(indices)).all():
        first = int(np.argmax(indices != np.floor(indices)))
        raise ValueError(f"x_indices[{first}] is {indices[first]}; legal are whole numbers")
    top = int(indices.max()) if len(indices) else -1
    low = int(indices.min()) if len(indices) else 0
    num_columns = top + 1 if width is None else width
    if low < 0 or top >= num_columns or num_columns > MAX_COLUMNS:
        legal = num_columns if width is not None and 0 <= width <= MAX_COLUMNS else MAX_COLUMNS
        raise ValueError(f"x_indices run from {low} to {top} of {num_columns} columns; legal are 0 .. {legal - 1}")
    if len(data) != len(indices):
        raise ValueError(f"x_data has {len(data):,} entries and x_indices {len(indices):,}; they must be equal")
    return SparseRows(
        check_indptr(indptr, len(indices), "x_indptr"),
        indices.astype(np.int32, copy=False),
        data.astype(np.float32, copy=False),
        num_columns,
    )


def require(num_columns: int, policy: Policy, remedy: str = "") -> None:
    """Refuses a graph without attributes, before the work of reading its edges."""
    if not num_columns and policy.featureless == "error":
        raise ValueError(
            f"the graph has zero attributes; {remedy}graph.featureless=degree gives it {DEGREE} as its one attribute"
        )


def write_labels(folder: Path, labels: NDArray[Any], num_nodes: int, added: int = 0) -> int:
    """Writes y.npy from 0/1 or booleans, one a node, as a row, a column or flat; returns the number of ones."""
    if labels.size != num_nodes:
        raise ValueError(f"y has {labels.size:,} entries for {num_nodes:,} nodes; they must be equal")
    if labels.shape not in ((num_nodes,), (num_nodes, 1), (1, num_nodes)):
        raise ValueError(f"y has shape {labels.shape}; legal are (n), (n, 1) and (1, n) for n={num_nodes:,} nodes")
    flat = labels.ravel()
    if labels.dtype.kind not in "iufb":
        raise ValueError(f"y is {labels.dtype}; legal are the numbers 0 and 1")
    bad = Offenders("labels are not 0 or 1", "y")
    bad.add((flat != 0) & (flat != 1), lambda i: f"row {i:,}: {flat[i]}")
    bad.check()
    np.save(
        folder / "y.npy", np.concatenate([flat == 1, np.zeros(added, np.bool_)]).astype(np.uint8), allow_pickle=False
    )
    return int((flat == 1).sum())


def write_degree(folder: Path, directed: bool) -> FeatureCounts:
    """Writes log1p(degree) as the one attribute of a graph that has none; a directed graph's degree is in + out."""
    degree = np.diff(open_npy(folder / "indptr.npy"))
    if directed:
        degree = degree + np.bincount(open_npy(folder / "indices.npy"), minlength=len(degree))
    np.save(folder / "x.npy", np.log1p(degree).astype(np.float32)[:, None], allow_pickle=False)
    return FeatureCounts((DEGREE,), 1, details=({"name": DEGREE, "method": "degree"},))
