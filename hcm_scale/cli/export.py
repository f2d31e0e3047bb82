"""`hcm-scale export`: a finished run as a table with reasons in words, or as a graph of its first nodes.

The table is the ranked one with its most readable columns first and a column `reason`, filled for the rows that a
person is likely to read. The graph has the first nodes, the farthest neighbours of each, and all edges among these.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hcm_scale.base import files
from hcm_scale.graph import Graph
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import explain
from hcm_scale.report.wording import all_reasons
from hcm_scale.run.workspace import open_stages
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.table import FILE, plain_schema, read_scores
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.report import edge_hops, read_ranked

_NUM_REASONS, _MOST_REASONS = 100, 10_000  # first nodes with a reason besides the flagged; about a minute of explaining
_GRAPH_NODES, _GRAPH_NEIGHBORS = 20, 50
_SLICE_ROWS = 1 << 20
_FIRST_COLUMNS = ("rank", "id", "score", "evidence", "p", "flagged", "degree", "reason")
_NODE_COLUMNS = ("rank", "score", "evidence", "flagged", "p", "degree")


def export_table(run_dir: Path, out: Path, top: int | None, flagged: bool = False, since: Path | None = None) -> str:
    """Writes the ranked table, or its first `top` rows, of all or of the flagged nodes; returns a summary.

    Leaves out nodes that an earlier run, `since`, has flagged or, unless `flagged`, has among its own first `top`.
    """
    scores, folder, purified = open_stages(run_dir, "scores", "graph", "purified")
    graph, made = Graph.open(folder, verify=False), open_purified(purified)
    ranked = read_ranked(scores, graph)
    rows, hint = _chosen(ranked, top, flagged), ""
    if since is not None:
        old = _read_old(since, ranked["id"].type)
        all_rows, rows = rows, _without(rows, _chosen(old, top, flagged))
        hint = f", new since {since}, of {len(all_rows):,}" if len(rows) else _first_new(ranked, old, since)
    rows = rows.slice(0, top)
    read = rows if flagged or top else rows.filter(pc.or_(rows["flagged"], pc.less_equal(rows["rank"], _NUM_REASONS)))
    nodes = read["node"].slice(0, _MOST_REASONS).combine_chunks()
    evidence = Evidence.of(graph, made.graph, ranked, *edge_hops(scores, graph), made.features)
    reasons = [all_reasons(explain(evidence, node)) for node in nodes.to_pylist()]
    _write(rows, out, nodes, pa.array(reasons, pa.string()))
    more = f", {len(reasons):,} with a reason in words" if len(reasons) < len(rows) else ""
    return f"{len(rows):,} {'flagged ' if flagged else ''}nodes in {out}{more}{hint}"


def _chosen(ranked: pa.Table, top: int | None, flagged: bool) -> pa.Table:
    return ranked.filter(ranked["flagged"]) if flagged else ranked.slice(0, top)


def _without(rows: pa.Table, old: pa.Table) -> pa.Table:
    """The rows whose ids are not in another table."""
    return rows.filter(pc.invert(pc.is_in(rows["id"], old["id"].combine_chunks())))


def _first_new(ranked: pa.Table, old: pa.Table, since: Path) -> str:
    """A hint for an empty list: the rank of the first node that the earlier run does not have."""
    new = _without(ranked, old)
    if not len(new):
        return f"; {since} has all nodes of this run"
    rank = new["rank"][0].as_py()
    return f"; the first node that {since} does not have is at rank {rank:,}: --top {rank} --since {since} writes it"


def _read_old(run_dir: Path, id_type: pa.DataType) -> pa.Table:
    """The ids of an earlier run, by rank, and which of them it has flagged."""
    (scores,) = open_stages(run_dir, "scores")
    table = read_scores(scores / FILE, ["id", "flagged"])
    found = table["id"].type
    if found != id_type:
        raise ValueError(f"--since {run_dir}: ids there are {found}, here {id_type}; they must be of one type")
    return table


def _write(rows: pa.Table, out: Path, nodes: pa.Array, reasons: pa.Array) -> None:
    """Writes rows of the ranked table, some of them with the reasons of their nodes."""
    plain, reason = plain_schema(rows.schema), pa.field("reason", pa.string())
    whole = plain.append(reason)
    place = {name: place for place, name in enumerate(_FIRST_COLUMNS)}
    order = sorted(whole.names, key=lambda name: place.get(name, len(place)))
    schema = pa.schema([whole.field(name) for name in order], whole.metadata)
    writer = pq.ParquetWriter if out.suffix == ".parquet" else pyarrow.csv.CSVWriter
    with files.replacing_file(out) as fresh, writer(fresh, schema) as sink:
        for first in range(0, len(rows), _SLICE_ROWS):
            part = rows.slice(first, _SLICE_ROWS)
            texts = reasons.take(pc.index_in(part["node"], nodes).combine_chunks())
            sink.write_table(part.cast(plain).append_column(reason, texts).select(order))


def export_graph(run_dir: Path, out: Path, top: int | None) -> str:
    """Writes the first `top` nodes and what is around them as GraphML or GEXF; returns a summary."""
    import networkx as nx

    scores, folder = open_stages(run_dir, "scores", "graph")
    found = _neighborhoods(Graph.open(folder, verify=False), scores, top or _GRAPH_NODES)
    with files.replacing_file(out) as fresh:
        (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(found, fresh)
    return f"{len(found):,} nodes and {found.number_of_edges():,} edges in {out}"


def _neighborhoods(graph: Graph, scores: Path, top: int) -> Any:
    """A networkx graph of the first nodes, their farthest neighbours, and all edges among these."""
    import networkx as nx

    table, (mean, _) = read_ranked(scores, graph), edge_hops(scores, graph)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    first = table["node"].slice(0, top).to_pylist()
    chosen = set(first)
    for node in first:
        near, hops = graph.indices[graph.indptr[node] : graph.indptr[node + 1]], mean[edges.of_node(node)]
        chosen.update(near[np.argsort(-hops, kind="stable")[:_GRAPH_NEIGHBORS]].tolist())
    found = nx.DiGraph() if graph.directed else nx.Graph()
    shown = [name for name in _NODE_COLUMNS if name in table.column_names]
    rows = table.filter(pc.is_in(table["node"], pa.array(sorted(chosen)))).select(["node", *shown])
    for row in rows.to_pylist():
        node = row.pop("node")
        found.add_node(node, label=str(graph.external_id(node)), **row)
    for node in sorted(chosen):
        for at, edge in enumerate(edges.of_node(node).tolist(), int(graph.indptr[node])):
            if int(graph.indices[at]) in chosen:
                weight = {} if graph.weights is None else {"weight": float(graph.weights[at])}
                found.add_edge(node, int(graph.indices[at]), hop=float(mean[edge]), **weight)
    return found
