"""Odd attributes: how far a node's attributes are from what the attributes of its neighbours predict.

A linear map, the same for all nodes, predicts the features of a node from the mean of its neighbours' features; the
residual is the length of the error. Where neighbours are alike this is the distance to them, and where they carry no
information it is the distance to the mean of all nodes: the graph decides how much context counts. The prediction for a
node without neighbours is that mean.

The map is fitted by least squares, with a ridge of a thousandth, over all nodes or, as it has few parameters, over a
million of them in evenly spaced ranges. Memory: 8 bytes per node, a chunk of rows per thread, and at most `MOST_SUMS`
pairs of (q, q) sums, each of chunks in their order, so that the result does not depend on the number of threads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import map_slices, share_parts
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import Column, Kind, Reason, Values
from hcm_scale.score.kinds.phrases import NOTABLE_DEVIATIONS, difference_text, like_text

CHUNK_ROWS, MOST_SUMS = 1 << 13, 32
_FITTED_ROWS, _RANGE_ROWS = 1 << 20, 1 << 12
_RIDGE = 1e-3  # of the mean variance of the neighbours' means
_NUM_CITED = 2  # columns in a sentence


class Prediction(NamedTuple):
    """Mean of all nodes' features, (q,), and the map from the neighbours' mean to a node's own features, (q, q)."""

    centre: NDArray[np.float64]
    weights: NDArray[np.float64]


def fit(indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32]) -> Prediction:
    """Least-squares prediction of each node's features from its neighbours' mean; x is (n, q)."""
    width = x.shape[1]
    column_sums = map_slices(len(x), lambda rows: x[rows].sum(axis=0, dtype=np.float64), CHUNK_ROWS)
    centre = np.reshape(column_sums, (len(column_sums), width)).sum(axis=0) / max(1, len(x))
    chunks = _chunks(len(x))
    if len(x) > _FITTED_ROWS:
        starts = np.linspace(0, len(x) - _RANGE_ROWS, _FITTED_ROWS // _RANGE_ROWS).astype(np.int64).tolist()
        chunks = [slice(start, start + _RANGE_ROWS) for start in starts]
    groups = [chunks[number::MOST_SUMS] for number in range(min(MOST_SUMS, len(chunks)))]
    sums = np.zeros((len(groups), 2, width, width))

    def add(number: int, _: slice, own: NDArray[np.float64], around: NDArray[np.float64]) -> None:
        sums[number, 0] += around.T @ around
        sums[number, 1] += around.T @ own

    _in_chunks(indptr, indices, x, centre, groups, add)
    squares, products = sums.sum(axis=0)
    ridge = _RIDGE * np.trace(squares) / width
    with threadpool_limits(limits=1, user_api="blas"):
        weights = np.linalg.solve(squares + (ridge or 1.0) * np.eye(width), products)
    return Prediction(centre, weights.astype(np.float64, copy=False))


def residual(
    indptr: NDArray[np.int64], indices: NDArray[Any], x: NDArray[np.float32], by: Prediction | None = None
) -> NDArray[np.float64]:
    """Length of what the neighbours' features do not predict of every node's own, (n,); x is (n, q).

    `by` is the prediction of another graph; by default it is fitted to this one.

    >>> pair_and_one = np.array([0, 1, 2, 2]), np.array([1, 0], np.int32)
    >>> residual(*pair_and_one, np.array([[1.0], [1.0], [-2.0]], np.float32)).round(2).tolist()
    [0.0, 0.0, 2.0]
    """
    centre, weights = by or fit(indptr, indices, x)
    out = np.empty(len(x))

    def fill(_: int, rows: slice, own: NDArray[np.float64], around: NDArray[np.float64]) -> None:
        out[rows] = np.linalg.norm(own - around @ weights, axis=1)

    _in_chunks(indptr, indices, x, centre, [[chunk] for chunk in _chunks(len(x))], fill)
    return out


def _chunks(num_rows: int) -> list[slice]:
    return [slice(first, min(first + CHUNK_ROWS, num_rows)) for first in range(0, num_rows, CHUNK_ROWS)]


def _in_chunks(
    indptr: Any,
    indices: Any,
    x: NDArray[np.float32],
    centre: NDArray[np.float64],
    groups: list[list[slice]],
    work: Callable[[int, slice, NDArray[np.float64], NDArray[np.float64]], None],
) -> None:
    """Calls work(group, rows, own, around) for the chunks of rows of every group, in threads with one core each.

    Chunks of a group follow one another. `own` are rows of x and `around` the means of their neighbours' rows, both
    minus the centre; `around` is 0 for nodes without neighbours.
    """

    def one(_: int, number: int) -> None:
        for rows in groups[number]:
            means = np.empty((rows.stop - rows.start, x.shape[1]), np.float32)
            mean_rows((0, len(means)), indptr, indices, x, rows.start, means)
            around = means - centre
            around[np.diff(indptr[rows.start : rows.stop + 1]) == 0] = 0.0
            work(number, rows, x[rows] - centre, around)

    with threadpool_limits(limits=1, user_api="blas"):
        share_parts(numba.get_num_threads(), range(len(groups)), one)


def _numbers(inputs: KindInputs) -> list[Values]:
    of_graph = inputs.edges.indptr, inputs.edges.indices, inputs.features
    prediction = Prediction(*inputs.measured(lambda: fit(*of_graph), "centre", "weights"))
    return [residual(*of_graph, prediction)]


def _sentence(e: Any, _: Reason) -> str:
    """The columns that are extreme or differ most; hashed text only where no column differs."""
    plain = [d for d in e.differences if not d.is_text]
    cited, opening = [d for d in plain if d.notable][:_NUM_CITED], ""
    if not cited and not (cited := [d for d in e.differences if d.is_text][:1]):
        cited = plain[:1]
        if cited and abs(cited[0].deviations) < NOTABLE_DEVIATIONS:  # else it is far off, and usual
            opening = f"no column alone is {NOTABLE_DEVIATIONS:g} deviations off; the farthest is "
    lines = "; ".join(difference_text(e, d) for d in cited)
    usual = f"; usual is the median of {like_text(e)}" if "is usual" in lines else ""
    return f"{opening}{lines}{usual}" if cited else "no single column shows it"


ATTRIBUTES = Kind(
    name="attributes",
    columns={
        "residual": Column(
            "distance of attributes to what the neighbourhood predicts",
            "How far its attributes lie from what its neighbourhood predicts.",
            title="Odd attributes",
        )
    },
    title="odd attributes",
    short="Odd",
    help="Its attributes are not what its surroundings lead one to expect.",
    numbers=_numbers,
    needs_attributes=True,
    ranks_all_nodes=True,
    weight=lambda facts: facts.of_attributes,
    stored={
        "centre": lambda array: array is not None and array.ndim == 1,
        "weights": lambda array: array is not None and array.ndim == 2,
    },
    shows_differences=True,
    reason=lambda around: {},
    sentence=_sentence,
)
