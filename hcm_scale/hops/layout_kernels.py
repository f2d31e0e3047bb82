"""Sorting nodes by degree, and renaming and reversing the arcs of a CSR graph, jitted."""

from numba import njit, prange

HUBS = 4096  # their rows of words fit into a second-level cache
_ROWS_PER_TASK = 1024


@njit(cache=True, nogil=True)
def sort_by_degree(degrees, starts, names):
    """Counting sort: the nodes by falling degree, then number; `starts` comes in zeroed, of max degree + 2."""
    highest = len(starts) - 2
    for degree in degrees:
        starts[highest - degree + 1] += 1
    for k in range(highest + 1):
        starts[k + 1] += starts[k]
    for v in range(len(degrees)):
        k = highest - degrees[v]
        names[starts[k]] = v
        starts[k] += 1


@njit(cache=True, parallel=True, nogil=True)
def rename_rows(indptr, indices, names, places, out_indptr, out_indices):
    """Row i becomes the row of node names[i] under new names, its hubs first (else in any order)."""
    num_rows = len(names)
    for task in prange((num_rows + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        for i in range(task * _ROWS_PER_TASK, min((task + 1) * _ROWS_PER_TASK, num_rows)):
            u = names[i]
            front, back = out_indptr[i], out_indptr[i + 1]
            for e in range(indptr[u], indptr[u + 1]):
                v = places[indices[e]]
                if v < HUBS:
                    out_indices[front] = v
                    front += 1
                else:
                    back -= 1
                    out_indices[back] = v


@njit(cache=True, nogil=True)
def reverse_arcs(indptr, indices, cursor, out_indptr, out_indices):
    """The arcs u -> v as rows of v; `cursor` is scratch, one number a node."""
    num_nodes = len(indptr) - 1
    out_indptr[:] = 0
    for v in indices:
        out_indptr[v + 1] += 1
    for v in range(num_nodes):
        out_indptr[v + 1] += out_indptr[v]
        cursor[v] = out_indptr[v]
    for u in range(num_nodes):
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            out_indices[cursor[v]] = u
            cursor[v] += 1
