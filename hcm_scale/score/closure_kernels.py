"""Triangles of a marked subgraph, counted per node: jitted functions only.

Forward counting: every marked edge points from its end of smaller (degree, number) to the larger, so that a node has
at most sqrt(2 m) successors, hub or not. Each task owns a mark and a count array; counts are integers, so the sum over
tasks does not depend on who counted what.
"""

from numba import njit, prange


@njit(cache=True, inline="always")
def _points_on(degree, u, v):
    return degree[u] < degree[v] or (degree[u] == degree[v] and u < v)


@njit(cache=True)
def count_marked(indptr, indices, start, marked, degree):
    """degree[v] = number of marked edges at v; edge numbers run along the upper triangle of the CSR."""
    degree[:] = 0
    for u in range(len(indptr) - 1):
        number = start[u]
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            if v > u:
                if marked[number]:
                    degree[u] += 1
                    degree[v] += 1
                number += 1


@njit(cache=True)
def orient_marked(indptr, indices, start, marked, degree, out_indptr, out_indices):
    """The marked edges as the CSR of their directed form; `out_indptr` (n + 1) comes in as zeros."""
    for fill in range(2):
        for u in range(len(indptr) - 1):
            number = start[u]
            for e in range(indptr[u], indptr[u + 1]):
                v = indices[e]
                if v > u:
                    if marked[number]:
                        tail, head = (u, v) if _points_on(degree, u, v) else (v, u)
                        if fill:
                            out_indices[out_indptr[tail]] = head
                        out_indptr[tail if fill else tail + 1] += 1
                    number += 1
        if fill == 0:
            for u in range(1, len(out_indptr)):
                out_indptr[u] += out_indptr[u - 1]
    for u in range(len(out_indptr) - 1, 0, -1):  # filling moved every start to the next one's place
        out_indptr[u] = out_indptr[u - 1]
    out_indptr[0] = 0


@njit(cache=True, parallel=True)
def count_triangles(out_indptr, out_indices, marks, counts):
    """counts[task, v] += triangles at v found by `task`; marks (tasks, n) comes in as -1."""
    num_tasks, num_nodes = counts.shape
    for task in prange(num_tasks):
        mark, count = marks[task], counts[task]
        for u in range(task, num_nodes, num_tasks):
            for e in range(out_indptr[u], out_indptr[u + 1]):
                mark[out_indices[e]] = u
            for e in range(out_indptr[u], out_indptr[u + 1]):
                v = out_indices[e]
                for f in range(out_indptr[v], out_indptr[v + 1]):
                    w = out_indices[f]
                    if mark[w] == u:
                        count[u] += 1
                        count[v] += 1
                        count[w] += 1
