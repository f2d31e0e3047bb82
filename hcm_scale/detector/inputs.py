"""What `fit` may be given, each as the section of the configuration that describes it and a way to read it.

| given                                                    | section      |
|----------------------------------------------------------|--------------|
| `Graph`, or the path of its folder                       | FolderGraph  |
| tables in memory or their paths: edges, or (edges, nodes) | TablesGraph  |
| a networkx graph                                         | TablesGraph  |
| (scipy sparse adjacency, attributes)                     | MatrixGraph  |
| the path of a .mat, .npz or .npy, or a folder of .npy    | MatrixGraph  |
| a torch_geometric `Data`                                 | PygGraph     |

Options of `graph.` are checked against the section. What lies in files is read by the run itself, as on the command
line; the rest is read into a folder first, by the same readers.
"""

import dataclasses
import glob
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base import console, remote
from hcm_scale.config import FolderGraph, GraphConfig, MatrixGraph, PygGraph, TablesGraph
from hcm_scale.graph import Graph
from hcm_scale.ingest import guess, libraries
from hcm_scale.ingest.readers import (
    Encoding,
    InputError,
    Policy,
    column_encodings,
    kind_of,
    read_data,
    read_sparse,
    read_tables,
)
from hcm_scale.ingest.table_files import as_arrow, index_of, is_table
from hcm_scale.run import sources

log = logging.getLogger(__name__)
COLUMNS = ("source_column", "target_column", "id_column", "label_column")  # that fit takes, beside tables
_LEGAL = (
    "a torch_geometric Data, a networkx graph, tables of edges or of (edges, nodes) in pandas, Polars, Arrow or files, "
    "(scipy sparse adjacency, attributes), a Graph, or the path of a graph"
)
NETWORKX = "a networkx graph"
Read = Callable[..., Graph]  # of a folder and a section; tables also of the columns of an earlier one


@dataclasses.dataclass(frozen=True)
class Input:
    """`what` it is in words, the `section` to set options on, how to `read` it, None where the section says all of it.

    `tables` are the edges and nodes of a TablesGraph, each a path or an Arrow table; `hint` is said where their columns
    cannot be guessed.
    """

    what: str
    section: GraphConfig
    read: Read | None = None
    tables: tuple[Any, Any] | None = None
    hint: str = ""


def read_input(data: Any) -> Input:
    """Finds out what was given; TypeError where it is nothing that can be read."""
    if isinstance(data, Graph):
        return Input("a Graph", FolderGraph(), lambda _, section: data)
    if hasattr(data, "edge_index") and not is_table(data):
        read: Read = lambda out, section: read_data(out, data, policy=_policy(section))  # noqa: E731
        return Input("a torch_geometric Data", PygGraph(name="data"), read)
    if libraries.is_networkx(data):
        return _networkx(data)
    if isinstance(data, str | Path):
        return _path(data)
    first, second = data if isinstance(data, tuple | list) and len(data) == 2 else (data, None)
    if hasattr(first, "tocoo"):
        return Input(
            "a scipy matrix", MatrixGraph(), lambda out, section: read_sparse(out, first, second, _policy(section))
        )
    if all(isinstance(part, str | Path) or is_table(part) for part in (first, *([] if second is None else [second]))):
        parts = zip((first, second), ("the edge table", "the node table"), strict=True)
        edges, nodes = (
            as_arrow(part, what) if is_table(part) else part and _existing_path(part) for part, what in parts
        )
        return dataclasses.replace(_tables("tables", (edges, nodes), TablesGraph()), hint=_index_hint(second))
    named = type(data).__name__ if second is None else f"({type(first).__name__}, {type(second).__name__})"
    raise TypeError(f"data is of type {named}; legal are {_LEGAL}")


def _networkx(data: Any) -> Input:
    edges, nodes = libraries.tables_of(data)
    names = Counter(nodes[libraries.ID].to_pylist())
    if len(nodes) < 2:
        held = "one node" if len(nodes) else "no nodes"
        raise InputError(f"the networkx graph has {held}; legal are two or more, joined by edges")
    name, count = names.most_common(1)[0]
    if count > 1:
        raise InputError(
            f"{count} nodes of the networkx graph are called {name!r}: its ids are of mixed type, became text, and "
            "collide; give them names that differ as text, as networkx.relabel_nodes does"
        )
    section = TablesGraph(name="networkx", directed=data.is_directed(), id_column=libraries.ID)
    return _tables(NETWORKX, (edges, nodes), section)


def _existing_path(path: str | Path) -> str:
    """The path as text; InputError with names that are alike where nothing is there."""
    where = str(path)
    if not (remote.is_url(where) or glob.has_magic(where) or Path(where).exists()):
        raise InputError(console.missing_file_text(where))
    return where


def _index_hint(nodes: Any) -> str:
    """What to say of a pandas index that has no name and is not the usual one: it may hold the ids."""
    index: Any = getattr(nodes, "index", None)
    if not hasattr(index, "names") or type(index).__name__ == "RangeIndex" or None not in index.names:
        return ""
    return "; its pandas index has no name, so it is no column: nodes.rename_axis('id') makes it one"


