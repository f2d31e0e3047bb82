"""`hcm-scale doctor PATH`: what a run, or a folder with a graph, holds, after every byte was checked."""

from pathlib import Path

import numpy as np

from hcm_scale.base import files
from hcm_scale.graph import Graph
from hcm_scale.run import workspace
from hcm_scale.run.finished import FinishedRun

_MAX_COLUMNS = 12  # of a graph, listed


def inspect(folder: Path) -> str:
    """A description of the folder; ValueError where no run wrote it, FolderError where it is damaged."""
    if (folder / "stages.json").is_file():
        return _run(folder)
    if not (folder / files.MANIFEST).is_file():
        raise ValueError(f"{folder} holds neither a run nor a graph")
    facts = {"bytes": f"{files.size_of(folder):,}"} | _graph(folder)
    return "\n".join(f"{name:<14}{value}" for name, value in facts.items())


def _run(run_dir: Path) -> str:
    run = FinishedRun(run_dir)
    if not run.stages:
        raise ValueError(f"the run in {run_dir} has finished no stage yet; the same hcm-scale run again goes on")
    lines = [f"{'stage':<20}{'seconds':>9}{'peak GiB':>10}{'MB on disk':>12}   facts"]
    for stage in run.stages:
        folder = run_dir / stage["name"]
        costs = f"{stage['seconds']:>9.1f}{stage['peak_rss_bytes'] / 2**30:>10.2f}{files.size_of(folder) / 1e6:>12.1f}"
        lines.append(f"{stage['name']:<20}{costs}   {workspace.facts_text(stage['detail'])}")
    if not run.options:
        raise files.FolderError(f"{run_dir / 'config.json'} is missing; hcm-scale run writes it again")
    for name in run.keys:
        run.stage(name)
    return "\n".join([*lines, f"every file of {len(run.keys)} stages is as it was written"])


def _graph(folder: Path) -> dict[str, object]:
    graph = Graph.open(folder)
    more = f" and {len(graph.columns) - _MAX_COLUMNS} more" if len(graph.columns) > _MAX_COLUMNS else ""
    return {
        "nodes": f"{graph.num_nodes:,}",
        "edges": f"{graph.num_edges:,}{', directed' if graph.directed else ''}",
        **({"weights": _weights(graph)} if graph.weights is not None else {}),
        "attributes": f"{graph.num_attributes}: {', '.join(graph.columns[:_MAX_COLUMNS])}{more}",
        "ids": "numbers of nodes" if graph.ids is None else f"{graph.ids.type}, such as {graph.ids[0]}",
        "anomalies": "not known" if graph.y is None else f"{int(graph.y.sum()):,}",
        "fingerprint": graph.fingerprint,
    }


def _weights(graph: Graph) -> str:
    assert graph.weights is not None
    if not graph.num_arcs:
        return "none, as there are no edges"
    low, middle, high = (float(f(graph.weights)) for f in (np.min, np.median, np.max))
    return f"{graph.info.get('weights', 'weight')}, {low:,.4g} to {high:,.4g}, median {middle:,.4g}"
