"""`hcm-scale cases`, `case` and `diff`, and cases among what `export` writes: texts and files about a finished run."""

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
from numpy.typing import NDArray

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
from hcm_scale.score.table import RankedFile, kinds_of

_MOST_MOVED = 20  # nodes that `diff` names of those that moved most, and that entered or left the flags
_MOST_BYTES = 1 << 26  # of a file of ids
_MOST_PAGES, _MOST_NAMED = 5, 8  # cases of a clue, told as pages; ids that a line names


def list_cases(run: FinishedRun, count: int) -> str:
    """The first cases, a line each, and what has changed since an earlier run."""
    cases = run.cases
    if not len(cases):
        return f"{run.folder}: no node stands out, so there are no cases"
    told = (
        [] if not cases.changes else ["", f"since {clip(cases.changes['since'], 100)}: {changes_line(cases.changes)}"]
    )
    told += [] if not cases.changes else changes_text(cases.changes, cases)
    given = judged_cases(run.graph, cases, run.verdicts())
    judged = {at: f"{one.verdict}{', open again' * bool(one.num_new)}" for at, one in given.items()}
    flagged = f"{counted(len(cases), 'case')}, {cases.num_flagged:,} of them flagged"
    return "\n".join(
        [*case_lines(run.graph, cases, count, judged), "", f"{flagged}; hcm-scale explain {run.folder} case=1", *told]
    )


def export_cases(run: FinishedRun, out: Path, top: int | None, flagged: bool, raw: bool) -> str:
    """Writes one row a member; an .xlsx also has a sheet of cases and one of rows."""
    cases = run.cases
    members = member_table(run.evidence, cases, top, flagged)
    count = pc.count_distinct(members["case"]).as_py()
    with table_writer(out, members.schema, raw, name="members") as sink:
        sink.write_table(members)
        if out.suffix == ".xlsx":
            rows = row_table(run.evidence, cases, top, flagged)
            others = {"cases": case_table(cases, run.evidence).slice(0, count), "rows": rows}
            for name, table in others.items():
                if table is not None:
                    sink.use(name, table.schema)
                    sink.write_table(table)
    return f"{counted(len(members), 'member')} of {counted(count, 'case')} in {out}"


def export_case_graph(run: FinishedRun, out: Path, name: str) -> str:
    """Writes the members of one case and what is between them as GraphML or GEXF."""
    import networkx as nx

    told, graph, cases = run.case(name), run.graph, run.cases
    case = cases[cases.position(name)]
    made = nx.MultiDiGraph() if told["rows"] else nx.Graph()
    for node, member in zip(case.members.tolist(), told["members"], strict=True):
        about = {key: member[key] for key in ("role", "rank", "p") if member[key] is not None}
        made.add_node(node, label=str(member["id"]), stands_out=member["core"], **about)
    if told["rows"] and run.evidence.rows is not None:
        kept = run.evidence.rows
        for row in case.rows.tolist():
            ends = int(kept.rows.payer[row]), int(kept.rows.payee[row])
            amount = float(kept.amounts[row])
            time = float(kept.rows.time[row]) / (kept.steps or 1.0)
            made.add_edge(*ends, time=time, **({"amount": amount} if np.isfinite(amount) else {}))
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
        parts += [case_page(run.case(cases.id_of(at))) for at in positions]
    else:
        held = {at: [run.graph.external_id(node) for node in nodes if at in of_node[node]] for at in positions}
        parts.append("\n".join(f"{cases.name_of(at)}: {_shown(names)}" for at, names in held.items()))
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
    kinds = [run.ranked.schema.field("id").type for run in (old, new)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{old.folder} has ids of type {kinds[0]}, {new.folder} of {kinds[1]}; they must be of one type"
        )
    before, after = (Known.of(run.graph, run.found_cases) for run in (old, new))
    told = changes(before, after, match(before, after))
    nodes, recoded = _node_changes(old, new), recoded_text(new.graph, old.graph)
    if as_json:
        about = {"old": str(old.folder), "new": str(new.folder), "recoded": recoded}
        return json.dumps(about | {"cases": told, "nodes": nodes}, default=str)
    lines = [f"{old.folder}: {recoded}"] if recoded else []
    lines += [f"cases: {changes_line(told)}", *(f"  {line}" for line in changes_text(told, new.cases))]
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


