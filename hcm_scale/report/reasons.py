"""Which evidence made a node stand out, in numbers: a `Reason` for each kind that is notable, the strongest first.

A kind is notable where it ranks the node among the first 5 % of the nodes that it ranks; the strongest kind is given in
any case. The numbers of a kind are taken from the edges around the node, because the scores behind them are
standardized; of nodes of several types ranks and what is usual are those of the same type:

| kind            | value                                               | usual                 | count              |
|-----------------|-----------------------------------------------------|-----------------------|--------------------|
| hop             | mean predicted hop to its neighbours                | median over all edges | neighbours         |
| closure         | mean predicted hop between neighbours in its group  | the same              | those in the group |
| context         | mean cosine distance of features to its neighbours' | median over all edges | neighbours         |
| context_closure | mean distance between neighbours in its group       | the same              | those in the group |
| attributes      | none: the differences of attributes say it          |                       |                    |
| cohesion        | triangles at the node: pairs of neighbours joined   | those expected        | neighbours         |
| (of two sides)  | neighbours shared with each of `pairs` others       | those expected        | neighbours         |

The group of a node are the neighbours with which it closes far triangles, each triangle by a pair of them (`far_pairs`,
among `pairs` in the group that are joined). Their number is known from the node's closure; the farthest triangles, by
their nearest edge, are those. Only the farthest 256 neighbours of a hub are considered. In a graph of two sides, where
nodes share neighbours and have no triangles, the others are those that its squares come from (`_sharing_others`).

`first_by_kind` lists the first nodes by each kind alone, `ordinary_rows` those that are suspiciously ordinary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices
from hcm_scale.features.signal import cosine_distance
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence, contains, neighbors_of
from hcm_scale.score.evidence import KINDS, OF_NEIGHBORS
from hcm_scale.score.table import ALIKE_RANK, has_kinds, kind_rank

KIND_TITLES = {
    "hop": "neighbours seem far",
    "closure": "group of strangers",
    "context": "unlike its neighbours",
    "context_closure": "group of unlike nodes",
    "attributes": "odd attributes",
    "cohesion": "tight group",
}
ORDINARY_TITLES = {  # cohesion has no lower tail
    "hop": "neighbours seem near",
    "closure": "no group of strangers",
    "context": "like its neighbours",
    "context_closure": "no group of unlike nodes",
    "attributes": "attributes as its surroundings predict",
}
_NOTABLE_SHARE = 0.05
_ORDINARY_SHARE = 0.1  # of the nodes: a kind is named where a node is among so many that have the least of it
_MAX_NEIGHBORS = 256
_MAX_STEPS = 1 << 20  # to others over the neighbours of a node, those of few neighbours first

Lengths = Callable[[int, NDArray[Any]], NDArray[np.float64]]  # of the edges from a node to some of its neighbours


def kind_title(kind: str) -> str:
    """The kind in words, with its name.

    >>> kind_title("hop")
    'neighbours seem far (hop)'
    """
    return f"{KIND_TITLES[kind]} ({kind})"


@dataclass(frozen=True)
class Reason:
    """One kind of evidence about a node: its rank among `num_ranked` nodes and the numbers of the table above."""

    kind: str
    rank: int | None = None
    num_ranked: int = 0
    value: float | None = None
    usual: float | None = None
    count: int = 0
    pairs: int = 0
    far_pairs: int = 0

    @property
    def notable(self) -> bool:
        return self.rank is not None and self.rank <= max(1.0, _NOTABLE_SHARE * self.num_ranked)


def reasons(evidence: Evidence, node: int, row: dict[str, Any]) -> tuple[Reason, ...]:
    """The reasons of a node, the strongest first; `row` is its row of the ranked table.

    A table without ranks by kind, such as one of hops alone, gives the hops.
    """
    if not has_kinds(evidence.scores):
        return (_with_numbers(evidence, node, Reason("hop"), row),) if row["degree"] else ()
    found = []
    for kind in KINDS:
        if row["degree"] or kind not in OF_NEIGHBORS:
            size = evidence.num_scored if kind in OF_NEIGHBORS else evidence.num_ranked
            found.append(Reason(kind, int(row[kind_rank(kind)]), size))
    found.sort(key=lambda reason: (reason.rank or 0) / max(1, reason.num_ranked))
    chosen = [reason for reason in found if reason.notable] or found[:1]
    _causes_first(chosen)
    return tuple(_with_numbers(evidence, node, reason, row) for reason in chosen)


def _causes_first(chosen: list[Reason]) -> None:
    """Moves odd attributes before what follows from them: neighbours that seem far, or unlike."""
    kinds = [reason.kind for reason in chosen]
    first = next((place for place, kind in enumerate(kinds) if kind in ("hop", "context")), len(kinds))
    if "attributes" in kinds[first:]:
        chosen.insert(first, chosen.pop(kinds.index("attributes")))


def _with_numbers(evidence: Evidence, node: int, reason: Reason, row: dict[str, Any]) -> Reason:
    """The reason with the numbers of its kind; without them where they need features and there are none."""
    of_hops = reason.kind in ("hop", "closure")
    if reason.kind == "cohesion" and evidence.graph.directed:
        return reason  # its triangles disregard directions, and the graph at hand has them
    if reason.kind == "cohesion" and evidence.two_sides is not None:
        shared, expected, num_others = _sharing_others(evidence.graph, node, *evidence.two_sides)
        return replace(reason, value=shared, usual=expected, count=int(row["degree"]), pairs=num_others)
    if reason.kind == "cohesion":
        num_joined = _num_joined(evidence.graph, node)
        expected = max(0.0, (1.0 + num_joined) / math.exp(row["cohesion"]) - 1.0)
        return replace(reason, value=num_joined, usual=expected, count=int(row["degree"]))
    if reason.kind == "attributes" or (not of_hops and evidence.features is None):
        return reason
    lengths = _hops(evidence) if of_hops else _distances(evidence)
    usual = evidence.usual_hop if of_hops else evidence.usual_distance
    if reason.kind in ("hop", "context"):
        own = lengths(node, neighbors_of(evidence.graph, node))
        own = own[np.isfinite(own)]
        return replace(reason, value=float(own.mean()) if len(own) else None, usual=usual, count=len(own))
    num_triangles = round(math.expm1(row[KINDS[reason.kind]]) * row["degree"])
    value, count, pairs, far_pairs = _far_group(evidence.graph, node, lengths, num_triangles)
    return replace(reason, value=value, usual=usual, count=count, pairs=pairs, far_pairs=far_pairs)


def _num_joined(graph: Graph, node: int) -> int:
    """How many pairs of a node's neighbours are joined."""
    own = neighbors_of(graph, node)
    return sum(len(np.intersect1d(own, neighbors_of(graph, other), assume_unique=True)) for other in own) // 2


