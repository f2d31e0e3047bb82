"""Labels, thresholds and probabilities without a contamination; with one, test_pygod.py."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.detector.results import Fitted, Training, threshold_of


def fitted(num_flagged: int = 4) -> Fitted:
    """40 nodes in a shuffled table, the first `num_flagged` by p being flagged."""
    rng = np.random.default_rng(0)
    score, node = np.sort(rng.gamma(2.0, size=40))[::-1], rng.permutation(40)
    columns = {"node": node, "id": [f"n{i}" for i in node], "score": score, "p": np.linspace(0.01, 1.0, 40)}
    table = pa.table({**columns, "flagged": np.arange(40) < num_flagged})
    return Fitted(Path(), table.replace_schema_metadata({"rank_by": "score"}), "", {})


def test_without_contamination__labels_are_the_flags():
    found = fitted()
    node = found.table["node"].to_numpy()
    assert found.labels[node].tolist() == [1] * 4 + [0] * 36
    assert (found.scores > found.threshold).sum() == 4
    assert found.ids[node].tolist() == found.table["id"].to_pylist()
    np.testing.assert_array_equal(found.probabilities("p")[node], 1 - found.table["p"].to_numpy())
    with pytest.raises(ValueError, match="prob_method='odds' is not known; legal are linear, unify, p"):
        found.probabilities("odds")


@pytest.mark.parametrize("num_above", [0, 1, 3, 5])
def test_threshold__has_so_many_above_it(num_above):
    scores = np.array([3.0, 1.0, 2.0, 9.0, -1.0])
    assert (scores > threshold_of(scores, num_above)).sum() == num_above


def test_equal_scores__have_no_probability_apart():
    table = pa.table({"node": [1, 0], "score": [2.0, 2.0], "flagged": [False, False]})
    table = table.replace_schema_metadata({"rank_by": "score"})
    for method in ("linear", "unify"):
        assert Fitted(Path(), table, "", {}).probabilities(method).tolist() == [0.0, 0.0]


def test_probabilities_of_other_data__are_on_the_scale_of_the_training():
    table = pa.table({"node": [0, 1, 2], "score": [1.0, 2.0, 300.0], "flagged": [False, False, True]})
    table = table.replace_schema_metadata({"rank_by": "score"})
    found = Fitted(Path(), table, "", {}, trained=Training(np.arange(101.0), 5))
    assert found.probabilities("linear").tolist() == [0.01, 0.02, 1.0]
    assert found.confidences().min() > 0.99
