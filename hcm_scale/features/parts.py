"""Transforms of attribute rows whose numbers have been fitted, to be applied to the rows of any graph.

A `FittedTransform` is a list of parts, each of which makes some of the features of a block of rows:

    Singles   shifts and scales columns one by one, or maps them along a curve              fitted by auto.py
    Rotated   projects a group of columns on principal components                           fitted by auto.py
    Plain     rescales all columns, projects them if asked, then shifts and scales them     fitted by transform.py

`apply` finds columns by name where both graphs have names: unknown columns are ignored, missing ones take the mean that
they had in training. `fitted_to_bytes` stores a transform as one safetensors file: arrays are named PART.FIELD, and all
other fields are JSON in its metadata.

Rows come in blocks of about 4 million values: a plain f32 array, or a scipy CSR where the attributes are sparse. All
scales but normal scores keep 0 at 0, so sparse stays sparse, and nothing larger than a block is made beside the result.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy import linalg, sparse, special
from scipy.sparse.linalg import LinearOperator, eigsh
from threadpoolctl import threadpool_limits

from hcm_scale.base.files import typed
from hcm_scale.base.names import GAP_SUFFIX, NO_COLUMN, VECTOR
from hcm_scale.base.threads import run_in_slices, share_parts
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

AttributeRows = Any  # an f32 array (rows, d) or a scipy csr_array of that shape
Curve = tuple[NDArray[np.float32], NDArray[np.float32]]  # rising values, and the score of each

NORMAL = "normal"  # see normal_scores
AUTO = "auto"  # see auto.py
_VALUEWISE: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    "none": lambda values: values,
    "log1p": np.log1p,
    "binary": lambda values: values != 0,
}
_BLOCK_VALUES = 1 << 22
MOST_BLOCKS = 16  # that are projected at the same time
_NAMES_IN_MESSAGE = 5


def row_blocks(x: Attributes, scale: str = "none") -> Iterator[tuple[slice, AttributeRows]]:
    """The rows of x in order, block by block, rescaled: (which rows, their values)."""
    rows = _sliceable(x)
    for which in _slices(x):
        yield which, rescale_block(rows[which], scale)


def _sliceable(x: Attributes) -> Any:
    return x.csr() if isinstance(x, SparseRows) else x


def _slices(x: Attributes) -> list[slice]:
    """The rows of x, block by block."""
    step = block_rows(values_per_row(x))
    return [slice(first, min(first + step, x.shape[0])) for first in range(0, x.shape[0], step)]


def values_per_row(x: Attributes) -> int:
    """Stored values of a row, on average."""
    return len(x.indices) // max(1, x.shape[0]) if isinstance(x, SparseRows) else x.shape[1]


def block_rows(width: int) -> int:
    """Rows of a block whose rows hold `width` values."""
    return max(64, _BLOCK_VALUES // max(1, width))


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
    return _VALUEWISE[scale](np.asarray(block, np.float32)).astype(np.float32, copy=False)


def check_scale(x: Attributes, scale: str, columns: tuple[str, ...] = ()) -> None:
    """Refuses values that the scale is not defined for, by name, value and count."""
    if scale != "log1p":
        return
    for which, block in row_blocks(x):
        if block.shape[1] == 0 or block.min() >= 0:
            continue
        row, column = (int(place[0]) for place in (block < 0).nonzero())
        name = columns[column] if columns else f"number {column}"
        raise ValueError(
            f"scale='log1p' needs values of 0 or more: "
            f"column {name} holds {block[row, column]:g} in row {which.start + row}"
        )


def normal_scores(x: NDArray[Any]) -> tuple[NDArray[np.float32], dict[int, Curve]]:
    """Each column of dense attributes as normal scores, f32 (n, d), and the curve of each column.

    Only the order of the values is kept, for columns whose few largest values would drown all others. Columns are
    ranked one at a time, in about 40 bytes a row.

    >>> normal_scores(np.array([[1], [1e9], [2]]))[0].round(2).tolist()
    [[-0.9700000286102295], [0.9700000286102295], [0.0]]
    """
    out, curves = np.empty(x.shape, np.float32), {}
    for k in range(x.shape[1]):
        column = np.asarray(x[:, k], np.promote_types(x.dtype, np.float32))
        values, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        curves[k] = values, rank_quantiles(counts).astype(np.float32)
        out[:, k] = curves[k][1][place]
    return out, curves


def rank_quantiles(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The normal score of each of the rising values that occur so often.

    The value of rank r among n gets the (r - 1/2) / n quantile; equal values share the mean of their ranks.
    """
    return special.ndtri((np.cumsum(counts) - 0.5 * counts) / counts.sum())


