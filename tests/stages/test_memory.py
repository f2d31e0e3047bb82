"""What stages are foreseen to take: more of anything never takes less, and what saves memory does."""

import dataclasses

import pytest

from hcm_scale.hops.engines import STATE_BYTES
from hcm_scale.run import memory
from hcm_scale.run.memory import BatchShape, Searches
from hcm_scale.shards import LabelPlan

PLAN = LabelPlan(
    "",
    200_000,
    False,
    classes=4,
    num_sources=4_096,
    pairs_per_class=256,
    seed=0,
    shard_pairs=4_000_000,
    row_group_rows=65_536,
)
SCORE = {"num_features": 20, "widths": (64, 64), "chunk_edges": 1 << 14, "threads": 2, "num_views": 1}
WIDE = Searches(2, STATE_BYTES)
SIZES = [1_000, 30_000, 1_000_000, 30_000_000]


def label(plan=PLAN, *, arcs=3_200_000, shares=True, how=WIDE):
    return memory.label_bytes(plan, plan.num_nodes, arcs, shares=shares, how=how)


def train(n=1_000_000, *, pairs=512, drawn=(16.0,), workers=1, widths=(64, 64)):
    batch = BatchShape.foreseen(n, pairs, list(drawn))
    return memory.train_bytes(
        n, batch, num_features=20, widths=widths, num_drawn=10**6, window=4 * 10**6, workers=workers
    )


@pytest.mark.parametrize(
    "held",
    [
        lambda n: memory.synthetic_bytes(n, 8, 20),
        lambda n: memory.inject_bytes(n, 16 * n, 20 * n),
        lambda n: memory.purify_bytes(n, 8 * n, 20, num_values=20 * n, num_features=20, ratio=0.2),
        lambda n: memory.purify_bytes(n, 8 * n, 3_000, num_values=10 * n, num_features=20, ratio=0.2),
        lambda n: memory.propagate_bytes(n, 20),
        lambda n: label(dataclasses.replace(PLAN, num_nodes=n), arcs=16 * n, shares=False),
        train,
        lambda n: memory.score_bytes(n, 8 * n, on_disk=False, **SCORE),
        lambda n: memory.report_bytes(n, 8 * n),
    ],
)
def test_bytes__grow_with_the_graph_and_no_faster(held):
    found = [held(n) for n in SIZES]
    assert found == sorted(found)
    assert found[-1] < 31 * found[-2]


def test_score_bytes__on_disk_saves_the_embeddings_and_the_moments_of_edges():
    sizes, wide = (10**6, 10**6), SCORE | {"widths": (1_024, 64)}
    held = {on_disk: memory.score_bytes(*sizes, on_disk=on_disk, **wide) for on_disk in (True, False)}
    assert held[False] - held[True] >= 8 * 1_024 * 10**6 - 400 * 10**6
    held = {on_disk: memory.score_bytes(1_000, 10**8, on_disk=on_disk, **SCORE) for on_disk in (True, False)}
    assert held[False] - held[True] == 8 * 10**8


def test_score_bytes__ten_million_nodes_on_disk_are_a_matter_of_nodes():
    wide, sizes = SCORE | {"widths": (128, 256)}, (10**7, 77 * 10**6)
    held = memory.score_bytes(*sizes, on_disk=True, **wide)
    assert held < 100 * 2**20 + 380 * sizes[0] + 7 * sizes[1]


def test_score_bytes__ranks_hold_less_and_the_more_of_them_the_less():
    held = [memory.score_bytes(10**5, 10**8, on_disk=False, num_ranks=r, **SCORE) for r in (1, 2, 4)]
    assert held[0] > held[1] >= held[2]


def test_score_bytes__ten_million_nodes_are_as_in_the_books():
    wide = SCORE | {"widths": (128, 256)}
    held = memory.score_bytes(10**7, 8 * 10**7, on_disk=False, **wide)
    assert 10.2e9 + 0.64e9 < held < 1.1 * (10.2e9 + 0.64e9)  # two layers of embeddings and 8 bytes an edge


def test_label_bytes__narrower_blocks_and_fewer_threads_save():
    ways = [WIDE, Searches(2, 32 << 20), Searches(2, 1), Searches(1, 1)]
    held = [label(how=how) for how in ways]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    assert label(shares=False) < held[-1]


def test_train_bytes__workers_batches_and_widths_count():
    assert train(workers=0) < train() < train(workers=4)
    assert train() < train(pairs=8_192) < train(pairs=8_192, widths=(256, 256))
    assert train() < train(drawn=(16.0, 16.0))


def test_batch_shape__is_no_larger_than_the_graph():
    shape = BatchShape.foreseen(1_000, 4_096, [50.0, 50.0])
    assert shape.layers == (1_000, 1_000, 1_000)
    assert BatchShape.foreseen(1_000, 10, [50.0], whole_graph=True).layers == (1_000, 1_000)
