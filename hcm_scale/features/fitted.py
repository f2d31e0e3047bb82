"""A transform whose numbers are settled: rows of the same attributes in, features out, as those of the rows it is from.

A transform is a list of parts, each of which makes some of the features of a block of rows:

| part    | what it does with a row                                                          | made by        |
|---------|----------------------------------------------------------------------------------|----------------|
| Singles | moves and stretches columns one by one, or follows a curve                       | auto_fit.py    |
| Rotated | projects a group of columns on components                                        | auto_fit.py    |
| Plain   | rescales all columns, then projects them if asked, then moves and stretches them | transform.py   |

`to_bytes` and `from_bytes` keep the parts as one safetensors file: arrays named PART.FIELD, and in its head the fields
that are no arrays. `Fitted.apply` finds its columns by name where rows have names: columns that it does not know are
left out, and those that it misses hold what they held in the middle.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy import sparse

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.features.pca import Components
from hcm_scale.features.rescale import AttributeRows, blocks, rescale_block
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

Curve = tuple[NDArray[np.float32], NDArray[np.float32]]  # rising values, and the score of each
_NAMED = 5  # columns named in a line of the log


@dataclass(frozen=True, eq=False)
class Singles:
    """Columns kept one by one: (value, cut to `low` .. `high`, - centre) * factor, or a curve; 0 at gaps."""

    columns: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    factor: NDArray[np.float64]
    curves: dict[int, Curve]  # by place among `columns`
    gaps: dict[int, list[int]]  # of a flag's place: the places of the columns whose gaps it flags

    @property
    def width(self) -> int:
        return len(self.columns)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        """The features of a block of rows, (rows, width)."""
        raw = block[:, self.columns]
        values = np.asarray(raw.toarray() if sparse.issparse(raw) else raw, np.float64)
        out = (np.clip(values, self.low, self.high) - self.centre) * self.factor
        _follow(self.curves, values, out)
        for flag, places in self.gaps.items():
            out[np.ix_(np.flatnonzero(values[:, flag]), np.array(places))] = 0.0
        return out


@dataclass(frozen=True, eq=False)
class Rotated:
    """A group of columns reduced to principal components, each times its `factor`."""

    columns: NDArray[np.int64]
    how: str  # what is done with values first
    ends: NDArray[np.float64]  # of columns of two values: the one beside 0
    components: Components
    factor: NDArray[np.float64]

    @property
    def width(self) -> int:
        return len(self.factor)

    @property
    def explained(self) -> list[float]:
        """Each component's share of the variance."""
        shares = self.components.variances / (self.components.total_variance or 1.0)
        return [round(float(share), 6) for share in shares]

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        values = group_values(self.how, self.ends)(block[:, self.columns])
        return self.components.project(values) * self.factor


@dataclass(frozen=True, eq=False)
class Plain:
    """All columns rescaled (rescale.py) or along curves, reduced where there are components, then moved, stretched."""

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
    """What is done with the values of a group: a function of blocks that keeps 0 at 0 and sparse sparse."""

    def presence(values: NDArray[Any], columns: Any) -> NDArray[Any]:
        return np.clip(values / ends[columns], 0.0, 1.0)  # a share stands for a gap, and stays a share

    def log1p(values: NDArray[Any], columns: Any) -> NDArray[Any]:
        return np.copysign(np.log1p(np.abs(values)), values)  # rows outside the sample may be negative

    valuewise = {"presence": presence, "log1p": log1p, "as they are": lambda values, columns: values}[how]

    def whole(block: AttributeRows) -> AttributeRows:
        if sparse.issparse(block):
            data = valuewise(block.data, block.indices)
            return sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
        return valuewise(block, slice(None))

    return whole


def apply_parts(parts: tuple[Part, ...], x: Attributes) -> NDArray[np.float32]:
    """The features (n, q) of all rows, block by block."""
    out = np.empty((x.shape[0], sum(part.width for part in parts)), np.float32)
    for which, block in blocks(x):
        out[which] = np.concatenate([part.apply(block) for part in parts], axis=1)
    return out


@dataclass(frozen=True, eq=False)
class Fitted:
    """The parts of a transform, the names of the attributes it takes (empty: they had none), and their means."""

    parts: tuple[Part, ...]
    attributes: tuple[str, ...]
    means: NDArray[np.float64]

    def apply(self, x: Attributes, columns: tuple[str, ...] = ()) -> NDArray[np.float32]:
        """The features (n, q) of rows of attributes; `columns` are their names."""
        return apply_parts(self.parts, self._aligned(x, columns))

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
        if len(missing) == len(self.attributes):
            raise ValueError(
                f"this graph has none of the attributes of the trained one: {_some(self.attributes)}; it has "
                f"{_some(columns)}"
            )
        _tell("are missing, and taken as gaps", missing)
        _tell("were not there in training, and are not used", [n for n in columns if n not in {*self.attributes}])
        return self._chosen(x, place)

    def _chosen(self, x: Attributes, place: Mapping[str, int]) -> Attributes:
        bases = {_base(name) for name in place if not name.endswith(GAP_SUFFIX)}
        order = np.array([place.get(name, 0) for name in self.attributes])
        absent = np.array([name not in place for name in self.attributes])
        if isinstance(x, SparseRows):
            chosen = x.csr()[:, order] @ sparse.diags_array((~absent).astype(np.float32))
            return SparseRows.of(chosen)
        out = np.asarray(x)[:, order]
        for k in np.flatnonzero(absent):
            name = self.attributes[k]
            nobody = _base(name) != name and _base(name) in bases  # has this value, or a gap: the column is there
            out[:, k] = 0.0 if nobody else self.means[k]
        return out


def _base(name: str) -> str:
    """The column of a table that an attribute is of.

    >>> _base("section=libs"), _base("size is null"), _base("source#3")
    ('section', 'size', 'source')
    """
    return name.removesuffix(GAP_SUFFIX).split("=")[0].split("#")[0]


def _tell(what: str, names: list[str]) -> None:
    if names:
        log.warning("%s attributes %s: %s", f"{len(names):,}", what, _some(names))


def _some(names: Any) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def to_bytes(fitted: Fitted) -> bytes:
    """The transform as a safetensors file."""
    arrays: dict[str, NDArray[Any]] = {"means": fitted.means}
    head: list[dict[str, Any]] = []
    for number, part in enumerate(fitted.parts):
        plain: dict[str, Any] = {"part": type(part).__name__}
        for name, value in _fields(part):
            if isinstance(value, np.ndarray):
                arrays[f"{number}.{name}"] = np.ascontiguousarray(value)
            else:
                plain[name] = value
        head.append(plain)
    return save(arrays, {"parts": json.dumps(head), "attributes": json.dumps(fitted.attributes)})


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


def from_bytes(data: bytes) -> Fitted:
    """The inverse of `to_bytes`."""
    arrays = load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size])["__metadata__"]
    parts = []
    for number, head in enumerate(json.loads(about["parts"])):
        found = head | {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith(f"{number}.")}
        parts.append(_part(found))
    return Fitted(tuple(parts), tuple(json.loads(about["attributes"])), arrays["means"])


def _part(found: dict[str, Any]) -> Part:
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
