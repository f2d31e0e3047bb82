"""Strange edges for a reader: the ranked table of edges, and why one edge is where it is, in numbers and in words.

`StrangeEdges` joins what `Evidence` holds with the surprise of every edge (edges/surprise.py), which is computed
once, when it is first asked for. An explanation says what the model, attributes and neighbours say of the edge, what is
usual for edges of like degrees, and how many edges are as strange: of all, or where they are over four million of some
evenly spaced ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.edges.rows import EdgeRows, with_edge_columns
from hcm_scale.edges.surprise import (
    KINDS,
    EdgeData,
    EdgeNumbers,
    EdgeScale,
    NewNodes,
    RankedEdges,
    edge_scale,
    rank_edges,
)
from hcm_scale.features.purify import attribute_trust
from hcm_scale.report.evidence import Evidence, contains
from hcm_scale.report.explain import EdgeExplanation, EdgeReason, end_differences, finite, own_rows
from hcm_scale.report.wording import edge_sentence

CountRows = Callable[["StrangeEdges", NDArray[np.int64]], NDArray[np.int64] | None]
_FEW = 1 << 22  # edges that are ranked in seconds
_CHUNK = 1 << 18  # edges of a table
_RATE = 0.1  # of false discoveries, where nodes were not judged


@dataclass(frozen=True, eq=False)
class StrangeEdges:
    """The edges of a scored graph by how strange they are, and what is told of pairs with nodes that came later."""

    evidence: Evidence
    new_nodes: NewNodes | None = None

    @cached_property
    def data(self) -> EdgeData:
        e = self.evidence
        assert e.features is not None
        group = np.zeros(e.graph.num_nodes, np.uint8) if e.types else None
        for number, nodes in enumerate(e.types):
            group[nodes] = number  # type: ignore[index]
        trust = attribute_trust(e.graph.indptr, e.graph.indices, e.features)
        data = EdgeData(e.edges, e.edge_mean, e.edge_var, e.features, group, trust)
        return data if self.new_nodes is None else data.with_new_nodes(self.new_nodes)

    @cached_property
    def scale(self) -> EdgeScale:
        return edge_scale(self.data)

    @cached_property
    def ranked(self) -> RankedEdges:
        return rank_edges(self.data, self.scale, self.rate)

    @property
    def rate(self) -> float:
        """The false-discovery rate of the flags, that of the nodes."""
        return _RATE if self.evidence.fdr is None else self.evidence.fdr

    @cached_property
    def flags_end(self) -> float:
        """The largest p that makes an edge stand out among those of the graph; where none does, that of one more."""
        p, flagged, rate = self.ranked.verdict
        return float(p[flagged].max(initial=rate / max(1, len(p))))

    def first(self, top: int | None, flagged: bool = False) -> NDArray[np.int64]:
        """Edge numbers, the strangest first: all, the first `top`, or those among them that are flagged."""
        most = int(np.count_nonzero(self.ranked.verdict.flagged)) if flagged else self.evidence.graph.num_edges
        return self.ranked.first(None if top is None and not flagged else min(most if top is None else top, most))

    def nodes_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ends of some edges, each once."""
        return np.unique(self.data.ends(np.sort(numbers)))

    def tables(self, numbers: NDArray[np.int64]) -> Iterator[pa.Table]:
        """The rows of the first edges of the list, some at a time; at least one table."""
        for first in range(0, max(1, len(numbers)), _CHUNK):
            some = numbers[first : first + _CHUNK]
            yield self.rows(some, 1 + first + np.arange(len(some)))

    def rows(self, number: NDArray[np.int64], ranks: NDArray[np.int64]) -> pa.Table:
        """The rows of some edges, which have these ranks."""
        numbers, ids = self.data.numbers(number), self.evidence.graph.ids
        ends = (pa.array(end, pa.int64()) for end in (numbers.left, numbers.right))
        source, target = (end if ids is None else ids.take(end) for end in ends)
        return pa.table({"rank": ranks, "source": source, "target": target} | self.columns(numbers, self.flags_end))

    def columns(self, numbers: EdgeNumbers, flags_end: float) -> dict[str, Any]:
        """What is told of pairs of nodes beside their ends and ranks; of edges of the graph that of the ranked list."""
        surprises = self.scale.surprises(numbers, self.data.classes(numbers))
        surprise = surprises.sum(axis=0)
        p = self.scale.judge(surprise, self.rate).p
        hop, var, around, unlike = (pa.array(values, from_pandas=True) for values in numbers[2:6])
        return {
            **{"surprise": surprise, "p": p, "flagged": p <= flags_end},
            "evidence": pa.array(KINDS).take(pa.array(surprises.argmax(axis=0))),
            **{"hop": hop, "hop_variance": var, "around": around, "unlike": unlike},
            **{"shared": numbers.shared, "expected_shared": numbers.expected.astype(np.float32)},
            **{"source_degree": numbers.others[0] + 1, "target_degree": numbers.others[1] + 1},
        }

    def table(self, top: int | None = None, flagged: bool = False) -> pa.Table:
        """One row an edge, the strangest first."""
        return pa.concat_tables(self.tables(self.first(top, flagged)))

    def shown(self, top: int, count_rows: CountRows | None = None) -> dict[str, Any]:
        """What a page shows of the first `top` edges, and how many are flagged.

        `count_rows` says how many rows of the user's table lie on each, where some have several.
        """
        chosen, graph, ranks = self.first(top), self.evidence.graph, self.evidence.row_of_node + 1
        counts = graph.info.get("ingest", {}).get("counts", {})
        is_repeated = bool(counts.get("repeated_edges", 0) + counts.get("reversed_edges", 0))
        rows = count_rows(self, chosen) if count_rows and is_repeated else None
        pairs = np.stack(self.data.ends(chosen), axis=1).tolist()
        edges = []
        for number, (row, pair) in enumerate(zip(self.table(top).to_pylist(), pairs, strict=True)):
            ends = [{"id": graph.external_id(node), "rank": int(ranks[node])} for node in pair]
            shown = {name: row[name] for name in ("rank", "p", "flagged", "evidence")}
            shown |= {"ends": ends, "rows": None if rows is None else int(rows[number])}
            edges.append(shown | {"reason": edge_sentence(self.explain(*pair))})
        num_flagged = int(np.count_nonzero(self.ranked.verdict.flagged))
        counts = {"num_edges": graph.num_edges, "num_flagged": num_flagged, "fdr": self.rate}
        return {"edges": edges, "of_rows": False} | counts

    def number_of(self, left: int, right: int) -> int:
        """The number of the edge between two nodes; ValueError where there is none."""
        graph, (number,) = self.evidence.graph, self.evidence.edges.find([left], [right])
        if number < 0:
            ends = f"{graph.external_id(left)!r} and {graph.external_id(right)!r}"
            raise ValueError(f"no edge {'leads from' if graph.directed else 'joins'} {ends}; legal are two neighbours")
        return int(number)

    def ends_of(self, text: str) -> tuple[int, int]:
        """The two nodes that `A,B` names, whatever commas their ids hold."""
        graph, error = self.evidence.graph, ValueError(f"edge={text} is not legal: two ids with a comma between: A,B")
        for at in (position for position, sign in enumerate(text) if sign == ","):
            try:
                return graph.node_of(text[:at].strip()), graph.node_of(text[at + 1 :].strip())
            except ValueError as one:
                error = one if text.count(",") == 1 else error
        raise error

    def explain(self, left: int, right: int) -> EdgeExplanation:
        """Why the edge between two nodes is where it is."""
        graph, scale = self.evidence.graph, self.scale
        number = self.number_of(left, right)
        numbers = self.data.numbers(np.array([number]))
        classes = self.data.classes(numbers)
        surprise, usual = scale.surprises(numbers, classes)[:, 0], scale.usual[:, scale.columns_of(classes)[0]]
        shares = (_share_above(others, own) for others, own in zip(scale.sample, surprise, strict=True))
        reasons = [
            EdgeReason(kind, finite(value), finite(middle), share)
            for kind, value, middle, share in zip(KINDS, numbers.display_values()[:, 0], usual, shares, strict=True)
        ]
        is_ranked = graph.num_edges <= _FEW
        own, others = surprise.sum(keepdims=True), self.ranked.surprise if is_ranked else scale.sample.sum(axis=0)
        purified = self.evidence.purified
        return EdgeExplanation(
            ends=(graph.external_id(left), graph.external_id(right)),
            degrees=(int(self.data.degree[left]), int(self.data.degree[right])),
            num_edges=graph.num_edges,
            share=_share_above(others, own[0]),
            p=float(scale.judge(own, self.rate).p[0]),
            flagged=bool(self.ranked.verdict.flagged[number]) if is_ranked else None,
            fdr=self.rate,
            std=None if numbers.var[0] != numbers.var[0] else float(np.sqrt(numbers.var[0])),
            reasons=tuple(sorted(reasons, key=lambda reason: reason.share)),
            differences=end_differences(self.evidence, left, right),
            own=own_rows(self.evidence, left, right),
            dropped=None if purified is None else not bool(contains(purified, left, np.array([right]))[0]),
        )


