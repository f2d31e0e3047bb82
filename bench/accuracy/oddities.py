"""Odd groups planted into a synthetic world without changing its degrees, so that the degree does not give them away.

| odd        | what is planted, all with the attributes that the nodes have                                            |
|------------|---------------------------------------------------------------------------------------------------------|
| group      | cliques of 8 to 15: the zoo's clique, degrees kept                                                      |
| half_dense | groups of 10 to 60, half of the pairs joined                                                            |
| block      | 6 to 12 nodes, each joined to each of as many others: users and shops in a bipartite world              |
| half_block | 10 to 30 nodes and as many others, half of the pairs between them joined                                |
| ring_kept  | the zoo's strong ring, degrees kept: twelve near-copies of one node's attributes, four neighbours each  |
| star       | 8 to 20 throw-away nodes, of degree 1 or 2, joined to one centre                                        |
| chain      | 6 to 12 nodes of degree 2 in a row                                                                      |

A member gives up as many edges as it gets (`redirect`); the nodes at the other ends of these are joined to each other,
so that their degrees are kept too. Members are drawn from both sides of the median degree alike as far as their world
has nodes of enough neighbours; where degrees are low, groups are smaller than the table says (5 or more). Nodes of a
star and of a chain have few neighbours by nature: where most nodes have many, minus the degree finds them.

Legitimate hubs are never planted. About one node in fifty is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.zoo import Nodes, Rng, edges, from_edges, noisy, with_rows
from hcm_scale.graph import Graph

_RING = 12
_CHOICE = 3  # candidates a member is drawn from, at least
_SHARE = 0.6  # of the nodes that have an edge, those that may have fewer neighbours than the largest group needs


@dataclass(frozen=True, eq=False)
class World:
    """A graph without planted nodes, and what is known of its nodes, each (n,)."""

    name: str
    graph: Graph
    groups: Nodes  # communities of the edges
    hubs: NDArray[np.bool_]  # legitimate: no anomaly
    types: Nodes | None = None  # 0 or 1
    bad: NDArray[np.bool_] | None = None  # the anomalies of a world that has its own

    @property
    def bipartite(self) -> bool:
        """Whether nodes of one type are joined to nodes of the other alone."""
        if self.types is None:
            return False
        left, right = edges(self.graph)
        return bool((self.types[left] != self.types[right]).all())


def degrees(graph: Graph) -> Nodes:
    """The neighbours of every node, by arcs of both directions if the graph is directed, (n,)."""
    return np.bincount(np.concatenate(edges(graph)), minlength=graph.num_nodes)


class Group(NamedTuple):
    """The pairs to be joined, (k, 2), the nodes that are odd, and how many edges each of them gives up."""

    pairs: Nodes
    members: Nodes
    given_up: Nodes


class Candidates:
    """The nodes of a world that are not yet planted, to be drawn by degree."""

    def __init__(self, world: World, rng: Rng) -> None:
        self.degrees, self.rng = degrees(world.graph), rng
        self.types, self.apart = world.types, world.bipartite
        joined = self.degrees > 0
        self.free = joined & ~world.hubs
        sides = [joined & (self.types == side) for side in (0, 1)] if self.apart else [joined]
        self.most = int(min(np.quantile(self.degrees[side], _SHARE) for side in sides))

    def size(self, least: int, most: int, inner_share: float = 1.0) -> int:
        """A random size from `least` to `most`, or less where the degrees do not allow for it."""
        allowed = max(5, int(self.most / inner_share) + 1)
        return int(self.rng.integers(min(least, allowed), min(most, allowed) + 1))

    def draw(self, count: int, least: int, most: int | None = None, side: int | None = None) -> Nodes:
        """Nodes of `least` to `most` neighbours; by default from both sides of the median alike where possible."""
        of_side = self.free if side is None else self.free & (self.types == side)
        nodes = self.rng.permutation(np.flatnonzero(of_side))
        nodes = nodes[np.argsort(self.degrees[nodes], kind="stable")]
        below = int(np.searchsorted(self.degrees[nodes], least))
        above = len(nodes) - below if most is None else int(np.searchsorted(self.degrees[nodes], most, "right"))
        last = min(len(nodes), max(above, below + _CHOICE * count))
        first = max(0, min(below, len(nodes) - count))  # too few of them: those of the highest degree
        chosen = self.rng.permutation(nodes[first:last])[:count]
        self.free[chosen] = False
        return chosen


def _clique(candidates: Candidates) -> Group:
    size = candidates.size(8, 15)
    return _joined(candidates, size, np.stack(np.triu_indices(size, 1), axis=1), size - 1)


def _half_dense(candidates: Candidates) -> Group:
    size = candidates.size(10, 60, 0.5)
    every = candidates.rng.permutation(np.stack(np.triu_indices(size, 1), axis=1))
    return _joined(candidates, size, every[: len(every) // 2], size // 2 + 1)


def _block(candidates: Candidates) -> Group:
    size = candidates.size(6, 12)
    return _between(candidates, size, np.arange(size * size), size)


def _half_block(candidates: Candidates) -> Group:
    size = candidates.size(10, 30, 0.5)
    return _between(candidates, size, candidates.rng.permutation(size * size)[: size * size // 2], size // 2 + 1)


def _between(candidates: Candidates, size: int, places: Nodes, inner_degree: int) -> Group:
    """Members of two sides, of at least the inner degree, joined at these places of the table of all pairs."""
    sides = (0, 1) if candidates.apart else (None, None)
    members = np.concatenate([candidates.draw(size, inner_degree, side=side) for side in sides])
    left, right = np.divmod(places, size)
    pairs = np.stack([left, size + right], axis=1)
    return Group(members[pairs], members, np.bincount(pairs.ravel(), minlength=2 * size))


def _ring(candidates: Candidates) -> Group:
    places = np.arange(_RING)
    pairs = np.concatenate([np.stack([places, (places + step) % _RING], axis=1) for step in (1, 2)])
    return _joined(candidates, _RING, pairs, 4)


def _star(candidates: Candidates) -> Group:
    leaves = candidates.draw(int(candidates.rng.integers(8, 21)), 1, 2, side=0 if candidates.apart else None)
    centre = candidates.draw(1, len(leaves), len(leaves), side=1 if candidates.apart else None)
    pairs = np.stack([leaves, np.repeat(centre, len(leaves))], axis=1)
    given_up = np.append(np.maximum(1, candidates.degrees[leaves] - 1), len(leaves))
    return Group(pairs, np.append(leaves, centre), given_up)


def _chain(candidates: Candidates) -> Group:
    members = candidates.draw(int(candidates.rng.integers(6, 13)), 2, 2)
    given_up = candidates.degrees[members]
    given_up[[0, -1]] -= 1  # both ends keep one edge to the rest
    return Group(np.stack([members[:-1], members[1:]], axis=1), members, given_up)


def _joined(candidates: Candidates, size: int, places: Nodes, inner_degree: int) -> Group:
    """Members of at least the inner degree, joined as the pairs of places say, in random directions."""
    members = candidates.draw(size, inner_degree)
    pairs = candidates.rng.permuted(members[places], axis=1)
    return Group(pairs, members, np.bincount(places.ravel(), minlength=size))


GROUPS: dict[str, Callable[[Candidates], Group]] = {
    "group": _clique,
    "half_dense": _half_dense,
    "block": _block,
    "half_block": _half_block,
    "ring_kept": _ring,
    "star": _star,
    "chain": _chain,
}


def draw_groups(world: World, odd: str, rng: Rng) -> list[Group]:
    """Groups of one kind, until one node in fifty is a member."""
    candidates, planted, members = Candidates(world, rng), list[Group](), 0
    while members < np.clip(world.graph.num_nodes // 50, _RING, 300):
        planted.append(GROUPS[odd](candidates))
        members += len(planted[-1].members)
    return planted


def plant_groups(world: World, odd: str, rng: Rng) -> Graph:
    """The graph with groups of one kind; `y` is 1 for their members."""
    planted = draw_groups(world, odd, rng)
    y = np.zeros(world.graph.num_nodes, np.uint8)
    y[np.concatenate([group.members for group in planted])] = 1
    graph = redirect(world, Group(*(np.concatenate(parts) for parts in zip(*planted, strict=True))), rng)
    if odd == "ring_kept":
        models = rng.choice(np.flatnonzero(y == 0), len(planted)).repeat(_RING)
        nodes = np.concatenate([group.members for group in planted])
        graph = with_rows(graph, nodes, noisy(graph, models, rng))
    return replace(graph, y=y)


def redirect(world: World, planted: Group, rng: Rng) -> Graph:
    """The graph in which every member has given up random edges to nodes that are none, and the pairs are joined.

    The other ends of what was given up are joined to one another, neighbours in community first.
    """
    graph, given_up = world.graph, np.zeros(world.graph.num_nodes, np.int64)
    given_up[planted.members] = planted.given_up
    is_member = np.zeros(graph.num_nodes, bool)
    is_member[planted.members] = True
    ends = rng.permutation(np.stack(edges(graph), axis=1))
    outward = np.flatnonzero(is_member[ends].sum(axis=1) == 1)
    rows = ends[outward]
    member = np.where(is_member[rows[:, 0]], rows[:, 0], rows[:, 1])
    order = np.argsort(member, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(member[order], member[order])
    lost = place < given_up[member]
    loose = (rows.sum(axis=1) - member)[lost]
    kept = np.delete(ends, outward[lost], axis=0)
    fresh = np.concatenate([kept, planted.pairs, _paired(world, loose, rng)])
    return from_edges(graph, (fresh[:, 0], fresh[:, 1]))


def _paired(world: World, nodes: Nodes, rng: Rng) -> Nodes:
    """Nodes two by two, (k, 2), mostly of one community; of two types in a bipartite world."""
    nodes = rng.permutation(nodes)
    nodes = nodes[np.argsort(world.groups[nodes], kind="stable")]
    if world.types is not None and world.bipartite:
        sides = nodes[world.types[nodes] == 0], nodes[world.types[nodes] == 1]
    else:
        sides = nodes[::2], nodes[1::2]
    count = min(len(side) for side in sides)
    return np.stack([side[:count] for side in sides], axis=1)
