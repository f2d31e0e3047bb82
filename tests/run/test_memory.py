"""Memory that stages are estimated to take, and runs in little memory: what is refused, what is said, same bytes."""

import dataclasses
import logging

import numpy as np
import pytest

from hcm_scale.config import Config, ModelConfig, SyntheticGraph, with_options
from hcm_scale.graph import SparseRows
from hcm_scale.run import memory, pipeline
from hcm_scale.run.stages import label_options, recipe_of
from hcm_scale.run.workspace import read_stages
from hcm_scale.shards import LabelPlan, open_labels
from hcm_scale.stages.label import label as make_labels
from hcm_scale.stages.train import Training
from hcm_scale.synthetic import families as synthetic

MIB = 2**20
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
WIDE = memory.Searches(2, 256 << 20)
SIZES = [1_000, 30_000, 1_000_000, 30_000_000]


def label(plan=PLAN, *, arcs=3_200_000, shares=True, how=WIDE):
    return memory.label_bytes(plan, plan.num_nodes, arcs, shares=shares, how=how)


def purify(n, *, attributes, values):
    return memory.purify_bytes(memory.Size(n, 8 * n, 16 * n, attributes, values), num_features=20, ratio=0.2)


def score(n, m, *, widths=(64, 64), **how):
    options = {"model.width": widths[0], "model.head_width": widths[1], "score.views": ["purified"]}
    size = memory.Size(n, m, 2 * m, 20, 20 * n)
    return memory.score_bytes(with_options(Config(), options), size, 20, **{"on_disk": False} | how)


def train(n=1_000_000, *, pairs=512, drawn=(16.0,), workers=1, widths=(64, 64)):
    model = ModelConfig(width=widths[0], head_width=widths[1])
    return memory.train_bytes(model, n, memory.BatchShape.expected(n, pairs, drawn), 20, window=10**6, workers=workers)


@pytest.mark.parametrize(
    "held",
    [
        lambda n: memory.synthetic_bytes(memory.Size.made(n, 8, 20)),
        lambda n: memory.inject_bytes(memory.Size.made(n, 8, 20)),
        lambda n: purify(n, attributes=20, values=20 * n),
        lambda n: purify(n, attributes=3_000, values=10 * n),
        lambda n: memory.propagate_bytes(n, 20),
        lambda n: label(dataclasses.replace(PLAN, num_nodes=n), arcs=16 * n, shares=False),
        train,
        lambda n: score(n, 8 * n),
        lambda n: memory.report_bytes(memory.Size.made(n, 8, 20)),
    ],
)
def test_bytes__grow_with_the_graph_and_no_faster(held):
    found = [held(n) for n in SIZES]
    assert found == sorted(found)
    assert found[-1] < 31 * found[-2]


def test_score__on_disk_saves_the_embeddings_and_the_moments_of_edges():
    wide = {"widths": (1_024, 64)}
    assert score(10**6, 10**6, **wide) - score(10**6, 10**6, on_disk=True, **wide) >= (8 * 1_024 - 400) * 10**6
    assert score(1_000, 10**8) - score(1_000, 10**8, on_disk=True) == 8 * 10**8


def test_score__ten_million_nodes_on_disk_are_a_matter_of_nodes():
    held = score(10**7, 77 * 10**6, on_disk=True, widths=(128, 256))
    assert held < 100 * MIB + 380 * 10**7 + 7 * 77 * 10**6


def test_score__ranks_hold_less_and_the_more_of_them_the_less():
    held = [score(10**5, 10**8, num_ranks=num_ranks) for num_ranks in (1, 2, 4)]
    assert held[0] > held[1] >= held[2]


def test_score__ten_million_nodes_are_as_documented():
    held = score(10**7, 8 * 10**7, widths=(128, 256))
    assert 10.2e9 + 0.64e9 < held < 1.1 * (10.2e9 + 0.64e9)  # two layers of embeddings and 8 bytes an edge


def test_label__narrower_blocks_and_fewer_threads_save():
    ways = [WIDE, memory.Searches(2, 32 << 20), memory.Searches(2, 1), memory.Searches(1, 1)]
    held = [label(how=how) for how in ways]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    assert label(shares=False) < held[-1]


def test_train__workers_batches_and_widths_count():
    assert train(workers=0) < train() < train(workers=4)
    assert train() < train(pairs=8_192) < train(pairs=8_192, widths=(256, 256))
    assert train() < train(drawn=(16.0, 16.0))


def test_batch_shape__is_no_larger_than_the_graph():
    shape = memory.BatchShape.expected(1_000, 4_096, [50.0, 50.0])
    assert shape.layers == (1_000, 1_000, 1_000)
    assert memory.BatchShape.expected(1_000, 10, [50.0], whole_graph=True).layers == (1_000, 1_000)


@pytest.fixture(scope="module")
def graph():
    return synthetic.community(600, num_attributes=6, seed=1)


