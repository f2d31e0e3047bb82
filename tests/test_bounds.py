"""Every kernel stays within its arrays: all of them are compiled with bounds checks, in one process, and called.

This file is both the test and what runs in that process: small graphs go through every package, then kernels that were
not called are listed. A kernel counts as called if it was compiled, or if the code of one that was called names it. The
compiled code has a folder of its own (`base/kernel_cache.py`).
"""

import importlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numba import config
from numba.core.dispatcher import Dispatcher
from scipy import sparse

from hcm_scale import HCM
from hcm_scale.base import order
from hcm_scale.base.spmm import Propagated, gcn_scale
from hcm_scale.features import purify as purification
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.graph.build import build_csr
from hcm_scale.hops import choose_sources, label, label_hops
from hcm_scale.ingest.arrays import write_weights
from hcm_scale.ingest.ids import GrowingIds
from hcm_scale.report import digest
from hcm_scale.rows.burst import bursts
from hcm_scale.rows.chain import chains
from hcm_scale.rows.flow import flows
from hcm_scale.rows.history import history
from hcm_scale.rows.rows import Rows
from hcm_scale.rows.stream import ROW, arrivals, judge_bursts, judge_chains, judge_history
from hcm_scale.sampling import NeighborSampler
from hcm_scale.score import nodes, triangles
from hcm_scale.score.edge_index import edge_index
from hcm_scale.synthetic import families

