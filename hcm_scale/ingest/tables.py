"""Parquet or CSV tables to a graph folder: an edge table, and optionally a node table.

Nodes are numbered by the rows of the node table; without one, by the ascending order of the ids that edges name. Ids
that are 0 .. n - 1 already are not stored. Passes: ids, survey, edges, attributes; each streams (see batches.py), so
peak memory is that of the edge sort or of the mapped attributes, not of the tables.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.graph.build import build_csr
from hcm_scale.graph.store import Graph
from hcm_scale.ingest import attributes as features
from hcm_scale.ingest import node_table
from hcm_scale.ingest.batches import TableFiles
from hcm_scale.ingest.edge_table import EdgeTable
from hcm_scale.ingest.edge_types import write_edge_types
from hcm_scale.ingest.edge_weights import write_weights
from hcm_scale.ingest.encode import Encoding, is_number
from hcm_scale.ingest.errors import InputError, naming
from hcm_scale.ingest.id_column import id_kind
from hcm_scale.ingest.ids import Growing, settled
from hcm_scale.ingest.known import check_table, text_casts
from hcm_scale.ingest.later import later_columns
from hcm_scale.ingest.memory import Where, open_table
from hcm_scale.ingest.node_table import NodeRows
from hcm_scale.ingest.policy import Policy
from hcm_scale.ingest.row_index import index_columns
from hcm_scale.ingest.seal import seal
from hcm_scale.ingest.surveys import TextRules
from hcm_scale.ingest.told import ColumnLine, Counted, amended, edge_lines, node_lines

_NAME = r"^\s*-?(0[0-9xX]|[0-9.]+[eE])"  # an id that could be read as a number, and is more than that


@dataclass(frozen=True)
class Columns:
    """Which column is what, and how text becomes attributes.

    source, target   the id columns of the edge table;  id   of the node table
    type             of the edge table: what kind of edge a row is, told in explanations
    weight           of the edge table: numbers above 0, which add up over the rows of two nodes
    label            a 0/1 column of the node table, 1 = anomaly
    attributes       columns of the node table to use; None is all but id, label, `exclude` and nearly unique text
    categorical      columns to take as text whatever their type, and however many distinct values they have
    id_type          'auto', 'text' or 'integer'; under auto a CSV whose first ids are as 007, 0x1 or 12e2 holds text
    max_categories   a text column with more distinct values than this is hashed into `hash_buckets` columns
    """

    source: str = "source"
    target: str = "target"
    id: str = "id"
    label: str | None = None
    type: str | None = None
    weight: str | None = None
    attributes: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    id_type: str = "auto"
    max_categories: int = 64
    hash_buckets: int = 32

    def __post_init__(self) -> None:
        for name in ("max_categories", "hash_buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"graph.{name}={getattr(self, name)} must be at least 1")


def read_tables(
    out: Path | str,
    edges: Where,
    nodes: Where | None = None,
    *,
    columns: Columns = Columns(),  # noqa: B008
    policy: Policy = Policy(),  # noqa: B008
    known: list[Encoding] | None = None,
    origin: str | None = None,
) -> Graph:
    """Reads the tables at `edges` and `nodes` (file, folder, glob or Arrow table) into the folder `out`; returns it.

    `known` are the encodings of an earlier node table, by which this one is read (known.py). `origin` is what the
    tables are called in messages; None: as their files are.
    """
    edge_table, node_files = _open(edges, nodes, columns, policy.max_bytes)
    origin = origin or edge_table.files.origin + (f", {node_files.origin}" if node_files else "")
    if known is not None and node_files is not None:
        node_files = node_files.with_casts(text_casts(node_files, known))
    if node_files is not None:
        node_files = node_files.with_forms(_attribute_names(node_files, columns))
    with naming(origin):
        _write(Path(out), origin, edge_table, node_files, columns, policy, known)
    return Graph.open(out, verify=False)


def _write(
    out: Path,
    origin: str,
    edge_table: EdgeTable,
    node_files: TableFiles | None,
    columns: Columns,
    policy: Policy,
    known: list[Encoding] | None,
) -> None:
    names = _attribute_names(node_files, columns) if node_files else ()
    features.require(len(names), policy, "" if node_files else "graph.nodes=FILE is the table that has them, or ")
    with files.replacing(out) as folder:
        rows, added = _number_nodes(edge_table, node_files, columns, policy)
        shape = (len(rows.ids) - added, added)
        encodings: list[Encoding] = []
        if node_files is not None and known is not None:
            unused = (columns.id, columns.label or columns.id, *columns.exclude, *_index(node_files, columns))
            encodings = check_table(node_files, known, unused, rows.left_out, policy)
        elif node_files is not None:
            kept = frozenset(columns.categorical + (columns.attributes or ()))
            rules = TextRules(columns.max_categories, columns.hash_buckets, kept)
            encodings = node_table.plan_columns(node_files, names, rows.left_out, added, policy, rules)
        features.require(sum(len(encoding.names) for encoding in encodings), policy)
        ids = settled(rows.ids)
        counts = build_csr(folder, edge_table.chunks(ids, policy.unknown), len(ids), policy.directed)
        types = None
        if columns.type:
            types = write_edge_types(folder, edge_table, columns.type, ids, policy.directed)
        if columns.weight:
            weighed, where = edge_table.weighed(ids, columns.weight), f"graph.weight_column={columns.weight}"
            write_weights(folder, weighed, where, directed=policy.directed, adds_up=True)
        written, num_anomalies = features.FeatureCounts(), None
        if node_files is not None:
            written = node_table.write_features(folder, node_files, encodings, rows.left_out, shape)
            if columns.label:
                num_anomalies = node_table.write_labels(folder, node_files, columns.label, rows.left_out, shape)
        seal(
            folder,
            origin,
            policy,
            counts,
            written,
            ids=ids.column(),
            told=_told(
                edge_table,
                node_files,
                columns,
                policy,
                encodings,
                (len(ids) - added, num_anomalies),
                types,
                trained=known is not None,
            ),
            edge_types=types[0] if types else None,
            weights=columns.weight,
            unknown_edges=edge_table.unknown.count,
            repeated_nodes=len(rows.left_out),
            added_nodes=added if node_files else 0,
            num_anomalies=num_anomalies,
        )


def _told(
    edge_table: EdgeTable,
    node_files: TableFiles | None,
    columns: Columns,
    policy: Policy,
    encodings: list[Encoding],
    counted: tuple[int, int | None],
    types: tuple[list[str], int] | None,
    *,
    trained: bool,
) -> list[ColumnLine]:
    """What became of every column of both tables; `counted` are the rows of the node table and its anomalies."""
    typed = {columns.type: (len(types[0]), types[1])} if columns.type and types else {}
    edge_files = edge_table.files
    lines = edge_lines(edge_files.schema, edge_table.ends, typed, policy.directed, columns.weight)
    lines = amended(lines, _index(edge_files, columns), edge_files.notes, later_columns(edge_files))
    if node_files is None:
        return lines
    num_rows, num_anomalies = counted
    known: dict[str, Counted] = {columns.id: ("names the nodes", num_rows, 0)}
    if columns.label and num_anomalies is not None:
        distinct = 1 + (0 < num_anomalies < num_rows)
        known[columns.label] = ("the label, 1 = anomaly: it measures the ranking and decides nothing", distinct, 0)
    more = node_lines(node_files.schema, known, encodings, columns.exclude, num_rows=num_rows, trained=trained)
    return lines + amended(more, _index(node_files, columns), node_files.notes, later_columns(node_files))


def _open(edges: Where, nodes: Where | None, columns: Columns, max_bytes: int) -> tuple[EdgeTable, TableFiles | None]:
    """Finds the tables, checks the column names, settles the type of the ids."""
    edge_files = open_table("graph.path", edges, max_bytes)
    edge_files.check_columns("graph.source_column", [columns.source])
    edge_files.check_columns("graph.target_column", [columns.target])
    edge_files.check_columns("graph.type_column", [columns.type] if columns.type else [])
    edge_files.check_filled()
    taken = {columns.source, columns.target, columns.type}
    if not edge_files.is_csv:  # whose text is known to be text
        taken |= {*edge_files.schema.names} - {columns.weight}
    edge_files = edge_files.with_forms([name for name in edge_files.schema.names if name not in taken])
    if columns.weight:
        _check_weight(edge_files, columns)
    node_files = open_table("graph.nodes", nodes, max_bytes) if nodes is not None else None
    typed = [(f"{edge_files.origin}:{n}", edge_files.schema.field(n).type) for n in (columns.source, columns.target)]
    if node_files is None and (columns.label or columns.attributes):
        raise ValueError(
            f"graph.label_column={columns.label!r}, graph.include={columns.attributes} need a node table: graph.nodes"
        )
    if node_files is not None:
        node_files.check_columns("graph.id_column", [columns.id])
        node_files.check_filled()
        node_files.check_columns("graph.label_column", [columns.label] if columns.label else [])
        node_files.check_columns("graph.include", columns.attributes or ())
        node_files.check_columns("graph.exclude", columns.exclude)
        node_files.check_columns("graph.categorical", columns.categorical)
        typed.append((f"{node_files.origin}:{columns.id}", node_files.schema.field(columns.id).type))
    kind = id_kind(typed, columns.id_type)
    if columns.id_type == "auto" and kind == "integer":
        tables = [(edge_files, (columns.source, columns.target)), (node_files, (columns.id,))]
        if any(table is not None and _starts_with_names(table, names) for table, names in tables):
            kind = "text"
    checked = columns.id_type == "auto"
    edge_files = edge_files.with_casts(_id_casts(edge_files, (columns.source, columns.target), kind, checked))
    if node_files is not None:
        text = {name: pa.string() for name in columns.categorical}
        node_files = node_files.with_casts({**text, **_id_casts(node_files, (columns.id,), kind, checked)})
    return EdgeTable(edge_files, columns.source, columns.target, kind), node_files


def _check_weight(table: TableFiles, columns: Columns) -> None:
    """Refuses a column of weights that is not there, holds no numbers, or names the ends of edges."""
    option, name = "graph.weight_column", columns.weight or ""
    table.check_columns(option, [name])
    kind = table.schema.field(name).type
    if name in (columns.source, columns.target):
        raise InputError(f"{option}={name!r} names an end of the edges; legal is a column of numbers above 0")
    if not (is_number(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{option}={name!r} of {table.origin} is of type {kind}; legal is a column of numbers above 0, all "
            "with a decimal point (6451.65) or all with a decimal comma (6451,65)"
        )


def _starts_with_names(table: TableFiles, names: tuple[str, ...]) -> bool:
    """Whether a CSV's ids, in its first block, are such that a number would not keep: 007, 0x1, 12e2."""
    if not table.is_csv:
        return False
    for batch in table.with_casts({name: pa.string() for name in names}).batches(names):
        return any(pc.any(pc.match_substring_regex(column, _NAME)).as_py() for column in batch.columns)
    return False


