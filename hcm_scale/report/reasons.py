"""Which evidence made a node stand out, in numbers: a `Reason` for each kind that is notable, causes first.

A kind is notable where it ranks the node among the first 5 % of the nodes that it ranks; the strongest kind is given in
any case, but none that has nothing to say of the node (no triangle), nor one that weighs nothing. The strongest comes
first, but not one whose number is usual for nodes of like degree, as far as a hundredth tells; and where a column is
far off the kind that shows differences of attributes comes before what follows from them, neighbours that seem far or
unlike; where a value is extreme (`explain.py`) it is given in any case. The numbers of a reason are those of its kind
(`score/kinds/`). Of nodes of several types ranks are those among the same type.

`first_by_kind` lists the first nodes by each kind alone.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.kind import Kind, Reason
from hcm_scale.score.table import faint_kinds, kinds_of


def reasons(
    evidence: Evidence, node: int, row: dict[str, Any], far_off: bool = False, extreme: bool = False
) -> tuple[Reason, ...]:
    """The reasons of a node; `row` is its row of the ranked table; `far_off`, `extreme` say so of its attributes."""
    sizes, faint, kinds = (evidence.num_scored, evidence.num_ranked), faint_kinds(evidence.scores), evidence.kinds
    ranked = {
        kind.name: Reason(kind.name, int(row[kind.rank_column]), sizes[kind.ranks_all_nodes])
        for kind in kinds.values()
        if kind.name not in faint and kind.says_something(row)
    }
    around = Around(evidence, node, row)
    told = cache(lambda name: _with_numbers(around, kinds[name], ranked[name]))

    def is_usual(kind: Kind) -> bool:
        """Whether it says nothing but what is usual, as that its only neighbour looks as far away as others' do."""
        value, usual = (told(kind.name).value, told(kind.name).usual) if kind.follows_differences else (None, None)
        return value is not None and usual is not None and math.isclose(value, usual, rel_tol=0.01)

    # as `strongest` compares ranks, so that the column `evidence` names the first, unless its cause comes before it
    candidates = [
        kinds[name] for name in sorted(ranked, key=lambda n: (ranked[n].rank - 0.5) / max(1, ranked[n].num_ranked))
    ]
    notable = [kind for kind in candidates if ranked[kind.name].notable or (extreme and kind.shows_differences)]
    chosen = [kind for kind in notable if not is_usual(kind)]
    chosen = chosen or [kind for kind in candidates if not is_usual(kind)][:1] or candidates[:1]
    if row["degree"] == 1:  # of one edge, which says little
        chosen.sort(key=lambda kind: kind.needs_hops)
    first = next((i for i, kind in enumerate(chosen) if far_off and kind.follows_differences), None)
    cause = next((i for i, kind in enumerate(chosen) if kind.shows_differences), None)
    if first is not None and cause is not None and first < cause:
        chosen.insert(first, chosen.pop(cause))
    return tuple(told(kind.name) for kind in chosen)


def _with_numbers(around: Around, kind: Kind, reason: Reason) -> Reason:
    around.number = float(around.row[kind.column])
    return replace(reason, **kind.reason(around))


def first_by_kind(graph: Graph, table: Any, count: int) -> dict[str, list[dict[str, Any]]]:
    """By kind, the first `count` nodes: id, node, rank in the whole list and `place` by this kind; ties by node number.

    `table` is a pa.Table or a RankedFile. Nodes that share the last rank of a kind have nothing of it and are left out,
    as is a kind that ranks all nodes alike, such as triangles on a directed graph.
    """
    firsts, nodes = {}, table["node"].to_numpy()
    for kind in kinds_of(table).values():
        ranks = table[kind.rank_column].to_numpy()
        last = max(map_slices(len(ranks), lambda chunk, ranks=ranks: ranks[chunk].max()))  # type: ignore[misc]
        rows = _first_rows(ranks, nodes, count)
        firsts[kind.name] = [
            {"id": graph.external_id(int(nodes[row])), "node": int(nodes[row]), "rank": row + 1}
            | {"place": int(ranks[row])}
            for row in rows[ranks[rows] < last].tolist()
        ]
    return {name: rows for name, rows in firsts.items() if rows}


def _first_rows(ranks: NDArray[Any], nodes: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Rows with the smallest ranks, ties by node number: those of every slice, and of these the first."""

    def in_order(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows[np.lexsort((nodes[rows], ranks[rows]))][:count]

    def of_slice(chunk: slice) -> NDArray[np.int64]:
        own = ranks[chunk]
        last = min(count, len(own)) - 1
        return in_order(np.flatnonzero(own <= np.partition(own, last)[last]) + chunk.start)

    return in_order(np.concatenate(map_slices(len(ranks), of_slice)))
