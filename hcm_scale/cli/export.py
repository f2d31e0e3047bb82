"""`hcm-scale export`: a finished run as a table with reasons in words, or as a graph of its first nodes; and the
verdicts on it: the list to fill in, and those given. Strange edges are joined to the user's own table of edges.

The table is the ranked one with its most readable columns first and a column `reason`, filled for the rows that a
person is likely to read. The graph has the first nodes, the farthest neighbours of each, and all edges among these.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.base.sheets import table_writer
from hcm_scale.base.text import clip, counted
from hcm_scale.edges.payments import StrangeRows
from hcm_scale.edges.rows import EdgeRows
from hcm_scale.edges.strange import by_rank, joined_rows
from hcm_scale.ingest.policy import InputError
from hcm_scale.report.wording import reasons_of
from hcm_scale.review import teach, verdicts
from hcm_scale.run.finished import FinishedRun, recoded_text
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.table import plain_schema

_NUM_REASONS, _MOST_REASONS = 100, 10_000  # first nodes with a reason besides the flagged; about a minute of explaining
_GRAPH_NODES, _GRAPH_NEIGHBORS = 20, 50
_SLICE_ROWS = 1 << 20
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIRST_COLUMNS = (
    "rank", "taught_rank", "id", "type", "verdict", "score", "evidence", "p", "flagged", "degree", "reason"
)  # fmt: skip
_NODE_COLUMNS = ("rank", "type", "score", "evidence", "flagged", "p", "degree")


def export_table(
    run: FinishedRun,
    out: Path,
    top: int | None,
    flagged: bool = False,
    since: FinishedRun | None = None,
    node_type: str = "",
    by_lesson: bool = False,
    *,
    raw: bool = False,
) -> str:
    """Writes the ranked table, or its first `top` rows, of all or of the flagged nodes, of all or of one type.

    Returns a summary. Of the flagged nodes those that an earlier run, `since`, has flagged are left out.
    Where verdicts have taught the run, the table has their columns too, and `by_lesson` sorts it by them.
    """
    run.stage("purified")
    ranked, taught = run.table, run.taught()
    if taught is not None:
        ranked = taught.beside(ranked)
        ranked = ranked.sort_by("taught_rank") if by_lesson else ranked
    elif by_lesson:
        again = f"hcm-scale teach {run.folder} does it"
        raise ValueError(f"{run.folder} was not taught, or before its last scores: {again}")
    rows, hint = _of_type(ranked, node_type), ""
    rows = rows.filter(rows["flagged"]) if flagged else rows
    if since is not None:
        count, rows = len(rows), _not_flagged_in(since, rows)
        hint = f", new since {since.folder}, of {count:,}"
        if text := recoded_text(run.graph, since.graph):
            hint += f"; {text}"
    rows = rows.slice(0, top)
    rank = rows["taught_rank" if by_lesson else "rank"]
    read = rows if flagged or top else rows.filter(pc.or_(rows["flagged"], pc.less_equal(rank, _NUM_REASONS)))
    nodes = read["node"].slice(0, _MOST_REASONS).combine_chunks()
    reasons = reasons_of(run.evidence, nodes.to_pylist())
    note = _write(rows, out, nodes, pa.array(reasons, pa.string()), raw=raw)
    more = f", {len(reasons):,} with a reason in words" if len(reasons) < len(rows) else ""
    return f"{counted(len(rows), 'flagged node' if flagged else 'node')} in {out}{more}{hint}{note}"


def _of_type(ranked: pa.Table, node_type: str) -> pa.Table:
    if not node_type:
        return ranked
    names = ranked["type"].unique().drop_null().to_pylist() if "type" in ranked.column_names else []
    if node_type not in names:
        raise ValueError(f"--type {node_type}: no node is of this type; legal are {', '.join(sorted(names)) or 'none'}")
    return ranked.filter(pc.equal(ranked["type"], node_type))


def _not_flagged_in(old: FinishedRun, rows: pa.Table) -> pa.Table:
    before = old.ranked.select(["id", "flagged"])
    kind, other = rows["id"].type, before["id"].type
    if other != kind:
        raise ValueError(f"--since {old.folder}: ids there are {other}, here {kind}; they must be of one type")
    return rows.filter(pc.invert(pc.is_in(rows["id"], before["id"].filter(before["flagged"]).combine_chunks())))


def _write(rows: pa.Table, out: Path, nodes: pa.Array, reasons: pa.Array, *, raw: bool) -> str:
    """Writes rows of the ranked table, some with the reasons of their nodes; returns a note."""
    plain, reason = plain_schema(rows.schema), pa.field("reason", pa.string())
    whole = plain.append(reason)
    first = {name: number for number, name in enumerate(_FIRST_COLUMNS)}
    order = sorted(whole.names, key=lambda name: first.get(name, len(first)))

    def tables() -> Iterator[pa.Table]:
        for start in range(0, max(1, len(rows)), _SLICE_ROWS):
            chunk = rows.slice(start, _SLICE_ROWS)
            texts = reasons.take(pc.index_in(chunk["node"], nodes).combine_chunks())
            yield chunk.cast(plain).append_column(reason, texts).select(order)

    return _write_tables(tables(), out, raw)[1]


def export_edges(
    run: FinishedRun,
    out: Path,
    top: int | None,
    flagged: bool,
    *,
    pairs: bool = False,
    raw: bool = False,
    trusts_queries: bool = False,
) -> str:
    """Writes the rows of the run's edge table with the numbers of their edges, or one row an edge; returns a summary.

    All rows in their order where neither `top` edges nor the `flagged` are asked for; else those of the chosen edges,
    the strangest first, which are in memory then.
    """
    edges, is_some = run.edges, flagged or top is not None
    if run.strange_rows is not None and not pairs:
        return _export_rows(run, run.strange_rows, out, (top, flagged), raw, trusts_queries)
    chosen = edges.first(top, flagged)
    which, nodes = (
        counted(len(chosen), "flagged edge" if flagged else "edge"),
        edges.nodes_of(chosen) if is_some else None,
    )
    source = nullcontext() if pairs else run.edge_rows(nodes, trusts_queries=trusts_queries)
    with source as rows:
        if rows is None:
            _, note = _write_tables(edges.tables(chosen), out, raw)
            return f"{which} in {out}, the strangest first{note}"
        joined = joined_rows(rows, edges, chosen, is_some)
        num_rows, note = _write_tables(_as_written(rows, iter([by_rank(joined)]) if is_some else joined, out), out, raw)
    order = "the strangest first" if is_some else "in the order of the table"
    return f"{counted(num_rows, 'row')} of {which} in {out}, {order}{note}"


def _export_rows(
    run: FinishedRun, ranked: StrangeRows, out: Path, asked: tuple[int | None, bool], raw: bool, trusts_queries: bool
) -> str:
    """Writes rows that are judged by themselves, with the columns of the user's table where it is there."""
    chosen, is_some = ranked.first(*asked), asked != (None, False)
    which = f"{counted(len(chosen), 'flagged row' if asked[1] else 'row')} in {out}"
    with run.edge_rows(np.zeros(0, np.int64), trusts_queries=trusts_queries) as table:
        if table is None:
            return f"{which}, the strangest first{_write_tables(ranked.tables(chosen), out, raw)[1]}"
        joined = ranked.joined(table, chosen, is_some)
        tables = _as_written(table, iter([by_rank(joined)]) if is_some else joined, out)
        num_rows, note = _write_tables(tables, out, raw)
    if is_some:
        return f"{which}, the strangest first{note}"
    num_left = num_rows - len(chosen)
    why = f"; {num_left:,} have no rank: they have no time, one far from all others, or no end" if num_left else ""
    return f"{num_rows:,} rows in {out}, in the order of the table{why}{note}"


