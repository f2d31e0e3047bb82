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

from hcm_scale.hops.count_kernels import CHUNK, GROUP, sum_groups
from hcm_scale.hops.kernels import start_search
from hcm_scale.hops.layout import Layout
from hcm_scale.hops.rows import Rows
from hcm_scale.hops.sample_kernels import BitClass, Cursor, Request, pick
from hcm_scale.hops.wide_kernels import Level, advance, count_class, list_unseen, want_class

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
