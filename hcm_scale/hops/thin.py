"""A search of each source by itself, for graphs in which sources share next to nothing: grids, chains, thin graphs.

The nodes of a level, sorted, are a class in the order in which `wide` ranks it, so that the same ranks are the same
nodes. The last class is what no level holds: its ranks are counted past the nodes that were reached and those that are
earlier sources, both sorted. Memory of a thread: a byte and an index a node.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel, prefetch
from hcm_scale.hops.layout import Layout
from hcm_scale.hops.wide import draw_ranks

COLUMNS = 64  # sources of a task
_AHEAD = 8  # arcs


def num_takers(num_nodes: int, threads: int, state_bytes: int) -> int:
    """How many threads search at a time, within so many bytes for each thread; one always does."""
    return max(1, min(threads, threads * state_bytes // thin_bytes(num_nodes)))


def thin_bytes(num_nodes: int) -> int:
    """Bytes of marks and queue of a thread."""
    return num_nodes * (5 if num_nodes < 1 << 31 else 9)


def thin_scratch(layout: Layout, pairs_per_class: int) -> tuple[NDArray[Any], ...]:
    """What a thread needs: marks, which are taken back after every source, a queue, ranks and their table."""
    queue = np.empty(layout.num_nodes, layout.names.dtype)
    ranks, table = np.empty(pairs_per_class, np.int64), np.empty(3 * pairs_per_class, np.int64)
    return np.zeros(layout.num_nodes, np.bool_), queue, ranks, table


@kernel
def label_each(indptr, indices, request, columns, scratch, rows):
    """Fills the rows of the sources at columns.positions."""
    visited, queue = scratch[:2]
    order, last_arc, num_classes = request.order, len(indices) - 1, rows.counts.shape[1]
    for position in columns.positions:
        root, row = request.sources[position], position - columns.first
        queue[0], visited[root] = root, True
        start, stop = 0, 1
        for hop in range(1, num_classes):
            end = stop
            for k in range(start, stop):
                for e in range(indptr[queue[k]], indptr[queue[k] + 1]):
                    prefetch(visited, np.int64(indices[min(e + _AHEAD, last_arc)]))
                    if not visited[indices[e]]:
                        visited[indices[e]] = True
                        queue[end] = indices[e]
                        end += 1
            start, stop, size = stop, end, 0
            for v in queue[start:stop]:
                size += order[v] > position
            if want(hop, size, root, row, request, scratch, rows):
                queue[start:stop].sort()
            take_reached(hop, position, row, queue[start:stop], request, scratch, rows)
        left_out = stop + (position if order[root] == position else 0)  # all pairs count on a directed graph
        for v in queue[:stop]:
            left_out -= order[v] < position
        want(num_classes, len(visited) - left_out, root, row, request, scratch, rows)
        for v in request.sources[: position if request.most and left_out > stop else 0]:
            if not visited[v]:
                queue[end] = v
                end += 1
        visited[queue[:stop]] = False
        if request.most:
            queue[:end].sort()
            take_others(row, queue[:end], request, scratch, rows)


@kernel
def want(hop, size, source, row, request, scratch, rows):
    """Records the size of a class; where not all of it is kept, draws the ranks of a sample, and says so."""
    is_sampled = size > request.most > 0
    rows.counts[row, hop - 1], rows.kept[row, hop - 1] = size, min(size, request.most)
    if is_sampled:
        draw_ranks(request.seed, source, hop, size, scratch[2], scratch[3])
    return is_sampled


@kernel
def take_reached(hop, position, row, level, request, scratch, rows):
    """Keeps the wanted ranks among a level."""
    first, num_kept = rows.kept[row, : hop - 1].sum(), rows.kept[row, hop - 1]
    is_sampled, rank, taken = rows.counts[row, hop - 1] > num_kept, 0, 0
    for v in level:
        if taken < num_kept and request.order[v] > position:
            if not is_sampled or scratch[2][taken] == rank:
                rows.targets[row, first + taken] = v
                taken += 1
            rank += 1


@kernel
def take_others(row, left_out, request, scratch, rows):
    """Keeps the wanted ranks among the nodes that are not left out; those rise."""
    skipped, first, is_sampled = 0, rows.kept[row, :-1].sum(), rows.counts[row, -1] > request.most
    for taken in range(rows.kept[row, -1]):
        v = skipped + (scratch[2][taken] if is_sampled else taken)
        while skipped < len(left_out) and left_out[skipped] <= v:
            skipped += 1
            v += 1
        rows.targets[row, first + taken] = v
