"""One explained node as a JSON-able dict: what a card of the page shows, in numbers, words and a picture.

In the picture, distance from the centre is the predicted hop: the explained node sits in the middle and each neighbour
on a spoke of its own, as far out as the model predicts. A direct neighbour belongs on the first ring, so whatever lies
farther out is what made the node stand out. A whisker along the spoke is one standard deviation over the parameter
samples; a dashed spoke with a hollow dot is an edge that purification dropped; faint arcs join neighbours that are
neighbours of each other, and those are seated side by side. `layout` chooses and places (coordinates in a square of
SIZE), `templates/neighborhood.html` draws. Only the farthest `limit` neighbours are shown, so a hub costs no more than
limit x log(degree).
"""

import math
from typing import Any

import numpy as np

from hcm_scale.graph.store import Graph
from hcm_scale.report import wording
from hcm_scale.report.evidence import Evidence, contains
from hcm_scale.report.explain import Explanation, Neighbor, explain

SIZE = 240
_CENTER = SIZE / 2
_OUTER = SIZE / 2 - 10
_INNER = 34
_DRAWN = 32  # neighbours


def num_rings(evidence: Evidence) -> int:
    """How many hops the pictures reach, the same for all nodes of a graph."""
    return max(2, math.ceil(evidence.highest_hop))


def card(evidence: Evidence, node: int, rings: int, limit: int) -> dict[str, Any]:
    """The explanation of a node, with at most `limit` neighbours listed and a picture of `rings` hops."""
    e = explain(evidence, node, num_neighbors=max(limit, _DRAWN))
    words: dict[str, Any] = {
        "lead": wording.opening_text(e),
        "told": [reason._asdict() for reason in wording.reason_texts(e)],
    }
    words |= {"against": wording.compared_with(e)} if e.type or not e.degree else {}
    words |= {"own_title": wording.own_title(e), "own_rows": wording.own_rows(e)} if e.own else {}
    return e.as_dict(limit) | words | {"dropped": wording.dropped_text(e), "picture": layout(evidence.graph, e, rings)}


def layout(graph: Graph, explanation: Explanation, num_rings: int, limit: int = _DRAWN) -> dict[str, Any]:
    """Places of the farthest `limit` scored neighbours around a node; rings stand for hops 1 .. num_rings."""
    chosen = [n for n in explanation.neighbors if n.hop is not None][:limit]
    links = _links(graph, chosen)
    # half a seat off the vertical, where the rings' numbers stand
    turns = [(seat + 0.5) / len(chosen) for seat in _seats(len(chosen), links)]
    return {
        "rings": [round(_radius(hop, num_rings), 1) for hop in range(1, num_rings + 1)],
        "points": [_point(neighbor, turn, num_rings) for neighbor, turn in zip(chosen, turns, strict=True)],
        "links": links,
        "hidden": explanation.degree - len(chosen),
    }


def _links(graph: Graph, chosen: list[Neighbor]) -> list[tuple[int, int]]:
    """The pairs (i, j), i < j, of chosen neighbours that are joined."""
    nodes = np.array([n.node for n in chosen], np.int64)
    links = []
    for i in range(len(nodes) - 1):
        joined = np.flatnonzero(contains(graph, int(nodes[i]), nodes[i + 1 :]))
        links += [(i, i + 1 + int(j)) for j in joined]
    return links


def _seats(count: int, links: list[tuple[int, int]]) -> list[int]:
    """A seat for each neighbour, depth first along the links, so that joined neighbours sit together."""
    joined: list[list[int]] = [[] for _ in range(count)]
    for i, j in links:
        joined[i].append(j)
        joined[j].append(i)
    seats: dict[int, int] = {}
    stack = list(range(count))[::-1]
    while stack:
        i = stack.pop()
        if i not in seats:
            seats[i] = len(seats)
            stack += sorted(joined[i], reverse=True)
    return [seats[i] for i in range(count)]


def _radius(hop: float, num_rings: int) -> float:
    """Distance from the centre: hop 1 lies on the inner ring, hop `num_rings` on the outer one."""
    share = (hop - 1.0) / max(num_rings - 1, 1)
    return _INNER + (_OUTER - _INNER) * min(max(share, 0.0), 1.0)


def _point(neighbor: Neighbor, turn: float, num_rings: int) -> dict[str, Any]:
    angle = 2.0 * math.pi * turn - math.pi / 2.0
    hop, std = neighbor.hop or 1.0, neighbor.std or 0.0
    near, far = (_polar(angle, _radius(hop + side * std, num_rings)) for side in (-1, 1))
    x, y = _polar(angle, _radius(hop, num_rings))
    edge = {"hop": hop, "dropped": bool(neighbor.dropped), "id": neighbor.id, "rank": neighbor.rank}
    return {"x": x, "y": y, "whisker": [*near, *far]} | edge


def _polar(angle: float, radius: float) -> tuple[float, float]:
    return round(_CENTER + radius * math.cos(angle), 1), round(_CENTER + radius * math.sin(angle), 1)
