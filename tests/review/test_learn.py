"""What verdicts teach: the list moves where they carry it, and stays where they do not."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from hcm_scale.review.draw import DISAGREEMENT, HEAD, RANDOM, draw
from hcm_scale.review.estimate import Estimates
from hcm_scale.review.learn import Inputs, apply_lesson, fit_logistic, learn
from hcm_scale.score.kinds import all as kinds
from hcm_scale.score.metrics import ranking, roc_auc

KINDS = ("hop", "closure", "context", "context_closure", "attributes", "cohesion")


@dataclass
class World:
    """Nodes in a ring whose bad ones are chosen by a rule; the score knows nothing of it unless it is the rule."""

    inputs: Inputs
    bad: NDArray[np.bool_]

    @property
    def ranks(self) -> list[NDArray[np.int32]]:
        return list(self.inputs.ranks.values())


def make_world(rule: str, seed: int = 0, n: int = 3_000) -> World:
    rng = np.random.default_rng(seed)
    numbers, x = rng.standard_normal((len(KINDS), n)), rng.standard_normal((n, 5)).astype(np.float32)
    score = numbers.sum(axis=0)
    risk = {"score": score, "low context": -numbers[2], "attribute": x[:, 3], "none": rng.standard_normal(n)}[rule]
    bad = np.zeros(n, bool)
    bad[ranking(risk + 0.3 * risk.std() * rng.standard_normal(n))[: n // 20]] = True
    ends = rng.permuted(np.stack([np.arange(n), (np.arange(n) + 1) % n]), axis=1)
    source, target = np.concatenate([ends[0], ends[1]]), np.concatenate([ends[1], ends[0]])
    order = np.lexsort((target, source))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))])
    places = {kind: np.argsort(ranking(row)).astype(np.int32) + 1 for kind, row in zip(KINDS, numbers, strict=True)}
    names = [f"column {i}" for i in range(5)]
    titles = [kinds.KINDS[kind].title for kind in KINDS]
    neighbors = indptr, target[order].astype(np.int32)
    return World(Inputs(score, places, np.diff(indptr), x, names, *neighbors, titles=titles), bad)


def some_nodes(world: World, count: int = 60, seed: int = 1) -> NDArray[np.int64]:
    """Half of the head, half at random."""
    order = ranking(world.inputs.score)
    rest = np.random.default_rng(seed).permutation(order[count // 2 :])
    return np.concatenate([order[: count // 2], rest[: count - count // 2]])


@pytest.mark.parametrize("rule", ["low context", "attribute"])
def test_verdicts_turn_a_list_that_is_wrong(rule: str) -> None:
    world = make_world(rule)
    nodes = some_nodes(world, 200)
    before, lesson = roc_auc(world.bad, world.inputs.score), learn(world.inputs, nodes, world.bad[nodes])
    assert lesson.changed
    assert before < 0.6
    assert roc_auc(world.bad, lesson.taught) > 0.85
    said = " ".join(lesson.sentences)
    assert ("'unlike its neighbours' counts the other way round" in said) == (rule == "low context")
    assert ("Larger column 3" in said) == (rule == "attribute")


@pytest.mark.parametrize(("sign", "words"), [(1, "Many neighbours: worse."), (-1, "Few neighbours: worse.")])
def test_sentences__say_which_way_degrees_count(sign: int, words: str) -> None:
    world, rng = make_world("none"), np.random.default_rng(1)
    degree = rng.permutation(np.arange(3_000)) + 1
    bad, inputs = np.zeros(3_000, bool), world.inputs._replace(degree=degree)
    bad[ranking(sign * degree.astype(np.float64))[:150]] = True
    nodes = some_nodes(World(inputs, bad), 400)
    said = " ".join(learn(inputs, nodes, bad[nodes]).sentences)
    assert words in said
    assert "or the other way round" not in said


def test_a_list_that_is_right_stays_right() -> None:
    world = make_world("score")
    nodes = some_nodes(world)
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    assert roc_auc(world.bad, lesson.taught) > roc_auc(world.bad, world.inputs.score) - 0.02


@pytest.mark.parametrize("count", [5, 8, 10, 12, 20, 60])
def test_verdicts_of_a_coin_change_nothing(count: int) -> None:
    world = make_world("score")
    changed = 0
    for seed in range(10):
        nodes = some_nodes(world, count, seed)
        changed += learn(world.inputs, nodes, np.random.default_rng(seed).random(count) < 0.5).changed
    assert changed <= 2


def test_verdicts_that_mean_nothing__cost_a_list_that_is_right_little() -> None:
    """Twenty draws of a coin on the head, of worlds whose list is right."""
    changes = []
    for draw_seed in range(20):
        world = make_world("score", seed=draw_seed % 5)
        nodes = ranking(world.inputs.score)[:40]
        lesson = learn(world.inputs, np.sort(nodes), np.random.default_rng(draw_seed).random(40) < 0.5)
        changes.append(roc_auc(world.bad, lesson.taught) - roc_auc(world.bad, world.inputs.score))
    assert min(changes) > -0.03


def test_few_bad_nodes__say_where_to_look_and_move_nothing_else() -> None:
    world = make_world("attribute")
    order = ranking(world.inputs.score)
    bad, good = np.flatnonzero(world.bad)[:2], order[~world.bad[order]][:58]
    nodes = np.concatenate([bad, good])
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    assert lesson.changed
    num_first = len(order) // 20
    after = ranking(lesson.taught)
    first = after[:num_first]
    assert world.bad[first].mean() > 3 * world.bad.mean()
    assert np.array_equal(after[num_first:], order[~np.isin(order, first)])
    assert "5 % of all, come first" in lesson.sentences[0]
    applied = apply_lesson(lesson.model, world.inputs, bad)
    assert np.isin(ranking(applied)[:num_first], first).mean() > 0.9


def test_verdicts_all_good_do_no_harm_and_say_what_they_are() -> None:
    world = make_world("score")
    nodes = ranking(world.inputs.score)[-60:]
    lesson = learn(world.inputs, nodes, np.zeros(60, bool))
    assert roc_auc(world.bad, lesson.taught) > roc_auc(world.bad, world.inputs.score) - 0.02
    assert "60 verdicts, 0 of them bad" in lesson.sentences[0] or not lesson.changed


def test_known_cases_alone_teach() -> None:
    world = make_world("attribute")
    known = np.flatnonzero(world.bad)[::5]
    lesson = learn(world.inputs, known, np.ones(len(known), bool))
    left = np.ones(len(world.bad), bool)
    left[known] = False
    assert roc_auc(world.bad[left], lesson.taught[left]) > 0.85
    random = np.random.default_rng(0).permutation(len(world.bad))[:30]
    assert not learn(world.inputs, random, np.ones(30, bool)).changed  # called bad, and nothing in common


def test_four_verdicts_move_nothing_and_say_so() -> None:
    world = make_world("attribute")
    nodes = np.flatnonzero(world.bad)[:4]
    lesson = learn(world.inputs, nodes, np.ones(4, bool))
    assert not lesson.changed
    assert np.array_equal(lesson.taught, world.inputs.score)
    assert lesson.sentences == ["4 verdicts are too few to learn from: the order stays. Give 5 or more."]
    assert np.array_equal(apply_lesson(lesson.model, world.inputs, nodes), world.inputs.score)


def test_fit_logistic_reaches_the_top_where_verdicts_are_few() -> None:
    """One bad node of five among a faint background: plain steps of Newton's swing there for ever."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.exponential(size=(505, 12)) - 1.0
        x[0] += 2.0 * rng.random(12)
        x[:, 0] = 10.0
        label, weight = np.append(1.0, np.zeros(504)), np.append(np.ones(5), np.full(500, 0.005))
        prior = np.append([-0.3, 2.0], np.zeros(10))
        found, _, _ = fit_logistic(x, label, weight, prior)
        slope = x.T @ (weight * (expit(x @ found) - label)) + found - prior
        assert np.abs(slope).max() < 1e-4


