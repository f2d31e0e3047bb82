"""The public functions of ingest: each reads one kind of source into a checked graph folder.

| what                                   | reader                    |
|----------------------------------------|---------------------------|
| Parquet or CSV tables                  | `tables.read_tables`      |
| .npz, .npy, scipy sparse .npz, .mat    | `read_matrix`             |
| torch_geometric `Data`                 | `libraries.read_data`     |
| scipy sparse matrices in memory        | `matrices.read_sparse`    |

Each takes the folder to write first and a `Policy` as keyword, writes the folder whole or not at all in bounded memory
(at most three times the finished graph), and returns it opened; `ingest_summary(graph).table()` is what to print.
What is wrong with a file is an `InputError`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hcm_scale import plugins
from hcm_scale.base import files
from hcm_scale.base.files import MANIFEST
from hcm_scale.graph.store import Graph
from hcm_scale.ingest.edge_columns import METHOD, EdgeEncoding
from hcm_scale.ingest.encode import Encoding as NodeEncoding
from hcm_scale.ingest.encode import encoding_from_json
from hcm_scale.ingest.libraries import read_data
from hcm_scale.ingest.matlab import read_mat
from hcm_scale.ingest.matrices import read_matrices, read_sparse
from hcm_scale.ingest.policy import DEFAULT_POLICY, EXCLUDED, Columns, IngestSummary, InputError, Policy
from hcm_scale.ingest.table_files import CSV, PARQUET
from hcm_scale.ingest.tables import column_table, read_tables

Encoding = NodeEncoding | EdgeEncoding
MATRICES = (".mat", ".npz", ".npy")


def kind_of(where: str) -> str:
    """The source that reads what is there; tables where nothing says otherwise.

    >>> kind_of("a/Enron.mat"), kind_of("https://x.org/edges.csv?key=a.mat")
    ('matrix', 'tables')
    """
    path = Path(where.partition("?")[0] if where.startswith("http") else where)
    if (path / MANIFEST).is_file():
        return "folder"
    if path.suffix in MATRICES or (path.is_dir() and any(path.glob("*.npy"))):
        return "matrix"
    is_ours = path.is_dir() or not path.suffix or path.name.endswith(PARQUET + CSV)
    return "tables" if is_ours or not plugins.is_known("readers", path.suffix[1:]) else "reader"


__all__ = [
    "Columns",
    "Encoding",
    "IngestSummary",
    "InputError",
    "Policy",
    "column_encodings",
    "column_report",
    "ingest_summary",
    "read_data",
    "read_matrix",
    "read_sparse",
    "read_tables",
]


def read_matrix(
    out: Path | str, path: str | Path, *, keys: Mapping[str, str] | None = None, policy: Policy = DEFAULT_POLICY
) -> Graph:
    """Reads a .mat, .npz or .npy file, or a folder of .npy files, by its suffix."""
    path = Path(path)
    if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise InputError(f"graph.path={str(path)!r} does not exist, or is neither a file nor a folder")
    if path.is_dir() or path.suffix in (".npz", ".npy"):
        return read_matrices(out, path, keys or {}, policy)
    if path.suffix == ".mat":
        return read_mat(out, path, keys or {}, policy)
    raise InputError(f"graph.path={str(path)!r} must end in .mat, .npz or .npy, or be a folder of .npy files")


def column_report(graph: Graph) -> str:
    """What became of every column of the tables, a line each; empty where the graph was not read from one."""
    return column_table(graph.info.get("ingest", {}).get("told", []))


def column_encodings(graph: Graph) -> list[Encoding] | None:
    """How the columns of tables became attributes; None where the graph was not read from tables, or has none."""
    described = [one for one in graph.info.get("ingest", {}).get("columns", []) if one["method"] != "degree"]
    made: Any = {METHOD: partial(files.typed, kind=EdgeEncoding)}
    with files.naming_damage((graph.path or Path()) / MANIFEST):
        return [made.get(column["method"], encoding_from_json)(column) for column in described] or None


def missing_columns(graph: Graph, trained: Sequence[Encoding]) -> list[str]:
    """The columns that became attributes of the trained graph, and that the tables of this one do not have."""
    there = {line["column"] for line in graph.info.get("ingest", {}).get("told", [])}
    return [one.name for one in trained if one.names and not isinstance(one, EdgeEncoding) and one.name not in there]


def new_columns(graph: Graph, trained: Graph) -> list[str]:
    """The columns of tables that those of the trained graph did not have, but for what an option leaves out."""
    now, before = (one.info.get("ingest", {}).get("told", []) for one in (graph, trained))
    with files.naming_damage((trained.path or Path()) / MANIFEST):
        there = {(line["table"], line["column"]) for line in before}
    new = [line for line in now if (line["table"], line["column"]) not in there and line["use"] != EXCLUDED]
    return [line["column"] for line in new]


def recoded_columns(graph: Graph, other: Graph) -> list[str]:
    """The columns of tables that became attributes of both graphs, or of one, in different ways."""
    coded = []
    for one in (graph, other):
        info = one.info.get("ingest", {})
        with files.naming_damage((one.path or Path()) / MANIFEST):
            ways = {line["column"]: None for line in info.get("told", [])}
            coded.append(ways | {column["name"]: column["method"] for column in info.get("columns", [])})
    return [name for name in coded[0] if name in coded[1] and coded[0][name] != coded[1][name]]


def new_values(graph: Graph) -> list[str]:
    """The columns of texts with values that the trained graph did not have."""
    return list(graph.info.get("ingest", {}).get("new_values", {}))


def ingest_summary(graph: Graph) -> IngestSummary:
    """What was counted when this graph was read."""
    counts = graph.info.get("ingest", {}).get("counts")
    if not counts:
        raise ValueError("this graph was not read by ingest: it has no summary")
    return IngestSummary(**counts)
