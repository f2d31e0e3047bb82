"""What a run starts from: the source of its graph.

`reader` makes of the configuration's section `graph` a function that writes a graph folder, one a kind of source.

`stamp` says what identifies the content of a source; the checks refuse a source that is not there, that the run would
write over, or that is another than the one of a finished run in the same folder.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale import plugins
from hcm_scale.base import files, remote
from hcm_scale.config import stored_options
from hcm_scale.edges.rows import EdgeRows
from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.graph import Graph
from hcm_scale.ingest import guess, readers
from hcm_scale.ingest.remote import fetched_files, files_stamp, named_files, queries_stamp, query_tables
from hcm_scale.ingest.table_files import CSV, EXCEL, PARQUET, as_arrow, files_at, open_table, table_parts
from hcm_scale.stages import ingest as ingest_stage
from hcm_scale.stages.ingest import Reader

log = logging.getLogger(__name__)
_INPUTS = ("path", "edges", "nodes", "family")


@dataclass(frozen=True)
class Trained:
    """The folders of a finished run that another is made with, and their keys, by the names of the stages."""

    folders: dict[str, Path]
    keys: dict[str, str]


def reader(graph: schema.GraphConfig, encodings: list[readers.Encoding] | None = None) -> Reader:
    """How to read the source that the configuration names; `encodings` are those of an earlier table."""
    path = getattr(graph, "path", "")
    if remote.is_url(path) and not isinstance(graph, schema.TablesGraph | schema.MatrixGraph):
        raise ValueError(f"graph.path={path}: graph={graph.source} takes a folder of this machine; copy it there first")
    if isinstance(graph, schema.ReaderGraph):
        return _plugin(graph, encodings)
    if isinstance(graph, schema.TablesGraph):
        return _sql(graph, encodings) if isinstance(graph, schema.SqlGraph) else _tables(graph, encodings)
    return _READERS[type(graph)](graph)


def absolute(graph: schema.GraphConfig, base: Path) -> schema.GraphConfig:
    """The section with the paths that it names absolute; relative ones are in the folder `base`."""
    if isinstance(graph, schema.SqlGraph):
        path = graph.path.removeprefix("duckdb://")
        inside = base / path.lstrip("/")
        is_relative = path != graph.path and path and not Path(path).is_file() and inside.is_file()
        return replace(graph, path=f"duckdb://{inside.absolute()}") if is_relative else graph
    made = {}
    for name in ("path", "nodes"):
        where = remote.local_path(getattr(graph, name, None) or "")
        if where and not remote.is_url(where):
            parts = [where] if (base / where).exists() else table_parts(f"graph.{name}", where)
            made[name] = ",".join(str((base / part).absolute()) for part in parts)
    return replace(graph, **made)


def local_files(graph: schema.GraphConfig, base: Path | None = None) -> list[Path]:
    """The files of this machine that a source reads, as far as they are there; those of queries are in `base`."""
    if isinstance(graph, schema.SqlGraph):
        return named_files(graph.path, _queries(graph), base)
    paths = []
    for option in ("path", "nodes"):
        where = remote.local_path(getattr(graph, option, None) or "")
        if where and not remote.is_url(where):
            paths += [path for part in table_parts(f"graph.{option}", where) for path in files_at(part)]
    return paths


def would_read(graph: schema.GraphConfig, path: Path) -> bool:
    """Whether a source would read a file that is not there yet, since it lies in a folder or glob that it names."""
    path = path.absolute()
    is_table = isinstance(graph, schema.TablesGraph) and path.name.endswith((*PARQUET, *CSV, *EXCEL))
    if not is_table or isinstance(graph, schema.SqlGraph):
        return False
    named = [remote.local_path(getattr(graph, option, None) or "") for option in ("path", "nodes")]
    own = [Path(part).absolute() for where in named if where for part in table_parts("graph.nodes", where)]
    return any(one in path.parents if one.is_dir() else fnmatchcase(str(path), str(one)) for one in own)


def content_hash(stamps: list[Any]) -> str:
    """What identifies the content of a source wherever its files lie, from what `stamp` returns."""
    lists = [entry if isinstance(entry, list) else [entry] for entry in stamps]
    return files.hash_value([[one[1] if isinstance(one, tuple) else one for one in entry] for entry in lists])


def stamp(graph: schema.GraphConfig, base: Path | None = None) -> list[Any]:
    """What identifies the content of a source: names and hashes of files (size and time may stay the same when they
    change), what a server says of a URL, a checksum of the rows of a database.

    Empty for graphs that are made.
    """
    if isinstance(graph, schema.SqlGraph):
        return queries_stamp(graph.path, _queries(graph), base)
    if isinstance(graph, schema.FolderGraph) and not (Path(graph.path) / files.MANIFEST).is_file():
        raise readers.InputError(
            f"graph.path={graph.path} is no graph folder: there is no {files.MANIFEST} in it; graph=tables reads tables"
        )
    stamps: list[Any] = []
    if isinstance(graph, schema.ReaderGraph):
        stamps.append(plugins.identity("readers", _reader_name(graph)))
    for option in ("path", "nodes"):
        where = remote.local_path(getattr(graph, option, None) or "")
        if remote.is_url(where):
            stamps.append(files_stamp(f"graph.{option}", where))
        elif where:
            paths = [path for part in table_parts(f"graph.{option}", where) for path in files_at(part)]
            stamps.append([(str(path), files.hash_once(path)) for path in paths])
    return stamps


def check_outside_run_dir(graph: schema.GraphConfig, run_dir: Path) -> None:
    """Refuses a source that the run would write over: one in the folder of a stage."""
    if isinstance(graph, schema.SqlGraph):
        return
    for option in ("path", "nodes"):
        given = remote.local_path(getattr(graph, option, None) or "")
        if given and files.resolved(Path(given)).is_relative_to(files.resolved(run_dir) / "graph"):
            raise ValueError(f"graph.{option}={given} lies where run_dir={run_dir} keeps its own graph; name another")


def check_same_input(graph: schema.GraphConfig, run_dir: Path) -> None:
    """Refuses to put a run in the place of a finished one of another input, which may have taken long."""
    stored = stored_options(run_dir)
    if "graph.source" not in stored or not (run_dir / "scores").exists():
        return
    before = {option: stored.get(f"graph.{option}") or "" for option in ("source", *_INPUTS)}
    for option, value in before.items():
        if not isinstance(value, str):
            raise files.FolderError(f"{run_dir / 'config.json'}: graph.{option}={value!r} is not legal: it is a text")
    base = str(schema.made_in(run_dir).get("in", ""))
    if _input(before, base) != _input(asdict(graph)):
        old, new = _shown_input(before), _shown_input(asdict(graph))
        old += f" in {base}" * (old == new)  # as where the folder of both has moved
        advice = "choose another run_dir, or say overwrite=true to replace it"
        raise ValueError(f"run_dir={run_dir} holds a finished run of {old}, and this one is of {new}: {advice}")


def _input(graph: dict[str, Any], base: str = "") -> list[str]:
    """The source, and its files, by their resolved paths, or queries: equal for two graphs of one input."""
    named = [graph.get(option) or "" for option in _INPUTS]
    at = [os.path.join(base, name) for name in named]  # noqa: PTH118
    exists = os.path.exists  # Path.exists raises where a query is longer than a name may be
    paths = [str(Path(path).resolve()) if name and exists(path) else name for name, path in zip(named, at, strict=True)]
    return [graph["source"], *paths]


def _shown_input(graph: dict[str, Any]) -> str:
    return ", ".join(graph[option] for option in _INPUTS if graph.get(option)) or f"graph={graph['source']}"


def check_exists(graph: schema.GraphConfig) -> None:
    """Refuses a source without graph.path; of a missing data set of an experiment says where it comes from."""
    reads_path = isinstance(graph, schema.TablesGraph | schema.MatrixGraph | schema.FolderGraph)
    if reads_path and not isinstance(graph, schema.SqlGraph) and not getattr(graph, "path", ""):
        what = f"graph={graph.source} reads what it names, such as graph.path=edges.csv"
        raise ValueError(f"graph.path is missing: {what}")
    if isinstance(graph, schema.MatrixGraph) and not remote.is_url(graph.path):
        path = Path(graph.path)
        if path.is_relative_to(os.environ.get("HCM_DATA", "data")) and not path.exists():
            raise readers.InputError(
                f"graph.path={path} is not there: HCM_DATA in the environment names the folder of data sets, and "
                "docs/results.md says which file it is"
            )


def _tables(graph: schema.TablesGraph, encodings: list[readers.Encoding] | None) -> Reader:
    places = {"graph.path": graph.path, "graph.nodes": graph.nodes}

    def read(out: Path) -> Graph:
        with fetched_files(out, places, PARQUET + CSV) as (edges, nodes):
            return readers.read_tables(out, str(edges), nodes, **table_options(graph), trained=encodings)

    return read


@contextlib.contextmanager
def edge_rows(
    source: schema.TablesGraph, beside: Path, graph: Graph, nodes: NDArray[np.int64] | None, base: Path | None = None
) -> Iterator[EdgeRows]:
    """The edge table, or the rows of the query, that a graph was made from, to read rows between some nodes, or all.

    What lies elsewhere is copied beside the folder `beside` meanwhile; files that a query names are in `base`.
    """
    columns = table_options(source)["columns"]
    path: Any
    with contextlib.ExitStack() as stack:
        if isinstance(source, schema.SqlGraph):
            found_at = stack.enter_context(query_tables(beside, source.path, _queries(source), base))
            path, columns = str(found_at[0]), _guessed(source, found_at, columns)
        elif isinstance(source, schema.ReaderGraph):
            tables = _plugin_tables(source)
            path, columns = tables[0], _guessed(source, tables, columns)
        else:
            fetched = fetched_files(beside, {"graph.path": source.path}, PARQUET + CSV)
            path = str(stack.enter_context(fetched)[0])
        yield EdgeRows(open_table("graph.path", path), columns, graph, nodes)


def count_rows(
    source: schema.GraphConfig, beside: Path, edges: StrangeEdges, chosen: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """How many rows of the user's table lie on each edge; None where it would have to be fetched again."""
    if not isinstance(source, schema.TablesGraph) or isinstance(source, schema.SqlGraph) or remote.is_url(source.path):
        return None
    try:
        with edge_rows(source, beside, edges.evidence.graph, edges.nodes_of(chosen)) as rows:
            return rows.count(chosen, edges.evidence.edges.find)
    except (readers.InputError, OSError) as error:  # the scores are made, and stay
        log.warning("the rows of strange edges are not counted: %s", error)
        return None


