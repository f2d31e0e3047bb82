"""The user's ids to node numbers 0 .. n - 1: texts, integers, or integers that are the numbers already.

`TextIds` and `NumberIds` are exact hash tables over flat arrays (id_kernels.py): a number is the order of arrival.
Memory: the ids themselves, 8 bytes an id for positions, 8 to 16 bytes an id for the table. `RangeIds` costs nothing.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.threads import in_threads
from hcm_scale.ingest import id_kernels as kernels

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
        self._count = kernels.add_texts(offsets, data, self._count, *known, out)
        return out

    def find(self, names: pa.Array) -> Numbers:
        """The number of each name, -1 where it is not known."""
        offsets, data = _text_buffers(names)
        out = np.empty(len(names), np.int64)
        in_threads(len(out), kernels.find_texts, offsets, data, self._offsets, self._data, self._slots, out)
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
            kernels.place_texts(self._count, self._offsets, self._data, self._slots)


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
            kernels.place_numbers(self._count, self._known, self._slots)
        out = np.empty(len(names), np.int64)
        self._count = kernels.add_numbers(_integers(names), self._count, self._known, self._slots, out)
        return out

    def find(self, names: pa.Array) -> Numbers:
        """The number of each id, -1 where it is not known."""
        out = np.empty(len(names), np.int64)
        in_threads(len(out), kernels.find_numbers, _integers(names), self._known, self._slots, out)
        return out

    def column(self) -> pa.Array:
        """All ids, by number."""
        return pa.array(self._known[: self._count])


class RangeIds:
    """Integer ids 0 .. n - 1 that are the node numbers: nothing to look up, nothing to store."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def find(self, names: pa.Array) -> Numbers:
        numbers = _integers(names)
        return np.where((numbers >= 0) & (numbers < self._count), numbers, -1)

    def column(self) -> None:
        return None


Growing = TextIds | NumberIds
Ids = Growing | RangeIds


def in_order(ids: Growing) -> Growing:
    """The same ids, numbered in ascending order.

    >>> ids = NumberIds()
    >>> _ = ids.add(pa.array([7, 3]))
    >>> in_order(ids).column().to_pylist()
    [3, 7]
    """
    names = ids.column()
    ordered = type(ids)()
    ordered.add(names.take(pc.sort_indices(names)))
    return ordered


def settled(ids: Growing) -> Ids:
    """`RangeIds` where the ids are 0 .. n - 1 in order, else the same ids."""
    if isinstance(ids, NumberIds) and np.array_equal(np.asarray(ids.column()), np.arange(len(ids))):
        return RangeIds(len(ids))
    return ids


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
