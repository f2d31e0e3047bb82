"""The sums that AMEN takes over every egonet; jitted functions only."""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel

_TASKS = 64


class Rows(NamedTuple):
    """A sparse matrix by rows."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float64]


class EgonetSums(NamedTuple):
    """What an egonet sums up for each attribute: over edges within, over edges that leave, over degrees."""

    inner: NDArray[np.float64]
    outer: NDArray[np.float64]
    mass: NDArray[np.float64]


@kernel(parallel=True)
def egonet_normality(indptr, indices, products, x, num_columns, root, out):
    """out[v] = the normality of v with its neighbours, maximised over weights of norm 1 (root: L2, else L1).

    Row e of the products holds, for arc e, the product of its two ends' attributes. See amen.py for the formula.
    """
    p_indptr, p_columns, p_values = products
    x_indptr, x_columns, x_values = x
    num_nodes = len(indptr) - 1
    num_arcs = float(len(indices))  # twice the edges
    for task in prange(_TASKS):
        stamp = np.full(num_nodes, -1, np.int64)
        inner, outer, mass = np.zeros(num_columns), np.zeros(num_columns), np.zeros(num_columns)
        for v in range(task * num_nodes // _TASKS, (task + 1) * num_nodes // _TASKS):
            stamp[v] = v
            for e in range(indptr[v], indptr[v + 1]):
                stamp[indices[e]] = v
            inner[:], outer[:], mass[:] = 0.0, 0.0, 0.0
            volume, unexpected = 0.0, 0.0
            for place in range(indptr[v] - 1, indptr[v + 1]):  # the first place stands for v itself
                i = v if place < indptr[v] else np.int64(indices[place])
                degree = float(indptr[i + 1] - indptr[i])
                volume += degree
                for k in range(x_indptr[i], x_indptr[i + 1]):
                    mass[x_columns[k]] += degree * x_values[k]
                for e in range(indptr[i], indptr[i + 1]):
                    j = indices[e]
                    surprise = 1.0 - min(1.0, degree * float(indptr[j + 1] - indptr[j]) / num_arcs)
                    if stamp[j] == v:
                        unexpected += surprise
                        for k in range(p_indptr[e], p_indptr[e + 1]):
                            inner[p_columns[k]] += p_values[k]
                    else:
                        for k in range(p_indptr[e], p_indptr[e + 1]):
                            outer[p_columns[k]] += surprise * p_values[k]
            size = float(indptr[v + 1] - indptr[v] + 1)
            sums = EgonetSums(inner, outer, mass)
            out[v] = _best(sums, volume * volume / num_arcs, unexpected, size * size, num_arcs, root)


@kernel
def _best(sums, floor, unexpected, ceiling, num_arcs, root):
    """The largest weighted sum of the attributes' normalities over non-negative weights of norm 1."""
    inner, outer, mass = sums
    highest, squares = -2.0, 0.0
    for k in range(len(inner)):
        if mass[k] > 0.0:
            inside = (inner[k] - mass[k] * mass[k] / num_arcs + floor) / (ceiling + floor)
            outside = outer[k] / (unexpected + outer[k]) if outer[k] > 0.0 else 0.0
            highest = max(highest, inside - outside)
            squares += max(0.0, inside - outside) ** 2
    return np.sqrt(squares) if root and squares > 0.0 else highest
