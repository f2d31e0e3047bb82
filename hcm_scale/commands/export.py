"""The result of a run for other programs: `hcm-scale export RUN FILE [--top K]`.

    FILE.csv, FILE.parquet     the ranked table, all of it or its first K rows
    FILE.graphml, FILE.gexf    the first K nodes (20 where not said) with their neighbours and the edges among them, for
                               Gephi, Cytoscape or networkx: rank, score, evidence and flag of every node, and of every
                               edge the mean predicted hop and the weight, where edges have one

A node with many neighbours brings the 50 that seem farthest.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from hcm_scale.commands.arguments import parser
from hcm_scale.graph import Graph
from hcm_scale.score.numbering import edge_index
from hcm_scale.score.table import FILE
from hcm_scale.stages.score import open_scores
from hcm_scale.workspace import open_stages

_TOP, _NEIGHBORS = 20, 50
_SHOWN = ("rank", "score", "evidence", "flagged", "p", "degree")
TABLES, GRAPHS = (".csv", ".parquet"), (".graphml", ".gexf")


def main(arguments: list[str]) -> str:
    """Writes the file and says what is in it."""
    words = parser("export", __doc__)
    words.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    words.add_argument("file", type=Path, metavar="FILE", help="what to write; its ending chooses the format")
    words.add_argument("--top", type=int, metavar="K", help="only the first K nodes")
    given = words.parse_args(arguments)
    if given.file.suffix not in TABLES + GRAPHS:
        raise ValueError(f"{given.file} must end in one of {', '.join(TABLES + GRAPHS)}")
    if given.top is not None and given.top < 1:
        raise ValueError(f"--top {given.top} must be at least 1")
    if not given.file.parent.is_dir():
        raise ValueError(f"{given.file}: there is no folder {given.file.parent}")
    scores, folder = open_stages(given.run, "scores", "graph")
    if given.file.suffix in TABLES:
        return f"{write_table(scores / FILE, given.file, given.top):,} nodes in {given.file}"
    found = neighborhoods(Graph.open(folder, verify=False), scores, given.top or _TOP)
    write_graph(found, given.file)
    return f"{len(found):,} nodes and {found.number_of_edges():,} edges in {given.file}"


def write_table(scores: Path, out: Path, top: int | None) -> int:
    """Copies the first rows of the ranked table, row group by row group; how many."""
    source = pq.ParquetFile(scores)
    wanted, written = min(top or source.metadata.num_rows, source.metadata.num_rows), 0
    schema = pa.schema([_plain(entry) for entry in source.schema_arrow], source.schema_arrow.metadata)
    new = pq.ParquetWriter if out.suffix == ".parquet" else pc_csv.CSVWriter
    with new(out, schema) as sink:
        for at in range(source.num_row_groups):
            part = source.read_row_group(at).slice(0, wanted - written).cast(schema)
            sink.write_table(part)
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

    made = open_scores(scores)
    table = made.table()
    mean = made.edges().mean
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


def write_graph(found: Any, out: Path) -> None:
    """As GraphML or GEXF."""
    import networkx as nx

    (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(found, out)
