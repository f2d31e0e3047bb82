"""R-hat and effective sample size of chains whose values are known."""

import numpy as np
import pytest

from bench.convergence import effective_samples, r_hat, split
from hcm_scale.base.spmm import Propagated
from hcm_scale.model import HopModel
from hcm_scale.posterior.samples import seal_samples, write_sample
from hcm_scale.stages import convergence
from hcm_scale.stages.convergence import drawn_edges, hops_by_sample
from hcm_scale.stages.edges import View
from hcm_scale.synthetic.families import rmat


@pytest.mark.parametrize("num_layers", [2, 3])
def test_hops_by_sample__are_the_same_by_rows_that_are_made_where_they_are_needed(tmp_path, monkeypatch, num_layers):
    monkeypatch.setattr(convergence, "_HUB_CAP", 8)
    graph = rmat(8, num_attributes=5)
    sizes = {"num_attributes": 5, "num_classes": 4, "width": 8, "head_width": 8}
    model = sizes | {"num_layers": num_layers, "directed": False}
    hashes = [write_sample(tmp_path, i, HopModel(**model, seed=i).state_dict()) for i in range(2)]
    samples, lazy = seal_samples(tmp_path, hashes, model), Propagated(graph.indptr, graph.indices, np.asarray(graph.x))
    ends = drawn_edges(graph)
    made, wanted = (hops_by_sample(View(graph, x, samples), *ends, propagated=True) for x in (lazy, np.asarray(lazy)))
    assert made.shape == (2, 1000)
    np.testing.assert_array_equal(made, wanted)


def test_independent_chains__have_converged_and_count_in_full():
    chains = np.random.default_rng(0).normal(size=(4, 1000, 50))
    assert abs(np.median(r_hat(split(chains))) - 1) < 0.002
    assert np.median(effective_samples(chains)) > 3_800


def test_correlated_samples__count_for_less():
    """Of x[t] = .8 x[t - 1] + noise the effective share is (1 - .8) / (1 + .8)."""
    noise = np.random.default_rng(0).normal(size=(4, 4000, 12))
    for step in range(1, 4000):
        noise[:, step] += 0.8 * noise[:, step - 1]
    np.testing.assert_allclose(np.median(effective_samples(noise)), 16_000 / 9, rtol=0.05)


def test_chains__that_stand_apart_or_drift_have_not_converged():
    chains = np.random.default_rng(0).normal(size=(4, 1000, 50))
    apart = chains + np.arange(4)[:, None, None]
    np.testing.assert_allclose(np.median(r_hat(apart)), np.sqrt(1 + 5 / 3), rtol=0.02)  # variance of 0, 1, 2, 3 is 5/3
    assert np.median(effective_samples(apart)) < 20
    drifting = chains + np.linspace(0, 4, 1000)[:, None]
    assert r_hat(drifting).max() < 1.01
    assert r_hat(split(drifting)).min() > 1.3


def test_split__leaves_out_the_middle_of_an_odd_number():
    assert split(np.arange(5.0).reshape(1, 5, 1))[:, :, 0].tolist() == [[0, 1], [3, 4]]


def test_chains__that_never_move_agree():
    still = np.ones((2, 6, 3))
    assert r_hat(still).tolist() == [1, 1, 1]
    assert np.isfinite(effective_samples(still)).all()
