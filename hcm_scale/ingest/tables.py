"""Parquet, CSV or Arrow tables to a graph folder: an edge table, and optionally a node table.

Nodes are numbered by the rows of the node table, then, under graph.unknown=add, by the ascending order of the ids that
edges alone name; without a node table all nodes are of that kind. Ids that are 0 .. n - 1 already are not stored.

The node table is read three times: ids, survey, attributes (node_table.py). The edge table is parsed once: `EdgeTable`
writes its rows as fixed-size records to a temporary file in the new folder, 8 bytes a row for both ends, 8 more for a
weight, 1 for a type, and 8 or 1 for each column that becomes attributes of both ends (edge_columns.py); the CSR, the
weights, the types and those attributes are made from the records. All of it streams: memory is that of the ids, of the
edge sort and of the mapped arrays. A fault is counted as rows stream by and raised at the end of the pass, with the
first offending rows.

What became of every column is kept in the manifest (`info.ingest.told`), a `ColumnLine` each.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.console import shorten
from hcm_scale.base.names import AS_END
from hcm_scale.base.npy import create_npy, open_npy
from hcm_scale.graph.build import Chunk, EdgeCounts, build_csr
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import Graph, NodeTypes
from hcm_scale.ingest import ids as node_ids
from hcm_scale.ingest.arrays import FeatureCounts, finish_folder, require, write_weights
from hcm_scale.ingest.edge_columns import MISSING, EdgeColumns, EdgeEncoding, Levels
from hcm_scale.ingest.encode import MAY_BE_THOUSANDS, Encoding, is_date, is_number, is_text, use_of
from hcm_scale.ingest.ids import GrowingIds, Numbers
from hcm_scale.ingest.node_table import NodeTable, unnamed_index
from hcm_scale.ingest.policy import (
    DEFAULT_POLICY,
    EXCLUDED,
    Columns,
    InputError,
    Offenders,
    Policy,
    known_cases,
    naming_origin,
)
from hcm_scale.ingest.row_columns import RowColumns, row_columns
from hcm_scale.ingest.table_files import TYPE, TableFiles, TableSource, columns_of_later_files, open_table, table_parts

log = logging.getLogger(__name__)
MAX_TYPES = 16
_BLOCK_ROWS = 1 << 16
_NAME = r"^\s*(\+|-?(0[0-9xX]|[0-9.]+[eE]))"  # an id that could be read as a number, and is more than that
_DEFAULT_COLUMNS = Columns()


def read_tables(
    out: Path | str,
    edges: TableSource,
    nodes: TableSource | None = None,
    *,
    columns: Columns = _DEFAULT_COLUMNS,
    policy: Policy = DEFAULT_POLICY,
    trained: Sequence[Encoding | EdgeEncoding] | None = None,
    origin: str | None = None,
) -> Graph:
    """Reads the tables at `edges` and `nodes` (file, folder, glob or Arrow table) into the folder `out`; returns it.

    `trained` are the encodings of an earlier graph's tables, by which these are read. `origin` is what the tables are
    called in messages; None: as their files are.
    """
    of_nodes = None if trained is None else [one for one in trained if not isinstance(one, EdgeEncoding)]
    if isinstance(nodes, str) and len(table_parts("graph.nodes", nodes)) > 1 and columns.node_type is None:
        columns = replace(columns, node_type=TYPE)
    edge_files, node_files, id_kind = _open(edges, nodes, columns, policy.max_bytes)
    origin = origin or edge_files.origin + (f", {node_files.origin}" if node_files else "")
    node_table = NodeTable(node_files, columns, policy, of_nodes) if node_files else None
    own, payments = None, row_columns(edge_files, columns)
    edge_files = payments.files if payments else edge_files
    is_lacking = (node_table is None or not node_table.names) and policy.featureless == "error"
    if policy.edge_attributes == "all" or (is_lacking and policy.edge_attributes == "auto") or trained is not None:
        of_edges = None if trained is None else [one for one in trained if isinstance(one, EdgeEncoding)]
        of_rows = (payments.time, payments.time_parts) if payments else ()
        own = EdgeColumns(edge_files, columns, of_edges, policy.nonfinite, *of_rows)
        is_enough = own.kinds or payments or policy.edge_attributes == "all" or of_edges  # two ends alone are not
        own = own if is_enough else None
    edge_table = EdgeTable(edge_files, columns, id_kind, own, payments)
    with naming_origin(origin):
        _write(Path(out), origin, edge_table, node_table, policy)
    return Graph.open(out, verify=False)


def _write(out: Path, origin: str, edges: "EdgeTable", nodes: NodeTable | None, policy: Policy) -> None:
    remedy = "" if nodes else "graph.nodes=FILE is the table that has them, or "
    own = edges.attributes
    require(len(nodes.names) if nodes else 0, policy, remedy, has_others=own is not None)
    with files.replacing_folder(out) as folder:
        with tempfile.TemporaryDirectory(prefix="rows-", dir=folder) as scratch:
            records = Path(scratch) / "records"
            ids = nodes.number_rows(edges.id_kind) if nodes else GrowingIds(edges.id_kind)
            grows = nodes is None or policy.unknown == "add"
            column = edges.add_ends(records, ids) if grows else node_ids.stored_ids(ids.column())
            encodings = nodes.encodings() if nodes else []
            require(sum(len(encoding.names) for encoding in encodings), policy, has_others=own is not None)
            if not grows:
                edges.parse(records, partial(node_ids.find_in_range, len(ids)) if column is None else ids.find)
            edges.check(policy.unknown, ids)
            if edges.id_kind == "text":
                _warn_of_zeros(ids)
                _warn_of_no_header(edges, ids)
            counts = edges.write(folder, len(ids), policy.directed)
            kept = edges.payments.write(folder, edges.blocks) if edges.payments else None
            made = own.encodings(edges.kept_rows) if own else []
            width = sum(len(encoding.names) for encoding in (*encodings, *made))
            x: Any = create_npy(folder / "x.npy", np.float32, (len(ids), width)) if width else None
            names = tuple(name for encoding in made for name in encoding.names)
            if own:
                own.write(made, edges.kept_rows, x[:, width - len(names) :])
        written = nodes.write_features(x, encodings) if nodes else FeatureCounts()
        details = (*written.details, *(one.as_json() for one in made))
        written = replace(written, columns=(*written.columns, *names), num_columns=width, details=details)
        if width:
            x.flush()
        num_anomalies = nodes.write_labels(folder) if nodes else None
        types = nodes.write_types(folder, written) if nodes else None
        lines = _edge_lines(edges, policy.directed, made)
        lines += _node_lines(nodes, encodings, num_anomalies, types) if nodes else []
        finish_folder(
            folder,
            origin,
            policy,
            counts,
            written,
            ids=column,
            column_lines=[vars(line) for line in lines],
            edge_types=edges.types.names if edges.columns.type else None,
            weights=edges.columns.weight,
            rows=kept,
            new_values={**(nodes.new_values if nodes else {}), **(own.new_values if own else {})},
            unknown_edges=edges.unknown.count,
            repeated_nodes=len(nodes.left_out) if nodes else 0,
            added_nodes=nodes.num_added if nodes else 0,
            num_anomalies=num_anomalies,
        )


class EdgeTable:
    """An edge table; once it is parsed, its rows as records in a file, and what was counted."""

    def __init__(
        self,
        files: TableFiles,
        columns: Columns,
        id_kind: str,
        attributes: EdgeColumns | None,
        payments: RowColumns | None = None,
    ) -> None:
        self.files, self.columns, self.id_kind = files, columns, id_kind
        self.attributes, self.payments = attributes, payments
        self.num_rows = self.num_loops = 0
        self.num_nulls = self.num_distinct = 0, 0  # of sources and of targets
        self.types = Levels(MAX_TYPES)
        where = files.rows_of("the edge table")
        remedy = "graph.unknown=drop leaves these rows out, add makes nodes of them, without attributes"
        self.unknown = Offenders("rows name an id that is not a node", where, remedy)
        self._unknown_texts: list[str] = []  # a few ids that are not nodes
        self._reader = node_ids.IdReader(id_kind, where, files.describe_row)
        weight, kind = [("weight", "<f8")] * bool(columns.weight), [("type", "u1")] * bool(columns.type)
        own = [*(attributes.layout if attributes else ()), *(payments.layout if payments else ())]
        self._layout = np.dtype([("u", "<i4"), ("v", "<i4"), *weight, *kind, *own])
        self._records = Path()
        self._nodes: NDArray[np.int32] | None = None  # the node of each number, -1 last; None: numbers are nodes

    def add_ends(self, records: Path, ids: GrowingIds) -> pa.Array | None:
        """Parses the table, adding new ids to `ids`; returns all as they are stored, new ones in ascending order."""
        first = len(ids)
        self.parse(records, ids.add)
        if not len(ids):
            ends = f"graph.source_column={self.columns.source} and graph.target_column={self.columns.target}"
            raise ValueError(f"{ends} hold no ids: the graph is empty")
        column, self._nodes = node_ids.sort_ids(ids, first)
        return node_ids.stored_ids(column)

    def parse(self, records: Path, take: Callable[[pa.Array], Numbers]) -> None:
        """Parses the table into `records`; ids are numbered by `take`, the `add` or `find` of a table of ids."""
        weight, kind, self._records = self.columns.weight, self.columns.type, records
        ends = self.columns.source, self.columns.target
        types, own = ((kind, pa.string()), (weight, pa.float64())), self.attributes
        casts = {name: as_type for name, as_type in types if name is not None and name not in ends}
        files = self.files.with_casts(dict.fromkeys(own.texts if own else (), pa.string()) | casts)
        with open(records, "wb") as stream:
            of_rows = self.payments.names if self.payments else ()
            for batch in files.batches(list(dict.fromkeys((*ends, *casts, *(own.kinds if own else ()), *of_rows)))):
                sources, targets = (self._reader.read(batch[end], self.num_rows) for end in ends)
                rows = np.empty(len(batch), self._layout)
                rows["u"], rows["v"] = (node_ids.number_ids(take, column) for column in (sources, targets))
                self._count(rows, sources, targets)
                if weight:
                    rows["weight"] = batch[weight].to_numpy(zero_copy_only=False)
                if kind:
                    rows["type"] = self.types.codes(batch[kind])  # of too many `_write_types` says so, after ids
                if own:
                    own.read(batch, rows, self.num_rows)
                if self.payments:
                    self.payments.read(batch, rows, self.num_rows)
                rows.tofile(stream)
                self.num_rows += len(batch)
        self._reader.check(nulls=False)

    def _count(self, rows: NDArray[Any], sources: pa.Array, targets: pa.Array) -> None:
        is_lost = (rows["u"] < 0) | (rows["v"] < 0)
        self.num_loops += int(((rows["u"] == rows["v"]) & ~is_lost).sum())
        self.num_nulls = self.num_nulls[0] + sources.null_count, self.num_nulls[1] + targets.null_count
        if is_lost.any():
            first, start = int(is_lost.argmax()), self.num_rows
            self.unknown.add(is_lost, lambda i: f"{self.files.describe_row(start + i)}: {sources[i]} -> {targets[i]}")
            if self.id_kind == "text":
                self._unknown_texts += (sources[first].as_py() or "", targets[first].as_py() or "")

    def check(self, unknown: str, ids: GrowingIds) -> None:
        """Raises for missing and unknown ids, unless their rows are dropped and others are left."""
        zeros = ""
        if self.unknown.count and _differ_by_zeros(ids, self._unknown_texts):
            zeros = self.unknown.remedy = "graph.id_type=integer reads 0042 and 42 as one id"
        if unknown != "drop":
            also = ", and all that name no node; to add those, leave rows without an id out of the table"
            self._reader.null.remedy = f"graph.unknown=drop drops their rows{also if unknown == 'add' else ''}"
            self._reader.null.check()
            self.unknown.check()
        elif self.unknown.count and self.unknown.count + self.num_loops == self.num_rows:
            raise ValueError(
                f"the graph has no edges: {self.num_rows:,} rows read, {self.num_loops:,} of them self loops, and by "
                f"graph.unknown=drop {self.unknown.count:,} dropped that name an id that is not a node: "
                f"{'; '.join(self.unknown.first)}{f'. {zeros}' if zeros else ''}"
            )
        elif zeros:
            what = "of the rows dropped by graph.unknown=drop (%s ...) some name nodes but for zeros before the id; %s"
            log.warning(what, self.unknown.first[0], zeros)

    def write(self, folder: Path, num_nodes: int, directed: bool) -> EdgeCounts:
        """Writes the CSR, and the types and weights beside it."""
        counts = build_csr(folder, self._edges(num_nodes), num_nodes, directed)
        if self.columns.type:
            self._write_types(folder, directed)
        if weight := self.columns.weight:
            weighted = ((rows["u"], rows["v"], rows["weight"]) for rows in self.blocks())
            write_weights(folder, weighted, f"graph.weight_column={weight}", directed=directed, adds_up=True)
        return counts

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Streams the records, `u` and `v` as nodes, -1 for none; with `weight` (NaN for gaps) and `type`, if asked."""
        with open(self._records, "rb") as stream:
            while len(rows := np.fromfile(stream, self._layout, _BLOCK_ROWS)):
                if self._nodes is not None:
                    rows["u"], rows["v"] = self._nodes[rows["u"]], self._nodes[rows["v"]]
                yield rows

    def kept_rows(self) -> Iterator[NDArray[Any]]:
        """Streams the records of rows that join two different nodes."""
        for rows in self.blocks():
            yield rows[(rows["u"] >= 0) & (rows["v"] >= 0) & (rows["u"] != rows["v"])]

    def _edges(self, num_nodes: int) -> Iterator[Chunk]:
        is_source, is_target = np.zeros((2, num_nodes), np.bool_)
        for rows in self.blocks():
            rows = rows[(rows["u"] >= 0) & (rows["v"] >= 0)]
            is_source[rows["u"]] = is_target[rows["v"]] = True
            yield rows["u"], rows["v"]
        self.num_distinct = int(is_source.sum()), int(is_target.sum())

    def _write_types(self, folder: Path, directed: bool) -> None:
        """Writes edge_types.npy: bit i of an entry of the CSR says that a row of type i joins the two nodes."""
        if len(names := self.types.names) > MAX_TYPES:
            option = f"graph.type_column={self.columns.type!r}"
            raise InputError(f"{option} has more than {MAX_TYPES} values: {', '.join(names)} ...")
        indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
        types = create_npy(folder / "edge_types.npy", np.uint16, indices.shape)
        for rows in self.blocks():
            rows = rows[(rows["u"] >= 0) & (rows["v"] >= 0) & (rows["type"] != MISSING)]
            bits = np.uint16(1) << rows["type"].astype(np.uint16)
            for start, end in (("u", "v"), ("v", "u"))[: 1 if directed else 2]:
                at, is_arc = find_arcs(indptr, indices, rows[start], rows[end])
                np.bitwise_or.at(types, at[is_arc], bits[is_arc])
        types.flush()


