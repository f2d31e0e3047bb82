"""The whole walk on a small graph: what is made, what is kept, what an option changes."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hcm_scale import plugins
from hcm_scale.base import console
from hcm_scale.base.memory import OutOfMemoryError
from hcm_scale.base.signals import Stopped
from hcm_scale.base.threads import kernel_threads, torch_threads
from hcm_scale.config import Config, SyntheticGraph
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.run.stages import RunContext, stages
from hcm_scale.run.workspace import Workspace
from hcm_scale.stages import edges, score
from hcm_scale.stages.purify import open_purified
from hcm_scale.sweep.jobs import read_job
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import inject


@pytest.fixture(scope="module")
def graph() -> Graph:
    return inject(
        synthetic.community(600, num_attributes=6, seed=1),
        num_cliques=2,
        clique_size=8,
        seed=1,
        num_attribute_anomalies=None,
    )


def small(run_dir: Path, **options) -> Config:
    config = Config(run_dir=str(run_dir))
    config.world.device = "cpu"
    config.hops.num_sources, config.hops.pairs_per_class = 200, 40
    config.sampling.batch_pairs = 512
    config.score.views = ["purified"]
    config.model.width, config.model.head_width = 16, 16
    config.posterior.burn_in_steps, config.posterior.num_samples, config.posterior.thin_steps = 12, 3, 2
    config.score.views = ["purified"]
    for key, value in options.items():
        room, name = key.split("__")
        setattr(getattr(config, room), name, value)
    return config


def skipped(run_dir: Path) -> dict[str, bool]:
    return {stage["name"]: stage["skipped"] for stage in json.loads((run_dir / "stages.json").read_text())["stages"]}


def test_run__makes_every_stage_and_says_where(tmp_path, graph):
    said = pipeline.run(small(tmp_path / "run"), graph=graph)
    assert "ROC-AUC by strange" in said
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    table = pq.read_table(tmp_path / "run" / "scores" / "scores.parquet")
    assert table["rank"].to_pylist() == list(range(1, 601))
    assert str(tmp_path / "run") in said


def test_run__again_keeps_every_stage_and_gives_the_same_scores(tmp_path, graph):
    pipeline.run(small(tmp_path / "run"), graph=graph)
    before = (tmp_path / "run" / "scores" / "scores.parquet").read_bytes()
    pipeline.run(small(tmp_path / "run"), graph=graph)
    assert all(skipped(tmp_path / "run").values())
    pipeline.run(small(tmp_path / "other"), graph=graph)
    assert (tmp_path / "other" / "scores" / "scores.parquet").read_bytes() == before


def test_changed_option__makes_what_it_touches_and_what_follows(tmp_path, graph):
    pipeline.run(small(tmp_path), graph=graph)
    pipeline.run(small(tmp_path, score__trim=0.5), graph=graph)
    kept = skipped(tmp_path)
    assert [name for name, was_kept in kept.items() if not was_kept] == ["scores", "cases", "report"]
    pipeline.run(small(tmp_path, purify__ratio=0.1), graph=graph)
    kept = skipped(tmp_path)
    assert [name for name, was_kept in kept.items() if was_kept] == ["graph"]


def test_two_views__are_trained_scored_and_added(tmp_path, graph):
    pipeline.run(small(tmp_path, score__views=["purified", "original"]), graph=graph)
    assert {"train-purified", "train-original", "scores"} <= set(skipped(tmp_path))
    assert 0.0 <= score.open_scores(tmp_path / "scores").stability <= 1.0


def test_summary__says_where_attributes_say_little_also_of_a_kept_run(tmp_path, caplog):
    told, hint = synthetic.community(1000, num_attributes=8, seed=1), "The attributes say little about who is joined"
    assert hint not in pipeline.run(small(tmp_path / "told"), graph=told)
    noise = dataclasses.replace(told, x=np.random.default_rng(0).normal(size=told.x.shape).astype(np.float32))
    said = [pipeline.run(small(tmp_path / "noise"), graph=noise).count(hint) for _ in range(2)]
    assert said == [0, 1]  # the first has told it as it found it
    assert caplog.text.count(hint) == 1


def test_until__stops_there(tmp_path, graph):
    said = pipeline.run(small(tmp_path), until="label", graph=graph)
    assert set(skipped(tmp_path)) == {"graph", "purified", "labels"}
    assert "goes on to the report" in said


def test_explain__speaks_of_the_node(tmp_path, graph):
    config = small(tmp_path)
    pipeline.run(config, graph=graph)
    said = FinishedRun(config.run_dir).explained_text(["17"])
    assert "rank" in said
    assert "neighbour" in said
    with pytest.raises(ValueError, match="node='600' is not in this graph"):
        FinishedRun(config.run_dir).explained_text(["600"])


def test_explain__does_not_mix_the_folders_of_two_runs(tmp_path, graph):
    pipeline.run(small(tmp_path), graph=graph)
    other = small(tmp_path, purify__ratio=0.6)
    pipeline.run(other, until="purify", graph=graph)
    with pytest.raises(ValueError, match="lists no scores: finish the run in run_dir="):
        FinishedRun(other.run_dir).explained_text(["17"])


def test_job_of_a_sweep__that_fails_is_not_credited_with_earlier_scores(tmp_path, graph):
    good, bad = small(tmp_path / "job"), small(tmp_path / "job", inject__num_attribute_anomalies=10_000)
    good.share_dir = bad.share_dir = str(tmp_path / "stages")
    pipeline.run(good, graph=graph)
    assert not read_job(tmp_path / "job", "job").error
    with pytest.raises(ValueError, match="num_attribute_anomalies"):
        pipeline.run(bad, graph=graph)
    assert "stopped after nothing" in read_job(tmp_path / "job", "job").error


@pytest.mark.parametrize("slip", [{"inject__num_attribute_anomalies": 10_000}, {"hops__classes": 12}])
def test_run__that_is_refused_leaves_the_finished_one_as_it_was(tmp_path, graph, slip):
    config = small(tmp_path)
    pipeline.run(config, graph=graph)
    lists = [(tmp_path / name).read_bytes() for name in ("config.json", "stages.json")]
    said = FinishedRun(config.run_dir).explained_text(["17"])
    with pytest.raises(ValueError, match=next(iter(slip)).split("__")[1]):
        pipeline.run(small(tmp_path, **slip), graph=graph)
    assert [(tmp_path / name).read_bytes() for name in ("config.json", "stages.json")] == lists
    assert FinishedRun(config.run_dir).explained_text(["17"]) == said
    pipeline.run(config, graph=graph)
    assert all(skipped(tmp_path).values())


@pytest.mark.parametrize("ends", [Stopped(signal.SIGINT), OutOfMemoryError("memory"), ValueError("refused")])
def test_run__that_ends_after_it_replaced_stages_leaves_the_finished_one_to_be_read(tmp_path, graph, monkeypatch, ends):
    config, other = small(tmp_path), small(tmp_path, purify__ratio=0.6)
    pipeline.run(config, graph=graph)
    said = FinishedRun(config.run_dir).explained_text(["17"])
    with monkeypatch.context() as patch:
        patch.setattr(score, "score", lambda *_, **__: (_ for _ in ()).throw(ends))
        with pytest.raises(type(ends)):
            pipeline.run(other, graph=graph)
    assert FinishedRun(config.run_dir).explained_text(["17"]) == said
    pipeline.run(other, graph=graph)
    assert skipped(tmp_path)["graph"]
    assert FinishedRun(config.run_dir).explained_text(["17"]) != said
    assert not list((tmp_path / "records").glob("*.before*"))


_KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_pipeline import pipeline, score, small, graph
from hcm_scale.graph import Graph
config = small({run_dir!r}, score__trim=0.5)
score.score = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
pipeline.run(config, graph=Graph.open({run_dir!r} + "/../given"))
"""


