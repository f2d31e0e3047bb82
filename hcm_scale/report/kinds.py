"""The kinds of evidence in plain words, and the first nodes by each kind alone.

| kind            | words                 |
|-----------------|-----------------------|
| hop             | neighbours seem far   |
| closure         | group of strangers    |
| context         | unlike its neighbours |
| context_closure | group of unlike nodes |
| attributes      | odd attributes        |

A table of scores without ranks by kind, such as one of hops alone, has no heads.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices
from hcm_scale.graph.store import Graph
from hcm_scale.score.evidence import KINDS
from hcm_scale.score.table import kind_rank

WORDS = {
    "hop": "neighbours seem far",
    "closure": "group of strangers",
    "context": "unlike its neighbours",
    "context_closure": "group of unlike nodes",
    "attributes": "odd attributes",
}


def named(kind: str) -> str:
    """The kind in words, with its name.

    >>> named("hop")
    'neighbours seem far (hop)'
    """
    return f"{WORDS[kind]} ({kind})"


def has_kinds(table: pa.Table) -> bool:
    """Whether the ranked table keeps the kinds of evidence apart."""
    return "evidence" in table.column_names


def heads(graph: Graph, table: pa.Table, count: int) -> dict[str, list[dict[str, Any]]]:
    """By kind, the first `count` nodes: id, node, rank in the whole list and `place` by this kind; ties by node number.

    A kind that tells no two nodes apart, as triangles do not on a directed graph, is left out.
    """
    found = {}
    for kind in KINDS if has_kinds(table) else ():
        places, nodes = table[kind_rank(kind)].to_numpy(), table["node"].to_numpy()
        if _differ(places):
            rows = _first(places, nodes, count).tolist()
            found[kind] = [
                {"id": graph.external_id(int(nodes[row])), "node": int(nodes[row]), "rank": row + 1}
                | {"place": int(places[row])}
                for row in rows
            ]
    return found


def _differ(places: NDArray[Any]) -> bool:
    found = []
    in_slices(len(places), lambda part: found.append((places[part] != places[0]).any()))
    return any(found)


def _first(places: NDArray[Any], nodes: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Rows with the smallest places, ties by node number: those of every slice, and of these the first."""
    found: list[NDArray[np.int64]] = []

    def in_order(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows[np.lexsort((nodes[rows], places[rows]))][:count]

    def look(part: slice) -> None:
        own = places[part]
        last = min(count, len(own)) - 1
        found.append(in_order(np.flatnonzero(own <= np.partition(own, last)[last]) + part.start))

    in_slices(len(places), look)
    return in_order(np.concatenate(found))
