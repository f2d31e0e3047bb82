"""Claims about pair batches: balanced, each pair once, the same at any world size, resumed, uniform, bounded."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hcm_scale.sampling import pairs
from hcm_scale.shards import Labels

WINDOW = SPREAD = 16  # row groups that are held at once, and that a draw reaches over


@pytest.fixture(scope="module")
def labels(tmp_path_factory, make_labels) -> Labels:
    """Three classes of 2,000, 5,000 and 9,000 pairs in 4 shards, row groups of 100: many windows."""
    return make_labels(tmp_path_factory.mktemp("pairs") / "labels", [2000, 5000, 9000], 4, 100)


def run(labels, *, num_epochs=1, first_step=0, seed=1, **options):
    """The batches from a step on, to the end of the last epoch."""
    cut = pairs.cut_epoch(labels, **({"batch_pairs": 256, "sampling_ratio": 0.5} | options))
    batches = pairs.pair_batches(labels, cut, seed=seed, first_step=first_step)
    return list(itertools.islice(batches, num_epochs * cut.num_steps - first_step))


def as_tuples(batches):
    return [
        tuple(row)
        for batch in batches
        for row in zip(batch.hop.tolist(), batch.u.tolist(), batch.v.tolist(), strict=True)
    ]


def same(left, right):
    return (left.epoch, left.step) == (right.epoch, right.step) and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in ("u", "v", "hop")
    )


@pytest.mark.parametrize("batch_pairs", [3, 100, 256, 257, 10**6])
def test_pair_batches__balance_the_classes_and_see_no_pair_twice(labels, batch_pairs):
    batches = run(labels, batch_pairs=batch_pairs)
    assert len(batches) == -(-3000 // batch_pairs)
    seen = as_tuples(batches)
    assert len(seen) == len(set(seen)) == 3 * 1000
    assert all(u == hop + 1 for hop, u, _ in seen)  # each pair carries its own class
    sizes = [len(batch.u) for batch in batches]
    assert max(sizes) <= batch_pairs
    assert max(sizes) - min(sizes) <= 1
    for batch in batches:
        per_class = np.bincount(batch.hop, minlength=3)
        assert per_class.max() - per_class.min() <= 1
    assert np.bincount([hop for hop, _, _ in seen]).tolist() == [1000] * 3


@pytest.mark.parametrize("world", [2, 3, 4])
def test_pair_batches__are_the_same_at_any_world_size(labels, world):
    alone = run(labels, num_epochs=2)
    ranks = [run(labels, num_epochs=2, rank=rank, num_ranks=world) for rank in range(world)]
    for whole, *slices in zip(alone, *ranks, strict=True):
        for name in ("u", "v", "hop"):
            assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in slices]))
        assert max(len(part.u) for part in slices) - min(len(part.u) for part in slices) <= 1


def test_pair_batches__resume_at_any_step(labels):
    whole = run(labels, num_epochs=3)
    steps = len(whole) // 3
    for first in (0, 5, steps, 2 * steps - 1, 2 * steps + 3):
        rest = run(labels, num_epochs=3, first_step=first)
        assert len(rest) == len(whole[first:])
        assert all(map(same, rest, whole[first:]))


def test_pair_batches__resume_reads_one_window_a_class(labels, monkeypatch):
    reads = []
    read = Labels.read
    monkeypatch.setattr(Labels, "read", lambda self, group: (reads.append(group), read(self, group))[1])
    next(
        pairs.pair_batches(labels, pairs.cut_epoch(labels, batch_pairs=30, sampling_ratio=1.0), seed=1, first_step=180)
    )  # of 200
    assert 0 < len(reads) <= 3 * WINDOW


def test_pair_batches__differ_by_seed_and_epoch(labels):
    first = run(labels)[0]
    assert not same(first, run(labels, seed=2)[0])
    assert not np.array_equal(first.v, run(labels, num_epochs=2)[12].v)


def test_pair_batches__full_ratio_sees_every_pair_of_the_smallest_class(labels):
    seen = as_tuples(run(labels, sampling_ratio=1.0))
    assert sorted(v for hop, _, v in seen if hop == 0) == list(range(2000))


def test_pair_batches__go_on_without_end(labels):
    batches = pairs.pair_batches(labels, pairs.cut_epoch(labels, batch_pairs=1000, sampling_ratio=0.5), seed=0)
    positions = [(batch.epoch, batch.step) for batch in itertools.islice(batches, 7)]
    assert positions == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_pair_batches__batches_mix_the_shards(labels):
    """Pair v of a class lies in shard v mod 4: a batch should meet all four, about equally over an epoch."""
    shares = np.stack([np.bincount(batch.v % 4, minlength=4) for batch in run(labels, sampling_ratio=1.0)])
    assert (shares > 0).mean() > 0.95


def count_draws(labels, sampling_ratio, epochs):
    """How often each pair of the second class was drawn, and the chance of a draw."""
    drawn = np.zeros(labels.stored[1])
    for batch in run(labels, batch_pairs=10**6, sampling_ratio=sampling_ratio, num_epochs=epochs):
        drawn[batch.v[batch.hop == 1]] += 1
    return drawn, pairs.pairs_per_class(labels, sampling_ratio=sampling_ratio) / labels.stored[1]


def test_pair_batches__draw_every_pair_alike(tmp_path, make_labels):
    """Chi-square over many epochs; the draws of an epoch are without repetition, which shrinks the variance."""
    drawn, share = count_draws(make_labels(tmp_path / "labels", [100, 333], 2, 1000), 0.6, epochs := 400)
    statistic = ((drawn - epochs * share) ** 2).sum() / (epochs * share * (1 - share)) * 332 / 333
    assert 1e-3 < stats.chi2(332).sf(statistic) < 1 - 1e-3


@pytest.mark.parametrize("sampling_ratio", [0.02, 0.2, 1.0])
def test_pair_batches__draw_every_pair_alike_from_many_unequal_row_groups(tmp_path, make_labels, sampling_ratio):
    """An epoch draws from a stretch of row groups, so pairs of a group come together: each count alone is binomial."""
    drawn, share = count_draws(make_labels(tmp_path / "labels", [100, 333], 3, 16), sampling_ratio, epochs := 400)
    deviation = (drawn - epochs * share) / np.sqrt(epochs * share * (1 - share))
    assert np.abs(deviation).max() < 5
    assert 0.7 < deviation.std() < 1.3


@given(
    rows=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    share=st.floats(0.01, 1),
    reach=st.integers(1, 400),
    seed=st.integers(0, 2**40),
)
def test_class_order__takes_its_number_from_disjoint_parts(rows, share, reach, seed):
    rows = np.array(rows)
    num_draw = max(1, int(share * rows.sum()))
    order = pairs.class_order(rows, num_draw, reach, seed)
    assert order.quota.sum() == num_draw == order.window_ends[-1]
    assert (order.quota >= 0).all()
    assert (order.quota <= order.last - order.first).all()
    assert (order.last - order.first).sum() == min(rows.sum(), max(num_draw, reach))
    taken = np.zeros((len(rows), 50), int)
    for group, first, last in zip(order.group, order.first, order.last, strict=True):
        assert 0 <= first < last <= rows[group]
        taken[group, first:last] += 1
    assert taken.max() == 1


def test_class_order__spreads_a_small_draw():
    order = pairs.class_order(np.full(1000, 100), 2 * SPREAD, (SPREAD - 1) * 100 + 1, seed=3)
    assert SPREAD <= len(order.group) <= SPREAD + 1
    assert (order.quota > 0).sum() >= SPREAD - 1


def test_class_order__billions_of_pairs_do_not_overflow():
    order = pairs.class_order(np.full(50_000, 10**6), 4 * 10**10, 0, seed=3)
    assert order.quota.sum() == 4 * 10**10
    assert order.quota.max() == 10**6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling_ratio": 0.0001}, r"sampling\.ratio=0\.0001 .* leaves no pair .*; legal here are sampling\.ratio="),
        ({"batch_pairs": 2}, "batch_pairs=2"),
        ({"batch_pairs": 3, "num_ranks": 4}, "num_ranks=4"),
    ],
)
def test_cut_epoch__refuses_bad_options(labels, options, message):
    with pytest.raises(ValueError, match=message):
        pairs.cut_epoch(labels, **({"batch_pairs": 256, "sampling_ratio": 0.5} | options))


def test_pairs_per_class__gives_advice_that_works(tmp_path, make_labels):
    few = make_labels(tmp_path / "few", [7, 3, 2, 3], 1, 100)
    with pytest.raises(ValueError, match=r"legal here are sampling\.ratio=0\.5 \.\. 1, hops\.classes=2, or more hops"):
        pairs.pairs_per_class(few, sampling_ratio=0.3)
    assert pairs.pairs_per_class(few, sampling_ratio=0.5) == 1
    assert pairs.pairs_per_class(make_labels(tmp_path / "two", [7, 8], 1, 100), sampling_ratio=0.3) == 2
    three = make_labels(tmp_path / "three", [3, 3], 1, 100)
    with pytest.raises(ValueError, match=r"legal here are sampling\.ratio=0\.3334 \.\. 1, or more hops"):
        pairs.pairs_per_class(three, sampling_ratio=0.3333)
    assert pairs.pairs_per_class(three, sampling_ratio=0.3334) == 1
    with pytest.raises(ValueError, match=r"legal here are sampling\.ratio=1, or more hops"):
        pairs.pairs_per_class(make_labels(tmp_path / "one", [1, 1], 1, 100), sampling_ratio=0.5)


MEASURE = """
import itertools, sys
from hcm_scale.base.memory import peak_rss_bytes
from hcm_scale.sampling.pairs import cut_epoch, pair_batches
from hcm_scale.shards import open_labels

