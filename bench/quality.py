"""Time to quality: how well and how steadily chains of several lengths rank, against the seconds that they take.

For every graph one chain of ten times the default's length is the yardstick. Shorter ones are compared with it by
Spearman's correlation of the score over all nodes, and by ROC-AUC where anomalies are known. Seconds are those of
training and scoring in this process, kernels compiled before. `default` ends by itself, where one more sample no longer
moves the ranking; the others draw as many samples as they say. Graphs are the planted ones of `end_to_end`, and in the
full run also the labelled ones that HCM_DATA has.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from bench import labelled
from bench.end_to_end import planted
from bench.harness import Table
from hcm_scale import HCM
from hcm_scale.graph import Graph
from hcm_scale.score.metrics import roc_auc

NODES = {"smoke": (400,), "quick": (1_000, 10_000), "full": (1_000, 10_000, 100_000, 1_000_000)}


def chain(burn_in: int, samples: int) -> dict[str, Any]:
    """The options of a chain of this length."""
    return {"posterior.burn_in_steps": burn_in, "posterior.num_samples": samples}


CHAINS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {"10 x longer": chain(4, 2), "default": chain(2, 1)},
    "quick": {
        "10 x longer": chain(2_000, 100),
        "25 + 1 x 10": chain(25, 1),
        "50 + 4 x 10": chain(50, 4),
        "100 + 4 x 10": chain(100, 4),
        "200 + 4 x 10": chain(200, 4),
        "default": {},
        "200 + 10 x 10": chain(200, 10),
        "400 + 20 x 10": chain(400, 20),
        "default, 128 wide, head 256": {"model.width": 128, "model.head_width": 256},
        "default, 2,048 pairs": {"sampling.batch_pairs": 2_048},
    },
}
CHAINS["full"] = CHAINS["quick"]


def cases(size: str) -> Iterator[Table]:
    """One table a graph, and one figure for all of them."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-quality-") as root:
        for name, graph in graphs(size, Path(root)):
            for row in measure(name, graph, size, Path(root) / f"{name}-run"):
                print(f"  {json.dumps(row)}", file=sys.stderr, flush=True)
                rows.append(row)
    yield Table("chains of several lengths", rows, figure=draw(rows))


def graphs(size: str, root: Path) -> Iterator[tuple[str, Graph]]:
    """Name and graph, smallest first."""
    for num_nodes in NODES[size]:
        yield f"{num_nodes:,} nodes", Graph.open(planted(num_nodes, root / str(num_nodes)))
    if size == "full":
        yield from labelled.graphs(root)


def measure(name: str, graph: Graph, size: str, run_dir: Path) -> Iterator[dict[str, Any]]:
    """Every chain on one graph; stages before the training are made once."""
    yardstick = None
    for label, options in CHAINS[size].items():
        found = HCM(options, run_dir=run_dir).fit(graph)
        records = json.loads((run_dir / "stages.json").read_text())["stages"]
        timed = [record for record in records if record["name"].startswith(("train", "scores"))]
        trained = [record["seconds"] for record in timed if record["name"].startswith("train")]
        yardstick = found.scores if yardstick is None else yardstick
        yield {
            "graph": name,
            "chain": label,
            "samples": sum(record["detail"].get("samples", 0) for record in timed),
            "seconds": max(trained) + sum(record["seconds"] for record in timed) - sum(trained),  # side by side
            "spearman_to_longest": float(spearmanr(yardstick, found.scores).statistic),
            "roc_auc": float(roc_auc(graph.y, found.scores)) if graph.y is not None else None,
        }


def draw(rows: list[dict[str, Any]]) -> Any:
    """ROC-AUC and agreement with the longest chain over seconds, a line a graph."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    names = list(dict.fromkeys(row["graph"] for row in rows))
    for axes, key in zip(figure.subplots(1, 2), ("roc_auc", "spearman_to_longest"), strict=True):
        for i, name in enumerate(names):
            of_graph = [row for row in rows if row["graph"] == name and "," not in row["chain"]]
            of_graph.sort(key=lambda row: row["seconds"])
            points, style = (
                [[row["seconds"] for row in of_graph], [row[key] for row in of_graph]],
                ".-" if i < 10 else ".:",
            )
            axes.plot(*points, style, color=f"C{i}", label=name)
            usual = [row for row in of_graph if row["chain"] == "default"]
            axes.plot([row["seconds"] for row in usual], [row[key] for row in usual], "o", color=f"C{i}", markersize=9)
        axes.set(xscale="log", xlabel="seconds of training and scoring; the large dot is the default", ylabel=key)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small", frameon=False)
    return figure
