"""A process that trains for a long time ends as large as it began: no growth in memory, open files or threads.

A child trains small chains one after the other. Each has dozens of epochs and a checkpoint every few steps, is stopped
in the middle with its readers running, and goes on from its last checkpoint. HCM_HAUL_SECONDS sets the length of the
long form, an hour unless it is set.
"""

import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import load_checkpoint
from hcm_scale.run.stages import label_options, recipe_of
from hcm_scale.shards import open_labels
from hcm_scale.stages import train
from hcm_scale.stages.label import label

NUM_NODES = 400
WARM_ROUNDS = 4  # in which pools fill and libraries start their threads
ALLOWED_BYTES = 24 << 20  # what an allocator may come to hold and give back, in a process of some 400 MiB


class Stopped(Exception):
    """Raised in the middle of a training."""


def train_rounds(folder: Path, seconds: float) -> None:
    """Trains for so long, and for enough rounds to tell, and prints a line of JSON after every round."""
    nodes = np.arange(NUM_NODES)
    rows = np.sort(np.stack([(nodes + step) % NUM_NODES for step in (-2, -1, 1, 2)], 1), axis=1)
    graph = Graph(np.arange(0, rows.size + 1, 4, dtype=np.int64), rows.ravel().astype(np.int32))
    x = np.random.default_rng(0).normal(size=(NUM_NODES, 8)).astype(np.float32)
    folder = label(graph, folder / "labels", **label_options(Config())).folder.parent
    usual = recipe_of(Config())
    batching = replace(usual.batching, batch_pairs=256, sampling_ratio=0.05)
    plan = replace(usual.plan, burn_in_steps=30, num_samples=6, stop_correlation=None)
    recipe = replace(usual, batching=batching, plan=plan)
    process, most, ends = psutil.Process(), {}, time.monotonic() + seconds

    def look(samples: Path, index: int, *sample: Any, write=train.write_sample) -> str:
        most["files"] = max(most["files"], process.num_fds())
        most["threads"] = max(most["threads"], process.num_threads())
        digest = write(samples, index, *sample)
        if index == 2 and not (samples.parent / "stopped").exists():
            (samples.parent / "stopped").touch()
            raise Stopped
        return digest

    train.write_sample = look

    for done in itertools.count():
        if done >= 3 * WARM_ROUNDS and time.monotonic() > ends:
            break
        most = {"files": 0, "threads": 0}
        how = {"device": "cpu", "workers": 2, "record": train.Record(5, 5)}
        for _ in range(2):
            try:
                train.train(
                    train.Training(graph, x, open_labels(folder / "labels"), recipe, seed=0), folder / "train", **how
                )
            except Stopped:
                continue
        epochs = json.loads((folder / "train" / "metrics.jsonl").read_text().splitlines()[-1])["epoch"]
        assert load_checkpoint(folder / "train" / "checkpoints", folder / "train" / "samples") is not None
        shutil.rmtree(folder / "train")
        gc.collect()
        after = {"files_after": process.num_fds(), "threads_after": process.num_threads()}
        print(json.dumps({"epochs": epochs, "rss": process.memory_info().rss, **most, **after}), flush=True)


def haul(folder: Path, seconds: float) -> list[dict[str, int]]:
    """The lines of a child that trained for so long."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", __file__, str(folder), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_level(rounds: list[dict[str, int]]) -> None:
    """The last rounds need what the first did after the warm ones; memory is compared by its middle value."""
    first, last = rounds[WARM_ROUNDS : 2 * WARM_ROUNDS], rounds[-WARM_ROUNDS:]
    for name in ("files", "threads", "files_after", "threads_after"):
        assert max(line[name] for line in last) <= max(line[name] for line in first), (name, first, last)
    grown = np.median([line["rss"] for line in last]) - np.median([line["rss"] for line in first])
    assert grown < ALLOWED_BYTES, f"{grown / 2**20:.1f} MiB more after {len(rounds)} rounds"
    print(f"{len(rounds)} rounds of {rounds[0]['epochs'] + 1} epochs, {grown / 2**20:+.1f} MiB;", first[0], last[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_minute_of_training__needs_no_more_at_its_end(tmp_path):
    check_level(haul(tmp_path, 45))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_an_hour_of_training__needs_no_more_at_its_end(tmp_path):
    check_level(haul(tmp_path, float(os.environ.get("HCM_HAUL_SECONDS", "3600"))))


if __name__ == "__main__":
    train_rounds(Path(sys.argv[1]), float(sys.argv[2]))
