"""The Python face does what the command line does."""

import numpy as np
import pytest
import torch

from hcm_scale import HCM
from hcm_scale.config import Config
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"purify.rato": 0.1}, r"'purify\.rato' is not an option; did you mean 'purify\.ratio'\?"),
        ({"purify": {"rato": 0.1}}, r"'purify\.rato' is not an option"),
        ({"purify.ratio.low": 0.1}, r"'purify\.ratio\.low' is not an option"),
        ({"anything": 1}, "'anything' is not an option; options are named as on the command line"),
        ({"score.closure": 0.3}, r"score\.closure is now score\.far_share"),
        ({"hops.classes": 99}, r"hops\.classes=99 is out of range: at least 2"),
        ({"hops.classes": 3.5}, r"hops\.classes=3\.5 is not legal: int, at least 2 and at most 16"),
        ({"purify": 0.1}, r"purify=0\.1 is not legal: a section with similarity, ratio, attributes"),
        ({"score.rank_by": None}, r"score\.rank_by=None is not legal: str, of score, strange, ahp, hav"),
        ({"sampling.fan_out": "10"}, r"sampling\.fan_out='10' is not legal: list\[str\]"),
    ],
)
def test_mistake__is_named_with_what_is_legal(options, said):
    with pytest.raises(ValueError, match=said):
        HCM(options)


def test_options__are_those_of_the_command_line_and_become_its_types():
    given = {"purify": {"ratio": np.float64(0.5)}, "hops.classes": np.int64(3), "sampling.fan_out": (10, "all")}
    config = HCM(given, seed=np.int32(7), device="cpu").config
    expected = Config(seed=7)
    expected.purify.ratio, expected.hops.classes, expected.world.device = 0.5, 3, "cpu"
    expected.sampling.fan_out = ["10", "all"]
    assert config == expected
    assert {type(config.purify.ratio), type(config.hops.classes), type(config.seed)} == {float, int}


def test_scores__before_fit_say_so():
    with pytest.raises(ValueError, match="fit"):
        HCM().scores  # noqa: B018