def _sharing_others(graph: Graph, node: int, side: NDArray[Any], rates: NDArray[Any]) -> tuple[int, float, int]:
    """How many neighbours at least a node shares with each of some others, how many by chance, and how many others.

    They are those that share most beyond chance, as many as make (their number) * (the least excess)^2 largest.
    """
    own = neighbors_of(graph, node)
    few = own[np.argsort(graph.indptr[own + 1] - graph.indptr[own], kind="stable")]
    few = few[: max(1, np.searchsorted(np.cumsum(graph.indptr[few + 1] - graph.indptr[few]), _MAX_STEPS))]
    steps = np.concatenate([own[:0], *(neighbors_of(graph, each) for each in few)])
    others, shared = np.unique(steps, return_counts=True)
    others, shared = others[others != node], shared[others != node]
    if not len(others):
        return 0, 0.0, 0
    degree = graph.indptr[others + 1] - graph.indptr[others]
    expected = np.minimum(rates[1 - side[node]] * len(own) * degree, np.minimum(len(own), degree))
    excess = np.maximum(shared - expected, 0.0)
    order = np.argsort(-excess, kind="stable")
    chosen = order[: 1 + np.argmax(np.arange(1, 1 + len(order)) * excess[order] ** 2)]
    return int(shared[chosen].min()), float(expected[chosen].mean()), len(chosen)


def _hops(evidence: Evidence) -> Lengths:
    def lengths(node: int, others: NDArray[Any]) -> NDArray[np.float64]:
        numbers = evidence.edges.of_node(node)[np.searchsorted(neighbors_of(evidence.graph, node), others)]
        return np.asarray(evidence.edge_mean[numbers], np.float64)

    return lengths


def _distances(evidence: Evidence) -> Lengths:
    features = evidence.features
    assert features is not None
    return lambda node, others: cosine_distance(features[node], features[others])


