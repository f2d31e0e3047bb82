"""Parquet, CSV or Arrow tables to a graph folder: an edge table, and optionally a node table.

Nodes are numbered by the rows of the node table, then, under graph.unknown=add, by the ascending order of the ids that
edges alone name; without a node table all nodes are of that kind. Ids that are 0 .. n - 1 already are not stored.

The node table is read three times: ids, survey, attributes (node_table.py). The edge table is parsed once: `EdgeTable`
writes its rows as fixed-size records to a temporary file in the new folder, 8 bytes a row for both ends, 8 more for a
weight and 1 for a type, and the CSR, the weights and the types are made from the records. All of it streams: memory is
that of the ids, of the edge sort and of the mapped arrays. A fault is counted as rows stream by and raised at the end
of the pass, with the first offending rows.

What became of every column is kept in the manifest (`info.ingest.told`), a `ColumnLine` each.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.console import shorten
from hcm_scale.base.npy import create_npy, open_npy
from hcm_scale.graph.build import Chunk, EdgeCounts, build_csr
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import Graph
from hcm_scale.ingest import node_table
from hcm_scale.ingest.arrays import FeatureCounts, finish_folder, require, write_weights
from hcm_scale.ingest.encode import (
    FORMAT_EXAMPLES,
    MAY_BE_THOUSANDS,
    CategoryEncoding,
    EmptyEncoding,
    Encoding,
    TextRules,
    is_date,
    is_number,
    is_text,
)
from hcm_scale.ingest.guess import index_columns
from hcm_scale.ingest.ids import (
    GrowingIds,
    IdReader,
    Numbers,
    RangeIds,
    id_kind,
    number_ids,
    sort_ids,
    stored_ids,
)
from hcm_scale.ingest.policy import DEFAULT_POLICY, InputError, Offenders, Policy, naming_origin
from hcm_scale.ingest.table_files import TableFiles, TableSource, columns_of_later_files, open_table

MAX_TYPES = 16
_NO_TYPE = 255
_BLOCK_ROWS = 1 << 16
_NAME = r"^\s*-?(0[0-9xX]|[0-9.]+[eE])"  # an id that could be read as a number, and is more than that


@dataclass(frozen=True)
class Columns:
    """Which column is what, and how text becomes attributes.

    source, target   the id columns of the edge table;  id   of the node table
    type             of the edge table: what kind of edge a row is, shown in explanations
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


_DEFAULT_COLUMNS = Columns()


def read_tables(
    out: Path | str,
    edges: TableSource,
    nodes: TableSource | None = None,
    *,
    columns: Columns = _DEFAULT_COLUMNS,
    policy: Policy = DEFAULT_POLICY,
    known: list[Encoding] | None = None,
    origin: str | None = None,
) -> Graph:
    """Reads the tables at `edges` and `nodes` (file, folder, glob or Arrow table) into the folder `out`; returns it.

    `known` are the encodings of an earlier node table, by which this one is read. `origin` is what the tables are
    called in messages; None: as their files are.
    """
    edge_table, node_files = _open(edges, nodes, columns, policy.max_bytes)
    origin = origin or edge_table.files.origin + (f", {node_files.origin}" if node_files else "")
    if node_files is not None:
        if known is not None:
            node_files = node_files.with_casts(node_table.text_casts(node_files, known))
        node_files = node_files.with_text_formats(_attribute_names(node_files, columns))
    with naming_origin(origin):
        _write(Path(out), origin, edge_table, node_files, columns, policy, known)
    return Graph.open(out, verify=False)


