"""Table columns to attribute columns: first a survey of the whole table, then a fixed encoding that encodes any batch.

| column                         | becomes                                  | nulls                        |
|--------------------------------|------------------------------------------|------------------------------|
| number, boolean                | itself, float32                          | the mean of the values there |
| text with few distinct values  | one 0/1 column a value, `section=libs`   | a column of their own        |
| text with many                 | `hash_buckets` 0/1 columns, `source#17`  | a column of their own        |
| nothing but nulls              | left out                                 |                              |

The hash is xxh3 of the UTF-8 bytes: the same bucket on every machine. Memory: one batch, and at most `max_categories`
values a column. Encodings are plain values and are kept in the manifest.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from hcm_scale.ingest.policy import Offenders

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NumberEncoding:
    """A numeric column: nulls get `mean`, values that are not finite get `replacement`."""

    name: str
    mean: float
    replacement: float
    nulls: int
    nonfinite: int
    method: str = "number"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        """Writes a batch of the column into `out` (rows, 1)."""
        values = _floats(column)
        values[~_finite(values)] = self.replacement
        out[:, 0] = values
        out[_nulls(column), 0] = self.mean


@dataclass(frozen=True)
class CategoryEncoding:
    """A text column: one column a category, or a column a bucket; with `own_null` one more for nulls."""

    name: str
    categories: tuple[str, ...]
    buckets: int
    own_null: bool
    nulls: int

    @property
    def method(self) -> str:
        return "hashed" if self.buckets else "one-hot"

    @property
    def names(self) -> tuple[str, ...]:
        values = [f"{self.name}={c}" for c in self.categories] or [f"{self.name}#{b}" for b in range(self.buckets)]
        return (*values, *([f"{self.name} is null"] if self.own_null else []))

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        """Writes a batch of the column into `out` (rows, len(names)), which is zero."""
        encoded = pc.dictionary_encode(_texts(column))
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        place = np.array([*map(self._place, encoded.dictionary.to_pylist()), len(self.names) - 1], np.int64)
        out[np.arange(len(column)), place[codes]] = 1.0

    def _place(self, value: str) -> int:
        return bucket_of(value, self.buckets) if self.buckets else self.categories.index(value)


@dataclass(frozen=True)
class EmptyEncoding:
    """A column without one usable value: nothing is written for it."""

    name: str
    nulls: int = 0
    names: tuple[str, ...] = ()
    method: str = "left out"

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        pass


Encoding = NumberEncoding | CategoryEncoding | EmptyEncoding


def bucket_of(value: str, buckets: int) -> int:
    """The bucket of a text, the same everywhere.

    >>> bucket_of("libs", 32) == bucket_of("libs", 32) < 32
    True
    """
    return xxhash.xxh3_64_intdigest(value.encode()) % buckets


def describe(encoding: Encoding) -> dict[str, Any]:
    """A encoding as JSON, for the manifest."""
    return {key: value for key, value in {**asdict(encoding), "method": encoding.method}.items() if key != "names"}


class NumberSurvey:
    """Counts nulls and values that are not finite, and adds up the rest."""

    def __init__(self, name: str, bad: Offenders):
        self.name, self._bad = name, bad
        self._nulls = self._nonfinite = self._rows = 0
        self._sum = 0.0

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch; `rows` are its row numbers in the table, for messages."""
        values, nulls = _floats(column), _nulls(column)
        bad = ~_finite(values) & ~nulls
        self._bad.add(bad, lambda i: f"row {rows[i]:,} column {self.name!r} = {values[i]}")
        self._nulls += int(nulls.sum())
        self._nonfinite += int(bad.sum())
        self._rows += len(values)
        self._sum += float(values[~nulls & ~bad].sum())

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """What to do with the column; `added_rows` more nulls will come."""
        present = self._rows - self._nulls - self._nonfinite
        if not present:
            return EmptyEncoding(self.name)
        mean = self._sum / present
        return NumberEncoding(
            self.name, mean, mean if nonfinite == "mean" else 0.0, self._nulls + added_rows, self._nonfinite
        )


class CategorySurvey:
    """Collects the distinct values of a text column, until there are more than can have a column each."""

    def __init__(self, name: str, max_categories: int, hash_buckets: int):
        self.name, self._limit, self._buckets = name, max_categories, hash_buckets
        self._nulls = 0
        self._values: set[str] = set()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        texts = _texts(column)
        self._nulls += texts.null_count
        if len(self._values) <= self._limit:
            self._values.update(pc.unique(texts.drop_null()).to_pylist()[: self._limit + 1])

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        if not self._values:
            return EmptyEncoding(self.name)
        few = len(self._values) <= self._limit
        nulls = self._nulls + added_rows
        categories = tuple(sorted(self._values)) if few else ()
        return CategoryEncoding(self.name, categories, 0 if few else self._buckets, nulls > 0, nulls)


Survey = NumberSurvey | CategorySurvey


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type is encoded as a number."""
    t = pa.types
    return t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind)


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


def _texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string())


def _floats(column: pa.Array) -> NDArray[np.float64]:
    """Values as float64, NaN where null; always a fresh array."""
    kind = pa.uint8() if pa.types.is_boolean(column.type) else column.type
    values = column.cast(kind).cast(pa.float64(), safe=False).fill_null(math.nan)
    return np.array(values.to_numpy(zero_copy_only=False), np.float64)


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _finite(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a value is finite as float32, which is what it will be stored as."""
    return np.abs(values) <= _FLOAT32_MAX
