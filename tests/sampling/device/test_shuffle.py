"""The computed shuffle: a bijection at every size, and its draws are uniform."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from hcm_scale.base.rng import key
from hcm_scale.sampling.device.graph import mix, shuffled, word_of


@given(st.integers(1, 400), st.integers(0, 2**62))
def test_shuffled__is_a_bijection(size, seed):
    word = word_of(seed, torch.tensor(3))
    order = shuffled(torch.arange(size), torch.tensor(size), word)
    assert order.sort().values.tolist() == list(range(size))


def test_shuffled__is_a_bijection_of_millions():
    order = shuffled(torch.arange(1_000_003), torch.tensor(1_000_003), torch.tensor(5))
    assert torch.bincount(order, minlength=1_000_003).max() == 1
    assert (order - torch.arange(1_000_003)).abs().double().mean() == pytest.approx(1_000_003 / 3, rel=0.01)


def test_shuffled__takes_sizes_up_to_2_31():
    size = torch.tensor(2**31 - 1)
    order = shuffled(torch.tensor([0, 1, 2**31 - 2]), size, torch.tensor(9))
    assert len(set(order.tolist())) == 3
    assert (order >= 0).all()
    assert (order < size).all()


@pytest.mark.parametrize(("size", "count"), [(6, 3), (20, 2), (11, 10), (9, 4)])
def test_shuffled__draws_every_subset_alike(size, count):
    words = word_of(1234567890123, torch.arange(50_000))
    draws = shuffled(torch.arange(count), torch.tensor(size), words[:, None]).sort(1).values
    assert (draws.diff(dim=1) > 0).all()
    seen = torch.unique(draws, dim=0, return_counts=True)[1]
    assert len(seen) == math.comb(size, count)
    assert chisquare(seen.numpy()).pvalue > 1e-3


def test_mix__is_a_bijection_of_32_bit_words():
    words = mix(torch.randint(0, 2**32, (100_000,), generator=torch.Generator().manual_seed(0)).unique())
    assert len(words.unique()) == len(words)
    assert 0 <= words.min() <= words.max() < 2**32


def test_word_of__depends_on_every_part():
    items = torch.tensor([0, 1, 2**32, 2**32 + 1])
    words = torch.cat([word_of(key(0, part), items) for part in range(4)])
    assert len(words.unique()) == len(words)
    assert torch.equal(word_of(torch.tensor(key(0, 3)), items), words[-4:])
