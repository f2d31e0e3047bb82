"""scores.parquet: one row a node, most anomalous first, joined back to the user's own ids.

| column       | type           | what                                                                          |
|--------------|----------------|-------------------------------------------------------------------------------|
| id           | as in the data | the user's id; the node's number where the data came without ids               |
| node         | i64            | the node's number in this project                                              |
| ahp, ...     | f64            | the numbers of every kind of evidence, one or more columns each (`kinds/`)     |
| score        | f64            | the evidence of all kinds added up (evidence.py)                               |
| evidence     | string         | the kind of evidence that says most about the node; dictionary-encoded         |
| hop_rank ... | i32            | 1 = most anomalous by this kind; ties share the middle rank, rounded towards 1 |
| p            | f64            | chance of a usual node to have as much evidence (threshold.py)                 |
| flagged      | bool           | whether it stands out at the false-discovery rate `fdr` of the metadata        |
| rank         | i64            | 1 = most anomalous by `rank_by`, ties by node number                           |
| degree       | i64            | neighbours in the original graph; out-neighbours if directed                   |
| flags        | string         | names joined by commas, empty for most: isolated, no_out_neighbors             |
| type         | string         | where nodes are of several types; dictionary-encoded, null for none            |
| y, kind      | u8             | where known: 1 = anomaly; 0 normal, 1 structural, 2 attribute                  |

`p` and `flagged` are present where the evidence has been judged. Nodes that a kind cannot tell apart, such as those
without neighbours, have its middle rank. The schema's metadata name the score that ranks (`rank_by`), the kinds of
evidence (`kinds`), the false-discovery rate (`fdr`), which types of nodes are compared together (`groups`), as ranks by
kind are those within a group, kinds that weigh next to nothing (`faint`), and what is to be said of kinds that are
plug-ins (`own`). Pages carry checksums, the file appears whole or not at all, and equal scores give equal bytes. A
table of a hundred million nodes takes 16 GB, more where ids are text: threads write it a row group each, and readers
that cannot hold it use `RankedFile`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files, parquet
from hcm_scale.base.order import taker
from hcm_scale.base.threads import prefetch, run_in_slices, share_parts
from hcm_scale.graph.store import Graph, NodeTypes
from hcm_scale.score import evidence
from hcm_scale.score.evidence import Groups
from hcm_scale.score.kinds.all import KINDS
from hcm_scale.score.kinds.kind import Kind
from hcm_scale.score.kinds.plugin import stored_kind, stored_parts
from hcm_scale.score.metrics import ranking
from hcm_scale.score.nodes import FLAG_NAMES, NodeScores
from hcm_scale.score.threshold import Verdict

FILE = "scores.parquet"
_MIN_GROUP_ROWS, _MAX_GROUP_ROWS, _NUM_GROUPS = 1 << 14, 1 << 17, 64
_BATCH_ROWS = 1 << 16
_GROUPS_AT_ONCE = 4  # that a thread reads
_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "write_page_index": False}
_REQUIRED = {"node": pa.int64(), "rank": pa.int64(), "degree": pa.int64(), "flags": pa.string()}
_WORDS = ("evidence", "type", "verdict")
_TYPES = _REQUIRED | {  # of all columns but `id`, words, and those of kinds; taught.parquet has a few of its own
    "score": pa.float64(),
    "p": pa.float64(),
    "taught": pa.float64(),
    "taught_rank": pa.int64(),
    "flagged": pa.bool_(),
    "y": pa.uint8(),
    "kind": pa.uint8(),
}
_NULLABLE = ("type", "verdict")
_RANGES = {"degree": (0, 2**62), "y": (0, 1), "kind": (0, 2), "p": (0.0, 1.0)}  # `node` is looked at by `check_rows`
_MOST_GROUPS = 256

# Which columns a ranked table has. `table` is a pa.Table or a RankedFile.


def kinds_of(table: Any) -> dict[str, Kind]:
    """The kinds of evidence that have ranks in the table, by name."""
    return {name: kind for name, kind in legal_kinds(table.schema).items() if kind.rank_column in table.column_names}


def legal_kinds(schema: pa.Schema) -> dict[str, Kind]:
    """The kinds of the package and those of plug-ins, of which what the metadata say is enough."""
    stored = json.loads((schema.metadata or {}).get(b"own", b"{}"))
    return KINDS | {name: stored_kind(Path(FILE), name, parts) for name, parts in stored.items()}


def check_kind(kind: Kind) -> None:
    """Raises ValueError for a plug-in's kind whose columns would be others'."""
    taken = {"id", *_TYPES, *_WORDS, *KINDS} | {
        c for other in KINDS.values() for c in (*other.columns, other.rank_column)
    }
    for name in (kind.name, *kind.columns):
        if {name, f"{name}_rank"} & taken or name.endswith("_rank") or not name.isidentifier():
            raise ValueError(
                f"score.evidence={name} is no name for a kind of evidence: the ranked table uses it otherwise"
            )


def ranked_by(table: Any) -> str:
    """Name of the score that ranks the table; `ahp` where the metadata do not say."""
    name: str = (table.schema.metadata or {}).get(b"rank_by", b"ahp").decode(errors="replace")
    return name


def score_names(table: Any) -> list[str]:
    """The columns that hold scores: the floating-point ones except `p`, in table order."""
    return [field.name for field in table.schema if pa.types.is_floating(field.type) and field.name != "p"]


def compared_types(table: Any) -> Groups | None:
    """Which types of nodes are compared together; None where all nodes are."""
    stored = (table.schema.metadata or {}).get(b"groups")
    return None if stored is None else dict(json.loads(stored))


def faint_kinds(table: Any) -> list[str]:
    """The kinds of evidence that weigh too little to be the reason of a rank."""
    names: bytes = (table.schema.metadata or {}).get(b"faint", b"")
    return names.decode(errors="replace").split(",")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with categories as plain text, which every program reads."""
    fields = [entry.with_type(pa.string()) if pa.types.is_dictionary(entry.type) else entry for entry in schema]
    return pa.schema(fields, schema.metadata)


