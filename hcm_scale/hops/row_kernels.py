"""From rows of kept nodes to pairs, jitted."""

from hcm_scale.base.jit import kernel


@kernel
def fill_pairs(part, rows, names, sources, starts, pairs):
    """Writes class c of source i at starts[c, i], under the original names, sorted."""
    kept, targets = rows.kept, rows.targets
    u, v, hop = pairs
    for i in range(part[0], part[1]):
        read = 0
        for c in range(kept.shape[1]):
            begin = starts[c, i]
            end = begin + kept[i, c]
            for k in range(begin, end):
                v[k] = names[targets[i, read]]
                read += 1
            v[begin:end].sort()
            u[begin:end] = sources[i]
            hop[begin:end] = c + 1
