"""Memory that stages are estimated to take, and runs in little memory: what is refused, what is said, same bytes."""

import contextlib
import dataclasses
import itertools
import logging
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hcm_scale.base.memory import anonymous_bytes
from hcm_scale.config import Config, ModelConfig, SyntheticGraph, with_options
from hcm_scale.graph import SparseRows
from hcm_scale.run import memory, pipeline
from hcm_scale.run.stages import RunContext, label_options, recipe_of, stages
from hcm_scale.run.workspace import Workspace, read_stages
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
    ways = [WIDE, memory.Searches(2, 32 << 20), memory.Searches(2, 1)]
    held = [label(how=how) for how in ways]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    assert label(shares=False, how=memory.Searches(1, 1)) < label(shares=False) < held[-1]


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


def allow(config, num_bytes):
    """Allows so many bytes more than this process holds."""
    config.world.memory_gib = (anonymous_bytes() + num_bytes) / 2**30


def test_run__is_refused_before_anything_is_written(tmp_path):
    config = Config(graph=SyntheticGraph(num_nodes=10**9), run_dir=str(tmp_path))
    config.world.memory_gib = 2
    with pytest.raises(ValueError, match=r"GiB more memory are needed and .* left of what is allowed by world.memory"):
        pipeline.run(config)
    with pytest.raises(ValueError, match=r"^graph: about 245.88 GiB .*; lower graph.num_nodes, .*, or allow world.mem"):
        pipeline.run(config, until="ingest")
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("options", "until", "said"),
    [
        ({"model.width": 8_192}, "train", "train-purified: about .* lower sampling.batch_pairs, "),
        ({}, "report", "scores: about .* lower model.width, or allow"),
    ],
)
def test_limit__that_a_later_stage_cannot_keep_is_refused_before_the_first(tmp_path, options, until, said):
    config = with_options(small(tmp_path), options)
    config.graph = SyntheticGraph(num_nodes=600, num_attributes=6)
    allow(config, 100 * MIB)
    with pytest.raises(ValueError, match=said) as caught:
        pipeline.run(config, until=until)
    assert not (tmp_path / "graph").exists()
    assert float(re.search(r"world\.memory_gib=(\d+\.\d\d), the least", str(caught.value))[1]) > config.world.memory_gib


@pytest.mark.gate
def test_smallest_limit__that_a_refusal_names_is_then_accepted_and_kept(tmp_path):
    code = """if True:
        import re, sys
        from hcm_scale.config import Config, SyntheticGraph, with_options
        from hcm_scale.run import pipeline
        options = {"run_dir": sys.argv[1], "world.memory_gib": float(sys.argv[2]), "world.device": "cpu"}
        try:
            pipeline.run(with_options(Config(graph=SyntheticGraph(num_nodes=2000)), options))
        except ValueError as error:
            print(re.search(r"memory_gib=([0-9.]+), the least", str(error))[1])
    """
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    least = subprocess.run([*command, "0.1"], capture_output=True, text=True, check=True).stdout.strip()
    assert 0.3 < float(least) < 0.8
    assert not (tmp_path / "run" / "graph").exists()
    peak = 0
    with subprocess.Popen([*command, least]) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = max(peak, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")))
            time.sleep(0.01)
    assert process.returncode == 0
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    assert 0 < peak <= float(least) * 2**30


@pytest.mark.parametrize("state", ["auto", "memory"])
def test_needs_of_all_stages__grow_with_the_graph(state):
    config = with_options(Config(), {"score.state": state})
    found = [
        memory.least_needs(
            config, label_options(config), recipe_of(config), memory.Size.made(n, 8, 20), None, num_ranks=1
        )
        for n in SIZES
    ]
    assert set(found[0]) == {"purified", "labels", "propagated", "train", "scores", "report"}
    for smaller, larger in itertools.pairwise(found):
        assert all(smaller[name].held <= larger[name].held for name in smaller)
        assert all(smaller[name].mapped < larger[name].mapped for name in smaller)


def test_needs_of_all_stages__are_no_less_than_those_before_each_stage(tmp_path, graph):
    config = small(tmp_path)
    pipeline.run(config, graph=graph)
    least = memory.least_needs(
        config, label_options(config), recipe_of(config), memory.Size.of(graph), graph, num_ranks=1
    )
    training = Training(graph, graph.x, open_labels(tmp_path / "labels"), recipe_of(config), seed=0)
    assert least["train"].held >= memory.train(config, training)[-1][1].held
    assert least["labels"].held >= memory.label(label_options(config), graph)[-1][1].held
    assert least["scores"].held >= memory.score(config, graph, graph.x)[-1][1].held
    assert least["report"].held == memory.report(graph, graph.num_attributes)[-1][1].held


def test_run__in_little_memory_trains_one_after_the_other_and_without_workers(tmp_path, graph, caplog, monkeypatch):
    config = small(tmp_path)
    monkeypatch.setattr(Workspace, "check_all_fit", lambda *_: None)
    allow(config, 110 * MIB)
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


@pytest.mark.parametrize(("spare", "state"), [(16 * MIB, "disk"), (128 * MIB, "memory")])
def test_score_state__is_chosen_by_what_is_free_and_said(tmp_path, graph, caplog, monkeypatch, spare, state):
    config = small(tmp_path)
    config.score.views, config.model.num_layers, config.model.width = ["purified"], 1, 8_192
    pipeline.run(config, until="train", graph=graph)
    (_, in_memory), (_, on_disk) = memory.score(config, graph, graph.x)
    assert in_memory.held - on_disk.held == 8 * (graph.num_edges + graph.num_nodes * config.model.width)
    monkeypatch.setattr(Workspace, "check_all_fit", lambda *_: None)  # of which stages is asked elsewhere
    allow(config, on_disk.held + spare)
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


def test_graph_in_memory__of_many_sparse_columns_is_judged_by_the_features_that_they_become(tmp_path, graph):
    wide = SparseRows(np.arange(601), np.arange(600, dtype=np.int32), np.ones(600, np.float32), 200_000)
    given = dataclasses.replace(graph, x=wide, columns=())
    context = RunContext(small(tmp_path), Workspace(tmp_path), "cpu", given)
    assert max(need.held for need in context.least_needs(list(stages(context))).values()) < 256 * MIB