def _sql(graph: schema.SqlGraph, encodings: list[readers.Encoding] | None) -> Reader:
    def read(out: Path) -> Graph:
        with query_tables(out, graph.path, _queries(graph)) as paths:
            options = table_options(graph)
            options["columns"] = _guessed(graph, paths, options["columns"])
            return readers.read_tables(out, *paths, **options, trained=encodings, origin=", ".join(_queries(graph)))

    return read


def _reader_name(graph: schema.ReaderGraph) -> str:
    return graph.reader or Path(graph.path).suffix.removeprefix(".") or "?"


def _plugin_tables(graph: schema.ReaderGraph) -> list[Any]:
    """The table of edges, and that of nodes if there is one, that the plug-in makes of the file, or a path."""
    name, path = _reader_name(graph), Path(graph.path)
    read, what = plugins.load("readers", name), f"graph.reader={name}"
    if not path.exists():
        raise readers.InputError(f"graph.path={graph.path} is no file or folder of this machine")
    found = read(path)
    tables = [table for table in (found if isinstance(found, tuple) else (found,)) if table is not None]
    if len(tables) != 1 and (len(tables) != 2 or graph.nodes):
        raise ValueError(f"{what} returns {len(tables)} tables; one of edges, and one of nodes unless graph.nodes is")
    return [as_arrow(table, f"the table of {what}") for table in tables] + ([graph.nodes] if graph.nodes else [])


