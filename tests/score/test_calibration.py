"""Scores by the measure of another graph: like itself they are the same, and no other node moves a node's own."""

import numpy as np
from kinds import kind_numbers

from hcm_scale.score import threshold
from hcm_scale.score.evidence import KindNumbers, weigh_evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS


def numbers_of(size: int, seed: int = 0) -> KindNumbers:
    rng = np.random.default_rng(seed)
    found = {kind: rng.exponential(size=size).round(2) for kind in KINDS}
    return kind_numbers(found, rng.random(size) < 0.9)


def test_weigh_and_p__like_itself_are_the_same():
    own = numbers_of(500)
    np.testing.assert_array_equal(weigh_evidence(own, own).score, weigh_evidence(own).score)
    np.testing.assert_array_equal(
        threshold.judge(weigh_evidence(own, own).sums, 0.1).p, threshold.judge(weigh_evidence(own).sums, 0.1).p
    )


def test_weigh_and_p__of_a_node_do_not_depend_on_the_others():
    usual, new = numbers_of(500), numbers_of(300, seed=1)
    part = KindNumbers({kind: values[:20] for kind, values in new.of_kind.items()}, new.has_neighbors[:20])
    np.testing.assert_array_equal(weigh_evidence(new, usual).score[:20], weigh_evidence(part, usual).score)
    found, of_part = (threshold.judge(weigh_evidence(some, usual).sums, 0.1).p for some in (new, part))
    np.testing.assert_array_equal(found[:20], of_part)


def test_weigh__among_others_rises_also_beyond_all_that_was_seen():
    usual, values = np.random.default_rng(0).normal(size=200), np.linspace(-5, 50, 400)
    like = kind_numbers({"hop": usual}, np.ones(200, bool))
    weighed = weigh_evidence(kind_numbers({"hop": values}, np.ones(400, bool)), like)
    found = weighed.score
    assert np.all(np.diff(found) >= 0)
    assert np.all(np.diff(found[values > 2 * usual.max()]) > 0)
    assert np.isfinite(found).all()


def test_weigh__of_a_node_without_neighbours_is_told_by_its_attributes():
    usual = numbers_of(500)
    lone = kind_numbers({kind: np.array([0.0, 0.0]) for kind in KINDS}, np.zeros(2, bool))
    attributes = KINDS["attributes"]
    lone.of_kind[attributes][:] = np.quantile(usual.of_kind[attributes], [0.5, 0.999])
    everyone, found = weigh_evidence(usual).score, weigh_evidence(lone, usual).score
    assert np.mean(everyone < found[0]) > 0.2
    assert np.mean(everyone < found[1]) > 0.8