def joined_rows(rows: EdgeRows, edges: StrangeEdges, chosen: NDArray[np.int64], is_some: bool) -> Iterator[pa.Table]:
    """Rows of an edge table: rank of the edge, all columns, its other numbers; `is_some`: those of chosen edges."""
    rank_of = np.zeros(edges.evidence.graph.num_edges + 1, np.int64)  # the last is of no edge, -1
    rank_of[chosen] = np.arange(1, 1 + len(chosen))
    for batch, left, right in rows.batches():
        edge, whole = edges.evidence.edges.find(left, right), pa.Table.from_batches([batch])
        is_ranked = rank_of[edge] > 0
        distinct, number = np.unique(edge[is_ranked], return_inverse=True)
        numbers = edges.rows(distinct, rank_of[distinct]).drop_columns(["source", "target"])
        if is_some:
            yield with_edge_columns(whole.filter(pa.array(is_ranked)), numbers.take(pa.array(number)))
        else:
            row = np.zeros(len(batch), np.int64)
            row[is_ranked] = number
            yield with_edge_columns(whole, numbers.take(pa.array(row, mask=~is_ranked)))


def by_rank(tables: Iterator[pa.Table]) -> pa.Table:
    """All rows, by the rank in their first column and as they stand."""
    whole = pa.concat_tables(tables)
    return whole.take(pa.array(np.argsort(whole.column(0).to_numpy(), kind="stable")))


def _share_above(usual: NDArray[np.float64], own: float) -> float:
    """The share of edges that have as much."""
    return float(np.count_nonzero(usual >= own - 1e-9) / max(1, len(usual)))
