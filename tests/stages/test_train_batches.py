"""What GPUs hold is settled by all ranks together: two of them, in processes of their own, told of unequal memory."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.ranks import world
from hcm_scale.run.stages import label_options
from hcm_scale.sampling import pairs
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.shards import open_labels
from hcm_scale.stages import train
from hcm_scale.stages.label import label

MEMBER = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from hcm_scale.base import device

device.free_bytes = lambda device: int(sys.argv[3])  # before others import it
from hcm_scale.run.stages import recipe_of
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import RankInfo, join
from hcm_scale.sampling.device.batches import draw, epoch_key, pairs_to
from hcm_scale.sampling.pairs import cut_epoch, pair_batches
from hcm_scale.shards import open_labels
from hcm_scale.stages.train import Training, agree, gpu_fit

rank, port, folder, labels = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4]), open_labels(sys.argv[5])
torch.set_num_threads(1)
graph, x, recipe = Graph.open(folder / "graph"), np.ones((300, 4), np.float32), recipe_of(Config())
cut = cut_epoch(labels, batch_pairs=64, sampling_ratio=1.0, rank=rank, num_ranks=2)
with join(RankInfo(rank, 2, rank, 2, "127.0.0.1", port), timeout_seconds=60) as world:
    own = gpu_fit(Training(graph, x, labels, recipe, seed=0), cut, "cpu")
    fit = agree(own, world, "cpu", folder / "train.json")
    if fit is not None and fit.has_pairs:
        drawn = torch.stack(draw(pairs_to("cpu", labels), *cut(0)[:2], epoch_key(0, 0))[:2]).T
    else:
        host = next(pair_batches(labels, cut, seed=0))
        drawn = torch.from_numpy(np.stack([host.u, host.v], 1))
    print(json.dumps([own and own.has_pairs, fit and fit.has_pairs, drawn.tolist()]))
"""
EVERYTHING, WITHOUT_PAIRS = 10**12, 900_000


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    """The labelled pairs of a ring of 300 nodes, which lies beside them."""
    folder, around = tmp_path_factory.mktemp("ring"), np.arange(300)
    rows = np.sort(np.stack([(around - 1) % 300, (around + 1) % 300], 1), axis=1)
    graph = Graph(np.arange(0, 601, 2, dtype=np.int64), rows.ravel().astype(np.int32))
    graph.save(folder / "graph")
    return label(graph, folder / "labels", **label_options(Config()) | {"pairs_per_class": None}).folder


def two_ranks(labels: Path, free: tuple[int, int]) -> list:
    """What each rank had chosen for itself, what they chose together, and the pairs of its first batch."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "error", "-c", MEMBER]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(port), str(free[rank]), str(labels.parent), str(labels)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]


def test_ranks_of_unequal_memory__draw_from_one_order(labels):
    (first, first_together, ours), (second, second_together, theirs) = two_ranks(labels, (EVERYTHING, WITHOUT_PAIRS))
    assert (first, second) == (True, False)
    assert first_together is second_together is False
    assert json.loads((labels.parent / "train.json").read_text()) == {"graph": True, "pairs": False}
    opened = open_labels(labels)
    alone = next(pairs.pair_batches(opened, pairs.cut_epoch(opened, batch_pairs=64, sampling_ratio=1.0), seed=0))
    assert sorted(ours + theirs) == sorted(np.stack([alone.u, alone.v], 1).tolist())


def test_agree__keeps_to_what_is_noted_and_notes_what_is_less(tmp_path):
    note = tmp_path / "train.json"
    assert train.agree(gpu.Fit(True, 8), world.ALONE, "cpu", note) == gpu.Fit(True, 8)
    assert train.agree(gpu.Fit(False, 8), world.ALONE, "cpu", note) == gpu.Fit(False, 8)
    assert train.agree(gpu.Fit(True, 8), world.ALONE, "cpu", note) == gpu.Fit(False, 8)
    assert train.agree(None, world.ALONE, "cpu", note) is None
    assert train.agree(gpu.Fit(True, 8), world.ALONE, "cpu", note) is None
    for text in ("{", '{"graph": "yes", "pairs": true}', "[" * 100_000):
        note.write_text(text)
        with pytest.raises(FolderError, match=r"train\.json is damaged; remove .* to have it made again"):
            train.agree(gpu.Fit(True, 8), world.ALONE, "cpu", note)
