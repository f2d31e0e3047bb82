"""Labelling blocks of 64 W sources with the bit-parallel BFS, jitted. One thread runs one block alone: no atomics.

After each level `new` is a class of all the block's sources: its columns are counted, ranks are drawn from the
counts, and the nodes at those ranks are picked. What no level reached, ~seen, is the last class, with the isolated
nodes behind it.
"""

from typing import NamedTuple

import numpy as np
from numba import get_thread_id, prange
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.hops.count_kernels import CHUNK, count_chunk, sum_groups
from hcm_scale.hops.kernels import clear_rows, count_arcs, pull, push, settle, start_search
from hcm_scale.hops.rows import Rows
from hcm_scale.hops.sample_kernels import Cursor, pick, take, want

_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
_ZERO, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


class WideScratch(NamedTuple):
    """The state of one thread's block; with one more axis in front, that of all threads (m linked nodes, W words)."""

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


@kernel(parallel=True, nogil=True)
def label_wide(layout, order, sources, first, last, seed, most, scratch, lanes, rows):
    """Labels sources[first:last], at most `most` pairs a class; row i of the output belongs to sources[first + i]."""
    width = 64 * len(lanes)
    for block in prange((last - first + width - 1) // width):
        me = get_thread_id()
        own = WideScratch(
            scratch.seen[me], scratch.front[me], scratch.new[me], scratch.front_active[me], scratch.new_active[me],
            scratch.masked[me], scratch.chunk_counts[me], scratch.group_counts[me], scratch.sizes[me],
            scratch.cursor[me], scratch.take_all[me], scratch.ranks[me], scratch.table[me],
        )  # fmt: skip
        i, j = block * width, min((block + 1) * width, last - first)
        part = Rows(rows.counts[i:j], rows.kept[i:j], rows.targets[i:j])
        label_block(layout, order, sources[first + i : first + j], first + i, seed, most, own, lanes, part)


@kernel(nogil=True)
def label_block(layout, order, sources, start, seed, most, scratch, lanes, rows):
    """All classes of one block of sources, the first of which has position `start`."""
    front, front_active, new, new_active = scratch.front, scratch.front_active, scratch.new, scratch.new_active
    numbers = scratch.cursor
    cursor = Cursor(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], scratch.take_all)
    cursor.filled[:] = 0
    start_search(layout.places[sources], scratch.seen, front, front_active)
    new[:] = _ZERO
    new_active[:] = _ZERO
    num_classes = rows.counts.shape[1]
    for hop in range(1, num_classes):
        advance(layout, scratch.seen, front, front_active, new, new_active, lanes)
        take_class(hop, 0, order, sources, start, seed, most, new, new_active, scratch, cursor, lanes, rows)
        front, front_active, new, new_active = new, new_active, front, front_active
    list_unseen(scratch.seen, new, new_active, lanes)
    num_isolated = len(order) - len(new)
    take_class(
        num_classes, num_isolated, order, sources, start, seed, most, new, new_active, scratch, cursor, lanes, rows
    )


@kernel(nogil=True)
def advance(layout, seen, front, front_active, new, new_active, lanes):
    """One level, in the direction that touches less: `new` becomes what the frontier reaches for the first time."""
    if count_arcs(layout.out_indptr, front_active) < _PUSH_BELOW * len(layout.out_indices):
        clear_rows(new, new_active)
        push(layout.out_indptr, layout.out_indices, front, front_active, new, new_active, lanes)
        for chunk in range(len(new_active)):
            new_active[chunk] = settle(new_active[chunk], CHUNK * chunk, seen, new, lanes)
    else:
        for chunk in range(len(new_active)):
            first, stop = CHUNK * chunk, min(CHUNK * (chunk + 1), len(new))
            pull(layout.in_indptr, layout.in_indices, front, first, stop, new, lanes)
            new_active[chunk] = settle(_ALL >> np.uint64(CHUNK - (stop - first)), first, seen, new, lanes)


@kernel(nogil=True)
def list_unseen(seen, new, new_active, lanes):
    """`new` becomes the complement of `seen`."""
    for v in range(len(new)):
        for k in range(len(lanes)):
            new[v, k] = ~seen[v, k]
    new_active[:] = _ALL
    new_active[-1] = _ALL >> np.uint64(CHUNK * len(new_active) - len(new))


@kernel(nogil=True)
def take_class(hop, num_isolated, order, sources, start, seed, most, new, new_active, scratch, cursor, lanes, rows):
    """Counts the class in `new`, and keeps all of it or a sample. Isolated nodes rank behind those that have rows."""
    for chunk in range(len(new_active)):
        if new_active[chunk] != _ZERO:
            count_chunk(new, CHUNK * chunk, order, start, lanes, scratch.masked, scratch.chunk_counts[chunk])
    chunk_counts = scratch.chunk_counts.view(np.uint8)
    sum_groups(new_active, chunk_counts, scratch.group_counts, scratch.sizes)
    for j in range(len(sources)):
        size = scratch.sizes[j] + num_isolated
        rows.counts[j, hop - 1] = size
        rows.kept[j, hop - 1] = min(size, most)
        want(seed, sources[j], hop, size, most, j, scratch.ranks[j], scratch.table, cursor)
    if most == 0:
        return
    pick(new, new_active, chunk_counts, scratch.group_counts, order, start, scratch.ranks, cursor, rows.targets)
    for j in range(len(sources)):
        while cursor.taken[j] < cursor.wanted[j]:
            take(len(new) + cursor.coming[j] - cursor.below[j], j, scratch.ranks[j], cursor, rows.targets)
