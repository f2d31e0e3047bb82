"""A finished run as a table, with reasons in words, or as a graph of its first nodes and their neighbours."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from hcm_scale.graph import Graph
from hcm_scale.score.numbering import edge_index
from hcm_scale.score.table import FILE
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.report import edge_hops, first_reasons, read_ranked
from hcm_scale.workspace import open_stages

_TOP, _NEIGHBORS = 20, 50
_FIRST = ("rank", "id", "score", "evidence", "p", "flagged", "degree", "reason")  # what a person reads
_SHOWN = ("rank", "score", "evidence", "flagged", "p", "degree")


def export_table(run_dir: Path, out: Path, top: int | None) -> str:
    """Writes the ranked table, or its first `top` rows; says what is in it."""
    scores, folder, purified = open_stages(run_dir, "scores", "graph", "purified")
    made = open_purified(purified)
    reasons = first_reasons(Graph.open(folder, verify=False), made.graph, scores, top, made.features)
    count = write_table(scores / FILE, out, top, reasons)
    more = f", the first {len(reasons):,} with a reason in words" if len(reasons) < count else ""
    return f"{count:,} nodes in {out}{more}"


def export_graph(run_dir: Path, out: Path, top: int | None) -> str:
    """Writes the first `top` nodes and what is around them as GraphML or GEXF; says what is in it."""
    import networkx as nx

    scores, folder = open_stages(run_dir, "scores", "graph")
    found = neighborhoods(Graph.open(folder, verify=False), scores, top or _TOP)
    (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(found, out)
    return f"{len(found):,} nodes and {found.number_of_edges():,} edges in {out}"


def write_table(scores: Path, out: Path, top: int | None, reasons: list[str]) -> int:
    """Copies the first rows of the ranked table, row group by row group, with reasons for the first; how many."""
    source = pq.ParquetFile(scores)
    wanted, written = min(top or source.metadata.num_rows, source.metadata.num_rows), 0
    plain = pa.schema([_plain(entry) for entry in source.schema_arrow], source.schema_arrow.metadata)
    reason = pa.field("reason", pa.string())
    whole = plain.append(reason)
    order = sorted(whole.names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    schema = pa.schema([whole.field(name) for name in order], whole.metadata)
    new = pq.ParquetWriter if out.suffix == ".parquet" else pc_csv.CSVWriter
    with new(out, schema) as sink:
        for at in range(source.num_row_groups):
            part = source.read_row_group(at).slice(0, wanted - written).cast(plain)
            told = reasons[written : written + len(part)]
            padded = pa.array(told + [None] * (len(part) - len(told)), pa.string())
            sink.write_table(part.append_column(reason, padded).select(order))
            written += len(part)
            if written == wanted:
                break
    return written


def _plain(entry: pa.Field) -> pa.Field:
    """A column as every program reads it: text instead of a dictionary of texts."""
    return entry.with_type(pa.string()) if pa.types.is_dictionary(entry.type) else entry


def neighborhoods(graph: Graph, scores: Path, top: int) -> Any:
    """A networkx graph of the first nodes, their neighbours, and all edges among these."""
    import networkx as nx

    table, (mean, _) = read_ranked(scores, graph), edge_hops(scores, graph)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    first = table["node"].slice(0, top).to_pylist()
    chosen = set(first)
    for node in first:
        near, hops = graph.indices[graph.indptr[node] : graph.indptr[node + 1]], mean[edges.of_node(node)]
        chosen.update(near[np.argsort(-hops, kind="stable")[:_NEIGHBORS]].tolist())
    found = nx.DiGraph() if graph.directed else nx.Graph()
    shown = [name for name in _SHOWN if name in table.column_names]
    rows = table.filter(pa.compute.is_in(table["node"], pa.array(sorted(chosen)))).select(["node", *shown])
    for row in rows.to_pylist():
        node = row.pop("node")
        found.add_node(node, label=str(graph.external_id(node)), **row)
    for node in sorted(chosen):
        near = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        entries = range(int(graph.indptr[node]), int(graph.indptr[node + 1]))
        for entry, neighbor, edge in zip(entries, near.tolist(), edges.of_node(node).tolist(), strict=True):
            if neighbor in chosen:
                weight = {} if graph.weights is None else {"weight": float(graph.weights[entry])}
                found.add_edge(node, neighbor, hop=float(mean[edge]), **weight)
    return found
