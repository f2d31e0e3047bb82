"""Ranks that score together, in processes of their own: a share of the memory each, and what the death of one costs."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hcm_scale.features.propagate import propagate_features
from hcm_scale.model import HopModel
from hcm_scale.posterior import samples
from hcm_scale.synthetic import families

NUM_NODES, WIDTH, Q = 100_000, 128, 20
MEMBER = """
import json, os, signal, sys, threading, time
from pathlib import Path
import numba
import torch
from hcm_scale.run.stages import scoring_of
from hcm_scale.base.memory import anonymous_bytes
from hcm_scale.config import Config
from hcm_scale.features.propagate import open_propagated
from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import open_samples
from hcm_scale.ranks.world import LostRankError, RankInfo, join
from hcm_scale.stages import edges as shared_edges
from hcm_scale.stages.edges import View
from hcm_scale.stages.score import score

folder, out, state = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rank, size, port, ill = (int(text) for text in sys.argv[4:])
torch.set_num_threads(1)
numba.set_num_threads(1)
peak, predicted, ended = 0, [], threading.Event()


def watch():
    global peak
    while not ended.wait(0.003):
        peak = max(peak, anonymous_bytes())


def score_folder(folder, out, world):
    graph, x = Graph.open(folder / "graph", verify=False), open_propagated(folder / "propagated")
    where = {"state": state, "device": "cpu", "chunk_edges": None, "world": world}
    how, samples = scoring_of(Config()), open_samples(folder / "samples")
    score(graph, [View(graph, x, samples)], out, options=how, features=graph.x, propagated=True, **where)


def counted(edges, *arguments, whole=shared_edges.predict_edges, **options):
    predicted.append(edges.num_edges)
    return whole(edges, *arguments, **options)


def dies(self, num_seen, moments):
    os.kill(os.getpid(), signal.SIGKILL)


with join(RankInfo(rank, size, rank, size, "127.0.0.1", port), timeout_seconds=60) as world:
    score_folder(folder / "tiny", out / "tiny", world)  # loads what is compiled
    shared_edges.predict_edges = counted
    if rank == ill:
        shared_edges.SavedMoments.save = dies
    before = anonymous_bytes()
    threading.Thread(target=watch, daemon=True).start()
    try:
        score_folder(folder, out / "scores", world)
    except LostRankError:
        os._exit(3)
    ended.set()
    print(json.dumps({"peak": peak - before, "predicted": predicted}))
"""


def make_inputs(folder: Path, num_nodes: int, num_samples: int) -> None:
    """A graph, its propagated features and samples that were never trained."""
    graph = families.community(num_nodes, num_attributes=Q).save(folder / "graph")
    propagate_features(graph, graph.x, folder / "propagated")
    sizes = {"num_attributes": Q, "num_classes": 4, "width": WIDTH, "head_width": 64, "num_layers": 2}
    sizes["directed"] = False
    nets = [HopModel(**sizes, seed=seed).state_dict() for seed in range(num_samples)]
    hashes = [samples.write_sample(folder / "samples", i, dict(net)) for i, net in enumerate(nets)]
    samples.seal_samples(folder / "samples", hashes, sizes)


def score(folder: Path, out: Path, size: int, ill: int = -1, state: str = "memory") -> tuple[list[int], list[dict]]:
    """Exit status and what was printed, of every rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-c", MEMBER, str(folder), str(out), state]
    ranks = [
        subprocess.Popen([*command, *map(str, (rank, size, port, ill))], stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    printed = [rank.communicate(timeout=240)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], [json.loads(text or "{}") for text in printed]


def edge_files(out: Path) -> list[bytes]:
    return [(out / "scores" / name).read_bytes() for name in ("edges_mean.npy", "edges_var.npy", "scores.parquet")]


@pytest.mark.gate
def test_ranks_and_the_disk__take_the_load_off_memory_and_a_rank_that_dies_costs_its_range(tmp_path):
    make_inputs(tmp_path, NUM_NODES, num_samples=2)
    make_inputs(tmp_path / "tiny", 2_000, num_samples=1)
    statuses, (alone,) = score(tmp_path, tmp_path / "alone", 1)
    assert statuses == [0]
    assert alone["peak"] > 2 * 4 * WIDTH * NUM_NODES  # two layers of embeddings
    statuses, (on_disk,) = score(tmp_path, tmp_path / "disk", 1, state="disk")
    assert statuses == [0]
    assert on_disk["peak"] <= 0.5 * alone["peak"]
    assert score(tmp_path, tmp_path / "ranks", 2, ill=1)[0] == [3, -9]
    statuses, ranks = score(tmp_path, tmp_path / "ranks", 2)
    assert statuses == [0, 0]
    assert [len(rank["predicted"]) for rank in ranks] == [0, 1]
    assert max(rank["peak"] for rank in ranks) <= 0.65 * alone["peak"]
    assert edge_files(tmp_path / "ranks") == edge_files(tmp_path / "disk") == edge_files(tmp_path / "alone")