def _differ_by_zeros(ids: GrowingIds, unknown: Sequence[str]) -> bool:
    """Whether some text of digits that is no id is one with fewer zeros before it, or as long as the first id."""
    column = ids.column()
    length = len(column[0].as_py()) if unknown and len(column) else 0
    digits = [text for text in unknown if text.isdecimal()]
    others = {other for text in digits for other in (text.lstrip("0"), text.zfill(length))} - {"", *digits}
    return bool(others) and bool((ids.find(pa.array(sorted(others), pa.large_string())) >= 0).any())


def _warn_of_zeros(ids: GrowingIds) -> None:
    """Says where two ids are one number, written with and without zeros before it."""
    column = ids.column()
    padded = column.filter(pc.starts_with(column, "0"))
    padded = padded.filter(pc.match_substring_regex(padded, r"^0+[1-9]\d*$"))
    twice = padded.filter(pa.array(ids.find(pc.ascii_ltrim(padded, "0")) >= 0)) if len(padded) else padded
    if len(twice):
        pair = twice[0].as_py(), twice[0].as_py().lstrip("0")
        what = "differ from others by zeros before them alone; graph.id_type=integer reads both as one"
        log.warning("%s ids %s, such as %s and %s", f"{len(twice):,}", what, *pair)


def _warn_of_no_header(edges: "EdgeTable", ids: GrowingIds) -> None:
    """Says where the names of both ends are ids too: a first row that was taken for the names of columns."""
    names = [edges.columns.source, edges.columns.target]
    if edges.files.is_csv and (ids.find(pa.array(names, pa.large_string())) >= 0).all():
        what = "the first line of %s is taken for the names of columns, and %r and %r are ids too: put names before it"
        log.warning(what, edges.files.origin, *names)