def test_killed_run__leaves_the_finished_one_to_be_read(tmp_path, graph):
    config = small(tmp_path / "run")
    pipeline.run(config, graph=graph.save(tmp_path / "given"))
    said = FinishedRun(config.run_dir).explained_text(["17"])
    code = _KILLED.format(tests=str(Path(__file__).parent), run_dir=str(tmp_path / "run"))
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "scores" / "scores.parquet").exists()
    assert FinishedRun(config.run_dir).explained_text(["17"]) == said


def test_reader__sees_the_finished_run_while_the_same_words_run_again(tmp_path, graph):
    config, ended, answers = small(tmp_path), threading.Event(), []
    pipeline.run(config, graph=graph)
    said = FinishedRun(config.run_dir).explained_text(["17"])

    def read() -> None:
        while not ended.is_set():
            answers.append(FinishedRun(config.run_dir).explained_text(["17"]))

    with ThreadPoolExecutor(1) as readers:
        reading = readers.submit(read)
        for _ in range(4):
            pipeline.run(config, graph=graph)
        ended.set()
        reading.result()
    assert set(answers) == {said}


def test_threads__beyond_those_of_numba_are_warned_about_and_do_not_stop_a_run(tmp_path, graph, caplog):
    pipeline.run(small(tmp_path, world__threads=numba.config.NUMBA_NUM_THREADS + 1), until="ingest", graph=graph)
    assert f"world.threads={numba.config.NUMBA_NUM_THREADS + 1}" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_threads__are_those_of_the_caller_again_after_a_run_or_a_plan(tmp_path, graph, fails):
    def threads() -> tuple[int, int]:
        return numba.get_num_threads(), torch.get_num_threads()

    seen: list[tuple[int, int]] = []
    config = small(tmp_path, world__threads=1, inject__num_attribute_anomalies=10_000 if fails else 0)
    refused = pytest.raises(ValueError, match="num_attribute_anomalies") if fails else contextlib.nullcontext()
    with kernel_threads(2), torch_threads(2):
        with refused, console.showing_progress(False, lambda step: seen.append(threads())):
            pipeline.run(config, until="purify", graph=graph)
        assert threads() == (2, 2)
        pipeline.plan_text(small(tmp_path / "next", world__threads=1))
        assert threads() == (2, 2)
    assert fails or set(seen) == {(1, 1)}