def test_a_node_is_ranked_without_its_own_verdict() -> None:
    world = make_world("none")  # nothing to learn: bad nodes that were looked at must not come first
    nodes = some_nodes(world, 400)
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    assert roc_auc(world.bad[nodes], lesson.taught[nodes]) < 0.7


def test_a_lesson_holds_on_another_graph() -> None:
    world, other = make_world("low context"), make_world("low context", seed=5, n=2_000)
    nodes = some_nodes(world, 200)
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    applied = apply_lesson(lesson.model, other.inputs, np.zeros(0, np.int64))
    assert roc_auc(other.bad, applied) > 0.85
    unseen = np.setdiff1d(np.arange(len(world.bad)), nodes)
    again = apply_lesson(lesson.model, world.inputs, nodes[world.bad[nodes]])
    moved = np.argsort(ranking(again[unseen])) - np.argsort(ranking(lesson.taught[unseen]))
    assert np.abs(moved).mean() < 3  # of 2,800: a node or two more or less may lead


def typed_world(num_users: int = 1_000, num_shops: int = 250) -> World:
    """Users and shops, each with places among their like, and bad ones of a low context among both."""
    world, n = make_world("low context", n=num_users + num_shops), num_users + num_shops
    is_shop = np.arange(n) >= num_users
    places = {}
    for kind, all_places in world.inputs.ranks.items():
        own = np.empty_like(all_places)
        for nodes in (np.flatnonzero(~is_shop), np.flatnonzero(is_shop)):
            own[nodes] = np.argsort(np.argsort(all_places[nodes])) + 1
        places[kind] = own
    return World(world.inputs._replace(ranks=places, num_compared=np.where(is_shop, num_shops, num_users)), world.bad)


