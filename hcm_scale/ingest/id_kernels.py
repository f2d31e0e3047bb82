"""Kernels of ids: the user's texts and numbers to node numbers, by open addressing."""

import numpy as np

from hcm_scale.base.jit import kernel

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)


@kernel
def _home(data, start, stop, mask):
    """The first slot to look at for a text: FNV-1a, its halves folded together."""
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
