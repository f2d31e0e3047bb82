"""Evidence by surprise: places, the strongest kind and the score, and the bits of score, p and flags in plain numpy."""

import itertools
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from kinds import hops_of, inputs_of, kind_numbers, plain_scores, scores_of
from scipy.special import gammaincc, gammaincinv

from hcm_scale.base import order
from hcm_scale.graph import Graph
from hcm_scale.score import nodes, threshold
from hcm_scale.score import table as ranked_table
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.evidence import strongest, surprise_gains, weigh_evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.kinds.inputs import NodeHops
from hcm_scale.score.kinds.kind import OF_LOGARITHMS, Facts, TailOnly

MANY = 300_000  # sorted in threads, two slices
LOGS = ("closure", "context_closure", "cohesion")
OF_SOME = ("hop", "closure", "context", "context_closure")  # say nothing about nodes without neighbours
EVERY = [*KINDS.values()]


def scores_table(graph, scores, rank_by):
    return pa.concat_tables(make() for make in ranked_table.row_groups(graph, scores, rank_by))


def tied_numbers(num_nodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers with many ties."""
    rng = np.random.default_rng(seed)
    return {kind: rng.integers(0, 1 + num_nodes // 3, num_nodes).astype(float) for kind in KINDS}


def slow_place(values: np.ndarray, value: float) -> int:
    """The middle of the places that equal values hold, by counting."""
    above, equal = int(np.sum(values > value)), int(np.sum(values == value))
    return (2 * above + 1 + equal) // 2


def scored(num_nodes: int = 80, lonely: int = 5) -> tuple[Graph, nodes.NodeScores]:
    """A random graph with attributes whose last nodes have no neighbours."""
    rng = np.random.default_rng(3)
    joined = np.triu(rng.random((num_nodes, num_nodes)) < 0.15, 1)
    joined[-lonely:], joined[:, -lonely:] = False, False
    rows, columns = np.nonzero(joined | joined.T)
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=num_nodes))].astype(np.int64)
    graph = Graph(indptr, columns.astype(np.int32), x=rng.normal(size=(num_nodes, 4)).astype(np.float32))
    edges = edge_index(graph.indptr, graph.indices)
    mean, far = (rng.random(edges.num_edges).astype(np.float32) + 1 for _ in range(2))
    return graph, scores_of(inputs_of(edges, graph.x, distance=far - 1, hops=hops_of(edges, mean)))


@pytest.mark.parametrize("num_nodes", [1, 2, 7, 60])
def test_weigh__places_are_those_of_counting(num_nodes: int):
    numbers = tied_numbers(num_nodes)
    has = np.random.default_rng(1).random(num_nodes) < 0.7
    found = weigh_evidence(kind_numbers(numbers, has))
    for kind, places in zip(KINDS, found.places, strict=True):
        known = has if kind in OF_SOME else np.ones(num_nodes, bool)
        ranked = numbers[kind][known]
        for node in range(num_nodes):
            middle = max(1, (len(ranked) + 1) // 2)
            assert places[node] == (slow_place(ranked, numbers[kind][node]) if known[node] else middle)


def test_weigh__four_bytes_a_node_and_kind():
    found = weigh_evidence(kind_numbers(tied_numbers(60), np.ones(60, bool))).places
    assert (found.dtype, found.shape) == (np.int32, (6, 60))


def test_strongest__is_the_kind_with_the_smallest_share_of_places():
    numbers, has = tied_numbers(60), np.arange(60) % 4 > 0
    places = weigh_evidence(kind_numbers(numbers, has)).places
    num_ranked = [has.sum() if kind in OF_SOME else 60 for kind in KINDS]
    found = strongest(places, has, EVERY)
    for node in np.flatnonzero(has):
        shares = [(place - 0.5) / size for place, size in zip(places[:, node], num_ranked, strict=True)]
        assert shares[found[node]] == min(shares)
    assert set(found[~has].tolist()) == {list(KINDS).index("attributes")}


def test_strongest__counts_all_nodes_where_a_kind_ranks_nodes_without_neighbours_too():
    """Half of the nodes have no neighbours: rank 8 of 200 by cohesion is before rank 5 of 100 by hops."""
    ranks, has = np.full((6, 200), 100), np.arange(200) < 100
    ranks[list(KINDS).index("hop"), 0], ranks[list(KINDS).index("cohesion"), 0] = 5, 8
    assert EVERY[strongest(ranks, has, EVERY)[0]].name == "cohesion"


@pytest.mark.parametrize("kind", KINDS)
def test_score__of_the_bulk_does_not_depend_on_how_long_a_tail_is(kind):
    rng = np.random.default_rng(0)
    numbers = {kind: rng.normal(size=1_000) for kind in KINDS}
    has, usual = np.ones(1_000, bool), numbers[kind] < np.quantile(numbers[kind], 0.95)
    for stretch in (np.exp, lambda v: v**3, lambda v: 1e9 * v):
        stretched = numbers | {kind: stretch(numbers[kind])}
        np.testing.assert_allclose(
            weigh_evidence(kind_numbers(stretched, has)).score[usual],
            weigh_evidence(kind_numbers(numbers, has)).score[usual],
        )


@pytest.mark.parametrize("kind", KINDS)
def test_score__grows_with_a_number_and_slowly_beyond_what_a_rank_can_say(kind):
    rng = np.random.default_rng(1)
    numbers = {name: rng.normal(size=1_000) for name in KINDS}
    has, found = np.ones(1_000, bool), []
    for value in (3.0, 30.0, 300.0, 1e6, 1e300):
        numbers[kind][0] = value
        found.append(weigh_evidence(kind_numbers(numbers, has)).score[0])
    assert np.all(np.diff(found) > 0)
    assert found[3] - found[0] < 2 * np.log(1_000) + np.log(1e8)
    assert np.isfinite(found).all()


def test_score__does_not_hold_the_size_of_a_group_against_its_members():
    rng = np.random.default_rng(2)
    numbers = {kind: rng.normal(size=1_000) for kind in KINDS}
    for size in (1, 30):
        numbers["closure"][:size] = 20.0
        first = weigh_evidence(kind_numbers(numbers, np.ones(1_000, bool))).score[0]
        numbers["closure"][:size] = rng.normal(size=size)
        assert first > 8.0


def test_score__puts_the_first_of_one_kind_before_one_that_is_a_little_odd_in_all():
    numbers = {kind: np.arange(1_000.0) for kind in KINDS}
    numbers = {
        kind: np.random.default_rng(i).permutation(1_000.0 * values) for i, (kind, values) in enumerate(numbers.items())
    }
    for kind in KINDS:
        numbers[kind][:2] = 500_000.0, 650_000.0
    numbers["hop"][0] = 1e9
    first, second = weigh_evidence(kind_numbers(numbers, np.ones(1_000, bool))).score[:2]
    assert first > second


def test_score__a_kind_without_differences_changes_no_order():
    rng = np.random.default_rng(0)
    numbers = {"hop": rng.normal(size=30), "attributes": rng.normal(size=30)}
    has = np.ones(30, bool)
    silent = numbers | {"closure": np.zeros(30)}
    np.testing.assert_array_equal(
        weigh_evidence(kind_numbers(silent, has)).score, weigh_evidence(kind_numbers(numbers, has)).score
    )


def test_score__judges_a_node_without_neighbours_by_its_attributes_alone():
    numbers = {kind: np.array([5.0, 1.0, 2.0, 3.0]) for kind in KINDS}
    has = np.array([False, True, True, True])
    before = weigh_evidence(kind_numbers(numbers, has)).score
    numbers["hop"] = np.array([-7.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(weigh_evidence(kind_numbers(numbers, has)).score, before)


def test_table__keeps_the_kinds_apart_and_gives_them_back():
    graph, scores = scored()
    table = scores_table(graph, scores, rank_by="score")
    back = ranked_table.node_scores(table)
    assert scores.places is not None
    assert np.array_equal(back.places, scores.places)
    assert np.array_equal(back.score, scores.score)
    for kind in KINDS:
        places, numbers = table[f"{kind}_rank"].to_numpy(), table[KINDS[kind].column].to_numpy()
        order = np.lexsort((table["node"].to_numpy(), -numbers))
        ranked = order[np.isin(table["degree"].to_numpy()[order], 0, invert=True) | (kind == "attributes")]
        assert np.all(np.diff(places[ranked]) >= 0), kind
    assert set(table["evidence"].to_pylist()) <= set(KINDS)
    lonely = table["degree"].to_numpy() == 0
    assert set(np.array(table["evidence"].to_pylist())[lonely]) == {"attributes"}


def test_table__orders_equal_scores_by_node_number():
    numbers = weigh_evidence(kind_numbers({kind: np.array([1.0, 2.0, 2.0, 1.0]) for kind in KINDS}, np.ones(4, bool)))
    scores = replace(plain_scores({"ahp": np.zeros(4)}), score=numbers.score, places=numbers.places)
    graph = Graph(np.arange(0, 10, 2), np.array([1, 3, 0, 2, 1, 3, 0, 2], np.int32))
    table = scores_table(graph, scores, rank_by="score")
    assert table["node"].to_pylist() == [1, 2, 0, 3]
    assert table["hop_rank"].to_pylist() == [1, 1, 3, 3]


def numbers_of(size: int, lonely: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Numbers with ties, with most alike and with a few that are infinite, and who has neighbours."""
    rng = np.random.default_rng(size)
    made = [rng.gamma(3.0, size=size), rng.exponential(size=size).round(2), rng.normal(size=size).round(1)]
    made += [np.where(rng.random(size) < 0.97, 0.0, rng.exponential(size=size)), rng.gamma(5.0, size=size)]
    made += [np.where(rng.random(size) < 0.6, 0.0, rng.normal(size=size).round(2))]
    for values in made:
        values[: size // 500] += 20.0
    made[0][: size // 1000] = np.inf
    has = rng.random(size) >= lonely
    for kind, values in zip(KINDS, made, strict=True):
        values[~has & (kind != "attributes")] = 0.0 if kind == "cohesion" else 1e6  # of no meaning
    return dict(zip(KINDS, made, strict=True)), has


LEAST_COHESION = np.log(1.5)


def slow_double(values: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (2 * (len(values) - np.cumsum(counts)) + counts + 1)[group]


def slow_surprise(double: np.ndarray, size: int) -> np.ndarray:
    return -np.log1p(-(1.0 - (double - 1) / (2.0 * max(1, size))))


def slow_quantiles(values: np.ndarray, shares: Any) -> np.ndarray:
    if len(values) < order._FEW:
        return np.quantile(values, shares)
    return np.interp(np.multiply(shares, len(values) - 1), np.arange(len(values)), np.sort(values))


def slow_doubles(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    out = np.full(len(values), max(1, np.count_nonzero(known)) + 1)
    out[known] = slow_double(values[known])
    return out


def slow_kind(kind: str, values: np.ndarray) -> np.ndarray:
    """The surprise of the numbers of one kind, by the definition at the top of evidence.py."""
    low = 0.75 if kind in LOGS else 0.5
    bulk = slow_quantiles(values, [low, 1.0 - np.sqrt((1.0 - low) * (1.0 - 0.95)), 0.95])
    start, step = -np.log1p(-0.95), 0.5 * np.log((1.0 - low) / (1.0 - 0.95))
    out = np.minimum(slow_surprise(slow_double(values), len(values)), start)
    beyond = values > bulk[-1]
    if not beyond.any():
        return out
    scale, shape, seen, tail = (bulk[2] - bulk[0]) / (2.0 * step), 0.0, len(values) * (1.0 - low), values[beyond]
    if kind not in LOGS and bulk[0] < bulk[1] < bulk[2]:
        shape = max(0.0, np.log((bulk[2] - bulk[1]) / (bulk[1] - bulk[0])) / step + 0.25)
        scale = (bulk[2] - bulk[1]) * (shape / -np.expm1(-step * shape) if shape else 1.0 / step)
    excess = tail - tail.min()
    if bulk[0] == bulk[2]:
        seen, scale = len(tail), np.median(excess) / np.log(2.0) or excess.mean()
    scale *= slow_bend(bulk, len(values)) if kind == "cohesion" else 1.0
    few = 0.25 if bulk[0] == bulk[1] and kind == "cohesion" else 0.05
    scale = max(scale, few if kind in LOGS else 0.0, 1e-12 * abs(bulk[2]), 1e-300)
    least = LEAST_COHESION if kind == "cohesion" else -np.inf
    said = values > max(bulk[-1], least)
    excess = (values[said] - tail.min()) / (scale * (1.0 + 10.0 / seen))
    out[said] = max(start, -np.log(len(tail) / len(values))) + (np.log1p(shape * excess) / shape if shape else excess)
    return out


def slow_bend(bulk: np.ndarray, size: int) -> float:
    low, middle, high = bulk
    if low == middle:
        return 0.5 if low == high else 1.0
    return float(np.clip(1.0 - (1.0 - (high - middle) / (middle - low) - 4.0 / np.sqrt(size)) / 0.6, 0.55, 1.0))


def slow_gains(kind: str, values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """What every node gains by a kind, and what that adds to its score, (2, n).

    Nodes that the kind cannot tell about gain nothing, and in the score what its middle node does. A silent kind gives
    its surprise beyond the 95 % quantile, and four times what is more than that of the quantile,
    by the scale of the bulk.
    """
    out = np.zeros((2, len(known)))
    if kind == "cohesion":
        surprises, above = slow_kind(kind, values), values > slow_quantiles(values, [0.95])[0]
        beyond = above & (values > LEAST_COHESION)
        if beyond.any():
            out[0, beyond] = surprises[beyond]
            begin, most = max(-np.log1p(-0.95), -np.log(above.sum() / len(values))), 1.5 * np.log(max(2, len(values)))
            bulk = slow_quantiles(values, [0.75, 1.0 - np.sqrt(0.25 * 0.05), 0.95])
            soft = 4.0 * slow_bend(bulk, len(values)) * (surprises[beyond] - begin)
            out[1, beyond] = np.minimum(soft, most) + np.log1p(np.maximum(soft - most, 0.0))
        return out
    if known.any():
        surprises, most = slow_kind(kind, values[known]), np.log(max(2, np.count_nonzero(known)))
        gained = surprises - surprises.min()
        soft = np.minimum(gained, most) + np.log1p(np.clip(gained - most, 0.0, np.finfo(float).max))
        by_rank = slow_surprise(slow_double(values[known]), len(gained)) - surprises.min()
        out[:, known], out[1, ~known] = [gained, np.maximum(by_rank, soft)], np.median(gained)
    return out


def slow_p(numbers: dict[str, np.ndarray], has: np.ndarray) -> np.ndarray:
    """By the sum, among nodes with neighbours or without (few: less what half of them have), and cohesion with it."""
    total, surprise, dependence = np.zeros(len(has)), np.zeros(len(has)), 0.0
    for kind, values in numbers.items():
        if kind != "cohesion":
            total += slow_gains(kind, values, has if kind in OF_SOME else np.ones(len(has), bool))[0]
    alone, start = slow_gains("cohesion", numbers["cohesion"], has)[0], -np.log1p(-0.95)
    by_rank = slow_surprise(slow_double(numbers["cohesion"]), len(has))
    is_next = (alone <= start) & (np.minimum(by_rank, start) > np.log(5.0)) & alone.any()
    for group in (has, ~has):
        if group.any() and (group is has or group.sum() >= 200 or group.all()):
            surprise[group] = slow_gamma(total[group], total[group & (alone <= start)])
            if group is has and (is_next & has).sum() >= 20:
                medians = [np.median(each[is_next & has]) for each in (surprise, np.minimum(by_rank, start))]
                dependence = np.clip((medians[0] - np.log(2.0)) / (medians[1] - np.log(2.0)), -0.2, 1.0)
        elif group.any():
            common = np.median(total[group]) if group.sum() >= 5 else 0.0
            surprise[group] = np.maximum(total[group] - max(0.0, common - np.log(2.0)), 0.0)
    share = np.exp(-start) if alone.any() else 0.0
    both = np.where(alone > start, np.maximum(surprise - dependence * (alone - 1.0), 0.0) + alone, surprise)
    p = (1.0 - share) * np.exp(-both) + share * gammaincc(2.0, np.maximum(both - start, 0.0))
    return np.clip(p, 1e-300, 1.0)


def slow_gamma(total: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Surprises by the gamma distribution, of 48, whose quantiles are nearest to those of the usual sums."""
    if not len(usual):
        return total
    shares, fits = np.linspace(0.3, 0.85, 16), []
    bulk = np.quantile(usual, shares)
    for shape in np.geomspace(0.5, 60.0, 48):
        expected = gammaincinv(shape, shares)
        apart, expected_apart = bulk - bulk.mean(), expected - expected.mean()
        scale = max((apart * expected_apart).sum() / (expected_apart**2).sum(), 1.0)
        error = ((apart - scale * expected_apart) ** 2).sum()
        fits.append((error, shape, scale, bulk.mean() - scale * expected.mean()))
    _, shape, scale, begin = min(fits)
    chance = gammaincc(shape, np.maximum(total - begin, 0.0) / scale)
    return -np.log(np.maximum(chance, 1e-300)) / (1.0 + 10.0 / (0.2 * len(usual)))


def slow_discoveries(p: np.ndarray, rate: float) -> np.ndarray:
    ordered = np.sort(p)
    below = np.flatnonzero(ordered <= rate / len(p) * np.arange(1, len(p) + 1))
    return p <= ordered[below[-1]] if len(below) else np.zeros(len(p), bool)


def slow_weigh(numbers: dict[str, np.ndarray], has: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    total, places = np.zeros(len(has)), []
    for kind, values in numbers.items():
        known = has if kind in OF_SOME else np.ones(len(has), bool)
        double = slow_doubles(values, known)
        total += slow_gains(kind, values, known)[1]
        places.append(double // 2)
    return total, places


@pytest.mark.parametrize(
    ("size", "lonely"), [(MANY, 0.02), (MANY, 0.6), *itertools.product([1, 2, 11, 3_000], [0.0, 0.02, 0.6, 1.0])]
)
def test_weigh_and_p__have_the_bits_of_plain_numpy(size, lonely, monkeypatch):
    numbers, has = numbers_of(size, lonely)
    score, places = slow_weigh(numbers, has)
    p = slow_p(numbers, has)
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        weighed = weigh_evidence(kind_numbers(numbers, has))
        found = threshold.judge(weighed.sums, 0.1)
        np.testing.assert_array_equal(weighed.score, score)
        np.testing.assert_array_equal(weighed.places, places)
        np.testing.assert_array_equal(found.p, p)
        np.testing.assert_array_equal(found.flagged, slow_discoveries(p, 0.1))


def test_weights__of_neighbours_fall_where_attributes_say_nothing_of_edges():
    full, half, none = (Facts(10.0, trust) for trust in (1.0, 0.5, 0.0))
    assert [kind.weight(full) for kind in EVERY] == [1.0] * 6
    assert [kind.weight(none) for kind in EVERY] == [1.0, 0.0, 1 / 3, 1 / 3, 1.0, 1.0]
    assert [kind.weight(half) for kind in EVERY] == pytest.approx([1.0, 0.5, 2 / 3, 2 / 3, 1.0, 1.0])
    assert [kind.name for kind in EVERY if kind.is_faint(none)] == ["closure"]
    assert not [kind.name for kind in EVERY if kind.is_faint(half)]


def test_weights__of_hops_follow_what_was_learnt_and_of_attributes_how_few_neighbours_there_are():
    assert [kind.weight(Facts(10.0, learnt=0.5)) for kind in EVERY] == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert [kind.name for kind in EVERY if kind.is_faint(Facts(10.0, learnt=0.05))] == ["hop", "closure"]
    assert [KINDS["attributes"].weight(Facts(degree)) for degree in (0.0, 2.5, 10.0, 100.0)] == [2.0, 1.6, 1.0, 1.0]
    assert KINDS["attributes"].weight(Facts(2.5, trust=0.0)) == 1.0


def test_strongest__names_no_far_triangles_where_they_weigh_nothing():
    places = np.random.default_rng(0).permuted(np.tile(np.arange(1, 201), (6, 1)), axis=1)
    every, has = [*KINDS], np.ones(200, bool)
    named, others = (strongest(places, has, EVERY, faint) for faint in ((), ("closure",)))
    is_closure = named == every.index("closure")
    assert is_closure.any()
    assert not (others == every.index("closure")).any()
    np.testing.assert_array_equal(named[~is_closure], others[~is_closure])


def test_halves__with_places_are_the_double_places():
    numbers, has = numbers_of(3_000, 0.1)
    weighed = weigh_evidence(kind_numbers(numbers, has))
    for row, (kind, values) in enumerate(numbers.items()):
        known = has if kind in OF_SOME else np.ones(len(has), bool)
        np.testing.assert_array_equal(weighed.double_places(row), slow_doubles(values, known))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.7])
def test_discoveries__of_many_have_the_bits_of_a_sort(rate):
    rng = np.random.default_rng(0)
    for p in (rng.random(600_000) ** 3, rng.random(600_000), np.full(600_000, rate), np.full(600_000, 0.99)):
        np.testing.assert_array_equal(threshold.discoveries(p, rate), slow_discoveries(p, rate))


@pytest.mark.parametrize("size", [30, MANY])
def test_stability_and_verdict__need_no_second_sort(size):
    numbers, has = numbers_of(size, 0.1)
    numbers["hop"][np.isinf(numbers["hop"])] = 30.0
    views = [numbers["hop"] + np.random.default_rng(seed).gamma(1.0, size=size).round(1) for seed in (1, 2)]
    by_column = {KINDS[kind].column: values for kind, values in numbers.items()}
    scores = nodes.with_score(plain_scores(by_column, np.where(has, 0, nodes.ISOLATED)))
    inputs = inputs_of(edge_index(np.zeros(size + 1, np.int64), np.zeros(0, np.int32)))
    inputs.hops = NodeHops(np.zeros(0, np.float32), numbers["hop"], numbers["hop"], views)
    others = scores.score - slow_gains("hop", numbers["hop"], has)[1]
    firsts = []
    for view in views:
        total = others + slow_gains("hop", view, has)[1]
        firsts.append(np.argsort(-total, kind="stable")[: min(100, size // 10)])
    wanted = len(np.intersect1d(*firsts)) / len(firsts[0])
    unweighed = replace(scores, weighed=None)
    p = nodes.verdict_of(scores, 0.1).p
    for given in (scores, unweighed):
        assert nodes.stability(given, inputs, "score") == wanted
        np.testing.assert_array_equal(nodes.verdict_of(given, 0.1).p, p)


def test_tail_only__of_a_kind_that_has_next_to_nothing_begins_at_its_least_number():
    values = np.append(np.random.default_rng(0).normal(-1.0, 0.1, 2_000), [0.3, 2.0])
    of_any, of_some = (
        surprise_gains(values, None, None, OF_LOGARITHMS, TailOnly(least=least)).of(slice(None))[1]
        for least in (-np.inf, np.log(2.0))
    )
    assert of_any[-2] > 0.0 == of_some[-2]
    assert of_some[-1] > 0.0
    assert not of_some[:-1].any()
