"""Residual: how far a node's attributes are from what those of its neighbours predict.

A linear map, the same for all nodes, predicts the features of a node from the mean of its neighbours' features; the
residual is the length of what is left. Where neighbours are alike this is the distance to them, and where they say
nothing about each other it is the distance to the middle of all nodes: the graph itself decides how much context
counts. A node without neighbours is predicted as the middle.

The map is fitted by least squares over all nodes, with a ridge of a thousandth, in two passes over the edges.
Memory: 8 bytes a node and one chunk of rows. Products run in one thread, so that sums have one order.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import in_threads

_CHUNK_ROWS = 1 << 15
_RIDGE = 1e-3  # of the mean variance of the neighbours' means

Chunk = tuple[slice, NDArray[np.float64], NDArray[np.float64]]


class Prediction(NamedTuple):
    """The middle of the nodes, (q,), and the map from the neighbours' mean to a node's own features, (q, q)."""

    centre: NDArray[np.float64]
    weights: NDArray[np.float64]


def fit(indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32]) -> Prediction:
    """What the neighbours say about a node, over all nodes of a graph; x is (n, q)."""
    centre, width = x.mean(axis=0, dtype=np.float64), x.shape[1]
    squares, products = np.zeros((width, width)), np.zeros((width, width))
    with threadpool_limits(limits=1, user_api="blas"):
        for _, own, around in _chunks(indptr, indices, x, centre):
            squares += around.T @ around
            products += around.T @ own
        ridge = _RIDGE * np.trace(squares) / width
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
    with threadpool_limits(limits=1, user_api="blas"):
        for which, own, around in _chunks(indptr, indices, x, centre):
            out[which] = np.linalg.norm(own - around @ weights, axis=1)
    return out


def _chunks(indptr: Any, indices: Any, x: NDArray[np.float32], centre: NDArray[np.float64]) -> Iterator[Chunk]:
    """Rows of x, and the means of their neighbours' rows, both less the centre; 0 where there are no neighbours."""
    for first in range(0, len(x), _CHUNK_ROWS):
        which = slice(first, min(first + _CHUNK_ROWS, len(x)))
        means = np.empty((which.stop - first, x.shape[1]), np.float32)
        in_threads(len(means), mean_rows, indptr, indices, x, first, means)
        around = means - centre
        around[np.diff(indptr[first : which.stop + 1]) == 0] = 0.0
        yield which, x[which] - centre, around