# Opening: the files of both tables, the columns that options name, and the type of the ids.


def _open(
    edges: TableSource, nodes: TableSource | None, columns: Columns, max_bytes: int
) -> tuple[TableFiles, TableFiles | None, str]:
    """The tables, the names of their columns checked, to be read with the type that ids have, and that type."""
    ends: tuple[str, ...] = (columns.source, columns.target)
    edge_files = open_table("graph.path", edges, max_bytes)
    for option, name in (("source", columns.source), ("target", columns.target), ("type", columns.type)):
        edge_files.check_columns(f"graph.{option}_column", [name])
    edge_files.check_filled()
    edge_files = edge_files.with_gaps((*ends, columns.type, columns.weight))
    taken = {*ends, columns.type, *columns.categorical}
    free = [n for n in edge_files.schema.names if n not in taken]
    edge_files = edge_files.with_text_formats(free, columns.dates, columns.numbers)
    if weight := columns.weight:
        edge_files.check_columns("graph.weight_column", [weight])
        kind, said = edge_files.schema.field(weight).type, f"graph.weight_column={weight!r}"
        if weight in ends:
            raise InputError(f"{said} names an end of the edges; legal is a column of numbers above 0")
        if not (is_number(kind) or pa.types.is_null(kind)):
            raise InputError(
                f"{said} of {edge_files.origin} is of type {kind}; legal is a column of numbers above 0, all "
                "with a decimal point (6451.65) or all with a decimal comma (6451,65)"
            )
    tables = [(edge_files, ends)]
    if nodes is None and (columns.label or columns.attributes or columns.node_type):
        raise ValueError(
            f"graph.label_column={columns.label!r}, graph.include={columns.attributes}, graph.node_type_column="
            f"{columns.node_type!r} need a node table: graph.nodes"
        )
    if nodes is not None:
        node_files = open_table("graph.nodes", nodes, max_bytes)
        node_files.check_columns("graph.id_column", [columns.id])
        node_files.check_filled()
        node_files.check_columns("graph.label_column", [columns.label])
        node_files.check_columns("graph.node_type_column", [columns.node_type])
        node_files.check_columns("graph.include", columns.attributes or ())
        tables.append((node_files, (columns.id,)))
    held = [table.kinds for table, _ in tables]
    options = {"graph.exclude": columns.exclude, "graph.categorical": columns.categorical}
    for option, names in (options | {"graph.numbers": columns.numbers}).items():
        tables[-1][0].check_columns(option, [name for name in names if not any(name in each for each in held)])
    named = [{name: pa.string() for name in columns.categorical if name in each} for each in held]
    tables = [(table.with_casts(casts), of) for (table, of), casts in zip(tables, named, strict=True)]
    typed = [(f"{table.origin}:{n}", table.schema.field(n).type) for table, names in tables for n in names]
    is_auto, types = columns.id_type == "auto", [kind for _, kind in typed]
    is_mixed = nodes is None and any(map(is_text, types)) and any(map(pa.types.is_integer, types))
    id_kind = node_ids.id_kind(typed, "text" if is_auto and is_mixed else columns.id_type)
    if is_auto and id_kind == "integer" and any(_starts_with_text_ids(table, names) for table, names in tables):
        id_kind = "text"
    edge_files, *node_tables = (t.with_casts(_id_casts(t, names, id_kind, is_auto)) for t, names in tables)
    return edge_files, node_tables[0] if node_tables else None, id_kind


