"""Bit-parallel BFS: one level for 64 W sources at once, jitted.

Node v owns W words of 64 bits in each of three arrays, one bit per source: `seen` (reached so far), `front` (reached
in the last level) and `new` (reached in this one). One OR moves up to 64 W searches along an arc; with W = 8 a row is
one cache line. A bitmap beside `front` and `new` says which rows are not zero: one of its words covers a chunk of 64
nodes, so that a level with a small frontier costs what it touches.

A level goes top-down (`push`: rows of the frontier are ORed into their out-neighbours) or bottom-up (`pull`: each
node ORs the rows of its in-neighbours), and then `settle`s: what was seen before is removed from `new` and the rest
joins `seen`.

W is a compile-time constant: `lanes`, a tuple of W zeros, carries it in its type, and its loops unroll into vector
registers.
"""

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch
from hcm_scale.hops.count_kernels import bit_of
from hcm_scale.hops.intrinsics import trailing_zeros, tuple_setitem

AHEAD = 8  # arcs: asking for a row so far ahead makes a bottom-up pass 1.6 times as fast
_ONE, _ZERO = np.uint64(1), np.uint64(0)


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
def clear_rows(rows, active):
    """Zeroes the rows named by the bitmap, and the bitmap."""
    for chunk in range(len(active)):
        word = active[chunk]
        while word != _ZERO:
            rows[64 * chunk + trailing_zeros(word), :] = _ZERO
            word &= word - _ONE
        active[chunk] = _ZERO


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
                prefetch(new, len(lanes) * np.int64(indices[min(e + AHEAD, last)]))
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
            prefetch(front, len(lanes) * np.int64(indices[min(e + AHEAD, last)]))
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
