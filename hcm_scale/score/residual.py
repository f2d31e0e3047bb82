"""Residual: how far a node's attributes are from what those of its neighbours predict.

A linear map, the same for all nodes, predicts the features of a node from the mean of its neighbours' features; the
residual is the length of what is left. Where neighbours are alike this is the distance to them, and where they say
nothing about each other it is the distance to the middle of all nodes: the graph itself decides how much context
counts. A node without neighbours is predicted as the middle.

The map is fitted by least squares, with a ridge of a thousandth, over all nodes, or a million of them in stretches
spread evenly: it has few numbers. Then one pass over the edges gives the residuals.
Memory: 8 bytes a node and a chunk of rows a thread. A product runs in one thread, and sums are added in the order of
the chunks, so that the result does not depend on the number of threads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import share_parts

CHUNK_ROWS = 1 << 15
_FITTED_ROWS, _STRETCH = 1 << 20, 1 << 12
_RIDGE = 1e-3  # of the mean variance of the neighbours' means


class Prediction(NamedTuple):
    """The middle of the nodes, (q,), and the map from the neighbours' mean to a node's own features, (q, q)."""

    centre: NDArray[np.float64]
    weights: NDArray[np.float64]


def fit(indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32]) -> Prediction:
    """What the neighbours say about a node, over the nodes of a graph; x is (n, q)."""
    centre, width = column_means(x), x.shape[1]
    chunks = _fitted_chunks(len(x))
    parts = np.empty((len(chunks), 2, width, width))

    def add(number: int, _: slice, own: NDArray[np.float64], around: NDArray[np.float64]) -> None:
        np.matmul(around.T, around, out=parts[number, 0])
        np.matmul(around.T, own, out=parts[number, 1])

    _in_chunks(indptr, indices, x, centre, chunks, add)
    squares, products = np.zeros((width, width)), np.zeros((width, width))
    for part in parts:
        squares += part[0]
        products += part[1]
    ridge = _RIDGE * np.trace(squares) / width
    with threadpool_limits(limits=1, user_api="blas"):
        weights = np.linalg.solve(squares + (ridge or 1.0) * np.eye(width), products)
    return Prediction(centre, weights.astype(np.float64, copy=False))


def residual(
    indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32], by: Prediction | None = None
) -> NDArray[np.float64]:
    """The length of what the neighbours' features do not predict of every node's own, (n,); x is (n, q).

    `by` is the prediction of another graph, where it is not to be fitted to this one.

    >>> pair_and_one = np.array([0, 1, 2, 2]), np.array([1, 0], np.int32)
    >>> residual(*pair_and_one, np.array([[1.0], [1.0], [-2.0]], np.float32)).round(2).tolist()
    [0.0, 0.0, 2.0]
    """
    centre, weights = by or fit(indptr, indices, x)
    out = np.empty(len(x))

    def fill(_: int, rows: slice, own: NDArray[np.float64], around: NDArray[np.float64]) -> None:
        out[rows] = np.linalg.norm(own - around @ weights, axis=1)

    _in_chunks(indptr, indices, x, centre, _chunks(len(x)), fill)
    return out


def _chunks(num_rows: int) -> list[slice]:
    return [slice(first, min(first + CHUNK_ROWS, num_rows)) for first in range(0, num_rows, CHUNK_ROWS)]


def _fitted_chunks(num_rows: int) -> list[slice]:
    """All rows, or stretches of them that have _FITTED_ROWS together."""
    if num_rows <= _FITTED_ROWS:
        return _chunks(num_rows)
    starts = np.linspace(0, num_rows - _STRETCH, _FITTED_ROWS // _STRETCH).astype(np.int64).tolist()
    return [slice(start, start + _STRETCH) for start in starts]


def column_means(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean of every column, in float64, summed by chunks of rows."""
    chunks = _chunks(len(x))
    parts = np.empty((len(chunks), x.shape[1]))

    def add(_: int, number: int) -> None:
        parts[number] = x[chunks[number]].sum(axis=0, dtype=np.float64)

    share_parts(numba.get_num_threads(), range(len(parts)), add)
    total: NDArray[np.float64] = parts.sum(axis=0) / max(1, len(x))
    return total


def _in_chunks(
    indptr: Any,
    indices: Any,
    x: NDArray[np.float32],
    centre: NDArray[np.float64],
    chunks: list[slice],
    work: Callable[[int, slice, NDArray[np.float64], NDArray[np.float64]], None],
) -> None:
    """Calls work(number, rows, own, around) for chunks of rows, in threads, a core each.

    `own` are the rows of x and `around` the means of their neighbours' rows, both less the centre, which is where nodes
    without neighbours are.
    """

    def one(_: int, number: int) -> None:
        first, last = chunks[number].start, chunks[number].stop
        means = np.empty((last - first, x.shape[1]), np.float32)
        mean_rows((0, last - first), indptr, indices, x, first, means)
        around = means - centre
        around[np.diff(indptr[first : last + 1]) == 0] = 0.0
        work(number, chunks[number], x[first:last] - centre, around)

    with threadpool_limits(limits=1, user_api="blas"):
        share_parts(numba.get_num_threads(), range(len(chunks)), one)
