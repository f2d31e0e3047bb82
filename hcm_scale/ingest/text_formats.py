"""Text that looks like numbers or dates in another form than is read as such: `1,234.56`, `1.234,56 €`, `31.01.2024`.

It stays text, since 03/04/2024 and 1,234 are two things in two countries; the line of its column says so, and how to
write it. Where nearly all values look like numbers it says how many, and shows the first that does not.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.console import shorten

# ----------------------------------------------------------------------------
# Numbers and dates that a table holds as text, each column in one form: found by all of its values, and read as
# meant.
#
#| form                 | values                            | which some value must show                               |
#|----------------------|-----------------------------------|----------------------------------------------------------|
#| dates                | `2024-01-31`, `2024-01-31 18:00`  |                                                          |
#| decimal commas       | `6451,65`, `1.234,5`, `12`        | decimals, not of three digits where some have none       |
#| points of thousands  | `323`, `2.955`, `1.250.000`       | two points; or one, and another value none               |
#| decimal points       | `7.123`, `12.5-`, `12`            | a point, or a minus at the end                           |
#
# A minus may stand at the end, as SAP writes it. CSV files separated by `;` alone are read with points of thousands:
# in others, and in tables that are no CSV, `2.955` may well be less than 3, and the line of the column says so.


@dataclass(frozen=True)
class TextFormat:
    """A way to write values of the type `kind`: all match `pattern`, and each of `marks` is found in some value."""

    pattern: str
    marks: tuple[str, ...]
    kind: pa.DataType
    told: str = ""  # in the line of the column

    def fits(self, values: pa.Array) -> bool:
        """Whether all values, gaps apart, are of this form."""
        if not pc.all(pc.match_substring_regex(values, self.pattern), min_count=0).as_py():
            return False
        with contextlib.suppress(pa.ArrowInvalid):  # there is no 2024-02-31
            return not self._is_date or len(self.read(values)) == len(values)
        return False

    def read(self, values: pa.Array) -> pa.Array:
        """Values of this form as what they mean."""
        values = trimmed(values)
        if self._is_date:
            return values.cast(self.kind)
        if self.kind == pa.int64() or self.told == _COMMA:
            values = pc.replace_substring(values, ".", "")
        values = pc.replace_substring_regex(pc.replace_substring(values, ",", "."), r"^\+", "")
        return pc.replace_substring_regex(values, r"^(.*)-$", r"-\1").cast(self.kind)

    @property
    def _is_date(self) -> bool:
        return pa.types.is_date(self.kind) or pa.types.is_timestamp(self.kind)


def _signed(number: str) -> str:
    return rf"^([-+]?({number})|({number})-)$"


_COMMA = "written with a decimal comma"
_DAY, _TIME = r"^\d{4}-\d{2}-\d{2}", r"[ T]\d{2}:\d{2}(:\d{2})?"
_WHOLE = r"0|[1-9]\d*"
_GROUPS = r"[1-9]\d{0,2}(\.\d{3}){1,5}"  # as many as an int64 holds
_THOUSANDS = _signed(rf"0|[1-9]\d{{0,2}}|{_GROUPS}")
_COMMAS = r"(\d{1,3}(\.\d{3})*|\d+),\d+"
POINTS_OF_THOUSANDS = (
    TextFormat(_THOUSANDS, (r"\..*\.",), pa.int64(), "its points are of thousands"),
    TextFormat(_THOUSANDS, (r"^[-+]?\d+-?$", r"\."), pa.int64(), "its points are of thousands"),
)
TEXT_FORMATS = (
    *POINTS_OF_THOUSANDS,
    TextFormat(rf"{_DAY}$", ("-",), pa.date32()),
    TextFormat(rf"{_DAY}({_TIME})?$", ("-",), pa.timestamp("s")),
    TextFormat(rf"{_DAY}({_TIME}(\.\d{{1,9}})?)?$", ("-",), pa.timestamp("ns")),
    TextFormat(_signed(_COMMAS), (",",), pa.float64(), _COMMA),
    TextFormat(_signed(rf"{_WHOLE}|{_GROUPS}|{_COMMAS}"), (r",(\d{1,2}|\d{4,})-?$|\..*,",), pa.float64(), _COMMA),
    TextFormat(_signed(rf"({_WHOLE})(\.\d*)?([eE][-+]?\d+)?"), (r"\.|-$",), pa.float64()),
)
MAY_BE_THOUSANDS = "if its points are of thousands (2.955 for 2955), write it without them"


class TextFormatSearch:
    """Which of some forms all values of a text column have.

    >>> search = TextFormatSearch(TEXT_FORMATS)
    >>> search.add(pa.array(["1,5", None, "12", "1.234,50-"]))
    True
    >>> form, told = search.chosen(of_thousands=False)
    >>> form.read(pa.array(["1.234,50-"])).to_pylist(), told
    ([-1234.5], 'written with a decimal comma')
    """

    def __init__(self, forms: Sequence[TextFormat]) -> None:
        self._missing = {form: set(form.marks) for form in forms}

    def add(self, column: pa.Array) -> bool:
        """Takes some more values; returns whether any form is left."""
        values = trimmed(column.unique())
        self._missing = {form: missing for form, missing in self._missing.items() if form.fits(values)}
        for missing in self._missing.values():
            missing -= {m for m in missing if pc.any(pc.match_substring_regex(values, m)).as_py()}
        return bool(self._missing)

    def chosen(self, of_thousands: bool) -> tuple[TextFormat | None, str]:
        """The form to read the column by, if any, and what its line says; whether points of thousands are read."""
        settled = [form for form, missing in self._missing.items() if not missing]
        legal = [form for form in settled if of_thousands or form not in POINTS_OF_THOUSANDS]
        form = legal[0] if legal else None
        return form, MAY_BE_THOUSANDS if legal[:1] != settled[:1] else form.told if form else ""


def trimmed(column: pa.Array) -> pa.Array:
    """The values as text, without spaces around them, as the CSV reader takes numbers."""
    return pc.ascii_trim_whitespace(column.cast(pa.large_string()))


def parse_texts(batch: pa.RecordBatch, forms: Mapping[str, TextFormat]) -> pa.RecordBatch:
    """The batch, those columns read that have a form."""
    columns = [forms[name].read(batch[name]) if name in forms else batch[name] for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


_UNIT = r"(\p{Sc}|%|[A-Z]{3})?"  # a currency, or per cent
_AMOUNT = r"(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}([.' \x{a0}]\d{3})+(,\d+)?|\d+([.,]\d+)?)"
_ANY_DAY = r"(\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./-]\d{1,2}[./-]\d{1,2})"
_FORMS = {
    "numbers": rf"^[-+]?{_UNIT} ?[-+]?{_AMOUNT} ?{_UNIT}-?$",
    "dates": rf"^{_ANY_DAY}([ T].*)?$",
}
_DIGITS, _CODE = r"^\d*$", r"^0\d"  # codes and ids: 00731
_NEARLY_ALL, _SHOWN = 0.9, 40  # the share of values; characters of one
FORMAT_EXAMPLES = {"numbers": "1234.56", "dates": "2024-01-31"}


class FormatGuess:
    """What all values of a text column look like: a name in `WRITTEN`, or nothing.

    >>> looks = FormatGuess()
    >>> looks.add(pa.array(["1,234.56", "17"]), np.array([1, 20]))
    >>> looks.settled()
    'numbers'
    >>> looks.add(pa.array(["unknown"]), np.array([2]))
    >>> looks.mostly()
    "21 of its 23 values look like numbers, the first of the others is 'unknown'"
    """

    def __init__(self) -> None:
        self._left = list(_FORMS)
        self._all_digits = True
        self._num_values = self._num_numbers = 0
        self._other = ""

    def add(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        """Takes some more values, none of them null, and how often each occurs."""
        is_number = _matches(values, _FORMS["numbers"]) & ~_matches(values, _CODE)
        if not self._other and not is_number.all():
            self._other = values[int(np.argmin(is_number))].as_py()
        self._num_values += int(counts.sum())
        self._num_numbers += int(counts[is_number].sum())
        self._left = [name for name in self._left if _matches(values, _FORMS[name]).all()]
        self._all_digits = self._all_digits and bool(self._left) and bool(_matches(values, _DIGITS).all())

    def settled(self) -> str:
        """The name; empty where values are of no form, or bare digits, as codes are."""
        return self._left[0] if self._left and not self._all_digits else ""

    def mostly(self) -> str:
        """How many values look like numbers, and the first that does not; empty where all do, or not nearly all."""
        if not _NEARLY_ALL * self._num_values <= self._num_numbers < self._num_values:
            return ""
        counted = f"{self._num_numbers:,} of its {self._num_values:,} values look like numbers"
        return f"{counted}, the first of the others is {shorten(self._other, _SHOWN)!r}"


def _matches(values: pa.Array, form: str) -> NDArray[np.bool_]:
    return np.asarray(pc.match_substring_regex(values, form).to_numpy(zero_copy_only=False), np.bool_)
