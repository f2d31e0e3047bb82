"""A scipy sparse adjacency matrix and attributes in memory, to a graph folder; stored zeros are no edges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, write_arrays
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.matrices import edges_of_matrix
from hcm_scale.ingest.policy import Policy

_ORIGIN = "scipy matrix"
_BLOCK_ROWS = 1 << 14


def read_sparse(out: Path | str, adjacency: Any, x: Any, policy: Policy) -> Graph:
    """Writes an (n, n) matrix and attributes (n, d), sparse, dense or None, to the folder `out`; returns it opened."""
    if adjacency.shape[0] != adjacency.shape[1]:
        raise InputError(f"the adjacency matrix has shape {adjacency.shape}; legal is (n, n)")
    return write_arrays(out, _ORIGIN, edges_of_matrix(adjacency.tocoo(), _ORIGIN), _attributes(x), None, policy)


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

    return DenseRows((dense.shape[0], dense.shape[1]), blocks)