# Writing.


def row_groups(
    graph: Graph, scores: NodeScores, rank_by: str, verdict: Verdict | None = None, size: int | None = None
) -> list[Callable[[], pa.Table]]:
    """One function per row group that makes its rows, most anomalous node first; a single empty group without nodes.

    A group has `size` rows, by default `group_rows`.
    """
    score = scores.by(rank_by)
    if np.isnan(score).any():
        raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN and cannot be ranked")
    order = ranking(score)
    assert scores.places is not None
    assert scores.score is not None
    columns: dict[str, NDArray[Any]] = {**scores.numbers, "score": scores.score, "evidence": _strongest(scores)}
    columns |= {kind.rank_column: ranks for kind, ranks in zip(scores.kinds, scores.places, strict=True)}
    columns |= {} if verdict is None else {"p": verdict.p, "flagged": verdict.flagged}
    columns |= {"degree": scores.degree, "flags": scores.flags}
    columns |= {name: values for name, values in (("y", graph.y), ("kind", graph.kind)) if values is not None}
    columns |= {} if scores.types is None else {"type": scores.types.codes}
    metadata = {"rank_by": rank_by, "kinds": ",".join(kind.name for kind in scores.kinds)}
    metadata |= {} if verdict is None else {"fdr": str(verdict.rate)}
    metadata |= {} if scores.groups is None else {"groups": json.dumps([*scores.groups.items()])}
    metadata |= {"faint": ",".join(scores.faint)} if scores.faint else {}
    own = {kind.name: stored_parts(kind) for kind in scores.kinds if kind.identity}
    metadata |= {"own": json.dumps(own)} if own else {}
    size = size or group_rows(len(order))
    starts, take = range(0, len(order) or 1, size), taker(columns)
    return [partial(_rows, graph, scores, take, order, slice(at, at + size), metadata) for at in starts]


def _strongest(scores: NodeScores) -> NDArray[np.int8]:
    """The kind that says most about every node, of ranks within groups of types where there are any."""
    assert scores.places is not None
    out, kinds = np.empty(len(scores.degree), np.int8), (scores.kinds, scores.faint)
    every: list[Any] = [slice(None)]
    for nodes in scores.of_groups() or every:
        out[nodes] = evidence.strongest(scores.places[:, nodes], scores.has_neighbors[nodes], *kinds)
    return out