def small(run_dir):
    config = Config(run_dir=str(run_dir))
    config.world.device = "cpu"
    config.hops.num_sources, config.hops.pairs_per_class = 100, 20
    config.model.width = config.model.head_width = 8
    config.posterior.burn_in_steps, config.posterior.num_samples, config.posterior.thin_steps = 4, 2, 1
    return config


def test_run__is_refused_before_anything_is_written(tmp_path):
    config = Config(graph=SyntheticGraph(num_nodes=10**9), run_dir=str(tmp_path))
    config.world.memory_gib = 2
    with pytest.raises(ValueError, match=r"^graph: ") as caught:
        pipeline.run(config)
    needed = "graph: about 245.88 GiB of memory are needed and 2.00 GiB are allowed by world.memory_gib; "
    assert str(caught.value).startswith(needed + "lower graph.num_nodes, ")
    assert not (tmp_path / "graph").exists()


def test_run__says_which_stage_does_not_fit_and_what_to_lower(tmp_path, graph):
    config = small(tmp_path)
    config.world.memory_gib = 46 / 1024
    with pytest.raises(ValueError, match=r"^train-purified: about .* GiB are allowed by world.memory_gib; lower sampl"):
        pipeline.run(config, until="train", graph=graph)
    assert (tmp_path / "labels").is_dir()
    assert not (tmp_path / "train-purified").exists()


def test_run__is_refused_before_labels_are_made_that_could_not_be_scored(tmp_path, graph):
    config = small(tmp_path)
    config.model.width, config.world.memory_gib = 8_192, 70 / 1024
    with pytest.raises(ValueError, match=r"^scores, later: about .* lower model.width, or say"):
        pipeline.run(config, graph=graph)
    assert not (tmp_path / "labels").exists()
    pipeline.run(config, until="label", graph=graph)


def test_run__in_little_memory_trains_one_after_the_other_and_without_workers(tmp_path, graph, caplog):
    config = small(tmp_path)
    config.world.memory_gib = 80 / 1024
    caplog.set_level(logging.INFO)
    pipeline.run(config, until="train", graph=graph)
    assert "train-purified, train-original: one after the other, because together about" in caplog.text
    assert (tmp_path / "train-original" / "samples").is_dir()


def test_finished_run__is_found_again_in_memory_too_small_to_make_it(tmp_path, graph):
    config = small(tmp_path)
    said = pipeline.run(config, until="score", graph=graph)
    config.world.memory_gib = 0.001
    assert pipeline.run(config, until="score", graph=graph).splitlines()[-1] == said.splitlines()[-1]
    assert all(stage["skipped"] for stage in read_stages(tmp_path))


@pytest.mark.parametrize(("spare", "state"), [(0, "disk"), (64 * MIB, "memory")])
def test_score_state__is_chosen_by_what_is_free_and_said(tmp_path, graph, caplog, spare, state):
    config = small(tmp_path)
    config.score.views = ["purified"]
    pipeline.run(config, until="train", graph=graph)
    (_, in_memory), (_, on_disk) = memory.score(config, graph, graph.x)
    assert in_memory.held - on_disk.held == 8 * (graph.num_edges + graph.num_nodes * config.model.width)
    config.world.memory_gib = (on_disk.held + spare) / 2**30
    caplog.set_level(logging.INFO)
    pipeline.run(config, until="score", graph=graph)
    assert ("scores: disk to save memory" in caplog.text) == (state == "disk")
    assert "memory for scores" not in caplog.text


def test_ways_to_label__end_in_the_same_bytes(tmp_path, graph):
    options = label_options(small(tmp_path))
    ways = memory.label(options, graph)
    assert len(ways) > 1
    assert [need.held for _, need in ways] == sorted([need.held for _, need in ways], reverse=True)
    made = []
    for number, how in enumerate((ways[0][0], ways[-1][0])):
        make_labels(graph, tmp_path / str(number), state_bytes=how.state_bytes, **options)
        made.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).iterdir()})
    assert made[0] == made[1]


def test_train__of_fewer_workers_needs_less(tmp_path, graph):
    config = small(tmp_path)
    pipeline.run(config, until="label", graph=graph)
    training = Training(graph, graph.x, open_labels(tmp_path / "labels"), recipe_of(config), seed=0)
    ways = memory.train(config, training)
    assert [workers for workers, _ in ways] == [1, 0]
    held = [need.held for _, need in ways]
    assert held == sorted(held, reverse=True)
    config.posterior.trend_every = 1
    assert memory.train(config, training)[0][1].held > held[0]


def test_purify__foresees_the_features_that_rules_will_make(tmp_path, graph):
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(500, dtype=np.int32), (600, 1)), axis=1)[:, :10], axis=1)
    sparse = SparseRows(np.arange(0, 6_001, 10), columns.ravel(), np.ones(6_000, np.float32), 500)
    config = small(tmp_path)
    dense_need = memory.purify(config, graph)
    config.attributes.pca = 3
    assert memory.purify(config, graph).held == dense_need.held  # no group of columns is reduced
    sparse_graph = type(graph)(graph.indptr, graph.indices, sparse)
    assert memory.purify(config, sparse_graph).held > dense_need.held
