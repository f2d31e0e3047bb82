"""Which pairs of a class are kept: ranks drawn without replacement, then the nodes at those ranks, jitted.

A class of a source is a set of nodes in a fixed order (see `layout`), so a sample of it is a set of ranks: it is
drawn from the class's size alone, before anybody knows which nodes they are. Floyd's method draws q distinct ranks
with q hashes, each a function of (seed, source, class, draw). The table that finds repeats is ordered by value, so it
also sorts, in linear time.

`pick` then turns ranks into nodes for all columns of a bit matrix at once: the counts per group and per chunk of
nodes lead to the chunk that a rank lies in, and only there single bits are read. A class is never written down.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, bits, mix
from hcm_scale.hops.count_kernels import CHUNK, GROUP, bit_of
from hcm_scale.hops.intrinsics import trailing_zeros

NO_RANK = np.int64(0x7FFFFFFFFFFFFFFF)
_FREE = np.int64(-1)
_ONE, _ZERO = np.uint64(1), np.uint64(0)


class Request(NamedTuple):
    """Whose pairs are wanted, and which: at most `most` of each (source, class), drawn by the seed."""

    order: NDArray[np.int32]  # (n,), see layout.source_order
    sources: NDArray[np.int64]
    seed: Any  # np.uint64
    most: int


class BitClass(NamedTuple):
    """One class of a block of sources as a bit matrix, counted; column 0 is the source at position `start`."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,), which rows are not zero
    chunk_counts: NDArray[np.uint8]  # (chunks, 64 W)
    group_counts: NDArray[np.uint16]  # (groups, 64 W)
    order: NDArray[np.int32]
    start: int


class Cursor(NamedTuple):
    """Where the picking of a class stands, per column."""

    below: NDArray[np.int64]  # members before the current group
    coming: NDArray[np.int64]  # the next wanted rank
    taken: NDArray[np.int64]  # targets written, of this class
    wanted: NDArray[np.int64]  # targets to write, of this class
    filled: NDArray[np.int64]  # targets written, of all classes
    take_all: NDArray[np.bool_]  # every rank is wanted: none is stored
    ranks: NDArray[np.int64]  # (columns, pairs per class), the wanted ranks of this class


@kernel
def draw_ranks(seed, source, hop, count, ranks, table):
    """Fills `ranks` with sorted distinct numbers below count > len(ranks); `table` has 3 slots a rank."""
    num = len(ranks)
    state = bits(seed, source, hop)
    slots_per_value = 2.0 * num / count
    table[:] = _FREE
    for j in range(num):
        top = count - num + j
        if not insert(table, slots_per_value, below(mix(state, j), top + 1)):
            insert(table, slots_per_value, top)
    k = 0
    for value in table:
        if value != _FREE:
            place(value, ranks, k)
            k += 1


@kernel(inline="always")
def insert(table, slots_per_value, value):
    """Adds a value at or after the slot in proportion to it; False where it was there already."""
    slot = np.int64(value * slots_per_value)
    while table[slot] != _FREE:
        if table[slot] == value:
            return False
        slot += 1
    table[slot] = value
    return True


@kernel(inline="always")
def place(value, ranks, k):
    """One step of insertion sort: the table is nearly in order, so this moves little."""
    while k > 0 and ranks[k - 1] > value:
        ranks[k] = ranks[k - 1]
        k -= 1
    ranks[k] = value


@kernel
def want(request, source, hop, size, j, table, cursor):
    """Decides which ranks of a class of this size are wanted in column j: all, or a sample."""
    most = request.most
    cursor.below[j] = 0
    cursor.taken[j] = 0
    cursor.wanted[j] = min(size, most)
    cursor.take_all[j] = size <= most
    if size > most > 0:
        draw_ranks(request.seed, source, hop, size, cursor.ranks[j], table)
    look_ahead(cursor, j)


@kernel(inline="always")
def look_ahead(cursor, j):
    """Sets the next wanted rank of column j."""
    taken = cursor.taken[j]
    if taken == cursor.wanted[j]:
        cursor.coming[j] = NO_RANK
    else:
        cursor.coming[j] = taken if cursor.take_all[j] else cursor.ranks[j, taken]


@kernel(inline="always")
def take(v, j, cursor, targets):
    """Writes one target of column j."""
    targets[j, cursor.filled[j]] = v
    cursor.filled[j] += 1
    cursor.taken[j] += 1
    look_ahead(cursor, j)


@kernel
def pick(members, cursor, targets):
    """Writes the nodes at the wanted ranks of column j, in rank order, into row j of `targets`; for all columns.

    Ranks beyond all members are those of isolated nodes, which have no rows.
    """
    group_counts = members.group_counts
    for group in range(len(group_counts)):
        for j in range(len(targets)):
            above = cursor.below[j] + group_counts[group, j]
            if cursor.coming[j] < above:
                pick_group(members, group, j, cursor, targets)
            cursor.below[j] = above
    for j in range(len(targets)):
        while cursor.taken[j] < cursor.wanted[j]:
            take(len(members.rows) + cursor.coming[j] - cursor.below[j], j, cursor, targets)


@kernel
def pick_group(members, group, j, cursor, targets):
    """Finds the chunks of a group that hold wanted ranks of column j, and walks down those."""
    active, chunk_counts = members.active, members.chunk_counts
    below_chunk = cursor.below[j]
    for chunk in range(group * GROUP, min((group + 1) * GROUP, len(active))):
        if active[chunk] == _ZERO:
            continue
        above = below_chunk + chunk_counts[chunk, j]
        if cursor.coming[j] < above:
            pick_chunk(members, chunk, j, below_chunk, above, cursor, targets)
        below_chunk = above


@kernel
def pick_chunk(members, chunk, j, rank, above, cursor, targets):
    """Walks down column j of one chunk, whose ranks are rank .. above - 1, and takes the nodes that are wanted."""
    rows, order, start = members.rows, members.order, members.start
    first, active = CHUNK * chunk, members.active[chunk]
    lane, bit = j >> 6, bit_of(j)
    while cursor.coming[j] < above:
        v = first + trailing_zeros(active)
        active &= active - _ONE
        if (rows[v, lane] >> bit) & _ONE == _ONE and order[v] > start + j:
            if rank == cursor.coming[j]:
                take(v, j, cursor, targets)
            rank += 1
