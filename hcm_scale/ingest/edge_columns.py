"""Columns of an edge table as attributes of both ends: what the rows of a node, such as its payments, say about it.

| column of the edge table | attributes of a node, for its rows as one end and as the other                           |
|--------------------------|------------------------------------------------------------------------------------------|
| (any)                    | number of rows, of distinct partners; share of partners of one row alone                 |
| number                   | sum, mean, largest and spread; shares of round and, if there are any, of negative values |
| text, boolean            | shares of its most frequent values, at most 8; a text of more than 64 is not used        |
| time                     | shares of the four quarters of a day; of both ends together shares of the days of the    |
|                          | week, burstiness, the longest pause, days since the first and the last row               |

One column of times is used, that of the rows (row_columns.py), else the first; nor are whole numbers that rise from
row to row used, which number the rows. Numbers may be times (time_formats.py).

Counts and amounts are stored as log(1 + |value| / unit) with the sign of the value, the unit of an amount being the
median of the first rows. A share is (k + 10 s) / (n + 10) for k of n rows, where s is the share over all rows: one
payment at night out of one says little, and a node without rows has the usual share; so it is of partners, of which
some sources show the usual share. Explanations undo both. A value is round where it is 100 or more and has at most two
digits before zeros. Burstiness is (deviation - mean) / (deviation + mean) of the pauses between rows, times
n / (n + 10). Self loops do not count; the last day is that of the table.

A kind of column is one class, which says what its field `of NAME` of a record of tables.py holds: `NumberColumn` the
number, `TextColumn` the code of a text, `TimeColumn` days since 1970. Nodes are taken in ranges of 4 million nodes and
ends of rows, each range in one pass over the records, so that memory is that of one range: half a gigabyte.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.names import AS_END, EITHER_END, ONCE
from hcm_scale.ingest.encode import FormatGuess, as_numbers, floats, is_number, is_text, looks_text, texts
from hcm_scale.ingest.node_table import warn_of_new
from hcm_scale.ingest.policy import EXCLUDED, Columns, InputError, Offenders, known_cases, not_finite, reading
from hcm_scale.ingest.table_files import TableFiles

log = logging.getLogger(__name__)
METHOD = "of edges"  # of an encoding, in the manifest
MISSING = 255  # the code of a text that is null, or one of too many
TEXT = pa.large_string()
_MOST_LEVELS, _SHOWN_LEVELS = 64, 8
_MOST_COLUMNS = 16  # of a table that is not one of transactions
_MANY_ROWS = 100  # that do not rise by chance
_PRIOR = 10.0  # rows that a share is drawn to the usual one by
_RARE = 0.05  # share of partners of one row, or of several, that tells nodes apart
_RANGE_ENDS = 1 << 22
_GUESS_ROWS = 1 << 18  # that show what a text column looks like
_PAIR_SAMPLE = 1 << 22  # rows that show how many partners have one row alone
_MOST = float(np.finfo(np.float32).max)
_AMOUNTS = ("sum of", "mean of", "largest", "spread of")
_ODD = ("round", "negative")  # values of which the share is an attribute
_QUARTERS = ("0 to 6", "6 to 12", "12 to 18", "18 to 24")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Values = NDArray[np.float64]
Blocks = Callable[[], Iterator[NDArray[Any]]]  # records of rows, from the start every time


@dataclass(frozen=True)
class EdgeEncoding:
    """How a column of the edge table becomes attributes of its `ends`; of `kind` rows, number, text or time.

    `shares` are those over all rows: of `values`, the texts or parts of time, or of round and negative numbers.
    """

    name: str
    kind: str
    ends: tuple[str, ...]
    unit: float = 1.0
    values: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    method: str = METHOD

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.readings)

    @property
    def of_each_end(self) -> tuple[str, ...]:
        """The values that have a share for each end; those of the week have one for both."""
        return self.values[:-7] if self.kind == "time" else self.values

    @property
    def readings(self) -> dict[str, dict[str, Any]]:
        """By attribute, how a person reads it: the `unit` of its logarithm, or of which `rows` it is a share."""
        made: dict[str, dict[str, Any]] = {}
        stem = {"rows": "{1}", "number": "{1} {0}", "text": "{0}: {1}", "time": "{0} from {1} h"}[self.kind]
        of = "partners" if self.kind == "rows" else "rows"
        logs = {"rows": ("rows", "partners"), "number": [f"{what} {self.name}" for what in _AMOUNTS]}.get(self.kind, ())
        usual = dict(zip(self.values, self.shares, strict=True))
        for end in self.ends:
            made |= {f"{what}{AS_END}{end}": {"unit": self.unit} for what in logs}
            named = {f"{stem.format(self.name, value)}{AS_END}{end}": usual[value] for value in self.of_each_end}
            made |= {name: {"rows": [f"{of}{AS_END}{end}"], "usual": share} for name, share in named.items()}
        if self.kind == "time":
            both, rows = f"{AS_END}{EITHER_END}", [f"rows{AS_END}{end}" for end in self.ends]
            made |= {f"{self.name} on {day}{both}": {"rows": rows, "usual": usual[day]} for day in _WEEKDAYS}
            pauses = (f"burstiness of {self.name}", f"longest pause of {self.name}, in days")
            since = (f"days since the {which} {self.name}" for which in ("first", "last"))
            made |= {f"{what}{both}": {} for what in (*pauses, *since)}
        return made

    @property
    def use(self) -> str:
        odd = f", shares of {' and '.join(self.values)} ones" * bool(self.values)
        most = f", of the {_SHOWN_LEVELS} most frequent" * (len(self.values) == _SHOWN_LEVELS)
        hours = "hours of the day, " * (_QUARTERS[0] in self.values)
        made = {
            "number": f"sum, mean, largest, spread, on a log scale{odd}",
            "text": f"the share of each value{most}",
            "time": f"shares of {hours}days of the week, burstiness, longest pause, first and last",
        }
        return f"attributes of {self.ends[0]} and {self.ends[1]}: {made[self.kind]}"

    def as_json(self) -> dict[str, Any]:
        """The encoding for the manifest, with what a report needs."""
        return asdict(self) | {"readings": self.readings, "prior": _PRIOR}


class Levels:
    """The first `most` values of a text column, numbered as they come after those that are `expected`, and one more."""

    def __init__(self, most: int, expected: Sequence[str] = ()) -> None:
        self.names = list(expected)
        self.num_missing, self._most = 0, most

    def codes(self, column: pa.Array) -> NDArray[np.uint8]:
        """The number of each value; MISSING for nulls, and for values that came when there were too many."""
        encoded = pc.dictionary_encode(texts(column))
        self.num_missing += column.null_count
        is_known = pc.is_in(encoded.dictionary, pa.array(self.names, TEXT))
        new = pc.filter(encoded.dictionary, pc.invert(is_known))
        self.names += new.slice(0, max(0, self._most + 1 - len(self.names))).to_pylist()
        number = pc.index_in(encoded.dictionary, pa.array(self.names, TEXT)).fill_null(MISSING)
        codes = np.append(number.to_numpy(zero_copy_only=False), MISSING).astype(np.uint8)
        return codes[encoded.indices.fill_null(len(number)).to_numpy(zero_copy_only=False)]


class NumberColumn:
    """Numbers, gaps as NaN; those that are not finite are counted in `bad`."""

    dtype = "<f8"
    values: Sequence[str] = _ODD

    def __init__(self, files: TableFiles, name: str, bad: Offenders) -> None:
        self._files, self._name, self._bad = files, name, bad
        self.unit = 1.0
        self._has_unit = False
        self._last = -np.inf if pa.types.is_integer(files.type_of(name)) else np.inf  # of values that rise, else inf

    def read(self, column: pa.Array, first_row: int) -> Values:
        numbers = floats(column)
        is_bad = np.abs(numbers) > _MOST
        self._bad.add(
            is_bad, lambda i: f"{self._files.describe_row(first_row + i)} column {self._name!r} = {numbers[i]}"
        )
        numbers[is_bad] = np.nan
        finite = numbers[np.isfinite(numbers)]
        if not self._has_unit and np.any(finite):
            self.unit, self._has_unit = float(np.median(np.abs(finite[finite != 0]))), True
        if len(numbers) and self._last < np.inf:
            rises = len(finite) == len(numbers) and (np.diff(finite, prepend=self._last) > 0).all()
            self._last = float(finite[-1]) if rises else np.inf
        return numbers

    def has(self, value: str, numbers: Values) -> NDArray[np.bool_]:
        return is_round(numbers) if value == "round" else numbers < 0

    def why_unused(self, num_rows: int) -> str:
        counts = np.isfinite(self._last) and num_rows >= _MANY_ROWS
        return "its values rise from row to row, as numbers of rows do" if counts else ""


class TextColumn:
    """Texts as codes of their first values."""

    dtype, unit = "u1", 1.0

    def __init__(self, expected: Sequence[str]) -> None:
        self.levels = Levels(_MOST_LEVELS, expected)
        self._guess, self._num_left = FormatGuess(), _GUESS_ROWS

    @property
    def values(self) -> Sequence[str]:
        return self.levels.names

    def read(self, column: pa.Array, first_row: int) -> NDArray[np.uint8]:
        if self._num_left > 0:
            counted = pc.value_counts(texts(column.slice(0, self._num_left)).drop_null())
            self._guess.add(counted.field("values"), counted.field("counts").to_numpy())
            self._num_left -= len(column)
        return self.levels.codes(column)

    def has(self, value: str, codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return np.asarray(codes == self.levels.names.index(value))

    @property
    def mostly(self) -> str:
        """What is said of a column that is nearly one of numbers, as far as its first rows tell."""
        return self._guess.mostly()

    def why_unused(self, num_rows: int) -> str:
        if len(self.values) <= _MOST_LEVELS:
            return "" if self.values else "it has no value"
        return looks_text(self._guess.name()) or f"it has more than {_MOST_LEVELS} values"


class TimeColumn:
    """Days since 1970 by the clocks of the column's zone, gaps as NaN; `span` are the first and the last."""

    dtype, unit = "<f8", 1.0

    def __init__(self, files: TableFiles, name: str) -> None:
        self._what, self._has_hours, self.span = f"{files.origin} column {name!r}", False, (np.inf, -np.inf)

    @property
    def values(self) -> Sequence[str]:
        return (*_QUARTERS, *_WEEKDAYS) if self._has_hours else _WEEKDAYS

    def read(self, column: pa.Array, first_row: int) -> Values:
        with reading(self._what):  # of a zone that nobody knows
            local = pc.local_timestamp(column) if getattr(column.type, "tz", None) else column
        days = floats(local)
        if len(finite := days[np.isfinite(days)]):
            self._has_hours = self._has_hours or bool((finite != np.floor(finite)).any())
            self.span = min(self.span[0], float(finite.min())), max(self.span[1], float(finite.max()))
        return days

    def has(self, value: str, days: Values) -> NDArray[np.bool_]:
        minutes = np.rint(np.nan_to_num(days) * 1440.0).astype(np.int64)  # a float has 6:00 as 5:59:59.999999
        in_day, weekday = minutes % 1440 // 360, (minutes // 1440 + 3) % 7  # day 0, in 1970, was a Thursday
        is_so = in_day == _QUARTERS.index(value) if value in _QUARTERS else weekday == _WEEKDAYS.index(value)
        return np.asarray(is_so & np.isfinite(days))

    def why_unused(self, num_rows: int) -> str:
        return ""


