"""Sorting nodes by degree, and renaming and reversing the arcs of a CSR graph, jitted."""

import numpy as np

from hcm_scale.base.jit import kernel

HUBS = 4096  # their rows of words fit into a second-level cache
_ROWS_PER_BLOCK, TASKS = 64, 128
_ONE = np.uint64(1)


@kernel
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


@kernel(allocates=False)
def rename_rows(part, indptr, indices, names, places, out_indptr, out_indices):
    """Row i becomes the row of node names[i] under new names, its hubs first (else in any order).

    Rows come by falling degree, so a task takes every 128th block of them: as many arcs as any other task.
    """
    num_blocks = (len(names) + _ROWS_PER_BLOCK - 1) // _ROWS_PER_BLOCK
    for task in range(part[0], part[1]):
        for block in range(task, num_blocks, TASKS):
            for i in range(block * _ROWS_PER_BLOCK, min((block + 1) * _ROWS_PER_BLOCK, len(names))):
                u = names[i]
                front, back = np.uint64(out_indptr[i]), np.uint64(out_indptr[i + 1])
                for e in range(indptr[u], indptr[u + 1]):
                    v = places[np.uint64(indices[np.uint64(e)])]
                    if v < HUBS:
                        out_indices[front] = v
                        front += _ONE
                    else:
                        back -= _ONE
                        out_indices[back] = v


@kernel
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
