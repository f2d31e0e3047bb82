"""Principal components, exact, of rows that come in blocks; sparse rows are centred without being made dense.

Few columns: the d x d covariance is summed in float64 over the blocks and its top eigenvectors are taken (8 d^2
bytes). Many columns: the same eigenvectors by Lanczos iteration to machine precision, where the covariance is only
ever applied to a vector (sparse: the float64 blocks are kept, 12 bytes a value; dense: the rows are read again each
time). The start vector is fixed and each component's largest loading is made positive, so the result is a function of
the input.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from threadpoolctl import threadpool_limits

from hcm_scale.features.rescale import AttributeRows

# Sparse products are cheap, so Lanczos takes over early; with dense rows on disk one pass is worth a large matrix.
_MAX_COVARIANCE_COLUMNS = {True: 2048, False: 8192}

_RANK_SHARE = 1e-10  # of the first component's variance: what has less is rounding, and stretched it would be noise

Stream = Callable[[], Iterable[AttributeRows]]  # gives the rows from the start, every time it is called


@dataclass(frozen=True, eq=False)
class Components:
    """`mean` (d,), `loadings` (d, q) with orthonormal columns (one of 0 where all rows are equal), `variances` (q,)."""

    mean: NDArray[np.float64]
    loadings: NDArray[np.float64]
    variances: NDArray[np.float64]
    total_variance: float

    def project(self, block: AttributeRows) -> NDArray[np.float64]:
        """The scores of a block of rows, (rows, q)."""
        if sparse.issparse(block):
            return block.astype(np.float64) @ self.loadings - self.mean @ self.loadings
        return (block - self.mean) @ self.loadings


def fit(stream: Stream, num_components: int) -> Components:
    """The first principal components of the streamed rows, falling; no more than the rank, and at least one.

    >>> rows = np.array([[0, 0], [1, 2], [2, 4]], np.float32)
    >>> fit(lambda: [rows], 1).loadings.round(3).ravel().tolist()
    [0.447, 0.894]
    """
    mean, num_rows, is_sparse = _mean(stream)
    squares = sum(_centred_squares(block, mean) for block in stream())
    num_columns = len(mean)
    num_components = min(num_components, num_columns)
    if num_columns <= _MAX_COVARIANCE_COLUMNS[is_sparse] or 4 * num_components >= num_columns:
        values, vectors = _by_covariance(stream, mean, num_components)
    elif squares > 8 * np.finfo(float).eps * num_rows * (mean @ mean):
        values, vectors = _by_lanczos(stream, mean, num_components, is_sparse)
    else:  # all rows are equal, and Lanczos iteration would have nothing to start from
        values, vectors = np.zeros(num_components), np.zeros((num_columns, num_components))
    values, vectors = values[::-1], vectors[:, ::-1]
    vectors = np.where(values > values[0] * max(_RANK_SHARE, num_columns * np.finfo(float).eps), vectors, 0.0)
    rank = max(1, int(vectors.any(axis=0).sum()))
    values, vectors = values[:rank], vectors[:, :rank]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(rank)]
    divisor = max(1, num_rows - 1)
    variances = np.maximum(values, 0.0) / divisor
    return Components(mean, vectors * np.where(largest < 0, -1.0, 1.0), variances, squares / divisor)


def _mean(stream: Stream) -> tuple[NDArray[np.float64], int, bool]:
    """The column means, the number of rows, and whether they are sparse."""
    total: NDArray[np.float64] | float = 0.0
    num_rows, is_sparse = 0, False
    for block in stream():
        total = total + np.asarray(block.sum(axis=0, dtype=np.float64))
        num_rows += block.shape[0]
        is_sparse = sparse.issparse(block)
    return np.asarray(total) / num_rows, num_rows, is_sparse


def _centred_squares(block: AttributeRows, mean: NDArray[np.float64]) -> float:
    """The sum of (value - column mean)^2 over a block."""
    if sparse.issparse(block):
        values = block.data.astype(np.float64)
        return float(values @ values - 2 * (block.astype(np.float64) @ mean).sum() + block.shape[0] * (mean @ mean))
    centred = block - mean
    return float(np.einsum("ij,ij->", centred, centred))


def _by_covariance(stream: Stream, mean: NDArray[np.float64], q: int) -> tuple[Any, Any]:
    """The q largest eigenvalues, rising, and eigenvectors of the centred Gram matrix, which is formed."""
    gram, num_sparse_rows = np.zeros((len(mean), len(mean))), 0
    for block in stream():
        if sparse.issparse(block):
            values = block.astype(np.float64)
            gram += (values.T @ values).toarray()
            num_sparse_rows += block.shape[0]
        else:
            centred = block - mean
            gram += centred.T @ centred
    gram -= num_sparse_rows * np.outer(mean, mean)  # centres the sparse rows, which were summed as they are
    return linalg.eigh(gram, subset_by_index=(len(mean) - q, len(mean) - 1), overwrite_a=True)


def _by_lanczos(stream: Stream, mean: NDArray[np.float64], q: int, is_sparse: bool) -> tuple[Any, Any]:
    """The same eigenpairs, with the Gram matrix only applied to vectors."""
    held = [block.astype(np.float64) for block in stream()] if is_sparse else None

    def apply(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros(len(mean))
        shift = mean @ vector
        for block in stream() if held is None else held:
            scores = block @ vector - shift  # the centred rows times the vector
            out += block.T @ scores - mean * scores.sum()
        return out

    d = len(mean)
    start = np.random.default_rng(0).standard_normal(d)
    operator = LinearOperator((d, d), matvec=apply, dtype=np.float64)
    with threadpool_limits(limits=1, user_api="blas"):  # many tiny calls: threads would only wait for each other
        return eigsh(operator, k=q, which="LA", tol=0, v0=start, ncv=min(d, max(4 * q, 64)))