# Principal components, exact, of rows that come in blocks; sparse rows are centred without being made dense.
#
# Few columns: the d x d covariance is summed in float64 over the blocks and its top eigenvectors are taken (8 d^2
# bytes). Many columns: the same eigenvectors by Lanczos iteration to machine precision, where the covariance is only
# ever applied to a vector (sparse: the float64 blocks are held, 12 bytes a value; dense: the rows are read again each
# time). The start vector is fixed and each component's largest loading is made positive, so the result is a function
# of the input.

# Sparse products are cheap, so Lanczos takes over early; with dense rows on disk one pass is worth a large matrix.
_MAX_COVARIANCE_COLUMNS = {True: 2048, False: 8192}  # by whether the rows are sparse
_FEW_COMPONENTS = 64  # beyond, a Lanczos basis of four times as many vectors costs more than blocks of vectors
_BESIDE, _POWERS = 32, 6  # vectors beside the wanted ones, and products, of the subspace iteration
_RANK_SHARE = 1e-10  # of the first component's variance: what has less is rounding, and scaled up it would be noise

Stream = Callable[[], Iterable[AttributeRows]]  # gives the rows from the start, every time it is called


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
        if sparse.issparse(block):
            return block.astype(np.float64) @ self.loadings - self.mean @ self.loadings
        return (block - self.mean) @ self.loadings


def fit_components(stream: Stream, num_components: int) -> Components:
    """The first principal components of the streamed rows, falling; no more than the rank, and at least one.

    >>> rows = np.array([[0, 0], [1, 2], [2, 4]], np.float32)
    >>> fit_components(lambda: [rows], 1).loadings.round(3).ravel().tolist()
    [0.447, 0.894]
    """
    mean, num_rows, is_sparse = _mean(stream)
    squares = sum(_centred_squares(block, mean) for block in stream())
    num_columns = len(mean)
    num_components = min(num_components, num_columns)
    if num_columns <= _MAX_COVARIANCE_COLUMNS[is_sparse] or 4 * num_components >= num_columns:
        values, vectors = _by_covariance(stream, mean, num_components)
    elif squares > 8 * np.finfo(float).eps * num_rows * (mean @ mean):
        find = _by_lanczos if num_components <= _FEW_COMPONENTS else _by_blocks
        values, vectors = find(stream, mean, num_components, is_sparse)
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


def _by_blocks(stream: Stream, mean: NDArray[np.float64], q: int, is_sparse: bool) -> tuple[Any, Any]:
    """About the same eigenpairs, where many are wanted: by subspace iteration, which applies the matrix to a block.

    The first are exact to several digits, the last ones are mixtures of what lies beside them in the spectrum.
    """
    held = [block.astype(np.float32) for block in stream()] if is_sparse else None
    image = np.random.default_rng(0).standard_normal((len(mean), q + _BESIDE)).astype(np.float32)
    for _ in range(_POWERS):
        basis, _ = np.linalg.qr(image)
        shift, image = (mean @ basis).astype(np.float32), np.zeros_like(basis)
        for block in stream() if held is None else held:
            scores = block @ basis - shift  # the centred rows times every vector
            image += block.T @ scores - np.outer(mean, scores.sum(axis=0)).astype(np.float32)
    values, turn = np.linalg.eigh(basis.T.astype(np.float64) @ image)
    return values[-q:], basis @ turn[:, -q:]


@dataclass(frozen=True, eq=False)
class Singles:
    """Columns one by one: (value clipped to `low` .. `high` - centre) * factor, or a curve; 0 at gaps."""

    columns: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    factor: NDArray[np.float64]
    curves: dict[int, Curve]  # by place among `columns`
    gaps: dict[int, list[int]]  # of a flag's place: the places of the columns whose gaps it flags; or see below

    @property
    def width(self) -> int:
        return len(self.columns)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        """The features of a block of rows, (rows, width)."""
        raw = block[:, self.columns]
        values = np.asarray(raw.toarray() if sparse.issparse(raw) else raw, np.float64)
        out = (np.clip(values, self.low, self.high) - self.centre) * self.factor
        _follow(self.curves, values, out)
        for flag, places in self.gaps.items():  # of ~column: where this flag says that the node's type has none
            is_gap = values[:, flag] if flag >= 0 else np.asarray(block[:, ~flag]) == NO_COLUMN
            out[np.ix_(np.flatnonzero(is_gap), np.array(places))] = 0.0
        return out


@dataclass(frozen=True, eq=False)
class Rotated:
    """A group of columns, projected on principal components, each times its `factor`."""

    columns: NDArray[np.int64]
    how: str  # what is done with values first
    ends: NDArray[np.float64]  # of columns of two values: the one beside 0
    components: Components
    factor: NDArray[np.float64]

    @property
    def width(self) -> int:
        return len(self.factor)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        chosen = block if len(self.columns) == block.shape[1] else block[:, self.columns]  # a copy of all is spared
        values = group_values(self.how, self.ends)(chosen)
        return self.components.project(values) * self.factor


