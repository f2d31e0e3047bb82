"""What a run would do, as text: `hcm-scale plan`, with the words of the run.

Every stage is one line: whether it is kept, goes on or would be made, and its time, memory and disk. Costs follow from
the size of the graph, which of files is known once they have been ingested. Nothing is made, and nothing but the
input's hash is read.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hcm_scale.config import Config, SyntheticGraph, flatten, stored_options
from hcm_scale.run.memory import Size
from hcm_scale.run.stages import RunContext, stages
from hcm_scale.run.trained import open_trained, with_trained_options
from hcm_scale.run.workspace import Stage, Workspace, read_stages

_SECONDS = {  # on two cores: of any graph, and for a million edges more; measured at 770,000 edges
    "graph": (0.1, 0.5),
    "purified": (0.1, 0.4),
    "labels": (0.5, 1.0),
    "propagated": (0.05, 0.1),
    "train": (2.0, 0.8),
    "scores": (0.3, 7.5),
    "report": (1.0, 1.0),
    "drift": (0.1, 0.2),
}
_SCORE_BYTES = 90  # of a row of scores.parquet, about


def plan(config: Config, device: str, until: str = "report") -> str:
    """The plan as text."""
    config = with_trained_options(config)
    run_dir, share = Path(config.run_dir), Path(config.share_dir) if config.share_dir else None
    workspace = Workspace(run_dir, share)
    context = RunContext(config, workspace, device, trained=open_trained(config), until=until)
    before = {stage["name"]: stage for stage in read_stages(run_dir)}
    size, lines, total = _made_size(config), [], 0.0
    for stage in stages(context):
        state, record = workspace.look(stage)
        if stage.name == "graph" and state == "kept":
            facts = record["detail"]
            nodes, edges, attributes = facts["nodes"], facts["edges"], facts["attributes"]
            size = Size(nodes, edges, 2 * edges, attributes, nodes * attributes)
        seconds = 0.0 if state == "kept" else _seconds(stage.name, before, size)
        total += seconds or 0.0
        lines.append(_line(stage, state, seconds, size, config))
    if size is not None:
        lines.append(f"{'in all':<32}{total:>7.0f} s")
    if differing := changed(run_dir, config):
        lines.append(f"since the last run here: {', '.join(differing)}")
    if size is None:
        lines.append("sizes are not known before the graph is read: hcm-scale ingest, with the same words")
    head = f"{'stage':<22}{'':<10}{'about':>9}{'memory':>12}{'disk':>12}"
    return "\n".join([f"run_dir={run_dir}, {device}", head, *lines])


def _line(stage: Stage, state: str, seconds: float | None, size: Size | None, config: Config) -> str:
    if state == "kept":
        return f"{stage.name:<22}kept"
    memory: int | None = None  # bytes that the fastest way to make it holds
    with contextlib.suppress(KeyError, OSError, ValueError):  # a folder that it reads is not there
        memory = stage.needs()[0].held if stage.needs is not None else None
    disk = None if size is None else disk_bytes(stage.name, size, config)
    cells = f"{'?' if seconds is None else f'{seconds:.0f} s':>9}{_gib(memory):>12}{_gib(disk):>12}"
    return f"{stage.name:<22}{state:<10}{cells}"


def _seconds(name: str, before: Mapping[str, Any], size: Size | None) -> float | None:
    """Seconds that the stage took here before, else by the size of the graph; None if that is unknown."""
    if name in before:
        return float(before[name]["seconds"])
    if size is None:
        return None
    fixed, more = next(costs for start, costs in _SECONDS.items() if name.startswith(start))
    return fixed + more * size.num_edges / 1e6


def disk_bytes(name: str, size: Size, config: Config) -> int | None:
    """Bytes that a stage leaves on disk, about; None for those that leave little."""
    n, m, features = size.num_nodes, size.num_edges, 4 * size.num_nodes * size.num_attributes
    if name == "graph":
        return 8 * n + 8 * m + features
    if name == "purified":
        return 8 * n + int(8 * m * (1 - config.purify.ratio)) + features
    if name.startswith("propagated"):
        return features
    if name.startswith("scores"):
        return 8 * m + _SCORE_BYTES * n
    if name == "labels":
        sources = min(n, config.hops.num_sources or n)
        return 4 * sources * min(n, config.hops.classes * (config.hops.pairs_per_class or n))
    return None


def _made_size(config: Config) -> Size | None:
    """The size of a generated graph; None for files, of which nothing is known before they are read."""
    graph = config.graph
    if isinstance(graph, SyntheticGraph):
        return Size.made(graph.num_nodes, graph.edges_per_node, graph.num_attributes)
    return Size.made(20_000, 8, 20) if graph.source == "default" else None


def changed(run_dir: Path, config: Config) -> list[str]:
    """Options that differ from those of the last run in this folder, as `key: before -> now`."""
    before = stored_options(run_dir)
    now = dict(flatten(json.loads(json.dumps(asdict(config)))))
    places = ("run_dir", "share_dir", "data_dir", "overwrite")
    differing = [key for key in now if key not in places and before.get(key, now[key]) != now[key]]
    return [f"{key}: {before[key]} -> {now[key]}" for key in differing]


def _gib(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / 2**20:.0f} MiB"
