"""Sparse x dense products over CSR rows, for features, training and scoring alike.

`gcn_rows` multiplies rows of Â = D^-1/2 (W + I) D^-1/2 without storing its entries: they are products of two node
scales and, unless all edges weigh 1, of the weight of the edge (`GcnWeights`); `mean_rows` averages over neighbours;
both take a part of the rows, for `run_in_threads`. `csr_row_range` takes explicit weights and runs in the calling
thread. All write each output row in one go, in CSR order, whatever the number of threads, and prefetch the rows of
neighbours to come. Memory: the output alone. `Propagated` is a product that is not made yet.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel, prefetch
from hcm_scale.base.threads import run_in_slices, run_in_threads

_LINES_AHEAD = 32  # cache lines asked for before they are needed: 4 rows of 128 numbers, 16 of 20
_LINE_BYTES = 64


class GcnWeights(NamedTuple):
    """What the entries of Â are made of: scale[u] * edges[e] * scale[v]."""

    scale: NDArray[np.float32]  # (n,)
    edges: NDArray[np.float32]  # one for each entry of the CSR; empty if all edges weigh 1


def gcn_weights(indptr: NDArray[np.int64], weights: NDArray[np.float32] | None = None) -> GcnWeights:
    """GcnWeights of a graph whose edges have these weights, one for each entry of its CSR, or 1."""
    edges = np.empty(0, np.float32) if weights is None else weights.view()
    edges.setflags(write=False)  # mapped or made, with weights or without: one type, compiled once
    return GcnWeights(gcn_scale(indptr, weights), edges)


def gcn_scale(indptr: NDArray[np.int64], weights: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """1 / sqrt(degree + 1) of every node; its degree is the sum of the weights of its edges, where they have any.

    >>> gcn_scale(np.array([0, 3, 3])).tolist()
    [0.5, 1.0]
    """
    scale = np.empty(len(indptr) - 1, np.float32)

    def fill(rows: slice) -> None:
        degree = np.diff(indptr[rows.start : rows.stop + 1]).astype(np.float64)
        if weights is not None and len(weights):
            linked = degree > 0  # reduceat knows no empty rows
            of_rows = weights[indptr[rows.start] : indptr[rows.stop]]
            degree[linked] = np.add.reduceat(of_rows, (indptr[rows] - indptr[rows.start])[linked], dtype=np.float64)
        scale[rows] = 1.0 / np.sqrt(degree + 1.0)

    run_in_slices(len(scale), fill)
    return scale


def propagate(
    indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Â x over the whole graph."""
    out = np.empty_like(x)
    run_in_threads(len(x), gcn_rows, indptr, indices, gcn_weights(indptr, weights), x, 0, out)
    return out


@dataclass(frozen=True, eq=False)
class Propagated:
    """Â x, made where it is needed: on a device (`spmm_device.py`), a few rows, or as an array, by the cores."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    x: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None
    kept: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None  # nodes, rising, and their rows

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return propagate(self.indptr, self.indices, self.x, self.weights).astype(dtype or np.float32, copy=False)

    def rows(self, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of these nodes."""
        if self.kept is not None:
            return self.kept[1][np.searchsorted(self.kept[0], nodes)]
        out = np.empty((len(nodes), self.x.shape[1]), np.float32)
        run_in_threads(len(nodes), gcn_rows_of, self.indptr, self.indices, self._weights, self.x, nodes, out)
        return out

    def keeping(self, nodes: NDArray[np.int64]) -> "Propagated":
        """The same for whoever asks for rows of these nodes alone, again and again: each is made once."""
        distinct = np.unique(nodes)
        return replace(self, kept=(distinct, self.rows(distinct)))

    @cached_property
    def _weights(self) -> GcnWeights:
        return gcn_weights(self.indptr, self.weights)


ModelInput = NDArray[np.float32] | Propagated  # (n, q)


@kernel(inline="always")
def _ask_ahead(x, indices, e):
    """Starts loading the row of x, every line of it, that an entry to come will need; returns which it is."""
    width, per_line = x.shape[1], _LINE_BYTES // x.itemsize
    ahead = np.int64(indices[min(e + max(1, _LINES_AHEAD * per_line // (width + per_line)), len(indices) - 1)])
    for k in range(0, width, per_line):
        prefetch(x, ahead * width + k)
    return ahead


@kernel(allocates=False, fastmath={"contract"})
def gcn_rows(tasks, indptr, indices, weights, x, first, out):
    """out[i] = row first + i of Â, times x, for the tasks i; `weights` are `GcnWeights`."""
    width = x.shape[1]
    scale, edges = weights
    weighted = len(edges) > 0
    for i in range(tasks[0], tasks[1]):
        u, row = first + i, out[i]
        own = scale[u]
        for k in range(width):
            row[k] = own * x[u, k]
        for e in range(indptr[u], indptr[u + 1]):
            prefetch(scale, _ask_ahead(x, indices, e))
            v = indices[e]
            weight = scale[v]
            if weighted:
                weight *= edges[e]
            for k in range(width):
                row[k] += weight * x[v, k]
        for k in range(width):
            row[k] *= own


@kernel
def gcn_rows_of(tasks, indptr, indices, weights, x, nodes, out):
    """out[i] = row nodes[i] of Â, times x, for the tasks i."""
    for i in range(tasks[0], tasks[1]):
        gcn_rows((0, 1), indptr, indices, weights, x, nodes[i], out[i : i + 1])


@kernel(allocates=False)
def mean_rows(tasks, indptr, indices, x, first, out):
    """out[i] = the mean of x over the entries of row first + i, 0 where there are none, for the tasks i."""
    width = x.shape[1]
    for i in range(tasks[0], tasks[1]):
        u, row = first + i, out[i]
        for k in range(width):
            row[k] = 0.0
        for e in range(indptr[u], indptr[u + 1]):
            _ask_ahead(x, indices, e)
            v = indices[e]
            for k in range(width):
                row[k] += x[v, k]
        num_entries = max(1, indptr[u + 1] - indptr[u])
        for k in range(width):
            row[k] /= num_entries


@kernel(fastmath={"contract"})
def csr_row_range(indptr, indices, weights, x, first, last, out):
    """out[u] = sum over entries e of row u of weights[e] * x[indices[e]], for u in first .. last - 1."""
    width = x.shape[1]
    for u in range(first, last):
        row = out[u]
        for k in range(width):
            row[k] = 0.0
        for e in range(indptr[u], indptr[u + 1]):
            _ask_ahead(x, indices, e)
            v = indices[e]
            weight = weights[e]
            for k in range(width):
                row[k] += weight * x[v, k]
