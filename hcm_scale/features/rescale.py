"""Attribute values on another scale: value by value or row by row, streamed in blocks of rows; or column by column.

A block is a plain f32 array, or a scipy CSR where the attributes are sparse; these scales keep 0 at 0, so sparse stays
sparse, and nothing larger than a block is made beside the result. `normal_scores` ranks whole columns of dense
attributes, one at a time: about 40 bytes a row beside the result.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from hcm_scale.base.names import SCALINGS
from hcm_scale.graph.store import Attributes, SparseRows

AttributeRows = Any  # an f32 array (rows, d) or a scipy csr_array of that shape

_BLOCK_VALUES = 1 << 22
_VALUEWISE: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    "none": lambda values: values,
    "log1p": np.log1p,
    "binary": lambda values: values != 0,
}
NORMAL = "normal"  # see normal_scores
AUTO = "auto"  # see auto.py


def blocks(x: Attributes, scale: str = "none") -> Iterator[tuple[slice, AttributeRows]]:
    """The rows of x in order, block by block, rescaled: (which rows, their values)."""
    rows = x.csr() if isinstance(x, SparseRows) else x
    width = x.shape[1] if not isinstance(x, SparseRows) else len(x.indices) // max(1, x.shape[0])
    step = block_rows(width)
    for first in range(0, x.shape[0], step):
        which = slice(first, min(first + step, x.shape[0]))
        yield which, rescale_block(rows[which], scale)


def block_rows(width: int) -> int:
    """Rows of a block where a row holds so many values."""
    return max(64, _BLOCK_VALUES // max(1, width))


def normal_scores(x: NDArray[Any]) -> NDArray[np.float32]:
    """Each column of dense attributes as if drawn from a normal distribution: only the order of its values is kept.

    The value of rank r among n becomes the (r - 1/2) / n quantile; equal values share the mean of their ranks. For
    columns whose few largest values would drown all others.

    >>> normal_scores(np.array([[1], [1e9], [2]])).round(2).tolist()
    [[-0.9700000286102295], [0.9700000286102295], [0.0]]
    """
    out = np.empty(x.shape, np.float32)
    for k in range(x.shape[1]):
        _, place, count = np.unique(x[:, k], return_inverse=True, return_counts=True)
        ranks = np.cumsum(count) - 0.5 * (count - 1)  # of each value, 1 the lowest
        out[:, k] = special.ndtri((ranks[place] - 0.5) / len(x))
    return out


def check_scale(x: Attributes, scale: str, columns: tuple[str, ...] = ()) -> None:
    """Refuses an unknown scale, and values that the scale is not defined for, by name, value and count."""
    if scale not in SCALINGS:
        raise ValueError(f"attributes.scale={scale!r} is unknown; it is one of {', '.join(SCALINGS)}")
    if scale != "log1p":
        return
    for which, block in blocks(x):
        if block.shape[1] == 0 or block.min() >= 0:
            continue
        row, column = (int(place[0]) for place in (block < 0).nonzero())
        name = columns[column] if columns else f"number {column}"
        raise ValueError(
            f"scale='log1p' needs values of 0 or more: "
            f"column {name} holds {block[row, column]:g} in row {which.start + row}"
        )


def rescale_block(block: AttributeRows, scale: str) -> AttributeRows:
    """A block of rows with each value on a new scale; dense or sparse as it was.

    "none" as it is; "log1p" log(1 + value); "binary" 1 where the value is not 0; "row" the value's share of the sum of
    absolute values in its row (a row of zeros stays so).

    >>> rescale_block(np.array([[1, 3], [0, 0]], np.float32), "row").tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    if scale == "row":
        totals = np.asarray(abs(block).sum(axis=1, dtype=np.float64)).ravel()
        shares = 1.0 / np.where(totals > 0, totals, 1.0)
        scaled = sparse.diags_array(shares) @ block if sparse.issparse(block) else shares[:, None] * block
        return scaled.astype(np.float32)
    if sparse.issparse(block):
        data = _VALUEWISE[scale](block.data).astype(np.float32)
        return sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
    return _VALUEWISE[scale](block).astype(np.float32, copy=False)