def test_explain__before_a_run_says_so(tmp_path):
    config = small(tmp_path / "nothing")
    with pytest.raises(ValueError, match="nothing is not there"):
        FinishedRun(config.run_dir).explained_text(["1"])


def test_bad_value__stops_before_anything_is_written(tmp_path, graph):
    with pytest.raises(ValueError, match=r"purify\.ratio=2"):
        pipeline.run(small(tmp_path / "run", purify__ratio=2), graph=graph)
    assert not (tmp_path / "run").exists()


def test_missing_gpu__is_named(tmp_path, graph):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    config = small(tmp_path)
    config.world.device = "cuda"
    with pytest.raises(ValueError, match=r"world\.device=cuda"):
        pipeline.run(config, graph=graph)


def test_source__is_read_from_the_configuration(tmp_path):
    config = small(tmp_path)
    config.graph = SyntheticGraph(num_nodes=300, num_attributes=4)
    pipeline.run(config, until="purify")
    assert Graph.open(tmp_path / "graph").num_nodes == 300


def test_seed__changes_labels_that_are_drawn_and_no_others(tmp_path, graph):
    def num_different(**options) -> int:
        found = set()
        for seed in (0, 1):
            config = small(tmp_path, **options)
            config.seed = seed
            found.add(keys(config, graph)["labels"])
        return len(found)

    assert num_different() == 2
    assert num_different(hops__num_sources=None) == 2
    assert num_different(hops__num_sources=None, hops__pairs_per_class=None) == 1


def keys(config: Config, graph: Graph, world: World = ALONE) -> dict[str, str]:
    """What each stage is known by; nothing is made."""
    found: dict[str, str] = {}
    for stage in stages(RunContext(config, Workspace(Path("nowhere"), world=world), "cpu", graph)):
        found[stage.name] = stage.key(found)
    return found


FIRST_CHANGED = {  # the first stage that another value of an option makes anew; None: it decides no result
    "inject": {
        "graph": {"num_cliques": 2, "num_attribute_anomalies": 3, "seed": 1},
    },
    "attributes": {"purified": {"scale": "normal", "pca": 2}},
    "purify": {"purified": {"similarity": "cosine", "ratio": 0.1, "attributes": "raw"}},
    "hops": {"labels": {"classes": 3, "num_sources": 100, "pairs_per_class": 10}},
    "sampling": {
        "train-purified": {
            "batch_pairs": 64,
            "ratio": 0.5,
            "fan_out": ["10"],
            "hub_cap": 16,
            "backend": "torch_sparse",
        },
    },
    "model": {"train-purified": {"encoder": "sage", "num_layers": 1, "width": 32, "head_width": 32}},
    "posterior": {
        "train-purified": {
            "kernel": "adam",
            "schedule": "constant",
            "step_size": 0.03,
            "prior": 1e-3,
            "temperature": 0.0,
            "burn_in_steps": 13,
            "num_samples": 4,
            "thin_steps": 3,
        },
        None: {
            "checkpoint_every": 7,
        },
    },
    "score": {
        "propagated-original": {"views": ["original"]},
        "scores": {
            "hop": "argmax",
            "trim": 0.0,
            "far_share": 0.3,
            "rank_by": "ahp",
            "fdr": 0.2,
            "precision": "bfloat16",
            "evidence": ["number"],
        },
    },
}


def number(graph, features):
    """A kind of evidence."""
    return np.arange(graph.num_nodes)


