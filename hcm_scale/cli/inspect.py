"""`hcm-scale inspect`: what a run, or one of the folders that its stages wrote, holds, by the kind in its manifest."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hcm_scale import shards
from hcm_scale.base import files
from hcm_scale.graph import Graph, store
from hcm_scale.posterior import samples
from hcm_scale.run import workspace
from hcm_scale.run.finished import FinishedRun
from hcm_scale.stages import purify, score

_MAX_COLUMNS = 12  # of a graph, listed


def inspect(folder: Path, verify: bool) -> str:
    """A description of the folder; ValueError where no run wrote it, FolderError where it is damaged."""
    if (folder / "stages.json").is_file():
        return _run(folder, verify)
    try:
        kind = str(json.loads(files.read_regular(folder / files.MANIFEST))["kind"])
    except (OSError, ValueError, LookupError, TypeError):
        kind = ""
    if kind not in _READERS:
        legal = ", ".join(name.removeprefix("hcm_scale ") for name in _READERS)
        raise ValueError(f"{folder} holds {kind or 'nothing that a run wrote'}; inspect knows a run, {legal}")
    facts = {"holds": kind, "bytes": f"{files.size_of(folder):,}"} | _READERS[kind](folder, verify)
    return "\n".join(f"{name:<14}{value}" for name, value in facts.items())


def _run(run_dir: Path, verify: bool) -> str:
    run = FinishedRun(run_dir)
    if not run.stages:
        raise ValueError(f"the run in {run_dir} has finished no stage yet; the same hcm-scale run again goes on")
    lines = [f"{'stage':<20}{'seconds':>9}{'peak GiB':>10}{'MB on disk':>12}   facts"]
    for stage in run.stages:
        folder = run_dir / stage["name"]
        costs = f"{stage['seconds']:>9.1f}{stage['peak_rss_bytes'] / 2**30:>10.2f}{files.size_of(folder) / 1e6:>12.1f}"
        lines.append(f"{stage['name']:<20}{costs}   {workspace.facts_text(stage['detail'])}")
    if verify:
        if not run.options:
            raise files.FolderError(f"{run_dir / 'config.json'} is missing; hcm-scale run writes it again")
        for name in run.keys:
            run.stage(name)
        lines.append(f"every file of {len(run.keys)} stages is as it was written")
    return "\n".join(lines)


def _graph(folder: Path, verify: bool) -> dict[str, object]:
    graph = Graph.open(folder, verify=verify)
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


def _purified(folder: Path, verify: bool) -> dict[str, object]:
    made = purify.open_purified(folder)
    if verify:
        made.fitted()
    return {"edges kept": f"{made.num_edges:,}", "features": len(made.columns)}


def _labels(folder: Path, verify: bool) -> dict[str, object]:
    labels = shards.open_labels(folder, verify=verify)
    by_hop = ", ".join(f"{hop}: {count:,}" for hop, count in enumerate(labels.counts, 1))
    return {"pairs": f"{labels.num_pairs:,}", "sources": f"{labels.plan.num_sources:,}", "pairs by hop": by_hop}


def _samples(folder: Path, verify: bool) -> dict[str, object]:
    opened = samples.open_samples(folder)
    if verify:
        for _ in opened:
            pass
    return {"samples": len(opened), "model": ", ".join(f"{name} {size}" for name, size in opened.model.items())}


def _scores(folder: Path, verify: bool) -> dict[str, object]:
    opened = score.open_scores(folder)
    if verify:
        manifest = files.read_manifest(folder, score.KIND, score.FORMAT)
        files.check_folder(folder, manifest["files"], workspace.repair_hint(folder))
    auc = {} if opened.metrics is None else {"ROC-AUC": f"{opened.metrics[opened.rank_by]['roc_auc']:.3f}"}
    return {"samples": opened.num_samples, "ranked by": opened.rank_by, "flagged": opened.num_flagged, **auc}


_READERS: dict[str, Callable[[Path, bool], dict[str, object]]] = {
    store.KIND: _graph,
    purify.KIND: _purified,
    shards.KIND: _labels,
    samples.KIND: _samples,
    score.KIND: _scores,
}
