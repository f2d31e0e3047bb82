"""Ours stands where a PyGOD detector stands: the same evaluation runs on both, and the same scores say the same."""

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pygod.detector import GAE, DeepDetector
from pygod.metric import eval_average_precision, eval_f1, eval_roc_auc
from torch_geometric.data import Data

from bench.pygod_batches import whole_graphs
from hcm_scale import HCM
from hcm_scale.base.console import Step
from hcm_scale.detector.parameters import KEYWORDS, MISSING
from hcm_scale.detector.results import Fitted


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of PyGOD's
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_contamination__gives_what_pygod_gives(share):
    scores = np.random.default_rng(0).gamma(2.0, size=40)
    table = pa.table({"node": np.arange(40), "score": scores, "flagged": scores > 1})
    found = Fitted(Path(), table.replace_schema_metadata({"rank_by": "score"}), "", {}, share)
    twin = GAE(contamination=share)
    twin.decision_score_ = torch.from_numpy(scores)
    twin._process_decision_score()
    assert found.threshold == twin.threshold_
    assert found.labels.tolist() == twin.label_.tolist()
    for method in ("linear", "unify"):
        np.testing.assert_allclose(found.probabilities(method), twin.predict(return_prob=True, prob_method=method)[1])
    np.testing.assert_allclose(found.confidences(), twin.predict(return_conf=True)[1], atol=1e-6)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of PyGOD's
def test_other_data__are_compared_with_the_training_as_pygod_does(world, small, tmp_path):
    ours, twin = HCM(small, device="cpu", contamination=0.1).fit(world.graph), GAE(contamination=0.1)
    twin.decision_score_ = ours.decision_score_
    twin._process_decision_score()
    x = world.graph.x.copy()
    x[7] *= 20
    other = dataclasses.replace(world.graph, x=x, kind=None)
    tomorrow = ours.apply(other)
    twin.decision_function = lambda data, label: torch.from_numpy(data)
    tomorrow.save(tmp_path / "tomorrow")
    for method in ("linear", "unify"):
        asked = {"return_score": True, "return_prob": True, "prob_method": method, "return_conf": True}
        theirs = twin.predict(tomorrow.scores, **asked)
        assert not np.allclose(theirs[1], ours.scores)
        for found in (ours.predict(other, **asked), tomorrow.predict(**asked)):
            for mine, wanted in zip(found, theirs, strict=True):
                np.testing.assert_allclose(mine, wanted, atol=1e-6)
    again = HCM.load(tmp_path / "tomorrow")
    np.testing.assert_array_equal(again.predict_proba(), tomorrow.predict_proba())
    np.testing.assert_array_equal(again.predict_confidence(), tomorrow.predict_confidence())


def test_words_of_pygod__are_ours_or_explained():
    def takes(function):
        return inspect.signature(function).parameters.keys()

    assert takes(DeepDetector) - {"kwargs"} <= KEYWORDS.keys() | HCM().get_params().keys()
    assert takes(DeepDetector.predict) <= takes(HCM.predict)
    assert {name for name in dir(DeepDetector) if name[0] != "_"} <= MISSING.keys() | set(dir(HCM))
    assert not MISSING.keys() & set(dir(HCM))


@pytest.mark.parametrize("name", MISSING)
def test_missing__is_explained_in_a_sentence(name):
    with pytest.raises(AttributeError, match=f"HCM has no {name}: "):
        getattr(HCM(), name)


def as_data(world):
    rows = np.repeat(np.arange(200), np.diff(world.graph.indptr))
    ends = torch.from_numpy(np.stack([rows, world.graph.indices]).astype(np.int64))
    return Data(edge_index=ends, x=torch.from_numpy(world.graph.x), y=(torch.arange(200) < 10).long())


def test_evaluation__written_for_pygod_takes_ours(world, small, capsys):
    data, steps = as_data(world), []
    ours = HCM(small, device="cpu", contamination=0.1, callback=steps.append)
    for detector in (GAE(epoch=2, contamination=0.1), ours):
        with whole_graphs("cpu"):
            detector.fit(data)
        pred, score, prob, conf = detector.predict(return_score=True, return_prob=True, return_conf=True)
        assert pred.sum() == 20
        assert torch.equal(pred, detector.label_)
        assert torch.equal(score > detector.threshold_, detector.label_.bool())
        assert 0 <= eval_roc_auc(data.y, score) <= 1
        assert 0 <= eval_average_precision(data.y, prob) <= 1
        assert 0 <= eval_f1(data.y, pred) <= 1
        assert ((conf >= 0) & (conf <= 1)).all()
    assert ours.table["y"].to_numpy().sum() == 10
    with pytest.raises(ValueError, match="return_emb=True is not legal: every sample"):
        ours.predict(return_emb=True)
    assert capsys.readouterr().err == ""  # quiet where nobody watches
    assert Step("label", 100, 100, "source") in steps
    assert steps[-1] == Step("scores", 1, 1, "stage")
