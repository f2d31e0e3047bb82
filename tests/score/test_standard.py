"""Means, spreads and sums of z-scores in threads equal those of plain numpy over the scored nodes alone."""

import numba
import numpy as np
import pytest

from hcm_scale.score.calibration import add_zscores, zscale_among

SIZES = [1, 7, 130, 5_000, (1 << 18) + 1, 700_001]  # the last ones are summed in pieces


def slow(values, scored):
    """Means, spreads, the least sum and the shifted sums, in plain numpy."""
    known = [value[scored] for value in values]
    means, spreads = [value.mean() for value in known], [value.std() for value in known]
    total = np.zeros(len(known[0]))
    for value, mean, spread in zip(known, means, spreads, strict=True):
        if spread > 0:
            total += (value - mean) / spread
    out = np.zeros(len(scored))
    out[scored] = total - total.min()
    return means, spreads, total.min(), out


@pytest.mark.parametrize("share", [1.0, 0.99, 0.2])
@pytest.mark.parametrize("size", SIZES)
def test_usual__equals_numpy_at_any_number_of_threads(size, share, monkeypatch):
    rng = np.random.default_rng(size)
    values = [rng.gamma(2.0, size=size), rng.exponential(size=size).round(1) - 3.0, np.full(size, 0.5)]
    scored = rng.random(size) < share
    scored[size // 2] = True
    made = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        found = zscale_among(values, scored)
        made.append((found.means.tolist(), found.spreads.tolist(), found.least))
        total = add_zscores(values, scored, found)
    assert made[0] == made[1] == made[2]
    means, spreads, least, expected = slow(values, scored)
    np.testing.assert_allclose(found.means, means, rtol=1e-13)
    np.testing.assert_allclose(found.spreads, spreads, rtol=1e-13, atol=1e-13)
    if size <= 5_000:
        assert made[0] == (means, spreads, least)
    np.testing.assert_allclose(total, expected, atol=1e-10)


@pytest.mark.parametrize("size", [0, 5])
def test_usual__of_nobody_is_zero(size):
    values, nobody = [np.ones(size), np.arange(size) * 1.0], np.zeros(size, bool)
    found = zscale_among(values, nobody)
    assert (found.means.tolist(), found.spreads.tolist(), found.least) == ([0.0, 0.0], [0.0, 0.0], 0.0)
    assert add_zscores(values, nobody, found).tolist() == [0.0] * size
