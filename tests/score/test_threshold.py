"""p and flags: in range, falling with every number, quiet on usual samples, loud on extreme ones."""

import numpy as np
import pytest
from kinds import kind_numbers
from scipy.special import ndtr

from hcm_scale.score import threshold
from hcm_scale.score.evidence import weigh_evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS

SAMPLES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "gamma": lambda rng, n: rng.gamma(3.0, size=n),
    "lognormal": lambda rng, n: np.exp(rng.standard_normal(n)),
    "half zero": lambda rng, n: np.maximum(rng.standard_normal(n), 0.0),
}
BENDING = ("hop", "context", "attributes")  # the kinds that may have any tail; the others are logarithms


def sample(name: str, n: int, seed: int, kinds=tuple(KINDS)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {kind: SAMPLES[name](rng, n) for kind in kinds}


def verdict(numbers, has: np.ndarray | None = None, rate: float = 0.1):
    has = np.ones(len(next(iter(numbers.values()))), bool) if has is None else has
    return threshold.judge(weigh_evidence(kind_numbers(numbers, has)).sums, rate)


def flagged(numbers, rate: float = 0.1) -> np.ndarray:
    return np.flatnonzero(verdict(numbers, rate=rate).flagged)


def slow_discoveries(p, rate: float) -> list[bool]:
    """Benjamini and Hochberg's definition, word for word."""
    ordered = sorted(p)
    chosen = [k for k in range(1, len(p) + 1) if ordered[k - 1] <= rate * k / len(p)]
    return [bool(chosen) and value <= ordered[chosen[-1] - 1] for value in p]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_discoveries__are_those_of_the_definition(seed, rate):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(60) ** rng.integers(1, 6), 3)
    assert threshold.discoveries(p, rate).tolist() == slow_discoveries(p.tolist(), rate)


