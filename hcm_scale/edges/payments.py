"""Rows of an edge table that are judged by themselves, such as payments: the strangest first, with one sentence each.

A row has the surprise of what kinds say of it beyond what is common (rows/evidence.py); of rows of which none
says more, those come first whose pair of accounts is stranger (`StrangeEdges`), where all are asked for. p is
exp(-3 - surprise), the chance by that kind, times the number of kinds, and 1 where none says more; flags are those of
Benjamini and Hochberg. Rows that the graph does not keep, as they have no time or an unknown end, have no rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.order import largest_positions
from hcm_scale.base.text import clip
from hcm_scale.edges.rows import EdgeRows, with_edge_columns
from hcm_scale.edges.strange import CountRows, StrangeEdges
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.sections import cut_id
from hcm_scale.report.wording import EDGE_TITLES
from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.rows.rows import Numbers, Values
from hcm_scale.score.kinds.all import ROW_KINDS, ROW_TITLES
from hcm_scale.score.kinds.row_phrases import amount_text, row_facts, time_text
from hcm_scale.score.threshold import discoveries

NAMES = tuple(kind.name for kind in ROW_KINDS)
_NUM_SHOWN, _NUM_LINES = 20, 5  # of a report, and of its summary
MOST_SENTENCES = 100_000  # rows of which a file has the sentence
ORDINARY = "nothing about the row itself is unusual: the pair of its accounts says where it stands"
_CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class StrangeRows:
    """The rows that a graph keeps, by how strange they are; `evidence` has rows."""

    edges: StrangeEdges

    @property
    def evidence(self) -> Evidence:
        return self.edges.evidence

    @property
    def rows(self) -> RowEvidence:
        assert self.evidence.rows is not None
        return self.evidence.rows

    @cached_property
    def p(self) -> Values:
        """A chance for every row, (m,)."""
        return chances(self.rows, self.rows.surprise)

    @cached_property
    def flagged(self) -> NDArray[np.bool_]:
        return discoveries(self.p, self.edges.rate)

    def first(self, top: int | None, flagged: bool = False) -> Numbers:
        """Rows, the strangest first: all, the first `top`, or those among them that are flagged."""
        surprise = self.rows.surprise
        if flagged:
            chosen = np.flatnonzero(self.flagged)
            return chosen[np.argsort(-surprise[chosen], kind="stable")][:top]
        if top is not None and top <= np.count_nonzero(surprise):
            return largest_positions(surprise, top) if top else np.zeros(0, np.int64)
        return np.lexsort((np.arange(len(surprise)), -self._of_pairs, -surprise))[:top]

    @cached_property
    def _of_pairs(self) -> Values:
        """The surprise of the pair of accounts of every row."""
        rows = self.rows.rows
        edge = self.evidence.edges.find(rows.payer, rows.payee)
        return np.where(edge >= 0, self.edges.ranked.surprise[edge], 0.0)

    def table(self, top: int | None = None, flagged: bool = False) -> pa.Table:
        """One row each, the strangest first, with ends, time and amount."""
        return pa.concat_tables(self.tables(self.first(top, flagged)))

    def tables(self, chosen: Numbers) -> Iterator[pa.Table]:
        """Some of these rows at a time; at least one table."""
        rows, ids = self.rows, self.evidence.graph.ids
        for first in range(0, max(1, len(chosen)), _CHUNK):
            some = chosen[first : first + _CHUNK]
            ends = (pa.array(end[some], pa.int64()) for end in (rows.rows.payer, rows.rows.payee))
            source, target = (end if ids is None else ids.take(end) for end in ends)
            about: dict[str, Any] = {"source": source, "target": target}
            if rows.rows.has_times:
                dates = pa.array((rows.rows.time[some] * 1e3).astype(np.int64), pa.timestamp("ms"))
                about["time"] = rows.rows.time[some] / rows.steps if rows.steps else dates
            about["amount"] = rows.amounts[some]
            numbers = self.numbers(some, 1 + first + np.arange(len(some)))
            yield pa.table({"rank": numbers["rank"]} | about | {n: numbers[n] for n in numbers.column_names[1:]})

    def numbers(self, some: Numbers, ranks: NDArray[np.int64]) -> pa.Table:
        """What is told of some rows, which have these ranks."""
        rows = self.rows
        kind = rows.strongest[some]
        told = ranks <= MOST_SENTENCES
        reasons = [self.sentence(int(row)) if is_told else None for row, is_told in zip(some, told, strict=True)]
        of_kinds = {name: pa.array(rows.surprises[some, k]) for k, name in enumerate(NAMES)}
        return pa.table(
            {
                **{"rank": ranks, "surprise": rows.surprise[some], "p": self.p[some], "flagged": self.flagged[some]},
                "evidence": pa.array([*NAMES, "pair"]).take(pa.array(np.where(kind < 0, len(NAMES), kind))),
                **of_kinds,
                "reason": pa.array(reasons, pa.string()),
            }
        )

    def joined(self, table: EdgeRows, chosen: Numbers, is_some: bool) -> Iterator[pa.Table]:
        """Rows of the user's table, with all columns, and what is told of each; `is_some`: the chosen alone."""
        order, first = np.argsort(self.rows.number[chosen], kind="stable"), 0
        own = np.append(self.rows.number[chosen[order]], -1)
        for batch, _, _ in table.batches():
            whole, at = pa.Table.from_batches([batch]), np.arange(first, first + len(batch))
            first, place = first + len(batch), np.searchsorted(own[:-1], at)
            is_ranked = own[place] == at
            which = order[place[is_ranked]]
            numbers = self.numbers(chosen[which], 1 + which)
            if is_some:
                yield with_edge_columns(whole.filter(pa.array(is_ranked)), numbers)
            else:
                place = np.cumsum(is_ranked) - 1
                yield with_edge_columns(whole, numbers.take(pa.array(np.maximum(place, 0), mask=~is_ranked)))

    def shown(self, top: int) -> dict[str, Any]:
        """What a page shows of the first `top` rows, and how many are flagged."""
        ranks, graph, rows = self.evidence.row_of_node + 1, self.evidence.graph, []
        for number, row in enumerate(self.first(min(top, int(np.count_nonzero(self.rows.surprise)))).tolist(), 1):
            ends = [int(end[row]) for end in (self.rows.rows.payer, self.rows.rows.payee)]
            facts, kind = row_facts(self.evidence, row), NAMES[self.rows.strongest[row]]
            shown = {"rank": number, "p": float(self.p[row]), "flagged": bool(self.flagged[row]), "evidence": kind}
            shown |= {"ends": [{"id": graph.external_id(end), "rank": int(ranks[end])} for end in ends], "rows": None}
            when = time_text(facts["time"], facts["steps"]) if self.rows.rows.has_times else ""
            shown |= {"when": when, "amount": amount_text(facts)}
            rows.append(shown | {"reason": self.sentence(row)})
        num_flagged = int(np.count_nonzero(self.flagged))
        counts = {"num_edges": len(self.rows.rows), "num_flagged": num_flagged, "fdr": self.edges.rate}
        return {"edges": rows, "of_rows": True} | counts

    def sentence(self, row: int) -> str:
        """Why a row is strange."""
        kind = self.rows.strongest[row]
        return ORDINARY if kind < 0 else ROW_KINDS[kind].row_sentence(self.evidence, row)