def test_types__no_weight_lifts_all_nodes_of_a_small_one() -> None:
    world = typed_world()
    nodes = some_nodes(world, 200)
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    assert lesson.changed
    assert roc_auc(world.bad, lesson.taught) > 0.95  # .81 by places among all nodes
    applied = apply_lesson(lesson.model, world.inputs, nodes[world.bad[nodes]])
    for taught in (lesson.taught, applied):
        assert 0.45 < roc_auc(world.inputs.num_compared == 250, taught) < 0.55


def test_types__draws_reach_both_ends_of_each() -> None:
    world = typed_world()
    is_shop, none = world.inputs.num_compared == 250, np.zeros(len(world.bad), bool)
    options = {"bad_share": 0.0, "num_compared": world.inputs.num_compared}
    drawn = [each for at in range(300) for each in draw(world.inputs.score, world.ranks, none, 20, at, **options)]
    odd = np.array([each.node for each in drawn if each.why == DISAGREEMENT])
    leads = np.min([places[odd] for places in world.ranks], axis=0) < 20
    last = np.max([places[odd] / world.inputs.num_compared[odd] for places in world.ranks], axis=0) > 0.9
    for is_kind in (is_shop[odd], ~is_shop[odd]):
        assert leads[is_kind].sum() > 50
        assert (last & ~leads)[is_kind].sum() > 50


def test_a_lesson_of_other_columns_is_refused() -> None:
    world = make_world("low context")
    nodes = some_nodes(world, 100)
    lesson = learn(world.inputs, nodes, world.bad[nodes])
    fewer = world.inputs._replace(features=world.inputs.features[:, :2])
    with pytest.raises(ValueError, match="the lesson is of 37 columns, the run has 25"):
        apply_lesson(lesson.model, fewer, nodes)


def test_millions_of_verdicts_are_drawn_from() -> None:
    world = make_world("attribute", n=20_000)
    nodes = np.arange(20_000)
    lesson = learn(world.inputs, nodes, world.bad)
    assert roc_auc(world.bad, lesson.taught) > 0.9


def test_drawn_nodes_are_new_and_say_why() -> None:
    world = make_world("score")
    reviewed = np.zeros(len(world.bad), bool)
    seen: list[int] = []
    for at in range(5):
        drawn = draw(world.inputs.score, world.ranks, reviewed, 20, at)
        assert [each.why for each in drawn] == [HEAD] * 16 + [DISAGREEMENT] * 2 + [RANDOM] * 2
        seen += [each.node for each in drawn]
        reviewed[seen] = True
    assert len(set(seen)) == 100
    good_list = draw(world.inputs.score, world.ranks, reviewed, 20, 9, bad_share=0.8)
    assert sum(each.why == HEAD for each in good_list) == 19
    assert len(draw(world.inputs.score, world.ranks, np.ones(len(world.bad), bool), 20, 0)) == 0


def test_random_draws_reach_all_nodes_and_the_upper_part_oftener() -> None:
    world = make_world("score", n=200)
    none, order = np.zeros(200, bool), ranking(world.inputs.score)
    drawn = [each for at in range(2_000) for each in draw(world.inputs.score, world.ranks, none, 20, at)]
    counts = np.bincount([each.node for each in drawn if each.why == RANDOM], minlength=200)[order[16:]]
    assert counts.min() > 0
    assert counts[:20].mean() > 2 * counts[100:].mean()


