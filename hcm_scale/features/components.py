"""Principal components of rows that come in blocks, dense or sparse; sparse rows are centred without being made dense.

All work is done on the smaller side of the rows: with fewer rows than columns on products of rows, whose eigenvectors
give those of the covariance. A small side: its products are formed, in float64, and their top eigenvectors are taken (8
bytes for each two of them). A large one: the same eigenvectors by Lanczos iteration to rounding, where the products are
only ever applied to a vector; where many components are wanted by subspace iteration in float32, which applies them to
a block of vectors: the first are exact to several digits, the last ones mixtures of what lies beside them in the
spectrum. Sparse blocks are held, 24 bytes a value; dense rows are read again each time. Starts are fixed and each
component's largest loading is made positive, so the result is a function of the input.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcm_scale.base.threads import run_in_slices

AttributeRows = Any  # an f32 array (rows, d) or a scipy csr_array of that shape
Stream = Callable[[], Iterable[AttributeRows]]  # gives the rows from the start, every time it is called
Vectors = NDArray[Any]  # (side, k)

# Sparse products are cheap, so iteration takes over early; with dense rows on disk one pass is worth a large matrix.
_MAX_FORMED = {True: 2048, False: 8192}  # the largest side whose products are formed, by whether the rows are sparse
_FEW_COMPONENTS = 64  # beyond, a Lanczos basis of four times as many vectors costs more than blocks of vectors
_BESIDE, _POWERS = 32, 6  # vectors beside the wanted ones, and products, of the subspace iteration
_RANK_SHARE = 1e-10  # of the first component's variance: what has less is rounding, and scaled up it would be noise
_CHUNK_ROWS = 1 << 13  # of a matrix or a basis, at a time


@dataclass(frozen=True, eq=False)
class Components:
    """`mean` (d,), `loadings` (d, q) with orthonormal columns (one of 0 where all rows are equal), `variances` (q,)."""

    mean: NDArray[np.float64]
    loadings: NDArray[np.float64]
    variances: NDArray[np.float64]
    total_variance: float

    @property
    def explained(self) -> list[float]:
        shares = self.variances / (self.total_variance or 1.0)
        return [round(float(share), 6) for share in shares]

    def project(self, block: AttributeRows) -> NDArray[np.float64]:
        """The scores of a block of rows, (rows, q)."""
        if isinstance(block, np.ndarray):
            return (block - self.mean) @ self.loadings
        return block.astype(np.float64) @ self.loadings - self.mean @ self.loadings


def fit_components(stream: Stream, num_components: int) -> Components:
    """The first principal components of the streamed rows, falling; no more than the rank, and at least one.

    >>> rows = np.array([[0, 0], [1, 2], [2, 4]], np.float32)
    >>> fit_components(lambda: [rows], 1).loadings.round(3).ravel().tolist()
    [0.447, 0.894]
    """
    rows = _CentredRows.of(stream)
    num_rows, num_columns = rows.shape
    squares, side = rows.sum_of_squares(), min(rows.shape)
    wanted = min(num_components, side)
    if squares <= 8 * np.finfo(float).eps * num_rows * (rows.mean @ rows.mean):  # all rows are equal
        values, loadings = np.zeros(1), np.zeros((num_columns, 1))
    elif side <= _MAX_FORMED[rows.is_sparse] or 4 * wanted >= side:
        last = (side - wanted, side - 1)
        values, vectors = scipy.linalg.eigh(rows.products(), subset_by_index=last, overwrite_a=True)
        loadings = rows.loadings(values, vectors)
    elif wanted <= _FEW_COMPONENTS:
        values, vectors = _by_lanczos(rows, wanted)
        loadings = rows.loadings(values, vectors)
    else:
        values, loadings = _by_blocks(rows, wanted)
    values, loadings = values[::-1], loadings[:, ::-1]
    rank = max(1, int((values > values[0] * max(_RANK_SHARE, side * np.finfo(float).eps)).sum()))
    values, loadings = values[:rank], loadings[:, :rank]
    lowest, highest = loadings.argmin(axis=0), loadings.argmax(axis=0)
    sizes = -loadings[lowest, np.arange(rank)], loadings[highest, np.arange(rank)]
    is_negative = np.where(sizes[0] == sizes[1], lowest < highest, sizes[0] > sizes[1])  # the largest, the first of two
    loadings *= np.where(is_negative, -1.0, 1.0)
    divisor = max(1, num_rows - 1)
    return Components(rows.mean, loadings, np.maximum(values, 0.0) / divisor, squares / divisor)


@dataclass(frozen=True, eq=False)
class _CentredRows:
    """Streamed rows less their mean, X, of which only products are made."""

    stream: Stream
    shape: tuple[int, int]
    mean: NDArray[np.float64]
    held: tuple[Any, Any] | None  # the sparse rows and their transpose, both by row

    @staticmethod
    def of(stream: Stream) -> "_CentredRows":
        total: NDArray[np.float64] | float = 0.0
        num_rows, held = 0, []
        for block in stream():
            total = total + np.asarray(block.sum(axis=0, dtype=np.float64))
            num_rows += block.shape[0]
            held += [] if isinstance(block, np.ndarray) else [block.astype(np.float64)]
        mean = np.asarray(total) / num_rows
        matrix = scipy.sparse.vstack(held, format="csr") if held else None
        both = None if matrix is None else (matrix, matrix.T.tocsr())
        return _CentredRows(stream, (num_rows, len(mean)), mean, both)

    @property
    def is_sparse(self) -> bool:
        return self.held is not None

    @property
    def on_rows(self) -> bool:
        """Whether the rows are the smaller side."""
        return self.shape[0] < self.shape[1]

    def _centred(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Dense blocks, and which rows they are."""
        first = 0
        for block in self.stream():
            yield slice(first, first + len(block)), block - self.mean
            first += len(block)

    def sum_of_squares(self) -> float:
        if self.held is None:
            return float(sum(np.einsum("ij,ij->", block, block) for _, block in self._centred()))
        values = self.held[0].data
        crossed = (self.held[0] @ self.mean).sum()
        return float(values @ values - 2 * crossed + self.shape[0] * (self.mean @ self.mean))

    def products(self) -> NDArray[np.float64]:
        """X X' or X' X, of the smaller side; of dense rows X X' has its lower half alone."""
        side, mean = min(self.shape), self.mean
        if self.held is not None and self.on_rows:
            shift = self.held[0] @ mean
            return (self.held[0] @ self.held[1]).toarray() - shift - shift[:, None] + mean @ mean
        if self.held is not None:
            return (self.held[1] @ self.held[0]).toarray() - self.shape[0] * np.outer(mean, mean)
        out = np.zeros((side, side))
        for which, block in self._centred():
            if not self.on_rows:
                out += block.T @ block
                continue
            for others, other in self._centred():
                if others.start > which.start:
                    break
                out[which, others] = block @ other.T
        return out

    def times(self, vectors: Vectors) -> Vectors:
        """X times (d, k), of the type of the vectors."""
        shift = self.mean.astype(vectors.dtype) @ vectors
        if self.held is not None:
            return np.subtract(out := _multiply(self.held[0], vectors), shift, out=out)
        return np.concatenate([block @ vectors - shift for block in self.stream()])

    def transposed_times(self, vectors: Vectors) -> Vectors:
        """X' times (n, k)."""
        mean, sums, first = self.mean.astype(vectors.dtype), vectors.sum(axis=0), 0
        if self.held is not None:
            total = _multiply(self.held[1], vectors)
        else:
            total = np.zeros((len(mean), *vectors.shape[1:]), vectors.dtype)
            for block in self.stream():
                total += block.T @ vectors[first : first + len(block)]
                first += len(block)
        for rows in _chunks(total):
            total[rows] -= np.multiply.outer(mean[rows], sums)
        return total

    def apply(self, vectors: Vectors) -> Vectors:
        """The products of the smaller side times vectors."""
        if self.on_rows:
            return self.times(self.transposed_times(vectors))
        return self.transposed_times(self.times(vectors))

    def loadings(self, values: NDArray[np.float64], vectors: Vectors) -> NDArray[np.float64]:
        """The components that belong to eigenvectors of the smaller side; 0 where a value is rounding."""
        if not self.on_rows:
            return vectors
        least = values[-1] * _RANK_SHARE
        return self.transposed_times(vectors) * np.where(values > least, np.maximum(values, least) ** -0.5, 0.0)


