"""What bfloat16 products over edges do to the ranking: one trained run on a GPU, scored by both precisions.

For every labelled graph and seed the default run is made with `score.precision=float32`; then the scores alone are made
again with `auto`, which is bfloat16 where its kernel serves, on the same samples. What is left is the precision.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from bench import labelled
from bench.end_to_end import planted
from bench.harness import Table, at_least, at_most
from hcm_scale import HCM
from hcm_scale.graph import Graph
from hcm_scale.score.metrics import roc_auc

SEEDS = {"smoke": 1, "quick": 3, "full": 5}
_TOP = 100
_LOST, _AGREES = 0.001, 0.999  # ROC-AUC, Spearman


def cases(size: str) -> Iterator[Table]:
    """One table, a row a graph and seed; on a CPU, which has no bfloat16 kernel, only a smoke run."""
    title = "bfloat16 over edges, against float32"
    if size != "smoke" and not torch.cuda.is_available():
        yield Table(title, [], absent=["a CUDA device"])
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-precision-") as root:
        for seed in range(SEEDS[size]):
            for name, graph in graphs(size, Path(root), seed):
                rows.append({"graph": name, "seed": seed, **measure(graph, seed, Path(root) / f"run-{name}-{seed}")})
    lost = max(abs(row["roc_auc_auto"] - row["roc_auc_float32"]) for row in rows)
    verdicts = [
        at_most("largest difference of a ROC-AUC", lost, _LOST, "ROC-AUC"),
        at_least("least agreement of the scores", min(row["spearman"] for row in rows), _AGREES, "Spearman"),
    ]
    yield Table(title, rows, verdicts)


def graphs(size: str, root: Path, seed: int) -> Iterator[tuple[str, Graph]]:
    """Name and graph: the labelled ones at hand, in a smoke run a planted one."""
    if size == "smoke":
        yield "400 nodes", Graph.open(planted(400, root / "planted"))
    else:
        yield from labelled.graphs(root, seed)


def measure(graph: Graph, seed: int, run_dir: Path) -> dict[str, Any]:
    """ROC-AUC by both precisions, and how far the two rankings agree."""
    exact, fast = (
        HCM({"score.precision": precision}, seed=seed, run_dir=run_dir).fit(graph).scores
        for precision in ("float32", "auto")
    )
    assert graph.y is not None
    first = [set(np.argsort(-scores, kind="stable")[:_TOP].tolist()) for scores in (exact, fast)]
    return {
        "roc_auc_float32": round(float(roc_auc(graph.y, exact)), 5),
        "roc_auc_auto": round(float(roc_auc(graph.y, fast)), 5),
        "spearman": round(float(spearmanr(exact, fast).statistic), 6),
        f"same_of_first_{_TOP}": len(first[0] & first[1]),
    }