def _starts_with_text_ids(table: TableFiles, names: tuple[str, ...]) -> bool:
    """Whether a CSV's ids, in its first block, are such that a number would not keep: 007, 0x1, 12e2."""
    first = table.with_casts(dict.fromkeys(names, pa.string())).first_batch(names) if table.is_csv else pa.table({})
    return any(pc.any(pc.match_substring_regex(column, _NAME)).as_py() for column in first.columns)


def _id_casts(table: TableFiles, names: tuple[str, ...], kind: str, checked: bool) -> dict[str, pa.DataType]:
    """Text and integers are read as such, so that an id keeps its zeros and its last digit; floats as they come.

    Where no option says that ids are integers (`checked`), those of a CSV come as text, which `IdReader` looks at.
    """
    if kind == "text":
        return {name: pa.large_string() for name in names}
    if table.is_csv and checked:
        return {name: pa.string() for name in names}
    return {name: pa.int64() for name in names if not pa.types.is_floating(table.schema.field(name).type)}


# What became of every column.


@dataclass(frozen=True)
class ColumnLine:
    """What became of one column of a table; None: not counted, since the column is not read."""

    table: str
    column: str
    type: str
    use: str
    distinct: int | None = None
    gaps: int | None = None


_ColumnCounts = tuple[str, int | None, int | None]  # use, distinct values, gaps
_MAX_LINES = 60
_ENDS = ("payer", "payee")
_HEADER = ("table", "column", "type", "distinct", "gaps", "use")


