"""Numbers and dates that a table holds as text, each column in one form: found by all of its values, and read as meant.

| form                 | values                            | which some value must show                               |
|----------------------|-----------------------------------|----------------------------------------------------------|
| dates                | `2024-01-31`, `2024-01-31 18:00`  |                                                          |
| decimal commas       | `6451,65`, `1.234,5`, `12`        | decimals, not of three digits where some have none       |
| points of thousands  | `323`, `2.955`, `1.250.000`       | two points; or one, and another value none               |
| decimal points       | `7.123`, `12.5-`, `12`            | a point, or a minus at the end                           |

A minus may stand at the end, as SAP writes it. CSV files separated by `;` alone are read with points of thousands: in
others, and in tables that are no CSV, `2.955` may well be less than 3, and the line of the column says so.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Form:
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
    Form(_THOUSANDS, (r"\..*\.",), pa.int64(), "its points are of thousands"),
    Form(_THOUSANDS, (r"^[-+]?\d+-?$", r"\."), pa.int64(), "its points are of thousands"),
)
TEXT_FORMS = (
    *POINTS_OF_THOUSANDS,
    Form(rf"{_DAY}$", ("-",), pa.date32()),
    Form(rf"{_DAY}({_TIME})?$", ("-",), pa.timestamp("s")),
    Form(rf"{_DAY}({_TIME}(\.\d{{1,9}})?)?$", ("-",), pa.timestamp("ns")),
    Form(_signed(_COMMAS), (",",), pa.float64(), _COMMA),
    Form(_signed(rf"{_WHOLE}|{_GROUPS}|{_COMMAS}"), (r",(\d{1,2}|\d{4,})-?$|\..*,",), pa.float64(), _COMMA),
    Form(_signed(rf"({_WHOLE})(\.\d*)?([eE][-+]?\d+)?"), (r"\.|-$",), pa.float64()),
)
MAY_BE_THOUSANDS = "if its points are of thousands (2.955 for 2955), write it without them"


class FormSearch:
    """Which of some forms all values of a text column have.

    >>> search = FormSearch(TEXT_FORMS)
    >>> search.add(pa.array(["1,5", None, "12", "1.234,50-"]))
    True
    >>> form, told = search.chosen(of_thousands=False)
    >>> form.read(pa.array(["1.234,50-"])).to_pylist(), told
    ([-1234.5], 'written with a decimal comma')
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self._missing = {form: set(form.marks) for form in forms}

    def add(self, column: pa.Array) -> bool:
        """Takes some more values; returns whether any form is left."""
        values = trimmed(column.unique())
        self._missing = {form: missing for form, missing in self._missing.items() if form.fits(values)}
        for missing in self._missing.values():
            missing -= {m for m in missing if pc.any(pc.match_substring_regex(values, m)).as_py()}
        return bool(self._missing)

    def chosen(self, of_thousands: bool) -> tuple[Form | None, str]:
        """The form to read the column by, if any, and what its line says; whether points of thousands are read."""
        settled = [form for form, missing in self._missing.items() if not missing]
        legal = [form for form in settled if of_thousands or form not in POINTS_OF_THOUSANDS]
        form = legal[0] if legal else None
        return form, MAY_BE_THOUSANDS if legal[:1] != settled[:1] else form.told if form else ""


def trimmed(column: pa.Array) -> pa.Array:
    """The values as text, without spaces around them, as the CSV reader takes numbers."""
    return pc.ascii_trim_whitespace(column.cast(pa.large_string()))


def with_forms(batch: pa.RecordBatch, forms: Mapping[str, Form]) -> pa.RecordBatch:
    """The batch, those columns read that have a form."""
    columns = [forms[name].read(batch[name]) if name in forms else batch[name] for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)
