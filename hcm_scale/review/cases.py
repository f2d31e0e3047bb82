"""Verdicts on cases: one on all of the nodes that a case holds together, told by its lasting id.

Such a verdict is a line for every node of the case's core, with the case's id, so that all else that reads verdicts
(lists, teaching, the next run) knows it as verdicts on nodes, of which the first of the list is what is learnt from. A
case that was judged and has nodes in its core that have no verdict, of it or of their own, is open again.

People also put cases together and take members out: lines in the same file, which `changed_cases` applies to the cases
as they are stored. A verdict on cases that were put together is one on each of them, and teaches as one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.cases.find import ALONE, HAND, LEAST_P, Case, Nodes
from hcm_scale.cases.store import HELD_BY, Cases
from hcm_scale.graph import Graph
from hcm_scale.review import verdicts

_MOST_NOTE = 1000  # characters, as the served page has it


class CaseVerdict(NamedTuple):
    """What somebody said of a case, and how many nodes have come to it since."""

    verdict: str
    by: str
    note: str
    num_new: int = 0

    def text(self) -> str:
        """In words.

        >>> CaseVerdict("bad", "anna", "known ring", 2).text()
        'Judged bad by anna: known ring. Open again: 2 of its nodes have come since.'
        """
        by, note = f" by {self.by}" if self.by else "", f": {self.note.rstrip('.')}" if self.note else ""
        new = "1 of its nodes has" if self.num_new == 1 else f"{self.num_new:,} of its nodes have"
        return f"Judged {self.verdict}{by}{note}." + (f" Open again: {new} come since." if self.num_new else "")


def judged_cases(graph: Graph, cases: Cases, given: verdicts.Verdicts) -> dict[int, CaseVerdict]:
    """The verdict on each case that has one, by its position."""
    told = given.cases
    rows = given.table.set_column(given.table.column_names.index("case"), "case", told).filter(told.is_valid())
    if not rows.num_rows:
        return {}
    nodes = verdicts.find_nodes(graph, rows["id"].combine_chunks())
    of_node = dict(zip(nodes.tolist(), rows.to_pylist(), strict=True))
    has_any = {*verdicts.find_nodes(graph, given.table["id"].combine_chunks()).tolist()}
    out = dict[int, CaseVerdict]()
    for name, at in _positions(cases, given.changes, rows["case"].unique().to_pylist()).items():
        core = cases[at].core.tolist()
        said = [of_node[node] for node in core if node in of_node and of_node[node]["case"] == name]
        if said:
            last = max(said, key=lambda row: (row["time"] is not None, row["time"]))
            verdict = verdicts.NAMES[last["code"]]
            out[at] = CaseVerdict(verdict, last["by"] or "", last["note"] or "", len({*core} - has_any))
    return out


def judge_case(graph: Graph, cases: Cases, at: int, verdict: str, note: str = "") -> list[verdicts.Line]:
    """The lines that say a verdict of a case: of each of its parts, on those of its nodes that are not taken out."""
    if len(note) > _MOST_NOTE:  # every node of the case has it
        raise ValueError(f"the note has {len(note):,} characters; legal are {_MOST_NOTE:,}")
    out: Any = [] if verdict == verdicts.NAMES[verdicts.NONE] else cases.taken_out(at)
    return [
        verdicts.Line(graph.external_id(node), verdict, name, note)
        for name, part in cases.parts_of(at)
        for node in np.setdiff1d(part.core, out).tolist()
    ]


def _positions(cases: Cases, changes: verdicts.CaseChanges, names: list[str]) -> dict[str, int]:
    """Positions of the cases that are told under these ids, of those that are here."""
    out = dict(zip(names, cases.positions(names).tolist(), strict=True))
    for part, at in zip(changes.part_of, cases.positions([*changes.part_of]).tolist(), strict=True):
        if out.get(changes.part_of[part], 0) < 0:  # it is not among today's cases, and a part of it may be
            out[changes.part_of[part]] = at
    return {name: at for name, at in out.items() if at >= 0}


# Cases that people put together, or take members out of.


def change_lines(
    graph: Graph, cases: Cases, changes: verdicts.CaseChanges, how: str, name: str, values: Sequence[str] = ()
) -> list[verdicts.Line]:
    """The lines that change a case, by its number or id; ValueError where it cannot be so changed.

    `merge` puts it together with other cases, `apart` tells it by itself again, or the parts of it of these ids
    together; `out` takes members of these ids out of it, and `in` puts them in again.
    """
    at, lines = cases.position(name), list[verdicts.Line]()
    if how == "apart":
        found = cases.found or cases
        return _apart(changes, values or [found.id_of(found.position(name))], cases.name_of(at))
    for value in values:
        if how == "merge":
            if (other := cases.position(value)) == at:
                raise ValueError(f"{cases.name_of(at)} is told as one with case {value} already")
            own, others = (changes.told_under(cases.parts_of(one)[0][0]) for one in (at, other))
            lines += [verdicts.Line(part, verdicts.PART, own) for part in changes.parts(others)]
        else:
            lines += _moved(graph, cases, at, value, how)
    core = {*cases[at].core.tolist()} - {graph.node_of(line.name) for line in lines if line.verdict == verdicts.OUT}
    if not core:
        advice = "the verdict good says that it is nothing"
        raise ValueError(f"{cases.name_of(at)} would have no node left that stands out: {advice}")
    return lines


def _moved(graph: Graph, cases: Cases, at: int, value: str, how: str) -> list[verdicts.Line]:
    node = graph.node_of(value)
    if node not in (cases.taken_out(at) if how == "in" else cases[at].members):
        raise ValueError(f"{value} is not {'taken out of' if how == 'in' else 'a member of'} {cases.name_of(at)}")
    parts = [name for name, part in cases.parts_of(at) if node in part.members]
    return [verdicts.Line(graph.external_id(node), how, name) for name in parts]


def _apart(changes: verdicts.CaseChanges, names: Sequence[str], told: str) -> list[verdicts.Line]:
    under = changes.told_under(names[0])
    moved = [name for name in changes.parts(under) if name in names]
    left = [name for name in changes.parts(under) if name not in names]
    if not left:
        raise ValueError(f"{told} is not put together with others")
    lines = [verdicts.Line(name, verdicts.PART, names[0]) for name in moved]
    return lines + [verdicts.Line(name, verdicts.PART, left[0]) for name in left if under in moved]


def changed_cases(graph: Graph, found: Cases, changes: verdicts.CaseChanges, p: Callable[[], Any]) -> Cases:
    """The cases of a run as people have changed them, which are stored as they were found; `p` is that of all nodes.

    Several that are told under one id are one case, in the place of the first of them, with the nodes of all. A member
    that was taken out takes along the rows that it is an end of. Nothing is taken out of a case of which no node would
    be left that stands out, nor is anything said of ids that are not here.
    """
    joined, out = _parts(found, changes), _taken_out(graph, found, changes)
    joined |= {at: [at] for at in {*out} - {part for parts in joined.values() for part in parts}}
    changed = sorted(part for parts in joined.values() for part in parts)
    if not changed:
        return found
    place, made, surprise = np.arange(len(found)), dict[int, Case](), -np.log(np.maximum(p(), LEAST_P))
    for first, parts in joined.items():
        gone = [out.get(at, found.members[:0]) for at in parts]
        place[parts] = first
        made[first] = _together(graph, [found[at] for at in parts], gone, surprise)
    is_kept = place == np.arange(len(found))
    table, none = found.table.copy(), np.zeros(0, np.int64)
    for at, case in made.items():
        table["surprise"][at], table["held"][at] = case.surprise, HELD_BY.index(case.held_by)
        table["members"][at], table["core"][at] = len(case.members), len(case.core)
        table["rows"][at] = len(case.rows)
    pieces: dict[str, list[Any]] = {"members": [none], "rows": [none]}
    for name, ends in (("members", found.member_ends), ("rows", found.row_ends)):
        last, array = 0, getattr(found, name)
        for at in changed:
            pieces[name] += [array[last : ends[at]], getattr(made[at], name) if at in made else none]
            last = ends[at + 1]
        pieces[name].append(array[last:])
    members, rows = (np.concatenate(pieces[name]) for name in ("members", "rows"))
    num_flagged = int(np.count_nonzero(is_kept[: found.num_flagged]))
    place = np.cumsum(is_kept)[place] - 1
    return Cases(table[is_kept], members, rows, num_flagged, found.changes, found, place)


def _together(graph: Graph, parts: Sequence[Case], out: Sequence[Nodes], surprise: Any) -> Case:
    """One case of several, or of one, of each of which some members are taken out."""
    left = [
        (np.setdiff1d(part.core, gone), np.setdiff1d(part.others, gone), part.rows[~_touches(graph, part.rows, gone)])
        for part, gone in zip(parts, out, strict=True)
    ]
    core, others, rows = (np.unique(np.concatenate(some)) for some in zip(*left, strict=True))
    if not len(core):
        return _together(graph, parts, [core] * len(parts), surprise)
    others = np.setdiff1d(others, core)
    held_by = HAND if len(parts) > 1 else parts[0].held_by if len(core) + len(others) > 1 else ALONE
    return Case(core, others, rows, held_by, float(np.logaddexp.reduce(surprise[core])))


def _touches(graph: Graph, rows: Nodes, nodes: Nodes) -> NDArray[np.bool_]:
    """Whether rows have one of the nodes as an end."""
    if graph.rows is None:
        return np.zeros(len(rows), bool)
    return np.isin(graph.rows.payer[rows], nodes) | np.isin(graph.rows.payee[rows], nodes)


def _parts(found: Cases, changes: verdicts.CaseChanges) -> dict[int, list[int]]:
    """The positions of cases that are told as one, by the first of them."""
    told: dict[str, set[int]] = {}
    for at, label in zip(found.positions([*changes.part_of]).tolist(), changes.part_of.values(), strict=True):
        told.setdefault(label, set()).update([at] * (at >= 0))
    names = [label for label in told if label not in changes.part_of]
    for at, label in zip(found.positions(names).tolist(), names, strict=True):
        told[label].update([at] * (at >= 0))
    return {min(parts): sorted(parts) for parts in told.values() if len(parts) > 1}


def _taken_out(graph: Graph, found: Cases, changes: verdicts.CaseChanges) -> dict[int, Nodes]:
    """Nodes that are taken out of cases, by position."""
    ids = [*dict.fromkeys(name for _, name in changes.taken_out)]
    node = dict(zip(ids, verdicts.find_nodes(graph, pa.array(ids, pa.large_string())).tolist(), strict=True))
    out: dict[int, set[int]] = {}
    positions = found.positions([case for case, _ in changes.taken_out]).tolist()
    for at, (_, name) in zip(positions, changes.taken_out, strict=True):
        if at >= 0 and node[name] in found[at].members:
            out.setdefault(at, set()).add(node[name])
    return {at: np.array(sorted(nodes), np.int64) for at, nodes in out.items()}
