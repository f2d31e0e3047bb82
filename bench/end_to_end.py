"""From a graph on disk to a score for every node: seconds, peak memory and ROC-AUC, ours and PyGOD's detectors.

Synthetic communities with planted anomalies, 8 edges a node, 20 attributes. Every run is a process of its own, timed
from its start to its end: interpreter, imports, reading the graph, and for ours the report too, because ours is the
command line as it is typed. A cap on the address space and a time limit are results where they end a run, and larger
sizes are then not tried; nor is a size at which the line through the last two passes the limit. Kernels were compiled
by a run on a tiny graph before, except in the rows that say "never compiled", which have an empty cache. PyGOD's
detectors run full batch, their default and their fastest. Each contender has two cores: where the machine has more, as
many contenders run at the same time as there are pairs. HCM_EARLIER names the checkout of an earlier version of ours,
which then runs beside this one under the name of its folder.

The quick run has the graphs that people try first, and a shorter limit; the full run goes up to a million nodes.
"""

import functools
import importlib.util
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench import data
from bench.apart import Job, Outcome, run_apart
from bench.harness import Table, Verdict, at_least, at_most
from bench.pyg_loaders import edge_index, quiet
from bench.pygod_batches import whole_graphs
from hcm_scale.graph import Graph
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import inject

NODES = {"smoke": (400,), "quick": (1_000, 10_000, 30_000), "full": (1_000, 10_000, 30_000, 100_000, 1_000_000)}
DETECTORS = {
    "smoke": ("GAE",),
    "quick": ("DOMINANT", "GAE", "CoLA", "OCGNN"),
    "full": ("DOMINANT", "GAE", "CoLA", "OCGNN"),
}
EPOCHS = {"smoke": 1, "quick": 100, "full": 100}
LIMIT_SECONDS = {"smoke": 60, "quick": 120, "full": 300}
CAP_BYTES = {"smoke": 8 << 30, "quick": 16 << 30, "full": 16 << 30}
BRIEF = ["posterior.burn_in_steps=1", "posterior.num_samples=1", "posterior.thin_steps=1", "hops.num_sources=50"]
OPTIONS: dict[str, list[str]] = {"smoke": BRIEF, "quick": [], "full": []}
GIB = 2**30
CORES = 2  # of each contender
OURS = "hcm_scale"
COLD = f"{OURS}, kernels never compiled"
EARLIER = os.environ.get("HCM_EARLIER")
MOST_SECONDS = {1_000: 5, 10_000: 8, 30_000: 12, 100_000: 25, 1_000_000: 120}  # what our run may take
MOST_SECONDS_COLD = {1_000: 30, "the default graph": 45}


def cases(size: str) -> Iterator[Table]:
    """Every contender at every size it reaches; then, in the full run, a real graph."""
    with tempfile.TemporaryDirectory(prefix="bench-end-") as root:
        folders = [planted(num_nodes, Path(root) / str(num_nodes)) for num_nodes in NODES[size]]
        found = importlib.util.find_spec("pygod") is not None
        if size != "smoke":
            for checkout in {None, EARLIER}:  # compiles kernels, where they are not yet
                run_ours(planted(300, Path(root) / "300"), BRIEF, size, checkout)
        contenders: list[tuple[str, Job, dict[str, Any]]] = [(OURS, ours, {"options": OPTIONS[size]})]
        if EARLIER:
            name = f"{OURS}, {Path(EARLIER).name}"
            contenders.append((name, ours, {"options": OPTIONS[size], "checkout": EARLIER}))
        contenders += [
            (f"PyGOD {name}", peer, {"name": name, "epochs": EPOCHS[size]}) for name in DETECTORS[size] * found
        ]
        rows = in_lanes([functools.partial(climb, *contender, folders, size) for contender in contenders])
        if size != "smoke":
            rows += in_lanes([functools.partial(cold, graph, size) for graph in (folders[0], None)])
        absent = [] if found else [f"PyGOD {name}" for name in DETECTORS[size]]
        title = f"every node scored; at most {CAP_BYTES[size] / GIB:g} GiB and {LIMIT_SECONDS[size]} s"
        yield Table(title, rows, list(claims(rows)), absent, reach(rows), draw(rows))
        if size == "full":
            yield real_graph(Path(root) / "debian")


