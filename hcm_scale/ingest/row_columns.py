"""Rows of an edge table as payments: which column is their time, amount and currency, and how it was read.

An option names a column (`graph.time_column`, ...); else names decide first, those of which all words say it before
those of which some do (`amount` before `fee_amount`, `when` before `opened`), in English, German, French, Spanish and
Italian:

| role     | the column is, of equals the first                                                             |
|----------|------------------------------------------------------------------------------------------------|
| time     | of dates or times, or of numbers that are (time_formats.py), else of numbers called as a time   |
|          | is, such as `step`; of dates called alike those in order, or that vary most                     |
| amount   | of numbers called as an amount is, such as `amount`; where rows have a time, such as `value`   |
|          | too, else the weight of edges, or the only one of decimals                                     |
| currency | of texts called as one is                                                                      |
| category | of texts of 2 to 64 values called as one is, such as `type`; where rows have a time            |

The time of day in a column of its own, or its hour, is added to dates; year, month and day make a date. Steps take as
long as `graph.step_seconds` says, else as their name (`hour`, `week`), else a second where they span over 100,000, an
hour where a period of 24 shows, and a day otherwise.

Rows are kept where they have a time or an amount, in the order of time, each with its number in the table: payer and
payee, seconds since 1970 by the clocks of the column's zone (0 where the table has no time), the amount as it stands
(NaN for a gap), and the number of its currency. Rows without a time, or far from the time of all others (one of the
year 1 would make a moment of all that came after), have that of the row before them in a table that is sorted; else
they are left out, as are rows of an unknown end. `lines` says all of this, and the log does.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.npy import save_npy
from hcm_scale.base.text import words
from hcm_scale.graph.check import PAYMENTS
from hcm_scale.ingest.edge_columns import MISSING, NumberColumn, TextColumn, TimeColumn, kind_of
from hcm_scale.ingest.encode import floats, is_text
from hcm_scale.ingest.policy import Columns, InputError, known_cases, not_finite
from hcm_scale.ingest.table_files import TableFiles
from hcm_scale.ingest.time_formats import TimeFormat, format_from_json, guess_format

log = logging.getLogger(__name__)
_DAY, _FEW_DAYS, _MOST_CATEGORIES = 86_400.0, 45.0, 64
_Codes = NDArray[np.uint8]
_UNITS = {  # seconds of a step that is called so
    **dict.fromkeys(("second", "seconds", "sec"), 1.0),
    **dict.fromkeys(("minute", "minutes"), 60.0),
    **dict.fromkeys(("hour", "hours", "stunde", "heure", "hora"), 3_600.0),
    **dict.fromkeys(("day", "days", "date", "datum", "tag", "jour", "dia", "giorno"), _DAY),
    **dict.fromkeys(("week", "weeks", "woche", "semaine", "semana"), 7 * _DAY),
    **dict.fromkeys(("month", "months", "monat", "mois", "mes"), 30 * _DAY),
}
_NAMES = {
    "time": {
        *(*_UNITS, "time", "timestamp", "step", "timestep", "datetime", "tick", "dt", "ts", "when", "period", "epoch"),
        *("booked", "buchungstag", "buchungsdatum", "wertstellung", "valuta", "zeit", "zeitpunkt", "zeitstempel"),
        *("horodatage", "fecha", "data"),
    },
    "amount": {
        *("amount", "amt", "betrag", "umsatz", "summe", "montant", "somme", "importe", "monto", "importo", "paid"),
        *("value", "sum", "total", "price", "qty", "quantity", "menge"),
    },
    "category": {
        *("category", "type", "kind", "format", "channel", "mcc", "method", "kategorie", "art", "buchungstext"),
        *("catégorie", "categoria", "categoría", "tipo", "operation"),
    },
    "currency": {"currency", "ccy", "curr", "waehrung", "währung", "devise", "moneda", "divisa", "valuta"},
}
_BESIDE = {  # words that do not make a name less plain
    *("transaction", "transactions", "trans", "tx", "txn", "payment", "payments", "booking", "event", "transfer"),
    *("posting", "posted", "created", "start", "login", "at", "of", "the", "in", "utc", "local", "unix", "ms", "us"),
    *("ns", "s", "iso", "usd", "eur", "gbp", "received", "receiving", "row"),
}
_NUMBERED = {"nr", "no", "num", "number", "nummer", "id", "key", "ref", "reference", "code", "count", "index"}  # rows
_PLAIN_AMOUNTS = {
    "value",
    "sum",
    "total",
    "price",
    "qty",
    "quantity",
    "menge",
}  # which are amounts of rows that have a time alone
_LEGAL = {"time": "of times or numbers", "amount": "of numbers", "currency": "of texts", "category": "of texts"}
_SPAN_OF_DAYS = 100_000  # steps that are more are seconds
_RHYTHM = 24  # steps, of which a period shows that they are hours
_CYCLES = {"hour": 24, "day": 31, "month": 12, "week": 53}  # what goes round, and up to where
_FAR = 3.0  # times as long as all but a hundredth of the rows take, on either side of them
_SPAN = {1.0: "a second", 60.0: "a minute", 3_600.0: "an hour", _DAY: "a day", 7 * _DAY: "a week"}


@dataclass
class RowColumns:
    """The columns of an edge table that its rows are kept by, a name each, None where there is none."""

    files: TableFiles
    time: str | None
    amount: str | None
    currency: str | None
    category: str | None = None
    has_steps: bool = False  # the time is a number of steps
    step_seconds: float | None = None  # None: a guess
    lines: dict[str, str] = field(default_factory=dict)  # by column, how it was read
    currencies: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bad = not_finite(self.files.rows_of("the edge table"))
        self._columns: dict[str, Any] = {}
        if self.time:
            make = (
                NumberColumn(self.files, self.time, self._bad) if self.has_steps else TimeColumn(self.files, self.time)
            )
            self._columns["row time"] = self.time, make
        if self.amount:
            self._columns["row amount"] = self.amount, NumberColumn(self.files, self.amount, self._bad)
        if self.currency:
            self._columns["row currency"] = self.currency, TextColumn(self.currencies)
        if self.category:
            self._columns["row category"] = self.category, TextColumn(self.categories)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._columns.values()]

    @property
    def time_parts(self) -> list[str]:
        """Columns that count time, which are no amounts."""
        form = self.files.times.get(self.time or "")
        return [name for name in form.stored if name != self.time] if form else [self.time or ""] * self.has_steps

    @property
    def layout(self) -> list[tuple[str, str]]:
        return [(role, column.dtype) for role, (_, column) in self._columns.items()]

    def read(self, batch: pa.RecordBatch, rows: NDArray[Any], first_row: int) -> None:
        for role, (name, column) in self._columns.items():
            rows[role] = column.read(batch[name], first_row)

    def write(self, folder: Path, blocks: Callable[[], Iterator[NDArray[Any]]]) -> dict[str, Any]:
        """Writes the rows as arrays of a graph folder; returns what the manifest says of them.

        A field is read at a time, so that memory is some 45 bytes a row.
        """
        has_ends = np.concatenate([np.zeros(0, np.bool_), *((rows["u"] >= 0) & (rows["v"] >= 0) for rows in blocks())])
        steps = _field(blocks, "row time") if self.time else np.zeros(len(has_ends))
        seconds = self._seconds(steps) if self.time else _DAY
        time = self._times(steps, seconds)
        del steps
        is_timed = has_ends & np.isfinite(time)
        low, high = np.quantile(time[is_timed], [0.01, 0.99]) if is_timed.any() else (0.0, 0.0)
        reach = _FAR * max(high - low, _DAY)
        is_kept = is_timed & (time >= low - reach) & (time <= high + reach)
        if self.time:
            self._say_time(time, seconds, (has_ends, is_timed, is_kept))
        if not (np.diff(time[is_kept]) < 0.0).any() and is_kept.any():
            before = np.maximum.accumulate(np.where(is_kept, np.arange(len(time)), int(is_kept.argmax())))
            time, is_kept = time[before], has_ends
        number = np.flatnonzero(is_kept)
        number = number[np.argsort(time[number], kind="stable")]
        arrays: dict[str, Callable[[], NDArray[Any]]] = {
            "payer": lambda: _field(blocks, "u")[number],
            "payee": lambda: _field(blocks, "v")[number],
            "time": lambda: time[number],
            "amount": lambda: self._amounts(blocks, is_kept)[number] if self.amount else np.full(len(number), np.nan),
            "currency": lambda: (
                _field(blocks, "row currency")[number] if self.currency else np.zeros(len(number), np.uint8)
            ),
            "number": lambda: number,
        }
        for name, dtype in PAYMENTS.items():
            save_npy(folder / f"row_{name}.npy", np.ascontiguousarray(arrays[name](), dtype))
        if self.currency:
            column = self._columns["row currency"][1]
            self.currencies = list(column.values[:-1] if len(column.values) > 64 else column.values)
            self.lines[self.currency] = "the currency of each row's amount"
        self._write_category(folder, blocks, number)
        for name, line in self.lines.items():
            log.info("column %s: %s", name, line)
        if not self.time:
            log.info("rows have no time: graph.time_column= names the column of it")
        told = {"time": self.time, "amount": self.amount, "currency": self.currency, "steps": self.has_steps}
        form = self.files.times.get(self.time or "")
        sorts = {"category": self.category, "categories": self.categories} if self.category else {}
        return told | sorts | {"currencies": self.currencies, "seconds": seconds, "read": vars(form) if form else None}

    def _write_category(self, folder: Path, blocks: Callable[[], Iterator[NDArray[Any]]], number: Any) -> None:
        """Writes the category of each row, or says why none is."""
        if not self.category:
            return
        self.categories = list(self._columns["row category"][1].values)
        if 2 <= len(self.categories) <= _MOST_CATEGORIES:
            save_npy(folder / "row_category.npy", np.ascontiguousarray(_field(blocks, "row category")[number]))
            self.lines[self.category] = f"the category of each row, one of {len(self.categories)}"
        else:
            few = f"more than {_MOST_CATEGORIES} values" if len(self.categories) > 1 else "one value at most"
            self.lines[self.category] = f"no category of rows: it has {few}"
            self.category = None

    def read_all(self, seconds: float) -> "tuple[NDArray[np.float64], NDArray[np.float64], _Codes, _Codes]":
        """Times, amounts, currencies and categories of all rows in the table's order; a step takes so many seconds."""
        blocks, first = [np.empty(0, self.layout)], 0
        for batch in self.files.batches(self.names):
            blocks.append(np.empty(len(batch), self.layout))
            self.read(batch, blocks[-1], first)
            first += len(batch)
        every = np.concatenate(blocks)
        amount = every["row amount"] if self.amount else np.full(first, np.nan)
        return (
            self._times(every["row time"] if self.time else np.zeros(first), seconds),
            amount,
            every["row currency"] if self.currency else np.zeros(first, np.uint8),
            every["row category"] if self.category else np.full(first, MISSING, np.uint8),
        )

    @staticmethod
    def _times(steps: NDArray[np.float64], seconds: float) -> NDArray[np.float64]:
        return np.asarray(np.rint(steps * seconds * 1e3) / 1e3)  # a float has 6:00 as 5:59:59.999999

    def _seconds(self, time: NDArray[np.float64]) -> float:
        """Seconds of what the column counts: days, or steps."""
        if not self.has_steps:
            return _DAY
        if self.step_seconds:
            return self.step_seconds
        if units := [_UNITS[word] for word in words(self.time or "") if word in _UNITS]:
            return units[-1]
        finite = time[np.isfinite(time)]
        if not len(finite) or np.ptp(finite) > _SPAN_OF_DAYS:
            return 1.0
        return 3_600.0 if _has_rhythm(finite) else _DAY

    def _amounts(self, blocks: Callable[[], Iterator[NDArray[Any]]], is_kept: NDArray[np.bool_]) -> NDArray[Any]:
        amounts = _field(blocks, "row amount")
        own = amounts[is_kept]
        counts = {"missing": ~np.isfinite(own), "not above 0": own <= 0.0}
        notes = [f"{num:,} {what}" for what, is_so in counts.items() if (num := int(np.count_nonzero(is_so)))]
        self.lines[self.amount or ""] = "the amount of each row" + f" ({', '.join(notes)})" * bool(notes)
        return amounts

    def _say_time(self, time: NDArray[np.float64], seconds: float, rows: tuple[Any, Any, Any]) -> None:
        has_ends, is_timed, is_kept = rows
        kept, form = time[is_kept], self.files.times.get(self.time or "")
        if self.has_steps:
            what = _SPAN.get(seconds, f"{seconds:,g} seconds")
            how = f"numbers of steps, {what} each"
        elif form and form.how not in ("digits", "parts", "date"):
            how = "times since 1970"
        else:
            how = "dates" if not (kept % _DAY).any() else "dates and times"
            how += " of " + ", ".join(form.stored) if form and len(form.stored) > 1 else ""
        is_sorted = not (np.diff(kept) < 0).any()
        notes, also = [how, "sorted" if is_sorted else "not sorted"], ": that of the row before" * is_sorted
        if num := int(np.count_nonzero(has_ends & ~is_timed)):
            notes.append(f"{num:,} without one{also}")
        if num := int(np.count_nonzero(is_timed & ~is_kept)):
            notes.append(f"{num:,} far from all others are not judged by it{also}")
        notes += ["graph.step_seconds= says otherwise"] * (self.has_steps and self.step_seconds is None)
        self.lines[self.time or ""] = f"the time of each row ({', '.join(notes)})"
        num_days = float(np.ptp(kept)) / _DAY if len(kept) else 0.0
        if not self.has_steps and 1.0 < num_days < _FEW_DAYS:
            what = (
                "what comes once a month is seen once, and looks like a burst; trained=RUN of a longer table knows it"
            )
            log.warning("the rows span %.0f days: %s", num_days, what)
        for name in form.stored if form else ():
            self.lines.setdefault(name, f"a part of the time of each row, with {self.time}")


