"""Attributes as the model takes them: dense f32 rows, by the rules of auto.py.

Everything is streamed over blocks of rows with sums in float64, so memory-mapped input is read piece by piece and
sparse input is never made dense as a whole. Products run in one thread, so that sums have one order. Memory: the output
(4 bytes n q), one block, and what components need (see components.py).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcm_scale.features.auto import fit_parts, sample
from hcm_scale.features.parts import FittedTransform, apply_parts
from hcm_scale.features.purify import Ends
from hcm_scale.graph.store import Attributes, SparseRows

_MAX_DENSE_BYTES = 2 << 30  # sparse attributes whose dense form would be larger have to be reduced


@dataclass(frozen=True, eq=False)
class Features:
    """The model's input: f32 rows (n, q), a name for every column, a record, and the transform that made them."""

    x: NDArray[np.float32]
    columns: tuple[str, ...]
    record: dict[str, Any]
    fitted: FittedTransform


@threadpool_limits.wrap(limits=1, user_api="blas")
def transform(
    x: Attributes,
    *,
    scale: str = "auto",
    pca: int | None = None,
    columns: tuple[str, ...] = (),
    ends: Ends | None = None,
) -> Features:
    """Dense features (n, q) from attributes (n, d), by the rules that `scale` names; `pca` is a number of components.

    Components beyond the rank are left out. By the rules of "auto" constant columns are no features, else they are 0.
    `ends` are those of some edges, by which the rules choose a number of components.

    >>> transform(np.array([[1, 5], [3, 5]], np.float32), scale="none").x.tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    _check_scale(x, scale, pca, columns)
    parts, names, decided = fit_parts(x, scale, pca, columns, ends if scale == "auto" else None)
    drawn = sample(x)
    rows = drawn.csr() if isinstance(drawn, SparseRows) else drawn
    means = np.asarray(rows.mean(axis=0, dtype=np.float64)).ravel()
    record = {"scale": scale, "pca": pca} | decided
    return Features(apply_parts(parts, x), names, record, FittedTransform(parts, columns, means))


def _check_scale(x: Attributes, scale: str, pca: int | None, columns: tuple[str, ...]) -> None:
    """Refuses values that the scale is not defined for, and sparse attributes that it would make dense."""
    num_bytes = 4 * x.shape[0] * x.shape[1]
    if (
        isinstance(x, SparseRows)
        and num_bytes > _MAX_DENSE_BYTES
        and (scale == "normal" or (scale, pca) == ("none", None))
    ):
        raise ValueError(
            f"attributes.scale={scale} would make {x.shape[0]} x {x.shape[1]} sparse attributes dense "
            f"({num_bytes / 2**30:.1f} GiB; at most {_MAX_DENSE_BYTES / 2**30:.0f}); attributes.scale=auto or "
            "attributes=log1p_pca keeps them sparse"
        )
    values = x.data if isinstance(x, SparseRows) else x
    if scale == "log1p" and values.min(initial=0) < 0:
        row, column = (int(ends[0]) for ends in ((x.csr() if isinstance(x, SparseRows) else x) < 0).nonzero())
        name = columns[column] if columns else f"number {column}"
        value = (x.csr() if isinstance(x, SparseRows) else x)[row, column]
        raise ValueError(
            f"attributes.scale=log1p needs values of 0 or more: column {name} holds {value:g} in row {row}"
        )
