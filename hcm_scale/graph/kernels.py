"""Kernels of a CSR's making: edges as sortable 64-bit keys, keys to CSR rows; the weights of both directions joined.

A key is `u << 33 | v << 1 | flipped` with u < v (undirected; `flipped` tells that the row said (v, u)) or u -> v
(directed). Sorted keys are therefore sorted edges, an edge and its reverse stand side by side, and shifting the last
bit out merges them. Node numbers must be under 2^31.
"""

import numpy as np

from hcm_scale.base.jit import kernel

_ONE = np.uint64(1)
_U_SHIFT = np.uint64(33)
_EDGE_SHIFT = np.uint64(32)
_LOW32 = np.uint64(0xFFFFFFFF)


@kernel
def pack_edges(u, v, directed, keys):
    """Writes one key per row that is not a self loop; returns how many."""
    count = 0
    for i in range(len(u)):
        a = np.uint64(u[i])
        b = np.uint64(v[i])
        if a == b:
            continue
        flipped = np.uint64(0)
        if not directed and b < a:
            a, b = b, a
            flipped = _ONE
        keys[count] = (a << _U_SHIFT) | (b << _ONE) | flipped
        count += 1
    return count


@kernel
def drop_repeats(keys):
    """Keeps the first of each group of equal neighbours, in place; returns how many are left."""
    count = 0
    for i in range(len(keys)):
        if count == 0 or keys[i] != keys[count - 1]:
            keys[count] = keys[i]
            count += 1
    return count


@kernel
def count_ends(edges, both_ways, degree):
    """Adds to `degree` the arcs u -> v, and v -> u where `both_ways`, of edges packed as u << 32 | v."""
    for i in range(len(edges)):
        degree[np.int64(edges[i] >> _EDGE_SHIFT)] += 1
        if both_ways:
            degree[np.int64(edges[i] & _LOW32)] += 1


@kernel
def scatter_ends(edges, both_ways, cursor, indices):
    """Places the arcs of sorted edges into CSR rows, moving each row's cursor on.

    Rows come out sorted without sorting: row w meets the edges (u, w), u < w, by u, before its own (w, v), by v.
    """
    for i in range(len(edges)):
        u = np.int64(edges[i] >> _EDGE_SHIFT)
        v = np.int64(edges[i] & _LOW32)
        indices[cursor[u]] = v
        cursor[u] += 1
        if both_ways:
            indices[cursor[v]] = u
            cursor[v] += 1


@kernel
def join_directions(indptr, indices, adds_up, cursor, sums):
    """Gives both entries of an edge of a symmetric CSR the sum of their two numbers, or else the larger of them.

    `cursor` (n,) holds the starts of the rows: rows u are walked upwards, so row v > u meets its entries below v in
    their order.
    """
    for u in range(len(cursor)):
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            if v > u:
                mirror = cursor[v]
                cursor[v] += 1
                both = sums[at] + sums[mirror] if adds_up else max(sums[at], sums[mirror])
                sums[at] = both
                sums[mirror] = both
