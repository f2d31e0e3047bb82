"""Which pairs of a class are kept: counts per column of a bit matrix, ranks drawn from them, nodes at these ranks.

A class of 64 W sources is a matrix of bits, a row per node and a column per source, in a fixed order of the nodes (see
`layout`). A sample of a column is therefore a set of ranks, and can be drawn from the column's size before it is known
which nodes have these ranks. No class is ever written out as a list of nodes.

1. Count. `count_chunk` adds the columns of 64 rows. Carry-save adders fold eight words into one word of eights (and
   running ones, twos and fours); a folded word is spread over eight counters of eight bytes, so that a column costs
   about one instruction in eight rows. Source i of a word sits on bit 8 (i mod 8) + i / 8, which makes byte i of the
   eight counters (little-endian, side by side) the count of source i. A pair of two sources counts once, at the earlier
   one: node v, itself the source at position order[v], counts only in the columns of sources before it.
2. Draw. `draw_ranks` draws q distinct ranks by Floyd's method with q hashes, each a function of (seed, source, class,
   draw). The table that finds repeats is ordered by value, so it also sorts, in linear time.
3. Pick. `pick` turns ranks into nodes: counts per group and per chunk of nodes lead to the chunk that a rank lies in,
   and only there single bits are read.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.intrinsics import trailing_zeros
from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, bits, mix

CHUNK = 64  # nodes that share a byte of counts per source, and a word of the bitmap of nonzero rows
GROUP = 8  # chunks that share a coarser count
NO_RANK = np.int64(0x7FFFFFFFFFFFFFFF)
_FREE = np.int64(-1)  # an empty slot of the table
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO, _FOUR, _EIGHT = np.uint64(2), np.uint64(4), np.uint64(8)
_LOW_BITS = np.uint64(0x0101010101010101)


class Request(NamedTuple):
    """Sources, and how many nodes of each (source, class) to keep: at most `most`, drawn by the seed."""

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
    """How far a class has been picked, per column; `filled` lasts over all classes."""

    below: NDArray[np.int64]  # members before the current group
    coming: NDArray[np.int64]  # the next wanted rank
    taken: NDArray[np.int64]  # targets written, of this class
    wanted: NDArray[np.int64]  # targets to write, of this class
    filled: NDArray[np.int64]  # targets written, of all classes
    take_all: NDArray[np.bool_]  # every rank is wanted: none is stored
    ranks: NDArray[np.int64]  # (columns, pairs per class), the wanted ranks of this class


@kernel(inline="always")
def bit_of(i):
    """The bit of a lane on which its i-th source sits."""
    return np.uint64(((i & 7) << 3) | ((i >> 3) & 7))


@kernel
def bits_before(num):
    """A word with the bits of the first `num` sources of a lane; any integer will do for `num`."""
    if num >= 64:
        return _ALL
    if num <= 0:
        return _ZERO
    full, part = np.uint64(num >> 3), np.uint64(8 * (num & 7))
    return _LOW_BITS * ((_ONE << full) - _ONE) | (_LOW_BITS << full) & ((_ONE << part) - _ONE)


@kernel
def count_chunk(rows, first, order, start, lanes, masked, counts):
    """counts[8 k : 8 k + 8], read as bytes, become the column sums of lane k over the (up to 64) rows from `first` on.

    `start` is the position of the source in column 0; `masked` is scratch of 64 rows.
    """
    stop = min(first + CHUNK, len(rows))
    earliest = order[first]
    for v in range(first, stop):
        earliest = min(earliest, order[v])
    if stop == first + CHUNK and earliest >= start + 64 * len(lanes):  # all rows count in all columns
        for k in range(len(lanes)):
            count_columns(rows[first:stop], k, counts[8 * k : 8 * k + 8])
        return
    masked[:] = _ZERO
    for v in range(first, stop):
        for k in range(len(lanes)):
            masked[v - first, k] = rows[v, k] & bits_before(order[v] - start - 64 * k)
    for k in range(len(lanes)):
        count_columns(masked, k, counts[8 * k : 8 * k + 8])


@kernel
def count_columns(rows, k, counts):
    """Byte i of the eight counts becomes the number of rows, of 64, that hold bit_of(i) in lane k."""
    ones = twos = fours = _ZERO
    counts[:] = _ZERO
    for i in range(0, CHUNK, 8):
        ones, two_a = add_carry(ones, rows[i, k], rows[i + 1, k])
        ones, two_b = add_carry(ones, rows[i + 2, k], rows[i + 3, k])
        twos, four_a = add_carry(twos, two_a, two_b)
        ones, two_a = add_carry(ones, rows[i + 4, k], rows[i + 5, k])
        ones, two_b = add_carry(ones, rows[i + 6, k], rows[i + 7, k])
        twos, four_b = add_carry(twos, two_a, two_b)
        fours, eights = add_carry(fours, four_a, four_b)
        for shift in range(8):
            counts[shift] += (eights >> np.uint64(shift)) & _LOW_BITS
    for shift in range(8):
        s = np.uint64(shift)
        low = (ones >> s & _LOW_BITS) + (twos >> s & _LOW_BITS) * _TWO + (fours >> s & _LOW_BITS) * _FOUR
        counts[shift] = counts[shift] * _EIGHT + low


@kernel(inline="always")
def add_carry(a, b, c):
    """Bitwise a + b + c: (sum, carry)."""
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@kernel
def sum_groups(active, chunk_counts, group_counts, sizes):
    """Adds the chunks up to groups and the groups to the size of every column; empty chunks hold stale bytes."""
    sizes[:] = 0
    for group in range(len(group_counts)):
        sums = group_counts[group]
        sums[:] = 0
        for chunk in range(group * GROUP, min((group + 1) * GROUP, len(active))):
            if active[chunk] != _ZERO:
                for j in range(len(sums)):
                    sums[j] += chunk_counts[chunk, j]
        for j in range(len(sizes)):
            sizes[j] += sums[j]


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
    """Reads those chunks of a group that hold wanted ranks of column j."""
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
    """Reads column j of one chunk, whose ranks are rank .. above - 1, and takes the nodes that are wanted."""
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


@kernel(inline="always")
def take(v, j, cursor, targets):
    """Writes one target of column j."""
    targets[j, cursor.filled[j]] = v
    cursor.filled[j] += 1
    cursor.taken[j] += 1
    look_ahead(cursor, j)


@kernel(inline="always")
def look_ahead(cursor, j):
    """Sets the next wanted rank of column j."""
    taken = cursor.taken[j]
    if taken == cursor.wanted[j]:
        cursor.coming[j] = NO_RANK
    else:
        cursor.coming[j] = taken if cursor.take_all[j] else cursor.ranks[j, taken]
