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


def heads(table: pa.Table, count: int) -> dict[str, list[dict[str, Any]]]:
    """By kind, the first `count` nodes: id, node, rank in the whole list and `place` by this kind; ties by node number.

    A kind that tells no two nodes apart, as triangles do not on a directed graph, is left out.
    """
    found = {}
    for kind in KINDS if has_kinds(table) else ():
        places = table[kind_rank(kind)].to_numpy()
        if len(places) and (places != places[0]).any():
            rows = _first(places, table["node"].to_numpy(), count)
            chosen = table.select(["id", "node", "rank"]).take(pa.array(rows)).to_pylist()
            found[kind] = [row | {"place": int(places[i])} for row, i in zip(chosen, rows, strict=True)]
    return found


def _first(places: Any, nodes: Any, count: int) -> Any:
    """Rows with the smallest places, without sorting all of them."""
    rows = np.flatnonzero(places <= count)
    if len(rows) < min(count, len(places)):  # more than that share the first place
        last = np.partition(places, min(count, len(places)) - 1)[min(count, len(places)) - 1]
        rows = np.flatnonzero(places <= last)
    return rows[np.lexsort((nodes[rows], places[rows]))][:count]
