"""Attributes as the model takes them, dense f32 rows: by rule (auto.py), or rescaled, then reduced, then standardised.

Everything is streamed over blocks of rows with sums in float64, so memory-mapped input is read piece by piece and
sparse input is never made dense as a whole. Products run in one thread, so that sums have one order. Memory: the output
(4 bytes n q), one block, and what PCA needs (see parts.py).
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from hcm_scale.features.auto import fit_automatic, sample
from hcm_scale.features.parts import (
    AUTO,
    NORMAL,
    Components,
    Curve,
    FittedTransform,
    Plain,
    apply_parts,
    check_scale,
    fit_components,
    normal_scores,
    row_blocks,
)
from hcm_scale.features.purify import Ends
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

_MAX_DENSE_BYTES = 2 << 30  # sparse attributes whose dense form would be larger have to go through PCA


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
    scale: str = "none",
    pca: int | None = None,
    standardise: bool = True,
    columns: tuple[str, ...] = (),
    ends: Ends | None = None,
) -> Features:
    """Dense features (n, q) from attributes (n, d): `scale` (see rescale_block), `pca` to q columns, `standardise`.

    Standardised columns have mean 0 and variance 1 (over n); a constant column becomes 0. Components beyond the rank
    are left out. With scale="auto" the rules of auto.py decide, and `pca` is the number of components of their groups;
    where all columns are constant there are no features then. `ends` are those of some edges, by which the rules choose
    a number of components.

    >>> transform(np.array([[1, 5], [3, 5]], np.float32)).x.tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    num_rows, num_columns = x.shape
    if num_rows == 0 or num_columns == 0:
        raise ValueError(f"x has shape {num_rows} x {num_columns}; at least one row and one column are needed")
    check_scale(x, scale, columns)
    record: dict[str, Any] = {"scale": scale, "pca": pca, "standardise": standardise}
    if scale == AUTO:
        parts, names, decided = fit_automatic(x, pca, columns, ends)
        return Features(apply_parts(parts, x), names, record | decided, FittedTransform(parts, columns, _means(x)))
    means, components = _means(x), None
    curves: dict[int, Curve] = {}
    if scale == NORMAL:
        (x, curves), scale = normal_scores(_dense_enough(x)), "none"
    if pca is None:
        out, names = _dense(x, scale), columns or tuple(f"a{k}" for k in range(num_columns))
    else:
        out, components = _reduce(x, scale, pca)
        record["explained_variance"] = components.explained
        names = tuple(f"pc{k}" for k in range(out.shape[1]))
    centre, divisor = np.zeros(out.shape[1]), np.ones(out.shape[1])
    if standardise:
        centre, divisor = standardise_columns(out)
        record["num_constant_columns"] = int(np.isinf(divisor).sum())
    plain = Plain(scale, centre, divisor, curves, components)
    return Features(out, names, record, FittedTransform((plain,), columns, means))


def _means(x: Attributes) -> NDArray[np.float64]:
    """The mean of every column, over a sample of rows."""
    drawn = sample(x)
    rows = drawn.csr() if isinstance(drawn, SparseRows) else drawn
    return np.asarray(rows.mean(axis=0, dtype=np.float64)).ravel()


def _dense_enough(x: Attributes) -> NDArray[np.float32]:
    """Dense attributes as they are, sparse ones made dense where that is small."""
    if isinstance(x, SparseRows) and 4 * x.shape[0] * x.shape[1] > _MAX_DENSE_BYTES:
        raise ValueError(
            f"attributes.scale={NORMAL} ranks whole columns, and {x.shape[0]} x {x.shape[1]} sparse attributes are too "
            "many to be made dense; attributes.scale=auto or attributes=log1p_pca keeps them sparse"
        )
    return _dense(x, "none") if isinstance(x, SparseRows) else x


def _dense(x: Attributes, scale: str) -> NDArray[np.float32]:
    num_bytes = 4 * x.shape[0] * x.shape[1]
    if isinstance(x, SparseRows) and num_bytes > _MAX_DENSE_BYTES:
        raise ValueError(
            f"pca=None would make {x.shape[0]} x {x.shape[1]} sparse attributes dense ({num_bytes / 2**30:.1f} GiB; "
            f"at most {_MAX_DENSE_BYTES / 2**30:.0f}); choose pca from 1 to {min(x.shape)}"
        )
    out = np.empty(x.shape, np.float32)
    for which, block in row_blocks(x, scale):
        out[which] = block.toarray() if sparse.issparse(block) else block
    return out


def _reduce(x: Attributes, scale: str, num_components: int) -> tuple[NDArray[np.float32], Components]:
    """PCA scores (n, q), no more than the rank, and the components."""
    components = fit_components(lambda: (block for _, block in row_blocks(x, scale)), num_components)
    rank = components.loadings.shape[1]
    if rank < num_components:
        log.info("attributes.pca=%d is cut to %d, the rank of %d x %d attributes", num_components, rank, *x.shape)
    out = np.empty((x.shape[0], rank), np.float32)
    for which, block in row_blocks(x, scale):
        out[which] = components.project(block)
    return out, components


def standardise_columns(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gives every column mean 0 and variance 1, in place; constant columns become 0.

    Returns the mean and the deviation of every column; the deviation of a constant one is infinity.
    """
    constant = x.min(axis=0) == x.max(axis=0)
    mean = x.mean(axis=0, dtype=np.float64)
    squares = np.zeros(x.shape[1])
    for _, block in row_blocks(x):
        squares += ((block - mean) ** 2).sum(axis=0)
    deviation = np.where(constant, np.inf, np.sqrt(squares / len(x)))
    for which, block in row_blocks(x):
        x[which] = (block - mean) / deviation
    return mean, deviation
