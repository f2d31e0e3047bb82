"""The rows of a CSR put in order: jitted functions only."""

from hcm_scale.base.jit import kernel

_SHORT = 32  # a row that insertion sorts faster


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
