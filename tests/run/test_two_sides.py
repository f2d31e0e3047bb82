"""Runs over a graph of users and shops: its blocks are found, held together, explained by what they share, and kept."""

import re
from dataclasses import replace

import numpy as np
from helpers import small_config, small_run
from scipy import sparse

from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun

USERS, SHOPS = 700, 300
BLOCK = np.r_[100:108, 750:758]


def users_and_shops() -> Graph:
    """Users who know some four shops each, in four communities, and a block of eight by eight."""
    rng = np.random.default_rng(0)
    community = rng.integers(0, 4, USERS + SHOPS)
    users, shops = rng.integers(0, USERS, 20_000), rng.integers(USERS, USERS + SHOPS, 20_000)
    kept = np.flatnonzero((community[users] == community[shops]) | (rng.random(20_000) < 0.1))[:2_800]
    left, right = np.divmod(np.arange(64), 8)
    users, shops = np.r_[users[kept], BLOCK[left]], np.r_[shops[kept], BLOCK[8 + right]]
    ends = np.r_[users, shops], np.r_[shops, users]
    matrix = sparse.csr_array((np.ones(len(ends[0]), bool), ends))
    matrix.sum_duplicates()
    x = np.eye(4)[community] + rng.normal(size=(len(community), 4))
    return Graph(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), x=x.astype(np.float32))


def test_block__is_first_is_one_group_and_says_what_it_shares(tmp_path):
    graph = users_and_shops()
    small_run(tmp_path / "run", graph)
    scores = FinishedRun(tmp_path / "run").table.sort_by("cohesion_rank")
    assert set(scores["node"].to_pylist()[:30]) >= set(BLOCK)
    cases = FinishedRun(tmp_path / "run").cases
    (case,) = (case for case in cases if len(case.members) > 9)
    assert set(case.members.tolist()) == set(BLOCK.tolist())
    text = " ".join(FinishedRun(tmp_path / "run").explained_text([str(BLOCK[0])]).split())
    found = re.search(r"it shares (\d+) or more of its (\d+) neighbours with each of (\d+) others", text)
    assert found, text
    shared, degree, others = map(int, found.groups())
    rows = [set(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]) for v in range(graph.num_nodes)]
    own = rows[BLOCK[0]]
    assert degree == len(own)
    assert sum(len(own & row) >= shared for row in rows) - 1 >= others >= 7


def test_trained__scores_the_same_squares_again(tmp_path):
    graph = users_and_shops()
    small_run(tmp_path / "run", graph, until="score")
    pipeline.run(replace(small_config(tmp_path / "again"), trained=str(tmp_path / "run")), until="score", graph=graph)
    first, again = (FinishedRun(tmp_path / name).table.sort_by("node") for name in ("run", "again"))
    assert first["cohesion"].to_pylist() == again["cohesion"].to_pylist()
    assert max(first["cohesion"].to_pylist()) > 1
