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
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.graph.store import Graph
from hcm_scale.score import evidence
from hcm_scale.score.metrics import ranking
from hcm_scale.score.nodes import FLAG_NAMES, NodeScores
from hcm_scale.score.threshold import Verdict

FILE = "scores.parquet"
_ROW_GROUP = 1 << 20


def scores_table(graph: Graph, scores: NodeScores, rank_by: str, verdict: Verdict | None = None) -> pa.Table:
    """The ranked table of all nodes of `graph`."""
    score = scores.by(rank_by)
    if len(score) != graph.num_nodes:
        raise ValueError(f"scores of {len(score)} nodes do not fit a graph of {graph.num_nodes}")
    if np.isnan(score).any():
        raise ValueError(f"{np.count_nonzero(np.isnan(score))} of {len(score)} scores are NaN and cannot be ranked")
    order = ranking(score)
    columns = {
        "id": pa.array(order) if graph.ids is None else graph.ids.take(pa.array(order)),
        "node": order,
        "ahp": scores.ahp[order],
        "iv": scores.iv[order],
        "hav": scores.hav[order],
        "closure": scores.closure[order],
        "strange": scores.strange[order],
        "context": scores.context[order],
        "context_closure": scores.context_closure[order],
        "residual": scores.residual[order],
        "score": scores.score[order],
        **_kinds_apart(scores, order),
        **({} if verdict is None else {"p": verdict.p[order], "flagged": verdict.flagged[order]}),
        "rank": np.arange(1, len(order) + 1),
        "degree": scores.degree[order],
        "flags": flag_text(scores.flags[order]),
    }
    columns |= {name: known[order] for name, known in (("y", graph.y), ("kind", graph.kind)) if known is not None}
    rate = {} if verdict is None else {"fdr": str(verdict.rate)}
    return pa.table(columns).replace_schema_metadata({"rank_by": rank_by, **rate})


def _kinds_apart(scores: NodeScores, order: NDArray[np.int64]) -> dict[str, Any]:
    """The strongest kind of evidence about every node, and its rank by each kind."""
    if scores.places is None:
        return {}
    strongest = pa.array(evidence.strongest(scores.places, scores.has_neighbors)[order])
    ranks = {kind_rank(kind): places[order] for kind, places in zip(evidence.KINDS, scores.places, strict=True)}
    return {"evidence": pa.DictionaryArray.from_arrays(strongest, pa.array(list(evidence.KINDS))), **ranks}


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


def write_scores(path: Path, table: pa.Table) -> None:
    """Writes the table whole or not at all; a row group is a call, between two of which a signal is answered."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with pq.ParquetWriter(temporary, table.schema, compression="zstd", write_page_checksum=True) as writer:
            for first in range(0, max(1, len(table)), _ROW_GROUP):
                writer.write_table(table.slice(first, _ROW_GROUP), _ROW_GROUP)
        files.sync_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    files.sync_folder(path.parent)


def read_scores(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """Reads the table back, or those of `columns` that it has, verifying the checksums.

    Not by `read_table`, which imports Arrow's data sets, and pandas where there is one: a quarter of a second.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read([name for name in file.schema_arrow.names if columns is None or name in columns])


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
