"""Columns of a table to attribute columns: a survey of the whole table fixes an encoding, which encodes any batch.

| column                        | becomes                                 | where it is null                           |
|-------------------------------|-----------------------------------------|--------------------------------------------|
| number, boolean               | itself, float32; large whole numbers    | the mean, and 1 in `NAME is null`          |
|                               | that differ little less the least       |                                            |
| date, time                    | days since the earliest                 | likewise                                   |
| text with few distinct values | one 0/1 column a value, `section=libs`  | the value's share, and 1 in `NAME is null` |
| text with many                | `hash_buckets` 0/1 columns, `source#17` | likewise                                   |
| text, nearly all distinct     | left out, with a warning                |                                            |
| list of floats, all as long   | its direction, `NAME[0]`, `NAME[1]` ... | the mean, and 1 in `NAME is null`          |
| nothing but nulls             | left out                                |                                            |

So a row with a gap lies amidst the others; only columns with gaps have a flag. In a later table read by the same
encodings a text that is not among the values is a gap, and a gap in a column that had none gets no flag. The hash is
xxh3 of the UTF-8 bytes, the same on every machine. Encodings are plain values, kept in the manifest.

Text whose values all have one `TextFormat` is read as the numbers or dates that it means. Text that merely looks like
numbers or dates (`1,234.56`, `03/04/2024`) stays text, since these are two things in two countries; `FormatGuess` finds
it, and the column report says how to write it, or which option says what it means.

Memory of a survey: one batch, at most `max_categories` values a text column, and 512 KiB a column to count distinct
values: the smallest 65,536 hashes, which is exact up to that many; beyond it their density gives the number to about
half a per cent.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from pyarrow import types as t

from hcm_scale.base import files
from hcm_scale.base.console import shorten
from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.ingest.policy import Columns, Offenders

log = logging.getLogger(__name__)
_WHOLE_OF_FLOAT32 = 2.0**24  # whole numbers up to here differ
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_NEAR_UNIQUE = 0.5  # more distinct values than this share of the rows that have one
_FEWEST_IDS, _ID_SHARE = 100, 0.95  # distinct whole numbers, and their share of the rows, that may well be ids
_EXAMPLES = {"numbers": "1234.56", "dates": "2024-01-31"}  # as text is read
NUM_HASHES = 1 << 16  # that are kept to count distinct values


# Whether a column of this type is encoded as a number, as days, as categories or, of floats, as vectors.


def is_number(kind: pa.DataType) -> bool:
    return t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind)


def is_date(kind: pa.DataType) -> bool:
    return t.is_date(kind) or t.is_timestamp(kind) or t.is_time(kind) or t.is_duration(kind)


def is_text(kind: pa.DataType) -> bool:
    return (
        t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_string_view(kind)
        or t.is_dictionary(kind)
        or t.is_null(kind)
    )


def is_vector(kind: pa.DataType) -> bool:
    is_list = t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)
    return is_list and t.is_floating(kind.value_type)


def texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string())


def floats(column: pa.Array) -> NDArray[np.float64]:
    """Values as float64, dates in days since 1970, NaN where null; always a fresh array."""
    kind, per_day = column.type, 1
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif is_date(kind):
        per_day = 1 if pa.types.is_date32(kind) else _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = column if pa.types.is_float64(column.type) else column.cast(pa.float64(), safe=False)
    return np.array(values.to_numpy(zero_copy_only=False), np.float64) / per_day  # nulls are NaN there


@dataclass(frozen=True)
class NumberEncoding:
    """A column of numbers or dates: less `origin`; nulls get `mean`, values that are not finite get `replacement`."""

    name: str
    mean: float
    replacement: float
    nulls: int
    nonfinite: int
    origin: float = 0.0  # of dates the earliest, in days since 1970; of whole numbers beyond float32 the least
    method: str = "number"
    distinct: int = 0
    gaps: int = 0  # rows of the table without a value; `nulls` counts added rows too

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *_flag(self, self.name + GAP_SUFFIX)

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        """Writes a batch of the column into `out` (rows, len(names)), which is zero."""
        values = floats(column) - self.origin
        out[:, 0] = np.where(np.abs(values) > _FLOAT32_MAX, self.replacement, values)
        out[np.isnan(values)] = self.mean, *_flag(self, 1.0)


def _flag(encoding: Any, value: Any) -> list[Any]:
    return [value] if encoding.nulls else []


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
    mostly: str = ""  # where nearly all values look like numbers: how many, and the first that do not

    @property
    def method(self) -> str:
        return "hashed" if self.buckets else "one-hot"

    @property
    def names(self) -> tuple[str, ...]:
        values = [f"{self.name}={c}" for c in self.categories] or [f"{self.name}#{b}" for b in range(self.buckets)]
        return *values, *_flag(self, self.name + GAP_SUFFIX)

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        encoded = pc.dictionary_encode(texts(column))
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        column_of = {category: number for number, category in enumerate(self.categories)}
        values = encoded.dictionary.to_pylist()
        numbers = [_hash(value) % self.buckets if self.buckets else column_of.get(value, -1) for value in values]
        number = np.array([*numbers, -1], np.int64)[codes]
        has_value = np.flatnonzero(number >= 0)
        out[has_value, number[has_value]] = 1.0
        out[number < 0] = *self.shares, *_flag(self, 1.0)


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


@dataclass(frozen=True)
class VectorEncoding:
    """A column of vectors, each divided by its length: one column an entry; a gap gets the mean."""

    name: str
    mean: tuple[float, ...]
    nulls: int
    distinct: int = 0
    gaps: int = 0
    method: str = "vector"

    @property
    def names(self) -> tuple[str, ...]:
        entries = [f"{self.name}[{entry}]" for entry in range(len(self.mean))]
        return *entries, *_flag(self, self.name + GAP_SUFFIX)

    def encode(self, column: pa.Array, out: NDArray[np.float32]) -> None:
        vectors = directions(column, len(self.mean))
        out[:, : len(self.mean)] = vectors
        out[np.isnan(vectors).any(axis=1)] = *self.mean, *_flag(self, 1.0)


def directions(column: pa.Array, width: int) -> NDArray[np.float64]:
    """Vectors divided by their length, (rows, width); NaN where one is null, of another length or not finite."""
    out = np.full((len(column), width), np.nan)
    if not is_vector(column.type):
        return out
    has_width = pc.equal(pc.list_value_length(column), width).fill_null(False)
    flat = column.filter(has_width).flatten().cast(pa.float64(), safe=False).fill_null(np.nan)
    vectors = np.array(flat.to_numpy(zero_copy_only=False), np.float64).reshape(-1, width)
    vectors[~np.isfinite(vectors).all(axis=1)] = np.nan
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    out[has_width.to_numpy(zero_copy_only=False)] = vectors / np.where(length == 0, 1.0, length)
    return out


Encoding = NumberEncoding | CategoryEncoding | VectorEncoding | EmptyEncoding
_BY_METHOD: dict[str, type[Any]] = {
    **dict.fromkeys(("one-hot", "hashed"), CategoryEncoding),
    "left out": EmptyEncoding,
    "vector": VectorEncoding,
}


def use_of(encoding: Encoding, kind: pa.DataType, num_rows: int | None) -> str:
    """What an attribute column became; `num_rows` None: it was encoded as in a trained graph."""
    flag = ", and a flag where there is a gap" if encoding.nulls else ""
    if isinstance(encoding, EmptyEncoding):
        if not encoding.distinct:
            return "not used: it has no value"
        what = _written(encoding, num_rows) or "nearly every row has a value of its own (a name, free text)"
        return f"not used: {what}; graph.categorical=[{encoding.name}] takes it, hashed"
    if isinstance(encoding, CategoryEncoding):
        hint = f"; {written}" if (written := _written(encoding, num_rows)) else ""
        if encoding.buckets:
            return f"{encoding.buckets} 0/1 columns, by a hash of the text{flag}{hint}"
        return f"a 0/1 column for each value{flag}{hint if encoding.mostly else ''}"
    if isinstance(encoding, VectorEncoding):
        return f"one attribute, the direction of vectors of {len(encoding.mean):,}{flag}"
    if encoding.method == "date":
        first = np.datetime64(round(encoding.origin * 1440), "m").astype("M8[D]" if pa.types.is_date(kind) else "M8[m]")
        since = "less the shortest" if pa.types.is_time(kind) or pa.types.is_duration(kind) else f"since {first}"
        return f"a number: days {since}{flag}"
    hint = f": less {encoding.origin:,.0f}, the least" if encoding.origin else ", as it is"
    if num_rows and pa.types.is_integer(kind) and encoding.distinct >= max(_FEWEST_IDS, _ID_SHARE * num_rows):
        flag += f"; if it is an id, graph.exclude=[{encoding.name}] leaves it out"
    return f"a number{hint}{flag}"


def _written(encoding: CategoryEncoding | EmptyEncoding, num_rows: int | None) -> str:
    """What the text looks like that was not read as numbers or dates; counts only of these rows."""
    remedy = as_numbers(encoding.name)
    return looks_text(encoding.looks) or (f"{encoding.mostly}: {remedy}" if encoding.mostly and num_rows else "")


def as_numbers(name: str) -> str:
    """The option that reads a column which is nearly one of numbers."""
    return f"graph.numbers=[{name}] reads it, with gaps in place of these"


def looks_text(looks: str) -> str:
    """What is said of text that is no number and no date, and looks like one; nothing where it does not."""
    return looks and f"text that looks like {looks}, which are read where they are written as {_EXAMPLES[looks]}"


def encoding_as_json(encoding: Encoding) -> dict[str, Any]:
    """An encoding as JSON, for the manifest."""
    return {key: value for key, value in {**vars(encoding), "method": encoding.method}.items() if key != "names"}


def encoding_from_json(column: dict[str, Any]) -> Encoding:
    """The encoding that `encoding_as_json` described."""
    made: Encoding = files.typed(
        {name: value for name, value in column.items() if name != "names"},
        _BY_METHOD.get(column["method"], NumberEncoding),
    )
    return made


class NumberSurvey:
    """Counts nulls and values that are not finite, and adds up the rest; of dates it finds the earliest."""

    def __init__(
        self, name: str, bad: Offenders, describe_row: Callable[[int], str], dates: bool, num_hashes: int = NUM_HASHES
    ) -> None:
        self.name, self._bad, self._describe_row, self._dates = name, bad, describe_row, dates
        self.num_nonfinite = 0
        self._nulls = self._present = 0
        self._sum, self._low, self._high, self._whole = 0.0, np.inf, -np.inf, True
        self._distinct = Distinct(num_hashes)

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch; `rows` are its row numbers in the table, which `describe_row` puts into words."""
        values = floats(column)
        size = np.abs(values)
        good, is_bad = values[size <= _FLOAT32_MAX], size > _FLOAT32_MAX
        if num_bad := int(np.count_nonzero(is_bad)):
            self._bad.add(is_bad, lambda i: f"{self._describe_row(int(rows[i]))} column {self.name!r} = {values[i]}")
        self.num_nonfinite += num_bad
        self._nulls += len(values) - len(good) - num_bad
        self._present += len(good)
        self._sum += float(good.sum())
        self._low = min(self._low, float(good.min(initial=np.inf)))
        self._high = max(self._high, float(good.max(initial=-np.inf)))
        self._whole = self._whole and bool((good == np.floor(good)).all())
        self._distinct.add(_mixed(good))

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """The encoding of the column; `added_rows` more nulls will come."""
        if not self._present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        most = max(abs(self._low), abs(self._high))
        is_large = self._whole and most > _WHOLE_OF_FLOAT32 and self._high - self._low < most / 2
        origin = self._low if self._dates or is_large else 0.0
        mean = self._sum / self._present - origin
        return NumberEncoding(
            self.name,
            mean=mean,
            replacement=mean if nonfinite == "mean" else 0.0,
            nulls=self._nulls + added_rows,
            nonfinite=self.num_nonfinite,
            origin=origin,
            method="date" if self._dates else "number",
            distinct=self._distinct.count(),
            gaps=self._nulls,
        )