def _far_group(graph: Graph, node: int, lengths: Lengths, num_triangles: int) -> tuple[float | None, int, int, int]:
    """The neighbours with which a node closes its farthest triangles.

    Returns the mean length of the pairs that close them, how many neighbours they are, how many pairs of these are
    joined, and how many pairs close the farthest triangles.
    """
    around = neighbors_of(graph, node)
    own = lengths(node, around)
    chosen = np.sort(np.argsort(-own, kind="stable")[:_MAX_NEIGHBORS])
    around, own = around[chosen], own[chosen]
    nearest, across, ends = [], [], []
    for i in range(len(around) - 1):
        joined = np.flatnonzero(contains(graph, int(around[i]), around[i + 1 :])) + i + 1
        links = lengths(int(around[i]), around[joined])
        nearest.append(np.minimum(np.minimum(own[i], own[joined]), links))
        across.append(links)
        ends.append(np.stack([np.full(len(joined), i), joined]))
    if num_triangles < 1 or not sum(map(len, nearest)):
        return None, 0, 0, 0
    farthest = np.argsort(-np.concatenate(nearest), kind="stable")[:num_triangles]
    pairs = np.concatenate(ends, axis=1)
    members = np.unique(pairs[:, farthest])
    num_joined = int(np.isin(pairs, members).all(axis=0).sum())
    return float(np.concatenate(across)[farthest].mean()), len(members), num_joined, len(farthest)


def first_by_kind(graph: Graph, table: pa.Table, count: int) -> dict[str, list[dict[str, Any]]]:
    """By kind, the first `count` nodes: id, node, rank in the whole list and `place` by this kind; ties by node number.

    A kind that ranks all nodes alike, as triangles do on a directed graph, is left out; a table without ranks by kind
    has none.
    """
    found = {}
    for kind in KINDS if has_kinds(table) else ():
        places, nodes = table[kind_rank(kind)].to_numpy(), table["node"].to_numpy()
        if len(places) and (places != places[0]).any():
            found[kind] = [
                {"id": graph.external_id(int(nodes[row])), "node": int(nodes[row]), "rank": row + 1}
                | {"place": int(places[row])}
                for row in _first_rows(places, nodes, count).tolist()
            ]
    return found


def _first_rows(places: NDArray[Any], nodes: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Rows with the smallest places, ties by node number: those of every slice, and of these the first."""

    def in_order(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows[np.lexsort((nodes[rows], places[rows]))][:count]

    def of_slice(part: slice) -> NDArray[np.int64]:
        own = places[part]
        last = min(count, len(own)) - 1
        return in_order(np.flatnonzero(own <= np.partition(own, last)[last]) + part.start)

    return in_order(np.concatenate(map_slices(len(places), of_slice)))


def ordinary_rows(table: pa.Table, count: int) -> NDArray[np.int64]:
    """Rows of the `count` most ordinary nodes, the first first, ties by node number."""
    return _first_rows(table[ALIKE_RANK].to_numpy(), table["node"].to_numpy(), count)


def ordinary_nodes(graph: Graph, table: pa.Table, rows: Sequence[int]) -> list[dict[str, Any]]:
    """What makes the first of `ordinary_rows` ordinary: id, node, rank in the whole list, place, share and kinds.

    `share` are the nodes that are as ordinary by all kinds together, `kinds` those of which the node has the least.
    """
    places = table[ALIKE_RANK].to_numpy()
    ordered = np.sort(places[places <= places[rows].max(initial=0)])  # nodes of a place up to this are as ordinary
    linked = int(np.count_nonzero(np.diff(graph.indptr)))
    sizes = {kind: linked if kind in OF_NEIGHBORS else graph.num_nodes for kind in ORDINARY_TITLES}
    ranks = {kind: table[kind_rank(kind)].to_numpy()[rows] / max(1, size) for kind, size in sizes.items()}
    found = []
    for i, row in enumerate(rows):
        least = sorted((-shares[i], kind) for kind, shares in ranks.items() if shares[i] > 1.0 - _ORDINARY_SHARE)
        node, place = table["node"][row].as_py(), int(places[row])
        share = np.searchsorted(ordered, place, "right") / len(places)
        about = {"rank": row + 1, "place": place, "share": share, "kinds": [kind for _, kind in least]}
        found.append({"id": graph.external_id(node), "node": node} | about)
    return found
