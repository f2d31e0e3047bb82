"""The stage `cases`: what belongs together among the nodes that stand out (`cases/find.py`)."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hcm_scale.cases.changes import Known, read_known, with_lasting_ids, write_known
from hcm_scale.cases.find import find_cases, num_flagged
from hcm_scale.cases.store import FORMAT, Cases, as_cases
from hcm_scale.graph import Graph
from hcm_scale.rows.evidence import RowEvidence, open_row_evidence
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.table import FILE, RankedFile

__all__ = ["FORMAT", "Earlier", "find", "make"]


class Earlier(NamedTuple):
    """A run before: what it is called, the folder of its cases, and their key."""

    name: str
    folder: Path
    key: str


def find(graph: Graph, ranked: Any, rows: RowEvidence | None) -> Cases:
    """The cases of a ranked table."""
    node = ranked["node"].to_numpy()

    def column(name: str, dtype: Any) -> Any:
        out = np.zeros(graph.num_nodes, dtype)
        out[node] = ranked[name].to_numpy()
        return out

    names = {*ranked.column_names}
    rate = float((ranked.schema.metadata or {}).get(b"fdr", b"0.1"))
    if not {"p", "flagged"} <= names:  # ranked by one number, without p
        return as_cases(graph, [], 0)
    numbers = None
    if rows is not None:
        none = np.zeros(graph.num_nodes)
        columns = [kind.column if kind.column in names else None for kind in ROW_KINDS]
        numbers = np.stack([none if name is None else column(name, np.float64) for name in columns], axis=1)
    found = find_cases(graph, column("p", np.float64), column("flagged", np.bool_), rows, numbers)
    return as_cases(graph, found, num_flagged(found, graph.num_nodes, rate))


def make(graph: Graph, scores: Path, out: Path, since: Earlier | None) -> Cases:
    """The cases of a scores folder, written into the folder `out`, with the ids that they had in an earlier run."""
    cases, before = find(graph, RankedFile(scores / FILE), open_row_evidence(scores, graph, ROW_KINDS)), None
    if since is not None:
        before = read_known(since.folder)
        cases = with_lasting_ids(graph, cases, before, since.name)
    out.mkdir(parents=True, exist_ok=True)
    write_known(out, Known.of(graph, cases), before)
    cases.save(out)
    return cases
