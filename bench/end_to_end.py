"""From a graph to a score for every node: seconds, peak memory and ROC-AUC, ours and PyGOD's detectors.

Synthetic communities with planted anomalies, 8 edges a node, 20 attributes. Every run has a process of its own, a cap
on its address space and a time limit; where either ends it, that is its result, and larger sizes are not tried. Nor is
a size at which the line through the last two passes the limit. Runs are warmed up on a tiny graph first. PyGOD's
detectors run full batch, their default and their fastest.

The quick run does a share of the usual work on both sides: 100 of our 600 steps and 4 of 20 samples, 2 of PyGOD's 100
epochs. The full run does all of it.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import data
from bench.apart import Job, Outcome, run_apart
from bench.harness import Table, Verdict, at_most
from bench.pyg_loaders import edge_index, quiet
from hcm_scale.graph import Graph
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import inject

NODES = {"smoke": (400,), "quick": (1_000, 10_000, 100_000), "full": (1_000, 10_000, 30_000, 100_000, 1_000_000)}
DETECTORS = {
    "smoke": ("GAE",),
    "quick": ("DOMINANT", "GAE", "CoLA", "OCGNN"),
    "full": ("DOMINANT", "GAE", "CoLA", "OCGNN"),
}
EPOCHS = {"smoke": 1, "quick": 2, "full": 100}
LIMIT_SECONDS = {"smoke": 60, "quick": 120, "full": 600}  # the full one: what a million nodes may take us
CAP_BYTES = {"smoke": 8 << 30, "quick": 8 << 30, "full": 16 << 30}
BRIEF = {"posterior.burn_in_steps": 1, "posterior.num_samples": 1, "posterior.thin_steps": 1, "hops.num_sources": 50}
OPTIONS: dict[str, dict[str, Any]] = {
    "smoke": BRIEF,
    "quick": {"posterior.burn_in_steps": 60, "posterior.num_samples": 4},
    "full": {},
}
GIB = 2**30
OURS = "hcm_scale"


def cases(size: str) -> Iterator[Table]:
    """Every contender at every size it reaches; then, in the full run, a real graph."""
    with tempfile.TemporaryDirectory(prefix="bench-end-") as root:
        folders = [planted(num_nodes, Path(root) / str(num_nodes)) for num_nodes in NODES[size]]
        found = has_pygod()
        contenders: list[tuple[str, Job, dict[str, Any]]] = [(OURS, ours, {"options": OPTIONS[size]})]
        contenders += [
            (f"PyGOD {name}", peer, {"name": name, "epochs": EPOCHS[size]}) for name in DETECTORS[size] * found
        ]
        rows = [row for contender in contenders for row in climb(*contender, folders, size)]
        absent = [] if found else [f"PyGOD {name}" for name in DETECTORS[size]]
        title = f"every node scored; at most {CAP_BYTES[size] / GIB:g} GiB and {LIMIT_SECONDS[size]} s"
        yield Table(title, rows, list(claims(rows)), absent, reach(rows), draw(rows))
        if size == "full":
            yield real_graph(Path(root) / "debian")


def has_pygod() -> bool:
    """Whether PyGOD can run: its loaders need torch-sparse or pyg-lib, and say so only when used."""
    try:
        import pygod  # noqa: F401
        import torch_sparse  # noqa: F401
    except ImportError:
        return importlib.util.find_spec("pygod") is not None and importlib.util.find_spec("pyg_lib") is not None
    return True


def planted(num_nodes: int, folder: Path) -> Path:
    """A graph with about six anomalies in a thousand nodes, at least one clique, on disk."""
    inject(synthetic.community(num_nodes), num_cliques=max(1, num_nodes // 5000), num_attribute_anomalies=None).save(
        folder
    )
    return folder


def climb(name: str, job: Job, arguments: dict[str, Any], folders: list[Path], size: str) -> Iterator[dict[str, Any]]:
    """One contender from the smallest graph up, until it fails or is sure to."""
    limit, times = LIMIT_SECONDS[size], []
    for folder in folders:
        num_nodes = int(folder.name)
        if expected(times, num_nodes) > limit:
            yield describe(name, num_nodes, Outcome(f"not tried: over {limit} s by the last two sizes"))
            return
        outcome = run_apart(
            job,
            {"folder": str(folder), **arguments},
            limit_seconds=limit,
            cap_bytes=CAP_BYTES[size],
            apart=size != "smoke",
        )
        yield describe(name, num_nodes, outcome)
        if not outcome.done:
            return
        times.append((num_nodes, outcome.seconds))


def expected(times: list[tuple[int, float]], num_nodes: int) -> float:
    """Seconds on the line through the last two (nodes, seconds), so that fixed costs do not grow; 0 with fewer.

    >>> expected([(10, 5.0), (20, 6.0)], 100), expected([(10, 5.0)], 100)
    (14.0, 0.0)
    """
    if len(times) < 2:
        return 0.0
    (fewer, sooner), (more, later) = times[-2:]
    return later + (later - sooner) / (more - fewer) * (num_nodes - more)


def describe(name: str, num_nodes: int | str, outcome: Outcome) -> dict[str, Any]:
    """One row."""
    return {
        "contender": name,
        "nodes": num_nodes,
        "state": outcome.state,
        "seconds": outcome.seconds,
        "peak_rss_gib": outcome.peak_rss_bytes / GIB,
        "roc_auc": outcome.facts.get("roc_auc"),
    }


def reach(rows: list[dict[str, Any]]) -> list[str]:
    """Where each contender ended, in words."""
    ended = [row for row in rows if row["state"] != "done"]
    return [f"{row['contender']} ends at {row['nodes']:,} nodes: {row['state']}" for row in ended]


def draw(rows: list[dict[str, Any]]) -> Any:
    """Seconds and peak memory over nodes, both logarithmic; a cross stands over the last size that was reached."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    names = list(dict.fromkeys(row["contender"] for row in rows))
    for axes, key, label in zip(
        figure.subplots(1, 2), ("seconds", "peak_rss_gib"), ("seconds", "peak RSS, GiB"), strict=True
    ):
        for i, name in enumerate(names):
            done = [row for row in rows if row["contender"] == name and row["state"] == "done"]
            ended = any(row["contender"] == name and row["state"] != "done" for row in rows)
            x, y = [row["nodes"] for row in done], [row[key] for row in done]
            style: dict[str, Any] = {"color": f"C{i}", "linewidth": 2.5 if name == OURS else 1.2, "label": name}
            axes.plot(x, y, marker="o", markersize=4, **style)
            if ended and done:
                axes.plot(x[-1:], y[-1:], marker="x", markersize=11, markeredgewidth=2, color=f"C{i}")
        axes.set(xscale="log", yscale="log", xlabel="nodes, 8 edges each", ylabel=label)
        axes.grid(alpha=0.3)
    memory = figure.axes[1].yaxis  # a few doublings, which powers of ten would leave without a number
    memory.set_major_locator(LogLocator(base=2))
    memory.set_major_formatter(StrMethodFormatter("{x:g}"))
    memory.set_minor_formatter(NullFormatter())
    figure.axes[0].legend(fontsize="small", frameon=False)
    return figure


