"""The inputs of `fit`: each as a section of the configuration and a function that reads it into a graph folder.

| input                                                     | section      |
|-----------------------------------------------------------|--------------|
| `Graph`, or the path of a graph folder                    | FolderGraph  |
| tables in memory or their paths: edges, or (edges, nodes) | TablesGraph  |
| a networkx graph, a torch_geometric `HeteroData`          | TablesGraph  |
| (scipy sparse adjacency, attributes)                      | MatrixGraph  |
| the path of a .mat, .npz or .npy, or a folder of .npy     | MatrixGraph  |
| (edge_index, x)                                           | MatrixGraph  |
| (edge_index, edge_attr, time), `TemporalData`             | TablesGraph  |
| a torch_geometric `Data`                                  | PygGraph     |

Options of `graph.` are checked against the section. Files are read by the run itself, as on the command line; data in
memory are first written to a scratch folder, by the same readers.
"""

import dataclasses
import glob
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
import torch
from numpy.typing import NDArray

from hcm_scale.base import console, remote
from hcm_scale.config import FolderGraph, GraphConfig, MatrixGraph, PygGraph, ReaderGraph, TablesGraph
from hcm_scale.graph import Graph
from hcm_scale.graph.store import NodeTypes
from hcm_scale.ingest import guess, libraries
from hcm_scale.ingest.readers import Encoding, InputError, kind_of, read_data, read_sparse, read_tables
from hcm_scale.ingest.table_files import as_arrow, index_of, is_table, join_tables, table_parts
from hcm_scale.ingest.tables import ColumnLine
from hcm_scale.run import sources

log = logging.getLogger(__name__)
_OF_ROWS = ("time_column", "amount_column", "currency_column", "category_column")
COLUMNS = ("source_column", "target_column", "id_column", "label_column", "node_type_column", *_OF_ROWS)  # of `fit`
Read = Callable[[Path, Any, list[Encoding] | None], Graph]
_NETWORKX = "a networkx graph"
_LEGAL = (
    "a torch_geometric Data or HeteroData, a networkx graph, tables of edges or of (edges, nodes) in pandas, Polars, "
    "Arrow or files (nodes also as a dict of tables by type), (scipy sparse adjacency, attributes), (edge_index, x), "
    "(edge_index, edge_attr, time), a torch_geometric TemporalData, a Graph, or the path of a graph"
)


@dataclasses.dataclass(frozen=True)
class Input:
    """What `fit` was given.

    `read(out, section, encodings)` makes the graph in the folder `out`; encodings, for tables, are those of the columns
    of an earlier graph, or None. `tables` are the edges and nodes of a TablesGraph, each a path or an Arrow table, and
    `hint` ends the message of an error about their columns. `lines` say what became of fields that `read` leaves out.
    """

    what: str
    section: GraphConfig
    read: Read = lambda out, section, encodings: sources.reader(section, encodings)(out)
    in_memory: bool = False
    tables: tuple[Any, Any] | None = None
    hint: str = ""
    lines: Sequence[ColumnLine] = ()


def events_of(data: Any) -> Any:
    """The table of a `TemporalData` or of (edge_index, edge_attr, time); anything else as it is."""
    if hasattr(data, "src") and hasattr(data, "num_events"):
        return libraries.event_table((data.src, data.dst), getattr(data, "msg", None), data.t)
    are_events = isinstance(data, tuple) and len(data) == 3 and not any(is_table(one) for one in data)
    return libraries.event_table(*data) if are_events else data


