"""The files of `hcm-scale export`: the ranked table with reasons in words, or the graph around the first nodes.

Both are written whole or not at all, the table a million rows at a time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from hcm_scale.base import files
from hcm_scale.graph import Graph
from hcm_scale.run.workspace import open_stages
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.table import FILE
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.report import MOST_REASONS, edge_hops, node_reasons, read_ranked

_NUM_REASONS = 100  # rows of the whole table that get a reason, beside the flagged
_NUM_NODES, _MAX_NEIGHBORS = 20, 50  # of a graph
_SLICE_ROWS = 1 << 20
_FIRST_COLUMNS = ("rank", "id", "score", "evidence", "p", "flagged", "degree", "reason")
_NODE_ATTRIBUTES = ("rank", "score", "evidence", "flagged", "p", "degree")


def export_table(run_dir: Path, out: Path, top: int | None, flagged: bool = False, since: Path | None = None) -> str:
    """Writes the ranked table, or its first `top` rows, of all nodes or of the flagged; returns what was written.

    Nodes that an earlier run, `since`, has flagged (or, if `flagged` is false, among its own first `top`) are left out.
    """
    scores, folder, purified = open_stages(run_dir, "scores", "graph", "purified")
    graph, made = Graph.open(folder, verify=False), open_purified(purified)
    ranked = read_ranked(scores, graph)
    rows, hint = ranked.filter(ranked["flagged"]) if flagged else ranked.slice(0, top), ""
    if since is not None:
        old = _read_old(since, ranked["id"].type)
        all_rows, rows = rows, _others(rows, old.filter(old["flagged"]) if flagged else old.slice(0, top))
        hint = f", new since {since}, of {len(all_rows):,}" if len(rows) else _first_new(ranked, old, since)
    rows = rows.slice(0, top)
    with_reason = pc.or_(rows["flagged"], pc.less_equal(rows["rank"], _NUM_REASONS))
    nodes = (rows if flagged or top else rows.filter(with_reason))["node"].slice(0, MOST_REASONS).combine_chunks()
    reasons = node_reasons(graph, made.graph, ranked, scores, nodes.to_pylist(), made.features)
    _write(rows, out, nodes, pa.array(reasons, pa.string()))
    more = f", {len(reasons):,} with a reason in words" if len(reasons) < len(rows) else ""
    return f"{len(rows):,} {'flagged ' if flagged else ''}nodes in {out}{more}{hint}"


def _others(rows: pa.Table, old: pa.Table) -> pa.Table:
    """The rows whose ids another table does not have."""
    return rows.filter(pc.invert(pc.is_in(rows["id"], old["id"].combine_chunks())))


def _first_new(ranked: pa.Table, old: pa.Table, since: Path) -> str:
    """A hint for an empty list: the rank of the first node that an earlier run does not have."""
    new = _others(ranked, old)
    if not len(new):
        return f"; {since} has all nodes of this run"
    rank = new["rank"][0].as_py()
    return f"; the first node that {since} does not have is at rank {rank:,}: --top {rank} --since {since} writes it"


def _read_old(run_dir: Path, kind: pa.DataType) -> pa.Table:
    """The ids of an earlier run, by rank, and which of them it has flagged."""
    (scores,) = open_stages(run_dir, "scores")
    table = pq.read_table(scores / FILE, columns=["id", "flagged"])
    if table["id"].type != kind:
        raise ValueError(f"--since {run_dir}: ids there are {table['id'].type}, here {kind}; they must be of one type")
    return table


def export_graph(run_dir: Path, out: Path, top: int | None) -> str:
    """Writes the first `top` nodes and their neighbourhoods as GraphML or GEXF; returns what was written."""
    import networkx as nx

    scores, folder = open_stages(run_dir, "scores", "graph")
    found = _neighborhoods(Graph.open(folder, verify=False), scores, top or _NUM_NODES)
    with files.replacing_file(out) as fresh:
        (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(found, fresh)
    return f"{len(found):,} nodes and {found.number_of_edges():,} edges in {out}"


def _write(rows: pa.Table, out: Path, nodes: pa.Array, reasons: pa.Array) -> None:
    """Writes rows of the ranked table, with the reasons of `nodes`; text instead of dictionaries of texts."""
    plain = pa.schema(
        [entry.with_type(pa.string()) if pa.types.is_dictionary(entry.type) else entry for entry in rows.schema],
        rows.schema.metadata,
    )
    reason = pa.field("reason", pa.string())
    whole = plain.append(reason)
    order = sorted(whole.names, key=lambda name: (*_FIRST_COLUMNS, name).index(name))
    schema = pa.schema([whole.field(name) for name in order], whole.metadata)
    new = pq.ParquetWriter if out.suffix == ".parquet" else pc_csv.CSVWriter
    with files.replacing_file(out) as fresh, new(fresh, schema) as sink:
        for first in range(0, len(rows), _SLICE_ROWS):
            part = rows.slice(first, _SLICE_ROWS)
            told = reasons.take(pc.index_in(part["node"], nodes).combine_chunks())
            sink.write_table(part.cast(plain).append_column(reason, told).select(order))


def _neighborhoods(graph: Graph, scores: Path, top: int) -> Any:
    """A networkx graph of the first nodes, their neighbours, and all edges among these."""
    import networkx as nx

    table, (mean, _) = read_ranked(scores, graph), edge_hops(scores, graph)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    first = table["node"].slice(0, top).to_pylist()
    chosen = set(first)
    for node in first:
        near, hops = graph.indices[graph.indptr[node] : graph.indptr[node + 1]], mean[edges.of_node(node)]
        chosen.update(near[np.argsort(-hops, kind="stable")[:_MAX_NEIGHBORS]].tolist())
    found = nx.DiGraph() if graph.directed else nx.Graph()
    shown = [name for name in _NODE_ATTRIBUTES if name in table.column_names]
    rows = table.filter(pc.is_in(table["node"], pa.array(sorted(chosen)))).select(["node", *shown])
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