def group_rows(num_nodes: int) -> int:
    """Rows of a row group, such that the groups held by all threads together are a small part of the table.

    >>> group_rows(1_000), group_rows(4_000_000), group_rows(100_000_000)
    (16384, 62500, 131072)
    """
    return min(_MAX_GROUP_ROWS, max(_MIN_GROUP_ROWS, num_nodes // _NUM_GROUPS))


def _rows(
    graph: Graph,
    scores: NodeScores,
    take: Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]],
    order: NDArray[np.int64],
    places: slice,
    metadata: dict[str, str],
) -> pa.Table:
    """The rows of the nodes at these places of the ranking: their rank stands before their degree."""
    nodes, types, names = order[places], scores.types, pa.array([kind.name for kind in scores.kinds])
    encode: dict[str, Callable[..., pa.Array]] = {
        "flags": _flag_text,
        "type": types.encode if types else pa.array,
        "evidence": lambda codes: pa.DictionaryArray.from_arrays(pa.array(codes), names),
    }
    ids = pa.array(nodes) if graph.ids is None else graph.ids.take(pa.array(nodes))
    encoded = {}
    for name, values in take(nodes).items():
        if name == "degree":
            encoded["rank"] = pa.array(np.arange(places.start + 1, places.start + len(nodes) + 1))
        encoded[name] = encode.get(name, pa.array)(values)
    return pa.table({"id": ids, "node": nodes, **encoded}).replace_schema_metadata(metadata)


def _flag_text(flags: NDArray[np.uint8]) -> pa.Array:
    """Bit masks as comma-joined names.

    >>> _flag_text(np.array([0, 1, 3], np.uint8)).to_pylist()
    ['', 'isolated', 'isolated,no_out_neighbors']
    """
    masks = range(1 << len(FLAG_NAMES))
    names = [",".join(name for bit, name in enumerate(FLAG_NAMES) if mask >> bit & 1) for mask in masks]
    return pa.array(names).take(pa.array(flags))


def write_scores(path: Path, groups: Iterable[Callable[[], pa.Table]]) -> None:
    """Writes the row groups, whole or not at all; threads make and encode several at once.

    As many again may be ready, so that a thread need not wait for one that is slower.
    """
    workers = numba.get_num_threads()
    with (
        files.replacing_file(path) as fresh,
        open(fresh, "wb") as stream,
        files.flushing(stream),
        closing(prefetch(groups, _encoded, depth=2 * workers, workers=workers)) as encoded,
    ):
        parquet.join(stream, encoded)


def _encoded(make: Callable[[], pa.Table]) -> parquet.Group:
    """A row group as a Parquet file in memory.

    Numbers hardly repeat, so a dictionary would cost more time than writing them: floats are split into streams of
    their bytes, integers stored as differences. Text ids and booleans stay plain.
    """
    group, sink = make(), pa.BufferOutputStream()
    ways = {pa.float64(): "BYTE_STREAM_SPLIT", pa.int32(): "DELTA_BINARY_PACKED", pa.int64(): "DELTA_BINARY_PACKED"}
    encodings = {entry.name: ways[entry.type] for entry in group.schema if entry.type in ways}
    dictionaries = ["evidence", "flags", "type"]
    with pq.ParquetWriter(
        sink, group.schema, **_OPTIONS, column_encoding=encodings, use_dictionary=dictionaries
    ) as writer:
        writer.write_table(group, max(1, len(group)))
    return parquet.Group.of(memoryview(sink.getvalue()))


# Reading. A file may come from anybody: columns and metadata are checked when it is opened, values as they are read.