class VectorSurvey:
    """Counts vectors that are null, and those that are not as many finite numbers as the first; adds up the others."""

    def __init__(self, name: str, bad: Offenders, describe_row: Callable[[int], str], num_entries: int = 0) -> None:
        self.name, self._describe_row, self._width = name, describe_row, num_entries
        self._bad = Offenders("vectors are not as many finite numbers as the first", bad.where)
        self._nulls = self._present = 0
        self._sum: Any = 0.0

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        is_null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        self._nulls += int(is_null.sum())
        if is_null.all():
            return
        self._width = self._width or len(column.drop_null()[0])
        vectors = directions(column, self._width)
        is_gap = np.asarray(np.isnan(vectors).any(axis=1))
        where = f"column {self.name!r}"
        self._bad.add(is_gap & ~is_null, lambda i: f"{self._describe_row(int(rows[i]))} {where} = {column[i]}")
        self._present += int((~is_gap).sum())
        self._sum = self._sum + vectors[~is_gap].sum(axis=0)

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        self._bad.check()
        if not self._present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        mean = tuple((self._sum / self._present).tolist())
        return VectorEncoding(self.name, mean, self._nulls + added_rows, self._present, self._nulls)


class CategorySurvey:
    """Counts the values of a text column while they are few, their buckets, and how many distinct ones there are."""

    def __init__(self, name: str, columns: Columns) -> None:
        self.name, self._max_categories = name, columns.max_categories
        self._is_wanted = name in columns.wanted  # and never left out
        self._nulls = self._present = 0
        self._values: Counter[str] = Counter()
        self._buckets = np.zeros(columns.hash_buckets, np.int64)
        self._distinct, self._format = Distinct(), FormatGuess()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        values = texts(column)
        self._nulls += values.null_count
        self._present += len(values) - values.null_count
        counted = pc.value_counts(values.drop_null())
        names, counts = counted.field("values").to_pylist(), counted.field("counts").to_numpy()
        if len(self._values) <= self._max_categories:
            self._values.update(dict(zip(names, counts.tolist(), strict=True)))
        hashes = np.array([_hash(name) for name in names], np.uint64)
        np.add.at(self._buckets, (hashes % np.uint64(len(self._buckets))).astype(np.int64), counts)
        self._distinct.add(hashes)
        self._format.add(counted.field("values"), counts)

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        if not self._present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        is_few = len(self._values) <= self._max_categories
        distinct = len(self._values) if is_few else self._distinct.count()
        seen = distinct, self._nulls, self._format.name(), self._format.mostly()
        if not (is_few or self._is_wanted) and distinct > _NEAR_UNIQUE * self._present:
            about, looks = "" if distinct <= NUM_HASHES else "about ", self._format.name()
            hint = f"if these are {looks}, write them as {_EXAMPLES[looks]}; " if looks else ""
            hint = f"{seen[3]}, {as_numbers(self.name)}; " if seen[3] and not looks else hint
            log.warning(
                "column %r is left out: it has %s%s distinct values in %s rows, too many to tell rows alike by; "
                "%sgraph.categorical=[%s] keeps it, hashed, graph.exclude=[%s] says that it is to go",
                *(self.name, about, f"{distinct:,}", f"{self._present:,}", hint, self.name, self.name),
            )
            return EmptyEncoding(self.name, *seen)
        if seen[3]:
            what = f"{seen[3]}; {as_numbers(self.name)}"
            log.warning("column %r is read as text: %s, graph.exclude=[%s] leaves it out", self.name, what, self.name)
        categories = tuple(sorted(self._values)) if is_few else ()
        counts = [self._values[name] for name in categories] if is_few else self._buckets.tolist()
        shares, buckets = tuple(count / self._present for count in counts), 0 if is_few else len(counts)
        return CategoryEncoding(self.name, categories, buckets, shares, self._nulls + added_rows, *seen)


