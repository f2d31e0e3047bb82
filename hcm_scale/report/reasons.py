"""Which evidence made a node stand out, in numbers: a `Reason` for each kind that is notable, causes first.

A kind is notable where it ranks the node among the first 5 % of the nodes that it ranks; the strongest kind is given in
any case, but none of triangles where there is no triangle to tell of, nor one that weighs nothing. The strongest comes
first, except that where a column is far off odd attributes come before what follows from them, neighbours that seem far
or unlike, and where a value is extreme before everything (`explain.py`). Numbers are of the edges around a node; scores
are standardized. Of nodes of several types ranks are those among the same type.

| kind            | value                                               | usual                   | count              |
|-----------------|-----------------------------------------------------|-------------------------|--------------------|
| hop             | mean predicted hop to its neighbours                | median, nodes like it   | neighbours         |
| closure         | mean predicted hop between neighbours in its group  | median over all edges   | those in the group |
| context         | mean cosine distance of features to its neighbours' | median, nodes like it   | neighbours         |
| context_closure | mean distance between neighbours in its group       | median over all edges   | those in the group |
| attributes      | none: the differences of attributes say it          |                         |                    |
| cohesion        | triangles at the node: pairs of neighbours joined   | those expected          | neighbours         |
| (of two sides)  | neighbours shared with each of `pairs` others       | those expected          | neighbours         |

Nodes like it are those of like degree and type (`Evidence.usual`). The group of a node are the neighbours with which it
closes far triangles, each triangle by a pair of them (`far_pairs`, among `pairs` in the group that are joined). Their
number is known from the node's closure and cohesion; the farthest triangles, by their nearest edge, are those. Of a
hub, whose neighbours have over a million edges, no group is told: it costs a pass or two over its neighbours. In a
graph of two sides, where nodes share neighbours and have no triangles, the others are those that its squares come from
(`_sharing_others`).

`first_by_kind` lists the first nodes by each kind alone, `kind_shares` says what the scores of the first are made of,
`ordinary_rows` are the nodes that are suspiciously ordinary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices
from hcm_scale.features.purify import cosine_distance
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence, neighbors_of
from hcm_scale.score.closure import closure_unit
from hcm_scale.score.evidence import KINDS, OF_NEIGHBORS, KindNumbers, surprise_gains
from hcm_scale.score.nodes import mean_degree
from hcm_scale.score.table import ALIKE_RANK, faint_kinds, has_kinds, kind_rank, kinds_of, own_kinds, ranked_by


class _Titles(dict[str, str]):
    """Titles of kinds; one of a plug-in is called by its name."""

    def __missing__(self, kind: str) -> str:
        return kind.replace("_", " ")


KIND_TITLES = _Titles(
    hop="neighbours seem far",
    closure="group of strangers",
    context="unlike its neighbours",
    context_closure="group of unlike nodes",
    attributes="odd attributes",
    cohesion="tight group",
)
ORDINARY_TITLES = {  # cohesion has no lower tail
    "hop": "neighbours seem near",
    "closure": "no group of strangers",
    "context": "like its neighbours",
    "context_closure": "no group of unlike nodes",
    "attributes": "attributes as its surroundings predict",
}
_NOTABLE_SHARE = 0.05
_ORDINARY_SHARE = 0.1  # of the nodes: a kind is named where a node is among so many that have the least of it
_OF_ALL = ("attributes", "cohesion")  # rank nodes without neighbours too
_OF_TRIANGLES = ("closure", "context_closure", "cohesion")  # 0 says nothing, and less that there are too few
_MOST_NEIGHBORS = 1 << 10  # of a node that shows what is usual
_BLOCK_NODES, _BLOCK_PAIRS = 1 << 8, 1 << 16
_MAX_STEPS = 1 << 20  # over the edges of a node's neighbours, a third of a second; to others, those of few edges first

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


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


@dataclass(frozen=True)
class OwnReason(Reason):
    """A kind of a plug-in: its number of the node, and the plug-in's sentence."""

    words: str = ""


def _ranks_all(kind: str) -> bool:
    """Whether nodes without neighbours are ranked by the kind too."""
    return kind in _OF_ALL or kind not in OF_NEIGHBORS


