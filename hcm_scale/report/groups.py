"""Groups among the first nodes of a ranking: odd nodes that are joined to each other are one finding, not twelve.

The first nodes and the edges between them are a small graph. Its connected components alone would not do: in a dense
graph a few chance edges, or one hub, join everything. An edge (u, v) counts where u and v have mostly the same
neighbours in this small graph, by the cosine of their closed neighbourhoods,

    |N[u] and N[v]| / sqrt(|N[u]| |N[v]|) >= 0.55,

which is 1 inside a clique, 2/3 along a ring, and little for an edge between two groups or to a hub. In a graph of two
sides the ends of an edge share no neighbours: there it counts where another node of the side of u, with mostly the
same neighbours by the cosine of open neighbourhoods, is joined to v too, and so the other way round. Nodes with fewer
than two such edges are removed, one after the other, which removes chains and loose ends; each connected component that
is left (a triangle, a ring, a clique) is a group. Cost: the square of the number of first nodes, at most a thousand,
and a binary search for each pair.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import contains
from hcm_scale.report.explain import label_of
from hcm_scale.score.table import legal_kinds

FIRST, MOST = 100, 1000  # nodes to look at: as many as are flagged, between these
_MIN_COSINE = 0.55


def num_first(table: Any) -> int:
    """How many first nodes of a ranked table, or of a RankedFile, to look for groups among."""
    flagged = pc.sum(table["flagged"]).as_py() or 0 if "flagged" in table.column_names else 0
    return min(table.num_rows, max(FIRST, min(flagged, MOST)))


def groups(graph: Graph, first: pa.Table) -> list[dict[str, Any]]:
    """The groups among the first nodes of a ranking, best rank first, and what their members share.

    `evidence` is the strongest kind of most members, `title` what it is called and `num_evidence` of how many it is;
    `label` what all are known as; `sides`, in a graph that has two, how many members each has.
    """
    rows, side, kinds = first.to_pylist(), two_sides(graph), legal_kinds(first.schema)
    positions = find_groups(graph, [row["node"] for row in rows], two_sided=side is not None)
    described = [_describe(graph, [rows[i] for i in members], side) for members in positions]
    return [one | {"title": kinds[one["evidence"]].title if one["evidence"] else ""} for one in described]


def _describe(graph: Graph, rows: list[dict[str, Any]], side: NDArray[np.int8] | None) -> dict[str, Any]:
    nodes = np.array([row["node"] for row in rows])
    labels = {label_of(row.get("y"), row.get("kind")) for row in rows}
    kinds = Counter(row["evidence"] for row in rows if row.get("evidence"))
    kind, count = kinds.most_common(1)[0] if kinds else (None, 0)
    return {
        "members": [{"id": row["id"], "rank": row["rank"]} for row in rows],
        "num_edges": int(np.count_nonzero(_joined(graph, nodes))) // 2,
        "evidence": kind,
        "num_evidence": count,
        "label": labels.pop() if len(labels) == 1 else None,
    } | ({} if side is None else {"sides": np.bincount(side[nodes], minlength=2).tolist()})


def find_groups(graph: Graph, nodes: Sequence[int], *, two_sided: bool = False) -> list[list[int]]:
    """Groups among `nodes`, as positions in them; the group of the first node first.

    >>> square_and_tail = Graph(np.array([0, 2, 4, 6, 9, 10]), np.array([1, 3, 0, 2, 1, 3, 0, 2, 4, 3], np.int32))
    >>> find_groups(square_and_tail, [4, 3, 2, 1, 0])
    [[1, 2, 3, 4]]
    """
    if not len(nodes):
        return []
    joined, itself = _joined(graph, np.asarray(nodes)), np.eye(len(nodes), dtype=bool)
    around = (joined if two_sided else joined | itself).astype(np.float32)
    size, shared = around.sum(axis=1), around @ around
    alike = shared >= np.maximum(_MIN_COSINE * np.sqrt(np.outer(size, size)) - 1e-6, 2.0)
    if two_sided:
        others = (alike & ~itself).astype(np.float32)
        alike = (others @ around > 0) & (around @ others > 0)
    edges = joined & alike
    while (loose := edges.sum(axis=1) == 1).any():  # down to the 2-core
        edges[loose] = False
        edges[:, loose] = False
    _, group_of = connected_components(edges, directed=False)
    groups = [np.flatnonzero(group_of == group).tolist() for group in dict.fromkeys(group_of.tolist())]
    return [group for group in groups if len(group) > 1]


def _joined(graph: Graph, nodes: NDArray[Any]) -> NDArray[np.bool_]:
    """Matrix of which nodes are joined, either way where edges have directions."""
    joined = np.stack([contains(graph, int(node), nodes) for node in nodes])
    return joined | joined.T
