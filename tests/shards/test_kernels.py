"""Claims about the kernels that put pairs in order."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
from scipy import stats

from hcm_scale.base.rng import key
from hcm_scale.shards.writer import group_by_class, shuffle_pairs


def test_group_by_class__is_a_stable_sort_by_class():
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, 1000, (2, 500)).astype(np.int32)
    hop = rng.integers(1, 5, 500).astype(np.uint8)
    out = np.empty((2, 500), np.int32)
    group_by_class(u, v, hop, np.cumsum(np.bincount(hop, minlength=5))[:-1], out[0], out[1])
    order = np.argsort(hop, kind="stable")
    assert np.array_equal(out, [u[order], v[order]])


def test_shuffle_pairs__keeps_pairs_together_and_depends_on_the_key_alone():
    u, v = np.arange(1000), np.arange(1000) + 5
    again_u, again_v = u.copy(), v.copy()
    shuffle_pairs(3, u, v)
    shuffle_pairs(3, again_u, again_v)
    assert np.array_equal(v, u + 5)
    assert np.array_equal(np.sort(u), np.arange(1000))
    assert np.array_equal(u, again_u)
    assert not np.array_equal(u, np.arange(1000))


def test_shuffle_pairs__makes_all_permutations_alike():
    seen = Counter()
    for trial in range(4800):
        u = np.arange(4)
        shuffle_pairs(key(9, trial), u, u.copy())
        seen[tuple(u.tolist())] += 1
    observed = [seen[p] for p in permutations(range(4))]
    assert len(observed) == math.factorial(4)
    assert stats.chisquare(observed).pvalue > 1e-3