def chances(rows: RowEvidence, surprise: Values) -> Values:
    """P of rows by their surprise, 1 where no kind says more than is common."""
    return np.where(surprise > 0.0, rows.chances(surprise), 1.0)


def edges_of_report(evidence: Evidence, *, ranks: bool, count_rows: CountRows | None) -> dict[str, Any] | None:
    """What a report shows of rows or edges: none where they are not ranked; None where nothing tells edges apart."""
    if evidence.rows is not None:
        shown = StrangeRows(StrangeEdges(evidence)).shown(_NUM_SHOWN)
    elif evidence.features is None or evidence.graph.num_edges == 0:
        return None
    else:
        shown = StrangeEdges(evidence).shown(_NUM_SHOWN, count_rows) if ranks else {"edges": [], "of_rows": False}
    for end in (end for edge in shown["edges"] for end in edge["ends"]):
        end["id"] = cut_id(end["id"])
    return shown


def edge_lines(shown: Mapping[str, Any] | None) -> list[str]:
    """The first of the strange rows or edges of a report, a line each below a heading."""
    edges, titles = shown["edges"][:_NUM_LINES] if shown else [], EDGE_TITLES | ROW_TITLES
    lines = [f"the strangest {'rows of the table' if shown['of_rows'] else 'edges'}"] if shown and edges else []
    for edge in edges:
        ends = (" to " if "when" in edge else " and ").join(clip(end["id"], 24) for end in edge["ends"])
        name = ", ".join(filter(None, [ends, edge.get("amount"), edge.get("when")]))
        lines.append(f"{edge['rank']:>4}  {name:<60}  {titles[edge['evidence']]}")
    return lines
