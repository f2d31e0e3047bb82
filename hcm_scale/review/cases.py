"""Verdicts on cases: one on all of the nodes that a case holds together, told by its lasting id.

Such a verdict is a line for every node of the case's core, with the case's id, so that all else that reads verdicts
(lists, teaching, the next run) knows it as verdicts on nodes, of which the first of the list is what is learnt from. A
case that was judged and has nodes in its core that have no verdict, of it or of their own, is open again.
"""

from typing import NamedTuple

import pyarrow as pa

from hcm_scale.cases.store import Cases
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
    rows = given.table.filter(given.table["case"].is_valid())
    if not rows.num_rows:
        return {}
    nodes = verdicts.find_nodes(graph, rows["id"].combine_chunks())
    of_node = dict(zip(nodes.tolist(), rows.to_pylist(), strict=True))
    has_any = {*verdicts.find_nodes(graph, given.table["id"].combine_chunks()).tolist()}
    position = {cases.id_of(at): at for at in range(len(cases))}
    out = {}
    for name in dict.fromkeys(rows["case"].to_pylist()):
        if (at := position.get(name)) is None:
            continue
        core = cases[at].core.tolist()
        said = [of_node[node] for node in core if node in of_node and of_node[node]["case"] == name]
        if said:
            last = max(said, key=lambda row: (row["time"] is not None, row["time"]))
            verdict = verdicts.NAMES[last["code"]]
            out[at] = CaseVerdict(verdict, last["by"] or "", last["note"] or "", len({*core} - has_any))
    return out


def judge_case(graph: Graph, cases: Cases, at: int, verdict: str, note: str = "") -> list[verdicts.Line]:
    """The lines that say a verdict of a case."""
    if len(note) > _MOST_NOTE:  # every node of the case has it
        raise ValueError(f"the note has {len(note):,} characters; legal are {_MOST_NOTE:,}")
    core = cases[at].core
    ids = pa.array(core) if graph.ids is None else graph.ids.take(pa.array(core))
    return [verdicts.Line(name, verdict, cases.id_of(at), note) for name in ids.to_pylist()]