def read_input(data: Any) -> Input:
    """Input of any supported form; TypeError for any other."""
    if isinstance(data, Graph):
        return Input("a Graph", FolderGraph(), lambda out, section, _: data, in_memory=True)
    data = events_of(data)
    if _is_pyg(data):
        read: Read = lambda out, section, _: read_data(out, data, policy=sources.policy_of(section))  # noqa: E731
        lines = libraries.field_lines(data)
        return Input("a torch_geometric Data", PygGraph(name="data"), read, in_memory=True, lines=lines)
    if libraries.is_networkx(data):
        return _networkx_input(data)
    if isinstance(data, str | Path):
        path = _existing_path(data)
        kind = kind_of(path)
        if kind == "folder":
            return Input("a graph folder", FolderGraph(path=path))
        if kind == "reader":
            return Input("a file that a plug-in reads", ReaderGraph(path=path))
        return Input("a matrix file", MatrixGraph(path=path)) if kind == "matrix" else _tables_input((path, None))
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):  # of torch_geometric
        return dataclasses.replace(read_input(libraries.hetero_tables(data)), lines=libraries.field_lines(data))
    first, second = data if isinstance(data, tuple | list) and len(data) == 2 else (data, None)
    if isinstance(second, Mapping) and any(isinstance(table, str | Path) for table in second.values()):
        raise TypeError("a dict of node tables by type holds tables in memory; files are named 'users.csv,shops.csv'")
    second = join_tables(second) if isinstance(second, Mapping) else second
    if hasattr(first, "tocoo"):
        read = lambda out, section, _: read_sparse(out, first, second, sources.policy_of(section))  # noqa: E731
        return Input("a scipy matrix", MatrixGraph(), read, in_memory=True)
    if all(
        isinstance(table, str | Path) or is_table(table) for table in (first, *([] if second is None else [second]))
    ):
        edges, nodes = (
            as_arrow(table, f"the {what} table") if is_table(table) else table and _existing_path(table)
            for table, what in ((first, "edge"), (second, "node"))
        )
        return dataclasses.replace(_tables_input((edges, nodes)), hint=_index_hint(second))
    if isinstance(first, np.ndarray | torch.Tensor):
        return read_input(_as_adjacency(first, second))
    kinds = [type(each).__name__ for each in data] if isinstance(data, tuple) else []
    kind = f"({', '.join(kinds)})" if kinds else type(data).__name__
    raise TypeError(f"data is of type {kind}; legal are {_LEGAL}")


def _is_pyg(data: Any) -> bool:
    return hasattr(data, "edge_index") and not is_table(data)


def _as_adjacency(edge_index: Any, x: Any) -> tuple[scipy.sparse.coo_array, Any]:
    """(adjacency, attributes) of an edge_index, an array or tensor (2, E), and attributes of nodes; else TypeError."""
    ends, x = (array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array for array in (edge_index, x))
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        raise TypeError(
            f"an array of {ends.dtype} of shape {ends.shape} is not taken for edges; legal are whole numbers as "
            "edge_index (2, E), or an adjacency matrix as scipy.sparse.csr_array(a): fit((edges, x))"
        )
    size = int(ends.max(initial=0)) + 1 if x is None else len(x)
    with libraries.reading(f"edge_index and x, which is of {size:,} nodes, do not go together"):
        return scipy.sparse.coo_array((np.ones(ends.shape[1], np.float32), ends), shape=(size, size)), x


def _networkx_input(data: Any) -> Input:
    edges, nodes = libraries.tables_of(data)
    if len(nodes) < 2:
        held = "one node" if len(nodes) else "no nodes"
        raise InputError(f"the networkx graph has {held}; legal are two or more, joined by edges")
    name, count = Counter(nodes[libraries.ID_COLUMN].to_pylist()).most_common(1)[0]
    if count > 1:
        raise InputError(
            f"{count} nodes of the networkx graph are called {name!r}: its ids are of mixed type, became text, and "
            "collide; give them names that differ as text, as networkx.relabel_nodes does"
        )
    section = TablesGraph(name="networkx", directed=data.is_directed(), id_column=libraries.ID_COLUMN)
    return _tables_input((edges, nodes), _NETWORKX, section)


def _tables_input(tables: tuple[Any, Any], what: str = "tables", section: TablesGraph | None = None) -> Input:
    section = section or TablesGraph()
    if all(isinstance(table, str | None) for table in tables):
        return Input(what, dataclasses.replace(section, path=tables[0], nodes=tables[1]), tables=tables)

    def read(out: Path, section: TablesGraph, encodings: list[Encoding] | None) -> Graph:
        return read_tables(out, *tables, **sources.table_options(section), trained=encodings)

    return Input(what, section, read, in_memory=True, tables=tables)


