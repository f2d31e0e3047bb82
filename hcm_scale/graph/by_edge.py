"""Numbers of edges: one an edge, in edge order, or one an entry of the CSR, where an undirected edge has two.

Costs a byte an entry beside the result.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph import kernels

_ENTRIES = 1 << 18  # looked at together, about


def first_entries(indptr: NDArray[np.int64], indices: NDArray[Any], directed: bool) -> NDArray[np.bool_]:
    """Which entries give edges their order: all of a directed graph, else those with column > row.

    >>> first_entries(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0]), False).tolist()
    [True, True, False, False]
    """
    if directed:
        return np.ones(len(indices), np.bool_)
    above = np.empty(len(indices), np.bool_)
    step = max(1, _ENTRIES // max(1, len(indices) // (len(indptr) - 1)))  # rows
    for first in range(0, len(indptr) - 1, step):
        bounds = indptr[first : first + step + 1]
        rows = np.repeat(np.arange(first, first + len(bounds) - 1), np.diff(bounds))
        above[bounds[0] : bounds[-1]] = indices[bounds[0] : bounds[-1]] > rows
    return above


def spread(
    indptr: NDArray[np.int64], indices: NDArray[Any], values: NDArray[Any], directed: bool = False
) -> NDArray[Any]:
    """A number above 0 of every edge at all of its entries.

    >>> spread(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0]), np.array([5.0, 7.0])).tolist()
    [5.0, 7.0, 5.0, 7.0]
    """
    if directed:
        return values
    out = np.zeros(len(indices), values.dtype)
    out[first_entries(indptr, indices, directed)] = values
    kernels.join_directions(indptr, indices, False, indptr[:-1].copy(), out)
    return out
