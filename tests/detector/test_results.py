"""Labels, thresholds, probabilities and confidences; with a contamination they are those of PyGOD."""

import dataclasses
import inspect
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers import small_detector, small_graph
from pygod.detector import GAE, DeepDetector
from pygod.metric import eval_average_precision, eval_f1, eval_roc_auc
from scipy import sparse
from torch_geometric.data import Data

from bench.pygod_batches import whole_graphs
from hcm_scale import HCM
from hcm_scale.base.console import Step
from hcm_scale.detector.results import Fitted


def fitted(scores, num_flagged: int = 0, trained: Fitted | None = None, **more) -> Fitted:
    """A run over a shuffled table, the `num_flagged` highest scores being flagged."""
    node = np.random.default_rng(0).permutation(len(scores))
    score = np.sort(scores)[::-1]
    columns = {"node": node, "score": score, "p": np.linspace(0.01, 1.0, len(score))}
    table = pa.table({**columns, "flagged": np.arange(len(score)) < num_flagged})
    run = SimpleNamespace(table=table.replace_schema_metadata({"rank_by": "score"}), trained=trained and trained.run)
    return Fitted(run, "", {}, **more)


@pytest.mark.parametrize("num_flagged", [0, 1, 4, 40])
def test_labels__without_a_contamination_are_the_flags(num_flagged):
    found = fitted(np.random.default_rng(0).gamma(2.0, size=40), num_flagged)
    node = found.run.table["node"].to_numpy()
    assert found.labels[node].tolist() == [1] * num_flagged + [0] * (40 - num_flagged)
    assert (found.scores > found.threshold).sum() == num_flagged
    np.testing.assert_array_equal(found.probabilities("p")[node], 1 - found.run.table["p"].to_numpy())


def test_probabilities__of_equal_scores_are_zero_and_of_an_unknown_method_refused():
    for method in ("linear", "unify"):
        assert fitted([2.0, 2.0]).probabilities(method).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="prob_method='odds' is not known; legal are linear, unify, p"):
        fitted([2.0, 1.0]).probabilities("odds")


def test_probabilities__of_other_data_are_on_the_scale_of_the_training():
    found = fitted([1.0, 2.0, 300.0], 1, trained=fitted(np.arange(101.0), 5))
    assert sorted(found.probabilities("linear")) == [0.01, 0.02, 1.0]
    assert found.confidences().min() > 0.99


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of PyGOD's
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_contamination__gives_what_pygod_gives(share):
    found = fitted(np.random.default_rng(0).gamma(2.0, size=40), contamination=share)
    twin = GAE(contamination=share)
    twin.decision_score_ = torch.from_numpy(found.scores)
    twin._process_decision_score()
    assert found.threshold == twin.threshold_
    assert found.labels.tolist() == twin.label_.tolist()
    for method in ("linear", "unify"):
        np.testing.assert_allclose(found.probabilities(method), twin.predict(return_prob=True, prob_method=method)[1])
    np.testing.assert_allclose(found.confidences(), twin.predict(return_conf=True)[1], atol=1e-6)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of PyGOD's
def test_other_data__are_compared_with_the_training_as_pygod_does(world, tmp_path):
    ours, twin = small_detector(world.graph, contamination=0.1), GAE(contamination=0.1)
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


def test_names_of_pygod__are_ours_or_explained():
    def takes(function):
        return inspect.signature(function).parameters.keys()

    for name in takes(DeepDetector) - {"kwargs"} - HCM().get_params().keys():
        with pytest.raises(TypeError, match=f"{name}=1 is not a parameter of HCM: (?!legal are)"):
            HCM(**{name: 1})
    assert takes(DeepDetector.predict) <= takes(HCM.predict)


def test_evaluation__written_for_pygod_takes_ours(world, capsys):
    y = (torch.arange(200) < 10).long()
    data = Data(edge_index=torch.from_numpy(world.ends().astype(np.int64)), x=torch.from_numpy(world.graph.x), y=y)
    steps: list[Step] = []
    ours = small_detector(contamination=0.1, callback=steps.append)
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


def test_score_edges__takes_edges_in_the_forms_that_fit_takes():
    graph, ends = small_graph(), np.array([[0, 3, 5], [1, 90, 6]])
    small = small_detector(graph, views=["purified"])
    wanted = small.score_edges(pa.table({"source": ends[0], "target": ends[1]}))
    size = (graph.num_nodes, graph.num_nodes)
    forms = [ends, (ends, graph.x), torch.from_numpy(ends), sparse.coo_array((np.ones(3), ends), shape=size)]
    for form in (*forms, nx.from_edgelist(ends.T.tolist()), SimpleNamespace(edge_index=torch.from_numpy(ends))):
        assert small.score_edges(form).equals(wanted)