def _edge_lines(table: EdgeTable, directed: bool, made: Sequence[EdgeEncoding]) -> list[ColumnLine]:
    """The columns of the edge table, once it was read; `made` are those that became attributes."""
    columns, uses, own = table.columns, dict[str, _ColumnCounts](), table.attributes
    if columns.type:
        use = "the type of each edge, told in explanations; it decides no score"
        uses[columns.type] = use, len(table.types.names), table.types.num_missing
    of_ends = ["an end of each edge; which end is not kept: graph.directed=true keeps it"] * 2
    if directed:
        of_ends = ["where each edge starts", "where each edge ends"]
    elif table.payments:
        of_ends = [f"the {name} of each row; edges have no direction: graph.directed=true keeps it" for name in _ENDS]
    for i, name in enumerate((columns.source, columns.target)):
        counted = f"; rows and partners{AS_END}{name} are attributes" if made else ""
        uses[name] = of_ends[i] + counted, table.num_distinct[i], table.num_nulls[i]
    if columns.weight:
        use = "weight of edges, added up over the rows of two nodes: a heavier neighbour counts for more"
        uses[columns.weight] = use, None, 0
    for name, why in own.unused.items() if own else ():
        uses.setdefault(name, (why, None, None))
    for one in made[1:]:
        assert own is not None
        note = f"; {own.notes[one.name]}" if one.name in own.notes else ""
        also = f"{uses[one.name][0]}; " if one.name in uses else ""
        distinct = len(own.columns[one.name].values) if one.kind == "text" and own.trained is None else None
        uses[one.name] = f"{also}{one.use}{note}", distinct, own.gaps[one.name]
    for name, line in (table.payments.lines if table.payments else {}).items():
        use, distinct, gaps = uses.get(name) or ("", None, None)
        also = f"; {use}" if use and not use.startswith("not used") else ""
        uses[name] = line + also, distinct, gaps
    return _column_lines("edges", table.files, columns, uses, _unused_of_edges)


