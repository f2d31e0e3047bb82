"""From rows of kept nodes to pairs, jitted."""

from numba import prange

from hcm_scale.base.jit import kernel


@kernel(parallel=True, nogil=True)
def fill_pairs(rows, names, sources, starts, u, v, hop):
    """Writes class c of source i at starts[c, i], under the original names, sorted."""
    kept, targets = rows.kept, rows.targets
    num_sources, num_classes = kept.shape
    for i in prange(num_sources):
        read = 0
        for c in range(num_classes):
            begin = starts[c, i]
            end = begin + kept[i, c]
            for k in range(begin, end):
                v[k] = names[targets[i, read]]
                read += 1
            v[begin:end].sort()
            u[begin:end] = sources[i]
            hop[begin:end] = c + 1
