"""Labelling a block of 64 W sources with the bit-parallel BFS, one kernel after the other.

After each level `new` is a class of all the block's sources: its columns are counted, ranks are drawn from the
counts, and the nodes at those ranks are picked. What no level reached, ~seen, is the last class, with the isolated
nodes behind it.

The steps are kernels of their own, called from Python: numba makes one that calls them all anew from all of their code,
which takes four seconds more than the steps alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import prefetch, trailing_zeros, tuple_setitem
from hcm_scale.base.jit import kernel
from hcm_scale.hops.layout import Layout, Rows
from hcm_scale.hops.sample import CHUNK, GROUP, BitClass, Cursor, Request, bit_of, count_chunk, pick, sum_groups, want

# ----------------------------------------------------------------------------
# Bit-parallel BFS: one level for 64 W sources at once, jitted.
#
# Node v owns W words of 64 bits in each of three arrays, one bit per source: `seen` (reached so far), `front`
# (reached in the last level) and `new` (reached in this one). One OR moves up to 64 W searches along an arc; with W =
# 8 a row is one cache line. A bitmap beside `front` and `new` says which rows are not zero: one of its words covers a
# chunk of 64 nodes, so that a level with a small frontier costs what it touches.
#
# A level goes top-down (`push`: rows of the frontier are ORed into their out-neighbours) or bottom-up (`pull`: each
# node ORs the rows of its in-neighbours), and then `settle`s: what was seen before is removed from `new` and the rest
# joins `seen`.
#
# W is a compile-time constant: `lanes`, a tuple of W zeros, carries it in its type, and its loops unroll into vector
# registers.


AHEAD = 8  # arcs: asking for a row so far ahead makes a bottom-up pass 1.6 times as fast
_ONE, _ZERO = np.uint64(1), np.uint64(0)


@kernel
def start_search(roots, seen, front, active, new, new_active):
    """Empties the state and puts source i on bit i of its root."""
    seen[:] = _ZERO
    front[:] = _ZERO
    active[:] = _ZERO
    new[:] = _ZERO
    new_active[:] = _ZERO
    for i in range(len(roots)):
        v = roots[i]
        bit = _ONE << bit_of(i)
        seen[v, i >> 6] |= bit
        front[v, i >> 6] |= bit
        active[v >> 6] |= _ONE << np.uint64(v & 63)


@kernel
def clear_rows(rows, active):
    """Zeroes the rows named by the bitmap, and the bitmap."""
    for chunk in range(len(active)):
        word = active[chunk]
        while word != _ZERO:
            rows[64 * chunk + trailing_zeros(word), :] = _ZERO
            word &= word - _ONE
        active[chunk] = _ZERO


@kernel
def count_arcs(indptr, active):
    """How many arcs leave the nodes of the bitmap."""
    arcs = 0
    for chunk in range(len(active)):
        word = active[chunk]
        while word != _ZERO:
            u = 64 * chunk + trailing_zeros(word)
            arcs += indptr[u + 1] - indptr[u]
            word &= word - _ONE
    return arcs


@kernel
def push(indptr, indices, front, front_active, new, new_active, lanes):
    """Top-down: ORs every row of the frontier into the rows of its out-neighbours. `new` must come in empty."""
    last = len(indices) - 1
    for chunk in range(len(front_active)):
        word = front_active[chunk]
        while word != _ZERO:
            u = 64 * chunk + trailing_zeros(word)
            word &= word - _ONE
            row = lanes
            for k in range(len(lanes)):
                row = tuple_setitem(row, k, front[u, k])
            for e in range(indptr[u], indptr[u + 1]):
                prefetch(new, len(lanes) * np.int64(indices[min(e + AHEAD, last)]))
                v = indices[e]
                for k in range(len(lanes)):
                    new[v, k] |= row[k]
                new_active[v >> 6] |= _ONE << np.uint64(v & 63)


@kernel
def pull(indptr, indices, front, first, stop, new, lanes):
    """Bottom-up: each row of new[first:stop] becomes the OR of the rows of its in-neighbours."""
    last = len(indices) - 1
    for v in range(first, stop):
        row = lanes
        for e in range(indptr[v], indptr[v + 1]):
            prefetch(front, len(lanes) * np.int64(indices[min(e + AHEAD, last)]))
            u = indices[e]
            for k in range(len(lanes)):
                row = tuple_setitem(row, k, row[k] | front[u, k])
        for k in range(len(lanes)):
            new[v, k] = row[k]


@kernel
def settle(touched, first, seen, new, lanes):
    """Removes what was seen from the touched rows of a chunk and marks the rest as seen; returns the rows that stay."""
    active = _ZERO
    word = touched
    while word != _ZERO:
        bit = trailing_zeros(word)
        word &= word - _ONE
        v = first + bit
        union = _ZERO
        for k in range(len(lanes)):
            old = seen[v, k]
            fresh = new[v, k] & ~old
            new[v, k] = fresh
            seen[v, k] = old | fresh
            union |= fresh
        if union != _ZERO:
            active |= _ONE << np.uint64(bit)
    return active


# ----------------------------------------------------------------------------
# Steps of labelling a block of 64 W sources (`wide.py`) with the bit-parallel BFS: jitted functions only.
#
# One thread runs one block alone: no atomics.


_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
_ZERO, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


class Level(NamedTuple):
    """What a level of all searches reaches: a row of bits per node, and a bitmap of the rows that are not zero."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,)


