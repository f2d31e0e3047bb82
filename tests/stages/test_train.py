"""The train stage, whole: it learns, it resumes exactly after kill -9, it stops on NaN, it never mixes runs."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hcm_scale.base.files import FolderError, hash_file
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.posterior.loop import NonFiniteLossError
from hcm_scale.posterior.samples import open_samples
from hcm_scale.sampling.pairs import pair_batches
from hcm_scale.shards import open_labels
from hcm_scale.stages.label import label
from hcm_scale.stages.recipe import Batching, ChainPlan, Langevin, Network, Recipe
from hcm_scale.stages.train import Ranks, Record, train
from hcm_scale.stages.train_batches import host_batches

NUM_NODES = 150
RECIPE = Recipe(
    network=Network(width=16, head_width=16),
    batching=Batching(batch_pairs=128, fan_outs=(5,)),
    plan=ChainPlan(step_size=0.02, burn_in_steps=6, thin_steps=4, num_samples=3),
)
RECORD = Record(checkpoint_every=5, log_every=4)


def make_graph(directed: bool = False) -> Graph:
    """A ring with short chords: hops 1 .. 4 all occur, and place along the ring can be learned from x."""
    around = np.arange(NUM_NODES)
    steps = (1, 2) if directed else (-2, -1, 1, 2)
    rows = np.sort(np.stack([(around + step) % NUM_NODES for step in steps], 1), axis=1)
    indptr = np.arange(0, rows.size + 1, len(steps), dtype=np.int64)
    return Graph(indptr, rows.ravel().astype(np.int32), directed=directed)


def make_features() -> np.ndarray:
    angle = 2 * np.pi * np.arange(NUM_NODES) / NUM_NODES
    waves = [wave(k * angle) for k in (1, 2, 5) for wave in (np.sin, np.cos)]
    return np.stack(waves, 1).astype(np.float32)


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("labels") / "labels"
    label(make_graph(), out)
    return out


def run(labels: Path, out: Path, recipe: Recipe = RECIPE, **options):
    return train(make_graph(), make_features(), labels, out, recipe=recipe, **{"record": RECORD, **options})


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def sample_hashes(out: Path) -> dict[str, str]:
    return {path.name: hash_file(path) for path in sorted((out / "samples").glob("*.safetensors"))}


@pytest.fixture(scope="module")
def finished(labels, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run(labels, out)
    return out


def test_train__writes_samples_that_rebuild_the_model(finished):
    samples = open_samples(finished / "samples")
    assert len(samples) == 3
    model = HopModel(**samples.model)
    for sample in samples:
        model.load_state_dict(sample)
    x = np.load(finished / "propagated" / "x.npy")
    graph = make_graph()
    assert embed_graph(model, graph.indptr, graph.indices, x, propagated=True).isfinite().all()


def test_train__writes_metrics(finished):
    lines = metrics(finished)
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 18]
    assert set(lines[0]) == {
        "step", "epoch", "loss", "accuracy", "num_pairs", "step_size", "pairs_per_second", "rss_bytes",
    }  # fmt: skip
    assert len(lines[0]["accuracy"]) == 4
    assert all(line["num_pairs"] > 0 and line["rss_bytes"] > 0 for line in lines)


def test_train__learns(labels, tmp_path):
    run(labels, tmp_path, replace(RECIPE, plan=replace(RECIPE.plan, burn_in_steps=160)), record=Record())
    lines = metrics(tmp_path)
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert min(lines[-1]["accuracy"]) > 0.5


def test_train__returns_a_finished_folder_as_it_is(labels, finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert len(run(labels, finished)) == 3
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}


def test_train__starts_afresh_under_another_recipe_and_touches_nothing_else(labels, tmp_path):
    run(labels, tmp_path)
    (tmp_path / "samples" / "notes.txt").write_text("mine")
    before = sample_hashes(tmp_path)
    shorter = replace(RECIPE, plan=replace(RECIPE.plan, num_samples=2))
    assert len(run(labels, tmp_path, shorter)) == 2
    assert sample_hashes(tmp_path) == {name: value for name, value in before.items() if "00002" not in name}
    assert (tmp_path / "samples" / "notes.txt").read_text() == "mine"
    assert metrics(tmp_path)[-1]["step"] == shorter.plan.num_steps


def chord_less() -> Graph:
    """Another graph over the same nodes: the ring alone."""
    around = np.arange(NUM_NODES)
    rows = np.sort(np.stack([(around - 1) % NUM_NODES, (around + 1) % NUM_NODES], 1), axis=1)
    return Graph(np.arange(0, rows.size + 1, 2, dtype=np.int64), rows.ravel().astype(np.int32))


@pytest.mark.parametrize("change", ["seed", "features", "structure", "labels"])
def test_train__does_not_take_samples_of_other_input_for_its_own(labels, finished, tmp_path, change):
    parts = {"structure": make_graph(), "features": make_features(), "labels": labels, "seed": 0}
    others = {"structure": chord_less(), "features": 2 * make_features(), "seed": 1}
    if change == "labels":
        others["labels"] = label(make_graph(), tmp_path / "labels", pairs_per_class=5).folder
    shutil.copytree(finished, tmp_path / "out")
    train(**(parts | {change: others[change]}), out=tmp_path / "out", recipe=RECIPE, record=RECORD)
    made, before = sample_hashes(tmp_path / "out"), sample_hashes(finished)
    assert all(made[name] != before[name] for name in before)


@pytest.mark.parametrize("workers", [0, 2])
def test_train__does_not_depend_on_the_workers(labels, finished, tmp_path, workers):
    run(labels, tmp_path, workers=workers)
    assert sample_hashes(tmp_path) == sample_hashes(finished)


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_train as t

from hcm_scale.stages import train

whole = train.run_chain

def cut_short(*arguments, **options):
    for i, step in enumerate(whole(*arguments, **options)):
        if i == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield step

train.run_chain = cut_short
t.run(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_train__killed_at_several_steps_ends_in_the_same_bytes(labels, finished, tmp_path):
    code = CHILD.format(tests=str(Path(__file__).parent))
    for steps in (7, 9):  # two steps after a checkpoint; then between a sample and the checkpoint that counts it
        command = [sys.executable, "-c", code, str(labels), str(tmp_path), str(steps)]
        child = subprocess.run(command, timeout=120, capture_output=True, text=True)
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert not (tmp_path / "samples" / "manifest.json").exists()
    run(labels, tmp_path)
    assert sample_hashes(tmp_path) == sample_hashes(finished)
    logged, expected = metrics(tmp_path), metrics(finished)
    assert [line["step"] for line in logged] == [line["step"] for line in expected]
    newest = "step-000000015.safetensors"
    assert hash_file(tmp_path / "checkpoints" / newest) == hash_file(finished / "checkpoints" / newest)


def test_train__stops_on_a_non_finite_loss_and_keeps_the_last_good_checkpoint(labels, tmp_path):
    hot = replace(RECIPE, langevin=Langevin(kernel="sgld", temperature=1e30))
    with pytest.raises(NonFiniteLossError, match=r"step \d+ \(epoch \d+\).*temperature=1e\+30"):
        run(labels, tmp_path, hot, record=Record(checkpoint_every=1, log_every=100))
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        from safetensors.torch import load_file

        assert load_file(path)["parameters"].isfinite().all()
    assert not (tmp_path / "samples" / "manifest.json").exists()


@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, network=replace(RECIPE.network, num_layers=1)),
        replace(RECIPE, network=replace(RECIPE.network, num_layers=4)),
        replace(RECIPE, network=replace(RECIPE.network, width=4)),
        replace(RECIPE, batching=replace(RECIPE.batching, exact_first_hop=False)),
        replace(RECIPE, batching=replace(RECIPE.batching, batch_pairs=None, fan_outs=(None,), hub_cap=None)),
        replace(RECIPE, langevin=Langevin(kernel="adam")),
        replace(RECIPE, plan=replace(RECIPE.plan, schedule="cyclical", cycle_steps=5)),
    ],
    ids=["depth-1", "depth-4", "narrow", "sampled-first-hop", "full-batch", "adam", "cyclical"],
)
def test_train__runs_every_kind_of_recipe(labels, tmp_path, recipe):
    assert len(run(labels, tmp_path, recipe)) == 3
    assert (tmp_path / "propagated").exists() == recipe.batching.exact_first_hop


def test_train__runs_on_a_directed_graph(tmp_path):
    graph = make_graph(directed=True)
    label(graph, tmp_path / "labels")
    samples = train(graph, make_features(), tmp_path / "labels", tmp_path / "run", recipe=RECIPE, record=RECORD)
    assert samples.model["directed"] is True


def test_train__logs_a_trend_every_k_samples(labels, tmp_path):
    seen = []

    def trend(folder: Path, num_samples: int) -> dict[str, float]:
        seen.append((num_samples, len(list(folder.glob("*.safetensors")))))
        return {"auc": 0.5 + num_samples / 10}

    run(labels, tmp_path, record=replace(RECORD, trend=trend, trend_every=2))
    assert seen == [(2, 2)]
    (line,) = [line for line in metrics(tmp_path) if "auc" in line]
    assert line == {"step": 14, "num_samples": 2, "auc": 0.7}


def test_train__writes_tensorboard_where_asked(labels, tmp_path):
    pytest.importorskip("tensorboard")
    run(labels, tmp_path, record=replace(RECORD, tensorboard=True))
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_samples__refuse_damage_and_unfinished_folders(labels, tmp_path):
    run(labels, tmp_path)
    samples = open_samples(tmp_path / "samples")
    (tmp_path / "samples" / "sample-00001.safetensors").write_bytes(b"?")
    with pytest.raises(FolderError, match="sample-00001"):
        list(samples)
    with pytest.raises(IndexError):
        samples[3]
    (tmp_path / "samples" / "manifest.json").unlink()
    with pytest.raises(FolderError, match="unfinished"):
        open_samples(tmp_path / "samples")


def test_train__refuses_what_does_not_fit(labels, tmp_path):
    graph, x = make_graph(), make_features()
    with pytest.raises(ValueError, match="labels are over 150 nodes, the graph has 150 and the features 149 rows"):
        train(graph, x[:-1], labels, tmp_path)
    x[3, 0] = np.inf
    with pytest.raises(ValueError, match="first in row 3"):
        train(graph, x, labels, tmp_path)
    with pytest.raises(ValueError, match="log_every=0"):
        Record(log_every=0)
    with pytest.raises(ValueError, match=r"fan_outs=\[5, 5\]"):
        run(labels, tmp_path, replace(RECIPE, batching=replace(RECIPE.batching, fan_outs=(5, 5))))


def test_ranks__two_that_reduce_their_gradients_equal_one(labels, tmp_path):
    """Two chains in step, each on its half of every batch, end where one on whole batches does, up to rounding.

    One layer on an exact first hop sums over no neighbours, so the two threads do not meet in numba's pool.
    """
    recipe = replace(RECIPE, network=replace(RECIPE.network, num_layers=1))
    meet, box = threading.Barrier(2, timeout=60), {}

    def member(rank: int) -> None:
        def add_up(vector: torch.Tensor) -> torch.Tensor:
            box[rank] = vector
            meet.wait()
            total = box[0] + box[1]
            meet.wait()
            return total

        run(labels, tmp_path / "two", recipe, ranks=Ranks(rank, 2, add_up, meet.wait), workers=0)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = zip(open_samples(tmp_path / "two" / "samples"), run(labels, tmp_path / "one", recipe), strict=True)
    for sample, expected in pairs:
        for name, value in sample.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-2, atol=1e-3)


def test_seed__moves_first_weights_and_neighbours(labels, tmp_path):
    assert run(labels, tmp_path, seed=5).model["seed"] == 5
    recipe = replace(RECIPE, batching=replace(RECIPE.batching, fan_outs=(2,)))
    pairs = next(pair_batches(open_labels(labels), batch_pairs=128, sampling_ratio=0.3, seed=0))
    how = {"workers": 0, "pin": False}
    made = [next(host_batches(make_graph(), make_features(), recipe, iter([pairs]), seed=s, **how)) for s in (0, 1)]
    assert not torch.equal(*(batch.nodes for batch in made))