@dataclass(frozen=True, eq=False)
class Plain:
    """All columns: rescaled or mapped along curves, projected where there are components, then shifted and scaled."""

    scale: str
    centre: NDArray[np.float64]
    divisor: NDArray[np.float64]  # infinite for a constant column, which becomes 0
    curves: dict[int, Curve] = field(default_factory=dict)
    components: Components | None = None

    @property
    def width(self) -> int:
        return len(self.divisor)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        out = rescale_block(block, self.scale)
        if self.curves:
            values = out.toarray() if sparse.issparse(out) else out
            _follow(self.curves, values, out := np.empty(values.shape, np.float32))
        if self.components is not None:
            out = self.components.project(out)
        dense = np.asarray(out.toarray() if sparse.issparse(out) else out, np.float32)
        return (dense - self.centre) / self.divisor


Part = Singles | Rotated | Plain
_PARTS: dict[str, type[Any]] = {part.__name__: part for part in (Singles, Rotated, Plain)}


def _follow(curves: Mapping[int, Curve], values: NDArray[Any], out: NDArray[Any]) -> None:
    for place, (knots, scores) in curves.items():
        out[:, place] = np.interp(values[:, place], knots, scores)


def group_values(how: str, ends: NDArray[np.float64]) -> Callable[[AttributeRows], AttributeRows]:
    """A function that prepares blocks of a group for projection; it keeps 0 at 0 and sparse sparse.

    "presence" is the share of a column's value beside 0, "log1p" log(1 + |value|) with the sign of the value.
    """

    def change(values: NDArray[Any], columns: Any) -> NDArray[Any]:
        if how == "presence":
            return np.clip(values / ends[columns], 0.0, 1.0)  # a share stands for a gap, and stays a share
        if how == "log1p":
            return np.copysign(np.log1p(np.abs(values)), values)  # rows outside the sample may be negative
        return values

    def change_block(block: AttributeRows) -> AttributeRows:
        if sparse.issparse(block):
            data = change(block.data, block.indices)
            return sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
        return change(block, slice(None))

    return change_block


def is_by_value(parts: tuple[Part, ...]) -> bool:
    """Whether a row has the same bits whatever rows it is fitted or made with: nothing is ranked or projected."""
    plain = (part for part in parts if isinstance(part, Plain))
    is_simple = all(part.components is None and not part.curves for part in plain)
    return is_simple and not any(isinstance(part, Rotated) for part in parts)


def apply_parts(
    parts: tuple[Part, ...], x: Attributes, room: Callable[..., NDArray[Any]] = np.empty
) -> NDArray[np.float32]:
    """The features (n, q) of all rows, block by block, in parallel where attributes are dense.

    Blocks are the same whatever the threads, and so are the bits of products. room(shape, dtype) makes the array.
    """
    out, rows = room((x.shape[0], sum(part.width for part in parts)), np.float32), _sliceable(x)

    def fill(which: slice) -> None:
        block = rescale_block(rows[which], "none")
        out[which] = np.concatenate([out[which, :0], *(part.apply(block) for part in parts)], axis=1)

    if not isinstance(x, SparseRows) and is_by_value(parts):
        run_in_slices(len(out), fill, size=block_rows(x.shape[1]) // 16)
    else:
        threads = 1 if isinstance(x, SparseRows) else min(numba.get_num_threads(), MOST_BLOCKS)
        with threadpool_limits(limits=1, user_api="blas"):
            share_parts(threads, _slices(x), lambda _, which: fill(which))
    return out


@dataclass(frozen=True, eq=False)
class FittedTransform:
    """The parts, the names of the attributes that they take (empty: they had none), and the means of these."""

    parts: tuple[Part, ...]
    attributes: tuple[str, ...]
    means: NDArray[np.float64]

    def apply(
        self, x: Attributes, columns: tuple[str, ...] = (), room: Callable[..., NDArray[Any]] = np.empty
    ) -> NDArray[np.float32]:
        """The features (n, q) of rows of attributes; `columns` are their names; room(shape, dtype) makes the array."""
        return apply_parts(self.parts, self._aligned(x, columns), room)

    def is_made_in_seconds(self, x: Attributes, columns: tuple[str, ...]) -> bool:
        """Whether the features of these attributes are as soon made again, to the bit, as they would be read."""
        is_same = columns == self.attributes or not (columns and self.attributes)
        is_ranked = any(isinstance(part, Plain) and part.curves for part in self.parts)
        if isinstance(x, SparseRows) or not is_same or is_ranked:
            return False
        width = sum(part.width for part in self.parts)
        return is_by_value(self.parts) or 4 * width >= x.itemsize * x.shape[1]  # components are kept where they are few

    def _aligned(self, x: Attributes, columns: tuple[str, ...]) -> Attributes:
        """The attributes that the parts take, in their order."""
        if columns == self.attributes or not (columns and self.attributes):
            if x.shape[1] != len(self.means):
                raise ValueError(
                    f"this graph has {x.shape[1]:,} attributes and the trained one {len(self.means):,}: without names "
                    "on both sides they must be the same columns in the same order"
                )
            return x
        place = {name: k for k, name in enumerate(columns)}
        missing = [name for name in self.attributes if name not in place]
        new = [name for name in columns if name not in {*self.attributes}]
        if len(missing) == len(self.attributes):
            raise ValueError(
                f"this graph has none of the attributes of the trained one: {_some(self.attributes)}; it has "
                f"{_some(columns)}"
            )
        for names, what in (
            (missing, "are missing, and taken as gaps"),
            (new, "were not there in training, and are not used"),
        ):
            if names:
                log.warning("%s attributes %s: %s", f"{len(names):,}", what, _some(names))
        order = np.array([place.get(name, 0) for name in self.attributes])
        absent = np.array([name not in place for name in self.attributes])
        if isinstance(x, SparseRows):
            return SparseRows.of(x.csr()[:, order] @ sparse.diags_array((~absent).astype(np.float32)))
        out = np.asarray(x)[:, order]
        bases = {_base(name) for name in columns if not name.endswith(GAP_SUFFIX)}
        for k in np.flatnonzero(absent):
            name = self.attributes[k]
            is_value = _base(name) != name and _base(name) in bases  # a category that no row of this graph has
            out[:, k] = 0.0 if is_value else self.means[k]
        return out


def _base(name: str) -> str:
    """The column of the table that an attribute was made from.

    >>> _base("section=libs"), _base("size is null"), _base("source#3")
    ('section', 'size', 'source')
    """
    return re.sub(VECTOR, r"\1", name.removesuffix(GAP_SUFFIX)).split("=")[0].split("#")[0]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_IN_MESSAGE]) + (", ..." if len(names) > _NAMES_IN_MESSAGE else "")