@kernel
def advance(layout, seen, front, new, lanes):
    """One level, in the direction that touches less: `new` becomes what the frontier reaches for the first time."""
    rows, active = new.rows, new.active
    if count_arcs(layout.out_indptr, front.active) < _PUSH_BELOW * len(layout.out_indices):
        clear_rows(rows, active)
        push(layout.out_indptr, layout.out_indices, front.rows, front.active, rows, active, lanes)
        for chunk in range(len(active)):
            active[chunk] = settle(active[chunk], CHUNK * chunk, seen, rows, lanes)
    else:
        for chunk in range(len(active)):
            first, stop = CHUNK * chunk, min(CHUNK * (chunk + 1), len(rows))
            pull(layout.in_indptr, layout.in_indices, front.rows, first, stop, rows, lanes)
            active[chunk] = settle(_ALL >> np.uint64(CHUNK - (stop - first)), first, seen, rows, lanes)


@kernel
def list_unseen(seen, new, lanes):
    """`new` becomes the complement of `seen`."""
    rows, active = new.rows, new.active
    for v in range(len(rows)):
        for k in range(len(lanes)):
            rows[v, k] = ~seen[v, k]
    active[:] = _ALL
    active[-1] = _ALL >> np.uint64(CHUNK * len(active) - len(rows))


@kernel
def count_class(level, order, start, lanes, masked, chunk_counts):
    """Counts the members of the class that a level holds, of every source and chunk of nodes."""
    for chunk in range(len(level.active)):
        if level.active[chunk] != _ZERO:
            count_chunk(level.rows, CHUNK * chunk, order, start, lanes, masked, chunk_counts[chunk])


@kernel
def want_class(request, start, hop, sizes, table, cursor, rows):
    """Notes the sizes of a class, and decides which ranks of it are wanted."""
    for j in range(len(rows.counts)):
        rows.counts[j, hop - 1] = sizes[j]
        rows.kept[j, hop - 1] = min(sizes[j], request.most)
        want(request, request.sources[start + j], hop, sizes[j], j, table, cursor)


_FILLED = 4  # the row of the cursor that lasts over all classes
Lanes = tuple[Any, ...]  # W zeros