def _multiply(matrix: Any, vectors: Vectors) -> Vectors:
    """A sparse matrix times vectors, many of them by all threads."""
    if vectors.ndim == 1:
        return np.asarray(matrix @ vectors)
    out, matrix = np.empty((matrix.shape[0], vectors.shape[1]), vectors.dtype), matrix.astype(vectors.dtype)
    run_in_slices(len(out), lambda chunk: np.copyto(out[chunk], matrix[chunk] @ vectors), size=_CHUNK_ROWS)
    return out


def _by_lanczos(rows: _CentredRows, wanted: int) -> tuple[Any, Any]:
    """The largest eigenvalues, rising, and eigenvectors of the smaller side."""
    side = min(rows.shape)
    start = np.random.default_rng(0).standard_normal(side)
    operator = scipy.sparse.linalg.LinearOperator((side, side), lambda v: rows.apply(v.ravel()), dtype=np.float64)
    with threadpool_limits(limits=1, user_api="blas"):  # many tiny calls: threads would only wait for each other
        most = min(side, max(4 * wanted, 64))
        return scipy.sparse.linalg.eigsh(operator, k=wanted, which="LA", tol=1e-12, v0=start, ncv=most)


def _by_blocks(rows: _CentredRows, wanted: int) -> tuple[Any, Any]:
    """About the largest variances, rising, and their components."""
    vectors = np.random.default_rng(0).standard_normal((rows.shape[1], wanted + _BESIDE)).astype(np.float32)
    if rows.on_rows:
        vectors = rows.times(vectors)
        for _ in range(_POWERS - 2):
            vectors = rows.apply(_orthonormal(vectors))
        vectors = rows.transposed_times(_orthonormal(vectors))
    else:
        for _ in range(_POWERS - 1):
            vectors = rows.apply(_orthonormal(vectors))
    vectors = _orthonormal(vectors)
    values, turn = np.linalg.eigh(_inner(rows.times(vectors)))
    loadings = np.empty((len(vectors), len(values[-wanted:])))
    for some in _chunks(vectors):
        loadings[some] = vectors[some] @ turn[:, -wanted:]
    return values[-wanted:], loadings


