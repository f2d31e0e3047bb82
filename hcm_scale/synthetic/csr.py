"""Pairs of nodes to a symmetric CSR, sorted, without loops or repeats: a parallel counting sort in two levels.

Arcs are first dealt into buckets of neighbouring rows (each chunk of pairs knows where its arcs of each bucket go, so
threads never share a place), then each bucket is sorted by row, and each row by column, inside the cache. Rows end up
sorted, so the result depends on nothing but the set of pairs. Memory beside the pairs: 12 bytes an arc, then the CSR.
"""

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.threads import run_in_threads

_NUM_CHUNKS = 64
_MAX_BUCKETS = 512
_INSERTION_LENGTH = 24
_S32 = np.uint64(32)


def symmetric_csr(
    u: NDArray[np.int32], v: NDArray[np.int32], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(indptr, indices) of the undirected graph of the pairs (u[e], v[e]).

    >>> indptr, indices = symmetric_csr(np.array([0, 2, 1], np.int32), np.array([2, 0, 1], np.int32), 3)
    >>> indptr.tolist(), indices.tolist()
    ([0, 1, 1, 2], [2, 0])
    """
    shift = max(0, (num_nodes - 1).bit_length() - (_MAX_BUCKETS - 1).bit_length())
    num_buckets = ((num_nodes - 1) >> shift) + 1
    counts = np.zeros((_NUM_CHUNKS, num_buckets), np.int64)
    run_in_threads(_NUM_CHUNKS, count_buckets, u, v, shift, counts)
    ends = np.cumsum(counts.T).reshape(num_buckets, _NUM_CHUNKS).T
    arcs = np.empty(ends[-1, -1], np.uint64)
    run_in_threads(_NUM_CHUNKS, deal_arcs, u, v, shift, np.ascontiguousarray(ends - counts), arcs)
    starts = np.concatenate([[0], ends[-1]])
    columns = np.empty(len(arcs), np.int32)
    indptr = np.zeros(num_nodes + 1, np.int64)
    run_in_threads(num_buckets, sort_buckets, arcs, starts, shift, columns, indptr[1:])
    del arcs
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], np.int32)
    run_in_threads(num_buckets, join_buckets, columns, starts, shift, indptr, indices)
    return indptr, indices


@kernel
def count_buckets(part, u, v, shift, counts):
    """counts[chunk, bucket] = the arcs that a chunk of pairs, taken both ways and without loops, puts into a bucket."""
    num_chunks = counts.shape[0]
    for chunk in range(part[0], part[1]):
        for e in range(len(u) * chunk // num_chunks, len(u) * (chunk + 1) // num_chunks):
            if u[e] != v[e]:
                counts[chunk, u[e] >> shift] += 1
                counts[chunk, v[e] >> shift] += 1


@kernel
def deal_arcs(part, u, v, shift, places, arcs):
    """Writes each arc as (row << 32 | column) at the next of its chunk's places in its bucket; moves `places` on."""
    num_chunks = places.shape[0]
    for chunk in range(part[0], part[1]):
        for e in range(len(u) * chunk // num_chunks, len(u) * (chunk + 1) // num_chunks):
            if u[e] != v[e]:
                a, b = u[e] >> shift, v[e] >> shift
                arcs[places[chunk, a]] = (np.uint64(u[e]) << _S32) | np.uint64(v[e])
                places[chunk, a] += 1
                arcs[places[chunk, b]] = (np.uint64(v[e]) << _S32) | np.uint64(u[e])
                places[chunk, b] += 1


@kernel
def sort_buckets(part, arcs, starts, shift, columns, degrees):
    """Sorts each bucket into rows of distinct, rising columns, packed from its start; their lengths go to `degrees`."""
    for bucket in range(part[0], part[1]):
        first = bucket << shift
        num_rows = min(np.int64(1) << shift, len(degrees) - first)
        ends = np.zeros(num_rows + 1, np.int64)
        for e in range(starts[bucket], starts[bucket + 1]):
            ends[np.int64(arcs[e] >> _S32) - first + 1] += 1
        ends[0] = starts[bucket]
        for i in range(num_rows):
            ends[i + 1] += ends[i]
        places = ends[:-1].copy()
        for e in range(starts[bucket], starts[bucket + 1]):
            i = np.int64(arcs[e] >> _S32) - first
            columns[places[i]] = np.int32(arcs[e] & np.uint64(0xFFFFFFFF))
            places[i] += 1
        write = starts[bucket]
        for i in range(num_rows):
            kept = _sort_row(columns[ends[i] : ends[i + 1]])
            for k in range(kept):
                columns[write + k] = columns[ends[i] + k]
            degrees[first + i] = kept
            write += kept


@kernel
def _sort_row(row):
    """Sorts a row and moves its distinct values to the front; returns how many there are."""
    if len(row) > _INSERTION_LENGTH:
        row.sort()
    else:
        for i in range(1, len(row)):
            value = row[i]
            k = i
            while k > 0 and row[k - 1] > value:
                row[k] = row[k - 1]
                k -= 1
            row[k] = value
    kept = min(1, len(row))
    for i in range(1, len(row)):
        if row[i] != row[kept - 1]:
            row[kept] = row[i]
            kept += 1
    return kept


@kernel
def join_buckets(part, columns, starts, shift, indptr, indices):
    """Closes the gaps that merged repeats left between buckets."""
    num_nodes = len(indptr) - 1
    for bucket in range(part[0], part[1]):
        first = indptr[bucket << shift]
        last = indptr[min((bucket + 1) << shift, num_nodes)]
        for e in range(last - first):
            indices[first + e] = columns[starts[bucket] + e]
