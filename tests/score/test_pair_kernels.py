"""The pair head's kernels against numpy, where numbers are hard: large logits, ties, NaN, blocks that are not full."""

import numpy as np
import pytest
from scipy.special import softmax

from hcm_scale.score.edges import pair_inputs, update_moments


def moments_of(hidden, weight, bias, *, expected, times=1):
    """Mean and squared deviations after so many samples that predict the same."""
    moments = np.full(len(hidden), 9, np.float32), np.full(len(hidden), 9, np.float32)
    number = np.arange(len(hidden))[::-1].copy()
    for count in range(1, times + 1):
        update_moments((0, len(hidden)), hidden, (weight, bias), number, expected, count, moments)
    return moments[0][number], moments[1][number]


@pytest.mark.parametrize("largest", [1e-3, 1.0, 30.0, 1e3, 1e30])
def test_expected_hop__is_that_of_numpy_at_any_size_of_logits(largest):
    logits = (np.random.default_rng(0).random((200, 4)) * largest).astype(np.float32)
    mean, m2 = moments_of(logits, np.eye(4, dtype=np.float32), np.zeros(4, np.float32), expected=True, times=3)
    exact = softmax((logits - logits.max(axis=1, keepdims=True)).astype(np.float64), axis=1) @ np.arange(1.0, 5.0)
    np.testing.assert_allclose(mean, exact, rtol=1.2e-7)
    assert m2.max() < 1e-12


def test_last_layer__is_relu_product_and_bias():
    rng = np.random.default_rng(1)
    hidden, weight, bias = (rng.normal(size=size).astype(np.float32) for size in ((65, 33), (3, 33), 3))
    logits = np.maximum(hidden, 0).astype(np.float64) @ weight.T + bias
    mean, _ = moments_of(hidden, weight, bias, expected=True)
    np.testing.assert_allclose(mean, softmax(logits, axis=1) @ np.arange(1.0, 4.0), rtol=1e-5)
    likeliest, _ = moments_of(hidden, weight, bias, expected=False)
    assert likeliest.tolist() == (logits.argmax(axis=1) + 1).tolist()


def test_likeliest_hop__of_equal_logits_is_the_first():
    hidden = np.array([[2, 2, 1], [0, 3, 3]], np.float32)
    mean, _ = moments_of(hidden, np.eye(3, dtype=np.float32), np.zeros(3, np.float32), expected=False)
    assert mean.tolist() == [1, 2]


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits__that_are_not_finite_make_the_moments_nan(value, expected):
    hidden = np.ones((3, 4), np.float32)
    hidden[1, 2] = value
    mean, _ = moments_of(hidden, np.eye(4, dtype=np.float32), np.zeros(4, np.float32), expected=expected)
    assert np.isnan(mean).tolist() == [False, True, False]


@pytest.mark.parametrize("signed", [True, False])
def test_pair_inputs__are_differences_of_rows(signed):
    rng = np.random.default_rng(2)
    z = rng.normal(size=(20, 37)).astype(np.float32)
    left, right = rng.integers(0, 20, (2, 50)).astype(np.int32)
    out = np.empty((50, 37), np.float32)
    pair_inputs((0, 50), z, left, right, signed, out)
    apart = z[left] - z[right]
    assert np.array_equal(out, apart if signed else np.abs(apart))