def _write(
    out: Path,
    origin: str,
    edge_table: "EdgeTable",
    node_files: TableFiles | None,
    columns: Columns,
    policy: Policy,
    trained: list[Encoding] | None,
) -> None:
    names = _attribute_names(node_files, columns) if node_files else ()
    require(len(names), policy, "" if node_files else "graph.nodes=FILE is the table that has them, or ")
    encodings: list[Encoding] = []
    with files.replacing_folder(out) as folder:
        with tempfile.TemporaryDirectory(prefix="rows-", dir=folder) as scratch:
            records = Path(scratch) / "records"
            rows = node_table.NodeRows(GrowingIds(edge_table.id_kind), np.zeros(0, np.int64))
            if node_files is not None:
                rows = node_table.number_rows(node_files, columns.id, edge_table.id_kind, policy.repeated)
            num_rows, grows = len(rows.ids), node_files is None or policy.unknown == "add"
            column = edge_table.add_ends(records, rows.ids) if grows else stored_ids(rows.ids.column())
            num_nodes = len(rows.ids)
            if node_files is not None and trained is not None:
                unused = (columns.id, columns.label or columns.id, *columns.exclude, *_index(node_files, columns))
                encodings = node_table.check_encodings(node_files, trained, unused, rows.left_out, policy)
            elif node_files is not None:
                always = frozenset(columns.categorical + (columns.attributes or ()))
                rules = TextRules(columns.max_categories, columns.hash_buckets, always)
                added = num_nodes - num_rows
                encodings = node_table.plan_columns(node_files, names, rows.left_out, added, policy, rules)
            require(sum(len(encoding.names) for encoding in encodings), policy)
            if not grows:
                edge_table.find_ends(records, RangeIds(num_nodes) if column is None else rows.ids)
            edge_table.check(policy.unknown, rows.ids)
            counts = _write_edges(folder, edge_table, num_nodes, policy.directed)
        written, num_anomalies, shape = FeatureCounts(), None, (num_rows, num_nodes - num_rows)
        if node_files is not None:
            written = node_table.write_features(folder, node_files, encodings, rows.left_out, shape)
            if columns.label:
                num_anomalies = node_table.write_labels(folder, node_files, columns.label, rows.left_out, shape)
        lines = _edge_lines(edge_table, columns, policy.directed)
        if node_files is not None:
            lines += _node_lines(node_files, columns, encodings, num_rows, num_anomalies, trained is not None)
        finish_folder(
            folder,
            origin,
            policy,
            counts,
            written,
            ids=column,
            column_lines=[asdict(line) for line in lines],
            edge_types=edge_table.type_names if columns.type else None,
            weights=columns.weight,
            unknown_edges=edge_table.unknown.count,
            repeated_nodes=len(rows.left_out),
            added_nodes=shape[1] if node_files else 0,
            num_anomalies=num_anomalies,
        )


