"""The train stage, whole: it learns, it resumes exactly after kill -9, it stops on NaN, it never mixes runs."""

import json
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
from hcm_scale.base.spmm import propagate
from hcm_scale.base.threads import torch_threads
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.posterior import loop
from hcm_scale.posterior.samples import open_samples
from hcm_scale.ranks import world
from hcm_scale.run.stages import label_options, recipe_of
from hcm_scale.sampling.pairs import cut_epoch, pair_batches
from hcm_scale.shards import open_labels
from hcm_scale.stages import train
from hcm_scale.stages.label import label

NUM_NODES = 150
DEFAULT = recipe_of(Config())
RECIPE = replace(
    DEFAULT,
    network=replace(DEFAULT.network, width=16, head_width=16),
    batching=replace(DEFAULT.batching, batch_pairs=128, fan_outs=(5,)),
    plan=replace(
        DEFAULT.plan,
        schedule="constant",
        step_size=0.02,
        burn_in_steps=6,
        thin_steps=4,
        num_samples=3,
        stop_correlation=None,
    ),
)


def with_encoder(encoder: str, recipe=RECIPE):
    """The recipe for an encoder other than the GCN, which begins at X."""
    network, batching = replace(recipe.network, encoder=encoder), replace(recipe.batching, exact_first_hop=False)
    return replace(recipe, network=network, batching=batching)


RECIPES = {"gcn": RECIPE, "sage": with_encoder("sage"), "gat": with_encoder("gat")}
RECORD = train.Record(checkpoint_every=5, log_every=4)
EVERY_PAIR = label_options(Config()) | {"num_sources": None, "pairs_per_class": None}


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
    return label(make_graph(), tmp_path_factory.mktemp("labels") / "labels", **EVERY_PAIR).folder


def encoder_input(graph: Graph, recipe=RECIPE) -> np.ndarray:
    x = make_features()
    return propagate(graph.indptr, graph.indices, x) if recipe.batching.exact_first_hop else x


def training(labels: Path, recipe=RECIPE, graph: Graph | None = None, seed: int = 0) -> train.Training:
    graph = graph or make_graph()
    return train.Training(graph, encoder_input(graph, recipe), open_labels(labels), recipe, seed)


def run(labels: Path, out: Path, recipe=RECIPE, graph: Graph | None = None, seed: int = 0, **options):
    usual = {"device": "cpu", "workers": 1, "record": RECORD}
    return train.train(training(labels, recipe, graph, seed), out, **usual | options)


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def sample_hashes(out: Path) -> dict[str, str]:
    return {path.name: hash_file(path) for path in sorted((out / "samples").glob("*.safetensors"))}


