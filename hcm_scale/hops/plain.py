"""One source at a time: a queue-based BFS that costs only what it touches.

For graphs where the neighbourhoods of different sources hardly overlap (grids, chains, deep trees) a row of 64 W bits
is mostly zeros. Plain searches run on the graph as given, where sources are sorted: an earlier source is one with a
smaller number.

Encoding. `visited` holds two bytes a node: the lowest bit says whether the node is a source, the others are the mark of
the last level that reached it. Each search takes C fresh marks above all earlier ones, so nothing is cleaned up between
searches and one comparison tells old from new; when the 15 bits run out all marks are wiped.

Sampling without sorting. The members of a level carry its mark, unreached nodes carry a mark of earlier searches. For
each stretch of 128 nodes the number of members is counted: the counts lead from a rank to its stretch, a scan of 128
marks to the node. The last class, all unreached nodes, has its counts (`free`) updated for the nodes that a search
reached and restored after it.

Indices of the inner loops are unsigned, since numba tests each signed one for a count from the end; that test and
reading `order` had cost a quarter of a search. Memory per thread: 2 bytes and 1 index a node.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.hops.layout import NOT_A_SOURCE
from hcm_scale.hops.wide import draw_ranks

STRETCH = 128  # nodes that share a count of members
SOURCES_PER_TASK = 128
IS_SOURCE = 1  # the lowest bit of `visited`
_MOST_MARKS = (1 << 15) - 1
_ONE = np.uint64(1)


class PlainScratch(NamedTuple):
    """The state of one thread's searches (n nodes)."""

    visited: NDArray[np.uint16]  # (n,), mark << 1 | IS_SOURCE
    spent: NDArray[np.int64]  # (1,), the highest mark of earlier searches
    queue: NDArray[Any]  # (n,)
    free: NDArray[np.int64]  # (n / 128 + 1,), nodes of a stretch that a pair of this source may still end in
    held: NDArray[np.int64]  # (n / 128 + 1,), members of one level in a stretch
    ranks: NDArray[np.int64]  # (pairs per class,)
    table: NDArray[np.int64]  # (3 x pairs per class,)


def plain_scratch(order: NDArray[np.int32], names_dtype: Any, pairs_per_class: int, threads: int) -> list[PlainScratch]:
    """The state of every thread before its first search."""
    n, num_stretches = len(order), len(order) // STRETCH + 1
    flags = (order < NOT_A_SOURCE).astype(np.uint16) * np.uint16(IS_SOURCE)
    return [
        PlainScratch(
            visited=flags.copy(),
            spent=np.zeros(1, np.int64),
            queue=np.empty(n, names_dtype),
            free=np.empty(num_stretches, np.int64),
            held=np.empty(num_stretches, np.int64),
            ranks=np.empty(pairs_per_class, np.int64),
            table=np.empty(3 * pairs_per_class, np.int64),
        )
        for _ in range(threads)
    ]


@kernel
def label_plain(layout, request, start, scratch, rows):
    """Labels consecutive sources, one row each; the first has position `start`."""
    if request.most > 0:
        count_free(request.order, start, scratch.free)
    for i in range(len(rows.counts)):
        label_source(layout, request, start + i, scratch, rows.counts[i], rows.kept[i], rows.targets[i])