@pytest.mark.parametrize("room", FIRST_CHANGED)
def test_every_option_of_a_room__changes_the_keys_of_what_it_decides(tmp_path, graph, room):
    """An option that no key knows would be ignored silently on the next run."""
    plugins.register("evidence", number)
    start = {"inject__num_cliques": 1} if room == "inject" else {}
    before = keys(small(tmp_path, **start), graph)
    changes = FIRST_CHANGED[room]
    fields = {field.name for field in dataclasses.fields(getattr(Config(), room))}
    assert {name for options in changes.values() for name in options} == fields
    for first, options in changes.items():
        for name, value in options.items():
            after = keys(small(tmp_path, **(start | {f"{room}__{name}": value})), graph)
            changed = [stage for stage, key in after.items() if before.get(stage) != key]
            assert changed[:1] == [first] * (first is not None), f"{room}.{name}"


def test_seed__changes_every_stage_that_draws(tmp_path, graph):
    config = small(tmp_path)
    before = keys(config, graph)
    config.seed = 1
    after = keys(config, graph)
    assert {stage for stage in after if after[stage] != before[stage]} == {
        "labels",
        "train-purified",
        "scores",
        "cases",
        "report",
    }


def test_ranks__change_no_key(tmp_path, graph):
    before, after = (keys(small(tmp_path), graph, World(size=size)) for size in (1, 2))
    assert before == after


def test_two_views__are_known_by_the_options_of_both(tmp_path, graph):
    both = {"score__views": ["purified", "original"]}
    before, after = keys(small(tmp_path, **both), graph), keys(small(tmp_path, score__far_share=0.3, **both), graph)
    assert [stage for stage in after if after[stage] != before[stage]][-3:] == ["scores", "cases", "report"]


def test_scores__find_the_planted_nodes_better_than_chance(tmp_path, graph):
    config = small(tmp_path, posterior__burn_in_steps=150, model__width=32)
    pipeline.run(config, until="score", graph=graph)
    table = pq.read_table(tmp_path / "scores" / "scores.parquet")
    rank, y = table["rank"].to_numpy(), table["y"].to_numpy()
    assert np.mean(rank[y == 1]) < np.mean(rank[y == 0]) * 0.7


def test_seed__moves_the_training_also_where_every_pair_is_kept(tmp_path, graph):
    config = small(tmp_path, hops__num_sources=None, hops__pairs_per_class=None)
    before, config.seed = keys(config, graph), 1
    assert keys(config, graph)["train-purified"] != before["train-purified"]


def test_view__decides_the_graph_of_the_encoder(tmp_path, graph):
    pipeline.run(small(tmp_path, score__views=["purified", "original"], purify__ratio=0.5), until="train", graph=graph)
    propagated = [np.load(tmp_path / f"propagated-{view}" / "x.npy") for view in ("purified", "original")]
    assert not np.array_equal(*propagated)


def test_closure__reaches_the_sum_of_two_views(tmp_path, graph):
    found = []
    for share in (0.2, 0.9):
        config = small(tmp_path, score__views=["purified", "original"], score__far_share=share)
        pipeline.run(config, until="score", graph=graph)
        found.append(FinishedRun(tmp_path).table.sort_by("node")["closure"].to_numpy())
    assert not np.array_equal(*found)


FORMATS = {  # where the version of each stage stands
    "graph": "hcm_scale.graph.store.FORMAT",
    "purified": "hcm_scale.stages.purify.FORMAT",
    "labels": "hcm_scale.stages.label.FORMAT",
    "propagated-purified": "hcm_scale.features.propagate.FORMAT",
    "train-purified": "hcm_scale.stages.train.FORMAT",
    "scores": "hcm_scale.score.result.FORMAT",
    "cases": "hcm_scale.stages.cases.FORMAT",
    "report": "hcm_scale.stages.report.FORMAT",
}


def test_every_stage__has_a_version_that_its_key_holds(tmp_path, graph, monkeypatch):
    before = keys(small(tmp_path), graph)
    assert before.keys() == FORMATS.keys()
    for stage, place in FORMATS.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, 99)
            after = keys(small(tmp_path), graph)
        assert next(name for name in after if after[name] != before[name]) == stage


def test_graph__is_made_anew_when_sources_are_read_another_way(tmp_path, graph, monkeypatch):
    before = keys(small(tmp_path), graph)
    monkeypatch.setattr("hcm_scale.stages.ingest.FORMAT", 99)
    assert keys(small(tmp_path), graph)["graph"] != before["graph"]


