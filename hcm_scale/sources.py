"""Where a graph comes from: the configuration's section `graph`, turned into a function that writes a graph folder.

One function a kind of source, found by the section's type.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hcm_scale import config as schema
from hcm_scale.ingest import readers
from hcm_scale.ingest.batches import files_at
from hcm_scale.stages import ingest as ingest_stage
from hcm_scale.stages.ingest import Reader


def reader(graph: schema.GraphConfig, known: list[readers.Encoding] | None = None) -> Reader:
    """How to read the source that the configuration names; `known` is how an earlier table's columns were encoded."""
    if isinstance(graph, schema.TablesGraph):
        return _tables(graph, known)
    return _READERS[type(graph)](graph)


def stamp(graph: schema.GraphConfig) -> list[Any]:
    """What tells that the user's files changed: their names, sizes and times.

    Empty for graphs that are made, and for a torch_geometric data set: its name says which it is, and its folder, which
    other data sets share, is filled by the first read.
    """
    if isinstance(graph, schema.PygGraph):
        return []
    named = [path for path in (getattr(graph, "path", ""), getattr(graph, "nodes", None)) if path]
    return [[[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files_at(path)] for path in named]


def check_apart(graph: schema.GraphConfig, run_dir: Path) -> None:
    """Refuses a source that the run would write over: one in the folder of a stage."""
    for option in ("path", "nodes"):
        given = getattr(graph, option, None)
        if given and Path(given).resolve().is_relative_to(run_dir.resolve() / "graph"):
            raise ValueError(f"graph.{option}={given} lies where run_dir={run_dir} keeps its own graph; name another")


def _tables(graph: schema.TablesGraph, known: list[readers.Encoding] | None) -> Reader:
    columns = readers.Columns(
        source=graph.source_column,
        target=graph.target_column,
        id=graph.id_column,
        label=graph.label_column,
        attributes=None if graph.include is None else tuple(graph.include),
        exclude=tuple(graph.exclude),
        max_categories=graph.max_categories,
        hash_buckets=graph.hash_buckets,
        categorical=tuple(graph.categorical),
        id_type=graph.id_type,
    )
    policy = _policy(graph, unknown=graph.unknown, repeated=graph.repeated)
    return lambda out: readers.read_tables(out, graph.path, graph.nodes, columns=columns, policy=policy, known=known)


def _matrix(graph: schema.MatrixGraph) -> Reader:
    policy = _policy(graph, num_nodes=graph.num_nodes)
    return lambda out: readers.read_matrix(out, graph.path, keys=graph.keys or None, policy=policy)


def _pyg(graph: schema.PygGraph) -> Reader:
    policy = _policy(graph)
    return lambda out: readers.read_dataset(out, graph.dataset, graph.path, policy=policy)


def _synthetic(graph: schema.SyntheticGraph) -> Reader:
    return ingest_stage.make_synthetic(**{k: v for k, v in asdict(graph).items() if k not in ("source", "name")})


def _default(graph: schema.GraphConfig) -> Reader:
    return ingest_stage.make_default(getattr(graph, "seed", 0))


def _policy(graph: schema.PolicyGraph, **more: Any) -> readers.Policy:
    shared = ("directed", "nonfinite", "featureless", "max_bytes")
    return readers.Policy(**{name: getattr(graph, name) for name in shared}, **more)


_READERS: dict[type[schema.GraphConfig], Callable[[Any], Reader]] = {
    schema.MatrixGraph: _matrix,
    schema.PygGraph: _pyg,
    schema.SyntheticGraph: _synthetic,
    schema.FolderGraph: lambda graph: ingest_stage.copy_folder(graph.path),
    schema.DefaultGraph: _default,
    schema.GraphConfig: _default,
}
