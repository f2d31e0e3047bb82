"""Look-ups in a CSR: the place of an arc, and numbers of edges at their entries (an undirected edge has two).

`find_arcs` is a binary search in many rows at once, in plain NumPy: a dozen vector operations of the queries' length
per bit of the longest row, and a few integers a query. `first_above` is a kernel, of no memory but its result; the
others cost a byte an entry beside the result.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.graph.build import join_directions

_ENTRIES = 1 << 18  # entries compared at a time, about


def find_arcs(
    indptr: NDArray[np.int64], indices: NDArray[Any], u: ArrayLike, v: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For every arc u[i] -> v[i] the place where it stands, or where it would be inserted, and whether it is there.

    >>> find_arcs(np.array([0, 2, 4]), np.array([3, 5, 1, 2]), [0, 0, 1], [5, 6, 0])
    (array([1, 2, 2]), array([ True, False, False]))
    """
    rows, columns = np.asarray(u, np.int64), np.asarray(v, np.int64)
    low, high = indptr[rows], indptr[rows + 1]
    while (open_ := low < high).any():
        middle = (low + high) // 2
        right = open_ & (indices[np.where(open_, middle, 0)] < columns)
        low, high = np.where(right, middle + 1, low), np.where(open_ & ~right, middle, high)
    found = low < indptr[rows + 1]
    found[found] = indices[low[found]] == columns[found]
    return low, found


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


@kernel
def first_above(part, indptr, indices, starts):
    """starts[u] = the first entry of row u with column > u."""
    for u in range(part[0], part[1]):
        low, high = indptr[u], indptr[u + 1]
        while low < high:
            middle = (low + high) // 2
            if indices[middle] <= u:
                low = middle + 1
            else:
                high = middle
        starts[u] = low


def spread_to_entries(
    indptr: NDArray[np.int64], indices: NDArray[Any], values: NDArray[Any], directed: bool = False
) -> NDArray[Any]:
    """A number above 0 of every edge at all of its entries.

    >>> spread_to_entries(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0]), np.array([5.0, 7.0])).tolist()
    [5.0, 7.0, 5.0, 7.0]
    """
    if directed:
        return values
    out = np.zeros(len(indices), values.dtype)
    out[first_entries(indptr, indices, directed)] = values
    join_directions(indptr, indices, False, indptr[:-1].copy(), out)
    return out
