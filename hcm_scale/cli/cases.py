"""`hcm-scale cases`, `case` and `diff`, and cases among what `export` writes: texts and files about a finished run."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.base.sheets import table_writer
from hcm_scale.base.text import clip
from hcm_scale.cases.changes import Known, changes, changes_line, changes_text, match
from hcm_scale.cases.clue import grow_from
from hcm_scale.cases.describe import case_page
from hcm_scale.cases.find import structure_of
from hcm_scale.cases.tables import case_lines, case_table, member_table, row_table
from hcm_scale.cli.export import escape_texts
from hcm_scale.run.finished import FinishedRun

_MOST_MOVED = 20  # nodes that moved most, told by `diff`


def list_cases(run: FinishedRun, count: int) -> str:
    """The first cases, a line each, and what has changed since an earlier run."""
    cases = run.cases
    if not len(cases):
        return f"{run.folder}: no node stands out, so there are no cases"
    numbers = {cases.id_of(at): at + 1 for at in range(len(cases))} if cases.changes else {}
    told = (
        [] if not cases.changes else ["", f"since {clip(cases.changes['since'], 100)}: {changes_line(cases.changes)}"]
    )
    told += [] if not cases.changes else changes_text(cases.changes, numbers)
    flagged = f"{len(cases):,} cases, {cases.num_flagged:,} of them flagged"
    return "\n".join(
        [*case_lines(run.graph, cases, count), "", f"{flagged}; hcm-scale explain {run.folder} case=1", *told]
    )


def export_cases(run: FinishedRun, out: Path, top: int | None, flagged: bool, raw: bool) -> str:
    """Writes one row a member; an .xlsx also has a sheet of cases and one of rows."""
    members = member_table(run.evidence, run.cases, top, flagged)
    count = pc.max(members["case"]).as_py() or 0
    with table_writer(out, members.schema, raw, name="members") as sink:
        sink.write_table(members)
        if out.suffix == ".xlsx":
            rows = row_table(run.evidence, run.cases, top, flagged)
            others = {"cases": case_table(run.cases).slice(0, count), "rows": rows}
            for name, table in others.items():
                if table is not None:
                    sink.use(name, table.schema)
                    sink.write_table(table)
    return f"{len(members):,} members of {count:,} cases in {out}"


def export_case_graph(run: FinishedRun, out: Path, name: str) -> str:
    """Writes the members of one case and what is between them as GraphML or GEXF."""
    import networkx as nx

    told, graph = run.case(name), run.graph
    case = run.cases[run.cases.position(name)]
    made = nx.MultiDiGraph() if told["rows"] else nx.Graph()
    for node, member in zip(case.members.tolist(), told["members"], strict=True):
        about = {key: member[key] for key in ("role", "rank", "p") if member[key] is not None}
        made.add_node(node, label=str(member["id"]), stands_out=member["core"], **about)
    if told["rows"] and run.evidence.rows is not None:
        kept = run.evidence.rows
        for row in case.rows.tolist():
            ends = int(kept.rows.payer[row]), int(kept.rows.payee[row])
            amount = float(kept.amounts[row])
            made.add_edge(*ends, time=float(kept.rows.time[row]), **({"amount": amount} if np.isfinite(amount) else {}))
    else:
        inside = {*case.members.tolist()}
        for node in inside:
            others = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
            made.add_edges_from((node, other) for other in others if other in inside)
    for _, about in made.nodes(data=True):
        escape_texts(about)
    with files.replacing_file(out) as fresh:
        (nx.write_graphml if out.suffix == ".graphml" else nx.write_gexf)(made, fresh)
    return f"{len(made):,} nodes and {made.number_of_edges():,} edges of case {told['case']} in {out}"


def case_from(run: FinishedRun, ids: Sequence[str]) -> str:
    """The cases that some nodes are part of, or the most surprising set around them."""
    nodes, cases = [run.graph.node_of(name) for name in ids], run.cases
    positions = sorted({int(at) for node in nodes for at in cases.of_node(node)})
    if positions:
        return "\n\n\n".join(case_page(run.case(str(at + 1))) for at in positions)
    taken = grow_from(structure_of(run.graph), nodes, run.column("p"), run.evidence.rows)
    shown = ", ".join(clip(name, 40) for name in ids)
    if not taken:
        return f"{shown}: in no case, and nothing around holds: no set of nodes there is surprising as a whole"
    ranks = run.evidence.row_of_node
    lines = [f"{shown}: in no case; the most surprising set around, in the order in which nodes were taken", ""]
    lines.append(f"{'adds (nats)':>11}{'rank':>9}   id")
    for node, gain, why in taken:
        name = clip(run.graph.external_id(node), 40)
        lines.append(f"{gain:>11.1f}{ranks[node] + 1:>9,}   {name}: {why or 'a little of everything'}")
    return "\n".join(lines)


def diff(old: FinishedRun, new: FinishedRun, as_json: bool) -> str:
    """What has changed from one run to another: cases, flags of nodes, and ranks."""
    tables = [
        run.ranked.select([n for n in ("id", "rank", "flagged", "evidence") if n in run.ranked.column_names])
        for run in (old, new)
    ]
    kinds = [table["id"].type for table in tables]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{old.folder} has ids of type {kinds[0]}, {new.folder} of {kinds[1]}; they must be of one type"
        )
    before, after = (Known.of(run.graph, run.cases) for run in (old, new))
    told = changes(before, after, match(before, after))
    nodes = _node_changes(*tables)
    if as_json:
        return json.dumps({"old": str(old.folder), "new": str(new.folder), "cases": told, "nodes": nodes}, default=str)
    numbers = {new.cases.id_of(at): at + 1 for at in range(len(new.cases))}
    lines = [f"cases: {changes_line(told)}", *(f"  {line}" for line in changes_text(told, numbers))]
    for name, title in (("entered", "flagged now, not before"), ("left", "flagged before, not now")):
        lines += ["", f"nodes {title}: {nodes[f'num_{name}']:,}"]
        lines += [
            f"  {clip(one['id'], 40):<42}{_rank(one['before']):>10} -> {_rank(one['after']):>10}   {one['evidence']}"
            for one in nodes[name]
        ]
    return "\n".join(lines)


def _rank(rank: int | None) -> str:
    return "absent" if rank is None else f"{rank:,}"


def _node_changes(before: pa.Table, after: pa.Table) -> dict[str, Any]:
    """Nodes that entered and left the flags, by rank, the first of each, and how many."""
    out: dict[str, Any] = {}
    for name, own, other, is_now in (("entered", after, before, True), ("left", before, after, False)):
        with contextlib.suppress(KeyError):
            chosen = own.filter(own["flagged"])
            at = pc.index_in(chosen["id"], other["id"].combine_chunks())
            was = other["flagged"].combine_chunks().take(at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at)
            is_other = pc.invert(was.fill_null(False)).to_numpy(zero_copy_only=False)
            ranks = other["rank"].take(at).to_pylist()
            rows = [
                {"id": row["id"], "evidence": row["evidence"]}
                | dict(zip(("after", "before") if is_now else ("before", "after"), (row["rank"], rank), strict=True))
                for row, rank, differs in zip(chosen.to_pylist(), ranks, is_other, strict=True)
                if differs
            ]
            out |= {name: rows[:_MOST_MOVED], f"num_{name}": len(rows)}
    return out
