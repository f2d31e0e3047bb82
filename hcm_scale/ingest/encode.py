"""One pass over a table, column by column, from which its encodings follow (encode.py).

Memory: one batch, at most `max_categories` values a text column, and 512 KiB a column to count distinct values: the
smallest 65,536 hashes are kept, which is exact up to that many, and beyond it their density tells the number to about
half a per cent.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.ingest.policy import Offenders
from hcm_scale.ingest.text_formats import FORMAT_EXAMPLES, FormatGuess

# ----------------------------------------------------------------------------
# Table columns to attribute columns: fixed encodings, made by a survey of the whole table (surveys.py), of any batch.
#
#| column                         | becomes                                    | where it is null                      |
#|--------------------------------|--------------------------------------------|---------------------------------------|
#| number, boolean                | itself, float32                            | the mean, and 1 in `NAME is null`     |
#| date, time                     | days since the earliest                    | likewise                              |
#| text with few distinct values  | one 0/1 column a value, `section=libs`     | the value's share, and 1 in `NAME is  |
#|                                |                                            | null`                                 |
#| text with many                 | `hash_buckets` 0/1 columns, `source#17`    | likewise                              |
#| text, nearly all distinct      | left out, with a warning                   |                                       |
#| nothing but nulls              | left out                                   |                                       |
#
# A table that is read by the encodings of an earlier one (known.py) may hold what that did not: a text that was not
# among the values is a gap, and a gap in a column that had none is the mean, or the shares, without a flag.
#
# So a row with a gap lies amidst the others, and one flag, whose name ends in ` is null`, says that there is a gap:
# only columns with gaps have one. The hash is xxh3 of the UTF-8 bytes: the same bucket on every machine. Encodings
# are plain values and are kept in the manifest.


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


log = logging.getLogger(__name__)

_NEAR_UNIQUE = 0.5  # more distinct values than this share of the rows that have one
_KEPT_HASHES = 1 << 16


@dataclass(frozen=True)
class TextRules:
    """How many values may have a column each, how many buckets more of them share, which columns always stay."""

    max_categories: int
    hash_buckets: int
    kept: frozenset[str] = frozenset()


class NumberSurvey:
    """Counts nulls and values that are not finite, and adds up the rest; of dates it finds the earliest."""

    def __init__(self, name: str, bad: Offenders, place: Callable[[int], str] = "row {:,}".format, dates: bool = False):
        self.name, self._bad, self._place, self._dates = name, bad, place, dates
        self._nulls = self._nonfinite = self._rows = 0
        self._sum, self._low = 0.0, np.inf
        self._distinct = Distinct()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch; `rows` are its row numbers in the table, which messages tell as `place` does."""
        values, nulls = floats(column), null_mask(column)
        bad = ~is_finite(values) & ~nulls
        self._bad.add(bad, lambda i: f"{self._place(int(rows[i]))} column {self.name!r} = {values[i]}")
        good = values[~nulls & ~bad]
        self._nulls += int(nulls.sum())
        self._nonfinite += int(bad.sum())
        self._rows += len(values)
        self._sum += float(good.sum())
        self._low = min(self._low, float(good.min(initial=np.inf)))
        self._distinct.add(_mixed(good))

    @property
    def num_nonfinite(self) -> int:
        """Values that are there and not finite."""
        return self._nonfinite

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """What to do with the column; `added_rows` more nulls will come."""
        present = self._rows - self._nulls - self._nonfinite
        if not present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        origin = self._low if self._dates else 0.0
        mean = self._sum / present - origin
        filler, method = mean if nonfinite == "mean" else 0.0, "date" if self._dates else "number"
        seen = self._distinct.count(), self._nulls
        return NumberEncoding(self.name, mean, filler, self._nulls + added_rows, self._nonfinite, origin, method, *seen)


