"""Labelling blocks of 64 W sources with the bit-parallel BFS, jitted. One thread runs one block alone: no atomics.

After each level `new` is a class of all the block's sources: its columns are counted, ranks are drawn from the
counts, and the nodes at those ranks are picked. What no level reached, ~seen, is the last class, with the isolated
nodes behind it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.hops.count_kernels import CHUNK, count_chunk, sum_groups
from hcm_scale.hops.kernels import clear_rows, count_arcs, pull, push, settle, start_search
from hcm_scale.hops.sample_kernels import BitClass, Cursor, pick, take, want

_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
_FILLED = 4  # the row of the cursor that lasts over all classes
_ZERO, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


class Level(NamedTuple):
    """What a level of all searches reaches: a row of bits per node, and a bitmap of the rows that are not zero."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,)


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


@kernel
def label_block(layout, request, start, scratch, lanes, rows):
    """All classes of one block of sources, the first of which has position `start`."""
    front, new = Level(scratch.front, scratch.front_active), Level(scratch.new, scratch.new_active)
    num_sources, num_classes = rows.counts.shape
    scratch.cursor[_FILLED, :] = 0
    start_search(layout.places[request.sources[start : start + num_sources]], scratch.seen, front.rows, front.active)
    new.rows[:] = _ZERO
    new.active[:] = _ZERO
    for hop in range(1, num_classes):
        advance(layout, scratch.seen, front, new, lanes)
        take_class(hop, request, start, new, scratch, lanes, rows)
        front, new = new, front
    list_unseen(scratch.seen, new, lanes)
    take_class(num_classes, request, start, new, scratch, lanes, rows)


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
def take_class(hop, request, start, level, scratch, lanes, rows):
    """Counts the class that a level holds, and keeps all of it or a sample.

    Isolated nodes have no rows: they belong to the last class and rank behind its other members.
    """
    bits, active, order = level.rows, level.active, request.order
    num_sources, num_classes = rows.counts.shape
    num_isolated = len(order) - len(bits) if hop == num_classes else 0
    for chunk in range(len(active)):
        if active[chunk] != _ZERO:
            count_chunk(bits, CHUNK * chunk, order, start, lanes, scratch.masked, scratch.chunk_counts[chunk])
    chunk_counts = scratch.chunk_counts.view(np.uint8)
    sum_groups(active, chunk_counts, scratch.group_counts, scratch.sizes)
    numbers = scratch.cursor
    cursor = Cursor(numbers[0], numbers[1], numbers[2], numbers[3], numbers[_FILLED], scratch.take_all, scratch.ranks)
    for j in range(num_sources):
        size = scratch.sizes[j] + num_isolated
        rows.counts[j, hop - 1] = size
        rows.kept[j, hop - 1] = min(size, request.most)
        want(request, request.sources[start + j], hop, size, j, scratch.table, cursor)
    if request.most == 0:
        return
    pick(BitClass(bits, active, chunk_counts, scratch.group_counts, order, start), cursor, rows.targets)
    for j in range(num_sources):
        while cursor.taken[j] < cursor.wanted[j]:
            take(len(bits) + cursor.coming[j] - cursor.below[j], j, cursor, rows.targets)