def test_attributes__are_told_in_the_log_the_manifest_and_the_report(tmp_path, graph, caplog):
    caplog.set_level("INFO")
    pipeline.run(small(tmp_path), graph=graph)
    assert "6 attributes become 6 features by rule (attributes.scale=auto)" in caplog.text
    told = json.loads((tmp_path / "purified" / "manifest.json").read_text())["features"]["columns"]
    assert [row["rule"] for row in told] == ["standard"] * 6
    assert json.loads((tmp_path / "report" / "report.json").read_text())["attributes"] == told
    assert 'id="attributes"' in (tmp_path / "report" / "report.html").read_text()


def test_attributes__that_are_constant_leave_the_features_and_stay_in_explanations(tmp_path, graph):
    x = np.hstack([np.ones((graph.num_nodes, 1)), graph.x]).astype(np.float32)
    config = small(tmp_path)
    pipeline.run(config, graph=dataclasses.replace(graph, x=x, columns=tuple("abcdefg")))
    assert open_purified(tmp_path / "purified", Graph.open(tmp_path / "graph")).features.shape == (600, 6)
    assert "rank" in FinishedRun(config.run_dir).explained_text(["17"])


@pytest.mark.parametrize("scale", ["auto", "none"])
def test_attributes__that_are_all_constant_are_refused_as_none_are(tmp_path, graph, scale):
    config = small(tmp_path)
    config.attributes.scale = scale
    constant = np.full_like(graph.x, 3)
    with pytest.raises(
        ValueError, match=r"^all attributes are constant .* graph\.include=\[\] .* graph\.featureless=degree"
    ):
        pipeline.run(config, graph=dataclasses.replace(graph, x=constant))
    with pytest.raises(ValueError, match=r"^all nodes have the same degree, .* log1p\(degree\), is constant"):
        pipeline.run(config, graph=dataclasses.replace(graph, x=constant[:, :1], columns=("log1p(degree)",)))


def test_jobs_of_a_sweep__share_the_propagated_features(tmp_path, graph):
    folders = []
    for seed in (0, 1):
        config = small(tmp_path / f"seed-{seed}")
        config.seed, config.share_dir = seed, str(tmp_path / "stages")
        pipeline.run(config, until="train", graph=graph)
        folders.append((tmp_path / f"seed-{seed}" / "propagated-purified").resolve())
    assert folders[0] == folders[1]
    assert len(list((tmp_path / "stages").glob("train-purified-*"))) == 2
    assert len(list((tmp_path / "stages").rglob("x.npy"))) == 2  # of the graph, propagated


def test_scores__begin_with_the_propagated_features_of_training(tmp_path, graph, monkeypatch):
    seen, whole = [], edges.embed_samples
    watched = lambda *a, **options: seen.append((a[3], options["propagated"])) or whole(*a, **options)  # noqa: E731
    monkeypatch.setattr(edges, "embed_samples", watched)
    pipeline.run(small(tmp_path), until="score", graph=graph)
    ((x, propagated),) = seen
    assert propagated
    assert np.array_equal(x, np.load(tmp_path / "propagated-purified" / "x.npy"))


def test_encoder_that_begins_at_x__needs_no_propagated_features(tmp_path, graph):
    pipeline.run(small(tmp_path, model__encoder="sage"), until="score", graph=graph)
    assert not (tmp_path / "propagated-purified").exists()


def test_gpu__has_no_stage_for_propagated_features_and_the_keys_of_a_cpu(tmp_path, graph):
    config, there = small(tmp_path), {}
    for stage in stages(RunContext(config, Workspace(Path("nowhere")), "cuda", graph)):
        there[stage.name] = stage.key(there)
    here = keys(config, graph)
    assert here.pop("propagated-purified")
    assert list(here.items()) == list(there.items())


@pytest.mark.parametrize("scale", ["auto", "normal", "none"])
def test_half_precision__is_read_as_what_it_holds(tmp_path, graph, scale):
    half = graph.x.astype(np.float16)
    for name, x in (("half", half), ("whole", half.astype(np.float32))):
        config = small(tmp_path / name, attributes__scale=scale)
        pipeline.run(config, graph=dataclasses.replace(graph, x=x))
        assert "rank" in FinishedRun(config.run_dir).explained_text(["17"])
    assert (tmp_path / "half/graph/x.npy").stat().st_size * 1.9 < (tmp_path / "whole/graph/x.npy").stat().st_size
    tables = [FinishedRun(tmp_path / name).table for name in ("half", "whole")]
    assert tables[0].equals(tables[1])
