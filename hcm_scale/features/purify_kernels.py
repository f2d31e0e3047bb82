"""Kernels of purification: similarities of all edges, and the CSR without the dropped ones. Jitted functions only.

Edge e of an undirected graph is the e-th entry with column > row (`starts[u]` = the first such entry of row u,
`offsets[u]` = its edge number); of a directed graph every entry is an edge. Work is cut into tasks of equal edge
counts at row borders; each value is made by one thread in a fixed order, so results do not depend on the number of
threads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.atomics import fetch_add
from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch

NUM_TASKS = 256
_AHEAD = 8  # how many neighbours on a row is asked for before it is needed
_BATCH = 64  # edges whose places are asked for before the first of them is written to


class EdgeSpans(NamedTuple):
    """Which entries of each row are edges, and their numbers."""

    starts: NDArray[np.int64]  # (n,), the first entry of a row that is an edge
    ends: NDArray[np.int64]  # (n,), one past its last
    offsets: NDArray[np.int64]  # (n + 1,), the number of the first


class SparseAttributes(NamedTuple):
    """Attributes in CSR, with the square of every row's norm."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    num_columns: int
    squares: NDArray[np.float64]


@kernel
def first_above(part, indptr, indices, starts):
    """starts[u] = the first entry of row u with column > u."""
    for u in range(part[0], part[1]):
        low, high = indptr[u], indptr[u + 1]
        while low < high:
            middle = (low + high) // 2
            if indices[middle] <= u:
                low = middle + 1
            else:
                high = middle
        starts[u] = low