def reasons(
    evidence: Evidence, node: int, row: dict[str, Any], far_off: bool = False, extreme: bool = False
) -> tuple[Reason, ...]:
    """The reasons of a node; `row` is its row of the ranked table; `far_off`, `extreme` say so of its attributes.

    A table without ranks by kind, such as one of hops alone, gives the hops.
    """
    if not has_kinds(evidence.scores):
        return (_with_numbers(evidence, node, Reason("hop"), row, None),) if row["degree"] else ()
    found: list[Reason] = []
    sizes = evidence.num_scored, evidence.num_ranked
    faint, own = faint_kinds(evidence.scores), own_kinds(evidence.scores)
    for kind, column in kinds_of(evidence.scores).items():
        if kind in faint:
            continue
        rank, size = int(row[kind_rank(kind)]), sizes[_ranks_all(kind)]
        if kind in own:
            found.append(OwnReason(kind, rank, size, float(row[column]), words=own[kind]["words"]))
        elif row[column] > 0.0 if kind in _OF_TRIANGLES else row["degree"] or kind in _OF_ALL:
            found.append(Reason(kind, rank, size))
    # as `strongest` compares places, so that the column `evidence` names the first, unless its cause comes before it
    found.sort(key=lambda r: (row[kind_rank(r.kind)] - 0.5) / max(1, sizes[r.kind not in OF_NEIGHBORS]))
    chosen = [reason for reason in found if reason.notable or (extreme and reason.kind == "attributes")] or found[:1]
    kinds = [reason.kind for reason in chosen]
    follows = kinds if extreme else ("hop", "context") if far_off else ()
    first = next((place for place, kind in enumerate(kinds) if kind in follows), len(kinds))
    if "attributes" in kinds[first:]:
        chosen.insert(first, chosen.pop(kinds.index("attributes")))
    has_pairs = not evidence.graph.directed and any(kind in _OF_TRIANGLES for kind in kinds)
    pairs = _pairs_among(evidence, neighbors_of(evidence.graph, node)) if has_pairs else None
    return tuple(_with_numbers(evidence, node, reason, row, pairs) for reason in chosen)


def _with_numbers(evidence: Evidence, node: int, reason: Reason, row: dict[str, Any], pairs: Pairs | None) -> Reason:
    """The reason with the numbers of its kind, where they are known; `pairs` are None of directed edges and of hubs."""
    kind = reason.kind
    if kind == "cohesion" and not evidence.graph.directed and evidence.two_sides is not None:
        shared, expected, num_others = _sharing_others(evidence.graph, node, *evidence.two_sides)
        if shared <= expected:  # with others of very different degrees no one number shows it
            return reason
        return replace(reason, value=shared, usual=expected, count=int(row["degree"]), pairs=num_others)
    if kind == "cohesion" and pairs is not None:
        usual = _expected_triangles(len(pairs[1]), row)
        return replace(reason, value=len(pairs[1]), usual=usual, count=int(row["degree"]))
    if _ranks_all(kind) or (kind.startswith("context") and evidence.features is None):
        return reason
    if pairs is None and kind in _OF_TRIANGLES:
        return reason
    own = _own_lengths(evidence, kind, node)
    if pairs is not None and kind in _OF_TRIANGLES:
        reason = replace(reason, usual=evidence.usual_hop if kind == "closure" else evidence.usual_distance)
        across = _lengths(evidence, kind, neighbors_of(evidence.graph, node)[pairs[0]], pairs[1])
        unit = closure_unit(row["degree"], _expected_triangles(len(pairs[1]), row))
        return _with_group(reason, own, across, pairs[0], round(math.expm1(row[KINDS[kind]]) * unit))

    def median(nodes: NDArray[np.int64]) -> float:
        means = [_mean(_own_lengths(evidence, kind, int(other), _MOST_NEIGHBORS)) for other in nodes]
        return float(np.median([mean for mean in means if mean is not None] or [np.nan]))

    usual = evidence.usual(kind, node, median)
    return replace(reason, value=_mean(own), usual=usual, count=int(np.isfinite(own).sum()))


def _expected_triangles(num_triangles: int, row: dict[str, Any]) -> float:
    """Triangles that were expected of a node that has so many, by its cohesion."""
    return max(0.0, (1.0 + num_triangles) / math.exp(row["cohesion"]) - 1.0)


