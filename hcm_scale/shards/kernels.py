"""Kernels that put pairs in order: grouped by class, then shuffled by a permutation that only a key decides."""

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, mix


@kernel(nogil=True)
def group_by_class(u, v, hop, cursors, out_u, out_v):
    """Scatters pairs into `out` by class; `cursors[c - 1]` is where class c goes on, and is moved along."""
    for i in range(len(hop)):
        klass = hop[i] - 1
        at = cursors[klass]
        out_u[at] = u[i]
        out_v[at] = v[i]
        cursors[klass] = at + 1


@kernel(nogil=True)
def shuffle_pairs(key, u, v):
    """Fisher and Yates in place, swap i drawn by the counter (key, i): all permutations alike, on any thread."""
    for i in range(len(u) - 1, 0, -1):
        j = below(mix(np.uint64(key), i), i + 1)
        u[i], u[j] = u[j], u[i]
        v[i], v[j] = v[j], v[i]
