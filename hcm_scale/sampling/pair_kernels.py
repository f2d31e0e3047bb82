"""Kernels that draw pairs from a row group."""

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, mix


@kernel(nogil=True)
def pick_pairs(key, u, v, out_u, out_v):
    """Fills `out` with len(out) of the len(u) pairs, all subsets alike: Fisher and Yates, cut short. Spoils u, v."""
    rows = len(u)
    for i in range(len(out_u)):
        j = i + below(mix(np.uint64(key), i), rows - i)
        out_u[i], out_v[i] = u[j], v[j]
        u[j], v[j] = u[i], v[i]