def _existing_path(path: str | Path) -> str:
    """Path as text; InputError with similar names if nothing is there."""
    for path_of_table in table_parts("graph.nodes", str(path)):
        if not (remote.is_url(path_of_table) or glob.has_magic(path_of_table) or Path(path_of_table).exists()):
            raise InputError(console.missing_file_text(path_of_table))
    return str(path)


def _index_hint(nodes: Any) -> str:
    """Advice for a pandas index without a name that may hold the ids; empty for any other."""
    index: Any = getattr(nodes, "index", None)
    if not hasattr(index, "names") or type(index).__name__ == "RangeIndex" or None not in index.names:
        return ""
    return "; its pandas index has no name, so it is no column: nodes.rename_axis('id') makes it one"


def column_options(given: Input, named: Mapping[str, str]) -> dict[str, str]:
    """Columns of the tables by the option that names each: those in `named`, and guesses for the others, logged."""
    if given.tables is None:
        for name, value in named.items():
            raise ValueError(f"{name}={value!r} means nothing for {given.what}: it names a column of a table")
        return {}
    if given.what == _NETWORKX:
        for name in named.keys() - {"label_column", "node_type_column"}:
            raise ValueError(f"{name}={named[name]!r} means nothing for {_NETWORKX}, which knows its nodes")
        return dict(named)
    try:
        guessed = guess.guess_columns(given.tables, dict(named))
    except InputError as error:
        raise InputError(f"{error}{given.hint}") from error
    guesses = [f"{name}={value!r}" for name, value in guessed.items() if name not in named]
    if guesses:
        log.info("guessed from the tables: %s", ", ".join(guesses))
    return guessed


def find_label(data: Any, label: Any = None, y: Any = None) -> Any:
    """Known anomalies, unchecked: `label`, or else `y`, or else `y` of a `Data` that holds 0 and 1; None without any.

    Any other `y` of a `Data` is ignored with a warning; a table instead of a label is a TypeError.
    """
    if label is not None and y is not None:
        raise TypeError("label and y are two names for the known anomalies; give one of them")
    label = y if label is None else label
    shape: Any = getattr(label, "shape", ())
    if isinstance(label, str | Path) or (len(shape) == 2 and shape[1] != 1):
        raise TypeError(
            "a table was given as y; the tables of edges and nodes are one argument: fit((edges, nodes)). Legal as y, "
            "or label, is 0 or 1 for each node"
        )
    own = getattr(data, "y", None) if label is None and _is_pyg(data) else None
    if own is None:
        return label
    values = np.asarray(own.detach().cpu() if hasattr(own, "detach") else own)
    if values.size == data.num_nodes and np.isin(values, (0, 1)).all():
        return values
    held = f"{values.dtype} of shape {values.shape}"
    if values.size and values.dtype.kind in "biuf":
        held += f" from {values.min()} to {values.max()}"
    legal = "0 or 1 for each node; fit(data, label) takes them too"
    warnings.warn(f"data.y is not taken as known anomalies: it is {held}; legal is {legal}", stacklevel=4)
    return None


def has_unknown(y: Any) -> bool:
    """Whether y holds verdicts, 1 bad, 0 good, -1 unknown, and not a label, in which nothing is unknown."""
    shape: tuple[int, ...] = getattr(y, "shape", ())
    is_column = len(shape) < 2 or shape[1] == 1
    return y is not None and not isinstance(y, str | Path) and is_column and bool(np.any(_numbers(y) == -1))


def _numbers(y: Any) -> NDArray[Any]:
    return np.asarray(y.detach().cpu() if hasattr(y, "detach") else y).ravel()


