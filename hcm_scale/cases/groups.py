"""Dense groups among the nodes that stand out, by what their edges have in common.

Of the nodes that stand out and the edges between them, an edge (u, v) holds where u and v share so many of the others
that chance is unlikely to have done it: the c neighbours that both have among these nodes are held against

    mean = d(u) d(v) / (sum of d)^2 * (sum of d (d - 1) over these nodes),

those that degrees lead to expect, and -log P(Poisson(mean) >= c) has to exceed log(max(d(u), d(v))) + 3: a node has as
many chances to be held as it has edges. In a graph of triangles that is soon so. Of the s neighbours that u and v share
in the whole graph, c stand out by chance with P(Binomial(s, q) >= c), where q is twice the share of ends of edges that
do, at most a quarter: nodes that stand out are near each other. Where that passes the same bound, an edge holds
strongly. One that does not, and holds more than chance brings, is weak. Connected components of strong edges are
groups, and two of them, or single nodes, are one where weak edges join a third of the pairs between them. A node whose
neighbours squared are more than all entries of the graph is joined to everybody by these formulas, and is left out: a
hub joins nothing together. In a graph of two sides the ends of an edge share nothing. There two nodes of one side are
alike where they share as surprisingly many, by log of the number of nodes in the place of that of edges, and an edge
holds where each end has another node like it that is joined to the other end. Connected components are groups.

A group of three or more then grows: a node outside that is joined to a third of it or more, where that is unlikely by
log(n) + 1, is a member too, though it does not stand out by itself. Cost: for each edge the shorter list of neighbours,
and the edges of members; memory a few bytes a node of the graph. A node of more than `_HUB` neighbours adds none.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.order import first_not_below
from hcm_scale.base.threads import run_in_threads

Nodes = NDArray[np.int64]
_MARGIN = 3.0
_NEAR, _MOST_NEAR = 2.0, 0.25  # nodes near one that stands out do so more often than others
_WEAK, _STRONG = 1, 2
_GROWS = 1.0
_ROUNDS = 3
_MOST_BETWEEN = 256  # neighbours of a node over which two others are counted as sharing it
_HUB = 1 << 16


class Structure(NamedTuple):
    """A graph without directions, and the side of every node, or None where it has no two sides."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    side: NDArray[np.int8] | None


class Group(NamedTuple):
    """Nodes that stand out and are held together, and others that are joined to them."""

    core: Nodes
    grown: Nodes


def dense_groups(graph: Structure, nodes: Nodes) -> list[Group]:
    """The groups of two or more among these nodes, which rise.

    >>> clique = np.array([[other for other in range(12) if other != node] for node in range(12)], np.int32)
    >>> indptr = np.cumsum([0] + [11] * 12 + [1] * 200)
    >>> indices = np.concatenate([clique.ravel(), np.arange(12, 212, dtype=np.int32) ^ 1])
    >>> [group.core.tolist() for group in dense_groups(Structure(indptr, indices, None), np.arange(30))]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]
    """
    degree, total = np.diff(graph.indptr)[nodes].astype(np.float64), float(graph.indptr[-1])
    is_usual = degree**2 <= total
    nodes, degree = nodes[is_usual], degree[is_usual]
    if len(nodes) < 2:
        return []
    position = np.full(len(graph.indptr) - 1, -1, np.int32)
    position[nodes] = np.arange(len(nodes))
    indptr = np.zeros(len(nodes) + 1, np.int64)
    _count_among(graph.indptr, graph.indices, nodes, position, indptr)
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], np.int32)
    _fill_among(graph.indptr, graph.indices, nodes, position, indptr, indices)
    pairs = degree * (degree - 1.0)
    if graph.side is None:
        strength, share = np.zeros(len(indices), np.int8), min(_MOST_NEAR, _NEAR * float(degree.sum()) / total)
        few, whole, rate = (nodes, degree, indptr, indices), (graph.indptr, graph.indices), pairs.sum() / total**2
        run_in_threads(len(nodes), _weigh, few, whole, rate, share, strength)
        group_of = _joined_parts(indptr, indices, strength)
    else:
        side = graph.side[nodes]
        rates = np.array([pairs[side == 1].sum(), pairs[side == 0].sum()]) / (0.5 * total) ** 2
        marks, holds = np.zeros((2, len(indices)), np.bool_)
        _mark_alike(indptr, indices, degree, rates[np.maximum(side, 0)], marks)
        _hold_both(indptr, indices, marks, holds)
        group_of = _parts(len(nodes), *_ends(indptr, indices, holds))
    order = np.argsort(group_of, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group_of))])
    cores = [nodes[order[low:high]] for low, high in itertools.pairwise(bounds) if high - low > 1]
    return grown_groups(graph, cores)


