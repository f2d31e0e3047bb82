"""Bit-parallel BFS: labels a block of 64 W sources with one search.

Encoding. Each linked node owns a row of W 64-bit words, one bit per source, in three arrays: `seen` (reached so far),
`front` (reached in the last level) and `new` (reached in this one). One OR moves up to 64 W searches along an arc, and
with W = 8 a row is one cache line. A bitmap beside `front` and `new` says which rows are not zero: a word of it covers
a chunk of 64 nodes, so a level with a small frontier costs what it touches. Bit `bit_of(i)` of a word stands for its
i-th source (see `sample`).

A level (`advance`) goes in the direction that touches less memory, as in direction-optimizing BFS (Beamer et al.):

    top-down    `push` ORs the rows of the frontier into those of their out-neighbours
    bottom-up   `pull` makes each row the OR of the rows of its in-neighbours

Then `settle` removes from `new` what was seen before and adds the rest to `seen`. Now `new` is, column by column, one
class of every source: its columns are counted, ranks are drawn from the counts, and the nodes at these ranks are read
from the bits (`sample`). What no level reached, ~seen, is the last class, followed by the isolated nodes, which have no
rows.

Cost. A level reads at most every arc once, for 64 W sources together. Memory per thread: 24 W bytes a node for the
rows, about 1.25 W for counts and bitmaps. A thread runs a block alone, so nothing is atomic.

W is a compile-time constant: `lanes`, a tuple of W zeros, carries it in its type, and loops over it unroll into vector
registers. The steps of a block are kernels called from Python, since numba would compile a kernel that calls them all
from all of their code, which takes four seconds more than the steps alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import prefetch, trailing_zeros, tuple_setitem
from hcm_scale.base.jit import kernel
from hcm_scale.hops.layout import Layout, Rows
from hcm_scale.hops.sample import CHUNK, GROUP, BitClass, Cursor, Request, bit_of, count_chunk, pick, sum_groups, want

_AHEAD = 8  # arcs: prefetching a row so early makes a bottom-up pass 1.6 times as fast
_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
Lanes = tuple[Any, ...]  # W zeros


class Level(NamedTuple):
    """The nodes that a level reaches: a row of bits per node, and a bitmap of the rows that are not zero."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,)


class WideScratch(NamedTuple):
    """The state of one thread's block (m linked nodes, W words)."""

    seen: NDArray[np.uint64]  # (m, W)
    front: Level
    new: Level
    masked: NDArray[np.uint64]  # (64, W)
    chunk_counts: NDArray[np.uint64]  # (chunks, 8 W), a byte per source
    group_counts: NDArray[np.uint16]  # (groups, 64 W)
    sizes: NDArray[np.int64]  # (64 W,)
    cursor: Cursor
    table: NDArray[np.int64]  # (3 x pairs per class,)


def wide_scratch(num_linked: int, words: int, pairs_per_class: int) -> WideScratch:
    """The state of a block, uninitialised: a block clears what it uses."""
    chunks, columns = -(-num_linked // CHUNK), 64 * words
    front, new = (Level(np.empty((num_linked, words), np.uint64), np.empty(chunks, np.uint64)) for _ in range(2))
    below, coming, taken, wanted, filled = np.empty((5, columns), np.int64)
    take_all, ranks = np.empty(columns, np.bool_), np.empty((columns, pairs_per_class), np.int64)
    return WideScratch(
        seen=np.empty((num_linked, words), np.uint64),
        front=front,
        new=new,
        masked=np.empty((CHUNK, words), np.uint64),
        chunk_counts=np.empty((chunks, columns // 8), np.uint64),
        group_counts=np.empty((-(-chunks // GROUP), columns), np.uint16),
        sizes=np.empty(columns, np.int64),
        cursor=Cursor(below, coming, taken, wanted, filled, take_all, ranks),
        table=np.empty(3 * pairs_per_class, np.int64),
    )


def wide_bytes(num_linked: int, words: int, pairs_per_class: int) -> int:
    """Bytes of one thread's state, rounded up to whole chunks and groups of nodes."""
    nodes = -(-num_linked // (CHUNK * GROUP)) * CHUNK * GROUP
    columns = 64 * words
    return nodes * (24 * words + words + words // 4 + 1) + columns * (8 * pairs_per_class + 128) + 24 * pairs_per_class


def label_block(layout: Layout, request: Request, start: int, scratch: WideScratch, lanes: Lanes, rows: Rows) -> None:
    """Labels one block of sources, the first of which has position `start`: fills their rows, class by class."""
    seen, front, new = scratch.seen, scratch.front, scratch.new
    num_sources, num_classes = rows.counts.shape
    scratch.cursor.filled[:] = 0
    start_search(layout.places[request.sources[start : start + num_sources]], seen, *front, *new)
    for hop in range(1, num_classes):
        advance(layout, seen, front, new, lanes)
        _take_class(hop, request, start, new, scratch, lanes, rows)
        front, new = new, front
    list_unseen(seen, new, lanes)
    _take_class(num_classes, request, start, new, scratch, lanes, rows)


def _take_class(
    hop: int, request: Request, start: int, level: Level, scratch: WideScratch, lanes: Lanes, rows: Rows
) -> None:
    """Counts the class that a level holds, and keeps all of it or a sample."""
    sizes, cursor, group_counts = scratch.sizes, scratch.cursor, scratch.group_counts
    count_class(level, request.order, start, lanes, scratch.masked, scratch.chunk_counts)
    chunk_counts = scratch.chunk_counts.view(np.uint8)
    sum_groups(level.active, chunk_counts, group_counts, sizes)
    if hop == rows.counts.shape[1]:  # isolated nodes belong to the last class and rank behind its other members
        sizes += len(request.order) - len(level.rows)
    want_class(request, start, hop, sizes, scratch.table, cursor, rows)
    if request.most:
        pick(BitClass(*level, chunk_counts, group_counts, request.order, start), cursor, rows.targets)


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
def clear_rows(rows, active):
    """Zeroes the rows named by the bitmap, and the bitmap."""
    for chunk in range(len(active)):
        word = active[chunk]
        while word != _ZERO:
            rows[64 * chunk + trailing_zeros(word), :] = _ZERO
            word &= word - _ONE
        active[chunk] = _ZERO


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
                prefetch(new, len(lanes) * np.int64(indices[min(e + _AHEAD, last)]))
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
            prefetch(front, len(lanes) * np.int64(indices[min(e + _AHEAD, last)]))
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
    """Records the sizes of a class of every source, and decides which of its ranks are wanted."""
    for j in range(len(rows.counts)):
        rows.counts[j, hop - 1] = sizes[j]
        rows.kept[j, hop - 1] = min(sizes[j], request.most)
        want(request, request.sources[start + j], hop, sizes[j], j, table, cursor)
