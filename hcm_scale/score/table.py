"""scores.parquet: one row a node, most anomalous first, joined back to the user's own ids.

| column       | type           | what                                                                          |
|--------------|----------------|-------------------------------------------------------------------------------|
| id           | as in the data | the user's id; the node's number where the data came without ids               |
| node         | i64            | the node's number in this project                                              |
| ahp, iv, hav | f64            | average hop prediction, its variance over the samples, both normalised and added |
| closure      | f64            | log(1 + triangles of far edges / (degree + expected triangles / 4))            |
| strange      | f64            | z-scored ahp and closure, added                                                |
| context      | f64            | distance of attributes to the neighbours', as a z-score                       |
| context_closure | f64         | log(1 + triangles of unlike nodes / (degree + expected triangles / 4))         |
| residual     | f64            | distance of attributes to what the neighbourhood predicts                      |
| cohesion     | f64            | log of the triangles (two sides: squares) over those that degrees lead to      |
| score        | f64            | the evidence of all kinds added up (evidence.py)                               |
| evidence     | string         | the kind of evidence that says most about the node; dictionary-encoded         |
| hop_rank ... | i32            | 1 = most anomalous by this kind; ties share the middle place, rounded towards 1 |
| alike        | f64            | how suspiciously ordinary: the lower tails of all kinds added up (evidence.py) |
| alike_rank   | i32            | 1 = most ordinary; ties share the middle place, rounded towards 1              |
| p            | f64            | chance of a usual node to have as much evidence (threshold.py)                 |
| flagged      | bool           | whether it stands out at the false-discovery rate `fdr` of the metadata        |
| rank         | i64            | 1 = most anomalous by `rank_by`, ties by node number                           |
| degree       | i64            | neighbours in the original graph; out-neighbours if directed                   |
| flags        | string         | names joined by commas, empty for most: isolated, no_out_neighbors, sampled    |
| type         | string         | where nodes are of several types; dictionary-encoded, null for none            |
| y, kind      | u8             | where known: 1 = anomaly; 0 normal, 1 structural, 2 attribute                  |

`evidence`, the six ranks by kind (hop_rank, closure_rank, context_rank, context_closure_rank, attributes_rank,
cohesion_rank), those of plug-ins, `alike` and its rank are present where the evidence has been added up, `p` and
`flagged` where it has been judged. Nodes that a kind cannot tell apart, such as those without neighbours, have its
middle rank. The schema's metadata name the score that ranks (`rank_by`), the false-discovery rate (`fdr`), which types
of nodes are compared together (`groups`), as ranks by kind are those within a group, kinds that weigh next to nothing
(`faint`), and words and identities of kinds that are plug-ins (`own`), each of which has a column of its number under
its own name. Pages carry checksums, the file appears whole or not at all, and equal scores give equal bytes. A table of
a hundred million nodes takes 16 GB, more where ids are text: threads write it a row group each, and readers that cannot
hold it use `RankedFile`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields
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
from hcm_scale.base.order import double_places, taker
from hcm_scale.base.threads import prefetch, run_in_slices, share_parts
from hcm_scale.graph.store import Graph, NodeTypes
from hcm_scale.score import evidence
from hcm_scale.score.evidence import Groups
from hcm_scale.score.metrics import ranking
from hcm_scale.score.nodes import FLAG_NAMES, NodeScores
from hcm_scale.score.threshold import Verdict

FILE = "scores.parquet"
NUMBERS = ("ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual", "cohesion", "score")
KIND_RANKS = tuple(f"{kind}_rank" for kind in evidence.KINDS)
ALIKE_RANK = "alike_rank"
_MIN_GROUP_ROWS, _MAX_GROUP_ROWS, _NUM_GROUPS = 1 << 14, 1 << 17, 64
_BATCH_ROWS = 1 << 16
_GROUPS_AT_ONCE = 4  # that a thread reads
_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "write_page_index": False}
_REQUIRED = {"node": pa.int64(), "rank": pa.int64(), "degree": pa.int64(), "flags": pa.string()}
_WORDS = ("evidence", "type", "verdict")
_KNOWN = (  # the types of all columns but `id` and words; taught.parquet has a few of its own
    _REQUIRED
    | dict.fromkeys((*NUMBERS, "alike", "p", "taught"), pa.float64())
    | dict.fromkeys((*KIND_RANKS, ALIKE_RANK), pa.int32())
    | {"taught_rank": pa.int64(), "flagged": pa.bool_(), "y": pa.uint8(), "kind": pa.uint8()}
)
_NULLABLE = ("type", "verdict")
_RANGES = {"degree": (0, 2**62), "y": (0, 1), "kind": (0, 2), "p": (0.0, 1.0)}  # `node` is looked at by `check_rows`
_MOST_GROUPS = 256

# Which columns a ranked table has. `table` is a pa.Table or a RankedFile.


def kind_rank(kind: str) -> str:
    """Name of the column with the ranks by a kind of evidence."""
    return f"{kind}_rank"


def has_kinds(table: Any) -> bool:
    """Whether the table has the strongest kind of evidence and a rank by each kind."""
    return "evidence" in table.column_names


def own_kinds(table: Any) -> dict[str, dict[str, str]]:
    """`words` and `identity` of every kind of evidence that is a plug-in's, by name."""
    found: dict[str, dict[str, str]] = json.loads((table.schema.metadata or {}).get(b"own", b"{}"))
    return found


