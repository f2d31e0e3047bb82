"""Transforms of attribute rows whose numbers have been fitted, to be applied to the rows of any graph.

A `FittedTransform` is a list of parts, each of which makes some of the features of a block of rows (fitted by auto.py):

    Singles   shifts and scales columns one by one, or maps them along a curve
    Rotated   projects a group of columns on principal components

`apply` finds columns by name where both graphs have names: unknown columns are ignored, missing ones take the mean that
they had in training. `fitted_to_bytes` stores a transform as one safetensors file: arrays are named PART.FIELD, and all
other fields are JSON in its metadata.

Rows come in blocks of about 4 million values: a plain f32 array, or a scipy CSR where the attributes are sparse, and
nothing larger than a block is made beside the result.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numba
import numpy as np
import scipy
from numpy.typing import NDArray
from safetensors.numpy import load, save
from threadpoolctl import threadpool_limits

from hcm_scale.base.files import typed
from hcm_scale.base.names import GAP_SUFFIX, NO_COLUMN, VECTOR
from hcm_scale.base.threads import run_in_slices, share_parts
from hcm_scale.features.components import AttributeRows, Components
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

Curve = tuple[NDArray[np.float32], NDArray[np.float32]]  # rising values, and the score of each
Allocator = Callable[..., NDArray[Any]]  # (shape, dtype) -> an uninitialised array

_BLOCK_VALUES = 1 << 22
MOST_BLOCKS = 16  # that are projected at the same time
_NAMES_IN_MESSAGE = 5


def row_blocks(x: Attributes) -> Iterator[AttributeRows]:
    """The rows of x in order, block by block."""
    rows = _sliceable(x)
    return (_as_block(rows[which]) for which in _slices(x))


def _sliceable(x: Attributes) -> Any:
    return x.csr() if isinstance(x, SparseRows) else x


def _as_block(rows: Any) -> AttributeRows:
    return rows.astype(np.float32, copy=False) if not isinstance(rows, np.ndarray) else np.asarray(rows, np.float32)


def _slices(x: Attributes, num_features: int = 0) -> list[slice]:
    """Blocks of rows that hold, or become, not too many values."""
    step = block_rows(max(num_features, values_per_row(x)))
    return [slice(first, min(first + step, x.shape[0])) for first in range(0, x.shape[0], step)]


def values_per_row(x: Attributes) -> int:
    """Stored values of a row, on average."""
    return len(x.indices) // max(1, x.shape[0]) if isinstance(x, SparseRows) else x.shape[1]


def block_rows(width: int) -> int:
    """Rows of a block whose rows hold `width` values."""
    return max(64, _BLOCK_VALUES // max(1, width))


@dataclass(frozen=True, eq=False)
class Singles:
    """Columns one by one: (value clipped to `low` .. `high` - centre) * factor, or a curve; 0 at gaps."""

    columns: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    factor: NDArray[np.float64]
    curves: dict[int, Curve]  # by position in `columns`
    gaps: dict[int, list[int]]  # of a flag's position: those of the columns whose gaps it flags; or see below

    @property
    def width(self) -> int:
        return len(self.columns)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        """The features of a block of rows, (rows, width)."""
        raw = block[:, self.columns]
        values = np.asarray(raw.toarray() if not isinstance(raw, np.ndarray) else raw, np.float64)
        out = (np.clip(values, self.low, self.high) - self.centre) * self.factor
        for position, (knots, scores) in self.curves.items():
            out[:, position] = np.interp(values[:, position], knots, scores)
        for flag, positions in self.gaps.items():  # of ~column: where this flag says that the node's type has none
            is_gap = values[:, flag] if flag >= 0 else np.asarray(block[:, ~flag]) == NO_COLUMN
            out[np.ix_(np.flatnonzero(is_gap), np.array(positions))] = 0.0
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


Part = Singles | Rotated
_PARTS: dict[str, type[Any]] = {part.__name__: part for part in (Singles, Rotated)}


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
        if not isinstance(block, np.ndarray):
            data = change(block.data, block.indices)
            return scipy.sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
        return change(block, slice(None))

    return change_block


def is_by_value(parts: tuple[Part, ...]) -> bool:
    """Whether a row has the same bits whatever rows it is made with: nothing is projected."""
    return not any(isinstance(part, Rotated) for part in parts)


def apply_parts(parts: tuple[Part, ...], x: Attributes, allocate: Allocator = np.empty) -> NDArray[np.float32]:
    """The features (n, q) of all rows, block by block, in parallel where attributes are dense.

    Blocks are the same whatever the threads, and so are the bits of products.
    """
    width, rows = sum(part.width for part in parts), _sliceable(x)
    out = allocate((x.shape[0], width), np.float32)

    def fill(which: slice) -> None:
        block = _as_block(rows[which])
        out[which] = np.concatenate([out[which, :0], *(part.apply(block) for part in parts)], axis=1)

    if not isinstance(x, SparseRows) and is_by_value(parts):
        run_in_slices(len(out), fill, size=block_rows(x.shape[1]) // 16)
    else:
        threads = 1 if isinstance(x, SparseRows) else min(numba.get_num_threads(), MOST_BLOCKS)
        with threadpool_limits(limits=1, user_api="blas"):
            share_parts(threads, _slices(x, width), lambda _, which: fill(which))
    return out


def needed_bytes(num_rows: int, num_columns: int, num_features: int, *, num_values: int, is_sparse: bool) -> int:
    """Of `apply_parts`: the features, and blocks of rows on their way, in float64."""
    per_row, threads = max(1, num_values // max(1, num_rows)), min(numba.get_num_threads(), MOST_BLOCKS)
    of_row = 36 * per_row + 16 * num_features if is_sparse else 20 * per_row + 8 * num_features
    in_flight = 1 if is_sparse or num_features == num_columns else threads
    return 4 * num_rows * num_features + min(num_rows, in_flight * block_rows(max(per_row, num_features))) * of_row


@dataclass(frozen=True, eq=False)
class FittedTransform:
    """The parts, the names of the attributes that they take (empty: they had none), and the means of these."""

    parts: tuple[Part, ...]
    attributes: tuple[str, ...]
    means: NDArray[np.float64]

    def apply(
        self, x: Attributes, columns: tuple[str, ...] = (), allocate: Allocator = np.empty
    ) -> NDArray[np.float32]:
        """The features (n, q) of rows of attributes; `columns` are their names."""
        return apply_parts(self.parts, self._aligned(x, columns), allocate)

    def is_made_in_seconds(self, x: Attributes, columns: tuple[str, ...]) -> bool:
        """Whether the features of these attributes are as soon made again, to the bit, as they would be read."""
        is_same = columns == self.attributes or not (columns and self.attributes)
        if isinstance(x, SparseRows) or not is_same:
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
        position, trained = {name: k for k, name in enumerate(columns)}, {*self.attributes}
        missing = [name for name in self.attributes if name not in position]
        new = [name for name in columns if name not in trained]
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
        order = np.array([position.get(name, 0) for name in self.attributes])
        absent = np.array([name not in position for name in self.attributes])
        if isinstance(x, SparseRows):
            return SparseRows.of(x.csr()[:, order] @ scipy.sparse.diags_array((~absent).astype(np.float32)))
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
        values = dict(_fields(part))
        large = {name: np.ascontiguousarray(value) for name, value in values.items() if isinstance(value, np.ndarray)}
        arrays |= {f"{number}.{name}": value for name, value in large.items()}
        head.append({"part": type(part).__name__} | {k: value for k, value in values.items() if k not in large})
    about = {"parts": head, "attributes": fitted.attributes}
    return save(arrays, {"fitted": json.dumps(about)})  # of several entries the order, and so the bytes, would vary


def _fields(part: Part) -> Iterator[tuple[str, Any]]:
    """The fields of a part; those of its components, and each curve, under dotted names."""
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, Components):
            yield from ((f"components.{inner.name}", getattr(value, inner.name)) for inner in fields(value))
        elif entry.name == "curves":
            for position, (knots, scores) in value.items():
                yield from ((f"curves.{position}.knots", knots), (f"curves.{position}.scores", scores))
        else:
            yield entry.name, value


def fitted_from_bytes(data: bytes) -> FittedTransform:
    """The transform of such a file; an error of any kind where it could not transform a row."""
    arrays = load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fitted"])
    of_part: list[dict[str, Any]] = [{} for _ in about["parts"]]
    for name, array in arrays.items():
        number, _, field = name.partition(".")
        if field:
            of_part[int(number)][field] = array
    parts = [_part(head | own) for head, own in zip(about["parts"], of_part, strict=True)]
    made = FittedTransform(tuple(parts), typed(about["attributes"], tuple[str, ...]), arrays["means"])
    if made.means.ndim != 1 or len(made.attributes) not in (0, len(made.means)):
        raise ValueError(f"{len(made.attributes)} attributes have means of shape {made.means.shape}")
    made.apply(np.zeros((1, len(made.means)), np.float32))
    return made


def _part(values: dict[str, Any]) -> Part:
    """The part of these fields, named as `_fields` does."""
    kind = _PARTS[values.pop("part")]
    nested = {name: values.pop(name) for name in [*values] if "." in name}
    if kind is Rotated:
        values["components"] = Components(**{name.removeprefix("components."): v for name, v in nested.items()})
    else:
        positions = sorted({int(name.split(".")[1]) for name in nested})
        values["curves"] = {k: (nested[f"curves.{k}.knots"], nested[f"curves.{k}.scores"]) for k in positions}
        values["gaps"] = {int(flag): list(others) for flag, others in values["gaps"].items()}
    made: Part = kind(**values)
    return made