@dataclass
class EdgeTable:
    """An edge table and the names of its columns; once parsed, its rows as records in a file, and what was counted."""

    files: TableFiles
    source: str
    target: str
    id_kind: str
    weight: str | None = None
    type: str | None = None
    num_rows: int = 0
    num_loops: int = 0
    num_nulls: tuple[int, int] = (0, 0)  # of sources and of targets
    num_distinct: tuple[int, int] = (0, 0)  # likewise, known once `edges` is read to its end
    num_untyped: int = 0
    type_names: list[str] = field(default_factory=list)
    unknown: Offenders = field(init=False)

    def __post_init__(self) -> None:
        where = self.files.rows_of("the edge table")
        remedy = "graph.unknown=drop leaves these rows out, add makes nodes of them, without attributes"
        self.unknown = Offenders("rows name an id that is not a node", where, remedy)
        self._reader = IdReader(self.id_kind, where, self.files.place)
        self._layout = np.dtype(
            [("u", "<i4"), ("v", "<i4")] + [("weight", "<f8")] * bool(self.weight) + [("type", "u1")] * bool(self.type)
        )
        self._unknown_texts: list[str] = []  # a few ids that are not nodes
        self._records = Path()
        self._nodes: NDArray[np.int32] | None = None  # the node of each number, -1 last; None: numbers are nodes

    def add_ends(self, records: Path, ids: GrowingIds) -> pa.Array | None:
        """Parses the table, adding new ids to `ids`; returns all as they are stored, new ones in ascending order."""
        first = len(ids)
        self._parse(records, ids.add)
        if not len(ids):
            ends = f"graph.source_column={self.source} and graph.target_column={self.target}"
            raise ValueError(f"{ends} hold no ids: the graph is empty")
        column, self._nodes = sort_ids(ids, first)
        return stored_ids(column)

    def find_ends(self, records: Path, ids: GrowingIds | RangeIds) -> None:
        """Parses the table; ends that `ids` does not hold are -1."""
        self._parse(records, ids.find)

    def _parse(self, records: Path, take: Callable[[pa.Array], Numbers]) -> None:
        ends, self._records = (self.source, self.target), records
        types = ((self.type, pa.string()), (self.weight, pa.float64()))
        casts = {name: kind for name, kind in types if name is not None and name not in ends}
        with open(records, "wb") as stream:
            for batch in self.files.with_casts(casts).batches(list(dict.fromkeys((*ends, *casts)))):
                sources, targets = (self._reader.read(batch[end], self.num_rows) for end in ends)
                rows = np.empty(len(batch), self._layout)
                rows["u"], rows["v"] = (number_ids(take, column) for column in (sources, targets))
                self._count(rows, sources, targets)
                if self.weight:
                    rows["weight"] = batch[self.weight].to_numpy(zero_copy_only=False)
                if self.type:
                    rows["type"] = self._type_codes(batch[self.type])
                rows.tofile(stream)
                self.num_rows += len(batch)
        self._reader.check(nulls=False)

    def _count(self, rows: NDArray[Any], sources: pa.Array, targets: pa.Array) -> None:
        is_lost = (rows["u"] < 0) | (rows["v"] < 0)
        self.num_loops += int(((rows["u"] == rows["v"]) & ~is_lost).sum())
        self.num_nulls = self.num_nulls[0] + sources.null_count, self.num_nulls[1] + targets.null_count
        if is_lost.any():
            first, start = int(is_lost.argmax()), self.num_rows
            self.unknown.add(is_lost, lambda i: f"{self.files.place(start + i)}: {sources[i]} -> {targets[i]}")
            if self.id_kind == "text":
                self._unknown_texts += (sources[first].as_py() or "", targets[first].as_py() or "")

    def _type_codes(self, column: pa.Array) -> NDArray[np.uint8]:
        """The place of each type among `type_names`, to which new ones are added until they are too many."""
        encoded, names = pc.dictionary_encode(column.cast(pa.string())), self.type_names
        self.num_untyped += column.null_count
        found = encoded.dictionary.to_pylist()
        if len(names) <= MAX_TYPES:
            names += [name for name in found if name not in names]
        if len(names) > MAX_TYPES:  # `write_edge_types` refuses them, after faults of ids
            return np.full(len(column), _NO_TYPE, np.uint8)
        codes = np.array([*map(names.index, found), _NO_TYPE], np.uint8)
        return codes[encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)]

    def check(self, unknown: str, ids: GrowingIds) -> None:
        """Raises for missing and unknown ids, unless their rows are dropped and others are left."""
        if unknown != "drop":
            also = ", and all that name no node; to add those, leave rows without an id out of the table"
            self._reader.null.remedy = f"graph.unknown=drop drops their rows{also if unknown == 'add' else ''}"
            self._reader.null.check()
            if self.unknown.count and _differ_by_zeros(ids, self._unknown_texts):
                self.unknown.remedy = "graph.id_type=integer reads 0042 and 42 as one id"
            self.unknown.check()
        elif self.unknown.count and self.unknown.count + self.num_loops == self.num_rows:
            raise ValueError(
                f"the graph has no edges: {self.num_rows:,} rows read, {self.num_loops:,} of them self loops, and by "
                f"graph.unknown=drop {self.unknown.count:,} dropped that name an id that is not a node: "
                f"{'; '.join(self.unknown.first)}"
            )

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Streams the records, `u` and `v` as nodes, -1 for none; with `weight` (NaN for gaps) and `type`, if asked."""
        with open(self._records, "rb") as stream:
            while len(rows := np.fromfile(stream, self._layout, _BLOCK_ROWS)):
                if self._nodes is not None:
                    rows["u"], rows["v"] = self._nodes[rows["u"]], self._nodes[rows["v"]]
                yield rows

    def edges(self, num_nodes: int) -> Iterator[Chunk]:
        """Streams the ends of rows that join two nodes."""
        is_source, is_target = np.zeros((2, num_nodes), np.bool_)
        for rows in self.blocks():
            rows = rows[(rows["u"] >= 0) & (rows["v"] >= 0)]
            is_source[rows["u"]] = is_target[rows["v"]] = True
            yield rows["u"], rows["v"]
        self.num_distinct = int(is_source.sum()), int(is_target.sum())


def _differ_by_zeros(ids: GrowingIds, unknown: Sequence[str]) -> bool:
    """Whether some text of digits that is no id is one with fewer zeros before it, or as long as the first id."""
    column = ids.column()
    length = len(column[0].as_py()) if unknown and len(column) else 0
    digits = [text for text in unknown if text.isdecimal()]
    others = {other for text in digits for other in (text.lstrip("0"), text.zfill(length))} - {"", *digits}
    return bool(others) and bool((ids.find(pa.array(sorted(others), pa.large_string())) >= 0).any())


def _write_edges(folder: Path, table: EdgeTable, num_nodes: int, directed: bool) -> EdgeCounts:
    """Writes the CSR, and the types and weights beside it."""
    counts = build_csr(folder, table.edges(num_nodes), num_nodes, directed)
    if table.type:
        _write_types(folder, table, directed)
    if table.weight:
        weighted = ((rows["u"], rows["v"], rows["weight"]) for rows in table.blocks())
        write_weights(folder, weighted, f"graph.weight_column={table.weight}", directed=directed, adds_up=True)
    return counts


def _write_types(folder: Path, table: EdgeTable, directed: bool) -> None:
    """Writes edge_types.npy: bit i of an entry of the CSR says that a row of type i joins the two nodes."""
    if len(names := table.type_names) > MAX_TYPES:
        raise InputError(f"graph.type_column={table.type!r} has more than {MAX_TYPES} values: {', '.join(names)} ...")
    indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
    types = create_npy(folder / "edge_types.npy", np.uint16, indices.shape)
    for rows in table.blocks():
        rows = rows[(rows["u"] >= 0) & (rows["v"] >= 0) & (rows["type"] != _NO_TYPE)]
        bits = np.uint16(1) << rows["type"].astype(np.uint16)
        for start, end in (("u", "v"), ("v", "u"))[: 1 if directed else 2]:
            at, found = find_arcs(indptr, indices, rows[start], rows[end])
            np.bitwise_or.at(types, at[found], bits[found])
    types.flush()


# Opening: the files of both tables, the columns that options name, and the type of the ids.


def _open(
    edges: TableSource, nodes: TableSource | None, columns: Columns, max_bytes: int
) -> tuple[EdgeTable, TableFiles | None]:
    """The tables, the names of their columns checked, to be read with the type that ids have."""
    edge_files = open_table("graph.path", edges, max_bytes)
    edge_files.check_columns("graph.source_column", [columns.source])
    edge_files.check_columns("graph.target_column", [columns.target])
    edge_files.check_columns("graph.type_column", [columns.type])
    edge_files.check_filled()
    taken = {columns.source, columns.target, columns.type}
    if not edge_files.is_csv:  # whose text is known to be text
        taken |= {*edge_files.schema.names} - {columns.weight}
    edge_files = edge_files.with_text_formats([name for name in edge_files.schema.names if name not in taken])
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
        node_files.check_columns("graph.label_column", [columns.label])
        node_files.check_columns("graph.include", columns.attributes or ())
        node_files.check_columns("graph.exclude", columns.exclude)
        node_files.check_columns("graph.categorical", columns.categorical)
        typed.append((f"{node_files.origin}:{columns.id}", node_files.schema.field(columns.id).type))
    kind = id_kind(typed, columns.id_type)
    if columns.id_type == "auto" and kind == "integer":
        tables = [(edge_files, (columns.source, columns.target)), (node_files, (columns.id,))]
        if any(table is not None and _starts_with_text_ids(table, names) for table, names in tables):
            kind = "text"
    checked = columns.id_type == "auto"
    edge_files = edge_files.with_casts(_id_casts(edge_files, (columns.source, columns.target), kind, checked))
    if node_files is not None:
        text = {name: pa.string() for name in columns.categorical}
        node_files = node_files.with_casts({**text, **_id_casts(node_files, (columns.id,), kind, checked)})
    table = EdgeTable(edge_files, columns.source, columns.target, kind, columns.weight, columns.type)
    return table, node_files


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


def _starts_with_text_ids(table: TableFiles, names: tuple[str, ...]) -> bool:
    """Whether a CSV's ids, in its first block, are such that a number would not keep: 007, 0x1, 12e2."""
    if not table.is_csv:
        return False
    for batch in table.with_casts({name: pa.string() for name in names}).batches(names):
        return any(pc.any(pc.match_substring_regex(column, _NAME)).as_py() for column in batch.columns)
    return False


