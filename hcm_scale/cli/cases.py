"""`hcm-scale cases`, `case` and `diff`, and cases among what `export` writes: texts and files about a finished run."""

import contextlib
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.base.sheets import table_writer
from hcm_scale.base.text import clip, counted
from hcm_scale.cases.changes import Known, changes, changes_line, changes_text, match
from hcm_scale.cases.clue import grow_from
from hcm_scale.cases.describe import case_page
from hcm_scale.cases.find import ALONE, structure_of
from hcm_scale.cases.tables import case_lines, case_table, member_table, row_table
from hcm_scale.cli.export import escape_texts
from hcm_scale.review.cases import judged_cases
from hcm_scale.review.verdicts import find_nodes
from hcm_scale.run.finished import FinishedRun, recoded_text
from hcm_scale.score.table import kinds_of

_MOST_MOVED = 20  # nodes that `diff` names of those that moved most, and that entered or left the flags
_MOST_BYTES = 1 << 26  # of a file of ids
_MOST_PAGES, _MOST_NAMED = 5, 8  # cases of a clue, told as pages; ids that a line names


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
    given = judged_cases(run.graph, cases, run.verdicts())
    judged = {at: f"{one.verdict}{', open again' * bool(one.num_new)}" for at, one in given.items()}
    flagged = f"{counted(len(cases), 'case')}, {cases.num_flagged:,} of them flagged"
    return "\n".join(
        [*case_lines(run.graph, cases, count, judged), "", f"{flagged}; hcm-scale explain {run.folder} case=1", *told]
    )


def export_cases(run: FinishedRun, out: Path, top: int | None, flagged: bool, raw: bool) -> str:
    """Writes one row a member; an .xlsx also has a sheet of cases and one of rows."""
    members = member_table(run.evidence, run.cases, top, flagged)
    count = pc.max(members["case"]).as_py() or 0
    with table_writer(out, members.schema, raw, name="members") as sink:
        sink.write_table(members)
        if out.suffix == ".xlsx":
            rows = row_table(run.evidence, run.cases, top, flagged)
            others = {"cases": case_table(run.cases, run.evidence).slice(0, count), "rows": rows}
            for name, table in others.items():
                if table is not None:
                    sink.use(name, table.schema)
                    sink.write_table(table)
    return f"{counted(len(members), 'member')} of {counted(count, 'case')} in {out}"


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
    return f"{counted(len(made), 'node')} and {counted(made.number_of_edges(), 'edge')} of case {told['case']} in {out}"


def case_from(run: FinishedRun, ids: Sequence[str]) -> str:
    """The cases that some nodes are part of, and the most surprising set around those that are in none of several."""
    ids, absent = _ids_of(run, ids)
    nodes, cases = [run.graph.node_of(name) for name in ids], run.cases
    of_node = {node: cases.of_node(node).tolist() for node in nodes}
    positions = sorted({at for of_one in of_node.values() for at in of_one})
    parts = [f"not in this graph: {_shown(absent)}"] if absent else []
    if len(positions) <= _MOST_PAGES:
        parts += [case_page(run.case(str(at + 1))) for at in positions]
    else:
        held = {at: [run.graph.external_id(node) for node in nodes if at in of_node[node]] for at in positions}
        parts.append("\n".join(f"case {at + 1:,} ({cases.id_of(at)}): {_shown(names)}" for at, names in held.items()))
    alone = [node for node in nodes if all(cases[at].held_by == ALONE for at in of_node[node])]
    return "\n\n\n".join([*parts, *([_around(run, alone, is_case=bool(positions))] if alone else [])])