def _as_written(rows: EdgeRows, tables: Iterator[pa.Table], out: Path) -> Iterator[pa.Table]:
    """Rows of the user's table as a file holds them: a workbook numbers and dates, others what stands there."""
    return map(rows.with_values, tables) if out.suffix == ".xlsx" else tables


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


def export_graph(run: FinishedRun, out: Path, top: int | None) -> str:
    """Writes the first `top` nodes and what is around them as GraphML or GEXF; returns a summary."""
    import networkx as nx

    graph_of_first = _neighborhoods(run, top or _GRAPH_NODES)
    count = sum(escape_texts(data) for _, data in graph_of_first.nodes(data=True))
    with files.replacing_file(out) as fresh:
        (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(graph_of_first, fresh)
    note = f"; {count:,} labels hold characters that XML cannot, written as \\x01" if count else ""
    sizes = counted(len(graph_of_first), "node"), counted(graph_of_first.number_of_edges(), "edge")
    return f"{' and '.join(sizes)} in {out}{note}"


def escape_texts(data: dict[str, Any]) -> bool:
    """Replaces characters in texts that XML 1.0 cannot hold by visible escapes; returns whether there were any."""
    wrong = {name: text for name, text in data.items() if isinstance(text, str) and _NOT_XML.search(text)}
    for name, text in wrong.items():
        data[name] = _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return bool(wrong)


def _neighborhoods(run: FinishedRun, top: int) -> Any:
    """A networkx graph of the first nodes, their farthest neighbours, and all edges among these."""
    import networkx as nx

    graph, table, (mean, _) = run.graph, run.table, run.hops
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    first = table["node"].slice(0, top).to_pylist()
    chosen = set(first)
    for node in first:
        near, hops = graph.indices[graph.indptr[node] : graph.indptr[node + 1]], mean[edges.of_node(node)]
        chosen.update(near[np.argsort(-hops, kind="stable")[:_GRAPH_NEIGHBORS]].tolist())
    made = nx.DiGraph() if graph.directed else nx.Graph()
    shown = [name for name in _NODE_COLUMNS if name in table.column_names]
    rows = table.filter(pc.is_in(table["node"], pa.array(sorted(chosen)))).select(["node", *shown])
    for row in rows.to_pylist():
        node = row.pop("node")
        values = {name: value for name, value in row.items() if value is not None}
        made.add_node(node, label=str(graph.external_id(node)), **values)
    for node in sorted(chosen):
        for at, edge in enumerate(edges.of_node(node).tolist(), int(graph.indptr[node])):
            if int(graph.indices[at]) in chosen:
                weight = {} if graph.weights is None else {"weight": float(graph.weights[at])}
                made.add_edge(node, int(graph.indices[at]), hop=float(mean[edge]), **weight)
    return made


def export_verdicts(run: FinishedRun, out: Path) -> str:
    """Writes the verdicts given so far as a table that can be edited and taught to any run; returns a summary."""
    given = run.verdicts()
    if not len(given.table):
        raise ValueError(f"{run.folder} has no verdicts; hcm-scale review {run.folder} lists nodes that are worth one")
    words = pa.array(verdicts.NAMES).take(pa.array(given.codes))
    rows = given.table.select(["id", "time", "by", "case", "note"]).add_column(1, "verdict", words)
    _write_tables(iter([rows]), out, raw=False)
    return "\n".join([*given.notes, f"{counted(len(rows), 'verdict')} in {out}"])


def review_nodes(run: FinishedRun, count: int, out: Path | None) -> str:
    """The next nodes worth a verdict as text, or in a table to fill in."""
    run_dir = run.folder
    if out is not None and out.is_file():
        _check_taught(run, out)
    nodes = teach.next_nodes(run, count)
    if not len(nodes):
        return f"every node of {run_dir} has a verdict"
    if out is not None:
        if run.graph.ids is None:
            nodes = nodes.append_column(verdicts.OF, [[verdicts.numbered(run.graph)] * len(nodes)])
        _write_tables(iter([nodes]), out, raw=False)
        fill = "write bad, good or unsure into its column verdict, leave the others empty"
        return f"{counted(len(nodes), 'node')} in {out}; {fill}, then: hcm-scale teach {run_dir} {out}"
    lines = []
    for name, _, rank, why, chance, reason in zip(*(column.to_pylist() for column in nodes.columns), strict=True):
        how_likely = "" if chance == 1.0 else f", by a chance of {chance:.2g}"
        lines.append(f"{rank:>8,}  {clip(name, 40)}   ({why}{how_likely})\n          {reason}")
    advice = f"""these nodes as a table, whose column verdict you fill in with bad, good or unsure; then learn from it:
  hcm-scale review {run_dir} {count} --csv review.csv
  hcm-scale teach {run_dir} review.csv
or judge them by a key on the page of: hcm-scale serve {run_dir}"""
    return "\n".join([f"{nodes.column_names[2].replace('_', ' '):>8}  id", *lines, "", advice])


def _check_taught(run: FinishedRun, sheet: Path) -> None:
    """Refuses to replace a table with verdicts that the run does not know."""
    with contextlib.suppress(InputError):  # no table of verdicts
        filled, stored = verdicts.read_table(sheet)[0]["id"], run.verdicts().table["id"].combine_chunks()
        if count := len(filled) - (pc.sum(pc.is_in(filled, stored)).as_py() or 0):
            advice = f"hcm-scale teach {run.folder} {sheet} keeps them, then ask again"
            raise ValueError(f"{sheet} holds {count:,} verdicts that {run.folder} does not know; {advice}")
