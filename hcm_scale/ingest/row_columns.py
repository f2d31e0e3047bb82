"""Rows of an edge table as payments: which column is their time, amount and currency, and how it was read.

An option names a column (`graph.time_column`, ...); else

| role     | the column is the first                                                                        |
|----------|------------------------------------------------------------------------------------------------|
| time     | of dates, times, or whole numbers that are s, ms, us or ns of the years 2001 to 2036; else of   |
|          | numbers called as a time is, such as `step`: of a day each, or of a second where they span over |
|          | 100,000                                                                                        |
| amount   | of numbers called as an amount is, such as `amount`; where rows have a time, such as `value`   |
|          | too, else the weight of edges, or the only one of decimals                                     |
| currency | of texts called as one is                                                                      |

Rows are kept where they have a time or an amount, in the order of time, each with its number in the table: payer and
payee, seconds since 1970 by the clocks of the column's zone (0 where the table has no time), the amount as it stands
(NaN for a gap), and the number of its currency. Left out are rows of an unknown end, without a time, or far from the
time of all others: one row of the year 1 would make a moment of all that came after. `lines` says all of this.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.npy import save_npy
from hcm_scale.base.text import words
from hcm_scale.graph.check import PAYMENTS
from hcm_scale.ingest.edge_columns import NumberColumn, TextColumn, TimeColumn, kind_of
from hcm_scale.ingest.policy import Columns, InputError, not_finite
from hcm_scale.ingest.table_files import TableFiles

_NAMES = {
    "time": {"time", "timestamp", "step", "date", "datetime", "day", "hour", "tick", "dt", "ts", "when", "period"},
    "amount": {"amount", "amt", "betrag", "montant", "importe", "importo", "paid", "value", "sum", "total", "price"},
    "currency": {"currency", "ccy", "curr", "waehrung", "währung", "devise", "moneda", "valuta"},
}
_PLAIN_AMOUNTS = {"value", "sum", "total", "price"}  # which are amounts of rows that have a time alone
_LEGAL = {"time": "of times or numbers", "amount": "of numbers", "currency": "of texts"}
_SPAN_OF_DAYS = 100_000  # steps that are more are seconds
_DAY = 86_400.0
_FAR = 3.0  # times as long as all but a hundredth of the rows take, on either side of them


@dataclass
class RowColumns:
    """The columns of an edge table that its rows are kept by, a name each, None where there is none."""

    files: TableFiles
    time: str | None
    amount: str | None
    currency: str | None
    has_steps: bool = False  # the time is a number of steps
    lines: dict[str, str] = field(default_factory=dict)  # by column, how it was read
    currencies: list[str] = field(default_factory=list)

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

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._columns.values()]

    @property
    def layout(self) -> list[tuple[str, str]]:
        return [(role, column.dtype) for role, (_, column) in self._columns.items()]

    def read(self, batch: pa.RecordBatch, rows: NDArray[Any], first_row: int) -> None:
        for role, (name, column) in self._columns.items():
            rows[role] = column.read(batch[name], first_row)

    def write(self, folder: Path, blocks: Iterator[NDArray[Any]]) -> dict[str, Any]:
        """Writes the rows as arrays of a graph folder; returns what the manifest says of them."""
        fields = ["u", "v", *self._columns]
        every = np.concatenate([rows[fields] for rows in blocks])
        seconds = self._seconds(every["row time"]) if self.time else _DAY
        time = self._times(every, seconds)
        has_ends = (every["u"] >= 0) & (every["v"] >= 0)
        is_kept = has_ends & np.isfinite(time)
        low, high = np.quantile(time[is_kept], [0.01, 0.99]) if is_kept.any() else (0.0, 0.0)
        reach = _FAR * max(high - low, _DAY)
        is_near = (time >= low - reach) & (time <= high + reach)
        self._say(every, time, has_ends, is_kept, is_near)
        number = np.flatnonzero(is_kept & is_near)
        number = number[np.argsort(time[number], kind="stable")]
        chosen = every[number]
        none = np.zeros(len(number), np.uint8)
        arrays = {
            "payer": chosen["u"],
            "payee": chosen["v"],
            "time": time[number],
            "amount": chosen["row amount"] if self.amount else np.full(len(number), np.nan),
            "currency": chosen["row currency"] if self.currency else none,
            "number": number,
        }
        for name, dtype in PAYMENTS.items():
            save_npy(folder / f"row_{name}.npy", np.ascontiguousarray(arrays[name], dtype))
        told = {"time": self.time, "amount": self.amount, "currency": self.currency, "steps": self.has_steps}
        return told | {"currencies": self.currencies, "seconds": seconds}

    def read_all(self, seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8]]:
        """Times, amounts and currencies of all rows in the table's order; a step takes so many seconds."""
        blocks, first = [np.empty(0, self.layout)], 0
        for batch in self.files.batches(self.names):
            blocks.append(np.empty(len(batch), self.layout))
            self.read(batch, blocks[-1], first)
            first += len(batch)
        every = np.concatenate(blocks)
        amount = every["row amount"] if self.amount else np.full(first, np.nan)
        return (
            self._times(every, seconds),
            amount,
            every["row currency"] if self.currency else np.zeros(first, np.uint8),
        )

    def _times(self, every: Any, seconds: float) -> NDArray[np.float64]:
        time = every["row time"] * seconds if self.time else np.zeros(len(every))
        return np.asarray(np.rint(time * 1e3) / 1e3)  # a float has 6:00 as 5:59:59.999999

    def _seconds(self, time: NDArray[np.float64]) -> float:
        """Seconds of what the column counts: days, or steps."""
        if not self.has_steps:
            return _DAY
        span = np.nanmax(time) - np.nanmin(time) if np.isfinite(time).any() else 0.0
        return 1.0 if span > _SPAN_OF_DAYS else _DAY

    def _say(self, every: Any, time: Any, has_ends: Any, is_kept: Any, is_near: Any) -> None:
        if self.time:
            kept = time[is_kept & is_near]
            if self.has_steps:
                unit = "day" if self._seconds(every["row time"]) == _DAY else "second"
                how = f"numbers of steps, a {unit} each"
            else:
                how = "dates" if not (kept % _DAY).any() else "dates and times"
                if pa.types.is_integer(self.files.type_of(self.time)):
                    how = "times since 1970"
            notes = [how, "sorted" if not (np.diff(kept) < 0).any() else "not sorted"]
            if num := int(np.count_nonzero(has_ends & ~is_kept)):
                notes.append(f"{num:,} have none")
            if num := int(np.count_nonzero(is_kept & ~is_near)):
                notes.append(f"{num:,} far from all others are not judged by it")
            self.lines[self.time] = f"the time of each row ({', '.join(notes)})"
        if self.amount:
            amount = every["row amount"][is_kept]
            counts = {"missing": ~np.isfinite(amount), "not above 0": amount <= 0.0}
            notes = [f"{num:,} {what}" for what, is_so in counts.items() if (num := int(np.count_nonzero(is_so)))]
            self.lines[self.amount] = "the amount of each row" + f" ({', '.join(notes)})" * bool(notes)
        if self.currency:
            column = self._columns["row currency"][1]
            self.currencies = list(column.values[:-1] if len(column.values) > 64 else column.values)
            self.lines[self.currency] = "the currency of each row's amount"