def _node_changes(old: FinishedRun, new: FinishedRun) -> dict[str, Any]:
    """Nodes that entered and left the flags, by rank, how many, and the others that moved most.

    These are flagged in both runs or in neither, and in the first tenth of either; how far is the ratio of their ranks.
    """
    ranked = old.ranked, new.ranked
    ranks = [one["rank"].to_numpy() for one in ranked]
    flags = [
        one["flagged"].to_numpy() if "flagged" in one.column_names else np.zeros(one.num_rows, bool) for one in ranked
    ]
    last = max(one.num_rows for one in ranked) / 10
    rows = _rows_in_both(ranked, [(rank <= last) | flag for rank, flag in zip(ranks, flags, strict=True)])
    is_there = rows >= 0
    rank = np.stack([own[at] for own, at in zip(ranks, rows, strict=True)])  # of a row that is not there the last one's
    flagged = np.stack([own[at] for own, at in zip(flags, rows, strict=True)]) & is_there
    out: dict[str, Any] = {}
    for name, own, other in (("entered", 1, 0), ("left", 0, 1)):
        chosen = np.flatnonzero(flagged[own] & ~flagged[other])
        chosen = chosen[np.argsort(rank[own][chosen])]
        keys = ("before", "after")[own], ("before", "after")[other]
        taken = ranked[own].take(rows[own][chosen], ["id", "evidence"]).to_pylist()
        pairs = zip(rank[own][chosen].tolist(), rank[other][chosen].tolist(), is_there[other][chosen], strict=True)
        out[name] = [
            row | dict(zip(keys, (at, was if known else None), strict=True))
            for row, (at, was, known) in zip(taken, pairs, strict=True)
        ]
        out[f"num_{name}"] = len(chosen)
    far = np.abs(np.log(rank[0] / rank[1])) * ((flagged[0] == flagged[1]) & is_there.all(axis=0))
    far *= rank.min(axis=0) <= last
    chosen = np.lexsort((rank[1], -far))[:_MOST_MOVED]
    chosen = chosen[far[chosen] > 0.0]
    return out | {"moved": _moved(ranked, rows[:, chosen], rank[:, chosen])}


def _rows_in_both(ranked: Sequence[RankedFile], is_first: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Rows of the nodes that are first in either of two tables, in both, (2, k); -1 where a table does not have one.

    All ids of one table at a time are in memory, and the first ones of the other.
    """
    first = [np.flatnonzero(marks) for marks in is_first]
    elsewhere, ids = [], ranked[1]["id"].take(pa.array(first[1])).combine_chunks()
    for table, own in ((0, first[1]), (1, first[0])):
        whole = ranked[table]["id"]
        at = pc.index_in(whole, ids).fill_null(-1).to_numpy()
        hits, there = np.flatnonzero(at >= 0), np.full(len(own), -1)
        there[at[hits]] = hits
        elsewhere.append(there)
        ids = whole.take(pa.array(first[0])).combine_chunks() if table == 0 else ids
        del whole
    is_new = (elsewhere[1] < 0) | ~is_first[1][elsewhere[1]]
    return np.stack(
        [np.concatenate([elsewhere[0], first[0][is_new]]), np.concatenate([first[1], elsewhere[1][is_new]])]
    )


def _moved(ranked: Sequence[RankedFile], rows: NDArray[np.int64], rank: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Of nodes in these rows of two tables, (2, k), ranks in both, and the kind of evidence that moved as they did."""
    kinds = [kind for kind in kinds_of(ranked[1]).values() if kind.rank_column in ranked[0].column_names]
    of_kinds = [one.take(at, [kind.rank_column for kind in kinds]) for one, at in zip(ranked, rows, strict=True)]
    told = ranked[1].take(rows[1], ["id", "evidence"]).to_pylist()
    for row, at, before, after in zip(told, range(len(told)), *rank.tolist(), strict=True):
        row |= {"before": before, "after": after}
        pairs = [tuple(table[kind.rank_column][at].as_py() for table in of_kinds) for kind in kinds]
        if pairs:
            way = 1.0 if before > after else -1.0  # the kind that moved most, as the node did
            most = max(range(len(pairs)), key=lambda k: way * math.log(pairs[k][0] / pairs[k][1]))
            row |= {"kind": kinds[most].name, "kind_before": pairs[most][0], "kind_after": pairs[most][1]}
    return told
