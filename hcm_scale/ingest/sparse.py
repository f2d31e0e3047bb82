"""A scipy sparse adjacency matrix and attributes in memory, to a graph folder; stored zeros are no edges.

Of attributes in a table (pandas, Polars, Arrow) the names of columns are kept. Rows are those of the matrix, in its
order; a pandas index of distinct texts or whole numbers, other than the plain 0 .. n - 1, has the ids of the nodes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, write_arrays
from hcm_scale.ingest.errors import InputError, reading
from hcm_scale.ingest.matrices import edges_of_matrix
from hcm_scale.ingest.memory import check_distinct, index_of, is_table
from hcm_scale.ingest.policy import Policy

_ORIGIN = "scipy matrix"
_TABLE = "the table of attributes"
_BLOCK_ROWS = 1 << 14


def read_sparse(out: Path | str, adjacency: Any, x: Any, policy: Policy) -> Graph:
    """Writes an (n, n) matrix and attributes (n, d), sparse, dense or None, to the folder `out`; returns it opened."""
    if adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(f"the adjacency matrix has shape {adjacency.shape}; legal is (n, n)")
    edges, ids = edges_of_matrix(adjacency.tocoo(), _ORIGIN), _ids(x)
    return write_arrays(out, _ORIGIN, edges, _attributes(x), None, policy, ids=ids)


def _attributes(x: Any) -> DenseRows | SparseRows | None:
    if x is None:
        return None
    if hasattr(x, "tocsr"):
        return SparseRows.of(x)
    dense = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    if dense.ndim != 2 or dense.dtype.kind not in "iufb":
        raise InputError(f"attributes have shape {dense.shape} and type {dense.dtype}; legal are numbers (n, d)")

    def blocks() -> Iterator[NDArray[Any]]:
        return (dense[start : start + _BLOCK_ROWS] for start in range(0, len(dense), _BLOCK_ROWS))

    return DenseRows((dense.shape[0], dense.shape[1]), blocks, _columns(x))


def _columns(x: Any) -> tuple[str, ...]:
    """The names of the columns of a table; none where x is no table, or its columns are numbered 0, 1, 2, ..."""
    names = list(getattr(x, "column_names" if hasattr(x, "column_names") else "columns", ())) if is_table(x) else []
    check_distinct(names, _TABLE)
    return () if names == list(range(len(names))) else tuple(map(str, names))


def _ids(x: Any) -> pa.Array | None:
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