def fitted_to_bytes(fitted: FittedTransform) -> bytes:
    """The transform as a safetensors file."""
    arrays: dict[str, NDArray[Any]] = {"means": fitted.means}
    head = []
    for number, part in enumerate(fitted.parts):
        found = dict(_fields(part))
        large = {name: np.ascontiguousarray(value) for name, value in found.items() if isinstance(value, np.ndarray)}
        arrays |= {f"{number}.{name}": value for name, value in large.items()}
        head.append({"part": type(part).__name__} | {k: value for k, value in found.items() if k not in large})
    about = {"parts": head, "attributes": fitted.attributes}
    return save(arrays, {"fitted": json.dumps(about)})  # of several entries the order, and so the bytes, would vary


def _fields(part: Part) -> Iterator[tuple[str, Any]]:
    """The fields of a part; those of its components, and each curve, under dotted names."""
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, Components):
            yield from ((f"components.{inner.name}", getattr(value, inner.name)) for inner in fields(value))
        elif entry.name == "curves":
            for place, (knots, scores) in value.items():
                yield from ((f"curves.{place}.knots", knots), (f"curves.{place}.scores", scores))
        elif value is not None:
            yield entry.name, value


def fitted_from_bytes(data: bytes) -> FittedTransform:
    """The transform of such a file; an error of any kind where it could not transform a row."""
    arrays = load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fitted"])
    parts = []
    for number, head in enumerate(about["parts"]):
        found = head | {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith(f"{number}.")}
        parts.append(_part(found))
    made = FittedTransform(tuple(parts), typed(about["attributes"], tuple[str, ...]), arrays["means"])
    if made.means.ndim != 1 or len(made.attributes) not in (0, len(made.means)):
        raise ValueError(f"{len(made.attributes)} attributes have means of shape {made.means.shape}")
    made.apply(np.zeros((1, len(made.means)), np.float32))
    return made


def _part(found: dict[str, Any]) -> Part:
    """The part of these fields, named as `_fields` does."""
    kind = _PARTS[found.pop("part")]
    nested = {name: found.pop(name) for name in [*found] if "." in name}
    inner = {n.removeprefix("components."): v for n, v in nested.items() if n.startswith("components.")}
    if inner:
        found["components"] = Components(**inner)
    if "curves" in {entry.name for entry in fields(kind)}:
        places = sorted({int(name.split(".")[1]) for name in nested if name.startswith("curves.")})
        found["curves"] = {p: (nested[f"curves.{p}.knots"], nested[f"curves.{p}.scores"]) for p in places}
    if "gaps" in found:
        found["gaps"] = {int(place): list(others) for place, others in found["gaps"].items()}
    made: Part = kind(**found)
    return made