class EdgeColumns:
    """The columns of an edge table that become attributes: they are read into records, and then written.

    `trained` are the encodings of an earlier table; `nonfinite` says what infinities are. `time` is the column of the
    rows' times; those of `time_parts`, such as steps, count time: they are no amounts.
    """

    def __init__(
        self,
        files: TableFiles,
        columns: Columns,
        trained: Sequence[EdgeEncoding] | None,
        nonfinite: str,
        time: str | None = None,
        time_parts: Sequence[str] = (),
    ) -> None:
        self.files, self.ends, self.trained = files, (columns.source, columns.target), trained
        self.unused, self.notes = dict[str, str](), dict[str, str]()  # why a column is not used, what is said of one
        self.kinds = self._chosen(columns, time, time_parts) if trained is None else self._as_trained(trained)
        self._bad, self._refuses = not_finite(files.rows_of("the edge table")), nonfinite == "error"
        expected = {one.name: one.values for one in trained or ()}
        make: dict[str, Callable[[str], NumberColumn | TextColumn | TimeColumn]] = {
            "number": lambda name: NumberColumn(files, name, self._bad),
            "text": lambda name: TextColumn(expected.get(name, ())),
            "time": lambda name: TimeColumn(files, name),
        }
        self.columns = {name: make[kind](name) for name, kind in self.kinds.items()}
        self.gaps, self._num_rows = dict.fromkeys(self.kinds, 0), 0
        self.new_values: dict[str, int] = {}  # rows with a text that the earlier table did not have, by column

    @property
    def layout(self) -> list[tuple[str, str]]:
        return [(f"of {name}", column.dtype) for name, column in self.columns.items()]

    @property
    def texts(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "text"]

    def _chosen(self, columns: Columns, time: str | None, time_parts: Sequence[str]) -> dict[str, str]:
        """The kind of each column that is used; why each other is not is kept."""
        kinds: dict[str, str] = {}
        for name in (n for n in self.files.schema.names if n not in (*self.ends, *self.files.index_columns)):
            kind = kind_of(self.files, name, is_category=name in columns.categorical)
            if name in columns.exclude:
                self.unused[name] = EXCLUDED
            elif why := known_cases(name, columns):
                self.unused[name] = why
            elif name in time_parts:
                self.unused[name] = "no attribute of its ends"
            elif (
                kind == "time"
                and (first := time or next((n for n, other in kinds.items() if other == "time"), name)) != name
            ):
                self.unused[name] = f"not used: {first} is the time of rows; graph.time_column={name} takes this one"
            elif kind and len(kinds) == _MOST_COLUMNS:
                self.unused[name] = f"not used: only the first {_MOST_COLUMNS} columns become attributes of their ends"
            elif kind:
                kinds[name] = kind
        return kinds

    def _as_trained(self, trained: Sequence[EdgeEncoding]) -> dict[str, str]:
        kinds = {encoding.name: encoding.kind for encoding in trained if encoding.kind != "rows"}
        for name, kind in kinds.items():
            self.files.check_columns("trained: a column of its edges", [name])
            if kind_of(self.files, name, is_category=kind == "text") != kind:
                what = f"is of type {self.files.type_of(name)}, and was a {kind} in the trained graph"
                raise InputError(f"{self.files.origin} column {name!r} {what}")
        return kinds

    def read(self, batch: pa.RecordBatch, rows: NDArray[Any], first_row: int) -> None:
        self._num_rows += len(rows)
        for name, column in self.columns.items():
            self.gaps[name] += batch[name].null_count
            rows[f"of {name}"] = column.read(batch[name], first_row)

    def encodings(self, blocks: Blocks) -> list[EdgeEncoding]:
        """How the columns become attributes, from all rows that count; or as in the earlier table."""
        if self._refuses:
            self._bad.check()
        if self.trained is not None:
            self._count_new(self.trained, blocks)
            return list(self.trained)
        for name, column in list(self.columns.items()):
            mostly = column.mostly if isinstance(column, TextColumn) else ""
            if why := column.why_unused(self._num_rows):
                why += f"; {mostly}; {as_numbers(name)}" * bool(mostly)
                del self.kinds[name], self.columns[name]
                self.unused[name] = f"not used: {why}"
            if mostly:
                what = "left out" if why else "read as text"
                log.warning("column %r of edges is %s: %s; %s", name, what, mostly, as_numbers(name))
        num_rows, counts = 0, {name: dict.fromkeys(column.values, 0) for name, column in self.columns.items()}
        step, pairs = -(-self._num_rows // _PAIR_SAMPLE), [np.zeros(0, np.int64)]
        for rows in blocks():
            num_rows += len(rows)
            pairs.append(_pairs(*(rows[rows["u"] % step == 0][end] for end in "uv")))
            for name, of_values in counts.items():
                for value in of_values:
                    of_values[value] += int(np.count_nonzero(self._has(name, value, rows)))
        once = float(np.mean(np.unique(np.concatenate(pairs), return_counts=True)[1] == 1)) if num_rows else 0.0
        values = ((ONCE,), (once,)) if _RARE <= once <= 1 - _RARE else ((), ())
        of_rows = EdgeEncoding("", "rows", self.ends, 1.0, *values)
        return [of_rows, *(self._encoding(name, counts[name], num_rows) for name in counts)]

    def _count_new(self, trained: Sequence[EdgeEncoding], blocks: Blocks) -> None:
        """Counts rows with texts that an earlier table did not have, of columns whose values are all known."""
        known = {one.name: len(one.values) for one in trained if one.kind == "text" and len(one.values) < _SHOWN_LEVELS}
        for name in known:
            codes = (rows[f"of {name}"] for rows in blocks())
            num_rows = sum(int(np.count_nonzero((code >= known[name]) & (code != MISSING))) for code in codes)
            if num_rows:
                self.new_values[name] = num_rows
                warn_of_new(name, num_rows, self.columns[name].values[known[name] :])

    def _has(self, name: str, value: str, rows: NDArray[Any]) -> NDArray[np.bool_]:
        return self.columns[name].has(value, rows[f"of {name}"])

    def _encoding(self, name: str, counts: dict[str, int], num_rows: int) -> EdgeEncoding:
        kind, chosen = self.kinds[name], list(counts)
        if kind == "text":
            chosen = sorted(chosen, key=lambda value: (-counts[value], value))[:_SHOWN_LEVELS]
        elif kind == "number":
            chosen = [word for word in chosen if 0 < counts[word] < num_rows]
            if counts["negative"]:
                self.notes[name] = f"{counts['negative']:,} are negative and count with their sign"
        shares = tuple(counts[value] / max(1, num_rows) for value in chosen)
        return EdgeEncoding(name, kind, self.ends, self.columns[name].unit, tuple(chosen), shares)

    def write(self, encodings: Sequence[EdgeEncoding], blocks: Blocks, x: NDArray[np.float32]) -> None:
        sizes = np.ones(len(x) + 1, np.int64)
        for rows in blocks():
            np.add.at(sizes, rows["u"] + 1, 1)
            np.add.at(sizes, rows["v"] + 1, 1)
        starts, first = np.cumsum(sizes), 0
        while first < len(x):
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + _RANGE_ENDS, "right")) - 1)
            chosen = [[rows[(rows[end] >= first) & (rows[end] < last)] for rows in blocks()] for end in "uv"]
            of_ends = [_EndRows(np.concatenate(own), end, first, last) for own, end in zip(chosen, "uv", strict=True)]
            for k, column in enumerate(self._columns(encodings, of_ends)):
                x[first:last, k] = column
            first = last

    def _columns(self, encodings: Sequence[EdgeEncoding], of_ends: "list[_EndRows]") -> "Iterator[NDArray[Any]]":
        """The attributes of a range of nodes, in the order of their names."""
        for encoding in encodings:
            name, usual = encoding.name, dict(zip(encoding.values, encoding.shares, strict=True))
            for end in of_ends:
                if encoding.kind == "rows":
                    num_partners, once = end.partners()
                    yield from map(np.log1p, (end.num_rows, num_partners))
                    if encoding.values:
                        yield _shares(once, num_partners, usual[ONCE])
                    continue
                if encoding.kind == "number":
                    yield from end.amounts(f"of {name}", encoding.unit)
                for value in encoding.of_each_end:
                    yield _shares(end.nodes[self._has(name, value, end.rows)], end.num_rows, usual[value])
            column = self.columns.get(name)
            if isinstance(column, TimeColumn):
                for value in _WEEKDAYS:
                    chosen = [end.nodes[self._has(name, value, end.rows)] for end in of_ends]
                    yield _shares(np.concatenate(chosen), sum(end.num_rows for end in of_ends), usual[value])
                times = np.concatenate([end.rows[f"of {name}"] for end in of_ends])
                nodes, has_time = np.concatenate([end.nodes for end in of_ends]), np.isfinite(times)
                yield from _pauses(nodes[has_time], times[has_time], len(of_ends[0].num_rows), *column.span)