def _unused_of_edges(column: pa.Field) -> str:
    also = "graph.edge_attributes=all makes attributes of both ends of it"
    if is_text(column.type):
        return f"not used: graph.type_column takes one with few values as the type of edges; {also}"
    if is_number(column.type):
        return f"not used: graph.weight_column={column.name} takes it as the weight of edges; {also}"
    return f"not used: {also}" if is_date(column.type) else f"not used: a column of type {column.type}"


def _node_lines(
    table: NodeTable, encodings: Sequence[Encoding], num_anomalies: int | None, types: NodeTypes | None
) -> list[ColumnLine]:
    """The columns of the node table; where it is read by an earlier table's encodings, their counts are not shown."""
    columns, kinds, is_trained = table.columns, table.files.kinds, table.trained is not None
    uses: dict[str, _ColumnCounts] = dict.fromkeys(columns.exclude, (EXCLUDED, None, None))
    for code in encodings:
        if code.name in kinds:
            use = use_of(code, kinds[code.name], None if is_trained else table.num_rows)
            uses[code.name] = (use, None, None) if is_trained else (use, code.distinct, code.gaps)
    uses[columns.id] = "names the nodes", table.num_rows, 0
    if columns.label and num_anomalies is not None:
        distinct = 1 + (0 < num_anomalies < table.num_rows)
        uses[columns.label] = "the label, 1 = anomaly: it measures the ranking and decides nothing", distinct, 0
    if columns.node_type:
        use = "the type of each node, which is compared with its own type" if types else "not used: all are of one type"
        gaps = np.count_nonzero(types.codes[: table.num_rows] == NO_TYPE) if types else 0
        uses[columns.node_type] = use, len(types.names) if types else 1, int(gaps)
    why = "the trained graph has no such column" if is_trained else "graph.include does not name it"

    def of_others(column: pa.Field) -> str:
        told = known_cases(column.name, columns)
        return (
            told.replace(
                f"graph.categorical=[{column.name}] uses it", f"graph.label_column={column.name} measures by it"
            )
            if told
            else f"not used: {why}"
        )

    return _column_lines("nodes", table.files, columns, uses, of_others)