def test_the_true_share_lies_in_the_interval() -> None:
    inside = []
    for seed in range(25):
        world = make_world("score" if seed % 2 else "attribute", seed, n=2_000)
        reviewed, nodes, current = np.zeros(2_000, bool), np.zeros(0, np.int64), world.inputs.score
        for at in range(4):
            share = float(world.bad[nodes].mean()) if len(nodes) else 0.0
            new = draw(current, world.ranks, reviewed, 20, 100 * seed + at, share)
            nodes = np.concatenate([nodes, [each.node for each in new]])
            reviewed[nodes] = True
            current = learn(world.inputs, nodes, world.bad[nodes], seed).taught
        lists = {"after": ranking(current), "before": ranking(world.inputs.score)}
        estimates = Estimates.of(lists, nodes, world.bad[nodes])
        for name, order in lists.items():
            for found in estimates.shares(name, [50, 200, 500]):
                true = world.bad[order[: found.first]].mean()
                inside.append(found.low - 1e-9 <= true <= found.high + 1e-9)
    assert 0.8 <= np.mean(inside) < 1.0


def test_shares_of_a_list_all_of_which_was_seen_are_exact() -> None:
    world = make_world("score")
    order = ranking(world.inputs.score)
    found = Estimates.of({"list": order}, order[:100], world.bad[order[:100]])
    (share,) = found.shares("list", [100, 10**9])
    assert share.low == share.share == share.high == world.bad[order[:100]].mean()


def test_worth_reading_ends_where_bad_nodes_get_rare() -> None:
    world = make_world("score", n=5_000)
    order = ranking(world.inputs.score)
    seen = np.concatenate([order[:200], order[200::50]])
    found = Estimates.of({"list": order}, seen, world.bad[seen])
    end = found.worth_reading("list", 0.2)
    assert world.bad[order[max(0, end - 50) : end]].mean() > 0.08
    assert world.bad[order[2 * end :]].mean() < 0.2
    assert found.worth_reading("list", 0.999) < end
    assert found.worth_reading("list", 0.0) == 5_000


def test_worth_reading__does_not_end_at_one_good_node() -> None:
    """The label-free list is a third bad down to rank 500, in between good nodes that the taught one puts far down."""
    rng, n = np.random.default_rng(2), 5_000
    after = np.argsort(np.arange(n) * np.exp(rng.normal(0, 0.3, n)))
    before = np.argsort(np.arange(n) * np.exp(rng.normal(0, 2.0, n)))
    bad = rng.random(n) < np.where(np.arange(n) < 500, 0.9, 0.005)
    seen = np.unique(np.concatenate([after[:150], rng.choice(n, 80, replace=False)]))
    estimates = Estimates.of({"after": after, "before": before}, seen, bad[seen])
    assert bad[before[10:500]].mean() > 0.3
    for name in ("after", "before"):
        assert 400 <= estimates.worth_reading(name, 0.2) <= 1_200
    assert estimates.worth_reading("after", 0.99) < 400


@pytest.mark.parametrize("num_nodes", [2_500, 50_000])
def test_worth_reading__of_twenty_verdicts_on_the_head_is_no_tenth_of_the_list(num_nodes):
    """The first hundredth is bad; of the draws beyond what was looked at a few are high, which lift their mean."""
    ends = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        bad = rng.random(num_nodes) < np.where(np.arange(num_nodes) < num_nodes // 100, 0.9, 0.002)
        seen = np.unique([*range(18), *rng.integers(0, num_nodes, 2)])
        ends.append(Estimates.of({"list": np.arange(num_nodes)}, seen, bad[seen]).worth_reading("list", 0.2))
    assert 0.2 < np.median(ends) / (num_nodes / 100) < 9.0


def test_estimates__a_case_that_was_judged_is_one_verdict_in_what_is_said_of_others() -> None:
    order, case = np.arange(4000), np.arange(20)
    is_bad, first = np.ones(20, bool), np.arange(1)
    alone, as_one, as_many = (
        Estimates.of({"list": order}, nodes, is_bad[nodes], lessons).shares("list", [20, 200])
        for nodes, lessons in ((first, None), (case, (first, is_bad[first])), (case, None))
    )
    assert as_one[0][:2] == (20, 1.0)  # they count as they are
    assert as_one[1].share == pytest.approx(alone[1].share, abs=0.1)
    assert as_one[1].share < as_many[1].share - 0.1