def _ids_of(run: FinishedRun, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids, or those in the first column of a file, and others of the file that the graph does not have."""
    path = Path(words[0])
    if len(words) > 1 or not os.path.isfile(path):  # noqa: PTH113 (an id may be too long for a path)
        return list(words), []
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; a file of ids has {_MOST_BYTES:,} at most")
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    rows = csv.reader(lines, delimiter=";" if lines and ";" in lines[0] else ",")
    try:
        names = [name for name in dict.fromkeys(row[0].strip() for row in rows if row) if name]
    except csv.Error as error:
        raise ValueError(f"{path} is no file of ids: {error}") from error
    nodes = find_nodes(run.graph, pa.array(names, pa.string()))
    absent = [name for at, (name, node) in enumerate(zip(names, nodes, strict=True)) if node < 0 and at]  # a heading
    if not (nodes >= 0).any():
        raise ValueError(f"{path}: none of its {len(names):,} ids is in the graph of {run.folder}")
    return [name for name, node in zip(names, nodes, strict=True) if node >= 0], absent


def _shown(names: Sequence[Any]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(clip(name, 40) for name in names[:_MOST_NAMED])}{more}"


def _around(run: FinishedRun, nodes: Sequence[int], *, is_case: bool) -> str:
    """The most surprising set around nodes that are in no case of several."""
    taken = grow_from(structure_of(run.graph), list(nodes), run.column("p"), run.evidence.rows)
    where = f"{_shown([run.graph.external_id(node) for node in nodes])}: in no case{' of several nodes' * is_case}"
    if not taken:
        return f"{where}, and nothing around holds: no set of nodes there is surprising as a whole"
    ranks = run.evidence.row_of_node
    lines = [f"{where}; the most surprising set around, in the order in which nodes were taken", ""]
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
    nodes["moved"] = _moved(old, new, *tables)
    if as_json:
        return json.dumps({"old": str(old.folder), "new": str(new.folder), "cases": told, "nodes": nodes}, default=str)
    numbers = {new.cases.id_of(at): at + 1 for at in range(len(new.cases))}
    recoded = recoded_text(new.graph, old.graph)
    lines = [*[recoded][: bool(recoded)], f"cases: {changes_line(told)}"]
    lines += [f"  {line}" for line in changes_text(told, numbers)]
    for name, title in (("entered", "flagged now, not before"), ("left", "flagged before, not now")):
        lines += ["", f"nodes {title}: {nodes[f'num_{name}']:,}", *map(_moved_line, nodes[name][:_MOST_MOVED])]
        hidden = len(nodes[name]) - _MOST_MOVED
        lines += [f"  and {hidden:,} more, which --json tells"] if hidden > 0 else []
    if nodes["moved"]:
        lines += ["", "other nodes that moved most", *map(_moved_line, nodes["moved"])]
    return "\n".join(lines)


def _moved_line(one: Mapping[str, Any]) -> str:
    """A node's ranks in both runs, and the kind of evidence that moved most, or that it stands out by."""
    why = one["evidence"]
    if one.get("kind"):
        why = f"{one['kind']} {one['kind_before']:,} -> {one['kind_after']:,}"
    return f"  {clip(one['id'], 40):<42}{_rank(one['before']):>10} -> {_rank(one['after']):>10}   {why}"


def _rank(rank: int | None) -> str:
    return "absent" if rank is None else f"{rank:,}"


def _moved(old: FinishedRun, new: FinishedRun, before: pa.Table, after: pa.Table) -> list[dict[str, Any]]:
    """Nodes flagged in both runs or in neither whose rank changed most, as a ratio, among the first tenth of either."""
    at = pc.index_in(after["id"], before["id"].combine_chunks())
    at = (at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at).fill_null(-1).to_numpy()
    own = np.flatnonzero(at >= 0)
    at, ranks = at[own], np.stack([before["rank"].to_numpy()[at[own]], after["rank"].to_numpy()[own]])
    is_other = ranks.min(axis=0) <= max(len(before), len(after)) / 10
    if "flagged" in before.column_names and "flagged" in after.column_names:
        flags = [table["flagged"].to_numpy() for table in (before, after)]
        is_other &= flags[0][at] == flags[1][own]
    far = np.abs(np.diff(np.log(ranks), axis=0)[0]) * is_other
    chosen = np.lexsort((ranks[1], -far))[:_MOST_MOVED]
    chosen = chosen[far[chosen] > 0.0]
    kinds = [kind for kind in kinds_of(new.ranked).values() if kind.rank_column in old.ranked.column_names]
    of_kinds = [[run.ranked[kind.rank_column].to_numpy()[rows] for kind in kinds]
                for run, rows in ((old, at[chosen]), (new, own[chosen]))]  # fmt: skip
    told = []
    for number, one in enumerate(chosen.tolist()):
        row = {"id": after["id"][int(own[one])].as_py(), "before": int(ranks[0, one]), "after": int(ranks[1, one])}
        row["evidence"] = after["evidence"][int(own[one])].as_py() if "evidence" in after.column_names else ""
        pairs = [(int(was[number]), int(now[number])) for was, now in zip(*of_kinds, strict=True)]
        if pairs:
            way = 1.0 if ranks[0, one] > ranks[1, one] else -1.0  # the kind that moved most, as the node did
            most = max(range(len(pairs)), key=lambda k: way * math.log(pairs[k][0] / pairs[k][1]))
            row |= {"kind": kinds[most].name, "kind_before": pairs[most][0], "kind_after": pairs[most][1]}
        told.append(row)
    return told


def _node_changes(before: pa.Table, after: pa.Table) -> dict[str, Any]:
    """Nodes that entered and left the flags, by rank, and how many."""
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
            out |= {name: rows, f"num_{name}": len(rows)}
    return out