def row_columns(files: TableFiles, columns: Columns) -> RowColumns | None:
    """The columns that rows are kept by, as options or names say; None where there is neither a time nor an amount."""
    kinds = {
        name: kind_of(files, name, is_category=name in columns.categorical)
        for name in files.schema.names
        if name not in (columns.source, columns.target, *columns.exclude, *files.index_columns)
    }
    called = {role: [name for name in kinds if set(words(name)) & names] for role, names in _NAMES.items()}
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    dates = [name for name, kind in kinds.items() if kind == "time"]
    time = _named(files, "time", columns.time, kinds, ("time", "number"))
    time = time or next(iter([*dates, *(n for n in called["time"] if n in numbers)]), None)
    amount = _named(files, "amount", columns.amount, kinds, ("number",))
    likely = [name for name in called["amount"] if name in numbers and name != time]
    decimals = [name for name in numbers if not pa.types.is_integer(files.type_of(name)) and name != time]
    amount = amount or next(iter(likely), None) or columns.weight
    amount = amount or (decimals[0] if time and len(decimals) == 1 else None)
    currency = _named(files, "currency", columns.currency, kinds, ("text",))
    currency = currency or next((name for name in called["currency"] if kinds[name] == "text"), None)
    if time is None and columns.amount is None:
        sure = [name for name in likely if set(words(name)) & (_NAMES["amount"] - _PLAIN_AMOUNTS)]
        amount = next(iter(sure), None)
    if time is None and amount is None:
        return None
    return RowColumns(files, time, amount, currency if amount else None, has_steps=time is not None and time in numbers)


def columns_of_new(files: TableFiles, about: Mapping[str, Any], columns: Columns) -> RowColumns:
    """The columns of a later table that are called as in the first, about which a graph says this; else InputError."""
    names = {role: about[role] for role in _LEGAL if about[role]}
    for role, name in names.items():
        files.check_columns(f"graph.{role}_column", [name])
    files = files.with_text_formats(list(names.values()), columns.dates, columns.numbers)
    kinds = {"time": "number" if about["steps"] else "time", "amount": "number", "currency": "text"}
    for role, name in names.items():
        if kind_of(files, name, is_category=role == "currency") != kinds[role]:
            what = f"is of type {files.type_of(name)}; in the table of the run it is a {kinds[role]}"
            raise InputError(f"column {name!r} of {files.origin}, the {role} of its rows, {what}")
    named = (about["time"], about["amount"], about["currency"])
    return RowColumns(files, *named, has_steps=about["steps"], currencies=list(about["currencies"]))


def _named(files: TableFiles, role: str, name: str | None, kinds: dict[str, str], legal: tuple[str, ...]) -> str | None:
    """The column that an option names; InputError where it is not there or not of a legal kind."""
    if name is None:
        return None
    files.check_columns(f"graph.{role}_column", [name])
    if kinds.get(name) not in legal:
        why = "an end of the edges or left out" if name not in kinds else f"of type {files.type_of(name)}"
        raise InputError(f"graph.{role}_column={name!r} of {files.origin} is {why}; legal is a column {_LEGAL[role]}")
    return name
