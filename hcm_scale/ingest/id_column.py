"""Id columns as they come: text, integers, or whole numbers that some tool wrote as floats.

`id_kind` settles for a set of columns whether ids are text or integers; `IdReader` brings each batch to that type and
counts what cannot be an id: fractions, negative numbers, nulls, and what would be merged with another id.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.names import ID_TYPES
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.policy import Offenders

_AS_TEXT = "graph.id_type=text takes them as names"
_MOST = 2**63 - 1
_DIGITS = "^(0|[1-9][0-9]{0,18})$"  # as many as uint64 can hold


def id_kind(columns: Sequence[tuple[str, pa.DataType]], id_type: str = "auto") -> str:
    """'text' or 'integer' for columns given as (name, type); under 'auto' they must agree.

    >>> id_kind([("source", pa.string()), ("target", pa.string())])
    'text'
    """
    if id_type not in ID_TYPES:
        raise ValueError(f"graph.id_type={id_type!r} must be one of {', '.join(map(repr, ID_TYPES))}")
    kinds = set()
    for name, stored in columns:
        kind = stored.value_type if pa.types.is_dictionary(stored) else stored
        plain = is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if pa.types.is_nested(kind) or not (plain or id_type != "auto"):
            raise InputError(f"column {name!r} of type {kind} cannot hold ids; legal are text and integers")
        kinds.add("text" if is_text(kind) else "integer")
    if id_type != "auto":
        return id_type
    if len(kinds) > 1:
        described = ", ".join(f"{name!r} is {kind}" for name, kind in columns)
        raise InputError(f"ids are of two types: {described}; graph.id_type=text or integer reads them alike")
    return kinds.pop()


@dataclass
class IdReader:
    """Brings id columns of one table to one type; `where` names its rows in messages, `place` one of them."""

    kind: str
    where: str
    place: Callable[[int], str] = "row {:,}".format
    fractional: Offenders = field(init=False)
    rounded: Offenders = field(init=False)
    large: Offenders = field(init=False)
    odd: Offenders = field(init=False)
    negative: Offenders = field(init=False)
    null: Offenders = field(init=False)

    def __post_init__(self) -> None:
        self.fractional = Offenders("fractional ids", self.where)
        rounded = "ids are floats so large that different ones cannot be told apart"
        self.rounded = Offenders(rounded, self.where, _AS_TEXT)
        self.large = Offenders(f"ids above {_MOST}", self.where, _AS_TEXT)
        self.odd = Offenders("ids are no plain whole numbers", self.where, _AS_TEXT)
        self.negative = Offenders("negative ids", self.where, _AS_TEXT)
        self.null = Offenders("missing ids", self.where)

    def read(self, column: pa.Array, first_row: int) -> pa.Array:
        """The batch as large_string or int64, nulls kept; faults are counted, their values set to null."""
        self.null.add(_mask(column.is_null()), lambda i: self.place(first_row + i))
        if self.kind == "text":
            return column.cast(pa.large_string())
        if pa.types.is_floating(column.type):
            column = self._whole(column, first_row)
        elif is_text(column.type):
            column = self._plain(column, first_row)
        elif pa.types.is_uint64(column.type):
            column = self._small(column, first_row)
        numbers = column.cast(pa.int64())
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        self.negative.add(values < 0, lambda i: f"{self.place(first_row + i)}: {values[i]}")
        return numbers

    def check(self, nulls: bool = True) -> None:
        """Raises for the first kind of fault that was met."""
        of_values = self.fractional, self.rounded, self.large, self.odd, self.negative
        for offenders in (*of_values, self.null) if nulls else of_values:
            offenders.check()

    def _whole(self, column: pa.Array, first_row: int) -> pa.Array:
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        whole = values == np.floor(values)
        exact = np.abs(values) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
        self.fractional.add(~whole, lambda i: f"{self.place(first_row + i)}: {values[i]}")
        self.rounded.add(whole & ~exact, lambda i: f"{self.place(first_row + i)}: {values[i]}")
        good = whole & exact
        return pa.array(np.where(good, values, 0).astype(np.int64), mask=~good | _mask(column.is_null()))

    def _small(self, column: pa.Array, first_row: int) -> pa.Array:
        fits = pc.less_equal(column, pa.scalar(_MOST, pa.uint64()))
        self.large.add(~_mask(fits.fill_null(True)), lambda i: f"{self.place(first_row + i)}: {column[i]}")
        return pc.if_else(fits, column, None)

    def _plain(self, column: pa.Array, first_row: int) -> pa.Array:
        """Text of a CSV as integers: exact at any size, and none that a number would not keep, as 007, 0x1, 1e3."""
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = column.cast(pa.int64())
            if not pc.any(pc.and_(pc.starts_with(column, "0"), pc.greater(pc.binary_length(column), 1))).as_py():
                return numbers
        digits = pc.replace_substring_regex(pc.ascii_trim_whitespace(column), "\\.0*$", "")
        is_digits = pc.match_substring_regex(digits, _DIGITS)
        sizes = pc.if_else(is_digits, digits, "0").cast(pa.uint64())
        plain = pc.and_(is_digits, pc.less_equal(sizes, pa.scalar(_MOST, pa.uint64())))
        self.odd.add(~_mask(plain.fill_null(True)), lambda i: f"{self.place(first_row + i)}: {column[i]}")
        return pc.if_else(plain, sizes, None)


def _mask(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
