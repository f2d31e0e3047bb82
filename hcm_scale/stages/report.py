"""The report stage: what earlier stages left in their folders, joined into report.json and report.html. And `explain`,
`node_reasons`, `show`: nodes in numbers, in a sentence each, the list as a piece of HTML.

Reads the scores folder (scores.parquet, edges_mean.npy, edges_var.npy; the last two as memory maps), and where they are
given the training's metrics.jsonl and the labels folder's manifest. Both may be missing: the page then leaves their
sections out.
"""

import json
import logging
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from numpy.typing import NDArray

import hcm_scale
from hcm_scale.base import files
from hcm_scale.base.cores import num_cores
from hcm_scale.base.mapped import open_npy
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import Explanation
from hcm_scale.report.explain import explain as explain_node
from hcm_scale.report.notebook import fragment
from hcm_scale.report.weakness import weak_text
from hcm_scale.report.wording import in_a_sentence
from hcm_scale.report.write import FORMAT, write_report
from hcm_scale.score import table
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE
from hcm_scale.shards import schema
from hcm_scale.stages.drift import drift_line
from hcm_scale.stages.scored import FORMAT as SCORES_FORMAT
from hcm_scale.stages.scored import KIND

log = logging.getLogger(__name__)

__all__ = ["FORMAT", "explain", "node_reasons", "report", "show"]
MOST_REASONS = 10_000  # about a minute of explaining


def report(
    graph: Graph,
    purified: Graph | None,
    scores: Path | str,
    out: Path | str,
    *,
    x: NDArray[np.float32] | None = None,
    run: Mapping[str, Any],
    metrics: Path | str | None = None,
    labels: Path | str | None = None,
    features: Mapping[str, Any] | None = None,
    drift: Path | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    top: int,
    csv: bool = False,
) -> dict[str, Any]:
    """Writes the report of one run into the folder `out` and returns it.

    `graph` is the graph with the user's own attributes, `scores` the folder of the score stage, `x` the features. `run`
    says what ran (name, seed, command); samples, version, date and hardware are filled in. `features` is the record
    of the purify stage, `drift` the folder of that stage.
    """
    edge_mean, edge_var = edge_hops(Path(scores), graph)
    found = found_by(Path(scores))
    records = () if metrics is None else read_records(Path(metrics))
    labelled = None if labels is None else files.read_manifest(Path(labels), schema.KIND, schema.FORMAT)
    weak = weak_text(graph, x, records, None if labelled is None else len(labelled["counts"]))
    if weak:
        log.warning("%s", weak)
    return write_report(
        out,
        run=about() | {"num_samples": found.get("num_samples")} | dict(run),
        scores=Path(scores) / table.FILE,
        graph=graph,
        purified=purified,
        edge_mean=edge_mean,
        edge_var=edge_var,
        x=x,
        found=found,
        records=records,
        labels=labelled,
        features=features,
        notes=[note for note in (weak, "" if drift is None else f"Drift: {drift_line(drift)}.") if note],
        stages=stages,
        top=top,
        csv=csv,
    )


def explain(
    graph: Graph,
    purified: Graph | None,
    scores: Path | str,
    external_ids: Sequence[int | str],
    x: NDArray[np.float32] | None = None,
) -> list[Explanation]:
    """Explains the nodes that the user calls `external_ids`; `x` are the features, by which distances are told."""
    nodes = [graph.node_of(external_id) for external_id in external_ids]
    ranked = read_ranked(Path(scores), graph)
    evidence = Evidence.of(graph, purified, ranked, *edge_hops(Path(scores), graph), x)
    return [explain_node(evidence, node) for node in nodes]


def node_reasons(
    graph: Graph,
    purified: Graph | None,
    ranked: pa.Table,
    scores: Path,
    nodes: Sequence[int],
    x: NDArray[np.float32] | None = None,
) -> list[str]:
    """Why nodes are where they are in the ranked table of a scores folder, a sentence each."""
    evidence = Evidence.of(graph, purified, ranked, *edge_hops(scores, graph), x)
    return [in_a_sentence(explain_node(evidence, node)) for node in nodes]


def show(graph: Graph, scores: Path, count: int) -> str:
    """The ranked list of a scores folder as a piece of HTML for a notebook: `count` rows, and pictures."""
    return fragment(graph, read_ranked(scores, graph), edge_hops(scores, graph)[0], found_by(scores), count)


def found_by(scores: Path) -> dict[str, Any]:
    """What the score stage says of its list in its manifest; nothing where there is none."""
    return files.read_manifest(scores, KIND, SCORES_FORMAT) if (scores / files.MANIFEST).is_file() else {}


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a line that a killed run left torn is passed over, a missing file is empty."""
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def about() -> dict[str, Any]:
    """Which version, when and on what machine."""
    accelerator = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    memory = psutil.virtual_memory().total / 2**30
    return {
        "version": hcm_scale.__version__,
        "date": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        "hardware": f"{num_cores()} cores, {memory:.0f} GiB, {platform.machine()}{accelerator}",
    }


def read_ranked(scores: Path, graph: Graph) -> pa.Table:
    """The ranked table of a scores folder, which is of this graph."""
    ranked = table.read_scores(scores / table.FILE)
    table.check_ranked(scores / table.FILE, ranked, graph.num_nodes)
    return ranked


def edge_hops(scores: Path, graph: Graph) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and variance of every edge's predicted hop, mapped; a graph without edges has no files to map."""
    if graph.num_edges == 0:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    mean, var = (_by_edge(scores / name, graph.num_edges) for name in (MEAN_FILE, VAR_FILE))
    return mean, var


def _by_edge(path: Path, num_edges: int) -> NDArray[np.float32]:
    """A number of every edge, mapped; FolderError where the file has anything else."""
    try:
        found = open_npy(path)
    except ValueError as error:
        raise files.FolderError(f"{path} is damaged: {error}") from error
    if found.shape != (num_edges,) or found.dtype != np.float32:
        raise files.FolderError(
            f"{path} is damaged: {found.dtype} {found.shape}, and the graph has {num_edges:,} edges"
        )
    return found