class _EndRows:
    """The rows of a range of nodes as one of the two ends."""

    def __init__(self, rows: NDArray[Any], end: str, first: int, last: int) -> None:
        self.rows, self.nodes, self._partners = rows, rows[end] - first, rows["v" if end == "u" else "u"]
        self.num_rows = np.bincount(self.nodes, minlength=last - first)

    def partners(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct partners of each node, and the nodes as often as they have partners of one row."""
        pairs, counts = np.unique(_pairs(self.nodes, self._partners), return_counts=True)
        return np.bincount(pairs >> 32, minlength=len(self.num_rows)), pairs[counts == 1] >> 32

    def amounts(self, field: str, unit: float) -> Iterator[Values]:
        """Logarithms of sum, mean, largest and spread of each node's values, 0 where it has none."""
        has_value, size = np.isfinite(self.rows[field]), len(self.num_rows)
        nodes, values = self.nodes[has_value], self.rows[field][has_value]
        count, total, largest = np.maximum(np.bincount(nodes, minlength=size), 1), *np.zeros((2, size))
        np.add.at(total, nodes, values)
        np.maximum.at(largest, nodes, np.abs(values))
        mean = total / count
        spread = np.sqrt(np.bincount(nodes, (values - mean[nodes]) ** 2, size) / count)
        for numbers in (total, mean, largest, spread):
            yield np.copysign(np.log1p(np.abs(numbers) / unit), numbers)


def _pairs(nodes: NDArray[Any], partners: NDArray[Any]) -> NDArray[np.int64]:
    return nodes.astype(np.int64) << 32 | partners.astype(np.int64)


def _shares(nodes: NDArray[Any], num_rows: Any, usual: float) -> Values:
    """Shares of each node's rows, drawn to the usual one: `nodes` has a node as often as it has such rows."""
    return np.asarray((np.bincount(nodes, minlength=len(num_rows)) + _PRIOR * usual) / (num_rows + _PRIOR))


def kind_of(files: TableFiles, name: str, is_category: bool) -> str:
    """What a column is taken as: number, text, time, or nothing."""
    kind = files.type_of(name)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_category or pa.types.is_boolean(kind) or (is_text(kind) and not pa.types.is_null(kind)):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "time"
    return "number" if is_number(kind) else ""


def is_round(values: Values) -> NDArray[np.bool_]:
    """Whether each value is 100 or more and has at most two digits before zeros.

    >>> is_round(np.array([100.0, 4500.0, -12000.0, 4520.0, 99.0, 120.5, np.nan])).tolist()
    [True, True, True, False, False, False, False]
    """
    is_large = np.abs(values) >= 100.0
    size = np.where(is_large, np.abs(values), 100.0)
    return np.asarray(is_large & (size % 10.0 ** (np.floor(np.log10(size)) - 1.0) == 0.0))


def _pauses(nodes: NDArray[Any], time: Values, num_nodes: int, earliest: float, latest: float) -> Iterator[Values]:
    """Burstiness, longest pause, days since the first and since the last row of each node, by the times of its rows.

    >>> [values.round(2).tolist() for values in _pauses(np.array([0, 0, 0]), np.array([3.0, 1.0, 9.0]), 1, 0.0, 10.0)]
    [[-0.06], [6.0], [9.0], [1.0]]
    """
    order = np.lexsort((time, nodes))
    nodes, time = nodes[order], time[order]
    is_same = nodes[1:] == nodes[:-1]
    own, pause = nodes[1:][is_same], np.diff(time)[is_same]
    num_pauses = np.bincount(own, minlength=num_nodes)
    count = np.maximum(num_pauses, 1)
    mean = np.bincount(own, pause, num_nodes) / count
    deviation = np.sqrt(np.bincount(own, (pause - mean[own]) ** 2, num_nodes) / count)
    yield (deviation - mean) / np.where(mean > 0, deviation + mean, 1.0) * (num_pauses / (num_pauses + _PRIOR))
    longest = np.zeros(num_nodes)
    np.maximum.at(longest, own, pause)
    yield longest
    is_first = np.concatenate([np.ones(min(1, len(nodes)), np.bool_), ~is_same])
    for chosen in (is_first, np.roll(is_first, -1)):
        days = np.full(num_nodes, max(0.0, latest - earliest))  # of nodes without rows
        days[nodes[chosen]] = latest - time[chosen]
        yield days
