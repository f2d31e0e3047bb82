"""`hcm-scale export`: a finished run as a table with reasons in words, or as a graph of its first nodes; and the
verdicts on it: the list to fill in, and those given. Strange edges are joined to the user's own table of edges.

The table is the ranked one with its most readable columns first and a column `reason`, filled for the rows that a
person is likely to read. The graph has the first nodes, the farthest neighbours of each, and all edges among these.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.sheets import table_writer
from hcm_scale.base.text import clip
from hcm_scale.graph import Graph
from hcm_scale.ingest.edge_rows import EdgeRows, with_edge_columns
from hcm_scale.ingest.policy import InputError
from hcm_scale.report.edges import StrangeEdges
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.wording import reasons_of
from hcm_scale.review import teach, verdicts
from hcm_scale.run import pipeline
from hcm_scale.run.workspace import open_stages
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.table import FILE, plain_schema, read_scores
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.report import edge_hops, read_ranked

_NUM_REASONS, _MOST_REASONS = 100, 10_000  # first nodes with a reason besides the flagged; about a minute of explaining
_GRAPH_NODES, _GRAPH_NEIGHBORS = 20, 50
_SLICE_ROWS = 1 << 20
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIRST_COLUMNS = (
    "rank", "taught_rank", "id", "type", "verdict", "score", "evidence", "p", "flagged", "degree", "reason"
)  # fmt: skip
_NODE_COLUMNS = ("rank", "type", "score", "evidence", "flagged", "p", "degree")


def export_table(
    run_dir: Path,
    out: Path,
    top: int | None,
    flagged: bool = False,
    since: Path | None = None,
    node_type: str = "",
    by_lesson: bool = False,
    *,
    raw: bool = False,
) -> str:
    """Writes the ranked table, or its first `top` rows, of all or of the flagged nodes, of all or of one type.

    Returns a summary.
    Leaves out nodes that an earlier run, `since`, has flagged or, unless `flagged`, has among its own first `top`.
    Where verdicts have taught the run, the table has their columns too, and `by_lesson` sorts it by them.
    """
    scores, folder, purified = open_stages(run_dir, "scores", "graph", "purified")
    graph = Graph.open(folder, verify=False)
    made = open_purified(purified, graph)
    ranked, taught = read_ranked(scores, graph), teach.open_taught(run_dir, scores)
    if taught is not None:
        ranked = taught.beside(ranked)
        ranked = ranked.sort_by("taught_rank") if by_lesson else ranked
    elif by_lesson:
        raise ValueError(f"{run_dir} was not taught, or before its last scores: hcm-scale teach {run_dir} does it")
    of_type = _of_type(ranked, node_type)
    rows, hint = _chosen(of_type, top, flagged), ""
    if since is not None:
        old = _read_old(since, ranked["id"].type)
        old = _of_type(old, node_type)
        all_rows, rows = rows, _without(rows, _chosen(old, top, flagged))
        hint = f", new since {since}, of {len(all_rows):,}" if len(rows) else _first_new(of_type, old, since)
    rows = rows.slice(0, top)
    place = rows["taught_rank" if by_lesson else "rank"]
    read = rows if flagged or top else rows.filter(pc.or_(rows["flagged"], pc.less_equal(place, _NUM_REASONS)))
    nodes = read["node"].slice(0, _MOST_REASONS).combine_chunks()
    evidence = Evidence.of(graph, made.graph, ranked, *edge_hops(scores, graph), made.features)
    reasons = reasons_of(evidence, nodes.to_pylist())
    told = _write(rows, out, nodes, pa.array(reasons, pa.string()), raw=raw)
    more = f", {len(reasons):,} with a reason in words" if len(reasons) < len(rows) else ""
    return f"{len(rows):,} {'flagged ' if flagged else ''}nodes in {out}{more}{hint}{told}"


def _of_type(ranked: pa.Table, node_type: str) -> pa.Table:
    """The rows of one type of nodes; all where none is named."""
    if not node_type:
        return ranked
    names = ranked["type"].unique().drop_null().to_pylist() if "type" in ranked.column_names else []
    if node_type not in names:
        raise ValueError(f"--type {node_type}: no node is of this type; legal are {', '.join(sorted(names)) or 'none'}")
    return ranked.filter(pc.equal(ranked["type"], node_type))


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
    table = read_scores(scores / FILE, ["id", "flagged", "type"])
    found = table["id"].type
    if found != id_type:
        raise ValueError(f"--since {run_dir}: ids there are {found}, here {id_type}; they must be of one type")
    return table


def _write(rows: pa.Table, out: Path, nodes: pa.Array, reasons: pa.Array, raw: bool) -> str:
    """Writes rows of the ranked table, some with the reasons of their nodes; returns a note."""
    plain, reason = plain_schema(rows.schema), pa.field("reason", pa.string())
    whole = plain.append(reason)
    place = {name: place for place, name in enumerate(_FIRST_COLUMNS)}
    order = sorted(whole.names, key=lambda name: place.get(name, len(place)))

    def tables() -> Iterator[pa.Table]:
        for start in range(0, max(1, len(rows)), _SLICE_ROWS):
            part = rows.slice(start, _SLICE_ROWS)
            texts = reasons.take(pc.index_in(part["node"], nodes).combine_chunks())
            yield part.cast(plain).append_column(reason, texts).select(order)

    return _write_tables(tables(), out, raw)[1]


def export_edges(run_dir: Path, out: Path, top: int | None, flagged: bool, pairs: bool, raw: bool = False) -> str:
    """Writes the rows of the run's edge table with the numbers of their edges, or one row an edge; returns a summary.

    All rows in their order where neither `top` edges nor the `flagged` are asked for; else those of the chosen edges,
    the strangest first, which are in memory then.
    """
    found = pipeline.open_edges(run_dir)
    chosen, is_part = found.first(top, flagged), flagged or top is not None
    which = f"{len(chosen):,} {'flagged ' if flagged else ''}edges"
    with pipeline.edge_table(run_dir, found, chosen if is_part else None, pairs=pairs) as rows:
        if rows is None:
            _, told = _write_tables(found.tables(chosen), out, raw)
            return f"{which} in {out}, the strangest first{told}"
        joined = _joined_rows(rows, found, chosen, is_part)
        num_rows, told = _write_tables(iter([_by_rank(joined)]) if is_part else joined, out, raw)
    order = "the strangest first" if is_part else "in the order of the table"
    return f"{num_rows:,} rows of {which} in {out}, {order}{told}"


def _joined_rows(rows: EdgeRows, found: StrangeEdges, chosen: NDArray[np.int64], is_part: bool) -> Iterator[pa.Table]:
    """Rows of an edge table: rank of the edge, all columns, its other numbers; `is_part`: those of chosen edges."""
    rank_of = np.zeros(found.evidence.graph.num_edges, np.int64)
    rank_of[chosen] = np.arange(1, 1 + len(chosen))
    for batch, left, right in rows.batches():
        edge = found.evidence.edges.find(left, right)
        known = np.flatnonzero(edge >= 0)
        known = known[rank_of[edge[known]] > 0]
        some, place = np.unique(edge[known], return_inverse=True)
        numbers = found.rows(some, rank_of[some]).drop_columns(["source", "target"])
        if is_part:
            table, numbers = pa.Table.from_batches([batch]).take(pa.array(known)), numbers.take(pa.array(place))
        else:
            at = np.zeros(len(batch), np.int64)
            at[known] = place
            table = pa.Table.from_batches([batch])
            numbers = numbers.take(pa.array(at, mask=rank_of[edge] * (edge >= 0) == 0))
        yield with_edge_columns(table, numbers)


def _by_rank(tables: Iterator[pa.Table]) -> pa.Table:
    """All rows, by the rank in their first column and as they stand."""
    whole = pa.concat_tables(tables)
    return whole.take(pa.array(np.argsort(whole.column(0).to_numpy(), kind="stable")))


def _write_tables(tables: Iterator[pa.Table], out: Path, raw: bool) -> tuple[int, str]:
    """Writes tables of one schema, one after the other; returns the number of rows, and a note on their cells."""
    first, num_rows = next(tables), 0
    with table_writer(out, first.schema, raw) as sink:
        for table in itertools.chain([first], tables):
            sink.write_table(table)
            num_rows += len(table)
    count = getattr(sink, "num_quoted", 0)
    note = f"; {count:,} cells begin with ' , since a spreadsheet would run them: --raw leaves it out" if count else ""
    return num_rows, note


def export_graph(run_dir: Path, out: Path, top: int | None) -> str:
    """Writes the first `top` nodes and what is around them as GraphML or GEXF; returns a summary."""
    import networkx as nx

    scores, folder = open_stages(run_dir, "scores", "graph")
    found = _neighborhoods(Graph.open(folder, verify=False), scores, top or _GRAPH_NODES)
    count = sum(_escape_texts(data) for _, data in found.nodes(data=True))
    with files.replacing_file(out) as fresh:
        (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(found, fresh)
    told = f"; {count:,} labels hold characters that XML cannot, written as \\x01" if count else ""
    return f"{len(found):,} nodes and {found.number_of_edges():,} edges in {out}{told}"


def _escape_texts(data: dict[str, Any]) -> bool:
    """Replaces characters in texts that XML 1.0 cannot hold by visible escapes; returns whether there were any."""
    wrong = {name: text for name, text in data.items() if isinstance(text, str) and _NOT_XML.search(text)}
    for name, text in wrong.items():
        data[name] = _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return bool(wrong)


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
        known = {name: value for name, value in row.items() if value is not None}
        found.add_node(node, label=str(graph.external_id(node)), **known)
    for node in sorted(chosen):
        for at, edge in enumerate(edges.of_node(node).tolist(), int(graph.indptr[node])):
            if int(graph.indices[at]) in chosen:
                weight = {} if graph.weights is None else {"weight": float(graph.weights[at])}
                found.add_edge(node, int(graph.indices[at]), hop=float(mean[edge]), **weight)
    return found


def export_verdicts(run_dir: Path, out: Path) -> str:
    """Writes the verdicts given so far as a table that can be edited and taught to any run; returns a summary."""
    found = verdicts.latest(run_dir)
    if not len(found.table):
        raise ValueError(f"{run_dir} has no verdicts; hcm-scale review {run_dir} lists nodes that are worth one")
    words = pa.array(verdicts.NAMES).take(pa.array(found.codes))
    rows = found.table.select(["id", "time", "by"]).add_column(1, "verdict", words)
    _write_tables(iter([rows]), out, raw=False)
    return "\n".join([*found.notes, f"{len(rows):,} verdicts in {out}"])


def review_nodes(run_dir: Path, count: int, out: Path | None) -> str:
    """The next nodes worth a verdict as text, or in a table to fill in."""
    if out is not None and out.is_file():
        _check_taught(run_dir, out)
    found = teach.next_nodes(pipeline.open_run(run_dir), count)
    if not len(found):
        return f"every node of {run_dir} has a verdict"
    if out is not None:
        _write_tables(iter([found]), out, raw=False)
        fill = "write bad, good or unsure into its column verdict, leave the others empty"
        return f"{len(found):,} nodes in {out}; {fill}, then: hcm-scale teach {run_dir} {out}"
    lines = []
    for name, _, rank, why, chance, reason in zip(*(column.to_pylist() for column in found.columns), strict=True):
        how_likely = "" if chance == 1.0 else f", by a chance of {chance:.2g}"
        lines.append(f"{rank:>8,}  {clip(name, 40)}   ({why}{how_likely})\n          {reason}")
    how = f"""these nodes as a table, whose column verdict you fill in with bad, good or unsure; then learn from it:
  hcm-scale review {run_dir} {count} --csv review.csv
  hcm-scale teach {run_dir} review.csv
or judge them by a key on the page of: hcm-scale serve {run_dir}"""
    return "\n".join([f"{found.column_names[2].replace('_', ' '):>8}  id", *lines, "", how])


def _check_taught(run_dir: Path, sheet: Path) -> None:
    """Refuses to replace a table with verdicts that the run does not know."""
    with contextlib.suppress(InputError):  # no table of verdicts
        filled, known = verdicts.read_table(sheet)[0]["id"], verdicts.latest(run_dir).table["id"].combine_chunks()
        if count := len(filled) - (pc.sum(pc.is_in(filled, known)).as_py() or 0):
            taught = f"hcm-scale teach {run_dir} {sheet} keeps them"
            raise ValueError(f"{sheet} holds {count:,} verdicts that {run_dir} does not know; {taught}, then ask again")
