"""Groups among the first nodes of a ranking: odd nodes that are joined to each other are one finding, not twelve.

The first nodes and the edges between them are a small graph. Simply its connected components would not do: in a dense
graph a few chance edges, or one hub, join everything. An edge (u, v) counts where u and v have mostly the same company
in this small graph, by the cosine of their closed neighbourhoods,

    |N[u] and N[v]| / sqrt(|N[u]| |N[v]|) >= 0.55,

which is 1 inside a clique, 2/3 along a ring, and little for an edge between two groups or to a hub. Nodes with fewer
than two such edges are let go, one after the other, so that chains and loose ends are none; what is left and connected
(a triangle, a ring, a clique) is a group. Cost: the square of the number of first nodes, a thousand at most, and a
binary search for each pair.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import contains
from hcm_scale.report.explain import label_of

FIRST, MOST = 100, 1000  # nodes that are looked at: so many, or as many as are flagged
_SAME_COMPANY = 0.55


def find_groups(graph: Graph, nodes: Sequence[int]) -> list[list[int]]:
    """Groups among `nodes`, as positions in them; the group of the first node first.

    >>> square_and_tail = Graph(np.array([0, 2, 4, 6, 9, 10]), np.array([1, 3, 0, 2, 1, 3, 0, 2, 4, 3], np.int32))
    >>> find_groups(square_and_tail, [4, 3, 2, 1, 0])
    [[1, 2, 3, 4]]
    """
    if not len(nodes):
        return []
    joined = _joined(graph, np.asarray(nodes))
    company = (joined | np.eye(len(joined), dtype=bool)).astype(np.float32)
    size = company.sum(axis=1)
    alike = joined & (company @ company >= _SAME_COMPANY * np.sqrt(np.outer(size, size)) - 1e-6)
    _let_go(alike)
    _, group_of = connected_components(alike, directed=False)
    groups = [np.flatnonzero(group_of == group).tolist() for group in dict.fromkeys(group_of.tolist())]
    return [group for group in groups if len(group) > 1]


def _let_go(edges: NDArray[np.bool_]) -> None:
    """Takes away the edges of nodes with fewer than two, until there is no such node: the 2-core, in place."""
    while (loose := edges.sum(axis=1) == 1).any():
        edges[loose] = False
        edges[:, loose] = False


def _joined(graph: Graph, nodes: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the nodes are joined, either way where arcs have directions."""
    found = np.stack([contains(graph, int(node), nodes) for node in nodes])
    return found | found.T


def _num_edges(joined: NDArray[np.bool_], members: Any) -> int:
    return int(np.count_nonzero(joined[np.ix_(members, members)])) // 2


def groups(graph: Graph, first: pa.Table) -> list[dict[str, Any]]:
    """The groups among the first nodes of a ranking, best rank first, and what their members share.

    `evidence` is the kind that speaks for most of them and `num_evidence` for how many; `label` what all are known as.
    """
    rows = first.to_pylist()
    nodes = [row["node"] for row in rows]
    return [_described(graph, [rows[i] for i in members]) for members in find_groups(graph, nodes)]


def num_first(table: pa.Table) -> int:
    """How many first nodes groups are looked for among."""
    flagged = pc.sum(table["flagged"]).as_py() or 0 if "flagged" in table.column_names else 0
    return min(table.num_rows, max(FIRST, min(flagged, MOST)))


def _described(graph: Graph, rows: list[dict[str, Any]]) -> dict[str, Any]:
    labels = {label_of(row.get("y"), row.get("kind")) for row in rows}
    kinds = Counter(row["evidence"] for row in rows if row.get("evidence"))
    kind, count = kinds.most_common(1)[0] if kinds else (None, 0)
    return {
        "members": [{"id": row["id"], "rank": row["rank"]} for row in rows],
        "num_edges": _num_edges(_joined(graph, np.array([row["node"] for row in rows])), np.arange(len(rows))),
        "evidence": kind,
        "num_evidence": count,
        "label": labels.pop() if len(labels) == 1 else None,
    }