def _id_casts(table: TableFiles, names: tuple[str, ...], kind: str, checked: bool) -> dict[str, pa.DataType]:
    """Text and integers are read as such, so that an id keeps its zeros and its last digit; floats as they come.

    Where no option says that ids are integers (`checked`), those of a CSV come as text, which `IdReader` looks at.
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
_FEWEST_IDS, _ID_SHARE = 100, 0.95  # distinct whole numbers, and their share of the rows, that may well be ids
_HEADER = ("table", "column", "type", "distinct", "gaps", "use")


def _edge_lines(table: EdgeTable, columns: Columns, directed: bool) -> list[ColumnLine]:
    """The columns of the edge table, once it was read."""
    uses: dict[str, _ColumnCounts] = {}
    if table.type:
        use = "the type of each edge, told in explanations; it decides no score"
        uses[table.type] = use, len(table.type_names), table.num_untyped
    of_ends = ["an end of each edge; which end is not kept: graph.directed=true keeps it"] * 2
    if directed:
        of_ends = ["where each edge starts", "where each edge ends"]
    ends = (table.source, table.target)
    uses |= {name: (of_ends[i], table.num_distinct[i], table.num_nulls[i]) for i, name in enumerate(ends)}
    if table.weight:
        use = "weight of edges, added up over the rows of two nodes: a heavier neighbour counts for more"
        uses[table.weight] = use, None, 0
    schema = table.files.schema
    rows = [(entry, uses.get(entry.name, (_unused_of_edges(entry), None, None))) for entry in schema]
    lines = [ColumnLine("edges", entry.name, str(entry.type), *counts) for entry, counts in rows]
    return _with_file_notes(lines, table.files, columns)


def _unused_of_edges(column: pa.Field) -> str:
    if is_date(column.type):
        return "not used: edges have no time here; select the rows of the time that you mean"
    if is_text(column.type):
        return "not used: edges have no attributes here; graph.type_column takes one with few values as their type"
    if is_number(column.type):
        return f"not used: graph.weight_column={column.name} takes it as the weight of edges"
    return "not used: edges have no attributes here; sums over a node's edges can be node columns"


def _node_lines(
    table: TableFiles,
    columns: Columns,
    encodings: Sequence[Encoding],
    num_rows: int,
    num_anomalies: int | None,
    is_trained: bool,
) -> list[ColumnLine]:
    """The columns of the node table; of a trained graph's encodings (`is_trained`) the counts are not shown."""
    schema = table.schema
    uses: dict[str, _ColumnCounts] = dict.fromkeys(columns.exclude, ("not used: graph.exclude names it", None, None))
    for code in encodings:
        if code.name in schema.names:
            use = _use(code, schema.field(code.name).type, None if is_trained else num_rows)
            uses[code.name] = (use, None, None) if is_trained else (use, code.distinct, code.gaps)
    uses[columns.id] = "names the nodes", num_rows, 0
    if columns.label and num_anomalies is not None:
        distinct = 1 + (0 < num_anomalies < num_rows)
        uses[columns.label] = "the label, 1 = anomaly: it measures the ranking and decides nothing", distinct, 0
    why = "the trained graph has no such column" if is_trained else "graph.include does not name it"
    rest: _ColumnCounts = (f"not used: {why}", None, None)
    lines = [ColumnLine("nodes", entry.name, str(entry.type), *uses.get(entry.name, rest)) for entry in schema]
    return _with_file_notes(lines, table, columns)