def _orthonormal(vectors: Vectors) -> Vectors:
    """A basis of what vectors span, those of no length left out; several times as fast as QR."""
    values, turn = np.linalg.eigh(_inner(vectors))
    some = values > values[-1] * np.finfo(np.float32).eps ** 2
    return vectors @ (turn[:, some] / np.sqrt(values[some])).astype(vectors.dtype)


def _inner(vectors: Vectors) -> NDArray[np.float64]:
    """The inner products of vectors, summed in float64."""
    total = np.zeros((vectors.shape[1], vectors.shape[1]))
    for some in _chunks(vectors):
        chunk = vectors[some].astype(np.float64)
        total += chunk.T @ chunk
    return total


def _chunks(vectors: Vectors) -> list[slice]:
    return [slice(first, first + _CHUNK_ROWS) for first in range(0, len(vectors), _CHUNK_ROWS)]


def needed_bytes(num_rows: int, num_columns: int, num_components: int, *, num_values: int, is_sparse: bool) -> int:
    """Of `fit_components`: sparse rows and their transpose, and what is formed or iterated on the smaller side."""
    side, width = min(num_rows, num_columns), num_components + _BESIDE
    held = 48 * num_values if is_sparse else 12 * min(num_values, 1 << 23)
    if side <= _MAX_FORMED[is_sparse] or 4 * num_components >= side:
        return held + 24 * side**2 + 16 * num_columns * num_components
    if num_components <= _FEW_COMPONENTS:
        return held + 12 * side * max(4 * num_components, 64) + 16 * num_columns * num_components
    return held + 12 * side * width + 16 * num_columns * width