def claims(rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    """A million nodes, where they were tried."""
    for row in rows:
        if row["contender"] == OURS and row["nodes"] == 1_000_000:
            yield at_most("hcm_scale, 1,000,000 nodes, time", row["seconds"], 600, "s")
            yield at_most("hcm_scale, 1,000,000 nodes, peak RSS", row["peak_rss_gib"], 4, "GiB")


def real_graph(folder: Path) -> Table:
    """Debian's files, with their degrees for attributes: the whole default run."""
    graph = data.debian()
    if graph is None:
        return Table("Debian files", [], absent=[f"{data.DEBIAN} (HCM_DATA names its folder)"])
    degree = np.log1p(graph.degrees).astype(np.float32)[:, None]
    Graph(graph.indptr, graph.indices, x=degree, columns=("log degree",)).save(folder)
    outcome = run_apart(ours, {"folder": str(folder), "options": {}}, limit_seconds=3600, cap_bytes=16 << 30)
    return Table("Debian files", [describe(OURS, graph.num_nodes, outcome)])


def ours(folder: str, options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The detector with its defaults, apart from `options`; its run goes beside the graph."""
    from hcm_scale import HCM

    def run(graph: Graph, changed: dict[str, Any]) -> NDArray[np.float64]:
        with tempfile.TemporaryDirectory(dir=Path(folder).parent) as run_dir:
            return HCM(changed, device="cpu", run_dir=run_dir).fit(graph).scores

    run(tiny(), options | BRIEF)
    graph = Graph.open(folder)
    return lambda: facts(graph, run(graph, options))


def peer(folder: str, name: str, epochs: int) -> Callable[[], dict[str, Any]]:
    """A PyGOD detector, on the CPU."""
    with quiet():
        import pygod.detector
        import torch
        from torch_geometric.data import Data

    def run(graph: Graph) -> NDArray[np.float64]:
        assert isinstance(graph.x, np.ndarray)
        standard = (graph.x - graph.x.mean(axis=0)) / graph.x.std(axis=0)  # as ours does by default
        given = Data(x=torch.from_numpy(standard), edge_index=edge_index(graph), num_nodes=graph.num_nodes)
        with quiet():
            found = getattr(pygod.detector, name)(epoch=epochs, gpu=-1, verbose=0).fit(given)
        scores: NDArray[np.float64] = found.decision_score_.numpy()
        return scores

    run(tiny())
    graph = Graph.open(folder)
    return lambda: facts(graph, run(graph))


def tiny() -> Graph:
    """What a process warms up on."""
    return inject(synthetic.community(300), num_cliques=1, num_attribute_anomalies=None)


def facts(graph: Graph, scores: NDArray[np.float64]) -> dict[str, Any]:
    """A finite score for every node, and how well it ranks where the anomalies are known."""
    assert scores.shape == (graph.num_nodes,)
    assert np.isfinite(scores).all()
    if graph.y is None:
        return {}
    from sklearn.metrics import roc_auc_score

    return {"roc_auc": float(roc_auc_score(graph.y, scores))}
