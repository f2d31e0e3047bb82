"""Rows of Â x made on a GPU: to the bit what the cores make, and only where it pays."""

import importlib.util

import numpy as np
import pytest
import torch

from hcm_scale.base.spmm import propagate
from hcm_scale.features import propagate as stage
from hcm_scale.features.propagate import propagate_features
from hcm_scale.synthetic.families import community, rmat

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.mark.parametrize("make", [lambda: community(3_000), lambda: rmat(12, num_attributes=7), lambda: community(1)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_propagate_features__is_the_same_bits_on_every_device(make, device, monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "MANY_ENTRIES", 0)
    made = []
    if device == "cuda":
        from hcm_scale.features import propagate as propagate_device

        plain = propagate_device.rows_on_device
        monkeypatch.setattr(propagate_device, "rows_on_device", lambda *given: made.append(plain(*given)) or made[0])
    graph = make()
    found = propagate_features(graph, np.asarray(graph.x), tmp_path / "out", device)
    np.testing.assert_array_equal(found, propagate(graph.indptr, graph.indices, np.asarray(graph.x)))
    assert all(made), "the cores made the rows"