def _field(blocks: Callable[[], Iterator[NDArray[Any]]], name: str) -> NDArray[Any]:
    return np.concatenate([rows[name] for rows in blocks()])


def _has_rhythm(steps: NDArray[np.float64]) -> bool:
    """Whether rows a step have a period of 24, and none of a week: what is by day and night is by the hour."""
    if (steps != np.floor(steps)).any() or np.ptp(steps) < 4 * _RHYTHM:
        return False
    counts = np.bincount((steps - steps.min()).astype(np.int64)).astype(np.float64)
    if min(counts[:-28].std(), counts[28:].std()) == 0.0:
        return False
    of_day, of_half, of_weeks = (
        float(np.corrcoef(counts[:-lag], counts[lag:])[0, 1]) for lag in (_RHYTHM, _RHYTHM // 2, 28)
    )
    return of_day > 0.3 and of_day > of_half + 0.2 and of_day > of_weeks + 0.1


def row_columns(files: TableFiles, columns: Columns) -> RowColumns | None:
    """The columns that rows are kept by, as options or names say; None where there is neither a time nor an amount."""
    ends = (columns.source, columns.target, *columns.exclude, *files.index_columns)
    free = [name for name in files.schema.names if name not in ends]
    of_rows = {"time": columns.time, "amount": columns.amount}
    called = [name for name in free for role, own in of_rows.items() if name == own or _plainness(role, name)]
    files = files.with_most([name for name in dict.fromkeys(called) if name not in columns.categorical], columns.dates)
    for name in called:
        if is_text(files.type_of(name)) and name in files.notes:
            log.warning("column %r is no time and no amount of rows: %s", name, files.notes[name])
    files = _with_times_as_numbers(files, [name for name in free if name not in columns.categorical], columns)
    kinds = {name: kind_of(files, name, is_category=name in columns.categorical) for name in free}
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    time = _named(files, "time", columns.time, kinds, ("time", "number")) or _likely_time(files, kinds)
    if time and (form := _whole_time(files, time, free)):
        files = files.with_times({time: form})
        kinds[time] = "time"
        numbers = [name for name in numbers if name not in form.stored]
    has_steps = time is not None and kinds[time] == "number"
    if columns.step_seconds is not None and not has_steps:
        what = f"{time!r} holds dates or times" if time else "there is none: graph.time_column names it"
        raise InputError(f"graph.step_seconds={columns.step_seconds} is for a column of numbers; {what}")
    amount = _named(files, "amount", columns.amount, kinds, ("number",))
    likely = _called("amount", [name for name in numbers if name != time])
    decimals = [name for name in numbers if not pa.types.is_integer(files.type_of(name)) and name != time]
    amount = amount or next(iter(likely), None) or columns.weight
    amount = amount or (decimals[0] if time and len(decimals) == 1 else None)
    currency = _named(files, "currency", columns.currency, kinds, ("text",))
    currency = currency or next(iter(_called("currency", [n for n, kind in kinds.items() if kind == "text"])), None)
    if time is None and columns.amount is None:
        sure = [name for name in likely if set(words(name)) & (_NAMES["amount"] - _PLAIN_AMOUNTS)]
        amount = next(iter(sure), None)
    if time is None and amount is None:
        return None
    texts = [n for n, kind in kinds.items() if kind == "text" and n != currency and not known_cases(n, columns)]
    category = _named(files, "category", columns.category, kinds, ("text",))
    category = category or next(iter(_called("category", texts)), None)
    has_both = time is not None and amount is not None
    named = currency if amount else None, category if has_both else None
    return RowColumns(files, time, amount, *named, has_steps, columns.step_seconds)


def _plainness(role: str, name: str) -> int:
    """How surely a name says this role: 2 if all of its words do, 1 if some, 0 if none."""
    own = set(words(name)) or {name}
    if role == "amount" and own & _NUMBERED:
        return 0
    says = own & _NAMES[role] | ({"t"} & own if role == "time" and own <= {"t", *_BESIDE} else set())
    return 0 if not says and not (role == "time" and own <= _BESIDE) else 2 if own <= says | _BESIDE else 1


def is_time_or_amount(name: str) -> bool:
    """Whether a name says plainly when a row was, or how much.

    >>> [is_time_or_amount(name) for name in ("unix_time", "tx_amount", "timeslot_owner", "u")]
    [True, True, False, False]
    """
    return max(_plainness("time", name), _plainness("amount", name)) == 2


def _called(role: str, names: Sequence[str]) -> list[str]:
    """Those names that say this role, the plainest first."""
    return sorted((name for name in names if _plainness(role, name)), key=lambda name: -_plainness(role, name))


def _likely_time(files: TableFiles, kinds: Mapping[str, str]) -> str | None:
    """The column of times, by its name and then by its values; see the table at the top."""
    dates = [name for name, kind in kinds.items() if kind == "time"]
    parts = {name for form in files.times.values() if form.how == "parts" for name in form.columns}
    steps = _called("time", [name for name, kind in kinds.items() if kind == "number" and name not in parts])
    for name in (name for name in steps if _is_cycle(files, name)):
        log.info("column %s goes round, as hours of a day do: graph.time_column=%s takes it as steps", name, name)
    steps = [name for name in steps if not _is_cycle(files, name)]
    ranks = {name: -2.0 * max(_plainness("time", name), 2 * (name in parts)) for name in dates}
    ranks |= {name: -3.0 if _plainness("time", name) == 2 else 1.0 for name in steps}
    best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    if len(best) < 2:
        return best[0] if best else None
    values = {name: floats(column) for name, column in zip(best, files.first_batch(best).columns, strict=True)}
    finite = {name: own[np.isfinite(own)] for name, own in values.items()}
    distinct = {name: len(np.unique(own)) for name, own in finite.items()}
    most = max(distinct.values())
    return min(best, key=lambda name: ((np.diff(finite[name]) < 0).any(), distinct[name] < 0.8 * most))


def _is_cycle(files: TableFiles, name: str) -> bool:
    """Whether numbers are hours of the day, days of the month, ...: they go back to where they began."""
    most = max((_CYCLES[word] for word in words(name) if word in _CYCLES), default=0)
    values = floats(files.first_batch([name]).column(0)) if most else np.zeros(0)
    finite = values[np.isfinite(values)]
    num_falls = int(np.count_nonzero(np.diff(finite) < 0))
    if not num_falls or finite.min() < 0 or finite.max() > most:
        return False
    return most != _CYCLES["day"] or num_falls < 0.1 * len(finite)  # days in no order may be those of a month or two


def _with_times_as_numbers(files: TableFiles, names: Sequence[str], columns: Columns) -> TableFiles:
    """The files, numbers that are times read as such, unless a column is the amount or the weight."""
    taken = (columns.amount, columns.weight, columns.time if columns.step_seconds is not None else None)
    able = [name for name in names if name not in taken and kind_of(files, name, is_category=False) == "number"]
    able = [name for name in able if not pa.types.is_boolean(files.type_of(name))]
    batch, times = files.first_batch(able) if able else {}, {}
    for name in able:
        is_whole = pa.types.is_integer(files.type_of(name))
        may_be = is_whole or _plainness("time", name) or not _plainness("amount", name)
        how = guess_format(floats(batch[name]), may_be_parts=True) if may_be else None
        if how == "digits" and not (is_whole or _plainness("time", name)):
            how = None
        if how:
            times[name] = TimeFormat((name,), how)
    parts = [next((name for name in able if words(name) == (word,)), None) for word in ("year", "month", "day")]
    if all(parts) and not any(kind_of(files, name, is_category=False) == "time" for name in names):
        times[str(parts[0])] = TimeFormat(tuple(map(str, parts)), "parts")
    return files.with_times(times)


def _whole_time(files: TableFiles, time: str, names: Sequence[str]) -> TimeFormat | None:
    """How the time is read where a column beside dates has the time of day, or its hour."""
    form, kind = files.times.get(time), files.type_of(time)
    is_time = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    if not is_time or (floats(files.first_batch([time]).column(0)) % 1.0 > 0.0).any():
        return form
    clocks = [name for name in names if pa.types.is_time(files.type_of(name))]
    hours = [n for n in names if "hour" in words(n) and pa.types.is_integer(files.type_of(n)) and _is_cycle(files, n)]
    clock = next((name for name in _called("time", clocks)), clocks[0] if len(clocks) == 1 else None)
    clock = clock or (hours[0] if hours else None)
    if clock is None:
        return form
    return TimeFormat(form.columns, form.how, clock) if form else TimeFormat((time,), "date", clock)


def columns_of_new(files: TableFiles, about: Mapping[str, Any], columns: Columns) -> RowColumns:
    """The columns of a later table that are called as in the first, about which a graph says this; else InputError."""
    names, form = {role: about[role] for role in _LEGAL if about.get(role)}, format_from_json(about.get("read"))
    for role, name in [*names.items(), *(("time", name) for name in (form.stored if form else ()))]:
        files.check_columns(f"graph.{role}_column", [name])
    read = [*names.values(), *(form.stored if form else ())]
    files = files.with_text_formats(list(dict.fromkeys(read)), columns.dates, columns.numbers)
    files = files.with_most([name for role, name in names.items() if _LEGAL[role] != "of texts"], columns.dates)
    files = files.with_times({about["time"]: form}) if form else files
    kinds = {"time": "number" if about["steps"] else "time", "amount": "number", "currency": "text", "category": "text"}
    for role, name in names.items():
        if kind_of(files, name, is_category=_LEGAL[role] == "of texts") != kinds[role]:
            what = f"is of type {files.type_of(name)}; in the table of the run it is a {kinds[role]}"
            raise InputError(f"column {name!r} of {files.origin}, the {role} of its rows, {what}")
    named = (about["time"], about["amount"], about["currency"], about.get("category"))
    currencies, categories = (list(about.get(name) or ()) for name in ("currencies", "categories"))
    return RowColumns(files, *named, has_steps=about["steps"], currencies=currencies, categories=categories)


def _named(files: TableFiles, role: str, name: str | None, kinds: dict[str, str], legal: tuple[str, ...]) -> str | None:
    """The column that an option names; InputError where it is not there or not of a legal kind."""
    if name is None:
        return None
    files.check_columns(f"graph.{role}_column", [name])
    if kinds.get(name) not in legal:
        why = "an end of the edges or left out" if name not in kinds else f"of type {files.type_of(name)}"
        raise InputError(f"graph.{role}_column={name!r} of {files.origin} is {why}; legal is a column {_LEGAL[role]}")
    return name
