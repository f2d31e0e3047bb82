"""Counter-based randomness: uniform, in bounds, a pure function of its key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, prange
from scipy import stats

from hcm_scale.base import rng

WORD = st.integers(0, 2**64 - 1)


@njit(cache=False, parallel=True)
def _fill(seed, count, bound, draws, units):
    for i in prange(count):
        word = rng.bits(seed, i)
        draws[i] = rng.below(word, bound)
        units[i] = rng.unit(word)


def _draw(seed, count, bound):
    draws, units = np.empty(count, np.int64), np.empty(count)
    _fill(seed, count, bound, draws, units)
    return draws, units


@pytest.mark.parametrize("seed", [0, 1, 2**40])
@pytest.mark.parametrize("bound", [2, 7, 100])
def test_below__is_uniform(seed, bound):
    draws, _ = _draw(seed, 50_000, bound)
    assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 1e-4


def test_unit__is_uniform_in_the_half_open_interval():
    _, units = _draw(3, 50_000, 10)
    assert (units >= 0).all()
    assert (units < 1).all()
    assert stats.kstest(units, "uniform").pvalue > 1e-4


def test_bits__depend_on_every_part_of_the_key():
    words = {int(rng.bits(s, a, b, c)) for s in range(6) for a in range(6) for b in range(6) for c in range(6)}
    assert len(words) == 6**4


def test_bits__flip_half_of_the_output_when_one_bit_of_the_key_flips():
    flips = [(int(rng.bits(5, i)) ^ int(rng.bits(5, i ^ (1 << b)))).bit_count() for i in range(100) for b in range(32)]
    assert 31 < np.mean(flips) < 33


@given(WORD, st.integers(1, 2**62))
def test_below__is_the_high_half_of_the_product(word, bound):
    assert int(rng.below(np.uint64(word), np.int64(bound))) == (word * bound) >> 64


@given(WORD)
def test_unit__stays_under_one(word):
    assert 0.0 <= rng.unit(np.uint64(word)) < 1.0


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=5))
def test_key__is_a_function_of_order(parts):
    assert rng.key(*parts) == rng.key(*parts)
    assert 0 <= rng.key(*parts) < 2**63
    if parts != parts[::-1]:
        assert rng.key(*parts) != rng.key(*parts[::-1])


def test_key__starts_reproducible_generators():
    first, second = (np.random.default_rng(rng.key(4, 2)).random(3) for _ in range(2))
    assert (first == second).all()


def test_key__is_mix_in_plain_numbers():
    state = np.uint64(0)
    for part in (5, 2**63 + 9, -7):
        state = rng.mix(state, np.uint64(part % 2**64))
    assert rng.key(5, 2**63 + 9, -7) == int(state) >> 1
