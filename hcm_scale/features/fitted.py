"""A transform of attributes that was fitted to one graph, kept to be applied to the rows of another.

It is a list of parts (parts.py). `to_bytes` and `from_bytes` keep them as one safetensors file: arrays named
PART.FIELD, and in its head the fields that are no arrays. `Fitted.apply` finds its columns by name where rows have
names: columns that it does not know are left out, and those that it misses hold what they held in the middle.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy import sparse

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.features.parts import Part, Plain, Rotated, Singles, apply_parts
from hcm_scale.features.pca import Components
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

_PARTS: dict[str, type[Any]] = {part.__name__: part for part in (Singles, Rotated, Plain)}
_NAMED = 5  # columns named in a line of the log


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


def from_bytes(data: bytes) -> Fitted:
    """The inverse of `to_bytes`."""
    arrays = load(data)
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fitted"])
    parts = []
    for number, head in enumerate(about["parts"]):
        found = head | {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith(f"{number}.")}
        parts.append(_part(found))
    return Fitted(tuple(parts), tuple(about["attributes"]), arrays["means"])


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