@contextmanager
def _open(path: Path, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """The file, its pages checked as they are read; FolderError where it is no such table. `metadata` are its own.

    Without `pre_buffer`, which would hold the whole file beside the table and is no faster. Not `pq.read_table`, which
    spends a quarter of a second importing Arrow's data sets and pandas.
    """
    options: Any = {"page_checksum_verification": True, "pre_buffer": False}
    with files.naming_damage(path), pq.ParquetFile(path, metadata=metadata, **options) as file:
        _check_schema(file.schema_arrow)
        yield file


def _check_schema(schema: pa.Schema) -> None:
    """ValueError where columns or metadata are none of a ranked table's."""
    if "id" not in schema.names or len({*schema.names}) != len(schema.names):
        raise ValueError("its columns, id among them, are not each there once")
    kinds, stored = legal_kinds(schema), (schema.metadata or {}).get(b"kinds", b"").decode().split(",")
    for name, kind in kinds.items():
        is_stored = KINDS.get(name) is not kind
        if is_stored:
            check_kind(kind)
        missing = {*kind.columns, kind.rank_column} - {*schema.names}
        if missing and (is_stored or name in stored or kind.rank_column in schema.names):
            raise ValueError(f"it has no column {min(missing):.60} of its kind of evidence {name:.60}")
    types = _TYPES | {kind.rank_column: pa.int32() for kind in kinds.values()}
    for name, has_type in zip(schema.names, schema.types, strict=True):
        is_text = pa.types.is_string(has_type) or pa.types.is_large_string(has_type)
        if name in _WORDS:
            is_legal = is_text or (pa.types.is_dictionary(has_type) and pa.types.is_string(has_type.value_type))
        else:
            is_legal = is_text or has_type == pa.int64() if name == "id" else types.get(name, pa.float64()) == has_type
        if not is_legal:
            raise ValueError(f"its column {name:.60} is {has_type}, not {types.get(name, 'one that it may have')}")
    metadata = schema.metadata or {}
    if not 0.0 <= float(metadata.get(b"fdr", 0.0)) <= 1.0:
        raise ValueError(f"its false-discovery rate is {metadata[b'fdr']!r}")
    if (by := metadata.get(b"rank_by", b"").decode()) and by not in score_names(schema.empty_table()):
        raise ValueError(f"it is ranked by {by!r:.60}, which is none of its scores")
    groups = dict(json.loads(metadata.get(b"groups", b"[]")))
    legal = all(isinstance(name, str | None) and type(number) is int for name, number in groups.items())
    if groups and not (legal and None in groups and 0 <= min(groups.values()) <= max(groups.values()) < _MOST_GROUPS):
        raise ValueError(f"its types are compared in the groups {groups!r:.60}")


def _checked(rows: Any, num_rows: int) -> Any:
    """A table or batch of a file of so many rows; ValueError where a value is none that its column may have."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if column.null_count and name not in _NULLABLE:
            raise ValueError(f"its column {name} has gaps")
        for part in parts if not pa.types.is_primitive(column.type) else ():
            part.validate(full=True)
            words = part.dictionary.to_pylist() if pa.types.is_dictionary(part.type) else []
            if name == "evidence" and not {*words} <= {*(legal := legal_kinds(rows.schema))}:
                raise ValueError(f"its column {name} holds {words!r:.60}; legal are {', '.join(legal)}")
        low, high = _RANGES.get(name, (1, num_rows) if name.endswith("rank") else (None, None))
        if low is not None and len(column):
            least, most = pc.min_max(column).as_py().values()
            if not low <= least <= most <= high:
                raise ValueError(f"its column {name} holds {least} to {most}; legal are {low} to {high}")
    return rows


def read_scores(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """The table, or those of `columns` that it has, in table order.

    Threads decode some row groups each; numbers into their stretch of one array a column, which numpy takes as it is.
    """
    with _open(path) as file:
        whole, starts = file.schema_arrow, _group_starts(file.metadata)
        schema = pa.schema([entry for entry in whole if columns is None or entry.name in columns], whole.metadata)
        plain = [entry for entry in schema if pa.types.is_primitive(entry.type) and entry.type != pa.bool_()]
        numbers = {entry.name: np.empty(starts[-1], entry.type.to_pandas_dtype()) for entry in plain}
        others: dict[int, pa.Table] = {}

        def read(_: int, first: int) -> None:
            groups = range(len(starts) - 1)[first : first + _GROUPS_AT_ONCE]
            with _open(path, file.metadata) as own:
                rows = own.read_row_groups(groups, schema.names, use_threads=False)
            if rows.num_rows != starts[groups.stop] - starts[first]:
                raise ValueError(f"its row groups {first} and on hold {rows.num_rows:,} rows, not as many as they say")
            others[first] = _checked(rows, int(starts[-1])).drop_columns([*numbers])
            for name, out in numbers.items():
                out[starts[first] : starts[groups.stop]] = rows[name].to_numpy()

        parts = range(0, len(starts) - 1, _GROUPS_AT_ONCE)
        share_parts(min(numba.get_num_threads(), len(parts)), parts, read)
        rest = pa.concat_tables([others[first] for first in parts]) if parts else schema.empty_table()
        return pa.table({name: numbers[name] if name in numbers else rest[name] for name in schema.names}, schema)


def _group_starts(metadata: pq.FileMetaData) -> NDArray[np.int64]:
    """The first row of every row group, and the end."""
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


class RankedFile:
    """A scores.parquet on disk: single columns, rows by number, or all rows batch by batch.

    Has as much of a pa.Table's interface as its readers use. Holds a batch of 65,536 rows at most.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open(path) as file:
            self.schema: pa.Schema = file.schema_arrow
            self._starts = _group_starts(file.metadata)
        self.column_names: list[str] = self.schema.names
        self.num_rows = int(self._starts[-1])

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.select([name])[name]

    def select(self, columns: Collection[str]) -> pa.Table:
        return read_scores(self.path, columns)

    def slice(self, first: int, count: int) -> pa.Table:
        """Consecutive rows, all columns."""
        return self.take(np.arange(first, min(first + count, self.num_rows)), self.column_names)

    def batches(
        self, columns: list[str] | None = None, groups: list[int] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(first row, rows) of every batch in order, of all row groups or of some."""
        with _open(self.path) as file:
            for group in range(len(self._starts) - 1) if groups is None else groups:
                first = int(self._starts[group])
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
                    yield first, _checked(batch, self.num_rows)
                    first += batch.num_rows

    def take(self, rows: NDArray[np.int64], columns: list[str]) -> pa.Table:
        """Rows by number, in the order given; batches after the last wanted one of a row group are not read."""
        batches, order = [], np.sort(rows)
        for group in np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist():
            last = order[order < self._starts[group + 1]].max()
            for first, batch in self.batches(columns, [group]):
                inside = order[(order >= first) & (order < first + batch.num_rows)] - first
                if len(inside):
                    batches.append(batch.take(pa.array(inside)))
                if first + batch.num_rows > last:
                    break
        order_of = np.argsort(np.argsort(rows, kind="stable"), kind="stable")
        schema = pa.schema([self.schema.field(name) for name in columns], self.schema.metadata)
        return pa.Table.from_batches(batches, schema).take(pa.array(order_of))


def check_ranked(path: Path, ranked: Any, num_nodes: int, numbers: Iterable[str] = ()) -> None:
    """Raises FolderError unless the table, in memory or on disk, has one row for each of the graph's nodes.

    `numbers` are columns that it must have besides the one that ranks.
    """
    wanted = _REQUIRED | {name: _TYPES.get(name, pa.float64()) for name in (ranked_by(ranked), "score", *numbers)}
    check_rows(path, ranked, num_nodes, wanted)
    if "evidence" not in ranked.column_names or not kinds_of(ranked):
        raise files.FolderError(f"{path} is damaged: it has no ranks by kind of evidence")


def check_rows(path: Path, ranked: Any, num_nodes: int, columns: Mapping[str, pa.DataType]) -> None:
    """Raises FolderError unless a table has these columns, `node` among them, and one row for each of the nodes."""
    types = {entry.name: entry.type for entry in ranked.schema}
    for name, wanted in columns.items():
        if types.get(name) != wanted:
            raise files.FolderError(
                f"{path} is damaged: its column {name} is {types.get(name, 'missing')}, not {wanted}"
            )
    if ranked.num_rows != max(1, num_nodes):
        raise files.FolderError(f"{path} is damaged: {ranked.num_rows:,} rows for the {num_nodes:,} nodes of the graph")
    node, seen = ranked["node"].to_numpy(), np.zeros(num_nodes, bool)

    def mark(chunk: slice) -> None:
        if node.dtype == np.int64 and node[chunk].min() >= 0 and node[chunk].max() < num_nodes:
            seen.put(node[chunk], True)

    run_in_slices(len(node), mark)
    if not seen.all():
        raise files.FolderError(f"{path} is damaged: its column node does not have every node of the graph once")


def node_scores(table: pa.Table) -> NodeScores:
    """The scores in node order: the inverse of `row_groups`."""
    node = table["node"].to_numpy()

    def in_order(values: NDArray) -> NDArray:
        out = np.empty_like(values)
        out[node] = values
        return out

    kinds = tuple(kinds_of(table).values())
    columns = [column for kind in kinds for column in kind.columns]
    numbers = {name: in_order(table[name].to_numpy()) for name in (*columns, "score", "degree")}
    places = np.stack([in_order(table[kind.rank_column].to_numpy()) for kind in kinds])
    flags = table["flags"].combine_chunks().dictionary_encode()
    bits = [
        sum(1 << FLAG_NAMES.index(name) for name in text.split(",") if name) for text in flags.dictionary.to_pylist()
    ]
    return NodeScores(
        kinds,
        {name: numbers[name] for name in columns},
        numbers["degree"],
        in_order(np.array(bits, np.uint8)[flags.indices.to_numpy()]),
        types=NodeTypes.of(table["type"].take(pa.array(np.argsort(node)))) if "type" in table.column_names else None,
        groups=compared_types(table),
        score=numbers["score"],
        places=places,
    )
