"""Triangles of a marked subgraph, counted per node: jitted functions only.

Forward counting: every marked edge points from its end of smaller (degree, number) to the larger, so that no node, hub
or not, has more than sqrt(2 m) successors. A triangle is then found once, at its lowest node u: as a successor of u
that is also a successor of another one. Threads add to shared counts, which are integers, so the result does not
depend on who counted what, and nothing but the stack grows with the threads.
"""

import numpy as np

from hcm_scale.base.atomics import fetch_add
from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch

_AHEAD = 16  # neighbours between asking for a node's numbers and reading them
_SHORT = 32  # a row that insertion sorts faster
_FILTER = 1 << 13  # bytes, most of them 0: a node whose byte is 0 is no successor and need not be searched for
_LAST_BITS = np.uint64(_FILTER - 1)
_ONE = np.uint64(1)


@kernel(inline="always")
def _neighbor_ahead(indices, position, distance):
    """The neighbour that is listed `distance` places further on."""
    return np.uint64(indices[np.uint64(min(position + distance, len(indices) - 1))])


@kernel(allocates=False)
def count_successors(part, indptr, indices, start, marked, count):
    """count[u] += marked edges that point away from u; edge numbers run along the upper triangle of the CSR."""
    for u in range(part[0], part[1]):
        degree, shift, own = indptr[u + 1] - indptr[u], indptr[u + 1] - start[u + 1], 0
        for e in range(start[u], start[u + 1]):
            ahead = _neighbor_ahead(indices, e + shift, _AHEAD)
            prefetch(indptr, ahead)
            prefetch(count, ahead)
            if marked[np.uint64(e)]:
                v = np.uint64(indices[np.uint64(e + shift)])
                if degree <= indptr[v + _ONE] - indptr[v]:  # u < v, so of equal degrees u's end is the lower
                    own += 1
                else:
                    fetch_add(count, v, 1)
        if own:
            fetch_add(count, u, own)


@kernel(allocates=False)
def list_successors(part, indptr, indices, start, marked, cursor, out):
    """Writes the successors of u to out[cursor[u]], out[cursor[u] + 1], ... in any order, and moves cursor[u] on."""
    for u in range(part[0], part[1]):
        degree, shift = indptr[u + 1] - indptr[u], indptr[u + 1] - start[u + 1]
        for e in range(start[u], start[u + 1]):
            ahead = _neighbor_ahead(indices, e + shift, _AHEAD)
            prefetch(indptr, ahead)
            prefetch(cursor, ahead)
            if marked[np.uint64(e)]:
                v = np.uint64(indices[np.uint64(e + shift)])
                if degree <= indptr[v + _ONE] - indptr[v]:
                    out[np.uint64(fetch_add(cursor, u, 1))] = v
                else:
                    out[np.uint64(fetch_add(cursor, v, 1))] = u


@kernel
def _sort(row):
    if len(row) > _SHORT:
        row.sort()
        return
    for i in range(1, len(row)):
        value, j = row[i], i
        while j > 0 and row[j - 1] > value:
            row[j] = row[j - 1]
            j -= 1
        row[j] = value


@kernel
def sort_rows(part, indptr, indices):
    """Puts every row of a CSR in order."""
    for u in range(part[0], part[1]):
        _sort(indices[indptr[u] : indptr[u + 1]])


@kernel(inline="always")
def _holds(indices, low, high, node):
    """Whether the sorted indices low .. high - 1 hold a node."""
    while low < high:
        middle = (low + high) // 2
        found = indices[np.uint64(middle)]
        if found == node:
            return True
        if found < node:
            low = middle + 1
        else:
            high = middle
    return False


@kernel(inline="always")
def _count_at(indptr, indices, u, seen, count):
    """Adds the triangles whose lowest node is u; `seen` is all 0, and is so again afterwards."""
    low, high = indptr[u], indptr[u + 1]
    for e in range(low, high):
        seen[np.uint64(indices[np.uint64(e)]) & _LAST_BITS] = 1
    of_u = 0
    for e in range(low, high):
        prefetch(indptr, _neighbor_ahead(indices, e, _AHEAD // 2))
        prefetch(indices, indptr[_neighbor_ahead(indices, e, _AHEAD // 4)])
        v, of_v = np.uint64(indices[np.uint64(e)]), 0
        for f in range(indptr[v], indptr[v + _ONE]):
            w = indices[np.uint64(f)]
            if seen[np.uint64(w) & _LAST_BITS] and _holds(indices, low, high, w):
                fetch_add(count, w, 1)
                of_v += 1
        if of_v:
            fetch_add(count, v, of_v)
            of_u += of_v
    if of_u:
        fetch_add(count, u, of_u)
    for e in range(low, high):
        seen[np.uint64(indices[np.uint64(e)]) & _LAST_BITS] = 0


@kernel
def count_triangles(part, indptr, indices, count):
    """count[v] += triangles at v, from the CSR of successors with sorted rows."""
    seen = np.zeros(_FILTER, np.uint8)
    for u in range(part[0], part[1]):
        if indptr[u + 1] - indptr[u] > 1:
            _count_at(indptr, indices, u, seen, count)
