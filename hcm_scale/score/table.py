"""scores.parquet: one row a node, most anomalous first, joined back to the user's own ids.

| column       | type           | what                                                                          |
|--------------|----------------|-------------------------------------------------------------------------------|
| id           | as in the data | the user's id; the node's number where the data came without ids               |
| node         | i64            | the node's number in this project                                              |
| ahp, iv, hav | f64            | average hop prediction, its variance over the samples, both normalised and added |
| closure      | f64            | log(1 + triangles of far edges per neighbour)                                  |
| strange      | f64            | z-scored ahp and closure, added                                                |
| context      | f64            | distance of attributes to the neighbours', as a z-score                       |
| context_closure | f64         | log(1 + triangles of edges between unlike nodes per neighbour)                 |
| residual     | f64            | distance of attributes to what the neighbourhood predicts                      |
| score        | f64            | the evidence of all kinds added up (evidence.py)                               |
| evidence     | string         | the kind of evidence that says most about the node; dictionary-encoded         |
| hop_rank ... | i32            | 1 = strangest by this kind; ties share the middle place, rounded towards 1     |
| p            | f64            | chance of a usual node to have as much evidence (threshold.py)                 |
| flagged      | bool           | whether it stands out at the false-discovery rate `fdr` of the metadata        |
| rank         | i64            | 1 = most anomalous by `rank_by`, ties by node number                           |
| degree       | i64            | neighbours in the original graph; out-neighbours if directed                   |
| flags        | string         | names joined by commas, empty for most: isolated, no_out_neighbors, sampled    |
| y, kind      | u8             | where known: 1 = anomaly; 0 normal, 1 structural, 2 attribute                  |

`evidence` and the five ranks by kind (hop_rank, closure_rank, context_rank, context_closure_rank, attributes_rank) are
there where the evidence has been added up, `p` and `flagged` where it has been judged. Nodes that a kind cannot tell
apart, such as those without neighbours, have its middle rank. Which score ranks stands in the schema's metadata under
`rank_by`. Pages carry checksums, and the file appears whole or not at all. The same scores give the same bytes.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files, parquet
from hcm_scale.base.threads import map_in_order
from hcm_scale.graph.store import Graph
from hcm_scale.score import evidence
from hcm_scale.score.metrics import ranking
from hcm_scale.score.nodes import FLAG_NAMES, NodeScores
from hcm_scale.score.threshold import Verdict

FILE = "scores.parquet"
_FEWEST_ROWS, _MOST_ROWS, _PIECES = 1 << 14, 1 << 17, 64
_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "write_page_index": False}
NUMBERS = ("ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual", "score")
_ALWAYS = {"node": pa.int64(), "rank": pa.int64(), "degree": pa.int64(), "flags": pa.string()}


def row_groups(
    graph: Graph, scores: NodeScores, rank_by: str, verdict: Verdict | None = None, size: int | None = None
) -> list[Callable[[], pa.Table]]:
    """What makes each piece of the ranked table, most anomalous node first; of no nodes one empty piece.

    A piece has `size` rows, by default `group_rows`.
    """
    score = scores.by(rank_by)
    if len(score) != graph.num_nodes:
        raise ValueError(f"scores of {len(score)} nodes do not fit a graph of {graph.num_nodes}")
    if np.isnan(score).any():
        raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN and cannot be ranked")
    order = ranking(score)
    columns = {name: getattr(scores, name) for name in NUMBERS} | _kinds_apart(scores)
    columns |= {} if verdict is None else {"p": verdict.p, "flagged": verdict.flagged}
    columns |= {"rank": None, "degree": scores.degree, "flags": scores.flags}
    columns |= {name: known for name, known in (("y", graph.y), ("kind", graph.kind)) if known is not None}
    told = {"rank_by": rank_by} | ({} if verdict is None else {"fdr": str(verdict.rate)})
    size = size or group_rows(len(order))
    return [partial(_rows, graph, columns, order, slice(at, at + size), told) for at in range(0, len(order) or 1, size)]


def group_rows(num_nodes: int) -> int:
    """The rows of a piece of the table: threads hold one each, so that all of them together are a part of the table.

    >>> group_rows(1_000), group_rows(4_000_000), group_rows(100_000_000)
    (16384, 62500, 131072)
    """
    return min(_MOST_ROWS, max(_FEWEST_ROWS, num_nodes // _PIECES))


def _rows(
    graph: Graph,
    columns: Mapping[str, NDArray[Any] | None],
    order: NDArray[np.int64],
    places: slice,
    told: dict[str, str],
) -> pa.Table:
    """The rows of the nodes at these places of the ranking."""
    nodes = order[places]
    ranks = np.arange(places.start + 1, places.start + len(nodes) + 1)
    names = pa.array(list(evidence.KINDS))
    shown = {"evidence": lambda codes: pa.DictionaryArray.from_arrays(pa.array(codes), names), "flags": flag_text}
    ids = pa.array(nodes) if graph.ids is None else graph.ids.take(pa.array(nodes))
    made = {
        name: shown.get(name, pa.array)(ranks if values is None else values.take(nodes))
        for name, values in columns.items()
    }
    return pa.table({"id": ids, "node": nodes, **made}).replace_schema_metadata(told)


def _kinds_apart(scores: NodeScores) -> dict[str, NDArray[Any]]:
    """The strongest kind of evidence about every node, by number, and its rank by each kind."""
    if scores.places is None:
        return {}
    ranks = {kind_rank(kind): places for kind, places in zip(evidence.KINDS, scores.places, strict=True)}
    return {"evidence": evidence.strongest(scores.places, scores.has_neighbors), **ranks}


def kind_rank(kind: str) -> str:
    """The column with the ranks by a kind of evidence."""
    return f"{kind}_rank"


def flag_text(flags: NDArray[np.uint8]) -> pa.Array:
    """Bit masks as comma-joined names.

    >>> flag_text(np.array([0, 1, 6], np.uint8)).to_pylist()
    ['', 'isolated', 'no_out_neighbors,sampled']
    """
    masks = range(1 << len(FLAG_NAMES))
    names = [",".join(name for bit, name in enumerate(FLAG_NAMES) if mask >> bit & 1) for mask in masks]
    return pa.array(names).take(pa.array(flags))


def flag_bits(flags: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Comma-joined names as bit masks: the inverse of `flag_text`."""
    encoded = flags.combine_chunks().dictionary_encode()
    bits = [
        sum(1 << FLAG_NAMES.index(name) for name in text.split(",") if name) for text in encoded.dictionary.to_pylist()
    ]
    return np.array(bits, np.uint8)[encoded.indices.to_numpy()]