class WideScratch(NamedTuple):
    """The state of one thread's block (m linked nodes, W words)."""

    seen: NDArray[np.uint64]  # (m, W)
    front: NDArray[np.uint64]  # (m, W)
    new: NDArray[np.uint64]  # (m, W)
    front_active: NDArray[np.uint64]  # (chunks,)
    new_active: NDArray[np.uint64]  # (chunks,)
    masked: NDArray[np.uint64]  # (64, W)
    chunk_counts: NDArray[np.uint64]  # (chunks, 8 W), a byte per source
    group_counts: NDArray[np.uint16]  # (groups, 64 W)
    sizes: NDArray[np.int64]  # (64 W,)
    cursor: NDArray[np.int64]  # (5, 64 W)
    take_all: NDArray[np.bool_]  # (64 W,)
    ranks: NDArray[np.int64]  # (64 W, pairs per class)
    table: NDArray[np.int64]  # (3 x pairs per class,)


def wide_scratch(num_linked: int, words: int, pairs_per_class: int) -> WideScratch:
    """The state of a block, uninitialised: a block clears what it uses."""
    chunks = -(-num_linked // CHUNK)
    columns = 64 * words
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "seen": ((num_linked, words), np.uint64),
        "front": ((num_linked, words), np.uint64),
        "new": ((num_linked, words), np.uint64),
        "front_active": ((chunks,), np.uint64),
        "new_active": ((chunks,), np.uint64),
        "masked": ((CHUNK, words), np.uint64),
        "chunk_counts": ((chunks, columns // 8), np.uint64),
        "group_counts": ((-(-chunks // GROUP), columns), np.uint16),
        "sizes": ((columns,), np.int64),
        "cursor": ((5, columns), np.int64),
        "take_all": ((columns,), np.bool_),
        "ranks": ((columns, pairs_per_class), np.int64),
        "table": ((3 * pairs_per_class,), np.int64),
    }
    return WideScratch(**{name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()})


def wide_bytes(num_linked: int, words: int, pairs_per_class: int) -> int:
    """Bytes of one thread's state, rounded up to whole chunks and groups of nodes."""
    nodes = -(-num_linked // (CHUNK * GROUP)) * CHUNK * GROUP
    columns = 64 * words
    return nodes * (24 * words + words + words // 4 + 1) + columns * (8 * pairs_per_class + 128) + 24 * pairs_per_class


def label_block(layout: Layout, request: Request, start: int, scratch: WideScratch, lanes: Lanes, rows: Rows) -> None:
    """All classes of one block of sources, the first of which has position `start`."""
    front, new = Level(scratch.front, scratch.front_active), Level(scratch.new, scratch.new_active)
    num_sources, num_classes = rows.counts.shape
    scratch.cursor[_FILLED, :] = 0
    start_search(layout.places[request.sources[start : start + num_sources]], scratch.seen, *front, *new)
    for hop in range(1, num_classes):
        advance(layout, scratch.seen, front, new, lanes)
        _take_class(hop, request, start, new, scratch, lanes, rows)
        front, new = new, front
    list_unseen(scratch.seen, new, lanes)
    _take_class(num_classes, request, start, new, scratch, lanes, rows)


def _take_class(
    hop: int, request: Request, start: int, level: Level, scratch: WideScratch, lanes: Lanes, rows: Rows
) -> None:
    """Counts the class that a level holds, and keeps all of it or a sample.

    Isolated nodes have no rows: they belong to the last class and rank behind its other members.
    """
    count_class(level, request.order, start, lanes, scratch.masked, scratch.chunk_counts)
    chunk_counts = scratch.chunk_counts.view(np.uint8)
    numbers, sizes = scratch.cursor, scratch.sizes
    sum_groups(level.active, chunk_counts, scratch.group_counts, sizes)
    if hop == rows.counts.shape[1]:
        sizes += len(request.order) - len(level.rows)
    cursor = Cursor(numbers[0], numbers[1], numbers[2], numbers[3], numbers[_FILLED], scratch.take_all, scratch.ranks)
    want_class(request, start, hop, sizes, scratch.table, cursor, rows)
    if request.most:
        members = BitClass(*level, chunk_counts, scratch.group_counts, request.order, start)
        pick(members, cursor, rows.targets)