PACKAGE = Path(__file__).resolve().parents[1] / "hcm_scale"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "which", [pytest.param("few", marks=pytest.mark.gate), pytest.param("all", marks=pytest.mark.slow)]
)
def test_kernels__stay_within_their_arrays(which):
    """`few`: all but labels and a whole run, whose kernels take most of the time to compile."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, __file__, which], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def walk_synthetic() -> list[Any]:
    hubs, chains = families.rmat(7, num_attributes=1), families.grid(300, 1, num_attributes=1, removed_share=0.1)
    return [families.community(600, num_attributes=5), hubs, chains]


def walk_ids() -> None:
    for kind, names in (("text", [f"node {i}" for i in range(3000)]), ("integer", [7 * i for i in range(3000)])):
        ids = GrowingIds(kind)
        for part in (names[:50], names):
            ids.add(pa.array(part))
        assert ids.find(pa.array(names)).tolist() == list(range(3000))


def walk_build(folder: Path) -> None:
    u, v = np.random.default_rng(0).integers(0, 40, (2, 300))
    for directed in (False, True):
        build_csr(folder, [(u, v)], 40, directed, run_keys=64)


def walk_weights(graph: Any, folder: Path) -> None:
    """Weights of edges, read and checked, and the blocks that are drawn with them."""
    u, v = np.random.default_rng(0).integers(0, 40, (2, 300))
    for directed, adds_up in ((False, True), (False, False), (True, True)):
        build_csr(folder, [(u, v)], 40, directed)
        write_weights(folder, [(u, v, np.full(300, 2.0))], "", directed=directed, adds_up=adds_up)
    weighted = replace(graph, weights=np.full(graph.num_arcs, 3, np.float32))
    weighted.check()
    purification.purify(weighted, weighted.x, similarity="euclidean", ratio=0.3).check()
    Propagated(graph.indptr, graph.indices, graph.x, weighted.weights).rows(np.arange(50))
    for fan_out in (2, None):
        scale = gcn_scale(graph.indptr, weighted.weights)
        sample = NeighborSampler(graph.indptr, graph.indices, scale, [fan_out], seed=0, weights=weighted.weights)
        sample(np.arange(50), 0)


def walk_purify(graph: Any) -> None:
    directed = Graph(graph.indptr, graph.indices, directed=True)
    rows = SparseRows.of(sparse.csr_array(graph.x * (graph.x > 1)))
    for similarity in ("jaccard", "cosine", "euclidean"):
        for given, x in ((graph, graph.x), (graph, rows), (directed, graph.x)):
            purification.purify(given, x, similarity=similarity, ratio=0.3)


def walk_hops(graph: Any) -> None:
    sources = choose_sources(graph.indptr, num_sources=None, seed=0)
    for directed in (False, True):
        for words in (None, 1):
            label.count_hops(graph.indptr, graph.indices, sources, classes=3, directed=directed, words=words)
            for pairs in (None, 2):
                options: Any = {"classes": 3, "pairs_per_class": pairs, "seed": 0, "sources_per_block": 32}
                list(label_hops(graph.indptr, graph.indices, sources, directed=directed, words=words, **options))


def walk_run(graph: Any, folder: Path) -> None:
    """Labels, shards, batches, model, scores and what verdicts teach."""
    options = {
        "hops.num_sources": 100, "hops.pairs_per_class": 30, "sampling.batch_pairs": 256, "sampling.fan_out": ["3"],
        "model.num_layers": 2, "model.width": 8, "model.head_width": 8, "posterior.burn_in_steps": 3,
        "posterior.num_samples": 2, "posterior.thin_steps": 1, "score.trim": 0.2,
    }  # fmt: skip
    found = HCM(options, device="cpu", run_dir=folder).fit(graph)
    assert found.edges_.num_rows == graph.num_edges
    found.explain(found.strangest(1)[0]["id"])
    found.teach({row["id"]: place % 2 == 0 for place, row in enumerate(found.strangest(12))})


def walk_score(graph: Any) -> None:
    """What a run with drawn neighbours leaves out."""
    for directed in (False, True):
        edges = edge_index(graph.indptr, graph.indices, directed=directed)
        mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
        nodes.average_hops(edges, [mean], mean, trim=0.0)
    two_sided = np.sort((np.arange(12)[:, None] + [1, 3, 9, 11]) % 12, axis=1).astype(np.int32)
    triangles.count_and_expect(edge_index(np.arange(0, 49, 4), two_sided.ravel()))
    many = 1 << 17  # fewer are not sorted in threads
    values, known = np.random.default_rng(0).normal(size=many + 9).round(2), np.arange(many + 9) % many > 0
    order.double_places(values, known)
    digest.distribution(values)


def walk_rows() -> None:
    rng = np.random.default_rng(0)
    ends, amount = rng.integers(0, 9, (2, 400)), rng.choice([90.0, 100.0, np.nan], 400)
    rows = Rows.of(9, *ends, rng.random(400) * 4e6, amount)
    for kind in (history, bursts, flows, chains):
        kind(rows)
    new = np.zeros(400, ROW)
    new["payer"], new["payee"], new["time"], new["amount"] = *ends[::-1], rows.time + 2e6, rows.amount
    arrived = arrivals(rows, {"burst_shapes": bursts(rows).shapes}, new[:0], new, 9)
    for judge in (judge_history, judge_bursts, judge_chains):
        judge(arrived)


def not_reached() -> list[str]:
    kernels = set()
    for path in PACKAGE.rglob("*.py"):
        if "@kernel" in path.read_text():
            name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
            module = importlib.import_module(name)
            kernels |= {found for found in vars(module).values() if isinstance(found, Dispatcher)}
    assert len(kernels) > 100
    waiting, reached = [kernel for kernel in kernels if kernel.signatures], set()
    while waiting:
        kernel = waiting.pop()
        if kernel not in reached:
            reached.add(kernel)
            names = kernel.py_func.__globals__
            waiting += [other for other in map(names.get, kernel.py_func.__code__.co_names) if other in kernels]
    return sorted(f"{kernel.__module__}.{kernel.__name__}" for kernel in kernels - reached)


def main() -> int:
    assert config.BOUNDSCHECK
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        community, hubs, chains = walk_synthetic()
        walk_ids()
        walk_build(folder)
        walk_purify(community)
        walk_weights(community, folder)
        walk_score(hubs)
        walk_rows()
        if sys.argv[1] == "all":
            for graph in (hubs, chains):  # searched together, and one by one
                walk_hops(graph)
            walk_run(community, folder / "run")
            print(*not_reached(), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
