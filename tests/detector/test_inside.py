"""What a fitted detector shows of its training: samples, records, embeddings, edges and figures."""

import sys

import numpy as np
import pytest
import torch
from helpers import FAST, small_detector

from bench.convergence import r_hat, split
from hcm_scale import HCM, NotFitted
from hcm_scale.run.finished import FinishedRun


@pytest.fixture(scope="module")
def found(world) -> HCM:
    return small_detector(world.graph)


def test_samples__are_parameters_by_encoder(found):
    assert found.samples_.keys() == {"purified", "original"}
    for samples in found.samples_.values():
        assert len(samples) == 2
        assert samples[0]["encoder.1.weight"].shape == (8, 8)
        assert (samples[0]["head.0.weight"] != samples[1]["head.0.weight"]).any()


def test_trace__has_the_records_of_both_chains(found):
    trace = found.trace_.to_pandas()
    assert {"view", "step", "epoch", "loss", "accuracy", "step_size"} <= {*trace.columns}
    for view in ("purified", "original"):
        own = trace[trace["view"] == view]
        assert own["step"].is_monotonic_increasing
        assert own["loss"].between(0.1, 10).all()
        assert len(own["accuracy"].iloc[0]) == 4


def test_embedding__with_the_head_gives_the_hops_of_the_edges(world):
    """With one sample of one encoder the mean is that sample's, and edges_ has what its head makes of it."""
    found = HCM(FAST | {"posterior.num_samples": 1}, views=["original"]).fit(world.graph)
    z, sample, edges = torch.from_numpy(found.embedding_), found.samples_["original"][0], found.edges_.to_pandas()
    assert z.shape == (200, 8)
    left, right = (torch.tensor(edges[end].tolist()) for end in ("source", "target"))
    pairs = (z[left] - z[right]).abs()
    hidden = (pairs @ sample["head.0.weight"] + sample["head.0.bias"]).relu()
    chances = (hidden @ sample["head.1.weight"] + sample["head.1.bias"]).softmax(1)
    np.testing.assert_allclose(edges["hop"], chances @ torch.arange(1.0, 5.0), rtol=1e-4)
    np.testing.assert_allclose(edges["hop_variance"], 0, atol=1e-6)


def test_embedding__has_the_encoders_side_by_side_and_is_that_of_apply(found, world):
    assert found.embedding_.shape == (200, 16)
    np.testing.assert_allclose(found.apply(world.graph).embedding_, found.embedding_, atol=1e-6)


def test_inside__before_fit_says_so():
    for name in ("samples_", "trace_", "embedding_", "edges_"):
        with pytest.raises(NotFitted):
            getattr(HCM(), name)


@pytest.mark.parametrize("options", [{}, {"model.encoder": "sage"}])
def test_hops_of_edges__are_those_of_a_whole_graph_embedded(world, tmp_path, options):
    HCM(FAST | options | {"posterior.num_samples": 5}, run_dir=tmp_path).fit(world.graph)
    run = FinishedRun(tmp_path)
    chains, u, v = run.chains()
    assert len(u) == min(1_000, world.graph.num_arcs)
    for name in run.views:
        whole = []
        for z, head in run.embedded(name):
            hidden = torch.relu((z[u] - z[v]).abs() @ head.weight0 + head.bias0)
            chances = (hidden @ head.weight1 + head.bias1).double().softmax(1)
            whole.append((chances * torch.arange(1.0, chances.shape[1] + 1)).sum(1).numpy())
        np.testing.assert_allclose(chains[name], np.stack(whole), rtol=0, atol=1e-5)


def test_arviz__has_the_chains_and_the_same_split_r_hat(world):
    arviz = pytest.importorskip("arviz")
    found = HCM(FAST | {"posterior.num_samples": 8}).fit(world.graph)
    hop = found.to_arviz().posterior["hop"]
    assert hop.shape[:2] == (2, 8)
    ends = [str(found.ids_[node]) for node in (found._require_fitted().run.chains()[1][0],)]
    assert str(hop.coords["edge"].values[0]).startswith(f"{ends[0]} - ")
    theirs = np.asarray(arviz.rhat(hop.to_dataset(), method="split")["hop"])
    np.testing.assert_allclose(theirs, r_hat(split(np.asarray(hop))), rtol=1e-9)


def test_arviz__that_is_missing_is_named(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'hcm-scale\[arviz\]'"):
        found.to_arviz()
