"""What attribute columns look like, on a sample of rows: the evidence that the rules of auto.py decide by.

The sample is evenly spaced rows, at most `MAX_ROWS` of them, so it is a function of the shape alone and a hundred
million rows cost what sixty thousand do. A column is looked at through its non-zero values and a count of zeros, one
column at a time: sparse columns are not made dense, and zeros that are more than four in five are not sorted.

A table reader marks gaps by a column `NAME is null` beside `NAME`, `NAME=value` or `NAME#bucket`. That ending is the
one rule by which a gap is known here; what was filled in for gaps is no part of what is seen of a column.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.graph.store import Attributes, SparseRows

MAX_ROWS = 1 << 16
MOSTLY_ZERO = 0.8  # a share of zeros beyond this
_MIN_ROWS, _MAX_VALUES = 1 << 12, 1 << 26  # a wide dense table is looked at in fewer rows
_SQUASHED = 5.0  # the deviation over what it were, were the column normal as its quartiles: lognormal 2


@dataclass(frozen=True)
class Seen:
    """One column over the rows of the sample that have a value."""

    low: float
    high: float
    mean: float
    deviation: float
    zeros: float  # their share
    two_values: bool
    heavy: bool

    @property
    def constant(self) -> bool:
        return self.low == self.high


def sample(x: Attributes, most: int = MAX_ROWS) -> Attributes:
    """Evenly spaced rows of x, at most so many, all where there are few; a sparse sample of sparse rows.

    >>> sample(np.arange(6, dtype=np.float32)[:, None]).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    width = x.shape[1] if not isinstance(x, SparseRows) else len(x.indices) // max(1, x.shape[0])
    num_rows = min(most, sampled_rows(width))
    if x.shape[0] <= num_rows:
        return x
    rows = np.arange(num_rows) * x.shape[0] // num_rows
    return SparseRows.of(x.csr()[rows]) if isinstance(x, SparseRows) else x[rows]


def sampled_rows(width: int) -> int:
    """The most rows of a sample where a row holds so many values."""
    return min(MAX_ROWS, max(_MIN_ROWS, _MAX_VALUES // max(1, width)))


def by_column(x: Attributes) -> Any:
    """The rows of a sample turned for reading by column: a scipy CSC array, or a dense (d, rows)."""
    return x.csr().tocsc() if isinstance(x, SparseRows) else np.ascontiguousarray(x.T)


def values_of(turned: Any, column: int, gap: int = -1) -> tuple[NDArray[np.float64], int]:
    """The non-zero values of one column, and how many rows have a value at all; `gap` is the column of its gaps."""
    if sparse.issparse(turned):
        values, num_rows = turned.data[turned.indptr[column] : turned.indptr[column + 1]], turned.shape[0]
    else:
        values = turned[column] if gap < 0 else turned[column][turned[gap] == 0]
        num_rows = len(values)
    return values[values != 0].astype(np.float64), num_rows


def look(stored: NDArray[np.float64], num_rows: int) -> Seen:
    """What a column looks like that holds the non-zero values `stored` in `num_rows` rows.

    >>> look(np.array([2.0, 2.0]), 4)
    Seen(low=0.0, high=2.0, mean=1.0, deviation=1.0, zeros=0.5, two_values=True, heavy=False)
    """
    num_zeros = num_rows - len(stored)
    ends = [*([stored.min(), stored.max()] if len(stored) else []), *([0.0] if num_zeros or not num_rows else [])]
    low, high, mean = float(min(ends)), float(max(ends)), float(stored.sum()) / max(1, num_rows)
    squares = float(((stored - mean) ** 2).sum()) + num_zeros * mean**2
    at_ends = low < high and bool(((stored == low) | (stored == high)).all())
    two_values = at_ends and (not num_zeros or 0.0 in (low, high))
    deviation, zeros = math.sqrt(squares / max(1, num_rows)), num_zeros / max(1, num_rows)
    return Seen(low, high, mean, deviation, zeros, two_values, low < high and _is_heavy(stored, num_zeros, deviation))


def _is_heavy(stored: NDArray[np.float64], num_zeros: int, deviation: float) -> bool:
    """Whether a few values lie so far out that dividing by the deviation would press all others into one point."""
    if num_zeros > MOSTLY_ZERO * (len(stored) + num_zeros):
        return True
    values = np.concatenate([stored, np.zeros(num_zeros)])
    lower, upper = np.quantile(values, (0.25, 0.75))
    return bool(deviation > _SQUASHED * (upper - lower) / 1.349)


def gap_columns(columns: tuple[str, ...], num_columns: int) -> NDArray[np.int64]:
    """For every column the number of the column that flags its gaps, -1 where none does.

    >>> gap_columns(("age", "age is null", "land=DE", "land=FR", "land is null", "size"), 6).tolist()
    [1, -1, 4, 4, -1, -1]
    """
    flags = {name.removesuffix(GAP_SUFFIX): k for k, name in enumerate(columns) if name.endswith(GAP_SUFFIX)}
    out = np.full(num_columns, -1, np.int64)
    for k, name in enumerate(columns if flags else ()):
        bases = (name, *(name[:i] for i, letter in enumerate(name) if letter in "=#"))
        out[k] = next((flags[base] for base in bases if base in flags), -1)
    return out
