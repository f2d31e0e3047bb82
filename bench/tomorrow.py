"""Nodes that were not there in training: how well a trained run ranks them, and in which time.

The nodes of a labelled graph are split into five parts. A run is trained on the graph without one part and then scores
the whole graph with `trained=`; of that only the scores of the left-out nodes are kept. Where this is done for several
parts their scores are put in one list as they are, which they can be because all are measured by a training graph. The
ROC-AUC of that list is compared with that of the same nodes by a run that was trained on all. `seconds` are those of
that run, and of one scoring by a trained one. The quick run leaves out one part, and all five in turn on graphs whose
anomalies are few; the full run all five.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import data, labelled
from bench.end_to_end import planted
from bench.harness import Table, at_least
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, as_trained
from hcm_scale.score.metrics import roc_auc

PARTS = 5
_MANY = 200  # anomalies: a fifth of them tells a ROC-AUC
_LOST = 0.02  # of the ROC-AUC, at most


def cases(size: str) -> Iterator[Table]:
    """One table, a row a graph."""
    rows, verdicts = [], []
    with tempfile.TemporaryDirectory(prefix="bench-tomorrow-") as root:
        for name, graph in graphs(size, Path(root)):
            rows.append({"graph": name, **measure(graph, Path(root) / f"{name}-runs", num_parts(graph, size))})
            seen, unseen = rows[-1]["roc_auc_trained_on_all"], rows[-1]["roc_auc_never_seen"]
            verdicts.append(at_least(f"nodes never seen, {name}", unseen, seen - _LOST, "ROC-AUC"))
    yield Table("nodes that were not there in training", rows, verdicts)


def graphs(size: str, root: Path) -> Iterator[tuple[str, Graph]]:
    """Name and graph: the labelled ones at hand, in a smoke run a planted one."""
    if size == "smoke":
        yield "400 nodes", Graph.open(planted(400, root / "planted"))
    else:
        yield from labelled.graphs(root)


def num_parts(graph: Graph, size: str) -> int:
    """How many parts are left out in turn."""
    return PARTS if size == "full" or np.sum(graph.y) < _MANY else 1


def measure(graph: Graph, root: Path, num_left_out: int) -> dict[str, Any]:
    """One graph: trained on all of it, and on the rest of so many parts in turn."""
    assert graph.y is not None
    began = time.perf_counter()
    run(graph, root / "all")
    seconds_all = time.perf_counter() - began
    part = np.random.default_rng(0).permutation(graph.num_nodes) % PARTS
    unseen, seconds = np.empty(graph.num_nodes), []
    for k in range(num_left_out):
        run(subgraph(graph, part != k), root / f"without {k}")
        began = time.perf_counter()
        config = as_trained(Config(run_dir=str(root / f"with {k}"), trained=str(root / f"without {k}")))
        config.world.device = "cpu"
        pipeline.run(config, until="score", graph=graph)
        seconds.append(time.perf_counter() - began)
        unseen[part == k] = scores(root / f"with {k}")[part == k]
    judged = part < num_left_out
    y = graph.y[judged]
    return {
        "nodes_left_out": len(y),
        "anomalies_among_them": int(y.sum()),
        "roc_auc_trained_on_all": round(float(roc_auc(y, scores(root / "all")[judged])), 4),
        "roc_auc_never_seen": round(float(roc_auc(y, unseen[judged])), 4),
        "seconds_trained_on_all": round(seconds_all, 1),
        "seconds_by_a_trained_run": round(float(np.median(seconds)), 1),
    }


def run(graph: Graph, run_dir: Path) -> None:
    """A run of the default configuration up to its scores."""
    config = Config(run_dir=str(run_dir))
    config.world.device = "cpu"
    pipeline.run(config, until="score", graph=graph)


def scores(run_dir: Path) -> np.ndarray:
    """The score of every node, in node order."""
    table = FinishedRun(run_dir).table.sort_by("node")
    return np.asarray(table["score"])


def subgraph(graph: Graph, keep: np.ndarray) -> Graph:
    """The graph of the kept nodes and the edges between them."""
    matrix = data.adjacency(graph, np.int8)[keep][:, keep]
    matrix.sort_indices()
    x = SparseRows.of(graph.x.csr()[keep]) if isinstance(graph.x, SparseRows) else np.asarray(graph.x)[keep]
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(graph.indices.dtype)
    return Graph(indptr, indices, x=x, y=None if graph.y is None else graph.y[keep], columns=graph.columns)