def _id_casts(table: TableFiles, names: tuple[str, ...], kind: str, checked: bool) -> dict[str, pa.DataType]:
    """Text and integers are read as such, so that an id keeps its zeros and its last digit; floats as they come.

    Where nobody said that ids are integers (`checked`), those of a CSV come as text, which `IdReader` looks at.
    """
    if kind == "text":
        return {name: pa.large_string() for name in names}
    if table.is_csv and checked:
        return {name: pa.string() for name in names}
    return {name: pa.int64() for name in names if not pa.types.is_floating(table.schema.field(name).type)}


def _attribute_names(table: TableFiles, columns: Columns) -> tuple[str, ...]:
    chosen = columns.attributes if columns.attributes is not None else tuple(table.schema.names)
    unused = (columns.id, columns.label, *columns.exclude, *_index(table, columns))
    return tuple(name for name in chosen if name not in unused)


def _index(table: TableFiles, columns: Columns) -> list[str]:
    """The columns that pandas wrote to number the rows, and that the user does not name."""
    ends = (columns.source, columns.target, columns.type, columns.weight)
    named = (*ends, columns.id, columns.label, *(columns.attributes or ()), *columns.exclude, *columns.categorical)
    return [name for name in index_columns(table) if name not in named]


def _number_nodes(
    edge_table: EdgeTable, node_files: TableFiles | None, columns: Columns, policy: Policy
) -> tuple[NodeRows, int]:
    """All nodes, and how many of them no row of a node table describes."""
    if node_files is None:
        ids: Growing = edge_table.strangers(None)
        if not len(ids):
            ends = f"graph.source_column={edge_table.source} and graph.target_column={edge_table.target}"
            raise ValueError(f"{ends} hold no ids: the graph is empty")
        return NodeRows(ids, np.zeros(0, np.int64)), len(ids)
    rows = node_table.number_rows(node_files, columns.id, edge_table.kind, policy.repeated)
    before = len(rows.ids)
    if policy.unknown == "add":
        rows.ids.add(edge_table.strangers(rows.ids).column())
    return rows, len(rows.ids) - before