@kernel
def count_free(order, position, free):
    """free[c] = nodes of stretch c that are no source, or a source at or after this position."""
    free[:] = 0
    for v in range(len(order)):
        free[v // STRETCH] += order[v] >= position


@kernel
def label_source(layout, request, position, scratch, counts, kept, targets):
    """Counts and keeps all classes of one source; `targets` receives the kept nodes class after class."""
    visited, queue = scratch.visited, scratch.queue
    order, most = request.order, request.most
    num_classes = len(counts)
    root = layout.node_of[request.sources[position]]
    spent = fresh_marks(visited, scratch.spent, num_classes)  # level h marks spent + h, the root spent + C
    queue[0] = root
    visited[root] = np.int64(visited[root]) & IS_SOURCE | (spent + num_classes) << 1
    start, stop, filled = 0, 1, 0
    for hop in range(1, num_classes):
        num_new, earlier = expand(layout, root, spent, spent + hop, visited, queue[start:stop], queue[stop:])
        start, stop = stop, stop + num_new
        counts[hop - 1] = stop - start - earlier
        kept[hop - 1] = min(counts[hop - 1], most)
        if most > 0:
            members = queue[start:stop] if earlier == 0 else keep_after(queue[start:stop], order, position)
            take_level(members, request, position, hop, spent, scratch, targets[filled:])
        filled += kept[hop - 1]
    num_paired = position + 1 if order[root] == position else 1  # with this source, or as earlier sources
    counts[-1] = len(order) - num_paired - counts[:-1].sum()
    kept[-1] = min(counts[-1], most)
    if most > 0:
        if order[root] == position:
            scratch.free[root // STRETCH] -= 1
        hold_back(queue[:stop], order, position, scratch.free, -1)
        take_rest(counts[-1], request, position, num_classes, spent, scratch, targets[filled:])
        hold_back(queue[:stop], order, position, scratch.free, 1)


@kernel
def fresh_marks(visited, spent, num):
    """Reserves the `num` marks above the returned one; wipes all marks when they run out."""
    if spent[0] + num > _MOST_MARKS:
        visited &= np.uint16(IS_SOURCE)
        spent[0] = 0
    spent[0] += num
    return spent[0] - num


@kernel
def expand(layout, root, spent, mark, visited, frontier, fresh):
    """Marks the unvisited neighbours of the frontier and writes them to `fresh`.

    Returns their number, and how many of them are earlier sources, where these pairs have been counted.
    """
    indptr, indices = layout.out_indptr, layout.out_indices
    num_new, earlier, old, own = 0, 0, spent << 1 | IS_SOURCE, np.uint64(root)
    for k in range(len(frontier)):
        u = np.uint64(frontier[k])
        for e in range(indptr[u], indptr[u + _ONE]):
            v = np.uint64(indices[np.uint64(e)])
            state = np.int64(visited[v])
            if state <= old:
                visited[v] = mark << 1 | state & IS_SOURCE
                fresh[num_new] = v
                num_new += 1
                if state & IS_SOURCE and v < own:
                    earlier += 1
    return num_new, earlier


@kernel
def keep_after(level, order, position):
    """The nodes that may be paired with the source at `position`, moved to the front."""
    size = 0
    for k in range(len(level)):
        v = level[k]
        if order[v] > position:
            level[k] = level[size]
            level[size] = v
            size += 1
    return level[:size]


@kernel
def take_level(members, request, position, hop, spent, scratch, targets):
    """Writes all members of a level, or those at drawn ranks."""
    if len(members) <= request.most:
        targets[: len(members)] = members
    else:
        scratch.held[:] = 0
        for v in members:
            scratch.held[v // STRETCH] += 1
        draw_ranks(request.seed, request.sources[position], hop, len(members), scratch.ranks, scratch.table)
        marks = spent + hop, spent + hop
        take_marked(marks, request.order, position, scratch.visited, scratch.held, scratch.ranks, targets)


@kernel
def hold_back(reached, order, position, free, change):
    """Takes the reached nodes out of the free ones (change -1) or returns them (+1)."""
    for v in reached:
        if order[v] > position:
            free[v // STRETCH] += change


@kernel
def take_rest(size, request, position, hop, spent, scratch, targets):
    """Writes all nodes that no level reached and no earlier source was paired with, or those at drawn ranks."""
    if size > request.most:
        draw_ranks(request.seed, request.sources[position], hop, size, scratch.ranks, scratch.table)
        ranks = scratch.ranks
    else:
        ranks = np.arange(size)
    take_marked((0, spent), request.order, position, scratch.visited, scratch.free, ranks, targets)


@kernel
def take_marked(marks, order, position, visited, held, ranks, targets):
    """Writes the nodes at these ranks among those that carry the marks (lowest, highest) or one between.

    Only nodes after the position count; `held` says how many each stretch has.
    """
    lowest, highest = marks
    stretch, below = 0, 0  # members before this stretch
    v, passed = 0, 0  # members before v
    for k in range(len(ranks)):
        while below + held[stretch] <= ranks[k]:
            below += held[stretch]
            stretch += 1
            v, passed = stretch * STRETCH, below
        while passed <= ranks[k]:
            mark = np.int64(visited[v]) >> 1
            passed += (order[v] > position) & (lowest <= mark) & (mark <= highest)
            v += 1
        targets[k] = v - 1


@kernel
def arcs_around(layout, source, num_levels, limit, visited, queue):
    """The arcs that a search of this depth reads; it stops early once they pass the limit."""
    root = layout.node_of[source]
    queue[0] = root
    visited[root] = 1 << 1
    start, stop, arcs = 0, 1, 0
    for _ in range(num_levels):
        for k in range(start, stop):
            arcs += layout.out_indptr[queue[k] + 1] - layout.out_indptr[queue[k]]
        if arcs > limit:
            break
        num_new, _earlier = expand(layout, root, 0, 1, visited, queue[start:stop], queue[stop:])
        start, stop = stop, stop + num_new
    for k in range(stop):
        visited[queue[k]] = 0
    return arcs
