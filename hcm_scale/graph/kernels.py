"""Kernels of ingest: edges as sortable 64-bit keys, keys to CSR rows, and ids to node numbers by open addressing.

A key is `u << 33 | v << 1 | flipped` with u < v (undirected; `flipped` tells that the row said (v, u)) or u -> v
(directed). Sorted keys are therefore sorted edges, an edge and its reverse stand side by side, and shifting the last
bit out merges them. Node numbers must be under 2^31.
"""

import numpy as np
from numba import njit, prange

_ONE = np.uint64(1)
_U_SHIFT = np.uint64(33)
_EDGE_SHIFT = np.uint64(32)
_LOW32 = np.uint64(0xFFFFFFFF)
_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)


@njit(cache=True)
def pack_edges(u, v, directed, keys):
    """Writes one key per row that is not a self loop; returns how many."""
    count = 0
    for i in range(len(u)):
        a = np.uint64(u[i])
        b = np.uint64(v[i])
        if a == b:
            continue
        flipped = np.uint64(0)
        if not directed and b < a:
            a, b = b, a
            flipped = _ONE
        keys[count] = (a << _U_SHIFT) | (b << _ONE) | flipped
        count += 1
    return count


@njit(cache=True)
def drop_repeats(keys):
    """Keeps the first of each group of equal neighbours, in place; returns how many are left."""
    count = 0
    for i in range(len(keys)):
        if count == 0 or keys[i] != keys[count - 1]:
            keys[count] = keys[i]
            count += 1
    return count


@njit(cache=True)
def count_ends(edges, heads, tails, degree):
    """Adds to `degree` the arcs u -> v (`heads`) and v -> u (`tails`) of edges packed as u << 32 | v."""
    for i in range(len(edges)):
        if heads:
            degree[np.int64(edges[i] >> _EDGE_SHIFT)] += 1
        if tails:
            degree[np.int64(edges[i] & _LOW32)] += 1


@njit(cache=True)
def scatter_ends(edges, heads, tails, cursor, indices):
    """Places the arcs of sorted edges into CSR rows, moving each row's cursor on.

    Rows come out sorted without sorting: row w meets the edges (u, w), u < w, by u, before its own (w, v), by v.
    """
    for i in range(len(edges)):
        u = np.int64(edges[i] >> _EDGE_SHIFT)
        v = np.int64(edges[i] & _LOW32)
        if heads:
            indices[cursor[u]] = v
            cursor[u] += 1
        if tails:
            indices[cursor[v]] = u
            cursor[v] += 1


@njit(cache=True)
def _home(data, start, stop, mask):
    """The first slot to look at for a text: FNV-1a, its halves folded together."""
    state = _FNV_BASIS
    for i in range(start, stop):
        state = (state ^ np.uint64(data[i])) * _FNV_PRIME
    return np.int64((state ^ (state >> _S32)) & np.uint64(mask))


@njit(cache=True)
def _same(data, start, stop, known_data, known_start, known_stop):
    if stop - start != known_stop - known_start:
        return False
    for i in range(stop - start):  # noqa: SIM110  a loop compiles to a compare, a generator does not
        if data[start + i] != known_data[known_start + i]:
            return False
    return True


@njit(cache=True)
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


@njit(cache=True)
def _number_slot(number, known, slots):
    """The slot that holds the number, or the free one (-1) where it belongs."""
    mask = len(slots) - 1
    slot = np.int64(((np.uint64(number) * _GOLDEN) >> _S32) & np.uint64(mask))
    while slots[slot] >= 0 and known[slots[slot]] != number:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, parallel=True)
def find_texts(offsets, data, known_offsets, known_data, slots, out):
    """out[i] = number of text i, -1 where it is not known."""
    for i in prange(len(out)):
        out[i] = slots[_text_slot(data, offsets[i], offsets[i + 1], known_offsets, known_data, slots)]


@njit(cache=True)
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


@njit(cache=True)
def place_texts(count, known_offsets, known_data, slots):
    """Fills free `slots` with the first `count` known texts, all different."""
    for known in range(count):
        start, stop = known_offsets[known], known_offsets[known + 1]
        slots[_text_slot(known_data, start, stop, known_offsets, known_data, slots)] = known


@njit(cache=True, parallel=True)
def find_numbers(numbers, known, slots, out):
    """out[i] = position of numbers[i] among the known ones, -1 where it is not."""
    for i in prange(len(out)):
        out[i] = slots[_number_slot(numbers[i], known, slots)]


@njit(cache=True)
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


@njit(cache=True)
def place_numbers(count, known, slots):
    """Fills free `slots` with the first `count` known numbers, all different."""
    for k in range(count):
        slots[_number_slot(known[k], known, slots)] = k
