"""Claims about the label stage: right, resumable, the same bytes at any number of threads and processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from hcm_scale.base.files import FolderError
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.run.stages import label_options
from hcm_scale.shards import open_labels
from hcm_scale.stages import label as stage

OPTIONS = {
    "classes": 3,
    "num_sources": 320,
    "pairs_per_class": 6,
    "seed": 4,
    "shard_pairs": 64 * 18,
    "row_group_rows": 100,
}
EVERY_PAIR = label_options(Config()) | {"num_sources": None, "pairs_per_class": None}


def label(graph: Graph, out: Path, **options):
    """The stage with every pair kept, apart from `options`."""
    return stage.label(graph, out, **EVERY_PAIR | options)


# Forks a process for every rank, before any kernel has started a thread; a rank may kill itself between two file calls.
DRIVER = """
import json, multiprocessing, os, signal, sys
import numba
from pathlib import Path
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import World
from hcm_scale.stages.label import label

class Meeting(World):
    def __init__(self, rank, size, barrier):
        super().__init__(rank, size)
        self.__dict__["meet"] = barrier.wait
    def barrier(self):
        self.meet()

def die_at(moment, out):
    seen = 0
    def hook(event, args):
        nonlocal seen
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(args[0]).startswith(out):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def work(graph, job, options, rank, barrier):
    numba.set_num_threads(job.get("threads", 1))
    if "moment" in job:
        die_at(job["moment"], job["out"])
    label(graph, Path(job["out"]), world=Meeting(rank, job.get("world", 1), barrier), **options)