def write_scores(path: Path, groups: Iterable[Callable[[], pa.Table]]) -> None:
    """Writes the pieces of a table, a row group each, whole or not at all; threads make and encode several at once.

    Numbers hardly repeat and are not looked up in a dictionary, which would take longer than writing them: floats are
    split into streams of their bytes, integers are told by their differences.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with (
            open(temporary, "wb") as stream,
            closing(map_in_order(numba.get_num_threads(), groups, _encoded)) as encoded,
        ):
            parquet.join(stream, encoded)
        files.sync_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    files.sync_folder(path.parent)


def _encoded(make: Callable[[], pa.Table]) -> parquet.Group:
    """A piece of the table as a file in memory."""
    group, sink = make(), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, group.schema, **_OPTIONS, **_encodings(group.schema)) as writer:
        writer.write_table(group, max(1, len(group)))
    return parquet.Group.of(memoryview(sink.getvalue()))


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """How each column is encoded; ids that are text, and marks, stand as they are."""
    ways = {pa.float64(): "BYTE_STREAM_SPLIT", pa.int32(): "DELTA_BINARY_PACKED", pa.int64(): "DELTA_BINARY_PACKED"}
    encodings = {entry.name: ways[entry.type] for entry in schema if entry.type in ways}
    return {"column_encoding": encodings, "use_dictionary": ["evidence", "flags"]}


def read_scores(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """Reads the table back, or those of `columns` that it has, verifying the checksums; columns are read in threads.

    Each is decoded as it is read: `pre_buffer` would hold the whole file beside the table, and takes no less time.
    Not by `read_table`, which imports Arrow's data sets, and pandas where there is one: a quarter of a second.
    """
    with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
        return file.read([name for name in file.schema_arrow.names if columns is None or name in columns])


def check_ranked(path: Path, ranked: Any, num_nodes: int, numbers: Iterable[str] = ()) -> None:
    """Refuses a ranked table, in memory or on disk, that is not of a graph of so many nodes, a row each.

    `numbers` are the scores that it must have beside the one that ranks.
    """
    ranked_by = (ranked.schema.metadata or {}).get(b"rank_by", b"ahp").decode(errors="replace")
    found = {entry.name: entry.type for entry in ranked.schema}
    for name, wanted in (_ALWAYS | dict.fromkeys([ranked_by, *numbers], pa.float64())).items():
        if found.get(name) != wanted:
            raise files.FolderError(
                f"{path} is damaged: its column {name} is {found.get(name, 'missing')}, not {wanted}"
            )
    if "id" not in found or len(found) != len(ranked.schema):
        raise files.FolderError(f"{path} is damaged: its columns, id among them, are not each there once")
    if ranked.num_rows != num_nodes:
        raise files.FolderError(f"{path} is damaged: {ranked.num_rows:,} rows, and the graph has {num_nodes:,} nodes")
    node, seen = ranked["node"].to_numpy(), np.zeros(num_nodes, bool)
    if node.dtype == np.int64 and node.min(initial=0) >= 0 and node.max(initial=-1) < num_nodes:
        seen[node] = True
    if not seen.all():
        raise files.FolderError(f"{path} is damaged: its column node does not have every node of the graph once")


def node_scores(table: pa.Table) -> NodeScores:
    """The scores in node order, as they were before the table was sorted."""
    node = table["node"].to_numpy()

    def in_order(values: NDArray) -> NDArray:
        out = np.empty_like(values)
        out[node] = values
        return out

    names = [entry.name for entry in fields(NodeScores) if entry.name not in ("flags", "places")]
    numbers = {name: in_order(table[name].to_numpy()) for name in names}
    ranks = [kind_rank(kind) for kind in evidence.KINDS]
    places = np.stack([in_order(table[name].to_numpy()) for name in ranks]) if ranks[0] in table.column_names else None
    return NodeScores(**numbers, flags=in_order(flag_bits(table["flags"])), places=places)