class UnknownSurvey:
    """Counts the values of a text column that are none of an encoding's categories."""

    def __init__(self, encoding: CategoryEncoding) -> None:
        self.name, self._categories = encoding.name, encoding.categories
        self.counts: Counter[str] = Counter()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        values = texts(column).drop_null()
        is_category = pc.is_in(values, pa.array(self._categories, values.type))
        self.counts.update(values.filter(pc.invert(is_category)).to_pylist())


def _hash(value: str) -> int:
    return xxhash.xxh3_64_intdigest(value.encode())


class Distinct:
    """Counts distinct hashes, exactly up to `num_hashes`; beyond that the density of the smallest gives the number."""

    def __init__(self, num_hashes: int = NUM_HASHES) -> None:
        self._num_hashes = num_hashes
        self._smallest = np.zeros(0, np.uint64)
        self._added: list[NDArray[np.uint64]] = []

    def add(self, hashes: NDArray[np.uint64]) -> None:
        if len(self._smallest) > self._num_hashes:
            hashes = hashes[hashes < self._smallest[-1]]
        self._added.append(hashes)
        if sum(map(len, self._added)) > self._num_hashes:
            self._merge()

    def count(self) -> int:
        self._merge()
        if len(self._smallest) <= self._num_hashes:
            return len(self._smallest)
        return round(self._num_hashes * 2.0**64 / float(self._smallest[-1]))

    def _merge(self) -> None:
        """Merges the added hashes; np.sort is many times faster than np.unique."""
        merged = np.sort(np.concatenate([self._smallest, *self._added]))
        is_first = np.ones(len(merged), np.bool_)
        is_first[1:] = merged[1:] != merged[:-1]
        self._smallest, self._added = merged[is_first][: self._num_hashes + 1], []


