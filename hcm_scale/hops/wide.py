"""Bit-parallel BFS: labels a block of 64 W sources with one search.

Encoding. Each linked node owns a row of W 64-bit words, one bit per source, in three arrays: `seen` (reached so far),
`front` (reached in the last level) and `new` (reached in this one). One OR moves up to 64 W searches along an arc, and
with W = 8 a row is one cache line. A bitmap beside `front` and `new` says which rows are not zero: a word of it covers
a chunk of 64 nodes, so a level with a small frontier costs what it touches.

A level (`advance`) goes in the direction that touches less memory, as in direction-optimizing BFS (Beamer et al.):

    top-down    `push` ORs the rows of the frontier into those of their out-neighbours
    bottom-up   `pull` makes each row the OR of the rows of its in-neighbours

Then `settle` removes from `new` what was seen before and adds the rest to `seen`. Now `new` is, column by column, one
class of every source. What no level reached, ~seen, is the last class, followed by the isolated nodes, which have no
rows.

Sampling. A class is a matrix of bits, a row per node and a column per source, in a fixed order of the nodes (`layout`).
A sample of a column is therefore a set of ranks, and can be drawn from the column's size before it is known which nodes
have these ranks. No class is ever written out as a list of nodes.

1. Count. `count_chunk` adds the columns of 64 rows. Carry-save adders fold eight words into one word of eights (and
   running ones, twos and fours); a folded word is spread over eight counters of eight bytes, so that a column costs
   about one instruction in eight rows. Source i of a word sits on bit 8 (i mod 8) + i / 8, which makes byte i of the
   eight counters (little-endian, side by side) the count of source i. A pair of two sources counts once, at the earlier
   one: node v, itself the source at position order[v], counts only in the columns of sources before it.
2. Draw. `draw_ranks` draws q distinct ranks by Floyd's method with q hashes, each a function of (seed, source, class,
   draw). The table that finds repeats is ordered by value, so it also sorts, in linear time.
3. Pick. `pick` turns ranks into nodes: counts per group and per chunk of nodes lead to the chunk that a rank lies in,
   and only there single bits are read.

Cost. A level reads at most every arc once, for 64 W sources together. Memory per thread: 24 W bytes a node for the
rows, about 1.25 W for counts and bitmaps. A thread runs a block alone, so nothing is atomic.

W is a compile-time constant: `lanes`, a tuple of W zeros, carries it in its type, and loops over it unroll into vector
registers. The steps of a block are kernels called from Python, since numba would compile a kernel that calls them all
from all of their code, which takes four seconds more than the steps alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel, prefetch, trailing_zeros, tuple_setitem
from hcm_scale.base.rng import below, bits, mix
from hcm_scale.hops.layout import Layout, Rows

CHUNK = 64  # nodes that share a byte of counts per source, and a word of the bitmap of nonzero rows
GROUP = 8  # chunks that share a coarser count
NO_RANK = np.int64(0x7FFFFFFFFFFFFFFF)
_FREE = np.int64(-1)  # an empty slot of the table
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO, _FOUR, _EIGHT = np.uint64(2), np.uint64(4), np.uint64(8)
_LOW_BITS = np.uint64(0x0101010101010101)
_AHEAD = 8  # arcs: prefetching a row so early makes a bottom-up pass 1.6 times as fast
_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
Lanes = tuple[Any, ...]  # W zeros


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
    """Records the sizes of a class of every source, and decides which of its ranks are wanted: all, or a sample."""
    most = request.most
    for j in range(len(rows.counts)):
        size = sizes[j]
        rows.counts[j, hop - 1] = size
        rows.kept[j, hop - 1] = min(size, most)
        cursor.below[j] = 0
        cursor.taken[j] = 0
        cursor.wanted[j] = min(size, most)
        cursor.take_all[j] = size <= most
        if size > most > 0:
            draw_ranks(request.seed, request.sources[start + j], hop, size, cursor.ranks[j], table)
        look_ahead(cursor, j)


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
