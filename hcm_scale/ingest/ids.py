"""The ids of users' tables: read from columns of text or numbers, and numbered 0, 1, 2, ... in the order of arrival.

`id_kind` says for a set of columns whether ids are text or integers. `IdReader` brings each batch to that type and
counts what cannot be an id: fractions, negative numbers, nulls, and what would be merged with another id.

`TextIds` and `NumberIds` are exact hash tables with open addressing over flat arrays. Memory: the ids themselves, 8
bytes an id for positions, 8 to 16 bytes an id for the table. `RangeIds` are integers that are the numbers already.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.names import ID_TYPES
from hcm_scale.base.threads import run_in_threads
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.policy import InputError, Offenders

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)


@kernel
def _home(data, start, stop, mask):
    """The first slot of a text: FNV-1a, its halves folded together."""
    state = _FNV_BASIS
    for i in range(start, stop):
        state = (state ^ np.uint64(data[i])) * _FNV_PRIME
    return np.int64((state ^ (state >> _S32)) & np.uint64(mask))


@kernel
def _same(data, start, stop, known_data, known_start, known_stop):
    if stop - start != known_stop - known_start:
        return False
    for i in range(stop - start):  # noqa: SIM110  a loop compiles to a compare, a generator does not
        if data[start + i] != known_data[known_start + i]:
            return False
    return True


@kernel
def _text_slot(data, start, stop, known_offsets, known_data, slots):
    """The slot that holds the text, or the free one (-1) where it belongs."""
    mask = len(slots) - 1
    slot = _home(data, start, stop, mask)
    while slots[slot] >= 0:
        known = slots[slot]
        if _same(data, start, stop, known_data, known_offsets[known], known_offsets[known + 1]):
            break
        slot = (slot + 1) & mask
    return slot


@kernel
def _number_slot(number, known, slots):
    """The slot that holds the number, or the free one (-1) where it belongs."""
    mask = len(slots) - 1
    slot = np.int64(((np.uint64(number) * _GOLDEN) >> _S32) & np.uint64(mask))
    while slots[slot] >= 0 and known[slots[slot]] != number:
        slot = (slot + 1) & mask
    return slot


@kernel
def find_texts(part, offsets, data, known_offsets, known_data, slots, out):
    """out[i] = number of text i, -1 where it is not known."""
    for i in range(part[0], part[1]):
        out[i] = slots[_text_slot(data, offsets[i], offsets[i + 1], known_offsets, known_data, slots)]


@kernel
def add_texts(offsets, data, count, known_offsets, known_data, slots, out):
    """out[i] = number of text i, the next one where it is new; returns the new count.

    The caller has made room: for all texts among the known ones, and `slots` (a power of two) at least half free.
    """
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        slot = _text_slot(data, start, stop, known_offsets, known_data, slots)
        if slots[slot] < 0:
            end = known_offsets[count]
            for k in range(stop - start):
                known_data[end + k] = data[start + k]
            known_offsets[count + 1] = end + stop - start
            slots[slot] = count
            count += 1
        out[i] = slots[slot]
    return count


@kernel
def place_texts(count, known_offsets, known_data, slots):
    """Fills free `slots` with the first `count` known texts, all different."""
    for known in range(count):
        start, stop = known_offsets[known], known_offsets[known + 1]
        slots[_text_slot(known_data, start, stop, known_offsets, known_data, slots)] = known


@kernel
def find_numbers(part, numbers, known, slots, out):
    """out[i] = position of numbers[i] among the known ones, -1 where it is not."""
    for i in range(part[0], part[1]):
        out[i] = slots[_number_slot(numbers[i], known, slots)]


@kernel
def add_numbers(numbers, count, known, slots, out):
    """`add_texts` for integers."""
    for i in range(len(out)):
        slot = _number_slot(numbers[i], known, slots)
        if slots[slot] < 0:
            known[count] = numbers[i]
            slots[slot] = count
            count += 1
        out[i] = slots[slot]
    return count


@kernel
def place_numbers(count, known, slots):
    """Fills free `slots` with the first `count` known numbers, all different."""
    for k in range(count):
        slots[_number_slot(known[k], known, slots)] = k


_FIRST_SLOTS = 1 << 10
Numbers = NDArray[np.int64]


class TextIds:
    """UTF-8 ids.

    >>> ids = TextIds()
    >>> ids.add(pa.array(["b", "a", "b"])).tolist(), ids.find(pa.array(["a", "z"])).tolist()
    ([0, 1, 0], [1, -1])
    """

    def __init__(self) -> None:
        self._count = 0
        self._offsets: Numbers = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)
        self._data = np.empty(1 << 14, np.uint8)
        self._slots = np.full(_FIRST_SLOTS, -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def add(self, names: pa.Array) -> Numbers:
        """The number of each name (no nulls); a new name gets the next number."""
        offsets, data = _text_buffers(names)
        self._make_room(len(names), int(offsets[-1] - offsets[0]))
        out = np.empty(len(names), np.int64)
        known = self._offsets, self._data, self._slots
        self._count = add_texts(offsets, data, self._count, *known, out)
        return out

    def find(self, names: pa.Array) -> Numbers:
        """The number of each name, -1 where it is not known."""
        offsets, data = _text_buffers(names)
        out = np.empty(len(names), np.int64)
        run_in_threads(len(out), find_texts, offsets, data, self._offsets, self._data, self._slots, out)
        return out

    def column(self) -> pa.Array:
        """All names, by number."""
        offsets, data = self._offsets[: self._count + 1], self._data[: self._offsets[self._count]]
        return pa.LargeStringArray.from_buffers(self._count, pa.py_buffer(offsets), pa.py_buffer(data))

    def _make_room(self, num_names: int, num_bytes: int) -> None:
        self._offsets = _grown(self._offsets, self._count + num_names + 1)
        self._data = _grown(self._data, int(self._offsets[self._count]) + num_bytes)
        if 2 * (self._count + num_names) > len(self._slots):
            self._slots = _empty_slots(self._count + num_names)
            place_texts(self._count, self._offsets, self._data, self._slots)


class NumberIds:
    """Integer ids that may be any 64-bit integers in any order."""

    def __init__(self) -> None:
        self._count = 0
        self._known: Numbers = np.zeros(_FIRST_SLOTS // 2, np.int64)
        self._slots = np.full(_FIRST_SLOTS, -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def add(self, names: pa.Array) -> Numbers:
        """The number of each id (no nulls); a new id gets the next number."""
        self._known = _grown(self._known, self._count + len(names))
        if 2 * (self._count + len(names)) > len(self._slots):
            self._slots = _empty_slots(self._count + len(names))
            place_numbers(self._count, self._known, self._slots)
        out = np.empty(len(names), np.int64)
        self._count = add_numbers(_integers(names), self._count, self._known, self._slots, out)
        return out

    def find(self, names: pa.Array) -> Numbers:
        """The number of each id, -1 where it is not known."""
        out = np.empty(len(names), np.int64)
        run_in_threads(len(out), find_numbers, _integers(names), self._known, self._slots, out)
        return out

    def column(self) -> pa.Array:
        """All ids, by number."""
        return pa.array(self._known[: self._count])


class RangeIds:
    """Integer ids 0 .. n - 1 that are the node numbers: nothing to look up, nothing to store."""

    def __init__(self, count: int):
        self._count = count

    def find(self, names: pa.Array) -> Numbers:
        """The number of each id, -1 where it is not known."""
        numbers = _integers(names)
        return np.where((numbers >= 0) & (numbers < self._count), numbers, -1)


GrowingIds = TextIds | NumberIds


def new_ids(kind: str) -> GrowingIds:
    """An empty table for ids of a kind that `id_kind` returns."""
    return TextIds() if kind == "text" else NumberIds()


def number_ids(take: Callable[[pa.Array], Numbers], column: pa.Array) -> Numbers:
    """The number of each id by `take`, the `find` or `add` of a table; -1 for nulls.

    >>> ids = NumberIds()
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

    >>> ids = NumberIds()
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