@kernel
def _task_rows(task, offsets):
    """The rows (first, last) of a task: borders where the running edge count passes the task's share."""
    num_edges = offsets[-1]
    first = np.searchsorted(offsets, num_edges * task // NUM_TASKS)
    last = np.searchsorted(offsets, num_edges * (task + 1) // NUM_TASKS)
    return first, min(last, len(offsets) - 1)


@kernel(inline="always")
def _ask_ahead(x, indices, e):
    """Starts loading the attributes of a neighbour to come."""
    width = x.shape[1]
    place = np.int64(indices[min(e + _AHEAD, len(indices) - 1)]) * width
    prefetch(x, place)
    prefetch(x, place + width - 1)


@kernel(allocates=False, fastmath={"reassoc", "contract"})
def dense_euclidean(part, starts, ends, offsets, indices, x, out):
    """out[e] = -|x[u] - x[v]|."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _ask_ahead(x, indices, e)
                other = x[indices[e]]
                total = np.float64(0.0)
                for k in range(x.shape[1]):
                    gap = np.float64(own[k]) - np.float64(other[k])
                    total += gap * gap
                out[e + shift] = -np.sqrt(total)


@kernel(allocates=False, fastmath={"reassoc", "contract"})
def dense_cosine(part, starts, ends, offsets, indices, x, out):
    """out[e] = x[u] . x[v] / (|x[u]| |x[v]|), or 0 where a norm is 0."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            square = np.float64(0.0)
            for k in range(x.shape[1]):
                square += np.float64(own[k]) * np.float64(own[k])
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _ask_ahead(x, indices, e)
                other = x[indices[e]]
                product, other_square = np.float64(0.0), np.float64(0.0)
                for k in range(x.shape[1]):
                    product += np.float64(own[k]) * np.float64(other[k])
                    other_square += np.float64(other[k]) * np.float64(other[k])
                scale = np.sqrt(square) * np.sqrt(other_square)
                out[e + shift] = product / scale if scale > 0.0 else 0.0


@kernel(allocates=False)
def dense_jaccard(part, starts, ends, offsets, indices, x, out):
    """out[e] = shared non-zero columns of u and v, over the columns non-zero in either; 0 where there are none."""
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        for u in range(first, last):
            own = x[u]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                _ask_ahead(x, indices, e)
                other = x[indices[e]]
                both, either = 0, 0
                for k in range(x.shape[1]):
                    a, b = own[k] != 0, other[k] != 0
                    both += a & b
                    either += a | b
                out[e + shift] = both / either if either > 0 else 0.0


@kernel
def sparse_squares(part, x_indptr, x_data, out):
    """out[i] = |x[i]|^2."""
    for i in range(part[0], part[1]):
        total = 0.0
        for k in range(x_indptr[i], x_indptr[i + 1]):
            total += np.float64(x_data[k]) * np.float64(x_data[k])
        out[i] = total


@kernel
def _from_product(product, square_u, square_v, measure):
    """Jaccard (0; of 0/1 rows), cosine (1) or minus the distance (2), from a . b, |a|^2 and |b|^2."""
    if measure == 0:
        either = square_u + square_v - product
        return product / either if either > 0.0 else 0.0
    if measure == 1:
        scale = np.sqrt(square_u) * np.sqrt(square_v)
        return product / scale if scale > 0.0 else 0.0
    return -np.sqrt(max(0.0, square_u + square_v - 2.0 * product))


@kernel
def sparse_similarity(part, spans, indices, x, measure, out):
    """out[e] = the similarity of u and v. Row u is spread into a dense strip once; a neighbour costs its entries."""
    starts, ends, offsets = spans
    x_indptr, x_indices, x_data, num_columns, squares = x
    for task in range(part[0], part[1]):
        first, last = _task_rows(task, offsets)
        strip = np.zeros(num_columns if last > first else 0, np.float64)
        for u in range(first, last):
            if starts[u] == ends[u]:
                continue
            for k in range(x_indptr[u], x_indptr[u + 1]):
                strip[x_indices[k]] = x_data[k]
            shift = offsets[u] - starts[u]
            for e in range(starts[u], ends[u]):
                v = indices[e]
                product = 0.0
                for k in range(x_indptr[v], x_indptr[v + 1]):
                    product += strip[x_indices[k]] * np.float64(x_data[k])
                out[e + shift] = _from_product(product, squares[u], squares[v], measure)
            for k in range(x_indptr[u], x_indptr[u + 1]):
                strip[x_indices[k]] = 0.0


@kernel
def count_kept(part, indices, spans, keep, counts):
    """Adds to counts[v] the kept edges of v, of an undirected graph."""
    starts, ends, offsets = spans
    for u in range(part[0], part[1]):
        count = 0
        for e in range(starts[u], ends[u]):
            prefetch(counts, indices[min(e + 2 * _AHEAD, len(indices) - 1)])
            if keep[offsets[u] + e - starts[u]]:
                count += 1
                fetch_add(counts, indices[e], 1)
        fetch_add(counts, u, count)


@kernel
def list_kept(part, indices, spans, keep, cursor, out):
    """Writes the kept neighbours of u to out[cursor[u]], out[cursor[u] + 1], ... in any order, and moves cursor[u] on.

    An edge is met at its smaller end. Places at the larger one are taken, and their memory asked for, some edges before
    they are written to.
    """
    starts, ends, offsets = spans
    places, smaller = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
    size = 0
    for u in range(part[0], part[1]):
        shift, num_kept = offsets[u] - starts[u], 0
        for e in range(starts[u], ends[u]):
            prefetch(cursor, indices[min(e + 2 * _AHEAD, len(indices) - 1)])
            if keep[e + shift]:
                places[size], smaller[size] = fetch_add(cursor, indices[e], 1), u
                prefetch(out, places[size])
                num_kept += 1
                size += 1
                if size == _BATCH:
                    size = _write(places, smaller, size, out)
        place = fetch_add(cursor, u, num_kept)
        for e in range(starts[u], ends[u]):
            if keep[e + shift]:
                out[place] = indices[e]
                place += 1
    _write(places, smaller, size, out)


@kernel(allocates=False)
def _write(places, values, size, out):
    for i in range(size):
        out[places[i]] = values[i]
    return 0
