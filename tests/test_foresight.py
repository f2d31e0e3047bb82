"""Runs in little memory: what is refused, what is said, and that a frugal way ends in the same bytes."""

import logging

import numpy as np
import pytest

from hcm_scale.config import Config, SyntheticGraph
from hcm_scale.features.auto import expected_width
from hcm_scale.graph.store import SparseRows
from hcm_scale.run import memory, pipeline
from hcm_scale.run.stages import label_options, recipe_of
from hcm_scale.run.workspace import read_stages
from hcm_scale.shards import open_labels
from hcm_scale.stages import label
from hcm_scale.synthetic import families as synthetic

MIB = 2**20


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
    with pytest.raises(ValueError, match=r"^scores, later: about .* lower score.chunk_edges or model.width, or say"):
        pipeline.run(config, graph=graph)
    assert not (tmp_path / "labels").exists()
    pipeline.run(config, until="label", graph=graph)


def test_run__in_little_memory_trains_one_after_the_other_and_without_workers(tmp_path, graph, caplog):
    config = small(tmp_path)
    config.sampling.workers = 64
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
        label.label(graph, tmp_path / str(number), state_bytes=how.state_bytes, **options)
        made.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).iterdir()})
    assert made[0] == made[1]


def test_train__of_fewer_workers_needs_less(tmp_path, graph):
    config = small(tmp_path)
    config.sampling.workers = 3
    pipeline.run(config, until="label", graph=graph)
    parts = recipe_of(config), graph, graph.x, open_labels(tmp_path / "labels")
    ways = memory.train(config, *parts)
    assert [workers for workers, _ in ways] == [3, 2, 1, 0]
    held = [need.held for _, need in ways]
    assert held == sorted(held, reverse=True)
    config.posterior.trend_every = 1
    assert memory.train(config, *parts)[0][1].held > held[0]


def test_purify__foresees_the_features_that_rules_will_make(tmp_path, graph):
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(500, dtype=np.int32), (600, 1)), axis=1)[:, :10], axis=1)
    sparse = SparseRows(np.arange(0, 6_001, 10), columns.ravel(), np.ones(6_000, np.float32), 500)
    config = small(tmp_path)
    dense_need = memory.purify(config, graph)
    config.attributes.pca = 3
    assert memory.purify(config, graph).held == dense_need.held  # no group of columns is reduced
    sparse_graph = type(graph)(graph.indptr, graph.indices, sparse)
    assert expected_width(sparse, None, ()) == 20
    assert memory.purify(config, sparse_graph).held > dense_need.held
