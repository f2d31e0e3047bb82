"""Jitted loops of the scoring room: edge numbers, the inside of the pair head, per-node averages.

Edges of an undirected graph are numbered by the CSR entries with column > row. Rows are sorted, so those entries are
the tail of each row, and with `start[u]` = how many of them the rows before u have,

    CSR position of edge e in row u  =  indptr[u + 1] - start[u + 1] + e.

A directed graph has start = indptr, and the same formula gives position = e. Every output element is written by one
thread from values in CSR order, so nothing here depends on the thread count.

A node's own draw of neighbours needs no memory beyond 8 bytes a node: arc (v, u) has the hash `bits(seed, v, u)`, and
it is drawn when its hash is at most `limit[v]`, the k-th smallest of the row.
"""

import numpy as np
from numba import njit, prange

from hcm_scale.base.rng import bits

_ROWS_PER_TASK = 256  # small enough that a hub's task does not keep the other threads waiting
_EDGES_PER_TASK = 64
MAX_HASH = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, parallel=True)
def count_upper(indptr, indices, out):
    """out[u] = entries of row u with column > u."""
    for u in prange(len(indptr) - 1):
        low, high = indptr[u], indptr[u + 1]
        while low < high:
            middle = (low + high) // 2
            if indices[middle] > u:
                high = middle
            else:
                low = middle + 1
        out[u] = indptr[u + 1] - low


@njit(cache=True, parallel=True)
def draw_limits(indptr, indices, num_drawn, seed, out):
    """out[v] = the num_drawn-th smallest hash of row v's arcs; rows that short are drawn whole."""
    num_nodes = len(indptr) - 1
    for task in prange((num_nodes + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        for v in range(first, min(first + _ROWS_PER_TASK, num_nodes)):
            degree = indptr[v + 1] - indptr[v]
            out[v] = MAX_HASH
            if degree > num_drawn:
                hashes = np.empty(degree, np.uint64)
                for i in range(degree):
                    hashes[i] = bits(seed, v, indices[indptr[v] + i])
                hashes.sort()
                out[v] = hashes[num_drawn - 1]


@njit(cache=True)
def list_edges(indptr, indices, start, limit, seed, either, first, last, row, left, right, number):
    """Ends and numbers of the edges first .. last - 1 that are drawn, from row `row` on; returns how many.

    `limit` is empty where all edges are scored. `either`: an edge is scored when one of its two ends draws it (on a
    directed graph only the tail draws).
    """
    found = 0
    u = row
    for e in range(first, last):
        while start[u + 1] <= e:
            u += 1
        v = indices[indptr[u + 1] - start[u + 1] + e]
        if len(limit):
            drawn = bits(seed, u, v) <= limit[u] or (either and bits(seed, v, u) <= limit[v])
            if not drawn:
                continue
        left[found] = u
        right[found] = v
        number[found] = e
        found += 1
    return found


@njit(cache=True, parallel=True)
def pair_inputs(z, left, right, signed, out):
    """out[i] = |z[left[i]] - z[right[i]]|, without the absolute value where `signed`."""
    width = z.shape[1]
    num_pairs = len(left)
    for task in prange((num_pairs + _EDGES_PER_TASK - 1) // _EDGES_PER_TASK):
        first = task * _EDGES_PER_TASK
        for i in range(first, min(first + _EDGES_PER_TASK, num_pairs)):
            a, b, row = z[left[i]], z[right[i]], out[i]
            if signed:
                for k in range(width):
                    row[k] = a[k] - b[k]
            else:
                for k in range(width):
                    row[k] = abs(a[k] - b[k])


@njit(cache=True, inline="always")
def _expected_hop(logits):
    """Sum over classes of (c + 1) * softmax(logits)[c], in float64."""
    top = logits.max()
    total = 0.0
    weighted = 0.0
    for c in range(len(logits)):
        p = np.exp(np.float64(logits[c] - top))
        total += p
        weighted += p * (c + 1)
    return weighted / total


@njit(cache=True, parallel=True)
def update_moments(logits, number, expected, count, mean, m2):
    """Welford's step of edge number[i] with the hop that logits[i] predict; `count` includes this sample.

    Arithmetic is float64, so that a step adds one float32 rounding to `mean` and one to `m2`, no more. Where a logit is
    not finite, which argmax would hide, both become NaN.
    """
    for i in prange(len(number)):
        row = logits[i]
        hop = _expected_hop(row) if expected else np.float64(row.argmax() + 1)
        hop += 0.0 * row.sum()
        e = number[i]
        old = np.float64(mean[e]) if count > 1 else 0.0
        spread = np.float64(m2[e]) if count > 1 else 0.0
        new = old + (hop - old) / count
        mean[e] = new
        m2[e] = spread + (hop - old) * (hop - new)


@njit(cache=True, inline="always")
def _edge_number(indptr, indices, start, directed, v, position):
    """The number of the edge that CSR entry `position` of row v stands for."""
    u = indices[position]
    if directed or u > v:
        return position - indptr[v + 1] + start[v + 1]
    low, high = indptr[u + 1] - (start[u + 1] - start[u]), indptr[u + 1]
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < v:
            low = middle + 1
        else:
            high = middle
    return low - indptr[u + 1] + start[u + 1]


@njit(cache=True)
def row_edges(indptr, indices, start, directed, v, out):
    """out[i] = number of the edge between v and its i-th neighbour."""
    for i in range(indptr[v + 1] - indptr[v]):
        out[i] = _edge_number(indptr, indices, start, directed, v, indptr[v] + i)


@njit(cache=True)
def _nearest(hops, spreads, keep):
    """Averages of both arrays over the share `keep` of smallest hops; equal hops are taken in order."""
    size = len(hops)
    # a product such as (1 - 0.7) * 10 lands a hair above the integer it means: the small term keeps ceil honest
    num_kept = max(1, int(np.ceil(keep * size - 1e-9)))
    if num_kept >= size:
        return hops.sum() / size, spreads.sum() / size
    order = np.argsort(hops, kind="mergesort")[:num_kept]
    return hops[order].sum() / num_kept, spreads[order].sum() / num_kept


@njit(cache=True, parallel=True)
def average_rows(indptr, indices, start, directed, limit, seed, keep, mean, var, ahp, iv):
    """ahp[v], iv[v] = averages of `mean` and `var` over v's drawn edges, nearest share `keep`; 0 without any."""
    num_nodes = len(indptr) - 1
    for task in prange((num_nodes + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        for v in range(first, min(first + _ROWS_PER_TASK, num_nodes)):
            hops = np.empty(indptr[v + 1] - indptr[v], np.float64)
            spreads = np.empty_like(hops)
            size = 0
            for position in range(indptr[v], indptr[v + 1]):
                if len(limit) == 0 or bits(seed, v, indices[position]) <= limit[v]:
                    e = _edge_number(indptr, indices, start, directed, v, position)
                    hops[size] = mean[e]
                    spreads[size] = var[e]
                    size += 1
            ahp[v], iv[v] = _nearest(hops[:size], spreads[:size], keep) if size else (0.0, 0.0)