def in_lanes(series: list[Callable[..., Iterator[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """The rows of every series, which is told its cores; as many at the same time as there are pairs of cores."""
    usable = sorted(os.sched_getaffinity(0))
    lanes: queue.Queue[list[int]] = queue.Queue()
    for i in range(max(1, len(usable) // CORES)):
        lanes.put(usable[i * CORES : (i + 1) * CORES])

    def run(one: Callable[..., Iterator[dict[str, Any]]]) -> list[dict[str, Any]]:
        cores = lanes.get()
        try:
            return list(one(cores=cores))
        finally:
            lanes.put(cores)

    with ThreadPoolExecutor(lanes.qsize()) as pool:
        return [row for rows in pool.map(run, series) for row in rows]


def planted(num_nodes: int, folder: Path) -> Path:
    """A graph with about six anomalies in a thousand nodes, at least one clique, on disk."""
    inject(synthetic.community(num_nodes), num_cliques=max(1, num_nodes // 5000), num_attribute_anomalies=None).save(
        folder
    )
    return folder


def climb(
    name: str, job: Job, arguments: dict[str, Any], folders: list[Path], size: str, cores: list[int]
) -> Iterator[dict[str, Any]]:
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
            cores=cores,
        )
        yield describe(name, num_nodes, outcome)
        if not outcome.done:
            return
        times.append((num_nodes, outcome.facts.get("seconds", outcome.process_seconds)))


def run_ours(folder: Path | None, options: list[str], size: str, checkout: str | None = None, **how: Any) -> Outcome:
    """Our command on a graph folder, or on its embedded graph where there is none."""
    limits = {"limit_seconds": LIMIT_SECONDS[size], "cap_bytes": CAP_BYTES[size]}
    arguments = {"folder": folder and str(folder), "options": options, "checkout": checkout}
    return run_apart(ours, arguments, **limits, **how)


def cold(folder: Path | None, size: str, cores: list[int]) -> Iterator[dict[str, Any]]:
    """The first run of somebody who has just installed it: an empty cache of kernels."""
    nodes = "the default graph" if folder is None else int(folder.name)
    with tempfile.TemporaryDirectory() as empty:
        yield describe(COLD, nodes, run_ours(folder, [], size, environment={"NUMBA_CACHE_DIR": empty}, cores=cores))


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
    """One row; a job that started the contender itself says what that one took."""
    return {
        "contender": name,
        "nodes": num_nodes,
        "state": outcome.state,
        "seconds": outcome.facts.get("seconds", outcome.process_seconds),
        "peak_rss_gib": outcome.facts.get("peak_rss_bytes", outcome.peak_rss_bytes) / GIB,
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
    names = [name for name in dict.fromkeys(row["contender"] for row in rows) if name != COLD]
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
    """Our seconds at every size, memory at a million nodes, and no peer faster or better by more than .005."""
    mine = {row["nodes"]: row for row in rows if row["contender"] == OURS}
    for nodes, row in mine.items():
        if nodes in MOST_SECONDS:
            yield at_most(f"{OURS}, {nodes:,} nodes, time", row["seconds"], MOST_SECONDS[nodes], "s")
        if nodes == 1_000_000:
            yield at_most(f"{OURS}, 1,000,000 nodes, peak RSS", row["peak_rss_gib"], 4, "GiB")
    for row in rows:
        if row["contender"] == COLD:
            yield at_most(f"{COLD}: {row['nodes']}", row["seconds"], MOST_SECONDS_COLD[row["nodes"]], "s")
        elif row["contender"] != OURS and row["state"] == "done":
            against = f"{row['contender']}, {row['nodes']:,} nodes"
            faster = row["seconds"] / mine[row["nodes"]]["seconds"]
            yield at_least(f"{OURS} against {against}, speed", faster, 1, "x")
            better = mine[row["nodes"]]["roc_auc"] - row["roc_auc"]
            yield at_least(f"{OURS} against {against}, ROC-AUC more", better, -0.005, "")


def real_graph(folder: Path) -> Table:
    """Debian's files, with their degrees for attributes: the whole default run."""
    graph = data.debian()
    if graph is None:
        return Table("Debian files", [], absent=[f"{data.DEBIAN} (HCM_DATA names its folder)"])
    degree = np.log1p(graph.degrees).astype(np.float32)[:, None]
    Graph(graph.indptr, graph.indices, x=degree, columns=("log degree",)).save(folder)
    outcome = run_apart(ours, {"folder": str(folder), "options": []}, limit_seconds=3600, cap_bytes=16 << 30)
    return Table("Debian files", [describe(OURS, graph.num_nodes, outcome)])


def ours(folder: str | None, options: list[str], checkout: str | None = None) -> Callable[[], dict[str, Any]]:
    """`hcm-scale run` as it is typed, a process of its own within this one's limits; its run is in a temporary folder.

    Python keeps compiled modules, as it does for whoever did not tell it otherwise.
    """

    def run() -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with tempfile.TemporaryDirectory() as run_dir:
            source = [] if folder is None else ["graph=folder", f"graph.path={folder}"]
            words = ["run", *source, "world.device=cpu", f"run_dir={run_dir}", *options]
            started = time.perf_counter()
            command = [sys.executable, "-m", "hcm_scale", *words]
            subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.DEVNULL, check=True)
            found: dict[str, Any] = {"seconds": time.perf_counter() - started}
            found["peak_rss_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            manifest = json.loads((Path(run_dir) / "scores" / "manifest.json").read_text())  # of any version
            return found | ({"roc_auc": manifest["metrics"]["score"]["roc_auc"]} if manifest.get("metrics") else {})

    return run


def peer(folder: str, name: str, epochs: int) -> Callable[[], dict[str, Any]]:
    """A PyGOD detector, on the CPU."""

    def run() -> dict[str, Any]:
        with quiet():
            import pygod.detector
            from torch_geometric.data import Data
        graph = Graph.open(folder)
        assert isinstance(graph.x, np.ndarray)
        standard = (graph.x - graph.x.mean(axis=0)) / graph.x.std(axis=0)  # as ours does by default
        given = Data(x=torch.from_numpy(standard), edge_index=edge_index(graph), num_nodes=graph.num_nodes)
        with quiet(), whole_graphs("cpu"):
            found = getattr(pygod.detector, name)(epoch=epochs, gpu=-1, verbose=0).fit(given)
        return facts(graph, found.decision_score_.numpy())

    return run


def facts(graph: Graph, scores: NDArray[np.float64]) -> dict[str, Any]:
    """A finite score for every node, and how well it ranks where the anomalies are known."""
    assert scores.shape == (graph.num_nodes,)
    assert np.isfinite(scores).all()
    if graph.y is None:
        return {}
    from sklearn.metrics import roc_auc_score

    return {"roc_auc": float(roc_auc_score(graph.y, scores))}
