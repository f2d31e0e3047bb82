"""Times that are written as numbers, or in several columns of an edge table: how they are read as one column of times.

| `how`            | the columns hold                                                                              |
|------------------|-----------------------------------------------------------------------------------------------|
| s, ms, us, ns    | numbers, whole or not, that are such parts of time since 1970, of the years 2001 to 2036      |
| digits           | whole numbers such as 20240131, 20240131093000 or, of eight days at least, 240131             |
| parts            | year, month and day                                                                           |
| date             | dates or times as they are                                                                    |

Beside each may stand a `clock`, a column of the time of day, or of its hour. A gap in any of them is one of the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types as t

from hcm_scale.base.files import typed
from hcm_scale.ingest.encode import floats
from hcm_scale.ingest.policy import InputError

_EPOCHS = {"s": 1e9, "ms": 1e12, "us": 1e15, "ns": 1e18}  # the least of numbers that are such times
_HOW = (*_EPOCHS, "digits", "parts", "date")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAYS, _CLOCKS = (19_000_101, 21_001_231), 1_000_000
_SHORT_DAYS, _FEWEST_SHORT = 100_101, 8  # days without the century, from 1970 to 2069; so many do not look so by chance
Values = NDArray[np.float64]


@dataclass(frozen=True)
class TimeFormat:
    """How a column of times is read from others."""

    columns: tuple[str, ...]
    how: str
    clock: str | None = None

    @property
    def stored(self) -> tuple[str, ...]:
        return self.columns if self.clock is None else (*self.columns, self.clock)

    @property
    def kind(self) -> pa.DataType:
        return pa.timestamp(self.how if self.how in _EPOCHS and self.clock is None else "us")

    def read(self, batch: Mapping[str, pa.Array]) -> pa.Array:
        """The times of a batch, as `kind`; nulls where there is none."""
        values = [_local(batch[name]) for name in self.columns]
        if self.how in _EPOCHS and self.clock is None:
            return _made(values[0], self.how)
        if self.how in _EPOCHS:
            seconds = values[0] / _PER_SECOND[self.how]
        elif self.how == "date":
            seconds = values[0] * 86_400.0
        else:
            seconds = _seconds_of_parts(values) if self.how == "parts" else seconds_of_digits(values[0])
        if self.clock is not None:
            hours = 3_600.0 if not t.is_time(batch[self.clock].type) else 86_400.0
            seconds = seconds + hours * floats(batch[self.clock])
        return _made(seconds * 1e6, "us")


def _local(column: pa.Array) -> Values:
    return floats(column.cast(pa.timestamp("us")) if t.is_timestamp(column.type) and column.type.tz is None else column)


def _made(values: Values, unit: str) -> pa.Array:
    is_gap = ~(np.abs(values) < 2.0**63)
    return pa.array(np.where(is_gap, 0.0, np.rint(values)).astype(np.int64), pa.timestamp(unit), mask=is_gap)


def guess_format(values: Values, may_be_parts: bool = False) -> str | None:
    """What all finite values of a column look like; `may_be_parts` of a second, where they need not be whole.

    >>> [guess_format(np.array([value, np.nan])) for value in (1.7e9, 1.7e12, 20240131.0, 20240131093000.0, 20241331.0)]
    ['s', 'ms', 'digits', 'digits', None]
    """
    finite = values[np.isfinite(values)]
    if not len(finite) or not (may_be_parts or (finite == np.floor(finite)).all()):
        return None
    for how, least in _EPOCHS.items():
        if least <= finite.min() and finite.max() < 2.1 * least:
            return how
    is_sure = finite.max() >= _CLOCKS or len(np.unique(finite)) >= _FEWEST_SHORT
    return "digits" if is_sure and np.isfinite(seconds_of_digits(finite)).all() else None


def seconds_of_digits(values: Values) -> Values:
    """Seconds since 1970 of such numbers as 20240131, 20240131093000 and 240131; NaN of others."""
    is_short = (values >= _SHORT_DAYS) & (values < _CLOCKS)
    values = np.where(is_short, values + np.where(values >= 700_000, 19_000_000, 20_000_000), values)
    has_clock = values >= _DAYS[0] * _CLOCKS
    day, clock = np.where(has_clock, values // _CLOCKS, values), np.where(has_clock, values % _CLOCKS, 0.0)
    whole = (day >= _DAYS[0]) & (day <= _DAYS[1]) & (clock % 100 < 60) & (clock // 100 % 100 < 60) & (clock < 240_000)
    seconds = clock // 10_000 * 3_600.0 + clock // 100 % 100 * 60.0 + clock % 100
    return np.where(whole, _seconds_of_parts([day // 10_000, day // 100 % 100, day % 100]) + seconds, np.nan)


def _seconds_of_parts(parts: Sequence[Values]) -> Values:
    """Seconds since 1970 of years, months and days; NaN where there is no such day."""
    year, month, day = parts
    is_day = (year >= 1) & (year <= 9_999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(is_day, (year - 1970) * 12 + month - 1, 0).astype(np.int64).astype("M8[M]")
    days = months.astype("M8[D]") + np.where(is_day, day - 1, 0).astype("m8[D]")
    return np.where(is_day & (days.astype("M8[M]") == months), days.astype(np.int64) * 86_400.0, np.nan)


def format_from_json(value: Any) -> TimeFormat | None:
    """The format that a manifest holds; InputError where it is none of ours."""
    try:
        made = typed(value, TimeFormat | None)
        if made and (made.how not in _HOW or len(made.columns) != (3 if made.how == "parts" else 1)):
            raise TypeError
    except TypeError:
        raise InputError(f"the graph's manifest says that times of rows are read as {value!r:.99}: unknown") from None
    return made
