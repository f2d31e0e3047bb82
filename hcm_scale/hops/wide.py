"""Bit-parallel BFS: labels a block of 64 W sources with one search.

Encoding. Each linked node owns a row of W 64-bit words, one bit per source, in three arrays: `seen` (reached so far),
`front` (reached in the last level) and `new` (reached in this one). One OR moves up to 64 W searches along an arc, and
with W = 8 a row is one cache line. A bitmap beside `front` and `new` says which rows are not zero: a word of it covers
a chunk of 64 nodes, so a level with a small frontier costs what it touches.

A level (`_advance`) goes in the direction that touches less memory, as in direction-optimizing BFS (Beamer et al.):

    top-down    `push` ORs the rows of the frontier into those of their out-neighbours; then `settle`
    bottom-up   `pull` makes each row the OR of the rows of its in-neighbours, until every source has seen the node

Either way `new` loses what was seen before and `seen` gains the rest. Now `new` is, column by column, one class of
every source. What no level reached, ~seen, is the last class, followed by the isolated nodes, which have no rows.

On a skewed graph a few hubs fill a row, so `pull` reads few arcs of a node that all sources of the block reach; one
source that reaches little spoils that for the others. Blocks therefore share sources of like strength
(`layout.by_strength`). Columns of a block are in the order of the sources.

Sampling. A class is a matrix of bits, a row per node and a column per source, in a fixed order of the nodes (`layout`).
A sample of a column is therefore a set of ranks, and can be drawn from the column's size before it is known which nodes
have these ranks. No class is ever written out as a list of nodes.

1. Count. `count_chunk` adds the columns of 64 rows. Carry-save adders fold eight words into one word of eights (and
   running ones, twos and fours); a folded word is spread over eight counters of eight bytes, so that a column costs
   about one instruction in eight rows. Source i of a word sits on bit 8 (i mod 8) + i / 8, which makes byte i of the
   eight counters (little-endian, side by side) the count of source i. A pair of two sources counts once, at the earlier
   one: node v, itself the source at position order[v], counts only in the columns of sources before it. Of the last
   class, `seen` is counted with every bit flipped.
2. Draw. `draw_ranks` draws q distinct ranks by Floyd's method with q hashes, each a function of (seed, source, class,
   draw). The table that finds repeats is ordered by value, so it also sorts, in linear time.
3. Pick. `pick` turns ranks into nodes: counts per group and per chunk of nodes lead to the chunk that a rank lies in,
   and only there single bits are read.

Cost. A level reads at most every arc once, for 64 W sources together. Memory per block: 24 W bytes a node for the
rows, about 1.25 W for counts and bitmaps. A thread runs a block alone, or all threads run one together: they share the
chunks of nodes, and each row is written by one of them. Only `push` is one thread's work, and done where it is small.

W is a compile-time constant: `lanes`, a tuple of W zeros, carries it in its type, and loops over it unroll into vector
registers. The steps of a block are kernels called from Python: one kernel of them all takes longer to compile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import fetch_add, kernel, prefetch, trailing_zeros, tuple_setitem
from hcm_scale.base.order import first_not_below
from hcm_scale.base.rng import below, bits, mix
from hcm_scale.base.threads import run_in_threads
from hcm_scale.hops.layout import Layout, Rows

CHUNK = 64  # nodes that share a byte of counts per source, and a word of the bitmap of nonzero rows
GROUP = 8  # chunks that share a coarser count
NO_RANK = np.int64(0x7FFFFFFFFFFFFFFF)
_FREE = np.int64(-1)  # an empty slot of the table
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO, _FOUR, _EIGHT = np.uint64(2), np.uint64(4), np.uint64(8)
_SIX, _LAST = np.uint64(6), np.uint64(63)
_LOW_BITS = np.uint64(0x0101010101010101)
_AHEAD = 8  # arcs: prefetching a row so early makes a bottom-up pass 1.6 times as fast
_FIRST_ARCS, _MOST_ARCS = np.uint64(4), np.uint64(32)  # read before a row is tested for being full: ever more
_PICK_COLUMNS = 32  # of a task: as many counts of a group lie in one cache line
_PUSH_BELOW = 0.3  # of all arcs: pushing along an arc reads and writes, pulling only reads
Lanes = tuple[Any, ...]  # W zeros


class Request(NamedTuple):
    """Sources, and how many nodes of each (source, class) to keep: at most `most`, drawn by the seed."""

    order: NDArray[np.int32]  # (n,), see layout.source_order
    sources: NDArray[np.int64]
    seed: Any  # np.uint64
    most: int


class Columns(NamedTuple):
    """The sources of a block: column j is the one at positions[j], and its row among `Rows` is positions[j] - first."""

    positions: NDArray[np.int64]  # sorted
    first: int


class BitClass(NamedTuple):
    """One class of a block of sources as a bit matrix, counted; column j is the source at position positions[j]."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,), which rows may hold members
    chunk_counts: NDArray[np.uint8]  # (chunks, 64 W)
    group_counts: NDArray[np.uint16]  # (groups, 64 W)
    order: NDArray[np.int32]
    positions: NDArray[np.int64]
    flip: Any  # np.uint64: all ones where the class is what the rows do not hold


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
    """The state of one block (m linked nodes, W words). Rows of `front` and `new` that are not active are zero."""

    seen: Level  # active everywhere
    front: Level
    new: Level
    chunk_counts: NDArray[np.uint64]  # (chunks, 8 W), a byte per source
    group_counts: NDArray[np.uint16]  # (groups, 64 W)
    sizes: NDArray[np.int64]  # (64 W,)
    cursor: Cursor
    table: NDArray[np.int64]  # (3 x pairs per class,)


