"""Weights of edges as the model takes them."""

import numpy as np
import pytest

from hcm_scale.base.spmm import gcn_scale
from hcm_scale.features.purify import median_weight, strengths, write_strengths


def test_strengths__do_not_know_the_unit_and_give_a_typical_edge_one(tmp_path):
    weights = np.random.default_rng(0).lognormal(5, 2, 1001).astype(np.float32)
    found = strengths(weights, median_weight(weights))
    assert np.median(found) == pytest.approx(1)
    np.testing.assert_allclose(strengths(100 * weights, median_weight(100 * weights)), found, rtol=1e-5)
    assert np.array_equal(np.argsort(found, kind="stable"), np.argsort(weights, kind="stable"))
    assert np.array_equal(write_strengths(tmp_path / "w.npy", weights, median_weight(weights)), found)


def test_strengths__are_finite_and_above_zero_at_any_weight():
    limits = np.finfo(np.float32)
    found = strengths(np.array([limits.smallest_subnormal, limits.tiny, 1, limits.max], np.float32), float(limits.max))
    assert (found > 0).all()
    assert np.isfinite(strengths(np.array([limits.max]), float(limits.tiny))).all()
    assert median_weight(np.zeros(0, np.float32)) == 1


def test_strengths__leave_a_node_its_other_neighbours_beside_an_outlier():
    """Of ten edges one weighs a million times the others: it would be all of the row, and is two thirds."""
    weights = np.array([1e6, *[1.0] * 9], np.float32)
    shares = {}
    for name, row in {"weights": weights, "strengths": strengths(weights, 1.0)}.items():
        scale = gcn_scale(np.array([0, 10]), row)[0]
        shares[name] = float(row[0] * scale**2), float(scale**2)
    assert shares["weights"][0] > 0.9999
    assert shares["strengths"] == (pytest.approx(19.93 / 29.93, abs=0.001), pytest.approx(1 / 29.93, abs=0.001))
