"""The ids of users' tables: read from columns of text or numbers, and numbered 0, 1, 2, ... in the order of arrival.

`id_kind` says for a set of columns whether ids are text or integers. `IdReader` brings each batch to that type and
counts what cannot be an id: fractions, negative numbers, nulls, and what would be merged with another id.

`GrowingIds` is an exact hash table with open addressing over flat arrays. Memory: the ids themselves, of text 8 bytes
an id for positions, and 8 to 16 bytes an id for the table. `find_in_range` has none.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_threads
from hcm_scale.graph.store import text_buffers
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.policy import InputError, Offenders

_FIRST_SLOTS = 1 << 10
_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_GOLDEN, _S32 = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
Numbers = NDArray[np.int64]
Arrays = tuple[NDArray[Any], ...]  # ids: offsets and bytes of texts, or integers


class GrowingIds:
    """UTF-8 texts or any 64-bit integers, of a kind that `id_kind` returns, numbered as they arrive.

    >>> ids = GrowingIds("text")
    >>> ids.add(pa.array(["b", "a", "b"])).tolist(), ids.find(pa.array(["a", "z"])).tolist()
    ([0, 1, 0], [1, -1])
    """

    def __init__(self, kind: str) -> None:
        self._is_text, self._count = kind == "text", 0
        offsets = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)
        self._stored: Arrays = (offsets, np.empty(1 << 14, np.uint8)) if self._is_text else (offsets[1:],)
        self._slots = np.full(_FIRST_SLOTS, -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def add(self, names: pa.Array) -> Numbers:
        """The number of each id (no nulls); a new id gets the next number."""
        ids, size = self._arrays(names), self._count + len(names)
        if self._is_text:
            (offsets, data), num_bytes = self._stored, int(ids[0][-1] - ids[0][0])
            self._stored = _grown(offsets, size + 1), _grown(data, int(offsets[self._count]) + num_bytes)
        else:
            self._stored = (_grown(self._stored[0], size),)
        if 2 * size > len(self._slots):
            self._slots = np.full(1 << (2 * size - 1).bit_length(), -1, np.int32)
            self._number(self._held(), 0, self._count)  # each gets the number that it has
        return self._number(ids, self._count, len(names))

    def find(self, names: pa.Array) -> Numbers:
        """The number of each id, -1 where it is not known."""
        out, find = np.empty(len(names), np.int64), find_texts if self._is_text else find_numbers
        run_in_threads(len(out), find, *self._arrays(names), *self._stored, self._slots, out)
        return out

    def column(self) -> pa.Array:
        if not self._is_text:
            return pa.array(self._held()[0])
        return pa.LargeStringArray.from_buffers(self._count, *map(pa.py_buffer, self._held()))

    def _number(self, ids: Arrays, first: int, num_ids: int) -> Numbers:
        """Numbers ids that are not known from `first` on; there is room for all, and half of the slots are free."""
        add: Callable[..., int] = add_texts if self._is_text else add_numbers
        out = np.empty(num_ids, np.int64)
        self._count = add(*ids, first, *self._stored, self._slots, out)
        return out

    def _held(self) -> Arrays:
        if not self._is_text:
            return (self._stored[0][: self._count],)
        offsets, data = self._stored
        return offsets[: self._count + 1], data[: offsets[self._count]]

    def _arrays(self, names: pa.Array) -> Arrays:
        return text_buffers(names) if self._is_text else (_integers(names),)


def find_in_range(count: int, names: pa.Array) -> Numbers:
    """As `find` of ids that are the numbers 0 .. count - 1 already: nothing to look up, nothing to store."""
    numbers = _integers(names)
    return np.where((numbers >= 0) & (numbers < count), numbers, -1)


def _integers(names: pa.Array) -> Numbers:
    return np.asarray(names.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array itself where it is long enough, else a copy with half as much room again as asked for."""
    if size <= len(array):
        return array
    grown = np.zeros(size + size // 2, array.dtype)
    grown[: len(array)] = array
    return grown


@kernel
def _text_slot(data, start, stop, stored_offsets, stored_data, slots):
    """The slot that holds the text, or the free one (-1) where it belongs, found from its FNV-1a hash on."""
    state = _FNV_BASIS
    for i in range(start, stop):
        state = (state ^ np.uint64(data[i])) * _FNV_PRIME
    mask = len(slots) - 1
    slot = np.int64((state ^ (state >> _S32)) & np.uint64(mask))
    while slots[slot] >= 0:
        number = slots[slot]
        if _same(data, start, stop, stored_data, stored_offsets[number], stored_offsets[number + 1]):
            break
        slot = (slot + 1) & mask
    return slot


@kernel
def _same(data, start, stop, stored_data, stored_start, stored_stop):
    if stop - start != stored_stop - stored_start:
        return False
    for i in range(stop - start):  # noqa: SIM110  a loop compiles to a compare, a generator does not
        if data[start + i] != stored_data[stored_start + i]:
            return False
    return True


@kernel
def _number_slot(number, stored, slots):
    mask = len(slots) - 1
    slot = np.int64(((np.uint64(number) * _GOLDEN) >> _S32) & np.uint64(mask))
    while slots[slot] >= 0 and stored[slots[slot]] != number:
        slot = (slot + 1) & mask
    return slot


@kernel
def find_texts(span, offsets, data, stored_offsets, stored_data, slots, out):
    """out[i] = number of text i, -1 where it is not known."""
    for i in range(span[0], span[1]):
        out[i] = slots[_text_slot(data, offsets[i], offsets[i + 1], stored_offsets, stored_data, slots)]


@kernel
def find_numbers(span, numbers, stored, slots, out):
    for i in range(span[0], span[1]):
        out[i] = slots[_number_slot(numbers[i], stored, slots)]


@kernel
def add_texts(offsets, data, count, stored_offsets, stored_data, slots, out):
    """out[i] = number of text i, the next one where it is new; returns the new count."""
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        slot = _text_slot(data, start, stop, stored_offsets, stored_data, slots)
        if slots[slot] < 0:
            end = stored_offsets[count]
            for k in range(stop - start):
                stored_data[end + k] = data[start + k]
            stored_offsets[count + 1] = end + stop - start
            slots[slot] = count
            count += 1
        out[i] = slots[slot]
    return count


@kernel
def add_numbers(numbers, count, stored, slots, out):
    for i in range(len(out)):
        slot = _number_slot(numbers[i], stored, slots)
        if slots[slot] < 0:
            stored[count] = numbers[i]
            slots[slot] = count
            count += 1
        out[i] = slots[slot]
    return count


def number_ids(take: Callable[[pa.Array], Numbers], column: pa.Array) -> Numbers:
    """The number of each id by `take`, the `find` or `add` of a table; -1 for nulls.

    >>> ids = GrowingIds("integer")
    >>> number_ids(ids.add, pa.array([7, None, 3])).tolist(), number_ids(ids.find, pa.array([3, 4])).tolist()
    ([0, -1, 1], [1, -1])
    """
    if not column.null_count:
        return take(column)
    out = np.full(len(column), -1)
    out[_mask(column.is_valid())] = take(column.drop_null())
    return out


def sort_ids(ids: GrowingIds, first: int) -> tuple[pa.Array, NDArray[np.int32]]:
    """The ids with those numbered from `first` on in ascending order, and the new number of each, with -1 appended.

    >>> ids = GrowingIds("integer")
    >>> _ = ids.add(pa.array([5, 7, 3]))
    >>> column, numbers = sort_ids(ids, 1)
    >>> column.to_pylist(), numbers.tolist()
    ([5, 3, 7], [0, 2, 1, -1])
    """
    column = ids.column()
    order = np.arange(len(column))
    order[first:] = first + pc.sort_indices(column[first:]).to_numpy()
    numbers = np.full(len(column) + 1, -1, np.int32)
    numbers[order] = np.arange(len(column))
    return column.take(pa.array(order)), numbers


def stored_ids(column: pa.Array) -> pa.Array | None:
    """The column, or None where its ids are 0 .. n - 1 in order, which need not be stored."""
    is_range = pa.types.is_integer(column.type) and np.array_equal(np.asarray(column), np.arange(len(column)))
    return None if is_range else column


_AS_TEXT = "graph.id_type=text takes them as names"
_MAX_ID = 2**63 - 1
_DIGITS = "^(0|[1-9][0-9]{0,18})$"  # as many as uint64 can hold


def id_kind(columns: Sequence[tuple[str, pa.DataType]], id_type: str = "auto") -> str:
    """'text' or 'integer' for columns given as (name, type); under 'auto' they must agree.

    >>> id_kind([("source", pa.string()), ("target", pa.string())])
    'text'
    """
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


class IdReader:
    """Brings id columns of one table to one type; `where` names its rows in messages, `describe_row` one of them."""

    def __init__(self, kind: str, where: str, describe_row: Callable[[int], str], remedy: str = _AS_TEXT) -> None:
        self._kind, self._describe_row = kind, describe_row
        self._fractional = Offenders("fractional ids", where)
        self._rounded = Offenders("ids are floats so large that different ones cannot be told apart", where, remedy)
        self._large = Offenders(f"ids above {_MAX_ID}", where, remedy)
        self._odd = Offenders("ids are no plain whole numbers", where, remedy)
        self._negative = Offenders("negative ids", where, remedy)
        self.null = Offenders("missing ids", where)

    def read(self, column: pa.Array, first_row: int) -> pa.Array:
        """The batch as large_string or int64, nulls kept; faults are counted, their values set to null."""

        def count(offenders: Offenders, is_bad: NDArray[np.bool_], values: Any) -> None:
            offenders.add(is_bad, lambda i: f"{self._describe_row(first_row + i)}: {values[i]}")

        self.null.add(_mask(column.is_null()), lambda i: self._describe_row(first_row + i))
        if self._kind == "text":
            return column.cast(pa.large_string())
        if pa.types.is_floating(column.type):
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            is_whole = values == np.floor(values)
            is_exact = np.abs(values) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
            count(self._fractional, ~is_whole, values)
            count(self._rounded, is_whole & ~is_exact, values)
            good = is_whole & is_exact
            column = pa.array(np.where(good, values, 0).astype(np.int64), mask=~good | _mask(column.is_null()))
        elif is_text(column.type):
            numbers, is_plain = _plain_numbers(column)
            count(self._odd, ~is_plain, column)
            column = numbers
        elif pa.types.is_uint64(column.type):
            fits = pc.less_equal(column, pa.scalar(_MAX_ID, pa.uint64()))
            count(self._large, ~_mask(fits.fill_null(True)), column)
            column = pc.if_else(fits, column, None)
        numbers = column.cast(pa.int64())
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        count(self._negative, values < 0, values)
        return numbers

    def check(self, nulls: bool = True) -> None:
        faults = (self._fractional, self._rounded, self._large, self._odd, self._negative)
        for offenders in (*faults, self.null) if nulls else faults:
            offenders.check()


def _plain_numbers(column: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Text of a CSV as integers, exact at any size, and where it is one; 007, 0x1, 1e3 would change."""
    with contextlib.suppress(pa.ArrowInvalid):
        numbers = column.cast(pa.int64())
        if not pc.any(pc.and_(pc.starts_with(column, "0"), pc.greater(pc.binary_length(column), 1))).as_py():
            return numbers, np.ones(len(column), np.bool_)
    digits = pc.replace_substring_regex(pc.ascii_trim_whitespace(column), "\\.0*$", "")
    is_digits = pc.match_substring_regex(digits, _DIGITS)
    numbers = pc.if_else(is_digits, digits, "0").cast(pa.uint64())
    is_plain = pc.and_(is_digits, pc.less_equal(numbers, pa.scalar(_MAX_ID, pa.uint64())))
    return pc.if_else(is_plain, numbers, None), _mask(is_plain.fill_null(True))


def _mask(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