def _path(path: str | Path) -> Input:
    kind = kind_of(_existing_path(path))
    if kind == "folder":
        return Input("a graph folder", FolderGraph(path=str(path)))
    if kind == "matrix":
        return Input("a matrix file", MatrixGraph(path=str(path)))
    return _tables("tables", (str(path), None), TablesGraph())


def _tables(what: str, parts: tuple[Any, Any], section: TablesGraph) -> Input:
    if all(isinstance(part, str | None) for part in parts):
        return Input(what, dataclasses.replace(section, path=parts[0], nodes=parts[1]), None, parts)

    def read(out: Path, section: TablesGraph, known: list[Encoding] | None = None) -> Graph:
        return read_tables(out, *parts, **sources.table_options(section), known=known)

    return Input(what, section, read, parts)


def column_options(given: Input, said: dict[str, str | None]) -> dict[str, str]:
    """The options that name the columns of tables: those that were said, and for the others a guess, which is logged.

    `said` are `COLUMNS`, as fit was given them or else the options; None is unsaid.
    """
    known = {name: value for name, value in said.items() if value is not None}
    if given.tables is None:
        for name, value in known.items():
            raise ValueError(f"{name}={value!r} means nothing for {given.what}: it names a column of a table")
        return {}
    if given.what == NETWORKX:
        for name in known.keys() - {"label_column"}:
            raise ValueError(f"{name}={known[name]!r} means nothing for {NETWORKX}, which knows its nodes")
        return known
    max_bytes = getattr(given.section, "max_bytes", 0)
    try:
        found = guess.guess_columns(given.tables, known, max_bytes)
    except InputError as error:
        raise InputError(f"{error}{given.hint}") from error
    guessed = [f"{name}={value!r}" for name, value in found.items() if name not in known]
    if guessed:
        log.info("guessed from the tables: %s", ", ".join(guessed))
    return found


def read_with_encodings(given: Input, out: Path, section: GraphConfig, trained: Path) -> Graph | None:
    """Reads what was given, tables by the columns of the graph folder `trained`; None where the run reads it itself."""
    if given.read is None:
        return None
    if given.tables is None:
        return given.read(out, section)
    return given.read(out, section, column_encodings(Graph.open(trained, verify=False)))


def from_section(out: Path, section: GraphConfig) -> Graph:
    """Reads what a section describes all of."""
    return sources.reader(section)(out)


def labels_of(data: Any) -> Any:
    """`y` of a torch_geometric `Data` that holds 0 and 1; None where there is none, or another, which is warned of."""
    y = getattr(data, "y", None) if hasattr(data, "edge_index") and not is_table(data) else None
    if y is None:
        return None
    values = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
    if values.size == data.num_nodes and np.isin(values, (0, 1)).all():
        return values
    told = f"{values.dtype} of shape {values.shape}"
    if values.size and values.dtype.kind in "biuf":
        told += f" from {values.min()} to {values.max()}"
    legal = "0 or 1 for each node; fit(data, label) takes them too"
    warnings.warn(f"data.y is not taken as known anomalies: it is {told}; legal is {legal}", stacklevel=4)
    return None


def check_label(label: Any) -> None:
    """Refuses a table, or the path of one, in the place of known anomalies, before anything is read."""
    shape: Any = getattr(label, "shape", ())
    if isinstance(label, str | Path) or (len(shape) == 2 and shape[1] != 1):
        raise TypeError(
            "a table was given as y; the tables of edges and nodes are one argument: fit((edges, nodes)). Legal as y, "
            "or label, is 0 or 1 for each node"
        )


def with_label(graph: Graph, label: Any) -> Graph:
    """The graph with known anomalies: 0 or 1 for each node, in node order or with a pandas index of their ids."""
    y = np.asarray(label.cpu() if hasattr(label, "cpu") else label).ravel()
    if len(y) != graph.num_nodes:
        raise InputError(f"label has {len(y):,} entries for {graph.num_nodes:,} nodes; they must be equal")
    if not np.isin(y, (0, 1)).all():
        raise InputError("label holds other values than 0 and 1")
    index = index_of(label)
    y = y if index is None else y[_places_of_nodes(graph, index)]
    return dataclasses.replace(graph, y=y.astype(np.uint8), kind=None)


def _places_of_nodes(graph: Graph, index: Any) -> NDArray[np.int64]:
    """Where the id of each node stands in a pandas index of as many entries."""
    ids = pa.array(np.arange(graph.num_nodes)) if graph.ids is None else graph.ids
    try:
        places = pc.index_in(ids, pa.array(index.tolist()).cast(ids.type))
    except (pa.ArrowException, TypeError, OverflowError):  # of another type than the ids
        places = pa.nulls(len(ids), pa.int32())
    if places.null_count:
        missing = ids.filter(places.is_null())[0].as_py()
        raise InputError(
            f"the pandas index of label has no {missing!r}, which is the id of a node; it begins with {index[0]!r}. "
            f"Legal are the ids of all nodes, in any order, or 0 .. {graph.num_nodes - 1}; label.to_numpy() is taken "
            "in the order of the nodes"
        )
    return np.asarray(places, np.int64)


def _policy(section: GraphConfig) -> Policy:
    names = [entry.name for entry in dataclasses.fields(Policy) if hasattr(section, entry.name)]
    return Policy(**{name: getattr(section, name) for name in names})
