"""Ranking metrics against scikit-learn and against their definitions."""

import numba
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn import metrics as sk

from hcm_scale.score import metrics

labelled = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=60)


@given(labelled)
def test_auc_and_ap__equal_scikit_learn_with_ties(rows):
    y, score = np.array(rows).T
    assume(0 < y.sum() < len(y))
    assert metrics.roc_auc(y, score) == pytest.approx(sk.roc_auc_score(y, score), abs=1e-12)
    assert metrics.evaluate(y, score)["average_precision"] == pytest.approx(
        sk.average_precision_score(y, score), abs=1e-12
    )


@given(labelled)
def test_auc__is_the_share_of_ordered_pairs(rows):
    y, score = np.array(rows).T
    assume(0 < y.sum() < len(y))
    above = np.sign(score[y == 1][:, None] - score[y == 0][None, :])
    assert metrics.roc_auc(y, score) == pytest.approx((above.mean() + 1) / 2, abs=1e-12)


def test_auc__continuous_scores_and_extremes():
    rng = np.random.default_rng(0)
    y, score = rng.random(5000) < 0.05, rng.normal(size=5000).astype(np.float32)
    assert metrics.roc_auc(y, score) == pytest.approx(sk.roc_auc_score(y, score), abs=1e-12)
    assert metrics.roc_auc(y, y.astype(float)) == 1.0
    assert metrics.roc_auc(y, -y.astype(float)) == 0.0
    assert metrics.roc_auc(y, np.full(5000, np.inf)) == 0.5


def test_at_k__counts_the_first_k_with_ties_by_node():
    y, score = np.isin(np.arange(20), (0, 1, 2, 14)), np.repeat([1.0, 3.0], (15, 5))
    assert metrics.ranking(score).tolist() == [*range(15, 20), *range(15)]
    found = metrics.evaluate(y, score)
    assert (found["precision_at"], found["recall_at"]) == ({"10": 0.3}, {"10": 0.75})


def test_evaluate__takes_each_kind_against_the_normal_nodes_alone():
    rng = np.random.default_rng(1)
    kind = rng.choice(3, 2000, p=[0.9, 0.06, 0.04]).astype(np.uint8)
    y, score = (kind > 0).astype(np.uint8), rng.normal(size=2000) + kind
    result = metrics.evaluate(y, score, kind)
    assert list(result["precision_at"]) == ["10", "50", "100", "200", "300"]
    assert result["num_anomalies"] == y.sum()
    for code, name in ((1, "structural"), (2, "attribute")):
        chosen = (kind == 0) | (kind == code)
        wanted = sk.roc_auc_score(kind[chosen] == code, score[chosen])
        assert result["by_kind"][name]["roc_auc"] == pytest.approx(wanted, abs=1e-12)


def test_evaluate__leaves_out_kinds_that_do_not_occur():
    kind = np.array([0, 0, 2, 0], np.uint8)
    assert list(metrics.evaluate(kind > 0, np.arange(4.0), kind)["by_kind"]) == ["attribute"]
    assert "by_kind" not in metrics.evaluate(kind > 0, np.arange(4.0))


def plainly(y, score, ks):
    """The numbers by their definitions."""
    rank, num_hits, num_misses = rankdata(score), int(y.sum()), int((y == 0).sum())
    wins = rank[y == 1].sum() - num_hits * (num_hits + 1) / 2
    level, count = np.unique(score[y == 1], return_counts=True)
    at_least = [len(values) - np.searchsorted(np.sort(values), level[::-1]) for values in (score[y == 1], score)]
    gained = count[::-1] * (at_least[0] / at_least[1])
    hits_at = {k: int(y[np.argsort(-score, kind="stable")[:k]].sum()) for k in ks if k <= len(y)}
    return {
        "roc_auc": wins / (num_hits * num_misses),
        "average_precision": gained.sum() / num_hits,
        "precision_at": {str(k): hits / k for k, hits in hits_at.items()},
        "recall_at": {str(k): hits / num_hits for k, hits in hits_at.items()},
        "num_anomalies": num_hits,
        "num_nodes": len(y),
    }


MANY = (1 << 18) + 5  # nodes: more than one slice, sorted by threads


@pytest.mark.parametrize("case", ["continuous", "ties", "all tied", "one anomaly", "few nodes"])
def test_evaluate__equals_the_definitions_at_any_number_of_threads(case, monkeypatch):
    rng = np.random.default_rng(4)
    num_nodes = 1000 if case == "few nodes" else MANY
    kind = rng.choice(3, num_nodes, p=[0.96, 0.03, 0.01]).astype(np.uint8)
    y = (kind > 0) & (rng.random(num_nodes) < 0.9) | (rng.random(num_nodes) < 0.01)  # they need not agree
    if case == "one anomaly":
        y, kind = np.arange(num_nodes) == 777, 2 * (np.arange(num_nodes) == 777)
    score = rng.normal(size=num_nodes) + y
    score = {"ties": score.round(1), "all tied": 0 * score}.get(case, score)
    ks, y, normal = (1, 30, 5000, 2 * MANY), y.astype(np.uint8), (kind == 0) & ~y.astype(bool)
    wanted = plainly(y, score, ks) | {"by_kind": {}}
    for code, name in ((1, "structural"), (2, "attribute")):
        if (kind == code).any():
            of_kind = normal | (kind == code)
            wanted["by_kind"][name] = plainly((kind == code)[of_kind].astype(int), score[of_kind], ks)
    for num_threads in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=num_threads: count)  # more than there are cores, too
        assert metrics.measure(metrics.Ranked.of(y, score, kind), ks) == wanted


def test_metrics__refuse_what_cannot_be_measured():
    y = np.array([0, 1, 1])
    with pytest.raises(ValueError, match="1 of 3 scores are NaN"):
        metrics.roc_auc(y, np.array([1.0, np.nan, 2.0]))
    with pytest.raises(ValueError, match="0 of 3 nodes are anomalies; both kinds must occur"):
        metrics.roc_auc(0 * y, np.arange(3.0))
    with pytest.raises(ValueError, match="do not match"):
        metrics.roc_auc(y, np.arange(4.0))
