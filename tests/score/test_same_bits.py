"""Scores, places, p and flags, found in threads and without a second sort: the bits of plain numpy."""

import itertools
from typing import Any

import numba
import numpy as np
import pytest
from scipy.special import gammaincc, gammaincinv

from hcm_scale.base import order
from hcm_scale.score.evidence import KINDS, OF_NEIGHBORS, weigh_evidence
from hcm_scale.score.nodes import ISOLATED, AttributeScores, NodeScores, stability, verdict_of, with_attributes
from hcm_scale.score.threshold import discoveries, judge

MANY = 300_000  # sorted in threads, two slices
LOGS = ("closure", "context_closure")


def numbers_of(size: int, lonely: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Numbers with ties, with most alike and with a few that are infinite, and who has neighbours."""
    rng = np.random.default_rng(size)
    made = [rng.gamma(3.0, size=size), rng.exponential(size=size).round(2), rng.normal(size=size).round(1)]
    made += [np.where(rng.random(size) < 0.97, 0.0, rng.exponential(size=size)), rng.gamma(5.0, size=size)]
    for values in made:
        values[: size // 500] += 20.0
    made[0][: size // 1000] = np.inf
    has = rng.random(size) >= lonely
    for kind, values in zip(KINDS, made, strict=True):
        values[~has & (kind in OF_NEIGHBORS)] = 1e6  # of no meaning
    return dict(zip(KINDS, made, strict=True)), has


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
    """The surprise of the numbers of one kind, by the definition at the top of tail.py."""
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
    scale = max(scale, 0.05 if kind in LOGS else 0.0, 1e-12 * abs(bulk[2]), 1e-300)
    excess = excess / (scale * (1.0 + 10.0 / seen))
    out[beyond] = max(start, -np.log(len(tail) / len(values))) + (np.log1p(shape * excess) / shape if shape else excess)
    return out


def slow_gains(kind: str, values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """What every node gains by a kind, and what that adds to its score, (2, n).

    Nodes that the kind cannot tell about gain what its middle node does.
    """
    out = np.zeros((2, len(known)))
    if known.any():
        surprises, most = slow_kind(kind, values[known]), np.log(max(2, np.count_nonzero(known)))
        gained = surprises - surprises.min()
        soft = np.minimum(gained, most) + np.log1p(np.clip(gained - most, 0.0, np.finfo(float).max))
        by_rank = slow_surprise(slow_double(values[known]), len(gained)) - surprises.min()
        out[:, known], out[:, ~known] = [gained, np.maximum(by_rank, soft)], np.median(gained)
    return out


def slow_p(numbers: dict[str, np.ndarray], has: np.ndarray) -> np.ndarray:
    total, num_telling = np.zeros(len(has)), 0
    for kind, values in numbers.items():
        gained, _ = slow_gains(kind, values, has if kind in OF_NEIGHBORS else np.ones(len(has), bool))
        num_telling += bool(gained.any())
        total += gained
    low, high = slow_quantiles(total, [0.5, 0.9])
    parts = np.linspace(1.0, max(1, num_telling), 1 + 20 * (max(1, num_telling) - 1))
    spread = gammaincinv(parts, 0.9) / gammaincinv(parts, 0.5)
    shape = np.interp(high / low if low > 0.0 else np.inf, spread[::-1], parts[::-1])
    scale = max(1.0, high / gammaincinv(shape, 0.9)) * (1.0 + 10.0 / (len(total) * (1.0 - 0.9)))
    ranks = 1.0 - (slow_double(total) - 1) / (2.0 * len(total))
    tail = np.clip(gammaincc(shape, total / scale), 1e-300, 1.0 - 0.9)
    return np.where(total > high, tail, np.maximum(1.0 - ranks, 1.0 - 0.9))


def slow_discoveries(p: np.ndarray, rate: float) -> np.ndarray:
    ordered = np.sort(p)
    below = np.flatnonzero(ordered <= rate / len(p) * np.arange(1, len(p) + 1))
    return p <= ordered[below[-1]] if len(below) else np.zeros(len(p), bool)


def slow_weigh(numbers: dict[str, np.ndarray], has: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    total, places = np.zeros(len(has)), []
    for kind, values in numbers.items():
        known = has if kind in OF_NEIGHBORS else np.ones(len(has), bool)
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
        weighed = weigh_evidence(numbers, has)
        found = judge(weighed.sums, 0.1)
        np.testing.assert_array_equal(weighed.score, score)
        np.testing.assert_array_equal(weighed.places, places)
        np.testing.assert_array_equal(found.p, p)
        np.testing.assert_array_equal(found.flagged, slow_discoveries(p, 0.1))


def test_halves__with_places_are_the_double_places():
    numbers, has = numbers_of(3_000, 0.1)
    weighed = weigh_evidence(numbers, has)
    for row, (kind, values) in enumerate(numbers.items()):
        known = has if kind in OF_NEIGHBORS else np.ones(len(has), bool)
        np.testing.assert_array_equal(weighed.double_places(row), slow_doubles(values, known))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.7])
def test_discoveries__of_many_have_the_bits_of_a_sort(rate):
    rng = np.random.default_rng(0)
    for p in (rng.random(600_000) ** 3, rng.random(600_000), np.full(600_000, rate), np.full(600_000, 0.99)):
        np.testing.assert_array_equal(discoveries(p, rate), slow_discoveries(p, rate))


@pytest.mark.parametrize("size", [30, MANY])
def test_stability_and_verdict__need_no_second_sort(size):
    numbers, has = numbers_of(size, 0.1)
    numbers["hop"][np.isinf(numbers["hop"])] = 30.0
    views = [numbers["hop"] + np.random.default_rng(seed).gamma(1.0, size=size).round(1) for seed in (1, 2)]
    nothing, flags = np.zeros(size), np.where(has, 0, ISOLATED).astype(np.uint8)
    plain = NodeScores(numbers["hop"], *[nothing] * 2, numbers["closure"], *[nothing] * 5, np.zeros(size, int), flags)
    rest = (numbers[kind] for kind in ("context", "context_closure", "attributes"))
    scores = with_attributes(plain, AttributeScores(*rest))
    others = scores.score - slow_gains("hop", scores.ahp, has)[1]
    firsts = []
    for view in views:
        total = others + slow_gains("hop", view, has)[1]
        firsts.append(np.argsort(-total, kind="stable")[: min(100, size // 10)])
    wanted = len(np.intersect1d(*firsts)) / len(firsts[0])
    unweighed = NodeScores(**{name: getattr(scores, name) for name in vars(plain)})
    p = verdict_of(scores, 0.1).p
    for given in (scores, unweighed):
        assert stability(given, views, "score") == wanted
        np.testing.assert_array_equal(verdict_of(given, 0.1).p, p)
