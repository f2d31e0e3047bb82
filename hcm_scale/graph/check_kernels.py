"""Kernels that look at a CSR before it is believed. None reads outside its arrays, whatever the arrays hold.

Each returns a place that is wrong, or -1. `first_fall` comes first, then `first_stray`, `first_one_way` and
`first_uneven`: the later ones rely on what the earlier ones have found to hold.
"""

from hcm_scale.base.jit import kernel


@kernel
def first_fall(indptr):
    """The first row that ends before it begins."""
    for row in range(len(indptr) - 1):
        if indptr[row + 1] < indptr[row]:
            return row
    return -1


@kernel
def first_stray(indptr, indices, num_columns, loops):
    """The first entry that is outside 0 .. num_columns - 1, not above the one before it in its row, or a loop."""
    for row in range(len(indptr) - 1):
        before = -1
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            if column <= before or column >= num_columns or (column == row and not loops):
                return at
            before = column
    return -1


@kernel
def first_one_way(indptr, indices, cursor):
    """An arc without its reverse. `cursor` (n,) holds the starts of the rows.

    Rows u are walked upwards, so the arcs u -> v, v > u, must meet the entries of each row v that are below v in their
    order, and leave none of them: half of the arcs are looked up, each once.
    """
    for row in range(len(cursor)):
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            if column > row:
                met = cursor[column]
                if met == indptr[column + 1] or indices[met] > row:
                    return at
                if indices[met] < row:
                    return met
                cursor[column] += 1
    for row in range(len(cursor)):
        if cursor[row] < indptr[row + 1] and indices[cursor[row]] < row:
            return cursor[row]
    return -1


@kernel
def first_uneven(indptr, indices, weights, cursor):
    """An arc whose reverse has another weight, in a symmetric CSR. `cursor` (n,) holds the starts of the rows."""
    for row in range(len(cursor)):
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            if column > row:
                if weights[at] != weights[cursor[column]]:
                    return at
                cursor[column] += 1
    return -1