def _integers(names: pa.Array) -> Numbers:
    return np.asarray(names.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _text_buffers(names: pa.Array) -> tuple[Numbers, NDArray[np.uint8]]:
    """Absolute offsets and bytes of a string array, whichever slice of its buffers it is."""
    text = names.cast(pa.large_string())
    _, offsets, data = text.buffers()
    if offsets is None or not len(text):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    chosen = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return chosen, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array itself where it is long enough, else a copy with half as much room again as asked for."""
    if size <= len(array):
        return array
    grown = np.zeros(size + size // 2, array.dtype)
    grown[: len(array)] = array
    return grown


def _empty_slots(num_ids: int) -> NDArray[np.int32]:
    """Free slots for `num_ids` at a load of at most one half."""
    return np.full(1 << (2 * num_ids - 1).bit_length(), -1, np.int32)


_AS_TEXT = "graph.id_type=text takes them as names"
_MAX_ID = 2**63 - 1
_Count = Callable[[Offenders, NDArray[np.bool_], Any], None]
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


class IdReader:
    """Brings id columns of one table to one type; `where` names its rows in messages, `place` one of them."""

    def __init__(self, kind: str, where: str, place: Callable[[int], str]) -> None:
        self._kind, self._place = kind, place
        self._fractional = Offenders("fractional ids", where)
        self._rounded = Offenders("ids are floats so large that different ones cannot be told apart", where, _AS_TEXT)
        self._large = Offenders(f"ids above {_MAX_ID}", where, _AS_TEXT)
        self._odd = Offenders("ids are no plain whole numbers", where, _AS_TEXT)
        self._negative = Offenders("negative ids", where, _AS_TEXT)
        self.null = Offenders("missing ids", where)

    def read(self, column: pa.Array, first_row: int) -> pa.Array:
        """The batch as large_string or int64, nulls kept; faults are counted, their values set to null."""

        def count(offenders: Offenders, is_bad: NDArray[np.bool_], values: Any) -> None:
            offenders.add(is_bad, lambda i: f"{self._place(first_row + i)}: {values[i]}")

        self.null.add(_mask(column.is_null()), lambda i: self._place(first_row + i))
        if self._kind == "text":
            return column.cast(pa.large_string())
        if pa.types.is_floating(column.type):
            column = self._from_floats(column, count)
        elif is_text(column.type):
            column = self._from_text(column, count)
        elif pa.types.is_uint64(column.type):
            fits = pc.less_equal(column, pa.scalar(_MAX_ID, pa.uint64()))
            count(self._large, ~_mask(fits.fill_null(True)), column)
            column = pc.if_else(fits, column, None)
        numbers = column.cast(pa.int64())
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        count(self._negative, values < 0, values)
        return numbers

    def check(self, nulls: bool = True) -> None:
        """Raises for the first kind of fault that was met."""
        for offenders in (self._fractional, self._rounded, self._large, self._odd, self._negative):
            offenders.check()
        if nulls:
            self.null.check()

    def _from_floats(self, column: pa.Array, count: _Count) -> pa.Array:
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        is_whole = values == np.floor(values)
        is_exact = np.abs(values) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
        count(self._fractional, ~is_whole, values)
        count(self._rounded, is_whole & ~is_exact, values)
        good = is_whole & is_exact
        return pa.array(np.where(good, values, 0).astype(np.int64), mask=~good | _mask(column.is_null()))

    def _from_text(self, column: pa.Array, count: _Count) -> pa.Array:
        """Text of a CSV as integers: exact at any size, and none that a number would not keep, as 007, 0x1, 1e3."""
        with contextlib.suppress(pa.ArrowInvalid):
            numbers = column.cast(pa.int64())
            if not pc.any(pc.and_(pc.starts_with(column, "0"), pc.greater(pc.binary_length(column), 1))).as_py():
                return numbers
        digits = pc.replace_substring_regex(pc.ascii_trim_whitespace(column), "\\.0*$", "")
        is_digits = pc.match_substring_regex(digits, _DIGITS)
        numbers = pc.if_else(is_digits, digits, "0").cast(pa.uint64())
        is_plain = pc.and_(is_digits, pc.less_equal(numbers, pa.scalar(_MAX_ID, pa.uint64())))
        count(self._odd, ~_mask(is_plain.fill_null(True)), column)
        return pc.if_else(is_plain, numbers, None)


def _mask(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