class CategorySurvey:
    """Counts the values of a text column while they are few, their buckets, and how many distinct ones there are."""

    def __init__(self, name: str, rules: TextRules):
        self.name, self._rules = name, rules
        self._nulls = self._present = 0
        self._values: Counter[str] = Counter()
        self._buckets = np.zeros(rules.hash_buckets, np.int64)
        self._distinct, self._looks = Distinct(), FormatGuess()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch."""
        values = texts(column)
        self._nulls += values.null_count
        self._present += len(values) - values.null_count
        counted = pc.value_counts(values.drop_null())
        names, counts = counted.field("values").to_pylist(), counted.field("counts").to_numpy()
        if len(self._values) <= self._rules.max_categories:
            self._values.update(dict(zip(names, counts.tolist(), strict=True)))
        hashes = np.array([hash_of(name) for name in names], np.uint64)
        np.add.at(self._buckets, (hashes % np.uint64(len(self._buckets))).astype(np.int64), counts)
        self._distinct.add(hashes)
        self._looks.add(counted.field("values"), counts)

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """What to do with the column; `added_rows` more nulls will come."""
        if not self._present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        few = len(self._values) <= self._rules.max_categories
        if not few and self.name not in self._rules.kept and self._distinct.count() > _NEAR_UNIQUE * self._present:
            return self._left_out()
        categories, nulls = tuple(sorted(self._values)) if few else (), self._nulls + added_rows
        counts = [self._values[name] for name in categories] if few else self._buckets.tolist()
        shares = tuple(count / self._present for count in counts)
        buckets, distinct = (0, len(categories)) if few else (len(self._buckets), self._distinct.count())
        seen = distinct, self._nulls, self._looks.settled(), self._looks.mostly()
        return CategoryEncoding(self.name, categories, buckets, shares, nulls, *seen)

    def _left_out(self) -> Encoding:
        distinct = self._distinct.count()
        about, looks = "" if distinct <= _KEPT_HASHES else "about ", self._looks.settled()
        mostly = self._looks.mostly()
        hint = f"if these are {looks}, write them as {FORMAT_EXAMPLES[looks]}; " if looks else mostly and f"{mostly}; "
        log.warning(
            "column %r is left out: it has %s%s distinct values in %s rows, too many to tell rows alike by; "
            "%sgraph.categorical=[%s] keeps it, hashed, graph.exclude=[%s] says that it is to go",
            *(self.name, about, f"{distinct:,}", f"{self._present:,}", hint, self.name, self.name),
        )
        return EmptyEncoding(self.name, distinct, self._nulls, looks, mostly)


class Distinct:
    """How many distinct hashes were added, exact up to 65,536: the smallest are kept, and their density counts all.

    >>> seen = Distinct()
    >>> seen.add(np.array([5, 9, 5], np.uint64))
    >>> seen.count()
    2
    """

    def __init__(self) -> None:
        self._smallest = np.zeros(0, np.uint64)
        self._waiting: list[NDArray[np.uint64]] = []

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Takes some more hashes, uniform over 64 bits."""
        if len(self._smallest) > _KEPT_HASHES:
            hashes = hashes[hashes < self._smallest[-1]]
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) > _KEPT_HASHES:
            self._settle()

    def count(self) -> int:
        """The number of distinct hashes so far."""
        self._settle()
        if len(self._smallest) <= _KEPT_HASHES:
            return len(self._smallest)
        return round(_KEPT_HASHES * 2.0**64 / float(self._smallest[-1]))

    def _settle(self) -> None:
        """Sorts in what waits; np.sort is many times faster than np.unique."""
        merged = np.sort(np.concatenate([self._smallest, *self._waiting]))
        is_first = np.ones(len(merged), np.bool_)
        is_first[1:] = merged[1:] != merged[:-1]
        self._smallest, self._waiting = merged[is_first][: _KEPT_HASHES + 1], []


def _mixed(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """64 bits of each number, uniform: what SplitMix64 ends with."""
    bits = (values + 0.0).view(np.uint64)  # -0 is 0
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


Survey = NumberSurvey | CategorySurvey