def _with_file_notes(lines: Sequence[ColumnLine], table: TableFiles, columns: Columns) -> list[ColumnLine]:
    """The lines, with what the files say of columns: an index of pandas, how values are written, in which files."""
    noted, index = [], _index(table, columns)
    for line in lines:
        if line.column in index:
            use = "not used: the index that pandas wrote beside the columns"
            line = replace(line, column=line.column or "(no name)", use=use)
        if note := table.notes.get(line.column):
            use = line.use if note == MAY_BE_THOUSANDS else line.use.replace("a number, as it is", "a number")
            line = replace(line, use=f"{use}; {note}")
        noted.append(line)
    for name, (kind, file) in columns_of_later_files(table).items():
        noted.append(ColumnLine(lines[0].table, name, kind, f"not used: only in {file}, not in the first file"))
    return noted


def _use(encoding: Encoding, kind: pa.DataType, num_rows: int | None) -> str:
    """What an attribute column became; `num_rows` None: it was encoded as in a trained graph."""
    flag = ", and a flag where there is a gap" if encoding.nulls else ""
    if isinstance(encoding, EmptyEncoding):
        if not encoding.distinct:
            return "not used: it has no value"
        what = _written(encoding, num_rows) or "nearly every row has a value of its own (a name, free text)"
        return f"not used: {what}; graph.categorical=[{encoding.name}] takes it, hashed"
    if isinstance(encoding, CategoryEncoding):
        hint = f"; {written}" if (written := _written(encoding, num_rows)) else ""
        if encoding.buckets:
            return f"{encoding.buckets} 0/1 columns, by a hash of the text{flag}{hint}"
        return f"a 0/1 column for each value{flag}{hint if encoding.mostly else ''}"
    if encoding.method == "date":
        first = np.datetime64(round(encoding.origin * 1440), "m").astype("M8[D]" if pa.types.is_date(kind) else "M8[m]")
        since = "less the shortest" if pa.types.is_time(kind) or pa.types.is_duration(kind) else f"since {first}"
        return f"a number: days {since}{flag}"
    hint = ""
    if num_rows and pa.types.is_integer(kind) and encoding.distinct >= max(_FEWEST_IDS, _ID_SHARE * num_rows):
        hint = f"; if it is an id, graph.exclude=[{encoding.name}] leaves it out"
    return f"a number, as it is{flag}{hint}"


def _written(encoding: CategoryEncoding | EmptyEncoding, num_rows: int | None) -> str:
    """What the text looks like that was not read as numbers or dates; counts only of these rows."""
    if looks := encoding.looks:
        return f"text that looks like {looks}, which are read where they are written as {FORMAT_EXAMPLES[looks]}"
    remedy = f"write numbers as {FORMAT_EXAMPLES['numbers']}, gaps as nothing"
    return f"{encoding.mostly}: {remedy}" if encoding.mostly and num_rows else ""


def column_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines of a manifest as an aligned text table; of very many columns the first.

    >>> print(column_table([asdict(ColumnLine("nodes", "age", "int64", "a number, as it is", 80, 2))]))
    table  column  type   distinct  gaps  use
    nodes  age     int64  80        2     a number, as it is
    """
    rows = [_HEADER, *(tuple(_cell(line[name]) for name in _HEADER) for line in lines[:_MAX_LINES])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    shown = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    more = (
        [f"and {len(lines) - _MAX_LINES:,} more columns, told in graph/manifest.json"]
        if len(lines) > _MAX_LINES
        else []
    )
    return "\n".join([*shown, *more]) if lines else ""


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else shorten(str(value))
