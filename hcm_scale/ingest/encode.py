"""Table columns to attribute columns: fixed encodings, made by a survey of the whole table (surveys.py), of any batch.

| column                         | becomes                                    | where it is null                      |
|--------------------------------|--------------------------------------------|---------------------------------------|
| number, boolean                | itself, float32                            | the mean, and 1 in `NAME is null`     |
| date, time                     | days since the earliest                    | likewise                              |
| text with few distinct values  | one 0/1 column a value, `section=libs`     | the value's share, and 1 in `NAME is  |
|                                |                                            | null`                                 |
| text with many                 | `hash_buckets` 0/1 columns, `source#17`    | likewise                              |
| text, nearly all distinct      | left out, with a warning                   |                                       |
| nothing but nulls              | left out                                   |                                       |

A table that is read by the encodings of an earlier one (known.py) may hold what that did not: a text that was not among
the values is a gap, and a gap in a column that had none is the mean, or the shares, without a flag.

So a row with a gap lies amidst the others, and one flag, whose name ends in ` is null`, says that there is a gap: only
columns with gaps have one. The hash is xxh3 of the UTF-8 bytes: the same bucket on every machine. Encodings are plain
values and are kept in the manifest.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from hcm_scale.base.names import GAP_SUFFIX

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True)
class NumberEncoding:
    """A column of numbers or dates: less `origin`; nulls get `mean`, values that are not finite get `replacement`."""

    name: str
    mean: float
    replacement: float
    nulls: int
    nonfinite: int
    origin: float = 0.0  # of dates: the earliest, in days since 1970
    method: str = "number"
    distinct: int = 0
    gaps: int = 0  # rows of the table without a value; `nulls` counts added rows too

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *([self.name + GAP_SUFFIX] if self.nulls else []))

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        """Writes a batch of the column into `out` (rows, len(names)), which is zero."""
        values, empty = floats(column) - self.origin, null_mask(column)
        values[~is_finite(values)] = self.replacement
        out[:, 0] = values
        out[empty] = (self.mean, *([1.0] if self.nulls else []))


@dataclass(frozen=True)
class CategoryEncoding:
    """A text column: one column a category, or a column a bucket; with nulls one more, and `shares` for their rows."""

    name: str
    categories: tuple[str, ...]
    buckets: int
    shares: tuple[float, ...]  # of the values that are there
    nulls: int
    distinct: int = 0
    gaps: int = 0
    looks: str = ""  # like numbers or dates, which it was not read as
    mostly: str = ""  # where nearly all values look like numbers: how many, and the first that does not

    @property
    def method(self) -> str:
        return "hashed" if self.buckets else "one-hot"

    @property
    def names(self) -> tuple[str, ...]:
        values = [f"{self.name}={c}" for c in self.categories] or [f"{self.name}#{b}" for b in range(self.buckets)]
        return (*values, *([self.name + GAP_SUFFIX] if self.nulls else []))

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        """Writes a batch of the column into `out` (rows, len(names)), which is zero."""
        encoded = pc.dictionary_encode(texts(column))
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        place = np.array([*map(self._place, encoded.dictionary.to_pylist()), -1], np.int64)[codes]
        has = np.flatnonzero(place >= 0)
        out[has, place[has]] = 1.0
        out[place < 0] = (*self.shares, *([1.0] if self.nulls else []))

    def _place(self, value: str) -> int:
        """The column of a value; -1 where it has none, being unknown to the survey."""
        if self.buckets:
            return bucket_of(value, self.buckets)
        return self.categories.index(value) if value in self.categories else -1


@dataclass(frozen=True)
class EmptyEncoding:
    """A column for which nothing is written: it has no usable value, or about as many (`distinct`) as rows."""

    name: str
    distinct: int = 0
    gaps: int = 0
    looks: str = ""
    mostly: str = ""
    nulls: int = 0
    names: tuple[str, ...] = ()
    method: str = "left out"

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        pass


Encoding = NumberEncoding | CategoryEncoding | EmptyEncoding


def hash_of(value: str) -> int:
    """64 bits of a text, the same everywhere."""
    return xxhash.xxh3_64_intdigest(value.encode())


def bucket_of(value: str, buckets: int) -> int:
    """The bucket of a text, the same everywhere.

    >>> bucket_of("libs", 32) == bucket_of("libs", 32) < 32
    True
    """
    return hash_of(value) % buckets


def describe(encoding: Encoding) -> dict[str, Any]:
    """An encoding as JSON, for the manifest."""
    return {key: value for key, value in {**asdict(encoding), "method": encoding.method}.items() if key != "names"}


def described(column: dict[str, Any]) -> Encoding:
    """The encoding that `describe` gave as JSON."""
    kinds: dict[str, type[Any]] = {"one-hot": CategoryEncoding, "hashed": CategoryEncoding, "left out": EmptyEncoding}
    kind = kinds.get(column["method"], NumberEncoding)
    known = {entry.name for entry in fields(kind)} - {"names"}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in column.items()}
    made: Encoding = kind(**{name: value for name, value in given.items() if name in known})
    return made


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type is encoded as a number."""
    t = pa.types
    return t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind)


def is_date(kind: pa.DataType) -> bool:
    """Whether a column of this type is encoded as days."""
    t = pa.types
    return t.is_date(kind) or t.is_timestamp(kind) or t.is_time(kind) or t.is_duration(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is encoded as categories."""
    t = pa.types
    return (
        t.is_dictionary(kind)
        or t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_string_view(kind)
        or t.is_null(kind)
    )


def texts(column: pa.Array) -> pa.Array:
    """The values as text."""
    return column.cast(pa.large_string())


def floats(column: pa.Array) -> NDArray[np.float64]:
    """Values as float64, dates in days since 1970, NaN where null; always a fresh array."""
    kind, per_day = column.type, 1
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif is_date(kind):
        per_day = 1 if pa.types.is_date32(kind) else _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = column.cast(pa.float64(), safe=False).fill_null(math.nan)
    return np.array(values.to_numpy(zero_copy_only=False), np.float64) / per_day


def null_mask(column: pa.Array) -> NDArray[np.bool_]:
    """Which rows are null."""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def is_finite(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a value is finite as float32, which is what it will be stored as."""
    return np.abs(values) <= _FLOAT32_MAX
