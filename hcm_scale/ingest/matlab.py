"""MATLAB v5 files to a graph folder.

Two families of names are known: A, X, gnd and Network, Attributes, Label. Only `gnd` is taken as anomaly labels: the
`Label` of the second family holds classes. `keys` names others. The variables are loaded whole (mat_file.py), so a file
whose variables unpack to more than `policy.max_bytes` is refused before that; sparse matrices stay sparse.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import sparse

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, write_arrays
from hcm_scale.ingest.attributes import check_indptr
from hcm_scale.ingest.errors import InputError, naming
from hcm_scale.ingest.mat_file import Variable, list_variables
from hcm_scale.ingest.matrices import edges_of_matrix
from hcm_scale.ingest.npy_stream import INTEGERS
from hcm_scale.ingest.policy import Policy

KNOWN = {"adjacency": ("A", "Network"), "attributes": ("X", "Attributes"), "label": ("gnd",)}
_BLOCK_ROWS = 1 << 14


def read_mat(
    out: Path | str,
    path: str | Path,
    *,
    keys: Mapping[str, str] | None = None,
    policy: Policy = Policy(),  # noqa: B008
) -> Graph:
    """Reads a .mat file into the graph folder `out`, opened; `keys` maps adjacency, attributes, label to names."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"graph.path={str(path)!r} is not a file")
    with naming(path.name):
        chosen = _choose(path, keys or {})
        unpacked = sum(variable.num_bytes for variable in chosen.values())
        if unpacked > policy.max_bytes:
            raise ValueError(f"{unpacked:,} bytes to unpack; graph.max_bytes={policy.max_bytes} is the limit")
        adjacency = chosen["adjacency"]
        edges = edges_of_matrix(_matrix(adjacency, adjacency.shape[0]), adjacency.where)
        x = _rows(chosen["attributes"], adjacency.shape[0]) if "attributes" in chosen else None
        y = chosen["label"].dense() if "label" in chosen else None
        return write_arrays(out, path.name, edges, x, y, policy)


def _choose(path: Path, keys: Mapping[str, str]) -> dict[str, Variable]:
    """Role -> variable: what `keys` says, else a known name that the file has."""
    held = list_variables(path)
    chosen: dict[str, str] = {}
    for role, known in KNOWN.items():
        names = [name for name in known if name in held]
        if len(names) > 1 and role not in keys:
            raise InputError(f"{path.name} holds {' and '.join(names)}; graph.keys={{{role!r}: name}} says which it is")
        if names:
            chosen[role] = names[0]
    for role, name in keys.items():
        if role not in KNOWN:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(KNOWN)}")
        if name not in held:
            raise InputError(f"graph.keys={{{role!r}: {name!r}}} is not in {path.name}; it holds {list(held)}")
        chosen[role] = name
    if "adjacency" not in chosen:
        raise InputError(
            f"{path.name} holds none of {KNOWN['adjacency']}; graph.keys={{'adjacency': name}} names one of "
            f"{list(held)}"
        )
    return {role: held[name] for role, name in chosen.items()}


def _matrix(variable: Variable, num_rows: int) -> np.ndarray | sparse.csc_array:
    """A variable of `num_rows` rows, all of its indices checked."""
    if len(variable.shape) != 2 or variable.shape[0] != num_rows:
        raise InputError(f"{variable.where} has shape {variable.shape}; legal is ({num_rows}, d)")
    if not variable.is_sparse:
        return variable.dense()
    rows, starts, values = variable.parts()
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
    return sparse.csc_array((values, rows.astype(np.int32, copy=False), indptr), variable.shape)


def _rows(variable: Variable, num_rows: int) -> SparseRows | DenseRows:
    matrix = _matrix(variable, num_rows)
    if isinstance(matrix, np.ndarray):
        starts = range(0, len(matrix), _BLOCK_ROWS)
        return DenseRows(matrix.shape, lambda: (matrix[start : start + _BLOCK_ROWS] for start in starts))
    return SparseRows.of(matrix)