graph, jobs, options = Graph.open(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
fork = multiprocessing.get_context("fork")
for job in jobs:
    barrier = fork.Barrier(job.get("world", 1))
    ranks = [fork.Process(target=work, args=(graph, job, options, r, barrier)) for r in range(job.get("world", 1))]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
    print(json.dumps([rank.exitcode for rank in ranks]))
"""


def drive(graph: Graph, jobs: list[dict]) -> list[list[int]]:
    """Exit codes of the ranks of every job."""
    command = [sys.executable, "-c", DRIVER, str(graph.path), json.dumps(jobs), json.dumps(OPTIONS)]
    done = subprocess.run(
        command, env=os.environ | {"NUMBA_NUM_THREADS": "8"}, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def graph(random_csr, tmp_path_factory) -> Graph:
    return Graph(*random_csr(400, 700, seed=2)).save(tmp_path_factory.mktemp("graph") / "graph")


def slow_labels(graph: Graph, classes: int) -> dict[int, set[tuple[int, int]]]:
    """All pairs by class, from scipy's distances; isolated nodes are no sources; an undirected pair is a sorted one."""
    n = graph.num_nodes
    matrix = csr_array((np.ones(graph.num_arcs), graph.indices, graph.indptr), shape=(n, n))
    distance = np.minimum(shortest_path(matrix, unweighted=True), classes)
    pairs: dict[int, set[tuple[int, int]]] = {hop: set() for hop in range(1, classes + 1)}
    for u in np.flatnonzero(graph.degrees):
        for v in range(n):
            if u != v:
                pairs[int(distance[u, v])].add((u, v) if graph.directed else (min(u, v), max(u, v)))
    return pairs


@pytest.mark.parametrize("directed", [False, True])
def test_label__all_pairs_equal_scipys_distances(random_csr, tmp_path, directed):
    graph = Graph(*random_csr(150, 200, seed=1, directed=directed), directed=directed)
    labels = label(graph, tmp_path / "labels", classes=5, shard_pairs=3000, row_group_rows=128)
    assert len(labels.shards) > 1
    for hop, expected in slow_labels(graph, 5).items():
        read = [labels.read(group) for group in labels.row_groups(hop)]
        pairs = [(u, v) for us, vs in read for u, v in zip(us.tolist(), vs.tolist(), strict=True)]
        found = {pair if directed else (min(pair), max(pair)) for pair in pairs}
        assert len(pairs) == len(found) == labels.counts[hop - 1] == labels.stored[hop - 1]
        assert found == expected


def test_label__samples_keep_exact_counts(graph, tmp_path):
    options = {"classes": 3, "num_sources": 100, "seed": 4}
    every = label(graph, tmp_path / "every", **options)
    some = label(graph, tmp_path / "some", pairs_per_class=5, **options)
    assert some.counts == every.counts == every.stored
    assert all(stored <= min(500, count) for stored, count in zip(some.stored, some.counts, strict=True))


@pytest.mark.gate
def test_label__same_bytes_at_any_number_of_threads_and_processes(graph, tmp_path):
    jobs = [{"threads": 1}, {"threads": 2}, {"threads": 8}, {"world": 2}, {"world": 4, "threads": 2}]
    jobs = [job | {"out": str(tmp_path / f"labels-{number}")} for number, job in enumerate(jobs)]
    assert all(code == 0 for codes in drive(graph, jobs) for code in codes)
    first, *others = (content(Path(job["out"])) for job in jobs)
    assert len(first) == open_labels(jobs[0]["out"]).plan.num_shards + 1 == 6
    assert all(other == first for other in others)


@pytest.mark.gate
def test_label__killed_at_any_moment_resumes_to_the_same_bytes(graph, tmp_path):
    """Moments count the files opened, renamed and removed: of the shards, of the manifest, and the last removals."""
    outs = {moment: tmp_path / str(moment) for moment in range(1, 70, 7)}
    jobs = [{"out": str(out)} | more for moment, out in outs.items() for more in ({"moment": moment}, {})]
    codes = [code for (code,) in drive(graph, jobs)]
    assert set(codes[::2]) == {0, -signal.SIGKILL}
    assert codes[:10:2] == [-signal.SIGKILL] * 5
    assert set(codes[1::2]) == {0}
    whole = content(label(graph, tmp_path / "whole", **OPTIONS).folder)
    for out in outs.values():
        assert {name: data for name, data in content(out).items() if not name.endswith(".tmp")} == whole


def test_label__redoes_only_the_shards_that_are_missing_or_damaged(graph, tmp_path):
    def fail() -> None:
        with pytest.raises(ValueError, match="no pair has hop"):  # after all shards are written
            label(graph, tmp_path, **OPTIONS | {"classes": 16, "shard_pairs": 64 * 96})

    fail()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    (tmp_path / "shard-00001.json").unlink()
    (tmp_path / "shard-00003.parquet").write_bytes(b"PAR1")
    fail()
    redone = {path.name for path, written in before.items() if path.stat().st_mtime_ns != written}
    assert redone == {f"shard-0000{index}.{kind}" for index in (1, 3) for kind in ("json", "parquet")}


def test_label__a_finished_folder_is_opened_as_it_is(graph, tmp_path):
    first = label(graph, tmp_path / "labels", **OPTIONS)
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    assert label(graph, tmp_path / "labels", **OPTIONS).shards == first.shards
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times


def test_label__refuses_the_sealed_pairs_of_another_graph(graph, random_csr, tmp_path):
    label(graph, tmp_path / "labels", **OPTIONS)
    with pytest.raises(FolderError, match="the pairs of another graph"):
        label(Graph(*random_csr(400, 700, seed=3)), tmp_path / "labels", **OPTIONS)


def test_label__names_an_empty_class_and_what_works(tmp_path):
    path = Graph(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))  # 0 - 1 - 2
    for _ in range(2):  # the second finds the shards of the first
        with pytest.raises(
            ValueError, match=r"no pair has hop 3 .*1: 2, 2: 1, 3: 0, >= 4: 0.*the most that all have pairs: 2"
        ):
            label(path, tmp_path / "labels", classes=4)
    whole = label(path, tmp_path / "others", classes=2)
    assert whole.counts == (2, 1)
    assert content(label(path, tmp_path / "labels", classes=4, adapts=True).folder) == content(whole.folder)


def test_label__says_when_no_number_of_classes_works(tmp_path):
    pair = Graph(np.array([0, 1, 2]), np.array([1, 0], np.int32))
    with pytest.raises(
        ValueError, match=r"no pair has hop >= 2.*no number of classes works: all pairs are .*too small"
    ):
        label(pair, tmp_path / "labels", classes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes=1"),
        ({"classes": 17}, "classes=17"),
        ({"pairs_per_class": 0}, "pairs_per_class=0"),
        ({"shard_pairs": 0}, "shard_pairs=0"),
        ({"row_group_rows": 0}, "row_group_rows=0"),
    ],
)
def test_label__refuses_bad_options_before_it_writes(graph, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        label(graph, tmp_path / "labels", **options)
    assert not (tmp_path / "labels").exists()


def test_label__refuses_a_graph_without_edges(tmp_path):
    with pytest.raises(ValueError, match="no edges"):
        label(Graph(np.zeros(5, np.int64), np.zeros(0, np.int32)), tmp_path / "labels")