@pytest.fixture(scope="module", params=RECIPES)
def encoder(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def finished(labels, encoder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run(labels, out, RECIPES[encoder])
    return out


def test_train__writes_samples_that_rebuild_the_model(finished, encoder):
    samples = open_samples(finished / "samples")
    assert len(samples) == 3
    model = HopModel(**samples.model)
    for sample in samples:
        model.load_state_dict(sample)
    graph = make_graph()
    x, exact = encoder_input(graph, RECIPES[encoder]), encoder == "gcn"
    assert embed_graph(model, graph.indptr, graph.indices, x, propagated=exact).isfinite().all()


def test_train__writes_metrics(finished):
    lines = metrics(finished)
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 18]
    assert set(lines[0]) == {
        "step", "epoch", "loss", "accuracy", "num_pairs", "step_size", "pairs_per_second", "rss_bytes",
    }  # fmt: skip
    assert len(lines[0]["accuracy"]) == 4
    assert all(line["num_pairs"] > 0 and line["rss_bytes"] > 0 for line in lines)


def test_train__learns(labels, encoder, tmp_path):
    run(
        labels,
        tmp_path,
        replace(RECIPES[encoder], plan=replace(RECIPE.plan, burn_in_steps=160)),
        record=replace(RECORD, log_every=20),
    )
    lines = metrics(tmp_path)
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert min(lines[-1]["accuracy"]) > 0.5


def test_train__returns_a_finished_folder_as_it_is(labels, encoder, finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert len(run(labels, finished, RECIPES[encoder])) == 3
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}


@pytest.mark.parametrize("workers", [0, 2])
def test_train__does_not_depend_on_the_workers(labels, encoder, finished, tmp_path, workers):
    run(labels, tmp_path, RECIPES[encoder], workers=workers)
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
t.run(Path(sys.argv[1]), Path(sys.argv[2]), t.RECIPES[sys.argv[4]])
"""


@pytest.mark.parametrize(
    "encoder",
    [pytest.param(name, marks=pytest.mark.gate if name == "gcn" else pytest.mark.slow) for name in RECIPES],
    indirect=True,
)
def test_train__killed_at_several_steps_ends_in_the_same_bytes(labels, encoder, finished, tmp_path):
    code = CHILD.format(tests=str(Path(__file__).parent))
    for steps in (7, 9):  # two steps after a checkpoint; then between a sample and the checkpoint that counts it
        command = [sys.executable, "-c", code, str(labels), str(tmp_path), str(steps), encoder]
        child = subprocess.run(command, timeout=120, capture_output=True, text=True)
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert not (tmp_path / "samples" / "manifest.json").exists()
    run(labels, tmp_path, RECIPES[encoder])
    assert sample_hashes(tmp_path) == sample_hashes(finished)
    logged, expected = metrics(tmp_path), metrics(finished)
    assert [line["step"] for line in logged] == [line["step"] for line in expected]
    newest = "step-000000015.safetensors"
    assert hash_file(tmp_path / "checkpoints" / newest) == hash_file(finished / "checkpoints" / newest)


def test_train__stops_on_a_non_finite_loss_and_keeps_the_last_good_checkpoint(labels, tmp_path):
    hot = replace(RECIPE, langevin=replace(RECIPE.langevin, kernel="sgld", temperature=1e30))
    with pytest.raises(loop.NonFiniteLossError, match=r"step \d+ \(epoch \d+\).*temperature=1e\+30"):
        run(labels, tmp_path, hot, record=train.Record(checkpoint_every=1, log_every=100))
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
        replace(RECIPE, langevin=replace(RECIPE.langevin, kernel="adam")),
    ],
    ids=["depth-1", "depth-4", "narrow", "sampled-first-hop", "full-batch", "adam"],
)
def test_train__runs_every_kind_of_recipe(labels, tmp_path, recipe):
    assert len(run(labels, tmp_path, recipe)) == 3


def test_train__runs_on_a_directed_graph(tmp_path):
    graph = make_graph(directed=True)
    label(graph, tmp_path / "labels", **EVERY_PAIR)
    samples = run(tmp_path / "labels", tmp_path / "run", graph=graph)
    assert samples.model["directed"] is True


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


class Threads(world.World):
    """A world whose ranks are threads of this process."""

    def __init__(self, rank: int, meet: threading.Barrier, box: dict) -> None:
        super().__init__(rank, 2)
        self.__dict__.update(meet=meet, box=box)

    def barrier(self) -> None:
        self.meet.wait()

    def broadcast(self, value):
        if self.leads:
            self.box["told"] = value
        self.meet.wait()
        told = self.box["told"]
        self.meet.wait()
        return told

    def sum(self, vector: torch.Tensor) -> torch.Tensor:
        self.box[self.rank] = vector
        self.meet.wait()
        total = self.box[0] + self.box[1]
        self.meet.wait()
        return total


@pytest.mark.parametrize(("settled", "num_samples"), [(None, 3), (0.0, 4)])
def test_ranks__two_that_reduce_their_gradients_equal_one(labels, tmp_path, settled, num_samples):
    """Two chains in step, each on its half of every batch, end where one on whole batches does, up to rounding.

    One layer on an exact first hop sums over no neighbours, so the two threads do not meet in numba's pool.
    """
    plan = replace(RECIPE.plan, num_samples=3 if settled is None else 9, stop_correlation=settled)
    recipe = replace(RECIPE, network=replace(RECIPE.network, num_layers=1), plan=plan)
    meet, box = threading.Barrier(2, timeout=60), {}

    def member(rank: int) -> None:
        run(labels, tmp_path / "two", recipe, world=Threads(rank, meet, box), workers=0)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = zip(open_samples(tmp_path / "two" / "samples"), run(labels, tmp_path / "one", recipe), strict=True)
    for sample, expected in pairs:
        for name, value in sample.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-2, atol=1e-3)
    assert len(open_samples(tmp_path / "two" / "samples")) == num_samples


SETTLES = replace(
    RECIPE, plan=replace(RECIPE.plan, num_samples=9, stop_correlation=0.0)
)  # at its fourth sample, at step 22


def test_settled_chain__ends_early_with_the_samples_of_the_longer_one(labels, tmp_path):
    run(labels, tmp_path / "early", SETTLES)
    run(labels, tmp_path / "whole", replace(SETTLES, plan=replace(SETTLES.plan, stop_correlation=None)))
    early, whole = (sample_hashes(tmp_path / name) for name in ("early", "whole"))
    assert (len(early), len(whole)) == (4, 9)
    assert early.items() < whole.items()
    assert metrics(tmp_path / "early")[-1]["step"] == 22


@pytest.mark.parametrize("checkpoint_every", [22, 18, 11])
def test_settled_chain__killed_before_its_seal_ends_the_same(labels, tmp_path, checkpoint_every):
    """The last checkpoint holds four samples, three, or four again after one of one."""
    record = replace(RECORD, checkpoint_every=checkpoint_every)
    run(labels, tmp_path, SETTLES, record=record)
    before = sample_hashes(tmp_path)
    (tmp_path / "samples" / "manifest.json").unlink()
    assert len(run(labels, tmp_path, SETTLES, record=record)) == 4
    assert sample_hashes(tmp_path) == before


def test_whole_graph__gives_the_numbers_of_sampled_batches(labels, tmp_path):
    batching = replace(RECIPE.batching, fan_outs=(None,))
    for name, wanted in (("sampled", False), ("whole", True)):
        recipe = replace(RECIPE, batching=replace(batching, whole_graph=wanted))
        assert training(labels, recipe).takes_whole_graph is wanted
        run(labels, tmp_path / name, recipe)
    for one, other in zip(*(open_samples(tmp_path / name / "samples") for name in ("sampled", "whole")), strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True),
        ({"batch_pairs": 75}, True),
        ({"batch_pairs": 74}, False),
        ({"batch_pairs": None}, True),
        ({"hub_cap": 3}, False),
        ({"hub_cap": None}, True),
        ({"fan_outs": (5,)}, False),
        ({"whole_graph": False}, False),
    ],
)
def test_whole_graph__is_taken_where_it_is_small_and_changes_nothing(labels, changed, taken):
    batching = replace(RECIPE.batching, fan_outs=(None,), hub_cap=4, whole_graph=True)
    recipe = replace(RECIPE, batching=replace(batching, **changed))
    assert training(labels, recipe).takes_whole_graph is taken


LARGE = replace(
    RECIPE,
    network=replace(RECIPE.network, width=64, head_width=64),
    batching=replace(RECIPE.batching, batch_pairs=None, sampling_ratio=1.0),
)


@pytest.mark.parametrize("recipe", [*RECIPES.values(), LARGE], ids=[*RECIPES, "large"])
def test_steps__do_not_depend_on_the_threads(labels, tmp_path, monkeypatch, recipe):
    """Small ones have one thread; large ones are cut into the same blocks, here some more than there would be."""
    monkeypatch.setattr("hcm_scale.model._BLOCK_PRODUCTS", 1 << 19)
    monkeypatch.setattr("hcm_scale.model._LEAST_ROWS", 128)
    for num_threads in (1, 2):
        with torch_threads(num_threads):
            run(labels, tmp_path / str(num_threads), recipe)
            assert torch.get_num_threads() == num_threads
    assert sample_hashes(tmp_path / "1") == sample_hashes(tmp_path / "2")


def test_seed__moves_first_weights_and_neighbours(labels, tmp_path):
    assert run(labels, tmp_path, seed=5).model["seed"] == 5
    recipe = replace(RECIPE, batching=replace(RECIPE.batching, fan_outs=(2,)))
    opened = open_labels(labels)
    pairs = next(pair_batches(opened, cut_epoch(opened, batch_pairs=128, sampling_ratio=0.3), seed=0))
    made = [train.batch_maker(training(labels, recipe, seed=seed))(pairs) for seed in (0, 1)]
    assert not torch.equal(*(batch.nodes for batch in made))