def _ends(indptr: Any, indices: Any, holds: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Both ends of the edges that hold."""
    at = np.flatnonzero(holds)
    return np.searchsorted(indptr, at, side="right") - 1, indices[at]


def _parts(count: int, one: Any, other: Any) -> Any:
    """The component of each of so many nodes by edges."""
    edges = scipy.sparse.coo_array((np.ones(len(one), np.bool_), (one, other)), shape=(count, count))
    return scipy.sparse.csgraph.connected_components(edges, directed=False)[1]


def _joined_parts(indptr: Any, indices: Any, strength: NDArray[np.int8]) -> Any:
    """The component of every node by strong edges; two are one where weak edges join a third of their pairs."""
    part_of = _parts(len(indptr) - 1, *_ends(indptr, indices, strength == _STRONG))
    sizes, (one, other) = np.bincount(part_of), _ends(indptr, indices, strength == _WEAK)
    one, other = np.minimum(part_of[one], part_of[other]), np.maximum(part_of[one], part_of[other])
    pairs, counts = np.unique(one * np.int64(len(sizes)) + other, return_counts=True)
    one, other = np.divmod(pairs, len(sizes))
    are_one = 3.0 * counts >= sizes[one] * sizes[other]
    return _parts(len(sizes), one[are_one], other[are_one])[part_of]


def grown_groups(graph: Structure, cores: list[Nodes]) -> list[Group]:
    """Each of these sets with the nodes that it grows by."""
    counts = np.zeros(len(graph.indptr) - 1, np.int32)
    sides = np.zeros(0, np.int8) if graph.side is None else graph.side
    return [
        Group(core, np.sort(_grow(graph.indptr, graph.indices, core, sides, counts)[len(core) :])) for core in cores
    ]


@kernel(allocates=False)
def poisson_surprise(count: float, mean: float) -> float:
    """-log P(X >= count) of a Poisson count, nearly; 0 up to the mean."""
    mean = max(mean, 1e-12)
    if count <= mean:
        return 0.0
    last = math.log1p(-min(mean / (count + 1.0), 0.999))  # of the geometric sum that bounds the tail
    return max(0.0, mean - count * math.log(mean) + math.lgamma(count + 1.0) + last)


@kernel(allocates=False)
def _count_among(indptr: Any, indices: Any, nodes: Any, position: Any, out: Any) -> None:
    for i in range(len(nodes)):
        for at in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            out[i + 1] += position[indices[at]] >= 0


@kernel(allocates=False)
def _fill_among(indptr: Any, indices: Any, nodes: Any, position: Any, out_ptr: Any, out: Any) -> None:
    for i in range(len(nodes)):
        to = out_ptr[i]
        for at in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            other = position[indices[at]]
            if other >= 0:
                out[to] = other
                to += 1


@kernel(allocates=False)
def _binomial_surprise(count: float, trials: float, share: float) -> float:
    """-log P(X >= count) of as many trials, each true with this chance, or less; 0 up to the mean."""
    if count <= trials * share:
        return 0.0
    missed, surprise = trials - count, count * math.log(count / (trials * share))
    return surprise + (missed * math.log(missed / (trials * (1.0 - share))) if missed > 0.0 else 0.0)


@kernel(allocates=False)
def _num_shared(indptr: Any, indices: Any, u: int, v: int) -> float:
    """How many neighbours two nodes share."""
    own, other = indices[indptr[u] : indptr[u + 1]], indices[indptr[v] : indptr[v + 1]]
    short, long = (own, other) if len(own) < len(other) else (other, own)
    shared = 0.0
    for w in short:
        place = first_not_below(long, 0, len(long), w)
        shared += place < len(long) and long[place] == w
    return shared


@kernel(allocates=False)
def _weigh(tasks: Any, few: Any, whole: Any, rate: float, near: float, out: Any) -> None:
    """Says of every edge, at its entry from the smaller number, how strongly what its ends share holds it."""
    nodes, degree, indptr, indices = few
    for u in range(tasks[0], tasks[1]):
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            if v < u:
                continue
            shared, least = _num_shared(indptr, indices, u, v), math.log(max(degree[u], degree[v])) + _MARGIN
            if poisson_surprise(shared, degree[u] * degree[v] * rate) > least:
                every = _num_shared(whole[0], whole[1], nodes[u], nodes[v])
                surprise = _binomial_surprise(shared, every, near)
                out[at] = _STRONG if surprise > least else _WEAK if surprise > 1.0 else 0


@kernel
def _mark_alike(indptr: Any, indices: Any, degree: Any, rates: Any, marks: Any) -> None:
    """Marks the entries (u, v) where a node like u, of its side, is joined to v."""
    counts, touched = np.zeros(len(degree), np.int32), np.empty(len(degree), np.int32)
    least = math.log(len(degree)) + _MARGIN
    for u in range(len(degree)):
        size = 0
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            if indptr[v + 1] - indptr[v] > _MOST_BETWEEN:
                continue
            for w in indices[indptr[v] : indptr[v + 1]]:
                if counts[w] == 0 and w != u:
                    touched[size] = w
                    size += 1
                counts[w] += w != u
        for i in range(size):
            w = touched[i]
            if counts[w] < 2 or poisson_surprise(float(counts[w]), degree[u] * degree[w] * rates[u]) <= least:
                counts[w] = 0
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            for w in indices[indptr[v] : indptr[v + 1]]:
                if counts[w] > 0:
                    marks[at] = True
                    break
        for i in range(size):
            counts[touched[i]] = 0


@kernel(allocates=False)
def _hold_both(indptr: Any, indices: Any, marks: Any, out: Any) -> None:
    """Says of every edge whether both of its entries are marked."""
    for u in range(len(indptr) - 1):
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            out[at] = marks[at] and marks[first_not_below(indices, indptr[v], indptr[v + 1], u)]


@kernel
def _grow(indptr: Any, indices: Any, core: Any, side: Any, counts: Any) -> Any:
    """The members of a group: its core, then the nodes that it grows by; `counts` are 0, and are so again."""
    members, total, least = core.copy(), float(indptr[-1]), math.log(float(len(counts))) + _GROWS
    if len(core) < 3:
        return members
    for _ in range(_ROUNDS):
        size, volume, ends = 0, np.zeros(2), np.zeros(2)
        for u in members:
            degree = indptr[u + 1] - indptr[u]
            size += degree if degree <= _HUB else 0
            which = side[u] if len(side) and side[u] >= 0 else 0
            volume[which] += degree
            ends[which] += 1
        touched, num_touched = np.empty(size, np.int64), 0
        for u in members:
            if indptr[u + 1] - indptr[u] > _HUB:
                continue
            for v in indices[indptr[u] : indptr[u + 1]]:
                if counts[v] == 0:
                    touched[num_touched] = v
                    num_touched += 1
                counts[v] += 1
        for u in members:
            counts[u] = 0
        fresh, num_fresh = np.empty(num_touched, np.int64), 0
        for i in range(num_touched):
            v = touched[i]
            across = 1 - side[v] if len(side) and side[v] >= 0 else 0
            expected = (indptr[v + 1] - indptr[v]) * volume[across] * (2.0 if len(side) else 1.0) / total
            is_joined = counts[v] >= 2 and 3 * counts[v] >= ends[across]
            if is_joined and poisson_surprise(float(counts[v]), expected) > least:
                fresh[num_fresh] = v
                num_fresh += 1
            counts[v] = 0
        if num_fresh == 0:
            break
        members = np.concatenate((members, np.sort(fresh[:num_fresh])))
    return members