def _column_lines(
    table: str, files: TableFiles, columns: Columns, uses: Mapping[str, _ColumnCounts], rest: Callable[[pa.Field], str]
) -> list[ColumnLine]:
    """A line for each column, by `uses` or else `rest`, with what the files say of it.

    They say which is an index of pandas, how values are written, and which columns later files alone have.
    """
    lines, index = [], unnamed_index(files, columns)
    for column in files.schema:
        name, (use, *counts) = column.name, uses.get(column.name) or (rest(column), None, None)
        if name in index:
            name, use = name or "(no name)", "not used: the index that pandas wrote beside the columns"
        if note := files.notes.get(name):
            use = use if note == MAY_BE_THOUSANDS else use.replace("a number, as it is", "a number")
            use = f"{use}; {note}"
        lines.append(ColumnLine(table, name, str(column.type), use, *counts))
    for name, (kind, file) in columns_of_later_files(files).items():
        lines.append(ColumnLine(table, name, kind, f"not used: only in {file}, not in the first file"))
    return lines


def column_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines of a manifest as an aligned text table; of very many columns the first.

    >>> print(column_table([vars(ColumnLine("nodes", "age", "int64", "a number, as it is", 80, 2))]))
    table  column  type   distinct  gaps  use
    nodes  age     int64  80        2     a number, as it is
    """

    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else shorten(str(value), 300)

    rows = [_HEADER, *(tuple(cell(line[name]) for name in _HEADER) for line in lines[:_MAX_LINES])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    shown = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if len(lines) > _MAX_LINES:
        shown.append(f"and {len(lines) - _MAX_LINES:,} more columns, told in graph/manifest.json")
    return "\n".join(shown) if lines else ""
