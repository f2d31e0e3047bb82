"""Parquet or CSV tables to a graph folder: an edge table, and optionally a node table.

Nodes are numbered by the rows of the node table; without one, by the ascending order of the ids that edges name. Ids
that are 0 .. n - 1 already are not stored. Passes: ids, survey, edges, attributes; each streams (see batches.py), so
peak memory is that of the edge sort or of the mapped attributes, not of the tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.base.npy import create_npy, open_npy
from hcm_scale.graph.build import Chunk, build_csr
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import Graph
from hcm_scale.ingest import arrays as features
from hcm_scale.ingest import node_table
from hcm_scale.ingest.arrays import Weighed, finish_folder, write_weights
from hcm_scale.ingest.column_report import (
    ColumnCounts,
    ColumnLine,
    edge_column_lines,
    node_column_lines,
    with_file_notes,
)
from hcm_scale.ingest.encode import Encoding, TextRules, is_number
from hcm_scale.ingest.guess import index_columns
from hcm_scale.ingest.ids import (
    GrowingIds,
    IdReader,
    Ids,
    NumberIds,
    Numbers,
    TextIds,
    compact_ids,
    id_kind,
    sorted_ids,
)
from hcm_scale.ingest.node_table import NodeRows, check_encodings, text_casts
from hcm_scale.ingest.policy import InputError, Offenders, Policy, naming_origin
from hcm_scale.ingest.table_files import TableFiles, TableSource, later_columns, open_table

# ----------------------------------------------------------------------------
# An edge table as chunks of node numbers; ids that no node has are counted, dropped, or collected beforehand.


@dataclass(frozen=True)
class EdgeTable:
    """An edge table, the names of its two id columns, and the type of its ids."""

    files: TableFiles
    source: str
    target: str
    kind: str
    unknown: Offenders = field(
        default_factory=lambda: Offenders(
            "rows name an id that is not a node",
            "the edge table",
            "graph.unknown=drop leaves these rows out, add makes nodes of them, without attributes",
        )
    )
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)  # distinct nodes and gaps of both, once read

    def endpoints(self, drop_nulls: bool, adds: bool = False) -> Iterator[tuple[int, pa.Array, pa.Array]]:
        """Streams (first row, sources, targets) in the ids' own type; raises at the end where there were faults."""
        reader = IdReader(self.kind, self.files.rows_of("the edge table"), self.files.place)
        others = ", and all that name no node; to add those, leave rows without an id out of the table" if adds else ""
        reader.null.remedy = f"graph.unknown=drop drops their rows{others}"
        row = 0
        for batch in self.files.batches(self._ends):
            yield row, reader.read(batch[self.source], row), reader.read(batch[self.target], row)
            row += len(batch)
        reader.check(nulls=not drop_nulls)

    def chunks(self, ids: Ids, unknown: str) -> Iterator[Chunk]:
        """Streams edges as node numbers; rows with an unknown end are counted, and dropped or refused at the end."""
        is_named, gaps = np.zeros((2, len(ids)), np.bool_), [0, 0]
        num_rows = num_loops = 0
        strangers: list[str] = []  # a few ids that are not nodes
        for row, sources, targets in self.endpoints(unknown == "drop", unknown == "add"):
            u, v = find_nodes(ids, sources), find_nodes(ids, targets)
            gaps = [gaps[0] + sources.null_count, gaps[1] + targets.null_count]
            lost = (u < 0) | (v < 0)
            if lost.any():
                self.unknown.where = self.files.rows_of("the edge table")
                self.unknown.add(lost, lambda i: f"{self.files.place(row + i)}: {sources[i]} -> {targets[i]}")  # noqa: B023
                if self.kind == "text":
                    strangers += (sources[int(lost.argmax())].as_py() or "", targets[int(lost.argmax())].as_py() or "")
                u, v = u[~lost], v[~lost]
            num_rows, num_loops = num_rows + len(lost), num_loops + int((u == v).sum())
            is_named[0, u] = is_named[1, v] = True
            yield u, v
        self.ends[self.source] = int(is_named[0].sum()), gaps[0]
        self.ends[self.target] = int(is_named[1].sum()), gaps[1]
        if unknown != "drop" and self.unknown.count:
            if _differ_by_zeros(ids, strangers):
                self.unknown.remedy = "graph.id_type=integer reads 0042 and 42 as one id"
            self.unknown.check()
        if self.unknown.count and self.unknown.count + num_loops == num_rows:
            raise ValueError(
                f"the graph has no edges: {num_rows:,} rows read, {num_loops:,} of them self loops, and by "
                f"graph.unknown=drop {self.unknown.count:,} dropped that name an id that is not a node: "
                f"{'; '.join(self.unknown.first)}"
            )

    def weighed(self, ids: Ids, column: str) -> Iterator[Weighed]:
        """Streams edges as node numbers, -1 for ids that are none, with the weights in `column`, NaN for gaps."""
        reader = IdReader(self.kind, "the edge table")
        for batch in self.files.with_casts({column: pa.float64()}).batches([*self._ends, column]):
            u, v = (find_nodes(ids, reader.read(batch[end], 0)) for end in (self.source, self.target))
            yield u, v, batch[column].to_numpy(zero_copy_only=False)

    @property
    def _ends(self) -> list[str]:
        return list(dict.fromkeys((self.source, self.target)))

    def strangers(self, known: GrowingIds | None) -> GrowingIds:
        """The ids that edges name and `known` does not hold, in ascending order."""
        found: GrowingIds = TextIds() if self.kind == "text" else NumberIds()
        for _, sources, targets in self.endpoints(drop_nulls=True):
            for column in (sources.drop_null(), targets.drop_null()):
                found.add(column.filter(pa.array(known.find(column) < 0)) if known is not None else column)
        return sorted_ids(found)