small, large = open_labels(sys.argv[1]), open_labels(sys.argv[2])
def batches(labels, num_batches):
    cut = cut_epoch(labels, batch_pairs=8192, sampling_ratio=1.0)
    return itertools.islice(pair_batches(labels, cut, seed=0), num_batches or 3 * cut.num_steps)

for _ in batches(small, 0): pass
before = peak_rss_bytes()
seen = 0
for batch in batches(large, int(sys.argv[3])):
    seen += len(batch.u)
print(seen, peak_rss_bytes() - before)
"""


@pytest.mark.parametrize("num_batches", [300, pytest.param(12_208, marks=pytest.mark.slow)])
def test_pair_batches__memory_does_not_grow_with_the_number_of_pairs(tmp_path, make_labels, num_batches):
    """10^5 pairs, then 10^8 (one shard under many names): the growth is bounded by the stated windows.

    The slow run is a whole epoch of 10^8 pairs.
    """
    small = make_labels(tmp_path / "small", [25_000] * 4, 1, 65_536)
    large = make_labels(tmp_path / "large", [250_000] * 4, 1, 65_536, num_links=100)
    assert (small.num_pairs, large.num_pairs) == (10**5, 10**8)
    command = [sys.executable, "-c", MEASURE, str(small.folder), str(large.folder), str(num_batches)]
    seen, growth = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert seen >= min(num_batches * 8000, 10**8)
    windows = large.classes * WINDOW * 65_536 * 8
    assert growth < 3 * windows + 64 * 2**20


def test_pairs_per_class__is_a_share_of_the_exact_counts_at_most_what_is_stored(labels):
    partly = dataclasses.replace(labels, counts=(9_000, 20_000, 20_000))
    assert [pairs.pairs_per_class(partly, sampling_ratio=ratio) for ratio in (0.1, 0.5)] == [900, 2_000]


def test_class_order__reaches_every_row_equally_often():
    rows, reach, reached = np.array([50, 10, 30, 7]), 40, np.zeros((4, 50))
    for seed in range(4000):
        order = pairs.class_order(rows, reach, reach, seed)
        for group, first, last in zip(order.group, order.first, order.last, strict=True):
            reached[group, first:last] += 1
    share = reached[np.arange(50) < rows[:, None]] / 4000
    assert np.abs(share - reach / rows.sum()).max() < 0.04  # five deviations
