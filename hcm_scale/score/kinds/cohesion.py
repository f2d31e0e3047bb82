"""Tight group: the node's neighbours are joined to each other, or share others, more than their degrees explain.

It asks of all edges, whatever the model says of them: a ring of accounts whose attributes are ordinary shows by its
triangles alone.

    cohesion(v) = log(1 + triangles at v) - log(1 + expected(v)), and 0 without triangles (triangles.py).

A directed graph counts them without directions, and one of two sides, which has none, counts squares. Where groups have
no meaning it must cost nothing, so only its tail counts, and there as much as the kinds of neighbours together: one
sure witness is enough. Its tail falls faster than its bulk on most graphs; p follows that, the sum does not.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import run_in_slices
from hcm_scale.graph.store import Graph
from hcm_scale.score.kinds.around import MAX_STEPS, Around, neighbors_of
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import OF_LOGARITHMS, Column, Kind, Reason, TailOnly, Values
from hcm_scale.score.kinds.phrases import joined_pairs
from hcm_scale.score.triangles import Triangles


def cohesion(triangles: Triangles) -> Values:
    """Logarithm of the triangles of every node over those expected, (n,).

    >>> from hcm_scale.score.edge_index import edge_index
    >>> from hcm_scale.score.triangles import count_and_expect
    >>> triangle_and_pair = edge_index(np.array([0, 2, 4, 6, 7, 8]), np.array([1, 2, 0, 2, 0, 1, 4, 3], np.int32))
    >>> cohesion(count_and_expect(triangle_and_pair)).round(2).tolist()
    [0.43, 0.43, 0.43, 0.0, 0.0]
    """
    counted, expected, _ = triangles
    out = np.empty(len(counted))

    def fill(part: slice) -> None:
        over = np.log1p(counted[part]) - np.log1p(expected[part])
        out[part] = np.where(counted[part] > 0, over, 0.0)

    run_in_slices(len(out), fill)
    return out


def expected_triangles(num_triangles: int, row: Mapping[str, Any]) -> float:
    """Triangles that were expected of a node that has so many, by its number in this row of the ranked table."""
    return max(0.0, (1.0 + num_triangles) / math.exp(row[COHESION.column]) - 1.0)


def _reason(around: Around) -> dict[str, Any]:
    """Pairs of neighbours that are joined; in a graph of two sides, neighbours shared with each of `pairs` others."""
    graph = around.evidence.graph
    if not graph.directed and around.evidence.two_sides is not None:
        shared, expected, num_others = _sharing_others(graph, around.node, *around.evidence.two_sides)
        if shared <= expected:  # with others of very different degrees no one number shows it
            return {}
        return {"value": shared, "usual": expected, "count": around.degree, "pairs": num_others}
    if around.pairs is None:
        return {}
    num_triangles = len(around.pairs[1])
    usual = expected_triangles(num_triangles, around.row)
    return {"value": num_triangles, "usual": usual, "count": around.degree}


def _sharing_others(graph: Graph, node: int, side: NDArray[Any], rates: NDArray[Any]) -> tuple[int, float, int]:
    """How many neighbours at least a node shares with each of some others, how many by chance, and how many others.

    They are those that share most beyond chance, as many as make (their number) * (the least excess)^2 largest.
    """
    own = neighbors_of(graph, node)
    few = own[np.argsort(graph.indptr[own + 1] - graph.indptr[own], kind="stable")]
    few = few[: max(1, np.searchsorted(np.cumsum(graph.indptr[few + 1] - graph.indptr[few]), MAX_STEPS))]
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


def _sentence(_: Any, r: Reason) -> str:
    if r.value is None or r.usual is None:
        return "more of its neighbours are joined to each other, or to the same others, than their degrees explain"
    usual = f"{r.usual:,.1f}" if r.usual >= 0.1 else f"{r.usual:.1g}"
    if r.pairs:  # of two sides
        least = "all" if r.value == r.count else f"{r.value:,.0f} {'or more ' if r.pairs > 1 else ''}of"
        whom = f"each of {r.pairs:,} others" if r.pairs > 1 else "another"
        return f"it shares {least} its {r.count:,} neighbours with {whom}, where degrees lead to expect {usual}"
    return f"{joined_pairs(int(r.value), r.count, r.count)}, where their degrees lead to expect {usual} such pairs"


def _numbers(inputs: KindInputs) -> list[Values]:
    return [cohesion(inputs.triangles)]


COHESION = Kind(
    name="cohesion",
    columns={"cohesion": Column("triangles, or squares, over those expected (log)", title="Tight group")},
    title="tight group",
    short="Tight",
    help="Its neighbours are joined to each other, or in a graph of two sides to the same others, far more than "
    "their numbers of neighbours explain. It counts beyond the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    ranks_all_nodes=True,  # without neighbours there are no triangles
    zero_says_nothing=True,
    tail=OF_LOGARITHMS._replace(least_of_few=0.25),
    tail_only=TailOnly(least=math.log(1.5)),  # one triangle where a third is expected, two where one is
    reason=_reason,
    sentence=_sentence,
)