def _mixed(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """64 bits of each number, uniform: what SplitMix64 ends with."""
    bits = (values + 0.0).view(np.uint64)  # -0 is 0
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


Survey = NumberSurvey | VectorSurvey | CategorySurvey


# Text in a known format. A minus may stand at the end, as SAP writes it, or be parentheses, as accountants write it.
# Points are taken as of thousands only in CSV files separated by `;`: elsewhere `2.955` may well be less than 3, and
# the column report says so.
#
# | format               | values                            | which some value must show                         |
# |----------------------|-----------------------------------|----------------------------------------------------|
# | dates                | `2024-01-31`, `2024-01-31 18:00`  |                                                    |
# |                      | `31/01/24`, `31.01.2024 18:00`,   | points, or a day above 12; or that `graph.dates`   |
# |                      | `1/31/2024, 6:00 PM`              | says which of the two numbers is the day           |
# | times with zones     | `2024-01-31T18:00:00+02:00`       | a zone; those without one are of UTC               |
# | money                | `$1,234.56`, `1.234,50 EUR`       | one currency alone, and decimals of 1 or 2 digits  |
# |                      |                                   | or no point and no comma                           |
# | decimal commas       | `6451,65`, `1.234,5`, `12`        | decimals, not of three digits where some have none |
# | points of thousands  | `323`, `2.955`, `1.250.000`       | two points; or one, and another value none         |
# | decimal points       | `7.123`, `12.5-`, `12`            | a point, or a minus at the end                     |
# | vectors              | `[0.1,-2e-3]`, `{0.1, 2}`         |                                                    |


@dataclass(frozen=True)
class TextFormat:
    """A way to write values of type `kind`: all match `pattern`, and each of `marks` is found in some value."""

    pattern: str
    marks: tuple[str, ...]
    kind: pa.DataType
    note: str = ""  # in the column report
    has_gaps: bool = False  # whether values in no such format are gaps

    def fits(self, values: pa.Array) -> bool:
        """Whether all values, gaps apart, are in this format."""
        is_like = bool(pc.all(pc.match_substring_regex(values, self.pattern), min_count=0).as_py())
        try:
            return is_like and (not is_date(self.kind) or len(self.read(values)) == len(values))
        except pa.ArrowInvalid:  # there is no 2024-02-31
            return False

    def read(self, values: pa.Array) -> pa.Array:
        values = trimmed(values)
        if self.has_gaps:
            values = pc.if_else(pc.match_substring_regex(values, self.pattern), values, None)
        if is_vector(self.kind):
            return pc.split_pattern(pc.replace_substring_regex(values, r"[\[\]{}\s]", ""), ",").cast(self.kind)
        values = pc.replace_substring_regex(values, r"^(.*)\((.*)\)$", r"-\1\2")
        if self.note == _ZONES:
            values = pc.replace_substring_regex(values, " ?(UTC|GMT)$", "Z")
            values = pc.replace_substring_regex(values, r"^([-\d]{10}[ T][\d:.]+)$", r"\1Z")
        if self.note in (DAY_FIRST, MONTH_FIRST):
            values = pc.replace_substring_regex(values, r"^(\d)([./-])", r"0\1\2")
            values = pc.replace_substring_regex(values, r"^(\d\d[./-])(\d)([./-])", r"\10\2\3")
            iso = r"\3-\2-\1" if self.note == DAY_FIRST else r"\3-\1-\2"
            values = pc.replace_substring_regex(values, r"^(\d\d[./]\d\d[./])([7-9]\d)(\D|$)", r"\119\2\3")
            values = pc.replace_substring_regex(values, r"^(\d\d[./]\d\d[./])(\d\d)(\D|$)", r"\120\2\3")
            values = pc.replace_substring_regex(values, r"^(\d\d)[./-](\d\d)[./-](\d{4})", iso)
        if pa.types.is_time(self.kind):
            values = pc.replace_substring_regex(values, r"^(\d)?(\d:.*)$", r"1970-01-01 0\1\2")
            return pc.replace_substring_regex(values, r" 0(\d\d:)", r" \1").cast(pa.timestamp("s")).cast(self.kind)
        if is_date(self.kind):
            values = pc.replace_substring_regex(values, r"^(\d{4})/(\d\d)/", r"\1-\2-")
            for number, month in enumerate(_MONTHS, 1) if self.note == _NAMED_MONTHS else ():
                day_first = rf"(?i)^(\d{{1,2}})[-./ ]+{month}[^\W\d]*[-./, ]+(\d{{4}})"
                values = pc.replace_substring_regex(values, day_first, rf"\2-{number:02d}-0\1")
                month_first = rf"(?i)^{month}[^\W\d]*[. ]+(\d{{1,2}}),? +(\d{{4}})"
                values = pc.replace_substring_regex(values, month_first, rf"\2-{number:02d}-0\1")
            values = pc.replace_substring_regex(values, r"^(\d{4}-\d\d-)0(\d\d)", r"\1\2")
            values = _of_24_hours(values) if self.pattern.endswith(_ANY_CLOCK) else values
            return _dates(values, self.kind) if self.has_gaps else values.cast(self.kind)
        if self.note in (_POINT_MONEY, _COMMA_MONEY):
            values = pc.replace_substring_regex(values, r"[^\d.,+-]", "")
            values = pc.replace_substring(values, "," if self.note == _POINT_MONEY else ".", "")
        if self.kind == pa.int64() or self.note == _COMMA:
            values = pc.replace_substring(values, ".", "")
        values = pc.replace_substring_regex(pc.replace_substring(values, ",", "."), r"^\+", "")
        return pc.replace_substring_regex(values, r"^(.*)-$", r"-\1").cast(self.kind)


def _of_24_hours(values: pa.Array) -> pa.Array:
    """Times such as 9:05 and 4:46 PM as 09:05 and 16:46."""
    values = pc.replace_substring_regex(pc.replace_substring_regex(values, ", ?", " "), r"[ T](\d):", r" 0\1:")
    has_halves = pc.any(pc.match_substring_regex(values, r"(?i)[ap]\.?m\.?$")).as_py()
    for hour in range(24) if has_halves else ():
        of_half = rf"(?i)[ T]{hour % 12 or 12:02d}(:[\d:]+) ?{'p' if hour >= 12 else 'a'}\.?m\.?$"
        values = pc.replace_substring_regex(values, of_half, rf" {hour:02d}\1")
    return values


def _dates(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as dates or times; nulls for those that there are none of, such as 2024-02-31."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        encoded = values.dictionary_encode()
    made = []
    for value in encoded.dictionary:
        try:
            made.append(value.cast(kind).as_py())
        except pa.ArrowInvalid:
            made.append(None)
    return pa.array(made, kind).take(encoded.indices)


def _signed(number: str) -> str:
    return rf"^([-+]?({number})|({number})-|\(({number})\))$"


DAY_FIRST, MONTH_FIRST = "its days stand before the months", "its months stand before the days"
_TWO_DATES = "what 03/04/2024 means is not known: graph.dates=day-first or graph.dates=month-first says it"
_COMMA = "written with a decimal comma"
_ZONES = "its zones become UTC, and times without a zone are taken as UTC"
_NAMED_MONTHS = "the names of its months are read"
_MONTHS = ("jan", "f[eé]b", "m[aä]r", "a[pv]r", "ma[iy]", "jun", "jul", "aug", "sep", "o[ck]t", "nov", "de[cz]")
_POINT_MONEY, _COMMA_MONEY = "read without the currency", "read without the currency, with a decimal comma"
_PLACE = r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*"  # of a vector
_YEAR_FIRST, _TIME = r"\d{4}-\d{2}-\d{2}", r"[ T]\d{2}:\d{2}(:\d{2})?"  # the former stands among days first too
_DAY = rf"^{_YEAR_FIRST}"
_ANY_CLOCK = r"(,?[ T]\d{1,2}:\d{2}(:\d{2})?( ?[AaPp]\.?[Mm]\.?)?)?$"
_WHOLE = r"0|[1-9]\d*"
_GROUPS = r"[1-9]\d{0,2}(\.\d{3}){1,5}"  # as many as an int64 holds
_THOUSANDS = _signed(rf"0|[1-9]\d{{0,2}}|{_GROUPS}")
_COMMAS = r"(\d{1,3}(\.\d{3})*|\d+),\d+"
POINTS_OF_THOUSANDS = (
    TextFormat(_THOUSANDS, (r"\..*\.",), pa.int64(), "its points are of thousands"),
    TextFormat(_THOUSANDS, (r"^[-+]?\d+-?$", r"\."), pa.int64(), "its points are of thousands"),
)
_ZONE = r"Z|[+-]\d{2}:?\d{2}| ?UTC| ?GMT"
_CURRENCY = r"(\p{Sc}|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|PLN|SEK|SGD|TRY|USD|ZAR)"
_POINTED, _COMMAED = r"(\d{1,3}(,\d{3})+|\d+)(\.\d+)?", r"(\d{1,3}(\.\d{3})+|\d+)(,\d+)?"
MONEY = tuple(
    TextFormat(
        rf"^([-+]?{_CURRENCY}? ?[-+]?{number} ?{_CURRENCY}?-?|{_CURRENCY}? ?\({_CURRENCY}? ?{number} ?{_CURRENCY}?\))$",
        (_CURRENCY, *marks),
        pa.float64(),
        note,
    )
    for number, marks, note in (
        (r"\d+", (), _POINT_MONEY),
        (_POINTED, (r"\.\d{1,2}(\D|$)",), _POINT_MONEY),
        (_COMMAED, (r",\d{1,2}(\D|$)",), _COMMA_MONEY),
    )
)
DATES = tuple(
    TextFormat(rf"^({day}{sign}{day}{sign}{year}|{_YEAR_FIRST}){time}", (sign, mark), kind, note)
    for sign, day, year in (
        *((sign, r"\d{1,2}", r"\d{4}") for sign in (r"\.", "/", "-")),
        *((r"\.", r"\d\d", r"\d\d"), ("/", r"\d{1,2}", r"\d\d")),  # 1.2.10 is a version
    )
    for time, kind in (("$", pa.date32()), (_ANY_CLOCK, pa.timestamp("s")))
    for note, mark in (
        (DAY_FIRST, rf"\.|^(1[3-9]|[23]\d){sign}"),
        (MONTH_FIRST, rf"^\d{{1,2}}{sign}(1[3-9]|[23]\d)"),
    )
)
TEXT_FORMATS = (
    *POINTS_OF_THOUSANDS,
    TextFormat(rf"{_DAY}$", ("-",), pa.date32()),
    TextFormat(rf"{_DAY}({_TIME})?$", ("-",), pa.timestamp("s")),
    TextFormat(rf"{_DAY}({_TIME}(\.\d{{1,9}})?)?$", ("-",), pa.timestamp("ns")),
    TextFormat(rf"{_DAY}{_TIME}(\.\d{{1,9}})?({_ZONE})?$", (rf"({_ZONE})$",), pa.timestamp("ns", "UTC"), _ZONES),
    *(
        TextFormat(pattern + time, ("",), kind, note)
        for pattern, note in (
            (_DAY, ""),
            (r"^\d{4}/\d\d/\d\d", ""),
            (rf"^(?i:\d{{1,2}}[-./ ]+({'|'.join(_MONTHS)})[^\W\d]*[-./, ]+\d{{4}})", _NAMED_MONTHS),
            (rf"^(?i:({'|'.join(_MONTHS)})[^\W\d]*[. ]+\d{{1,2}},? +\d{{4}})", _NAMED_MONTHS),
        )
        for time, kind in (("$", pa.date32()), (_ANY_CLOCK, pa.timestamp("s")))
    ),
    *DATES,
    TextFormat(r"^\d{1,2}:\d\d(:\d\d)?$", (":",), pa.time32("s")),
    *MONEY,
    TextFormat(_signed(_COMMAS), (",",), pa.float64(), _COMMA),
    TextFormat(_signed(rf"{_WHOLE}|{_GROUPS}|{_COMMAS}"), (r",(\d{1,2}|\d{4,})-?$|\..*,",), pa.float64(), _COMMA),
    TextFormat(_signed(rf"({_WHOLE})(\.\d*)?([eE][-+]?\d+)?"), (r"\.|-$",), pa.float64()),
    TextFormat(rf"^[\[{{]{_PLACE}(,{_PLACE})+[\]}}]$", (",",), pa.large_list(pa.float64())),
)
_PLAIN = TextFormat(_signed(rf"({_WHOLE})(\.\d*)?([eE][-+]?\d+)?"), (), pa.float64())  # shown by nothing
MAY_BE_THOUSANDS = "if its points are of thousands (2.955 for 2955), write it without them"


NUMBER_FORMATS = (*(form for form in TEXT_FORMATS if is_number(form.kind)), _PLAIN)


def text_formats(dates: str) -> tuple[TextFormat, ...]:
    """All formats; `dates`, auto, day-first or month-first, says what 03/04/2024 means where no value shows it."""
    wanted = {"day-first": DAY_FIRST, "month-first": MONTH_FIRST}.get(dates)
    listed = [form for form in TEXT_FORMATS if wanted is None or form not in DATES or form.note == wanted]
    return tuple(replace(form, marks=()) if form.note == wanted else form for form in listed)


class TextFormatSearch:
    """Which of some formats all values of a text column have.

    >>> search = TextFormatSearch(TEXT_FORMATS)
    >>> search.add(pa.array(["1,5", None, "12", "1.234,50-"]))
    True
    >>> form, note = search.chosen(with_thousands=False)
    >>> form.read(pa.array(["1.234,50-"])).to_pylist(), note
    ([-1234.5], 'written with a decimal comma')
    """

    def __init__(self, formats: Sequence[TextFormat], has_gaps: bool = False) -> None:
        """With `has_gaps` values that do not look like numbers are gaps."""
        self._has_gaps = has_gaps
        self._missing = {form: set(form.marks) for form in formats}
        self._currencies: set[str] = set()

    def add(self, column: pa.Array) -> bool:
        """Takes some more values; returns whether any format is left."""
        values = trimmed(column.unique())
        values = values.filter(pc.match_substring_regex(values, _LOOKS["numbers"])) if self._has_gaps else values
        if self._missing.keys() & {*MONEY}:
            currencies = pc.replace_substring_regex(values.drop_null(), r"[-+()\d., ]", "").unique().to_pylist()
            self._currencies.update(currencies[:5])
        if not pc.all(pc.match_substring_regex(values, r"\d"), min_count=0).as_py():  # no format is without
            self._missing = {}
        self._missing = {form: missing for form, missing in self._missing.items() if form.fits(values)}
        for missing in self._missing.values():
            missing -= {m for m in missing if pc.any(pc.match_substring_regex(values, m)).as_py()}
        return bool(self._missing)

    def chosen(self, with_thousands: bool) -> tuple[TextFormat | None, str]:
        """The format to read the column by, if any, and the note for its report; may points be of thousands?"""
        shown = [form for form, missing in self._missing.items() if not missing]
        if len(self._currencies - {""}) > 1 and {*shown} & {*MONEY}:
            several = ", ".join(sorted(currency or "none" for currency in self._currencies))
            return None, f"amounts of several currencies ({several}) are not added up"
        if not shown and {form.note for form in self._missing} >= {DAY_FIRST, MONTH_FIRST}:
            return None, _TWO_DATES
        legal = [form for form in shown if with_thousands or form not in POINTS_OF_THOUSANDS]
        form = replace(legal[0], has_gaps=self._has_gaps) if legal else None
        return form, MAY_BE_THOUSANDS if legal[:1] != shown[:1] else form.note if form else ""


class MostlySearch:
    """Which of some formats most values of a text column have, where none has all.

    >>> search = MostlySearch(TEXT_FORMATS)
    >>> search.add(pa.array(["2024-01-31", "2024-02-01", None, "soon"]))
    >>> form, told = search.chosen()
    >>> form.read(pa.array(["2024-01-31", "soon"])).is_null().to_pylist(), told
    ([False, True], "1 of its 3 values is not written as the others: 'soon'")
    """

    def __init__(self, formats: Sequence[TextFormat]) -> None:
        self._counts = {form: 0 for form in formats if form not in MONEY and not is_vector(form.kind)}
        self._missing = {form: set(form.marks) for form in self._counts}
        self._others: dict[TextFormat, list[str]] = {form: [] for form in self._counts}
        self._num_values = 0

    def add(self, column: pa.Array) -> None:
        """Takes some more values."""
        counted = pc.value_counts(trimmed(column).drop_null())
        values, counts = counted.field("values"), counted.field("counts").to_numpy()
        self._num_values += int(counts.sum())
        for form, others in self._others.items():
            is_like = _matches(values, form.pattern)
            self._counts[form] += int(counts[is_like].sum())
            own = values.filter(pa.array(is_like))
            missing = self._missing[form]
            missing -= {mark for mark in missing if pc.any(pc.match_substring_regex(own, mark)).as_py()}
            others += values.filter(pa.array(~is_like)).slice(0, _NUM_OTHERS - len(others)).to_pylist()

    def chosen(self) -> tuple[TextFormat | None, str]:
        """The format of at least half of the values, the others being gaps, and how many these are, or which."""
        shown = {form: count for form, count in self._counts.items() if not self._missing[form]}
        form = max(shown, key=lambda form: shown[form], default=None)
        if form is None or 2 * shown[form] < max(1, self._num_values):
            return None, ""
        num_others = self._num_values - shown[form]
        are = "is" if num_others == 1 else "are"
        named = ", ".join(repr(shorten(other, _SHOWN)) for other in self._others[form])
        told = f"{num_others:,} of its {self._num_values:,} values {are} not written as the others: {named}"
        return replace(form, has_gaps=True), told


def trimmed(column: pa.Array) -> pa.Array:
    """The values as text, without spaces around them, as the CSV reader takes numbers."""
    return pc.ascii_trim_whitespace(column.cast(pa.large_string()))


_UNIT = r"(\p{Sc}|%|[A-Z]{3})?"  # a currency, or per cent
_AMOUNT = r"(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}([.' \x{a0}]\d{3})+(,\d+)?|\d+([.,]\d+)?)"
_ANY_DAY = r"(\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./-]\d{1,2}[./-]\d{1,2})"
_LOOKS = {"numbers": rf"^[-+]?{_UNIT} ?[-+]?{_AMOUNT} ?{_UNIT}-?$", "dates": rf"^{_ANY_DAY}([ T].*)?$"}
_DIGITS, _CODE = r"^\d*$", r"^0\d"  # codes and ids: 00731
_NEARLY_ALL, _SHOWN, _NUM_OTHERS = 0.9, 40, 3  # the share of values; characters of one; that are named


class FormatGuess:
    """What all values of a text column look like, a key of `_EXAMPLES`, or nothing.

    >>> guess = FormatGuess()
    >>> guess.add(pa.array(["1,234.56", "17"]), np.array([1, 20]))
    >>> guess.name()
    'numbers'
    >>> guess.add(pa.array(["unknown"]), np.array([2]))
    >>> guess.mostly()
    "21 of its 23 values look like numbers, and not 'unknown'"
    """

    def __init__(self) -> None:
        self._left = list(_LOOKS)
        self._all_digits = True
        self._num_values = self._num_numbers = 0
        self._others: list[str] = []

    def add(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        """Takes some more values, none of them null, and how often each occurs."""
        looks = {name: _matches(values, _LOOKS[name]) for name in {"numbers", *self._left}}
        is_number = looks["numbers"]
        is_number = is_number & ~_matches(values, _CODE) if is_number.any() else is_number
        if len(self._others) < _NUM_OTHERS and not is_number.all():
            self._others += values.filter(pa.array(~is_number)).slice(0, _NUM_OTHERS - len(self._others)).to_pylist()
        self._num_values += int(counts.sum())
        self._num_numbers += int(counts[is_number].sum())
        self._left = [name for name in self._left if looks[name].all()]
        self._all_digits = self._all_digits and bool(self._left) and bool(_matches(values, _DIGITS).all())

    def name(self) -> str:
        """The name; empty where values look like neither, or are bare digits, as codes are."""
        return self._left[0] if self._left and not self._all_digits else ""

    def mostly(self) -> str:
        """How many values look like numbers, and the first that do not; empty where all do, or not nearly all."""
        if not _NEARLY_ALL * self._num_values <= self._num_numbers < self._num_values:
            return ""
        counted = f"{self._num_numbers:,} of its {self._num_values:,} values look like numbers"
        return f"{counted}, and not {', '.join(repr(shorten(other, _SHOWN)) for other in self._others)}"


def _matches(values: pa.Array, pattern: str) -> NDArray[np.bool_]:
    return np.asarray(pc.match_substring_regex(values, pattern).to_numpy(zero_copy_only=False), np.bool_)