def _own_lengths(evidence: Evidence, kind: str, node: int, most: int | None = None) -> NDArray[np.float64]:
    """Lengths of the edges to a node's neighbours; of evenly spaced ones where they are more than `most`."""
    around = neighbors_of(evidence.graph, node)
    step = max(1, len(around) // (most or len(around) or 1))
    around, numbers = around[::step], evidence.edges.of_node(node, step)
    return _lengths(evidence, kind, np.stack([np.full_like(around, node), around]), numbers)


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


def _lengths(evidence: Evidence, kind: str, ends: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Predicted hops of edges, or distances of the features at their ends, (2, edges)."""
    if kind in ("hop", "closure") or evidence.features is None:
        return np.asarray(evidence.edge_mean[numbers], np.float64)
    blocks = [ends[:, first : first + _BLOCK_PAIRS] for first in range(0, len(numbers), _BLOCK_PAIRS)]
    return np.concatenate([np.zeros(0), *(cosine_distance(*evidence.features[block]) for block in blocks)])


def _mean(lengths: NDArray[np.float64]) -> float | None:
    known = lengths[np.isfinite(lengths)]
    return float(known.mean()) if len(known) else None


def _pairs_among(evidence: Evidence, nodes: NDArray[Any]) -> Pairs | None:
    """Every edge among some nodes, which are sorted: its ends as places among them, (2, pairs), and its number.

    None where more than _MAX_STEPS edges of theirs would be looked at.
    """
    graph, start, found = evidence.graph, evidence.edges.start, [np.zeros((3, 0), np.int64)]
    if (start[nodes + 1] - start[nodes]).sum() > _MAX_STEPS:
        return None
    for first in range(0, len(nodes), _BLOCK_NODES):
        block = nodes[first : first + _BLOCK_NODES].astype(np.int64)
        sizes = start[block + 1] - start[block]
        numbers = np.concatenate([np.arange(start[node], start[node + 1]) for node in block])
        ends = graph.indices[numbers + np.repeat(graph.indptr[block + 1] - start[block + 1], sizes)]
        places = np.minimum(np.searchsorted(nodes, ends), len(nodes) - 1)
        pairs = np.stack([np.repeat(np.arange(first, first + len(block)), sizes), places, numbers])
        found.append(pairs[:, nodes[places] == ends])
    every = np.concatenate(found, axis=1)
    return every[:2], every[2]


def _with_group(reason: Reason, own: Any, across: Any, ends: NDArray[np.int64], num_triangles: int) -> Reason:
    """The reason with the neighbours that close the farthest triangles, by lengths to and between neighbours."""
    farthest = np.argsort(-np.minimum(own[ends].min(axis=0), across), kind="stable")[:num_triangles]
    if not len(farthest):
        return reason
    members = np.unique(ends[:, farthest])
    num_joined, value = int(np.isin(ends, members).all(axis=0).sum()), float(across[farthest].mean())
    return replace(reason, value=value, count=len(members), pairs=num_joined, far_pairs=len(farthest))


def kind_shares(ranked: Any, trust: float = 1.0) -> dict[str, float]:
    """By kind, its share of the scores of the first hundredth of the nodes, the largest first.

    `trust` is that of the run in attributes (features/purify.py). Empty where the gains of kinds do not add up to the
    scores that rank, as where another graph's nodes are the scale.
    """
    if ranked_by(ranked) != "score" or not has_kinds(ranked):
        return {}
    columns = kinds_of(ranked)
    table = ranked.select([*dict.fromkeys(["degree", "score", *columns.values()])])
    first, degree = slice(0, -(-ranked.num_rows // 100)), table["degree"].to_numpy()
    of_kind = {kind: table[name].to_numpy() for kind, name in columns.items()}
    own = KindNumbers(of_kind, degree > 0, mean_degree(degree), trust)
    gains = {k: own.weight(k) * surprise_gains(k, own.of_kind[k], own.known(k)).of(first)[1] for k in of_kind}
    score = table["score"].to_numpy()[first]
    if not score.sum() or not np.allclose(sum(gains.values()), score, rtol=1e-6):
        return {}
    return {kind: float(gains[kind].sum() / score.sum()) for kind in sorted(gains, key=lambda kind: -gains[kind].sum())}


def first_by_kind(graph: Graph, table: Any, count: int) -> dict[str, list[dict[str, Any]]]:
    """By kind, the first `count` nodes: id, node, rank in the whole list and `place` by this kind; ties by node number.

    `table` is a pa.Table or a RankedFile. A kind that ranks all nodes alike, as triangles do on a directed graph, is
    left out; a table without ranks by kind has none.
    """
    found, nodes = {}, table["node"].to_numpy()
    for kind in kinds_of(table) if has_kinds(table) else ():
        places = table[kind_rank(kind)].to_numpy()
        if tell_apart(places):
            found[kind] = [
                {"id": graph.external_id(int(nodes[row])), "node": int(nodes[row]), "rank": row + 1}
                | {"place": int(places[row])}
                for row in _first_rows(places, nodes, count).tolist()
            ]
    return found


def tell_apart(places: NDArray[Any]) -> bool:
    """Whether any two places differ."""
    return any(map_slices(len(places), lambda part: (places[part] != places[0]).any()))


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