def kinds_of(table: Any) -> dict[str, str]:
    """By kind of evidence, the column of the number behind it; that of a plug-in has the name of the kind."""
    return evidence.KINDS | {kind: kind for kind in own_kinds(table)}


def own_ranks(columns: Iterable[str]) -> list[str]:
    """Those of the columns that are ranks by a kind of a plug-in."""
    known = (*KIND_RANKS, ALIKE_RANK, "taught_rank")
    return [name for name in columns if name.endswith("_rank") and name not in known]


def check_kind_name(name: str) -> None:
    """Raises ValueError for a name that a kind of a plug-in cannot have, as its columns would be others'."""
    taken = {"id", *_KNOWN, *_WORDS, *evidence.KINDS, *evidence.KINDS.values()}
    if {name, kind_rank(name)} & taken or name.endswith("_rank") or not name.isidentifier():
        raise ValueError(f"score.evidence={name} is no name for a kind of evidence: the ranked table uses it otherwise")


def ranked_by(table: Any) -> str:
    """Name of the score that ranks the table; `ahp` where the metadata do not say."""
    name: str = (table.schema.metadata or {}).get(b"rank_by", b"ahp").decode(errors="replace")
    return name


def score_names(table: Any) -> list[str]:
    """The columns that hold scores: the floating-point ones except `p` and `alike`, in table order."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return [name for name in floats if name not in ("p", "alike")]


def compared_types(table: Any) -> Groups | None:
    """Which types of nodes are compared together; None where all nodes are."""
    found = (table.schema.metadata or {}).get(b"groups")
    return None if found is None else dict(json.loads(found))


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
    if len(score) != graph.num_nodes:
        raise ValueError(f"scores of {len(score)} nodes do not fit a graph of {graph.num_nodes}")
    if np.isnan(score).any():
        raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN and cannot be ranked")
    order = ranking(score)
    columns: dict[str, NDArray[Any]] = {name: getattr(scores, name) for name in NUMBERS}
    columns |= {kind: own.values for kind, own in scores.own.items()}
    if scores.places is not None:
        columns |= {"evidence": _strongest(scores)}
        columns |= dict(zip([*KIND_RANKS, *map(kind_rank, scores.own)], scores.places, strict=True))
    if scores.places is not None and scores.alike is not None:
        columns |= {"alike": scores.alike, ALIKE_RANK: double_places(scores.alike) >> 1}
    columns |= {} if verdict is None else {"p": verdict.p, "flagged": verdict.flagged}
    columns |= {"degree": scores.degree, "flags": scores.flags}
    columns |= {name: known for name, known in (("y", graph.y), ("kind", graph.kind)) if known is not None}
    columns |= {} if scores.types is None else {"type": scores.types.codes}
    metadata = {"rank_by": rank_by} | ({} if verdict is None else {"fdr": str(verdict.rate)})
    metadata |= {} if scores.groups is None else {"groups": json.dumps([*scores.groups.items()])}
    faint = evidence.faint_kinds(scores.trust) if scores.places is not None else ()
    metadata |= {"faint": ",".join(faint)} if faint else {}
    about = {kind: {"words": own.words, "identity": own.identity} for kind, own in scores.own.items()}
    metadata |= {"own": json.dumps(about)} if about else {}
    size = size or group_rows(len(order))
    starts, take = range(0, len(order) or 1, size), taker(columns)
    return [partial(_rows, graph, scores.types, take, order, slice(at, at + size), metadata) for at in starts]


def _strongest(scores: NodeScores) -> NDArray[np.int8]:
    """The kind that says most about every node, of ranks within groups of types where there are any."""
    assert scores.places is not None
    names = evidence.faint_kinds(scores.trust), [*evidence.KINDS, *scores.own]
    if not (groups := scores.of_groups()):
        return evidence.strongest(scores.places, scores.has_neighbors, *names)
    out = np.empty(len(scores.degree), np.int8)
    for nodes in groups:
        out[nodes] = evidence.strongest(scores.places[:, nodes], scores.has_neighbors[nodes], *names)
    return out


def group_rows(num_nodes: int) -> int:
    """Rows of a row group, such that the groups held by all threads together are a small part of the table.

    >>> group_rows(1_000), group_rows(4_000_000), group_rows(100_000_000)
    (16384, 62500, 131072)
    """
    return min(_MAX_GROUP_ROWS, max(_MIN_GROUP_ROWS, num_nodes // _NUM_GROUPS))


def _rows(
    graph: Graph,
    types: NodeTypes | None,
    take: Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]],
    order: NDArray[np.int64],
    places: slice,
    metadata: dict[str, str],
) -> pa.Table:
    """The rows of the nodes at these places of the ranking: their rank stands before their degree."""
    nodes = order[places]
    names = pa.array([*evidence.KINDS, *json.loads(metadata.get("own", "{}"))])
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

    >>> _flag_text(np.array([0, 1, 6], np.uint8)).to_pylist()
    ['', 'isolated', 'no_out_neighbors,sampled']
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
    how: Any = {"page_checksum_verification": True, "pre_buffer": False}
    with files.naming_damage(path), pq.ParquetFile(path, metadata=metadata, **how) as file:
        _check_schema(file.schema_arrow)
        yield file


def _check_schema(schema: pa.Schema) -> None:
    """ValueError where columns or metadata are none of a ranked table's."""
    if "id" not in schema.names or len({*schema.names}) != len(schema.names):
        raise ValueError("its columns, id among them, are not each there once")
    own = json.loads((schema.metadata or {}).get(b"own", b"{}"))
    for name, about in own.items():
        check_kind_name(name)
        files.check_types(Path(FILE), about, {"words": str, "identity": str})
        if not {name, kind_rank(name)} <= {*schema.names}:
            raise ValueError(f"it has no columns of its kind of evidence {name:.60}")
    known = _KNOWN | {kind_rank(name): pa.int32() for name in own}
    for name, kind in zip(schema.names, schema.types, strict=True):
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if name in _WORDS:
            is_legal = is_text or (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))
        else:
            is_legal = is_text or kind == pa.int64() if name == "id" else known.get(name, pa.float64()) == kind
        if not is_legal:
            raise ValueError(f"its column {name:.60} is {kind}, not {known.get(name, 'one that it may have')}")
    metadata = schema.metadata or {}
    if not 0.0 <= float(metadata.get(b"fdr", 0.0)) <= 1.0:
        raise ValueError(f"its false-discovery rate is {metadata[b'fdr']!r}")
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
            if name == "evidence" and not {*words} <= {*kinds_of(rows)}:
                raise ValueError(f"its column {name} holds {words!r:.60}; legal are {', '.join(kinds_of(rows))}")
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
        known, starts = file.schema_arrow, _group_starts(file.metadata)
        schema = pa.schema([entry for entry in known if columns is None or entry.name in columns], known.metadata)
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
        found, order = [], np.sort(rows)
        for group in np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist():
            last = order[order < self._starts[group + 1]].max()
            for first, batch in self.batches(columns, [group]):
                inside = order[(order >= first) & (order < first + batch.num_rows)] - first
                if len(inside):
                    found.append(batch.take(pa.array(inside)))
                if first + batch.num_rows > last:
                    break
        places = np.argsort(np.argsort(rows, kind="stable"), kind="stable")
        schema = pa.schema([self.schema.field(name) for name in columns], self.schema.metadata)
        return pa.Table.from_batches(found, schema).take(pa.array(places))