def _differ_by_zeros(ids: Ids, strangers: Sequence[str]) -> bool:
    """Whether some text of digits that is no id is one with fewer zeros before it, or as long as the first id."""
    column = ids.column()
    length = len(column[0].as_py()) if strangers and column is not None and len(column) else 0
    digits = [text for text in strangers if text.isdecimal()]
    forms = {form for text in digits for form in (text.lstrip("0"), text.zfill(length))} - {"", *digits}
    return bool(forms) and bool((ids.find(pa.array(sorted(forms), pa.large_string())) >= 0).any())


def find_nodes(ids: Ids, column: pa.Array) -> Numbers:
    """Node numbers, -1 for unknown ids and nulls."""
    if not column.null_count:
        return ids.find(column)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    filler = "" if pa.types.is_large_string(column.type) else 0
    return np.where(missing, -1, ids.find(column.fill_null(filler)))


# ----------------------------------------------------------------------------
# The types of edges, as bits beside the CSR: bit i of an entry says that a row of type i joins the two nodes.
#
# Repeated edges are merged, so a pair of nodes may be joined by edges of several types. One more pass over the edge
# table finds every row's place in the finished CSR, by the binary search of graph/lookup.py.


MAX_TYPES = 16


def write_edge_types(folder: Path, table: EdgeTable, column: str, ids: Ids, directed: bool) -> tuple[list[str], int]:
    """Writes edge_types.npy beside the CSR in `folder`; returns the names of the types and the rows without one."""
    indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
    types = create_npy(folder / "edge_types.npy", np.uint16, indices.shape)
    files: TableFiles = table.files.with_casts({column: pa.string()})
    reader, names, gaps = IdReader(table.kind, "the edge table"), list[str](), 0
    for batch in files.batches(list(dict.fromkeys((table.source, table.target, column)))):
        known = batch.filter(pc.is_valid(batch[column]))
        gaps += len(batch) - len(known)
        encoded = pc.dictionary_encode(known[column])
        names += [name for name in encoded.dictionary.to_pylist() if name not in names]
        if len(names) > MAX_TYPES:
            raise InputError(f"graph.type_column={column!r} has more than {MAX_TYPES} values: {', '.join(names)} ...")
        code_of = np.array([names.index(name) for name in encoded.dictionary.to_pylist()], np.uint16)
        bits = np.uint16(1) << code_of[encoded.indices.to_numpy()]
        u, v = (find_nodes(ids, reader.read(known[end], 0)) for end in (table.source, table.target))
        for rows, columns in ((u, v), (v, u))[: 1 if directed else 2]:
            is_known = (rows >= 0) & (columns >= 0)
            at, found = find_arcs(indptr, indices, rows[is_known], columns[is_known])
            np.bitwise_or.at(types, at[found], bits[is_known][found])
    types.flush()
    return names, gaps


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
    edges: TableSource,
    nodes: TableSource | None = None,
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
    with naming_origin(origin):
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
    with files.replacing_folder(out) as folder:
        rows, added = _number_nodes(edge_table, node_files, columns, policy)
        shape = (len(rows.ids) - added, added)
        encodings: list[Encoding] = []
        if node_files is not None and known is not None:
            unused = (columns.id, columns.label or columns.id, *columns.exclude, *_index(node_files, columns))
            encodings = check_encodings(node_files, known, unused, rows.left_out, policy)
        elif node_files is not None:
            kept = frozenset(columns.categorical + (columns.attributes or ()))
            rules = TextRules(columns.max_categories, columns.hash_buckets, kept)
            encodings = node_table.plan_columns(node_files, names, rows.left_out, added, policy, rules)
        features.require(sum(len(encoding.names) for encoding in encodings), policy)
        ids = compact_ids(rows.ids)
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
        finish_folder(
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
    lines = edge_column_lines(edge_files.schema, edge_table.ends, typed, policy.directed, columns.weight)
    lines = with_file_notes(lines, _index(edge_files, columns), edge_files.notes, later_columns(edge_files))
    if node_files is None:
        return lines
    num_rows, num_anomalies = counted
    known: dict[str, ColumnCounts] = {columns.id: ("names the nodes", num_rows, 0)}
    if columns.label and num_anomalies is not None:
        distinct = 1 + (0 < num_anomalies < num_rows)
        known[columns.label] = ("the label, 1 = anomaly: it measures the ranking and decides nothing", distinct, 0)
    more = node_column_lines(node_files.schema, known, encodings, columns.exclude, num_rows=num_rows, trained=trained)
    return lines + with_file_notes(more, _index(node_files, columns), node_files.notes, later_columns(node_files))


def _open(
    edges: TableSource, nodes: TableSource | None, columns: Columns, max_bytes: int
) -> tuple[EdgeTable, TableFiles | None]:
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
        ids: GrowingIds = edge_table.strangers(None)
        if not len(ids):
            ends = f"graph.source_column={edge_table.source} and graph.target_column={edge_table.target}"
            raise ValueError(f"{ends} hold no ids: the graph is empty")
        return NodeRows(ids, np.zeros(0, np.int64)), len(ids)
    rows = node_table.number_rows(node_files, columns.id, edge_table.kind, policy.repeated)
    before = len(rows.ids)
    if policy.unknown == "add":
        rows.ids.add(edge_table.strangers(rows.ids).column())
    return rows, len(rows.ids) - before