def test_discoveries__are_few_under_uniform_p():
    found = [threshold.discoveries(np.random.default_rng(seed).random(500), 0.1).any() for seed in range(200)]
    assert np.mean(found) < 0.15  # 0.1 is what the procedure promises


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("n", [1, 2, 10, 300])
def test_p__is_above_0_and_at_most_1(name, n):
    numbers = sample(name, n, seed=0)
    numbers["hop"][0] = 1e12
    p = verdict(numbers).p
    assert np.all((p > 0.0) & (p <= 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAMPLES)
def test_surprise__rises_with_the_number(kind, name):
    values = np.sort(np.append(SAMPLES[name](np.random.default_rng(1), 500), [10.0, 100.0, 1e4]))
    assert np.all(np.diff(weigh_evidence(kind_numbers({kind: values}, np.ones(len(values), bool))).sums.total) >= 0.0)


def test_p__falls_with_the_sum():
    sums = weigh_evidence(kind_numbers(sample("normal", 403, seed=0), np.ones(403, bool))).sums
    total = np.sort(np.append(np.random.default_rng(0).gamma(3.0, size=400), [20.0, 50.0, 2000.0]))
    assert np.all(np.diff(threshold.judge(sums._replace(total=total, alone=None, num_alone=0), 0.1).p) <= 0.0)


def test_p__of_the_bulk_is_about_its_rank():
    p = verdict(sample("normal", 1000, seed=3, kinds=[kind for kind in KINDS if kind != "cohesion"])).p
    np.testing.assert_allclose(np.sort(p), (np.arange(1000) + 0.5) / 1000, atol=0.04)


def dependent(n: int, seed: int, shared: float) -> dict[str, np.ndarray]:
    """Exponential numbers of all kinds, whose normal scores have this correlation."""
    rng = np.random.default_rng(seed)
    normal = shared**0.5 * rng.standard_normal(n) + (1.0 - shared) ** 0.5 * rng.standard_normal((len(KINDS), n))
    return dict(zip(KINDS, -np.log(ndtr(-normal)), strict=True))


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("tails", [False, True], ids=["the sum", "and a tail"])
def test_p__is_calibrated_where_nothing_is_odd(shared, tails):
    kinds = [kind for kind in KINDS if tails or kind != "cohesion"]
    ratios = []
    for seed in range(6):
        numbers = dependent(5_000, seed, shared)
        p = np.sort(verdict({kind: numbers[kind] for kind in kinds}).p)
        ratios.append([5_000 * p[k - 1] / k for k in (10, 100, 1_000)])
    typical = np.median(ratios, axis=0)
    assert np.all((typical > 0.33) & (typical < 2.0)), typical


@pytest.mark.parametrize("seed", range(3))
def test_a_tenth_of_anomalies__does_not_hide_itself(seed):
    """Each is a little odd in every kind and no leader in any: the tail of the sum begins below them."""
    numbers = sample("normal", 5_000, seed)
    for values in numbers.values():
        values[:500] += 3.0
    nodes = flagged(numbers)
    assert np.count_nonzero(nodes < 500) > 470
    assert np.mean(nodes >= 500) < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_a_tail_and_the_sum__speak_together(seed):
    """A hundred nodes at the beginning of a tail, a little odd in all else: neither alone would name them."""
    numbers = sample("normal", 5_000, seed)
    for kind, values in numbers.items():
        values[:100] = np.abs(0.3 * values[:100]) + 3.0 if kind == "cohesion" else values[:100] + 1.5
    nodes = flagged(numbers)
    assert np.count_nonzero(nodes < 100) > 80
    assert np.mean(nodes >= 100) < 0.1
    alone = {kind: values for kind, values in numbers.items() if kind != "cohesion"}
    assert len(flagged(alone)) < 50
    assert len(flagged({"cohesion": numbers["cohesion"]})) < 50


@pytest.mark.parametrize("seed", range(3))
def test_p__of_numbers_that_are_surprises_is_no_smaller_than_they_say(seed):
    """One node in a hundred has something, by a null that falls slower than it says: having some is not said twice."""
    rng, n = np.random.default_rng(seed), 20_000
    numbers = sample("normal", n, seed) | {"passed_on": np.zeros(n)}
    some = rng.choice(n, n // 100, replace=False)
    numbers["passed_on"][some] = rng.exponential(2.5, len(some))
    p = np.sort(verdict({"passed_on": numbers["passed_on"]}).p)
    assert n * p[19] / 20 > 0.5
    numbers["passed_on"][:20] = 25.0
    assert np.count_nonzero(flagged(numbers) < 20) == 20


@pytest.mark.parametrize("seed", range(3))
def test_p__of_a_tail_that_begins_amid_nodes_that_have_nothing_is_calibrated(seed):
    """Most nodes have fewer triangles than expected, a tenth has none, and the few others lie far above both."""
    rng, n = np.random.default_rng(seed), 20_000
    cohesion = np.where(rng.random(n) < 0.82, -rng.random(n), 0.0)
    some = rng.choice(n, int(0.055 * n), replace=False)
    cohesion[some] = rng.exponential(0.25, len(some))
    numbers = sample("normal", n, seed)
    p = np.sort(verdict(numbers | {"cohesion": cohesion}).p)
    assert n * p[39] / 40 > 0.4


@pytest.mark.parametrize("seed", range(5))
def test_heavy_bulk__flags_hardly_anything(seed):
    """Kinds with tails of their own weight, all of which speak of the same nodes: busy ones."""
    rng = np.random.default_rng(seed)
    busy = np.exp(0.7 * rng.standard_normal(5_000))
    numbers = {kind: busy * rng.gamma(2.0, size=5_000) for kind in BENDING}
    assert len(flagged(numbers)) <= 1


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("same", [False, True], ids=["apart", "all the same"])
@pytest.mark.parametrize("n", [10, 30, 200, 2000])
def test_usual_nodes__are_hardly_ever_flagged(name, same, n):
    kinds = BENDING if name == "lognormal" else tuple(KINDS)
    counts = []
    for seed in range(20):
        numbers = sample(name, n, seed, kinds)
        counts.append(len(flagged(dict.fromkeys(kinds, numbers["hop"]) if same else numbers)))
    assert np.count_nonzero(counts) <= 3
    assert np.mean(counts) <= max(0.2, 0.001 * n)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_number_of_one_kind__is_flagged(kind):
    numbers = sample("normal", 1000, seed=5)
    numbers[kind][:10] = 30.0
    found = flagged(numbers)
    assert set(range(10)) <= set(found.tolist())
    assert len(found) <= 11


def test_large_numbers_of_several_kinds__are_flagged_together():
    numbers = sample("normal", 2000, seed=6)
    for values in numbers.values():
        values[:40] = np.abs(values[:40]) + 4.0
    found = flagged(numbers)
    assert np.isin(np.arange(40), found).all()
    assert len(found) <= 44


def test_more_flags__at_a_larger_rate():
    numbers = sample("normal", 2000, seed=7)
    for values in numbers.values():
        values[:60] += 2.5
    few, many = flagged(numbers, 0.01), flagged(numbers, 0.3)
    assert set(few) < set(many)


def test_constant_numbers__flag_nobody_and_change_nothing():
    numbers = sample("normal", 500, seed=8)
    assert len(flagged({kind: np.zeros(500) for kind in KINDS})) == 0
    fewer = {kind: numbers[kind] for kind in BENDING}
    both = fewer | {"closure": np.zeros(500)}
    np.testing.assert_array_equal(verdict(both).p, verdict(fewer).p)


@pytest.mark.parametrize("kind", KINDS)
def test_few_numbers_above_one_that_most_share__are_judged_among_themselves(kind):
    values = np.zeros(1000)
    values[:5], values[5] = 5.0, 9.0  # more than half of them alike: their middle has no spread
    assert len(flagged({kind: values})) == 0 or kind in ("closure", "context_closure", "cohesion")
    assert np.all(np.isfinite(weigh_evidence(kind_numbers({kind: values}, np.ones(1000, bool))).sums.total))


def test_nodes_without_neighbors__are_judged_by_their_attributes_alone():
    numbers = sample("normal", 1000, seed=9)
    has = np.ones(1000, bool)
    has[:20] = False
    for kind in ("hop", "closure", "context", "context_closure"):
        numbers[kind][:20] = 1e6  # of no meaning
    numbers["attributes"][0] = 200.0
    assert np.flatnonzero(verdict(numbers, has).flagged).tolist() == [0]
    assert not verdict(numbers, np.zeros(1000, bool)).flagged[1:].any()


def test_few_nodes_without_neighbors__are_not_flagged_for_what_they_all_have():
    numbers, has = sample("normal", 1000, seed=9), np.ones(1000, bool)
    has[:20] = False
    numbers["attributes"][:20] = 100.0
    assert not verdict(numbers, has).flagged.any()
    numbers["attributes"][3] = 300.0
    assert np.flatnonzero(verdict(numbers, has).flagged).tolist() == [3]


def test_no_nodes__have_no_p():
    assert verdict({"hop": np.zeros(0)}).p.shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_expected_precision__holds_what_is_there(seed):
    """Of lists with 0, 100 and 300 odd nodes among 5,000, by p that are right for the others."""
    rng = np.random.default_rng(seed)
    for num_odd in (0, 100, 300):
        p = rng.random(5_000)
        p[:num_odd] = 10.0 ** -rng.uniform(1.0, 7.0, num_odd)
        order = np.argsort(p)
        for first, share, low, high in threshold.expected_precision(p[order], [50, 200, 500]):
            true = np.mean(order[:first] < num_odd)
            assert low <= true <= high
            assert low <= share <= high
            assert abs(share - true) < (0.15 if num_odd else 0.3)


def test_expected_precision__of_nobody_is_unknown():
    assert threshold.expected_precision(np.zeros(0), [0]) == [(0, 0.0, 0.0, 1.0)]
