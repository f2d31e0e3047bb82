"""The weights of edges, beside the CSR: what the rows that join two nodes add up to.

One more pass over the edges finds every row's place in the finished CSR, by the binary search of graph/lookup.py, and
adds its weight there, in a mapped file of float64. Of an undirected graph the two directions are joined then: rows of a
table add up whichever way they point, as transfers there and back do; a matrix tells an edge and its mirror image, the
same edge twice, of which the larger counts. What is no weight is counted, and refused at the end.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import map_new, open_npy
from hcm_scale.graph.kernels import join_directions
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.ingest.policy import Offenders

Weighed = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # both ends of some rows, as node numbers, and their weights
_LEAST, _MOST = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


def write_weights(folder: Path, rows: Iterable[Weighed], where: str, *, directed: bool, adds_up: bool) -> None:
    """Writes weights.npy beside the CSR in `folder`; `where` names the column or array in messages.

    Rows whose ends are no nodes are passed over: what became of them was said when the CSR was made.
    """
    indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
    bad = Offenders("weights are missing, not finite or not above 0", where)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as scratch:
        sums = map_new(Path(scratch) / "sums.npy", np.float64, indices.shape).view(np.ndarray)
        num_rows = 0
        for u, v, given in rows:
            weights = np.asarray(given, np.float64)
            bad.add(~((weights >= _LEAST) & (weights <= _MOST)), lambda i: f"row {num_rows + i:,}: {weights[i]}")  # noqa: B023
            num_rows += len(weights)
            known = (u >= 0) & (v >= 0) & (u < len(indptr) - 1) & (v < len(indptr) - 1)
            at, found = find_arcs(indptr, indices, u[known], v[known])
            np.add.at(sums, at[found], weights[known][found])
        bad.check()
        if not directed:
            join_directions(indptr, indices, adds_up, np.array(indptr[:-1]), sums)
        if (largest := float(sums.max(initial=0.0))) > _MOST:
            raise ValueError(f"the weights of an edge in {where} add up to {largest:.3g}; legal are up to {_MOST:.3g}")
        out = map_new(folder / "weights.npy", np.float32, indices.shape)
        out[:] = sums
        out.flush()