def _plugin(graph: schema.ReaderGraph, encodings: list[readers.Encoding] | None) -> Reader:
    def read(out: Path) -> Graph:
        tables, options = _plugin_tables(graph), table_options(graph)
        options["columns"] = _guessed(graph, tables, options["columns"])
        return readers.read_tables(out, *tables, **options, trained=encodings, origin=graph.path)

    return read


def _guessed(graph: schema.TablesGraph, paths: list[Any], columns: readers.Columns) -> readers.Columns:
    """The columns, with a guess from the rows of the queries, or the tables, for those that no option names."""
    named = {name: getattr(graph, name) for name in guess.COLUMNS}
    given = {name: value for name, value in named.items() if value != getattr(schema.SqlGraph(), name)}
    plain = [str(path) if isinstance(path, Path) else path for path in paths]
    tables = plain[0], plain[1] if len(plain) > 1 else None
    guessed = guess.guess_columns(tables, given, "graph.")
    guess.log_guesses({name: value for name, value in guessed.items() if value != named.get(name)})
    source, target = guessed["source_column"], guessed["target_column"]
    node_type = guessed.get("node_type_column", columns.node_type)
    return replace(columns, source=source, target=target, id=guessed.get("id_column", "id"), node_type=node_type)


def _queries(graph: schema.SqlGraph) -> dict[str, str]:
    return {"graph.edges": graph.edges} | ({} if graph.nodes is None else {"graph.nodes": graph.nodes})