def check_ranked(path: Path, ranked: Any, num_nodes: int, numbers: Iterable[str] = ()) -> None:
    """Raises FolderError unless the table, in memory or on disk, has one row for each of the graph's nodes.

    `numbers` are scores that it must have besides the one that ranks.
    """
    check_rows(path, ranked, num_nodes, _REQUIRED | {name: _KNOWN[name] for name in (ranked_by(ranked), *numbers)})


def check_rows(path: Path, ranked: Any, num_nodes: int, columns: Mapping[str, pa.DataType]) -> None:
    """Raises FolderError unless a table has these columns, `node` among them, and one row for each of the nodes."""
    found = {entry.name: entry.type for entry in ranked.schema}
    for name, wanted in columns.items():
        if found.get(name) != wanted:
            raise files.FolderError(
                f"{path} is damaged: its column {name} is {found.get(name, 'missing')}, not {wanted}"
            )
    if ranked.num_rows != max(1, num_nodes):
        raise files.FolderError(f"{path} is damaged: {ranked.num_rows:,} rows for the {num_nodes:,} nodes of the graph")
    node, seen = ranked["node"].to_numpy(), np.zeros(num_nodes, bool)

    def mark(part: slice) -> None:
        if node.dtype == np.int64 and node[part].min() >= 0 and node[part].max() < num_nodes:
            seen.put(node[part], True)

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

    left_out = {"flags", "places", "types", "groups", "trust", "own"} | {"alike"} - {*table.column_names}
    names = [entry.name for entry in fields(NodeScores) if entry.name not in left_out]
    numbers: dict[str, Any] = {name: in_order(table[name].to_numpy()) for name in names}
    places = (
        np.stack([in_order(table[name].to_numpy()) for name in map(kind_rank, kinds_of(table))])
        if KIND_RANKS[0] in table.column_names
        else None
    )
    flags = table["flags"].combine_chunks().dictionary_encode()
    bits = [
        sum(1 << FLAG_NAMES.index(name) for name in text.split(",") if name) for text in flags.dictionary.to_pylist()
    ]
    numbers["flags"] = in_order(np.array(bits, np.uint8)[flags.indices.to_numpy()])
    types = NodeTypes.of(table["type"].take(pa.array(np.argsort(node)))) if "type" in table.column_names else None
    own = {
        kind: evidence.OwnKind(in_order(table[kind].to_numpy()), **about) for kind, about in own_kinds(table).items()
    }
    return NodeScores(**numbers, places=places, types=types, groups=compared_types(table), own=own)
