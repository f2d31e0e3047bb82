"""The BFS one would write first: a queue and a stamp per node, one source at a time, sources over threads; jitted."""

import numpy as np
from numba import get_thread_id, prange

from hcm_scale.base.jit import kernel


@kernel(parallel=True)
def plain_levels(indptr, indices, sources, stamps, queues, out):
    """out[i, l] = nodes at distance l + 1 from sources[i]; stamps (threads, n) start at -1, queues (threads, n)."""
    for i in prange(len(sources)):
        me = get_thread_id()
        search(indptr, indices, sources[i], i, stamps[me], queues[me], out[i])


@kernel(parallel=True)
def plain_classes(indptr, indices, sources, order, stamps, queues, out):
    """The same with each pair counted once: out[i, c] counts nodes v with order[v] > i, the last class what is left.

    order[v] is v's position among the sources, or their number where it is none.
    """
    num_levels = out.shape[1] - 1
    for i in prange(len(sources)):
        me = get_thread_id()
        stamp, queue, row = stamps[me], queues[me], out[i]
        search(indptr, indices, sources[i], i, stamp, queue, row[:num_levels])
        begin, left = 1, len(stamp) - 1 - i
        for level in range(num_levels):
            end = begin + row[level]
            row[level] = 0
            for q in range(begin, end):
                row[level] += order[queue[q]] > i
            begin = end
            left -= row[level]
        row[num_levels] = left


@kernel
def search(indptr, indices, source, mark, stamp, queue, out):
    """One source, len(out) levels; `mark` differs from every mark that this stamp array has seen."""
    queue[0] = source
    stamp[source] = mark
    begin, end = np.int64(0), np.int64(1)
    for level in range(len(out)):
        fresh = end
        for q in range(begin, end):
            u = queue[q]
            for e in range(indptr[u], indptr[u + 1]):
                v = indices[e]
                if stamp[v] != mark:
                    stamp[v] = mark
                    queue[fresh] = v
                    fresh += 1
        out[level] = fresh - end
        begin, end = end, fresh