def table_options(graph: schema.TablesGraph) -> dict[str, Any]:
    columns = readers.Columns(
        source=graph.source_column,
        target=graph.target_column,
        id=graph.id_column,
        label=graph.label_column,
        node_type=graph.node_type_column,
        type=graph.type_column,
        weight=graph.weight_column,
        time=graph.time_column,
        amount=graph.amount_column,
        currency=graph.currency_column,
        category=graph.category_column,
        step_seconds=graph.step_seconds,
        attributes=None if graph.include is None else tuple(graph.include),
        exclude=tuple(graph.exclude),
        categorical=tuple(graph.categorical),
        numbers=tuple(graph.numbers),
        id_type=graph.id_type,
        dates=graph.dates,
    )
    return {"columns": columns, "policy": policy_of(graph)}


def _matrix(graph: schema.MatrixGraph) -> Reader:
    def read(out: Path) -> Graph:
        with fetched_files(out, {"graph.path": graph.path}, (".mat", ".npz", ".npy")) as (path,):
            return readers.read_matrix(out, str(path), keys=graph.keys or None, policy=policy_of(graph))

    return read


def policy_of(graph: schema.GraphConfig) -> readers.Policy:
    """What the section says about input that is not clean."""
    names = [entry.name for entry in fields(readers.Policy) if hasattr(graph, entry.name)]
    return readers.Policy(**{name: getattr(graph, name) for name in names})


_READERS: dict[type[schema.GraphConfig], Callable[[Any], Reader]] = {
    schema.MatrixGraph: _matrix,
    schema.SyntheticGraph: lambda graph: ingest_stage.make_synthetic(
        **{name: value for name, value in asdict(graph).items() if name not in ("source", "name")}
    ),
    schema.FolderGraph: lambda graph: ingest_stage.copy_folder(graph.path, graph.featureless),
    schema.DefaultGraph: lambda graph: ingest_stage.make_default(),
    schema.GraphConfig: lambda graph: ingest_stage.make_default(),
}
