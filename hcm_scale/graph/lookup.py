"""Where an arc stands in a CSR, and whether it is there: a binary search in many rows at once, plain NumPy.

Costs a dozen vector operations of the queries' length per bit of the longest row; memory is a few integers a query.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