def as_verdicts(y: Any, ids: pa.ChunkedArray) -> pa.Table:
    """Verdicts that `fit` was given as y, by id.

    `ids` are those of all nodes, in their order; a pandas Series may have some of them as its index.
    """
    values = _numbers(y)
    if not np.isin(values, (-1, 0, 1)).all():
        raise InputError(f"y holds {_first_other(values, -1, 0, 1)}; legal are 1 (bad), 0 (good) and -1 (unknown)")
    index = index_of(y)
    if index is None and len(values) != len(ids):
        raise InputError(f"y has {len(values):,} entries for {len(ids):,} nodes; they must be equal")
    names = ids.cast(pa.large_string()) if index is None else pa.array(list(map(str, index)), pa.large_string())
    words = pa.array(["good", "bad", "none"]).take(pa.array(values.astype(np.int8) % 3))
    return pa.table({"id": names, "verdict": words})


def _first_other(values: NDArray[Any], *legal: int) -> str:
    at = int(np.argmin(np.isin(values, legal)))
    return f"{values[at]} as number {at:,}"


def with_label(graph: Graph, label: Any) -> Graph:
    """Graph with known anomalies: 0 or 1 for each node, in node order or with a pandas index of their ids."""
    y = np.asarray(label.cpu() if hasattr(label, "cpu") else label).ravel()
    if len(y) != graph.num_nodes:
        raise InputError(f"label has {len(y):,} entries for {graph.num_nodes:,} nodes; they must be equal")
    if not np.isin(y, (0, 1)).all():
        raise InputError(f"label holds {_first_other(y, 0, 1)}; legal are 0 and 1, and in y= also -1 (unknown)")
    index = index_of(label)
    if index is not None:
        y = y[_rows_of_ids(pa.array(np.arange(graph.num_nodes)) if graph.ids is None else graph.ids, index)]
    return dataclasses.replace(graph, y=y.astype(np.uint8), kind=None)


def with_lines(graph: Graph, lines: Sequence[ColumnLine]) -> Graph:
    """Graph whose report of columns has these lines too."""
    ingest = graph.info.get("ingest", {})
    told = {"ingest": ingest | {"told": [*ingest.get("told", ()), *map(vars, lines)]}}
    return dataclasses.replace(graph, info=graph.info | told) if lines else graph


def with_types(graph: Graph, node_type: Any) -> Graph:
    """Graph with types of nodes: a text or number for each node, in node order."""
    if len(node_type) != graph.num_nodes:
        raise InputError(f"node_type has {len(node_type):,} entries for {graph.num_nodes:,} nodes; they must be equal")
    return dataclasses.replace(graph, node_types=NodeTypes.of(node_type))


def _rows_of_ids(ids: pa.Array, index: Any) -> NDArray[np.int64]:
    """Position of each id in a pandas index, (n,)."""
    try:
        rows = pc.index_in(ids, pa.array(index.tolist()).cast(ids.type))
    except (pa.ArrowException, TypeError, OverflowError):  # of another type than the ids
        rows = pa.nulls(len(ids), pa.int32())
    if rows.null_count:
        missing = ids.filter(rows.is_null())[0].as_py()
        raise InputError(
            f"the pandas index of label has no {missing!r}, which is the id of a node; it begins with {index[0]!r}. "
            f"Legal are the ids of all nodes, in any order, or 0 .. {len(ids) - 1}; label.to_numpy() is taken "
            "in the order of the nodes"
        )
    return np.asarray(rows, np.int64)


def as_edges(data: Any, source: str, target: str) -> Any:
    """The rows of edges in data of a form that `fit` takes: a table as it is, of other forms one with these columns."""
    data = data[0] if isinstance(data, tuple) else data
    ends: Any = getattr(data, "edge_index", data)
    ends = ends.cpu().numpy() if isinstance(ends, torch.Tensor) else ends
    if hasattr(ends, "tocoo"):  # an adjacency matrix
        ends = np.stack(ends.tocoo().coords)
    elif callable(getattr(ends, "edges", None)):  # networkx
        ends = np.array([*ends.edges()]).T
    if is_table(data) or np.ndim(ends) != 2 or np.shape(ends)[0] != 2:
        return data
    return pa.table({source: np.asarray(ends[0]), target: np.asarray(ends[1])})
