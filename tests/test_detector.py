"""The Python face does what the command line does."""

import numpy as np
import pytest
import torch

from hcm_scale import HCM
from hcm_scale.synthetic import families as synthetic

SMALL = {
    "hops.num_sources": 100,
    "hops.pairs_per_class": 30,
    "sampling.batch_pairs": 256,
    "model.width": 8,
    "model.head_width": 8,
    "posterior.burn_in_steps": 5,
    "posterior.num_samples": 2,
    "posterior.thin_steps": 1,
}


def test_fit__scores_every_node_of_a_graph():
    graph = synthetic.community(300, num_attributes=4, seed=0)
    found = HCM(SMALL, seed=0, device="cpu").fit(graph)
    assert found.scores.shape == (300,)
    assert found.strangest(3)[0]["node"] == int(np.argmax(found.scores))
    assert "rank 1 of 300" in found.explain(found.strangest(1)[0]["id"])


def test_fit__takes_a_torch_geometric_data():
    from torch_geometric.data import Data

    graph = synthetic.community(200, num_attributes=3, seed=0)
    rows = np.repeat(np.arange(200), np.diff(graph.indptr))
    ends = np.stack([rows, graph.indices]).astype(np.int64)
    data = Data(edge_index=torch.from_numpy(ends), x=torch.from_numpy(graph.x))
    one = HCM(SMALL, device="cpu").fit(data)
    other = HCM(SMALL, device="cpu").fit(graph)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6)


def test_unknown_option__is_named():
    with pytest.raises(ValueError, match=r"'purify\.rato' is not an option"):
        HCM({"purify.rato": 0.1})


def test_value_out_of_range__is_named():
    with pytest.raises(ValueError, match=r"hops\.classes=99"):
        HCM({"hops.classes": 99})


def test_scores__before_fit_say_so():
    with pytest.raises(ValueError, match="fit"):
        HCM().scores  # noqa: B018