def wide_scratch(num_linked: int, words: int, pairs_per_class: int) -> WideScratch:
    """The state before the first block."""
    chunks, columns = -(-num_linked // CHUNK), 64 * words
    seen, front, new = (Level(np.zeros((num_linked, words), np.uint64), np.zeros(chunks, np.uint64)) for _ in range(3))
    seen.active[:] = _ALL
    seen.active[-1] = _ALL >> np.uint64(CHUNK * chunks - num_linked)
    below, coming, taken, wanted, filled = np.empty((5, columns), np.int64)
    take_all, ranks = np.empty(columns, np.bool_), np.empty((columns, pairs_per_class), np.int64)
    return WideScratch(
        seen=seen,
        front=front,
        new=new,
        chunk_counts=np.empty((chunks, columns // 8), np.uint64),
        group_counts=np.empty((-(-chunks // GROUP), columns), np.uint16),
        sizes=np.empty(columns, np.int64),
        cursor=Cursor(below, coming, taken, wanted, filled, take_all, ranks),
        table=np.empty(3 * pairs_per_class, np.int64),
    )


def wide_bytes(num_linked: int, words: int, pairs_per_class: int) -> int:
    """Bytes of the state of one block, rounded up to whole chunks and groups of nodes."""
    nodes = -(-num_linked // (CHUNK * GROUP)) * CHUNK * GROUP
    columns = 64 * words
    return nodes * (24 * words + words + words // 4 + 1) + columns * (8 * pairs_per_class + 128) + 24 * pairs_per_class


def label_block(
    layout: Layout,
    request: Request,
    columns: Columns,
    scratch: WideScratch,
    lanes: Lanes,
    rows: Rows,
    *,
    threads: int,
    on_class: Callable[[int], object],
) -> None:
    """Labels a block of at most 64 W sources: fills their rows, class by class.

    More threads than one are all that the process has. `on_class` is called with each class that is finished, but the
    last.
    """
    seen, front, new, positions = scratch.seen, scratch.front, scratch.new, columns.positions
    team = run_in_threads if threads > 1 else _alone
    scratch.cursor.filled[:] = 0
    team(len(seen.active), clear_state, seen, front, new)
    start_search(layout.node_of[request.sources[positions]], seen.rows, front.rows, front.active)
    full = np.array([bits_before(len(positions) - 64 * k) for k in range(len(lanes))], np.uint64)
    for hop in range(1, rows.counts.shape[1]):
        _advance(layout, (seen, front, new), full, lanes, team, threads)
        _take_class(hop, request, columns, (new, _ZERO), scratch, rows, lanes=lanes, team=team)
        front, new = new, front
        on_class(hop)
    _take_class(rows.counts.shape[1], request, columns, (seen, _ALL), scratch, rows, lanes=lanes, team=team)


def _alone(num_tasks: int, kernel: Callable[..., Any], *arguments: Any) -> None:
    kernel((0, num_tasks), *arguments)


def _advance(
    layout: Layout, levels: tuple[Level, Level, Level], full: Any, lanes: Lanes, team: Any, threads: int
) -> None:
    """One level, in the direction that touches less: `new` becomes what the frontier reaches for the first time."""
    seen, front, new = levels
    chunks, arcs = len(seen.active), np.zeros(1, np.int64)
    team(chunks, count_arcs, layout.out_indptr, front.active, arcs)
    if arcs[0] * threads < _PUSH_BELOW * len(layout.out_indices):
        team(chunks, clear_rows, new.rows, new.active)
        push(layout.out_indptr, layout.out_indices, *front, *new, lanes)
        team(chunks, settle, seen.rows, *new, lanes)
    else:
        team(chunks, pull, layout, front, full, seen.rows, new, lanes)


def _take_class(
    hop: int,
    request: Request,
    columns: Columns,
    held: tuple[Level, np.uint64],
    scratch: WideScratch,
    rows: Rows,
    *,
    lanes: Lanes,
    team: Any,
) -> None:
    """Counts the class that a level (flipped or not) holds, and keeps all of it or a sample."""
    (level, flip), sizes, cursor, group_counts = held, scratch.sizes, scratch.cursor, scratch.group_counts
    chunk_counts = scratch.chunk_counts.view(np.uint8)
    members = BitClass(*level, chunk_counts, group_counts, request.order, columns.positions, flip)
    sizes[:] = 0
    team(len(group_counts), count_groups, members, lanes, scratch.chunk_counts, sizes)
    if hop == rows.counts.shape[1]:  # isolated nodes belong to the last class and rank behind its other members
        sizes += len(request.order) - len(level.rows)
    want_class(request, columns, hop, sizes, scratch.table, cursor, rows)
    if request.most:
        team(-(-len(columns.positions) // _PICK_COLUMNS), pick, members, cursor, rows.targets, columns.first)


@kernel
def clear_state(span, seen, front, new):
    """Empties the state of these chunks of nodes."""
    seen.rows[CHUNK * span[0] : CHUNK * span[1]] = _ZERO
    clear_rows(span, front.rows, front.active)
    clear_rows(span, new.rows, new.active)


@kernel
def start_search(roots, seen, front, active):
    """Puts source i on bit i of its root."""
    for i in range(len(roots)):
        v = roots[i]
        bit = _ONE << bit_of(i)
        seen[v, i >> 6] |= bit
        front[v, i >> 6] |= bit
        active[v >> 6] |= _ONE << np.uint64(v & 63)


@kernel
def count_arcs(span, indptr, active, arcs):
    """Adds to arcs[0] how many arcs leave the nodes of the bitmap."""
    num_arcs = 0
    for chunk in range(span[0], span[1]):
        word = active[chunk]
        while word != _ZERO:
            u = CHUNK * chunk + trailing_zeros(word)
            num_arcs += indptr[u + 1] - indptr[u]
            word &= word - _ONE
    fetch_add(arcs, 0, num_arcs)


@kernel
def clear_rows(span, rows, active):
    """Zeroes the rows named by the bitmap, and the bitmap."""
    for chunk in range(span[0], span[1]):
        word = active[chunk]
        while word != _ZERO:
            rows[CHUNK * chunk + trailing_zeros(word), :] = _ZERO
            word &= word - _ONE
        active[chunk] = _ZERO


@kernel
def push(indptr, indices, front, front_active, new, new_active, lanes):
    """Top-down: ORs every row of the frontier into the rows of its out-neighbours. `new` must come in empty."""
    last = len(indices) - 1
    for chunk in range(len(front_active)):
        word = front_active[chunk]
        while word != _ZERO:
            u = CHUNK * chunk + trailing_zeros(word)
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
def pull(span, layout, front, full, seen, new, lanes):
    """Bottom-up: each row of `new` becomes the OR of the rows of its in-neighbours, without what was seen before.

    Nothing can be added to a row that holds all of `full`, the sources of the block: the arcs behind are not read.
    Neighbours outside the frontier are left out before any row is read, without a branch, which would be guessed wrong.
    """
    indptr, indices, near = layout.in_indptr, layout.in_indices, np.empty(_MOST_ARCS, np.uint64)
    for chunk in range(span[0], span[1]):
        active = _ZERO
        for v in range(CHUNK * chunk, min(CHUNK * (chunk + 1), len(seen))):
            row = lanes
            for k in range(len(lanes)):
                row = tuple_setitem(row, k, seen[v, k])
            e, end, step = np.uint64(indptr[v]), np.uint64(indptr[v + 1]), _FIRST_ARCS
            while e < end and lacks(row, full, lanes):
                num_near = _ZERO
                for at in range(e, min(e + step, end)):
                    u = np.uint64(indices[at])
                    is_near = front.active[u >> _SIX] >> (u & _LAST) & _ONE
                    near[num_near] = u
                    num_near += is_near
                    prefetch(front.rows, np.int64(len(lanes) * u * is_near))
                for i in range(num_near):
                    for k in range(len(lanes)):
                        row = tuple_setitem(row, k, row[k] | front.rows[near[i], k])
                e, step = e + step, min(step + step, _MOST_ARCS)
            union = _ZERO
            for k in range(len(lanes)):
                fresh = row[k] & ~seen[v, k]
                new.rows[v, k] = fresh
                seen[v, k] = row[k]
                union |= fresh
            if union != _ZERO:
                active |= _ONE << np.uint64(v & 63)
        new.active[chunk] = active


@kernel(inline="always")
def lacks(row, full, lanes):
    missing = _ZERO
    for k in range(len(lanes)):
        missing |= full[k] & ~row[k]
    return missing != _ZERO


@kernel
def settle(span, seen, new, active, lanes):
    """Removes what was seen from the active rows and marks the rest as seen; rows that become zero are not active."""
    for chunk in range(span[0], span[1]):
        word, left = active[chunk], _ZERO
        while word != _ZERO:
            bit = trailing_zeros(word)
            word &= word - _ONE
            v = CHUNK * chunk + bit
            union = _ZERO
            for k in range(len(lanes)):
                old = seen[v, k]
                fresh = new[v, k] & ~old
                new[v, k] = fresh
                seen[v, k] = old | fresh
                union |= fresh
            if union != _ZERO:
                left |= _ONE << np.uint64(bit)
        active[chunk] = left


@kernel
def count_groups(span, members, lanes, chunk_counts, sizes):
    """Counts the members of a class, of every source, by chunk and group of nodes; empty chunks keep stale bytes.

    `chunk_counts` are those of `members`, as words. The sums are added to `sizes`.
    """
    totals = np.zeros(len(sizes), np.int64)
    masked = np.empty((CHUNK, len(lanes)), np.uint64)
    for group in range(span[0], span[1]):
        sums = members.group_counts[group]
        sums[:] = 0
        for chunk in range(group * GROUP, min((group + 1) * GROUP, len(members.active))):
            if members.active[chunk] != _ZERO:
                count_chunk(members, CHUNK * chunk, lanes, masked, chunk_counts[chunk])
                for j in range(len(sums)):
                    sums[j] += members.chunk_counts[chunk, j]
        for j in range(len(totals)):
            totals[j] += sums[j]
    for j in range(len(totals)):
        fetch_add(sizes, j, totals[j])


@kernel
def want_class(request, columns, hop, sizes, table, cursor, rows):
    """Records the sizes of a class of every source, and decides which of its ranks are wanted: all, or a sample."""
    most, positions = request.most, columns.positions
    for j in range(len(positions)):
        size, row = sizes[j], positions[j] - columns.first
        rows.counts[row, hop - 1] = size
        rows.kept[row, hop - 1] = min(size, most)
        cursor.below[j] = 0
        cursor.taken[j] = 0
        cursor.wanted[j] = min(size, most)
        cursor.take_all[j] = size <= most
        if size > most > 0:
            draw_ranks(request.seed, request.sources[positions[j]], hop, size, cursor.ranks[j], table)
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
    full, rest = np.uint64(num >> 3), np.uint64(8 * (num & 7))
    return _LOW_BITS * ((_ONE << full) - _ONE) | (_LOW_BITS << full) & ((_ONE << rest) - _ONE)


@kernel
def count_chunk(members, first, lanes, masked, counts):
    """counts[8 k : 8 k + 8], read as bytes, become the column sums of lane k over the (up to 64) rows from `first` on.

    `masked` is scratch of 64 rows.
    """
    rows, order, positions, flip = members.rows, members.order, members.positions, members.flip
    stop = min(first + CHUNK, len(rows))
    earliest = order[first]
    for v in range(first, stop):
        earliest = min(earliest, order[v])
    if stop == first + CHUNK and earliest > positions[-1]:  # all rows count in all columns
        for k in range(len(lanes)):
            count_columns(rows[first:stop], k, flip, counts[8 * k : 8 * k + 8])
        return
    masked[:] = _ZERO
    for v in range(first, stop):
        before = len(positions) if order[v] > positions[-1] else first_not_below(positions, 0, len(positions), order[v])
        for k in range(len(lanes)):
            masked[v - first, k] = (rows[v, k] ^ flip) & bits_before(before - 64 * k)
    for k in range(len(lanes)):
        count_columns(masked, k, _ZERO, counts[8 * k : 8 * k + 8])


@kernel
def count_columns(rows, k, flip, counts):
    """Byte i of the eight counts becomes the number of rows, of 64, that hold bit_of(i) in lane k, flipped."""
    ones = twos = fours = _ZERO
    counts[:] = _ZERO
    for i in range(0, CHUNK, 8):
        ones, two_a = add_carry(ones, rows[i, k] ^ flip, rows[i + 1, k] ^ flip)
        ones, two_b = add_carry(ones, rows[i + 2, k] ^ flip, rows[i + 3, k] ^ flip)
        twos, four_a = add_carry(twos, two_a, two_b)
        ones, two_a = add_carry(ones, rows[i + 4, k] ^ flip, rows[i + 5, k] ^ flip)
        ones, two_b = add_carry(ones, rows[i + 6, k] ^ flip, rows[i + 7, k] ^ flip)
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
            insert_rank(value, ranks, k)
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
def insert_rank(value, ranks, k):
    """One step of insertion sort: the table is nearly in order, so this moves little."""
    while k > 0 and ranks[k - 1] > value:
        ranks[k] = ranks[k - 1]
        k -= 1
    ranks[k] = value


@kernel
def pick(span, members, cursor, targets, first):
    """Writes the nodes at the wanted ranks of column j, in rank order, into its row of `targets`; 32 columns a task.

    Ranks beyond all members are those of isolated nodes, which have no rows.
    """
    group_counts, positions = members.group_counts, members.positions
    begin, end = _PICK_COLUMNS * span[0], min(_PICK_COLUMNS * span[1], len(positions))
    for group in range(len(group_counts)):
        for j in range(begin, end):
            above = cursor.below[j] + group_counts[group, j]
            if cursor.coming[j] < above:
                pick_group(members, group, j, cursor, targets[positions[j] - first])
            cursor.below[j] = above
    for j in range(begin, end):
        while cursor.taken[j] < cursor.wanted[j]:
            v = len(members.rows) + cursor.coming[j] - cursor.below[j]
            take(v, j, cursor, targets[positions[j] - first])


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
    rows, order, flip, position = members.rows, members.order, members.flip, members.positions[j]
    first, active = CHUNK * chunk, members.active[chunk]
    lane, bit = j >> 6, bit_of(j)
    while cursor.coming[j] < above:
        v = first + trailing_zeros(active)
        active &= active - _ONE
        if ((rows[v, lane] ^ flip) >> bit) & _ONE == _ONE and order[v] > position:
            if rank == cursor.coming[j]:
                take(v, j, cursor, targets)
            rank += 1


@kernel(inline="always")
def take(v, j, cursor, targets):
    targets[cursor.filled[j]] = v
    cursor.filled[j] += 1
    cursor.taken[j] += 1
    look_ahead(cursor, j)


@kernel(inline="always")
def look_ahead(cursor, j):
    taken = cursor.taken[j]
    if taken == cursor.wanted[j]:
        cursor.coming[j] = NO_RANK
    else:
        cursor.coming[j] = taken if cursor.take_all[j] else cursor.ranks[j, taken]
