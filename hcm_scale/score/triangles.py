"""Triangles at every node and those that degrees lead to expect; squares, where a graph has two sides and no triangles.

In a random graph with these degrees the ends of an edge (u, v) share

    min(rate * (d(u) - 1) * (d(v) - 1), d(u) - 1, d(v) - 1),   rate = sum of d (d - 1) / (sum of d)^2

neighbours, and a node has half the sum over its edges as expected triangles: a merchant with a thousand partners has
many. Real graphs have more, so the rate is raised by the root of how many times as many.

Every edge points from its end of smaller (degree, number) to the larger, so that no node has more than sqrt(2 m)
successors, and a triangle is found once: as a successor that both ends of its lowest edge have. One end marks its
successors, and those of the other are looked up, the fewer of the two where lists are long and of all edges. Most
successors are hubs, the million nodes of largest degree. They are numbered by degree, so that most marks are a few
kilobytes of bits in the nearest cache, and a step is a load without a branch or a search; what is found is counted by
each thread for itself. Others are few, and are searched for. Threads add to shared integers, so the result does not
depend on them. Cost: O(m^1.5) steps in the worst case, about one nanosecond each; memory 1 byte per edge, 4 per marked
edge, 16 per node, four megabytes per thread. Where there are very many steps and a CUDA device has room, it counts the
same integers (`triangles_device`).
"""

import logging
import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base import order
from hcm_scale.base.jit import fetch_add, kernel, prefetch
from hcm_scale.base.threads import map_slices, positions_where, run_in_threads
from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.store import Graph
from hcm_scale.score.edge_index import MANY_ENTRIES, EdgeIndex, edge_index

_BATCH = 64  # edges whose ends are prefetched before the first of them is read
_AHEAD = 16  # neighbours between prefetching a node's numbers and reading them
_MAX_HUBS, _LEAST_HUB = 1 << 20, 1 << 6  # nodes, neighbours
_FEW_STEPS = 64  # an edge: to look at all edges from both ends, for the shorter list of each, or at hubs, costs as much
_MANY_STEPS = 1 << 34  # a second or two of sixteen cores: what copies to a CUDA device and compiling may take
_WORD, _LAST_BIT = np.uint64(6), np.uint64(63)
_FILTER = 1 << 13  # bytes, most of them 0: a node whose byte is 0 is no successor and need not be searched for
_LAST_BITS = np.uint64(_FILTER - 1)
_ONE = np.uint64(1)
_STEPS_PER_ENTRY = 256
_RATE_NODES = 1 << 22  # at least half as many show the rate of large graphs
_ROWS_AHEAD = 4  # neighbours between prefetching a row and reading it
log = logging.getLogger(__name__)


class Rate(NamedTuple):
    """What expected triangles grow with, or what expected squares are multiplied by."""

    value: float
    of_squares: bool = False


class Triangles(NamedTuple):
    """Triangles, or squares, at every node and those expected, (n,) each, and the rate of the latter."""

    counted: NDArray[np.int64] | NDArray[np.float64]
    expected: NDArray[np.float64]
    rate: Rate


def count_and_expect(edges: EdgeIndex, rate: Rate | None = None, device: str = "cpu") -> Triangles:
    """Triangles of undirected edges; a given rate is that of another graph.

    Squares cannot be judged by a rate of triangles, nor the other way round: there are none then.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> triangle_and_pair = edge_index(np.array([0, 2, 4, 6, 7, 8]), np.array([1, 2, 0, 2, 0, 1, 4, 3], np.int32))
    >>> counted, expected, rate = count_and_expect(triangle_and_pair)
    >>> counted.tolist(), expected.round(2).tolist()
    ([1, 1, 1, 0, 0], [0.31, 0.31, 0.31, 0.0, 0.0])
    """
    side, expected = two_sides(Graph(edges.indptr, edges.indices)), np.zeros(edges.num_nodes)
    if rate is not None and rate.of_squares != (side is not None):
        log.warning("scores: of this graph and that of the model one has two sides: triangles and squares tell nothing")
        return Triangles(np.zeros(edges.num_nodes, np.int64), expected, rate)
    counted, at_random = (_triangles(edges, device), None) if side is None else squares(edges, side)

    def expect(rate: float, step: int, out: NDArray[np.float64]) -> None:
        if at_random is None:
            run_in_threads(len(out), expect_triangles, edges.indptr, edges.indices, rate, step, out)
        else:
            np.multiply(at_random[::step], rate, out=out)

    if rate is None:
        value, step = random_rate(edges) if at_random is None else 1.0, 1 + edges.num_nodes // _RATE_NODES
        some = expected[: len(range(0, len(expected), step))]
        expect(value, step, some)
        sums = map_slices(len(some), lambda chunk: [some[chunk].sum(), float(counted[::step][chunk].sum())])
        of_some, num_counted = np.sum(sums, axis=0) if sums else (0.0, 0.0)
        value *= math.sqrt(max(1.0, num_counted / of_some)) if of_some > 0.0 else 1.0
        rate = Rate(float(value), side is not None)
    expect(rate.value, 1, expected)
    return Triangles(counted, expected, rate)


def undirected(edges: EdgeIndex) -> EdgeIndex:
    """Edges of a directed graph without their directions; 10 bytes an arc while they are made, and the edges."""
    shape = edges.num_nodes, edges.num_nodes
    arcs = scipy.sparse.csr_array((np.ones(len(edges.indices), bool), edges.indices, edges.indptr), shape=shape)
    joined = (arcs + arcs.T).tocsr()
    joined.sort_indices()
    return edge_index(joined.indptr.astype(np.int64), joined.indices.astype(edges.indices.dtype))


def random_rate(edges: EdgeIndex) -> float:
    """Sum of d (d - 1) over the squared sum of d."""

    def sums(chunk: slice) -> list[float]:
        degree = np.diff(edges.indptr[chunk.start : chunk.stop + 1]).astype(np.float64)
        return [(degree * (degree - 1.0)).sum(), degree.sum()]

    of_slices = map_slices(edges.num_nodes, sums)
    of_pairs, num_arcs = np.sum(of_slices, axis=0) if of_slices else (0.0, 0.0)
    return float(of_pairs / max(num_arcs, 1.0) ** 2)


@kernel(allocates=False)
def expect_triangles(span, indptr, indices, rate, step, out):
    """out[i] = half the sum, over v's neighbours u, of those that u and v share in a random graph; v = step * i."""
    for i in range(span[0], span[1]):
        v = step * i
        own = indptr[v + 1] - indptr[v] - 1
        total = 0.0
        for e in range(indptr[v], indptr[v + 1]):
            prefetch(indptr, indices[min(e + _AHEAD, len(indices) - 1)])
            other = indptr[indices[e] + 1] - indptr[indices[e]] - 1
            total += min(rate * own * other, min(own, other))
        out[i] = 0.5 * total


def _triangles(edges: EdgeIndex, device: str = "cpu") -> NDArray[np.int64]:
    """Number of triangles at every node, (n,)."""
    if (counted := _count_on_device(edges, None, device, len(edges.indices) >= MANY_ENTRIES)) is not None:
        return counted
    graph, hubs, least = (edges.indptr, edges.indices), np.empty(0, np.int64), edges.num_nodes
    first, count = np.zeros(edges.num_nodes + 1, np.int64), np.zeros(edges.num_nodes, np.int64)
    successors = np.empty(0, edges.indices.dtype)  # of which the first pass says how many there are
    run_in_threads(len(count), select_successors, *graph, count, least, first, successors)
    np.cumsum(first, out=first)
    steps = _num_steps(edges, first, 1.0)
    if (counted := _count_on_device(edges, None, device, _are_many(steps, edges))) is not None:
        return counted
    successors = np.empty(first[-1], edges.indices.dtype)
    if from_both_ends := steps > _FEW_STEPS * len(successors):
        hubs, least = _hubs(edges.indptr)
        count[hubs] = ~np.arange(len(hubs))
    run_in_threads(len(count), select_successors, *graph, count, least, first, successors)
    count[hubs] = 0
    run_in_threads(len(count), count_triangles, (*graph, from_both_ends), (first, successors, hubs), count)
    return count


def _num_steps(edges: EdgeIndex, first: NDArray[np.int64], share: float) -> float:
    """Successors of the upper ends of all edges, or nearly so many where a share of the edges counts."""

    def steps(chunk: slice) -> float:
        size = np.diff(first[chunk.start : chunk.stop + 1])
        return float(((share * np.diff(edges.indptr[chunk.start : chunk.stop + 1]) - size) * size).sum())

    return sum(map_slices(edges.num_nodes, steps))


def _are_many(steps: float, edges: EdgeIndex) -> bool:
    return steps >= max(_MANY_STEPS, _FEW_STEPS * edges.num_edges)


def _count_on_device(
    edges: EdgeIndex, used: NDArray[np.bool_] | None, device: str, pays: bool
) -> NDArray[np.int64] | None:
    """The counts of a CUDA device where that pays, for very many edges or steps, and it has room; else None."""
    if device == "cpu" or not pays:
        return None
    from hcm_scale.score.triangles_device import triangles_on_device  # imports Triton

    return triangles_on_device(edges, used, device)


def marked_triangles(edges: EdgeIndex, marked: NDArray[np.bool_], device: str = "cpu") -> NDArray[np.int64]:
    """Number of triangles of marked edges at every node, (n,)."""
    if (counted := _count_on_device(edges, marked, device, len(edges.indices) >= MANY_ENTRIES)) is not None:
        return counted
    graph = edges.indptr, edges.indices, edges.start, marked
    first = np.zeros(edges.num_nodes + 1, np.int64)
    run_in_threads(edges.num_nodes, count_successors, *graph, first[1:])
    np.cumsum(first, out=first)
    steps = _num_steps(edges, first, first[-1] / max(1, edges.num_edges))
    if (counted := _count_on_device(edges, marked, device, _are_many(steps, edges))) is not None:
        return counted
    hubs, _ = _hubs(edges.indptr)
    successors, count = np.empty(first[-1], edges.indices.dtype), first[:-1].copy()
    run_in_threads(len(count), list_successors, *graph, count, successors)
    count[:] = 0
    count[hubs] = ~np.arange(len(hubs))
    run_in_threads(len(count), sort_successors, first, successors, count)
    count[hubs] = 0
    run_in_threads(len(count), count_triangles, (*graph[:2], False), (first, successors, hubs), count)
    return count


def _hubs(indptr: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The nodes of at least so many neighbours, those of most first, and that number.

    It is the least power of two from _LEAST_HUB on that leaves no more than _MAX_HUBS. In lists of successors ~i is the
    i-th of them.
    """

    def degree(chunk: slice) -> NDArray[np.int64]:
        return np.diff(indptr[chunk.start : chunk.stop + 1])

    num_nodes = len(indptr) - 1
    by_digits = map_slices(num_nodes, lambda chunk: np.bincount(np.frexp(degree(chunk))[1], minlength=64))
    num_above = np.sum([np.zeros(64), *by_digits], axis=0)[::-1].cumsum()[::-1]
    least = max(_LEAST_HUB, 1 << max(0, int(np.argmax(num_above <= _MAX_HUBS)) - 1))
    hubs = positions_where(num_nodes, lambda chunk: degree(chunk) >= least)
    return hubs[np.argsort(indptr[hubs] - indptr[hubs + 1], kind="stable")], least


@kernel(allocates=False)
def select_successors(span, indptr, indices, codes, least, first, out):
    """first[u + 1] = edges that point away from u; where `out` is given, their ends go to out[first[u]], ...: nodes of
    at least `least` neighbours as their codes, then the others in order.
    """
    for u in range(span[0], span[1]):
        degree, size, front, back = indptr[u + 1] - indptr[u], 0, first[u], first[u + 1]
        for e in range(indptr[u + 1] - 1, indptr[u] - 1, -1):
            prefetch(indptr, np.uint64(indices[np.uint64(max(e - _AHEAD, 0))]))
            v = np.int64(indices[np.uint64(e)])
            other = indptr[v + 1] - indptr[v]
            if degree < other or (degree == other and u < v):
                size += 1
                if len(out) and other >= least:
                    out[np.uint64(front)] = codes[v]
                    front += 1
                elif len(out):
                    back -= 1
                    out[np.uint64(back)] = v
        if not len(out):
            first[u + 1] = size


@kernel
def count_successors(span, indptr, indices, start, marked, count):
    """count[u] += marked edges that point away from u; edge numbers run along the upper triangle of the CSR."""
    left, right = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
    first = start[span[0]]
    u = span[0]
    while first < start[span[1]]:
        size, first, u = _list_marked((first, start[span[1]], u), indptr, indices, start, marked, (left, right), count)
        for i in range(size):
            fetch_add(count, _lower(indptr, left[i], right[i]), 1)


@kernel
def list_successors(span, indptr, indices, start, marked, cursor, out):
    """Writes the successors of u to out[cursor[u]], out[cursor[u] + 1], ... in any order, and advances cursor[u]."""
    left, right = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
    first = start[span[0]]
    u = span[0]
    while first < start[span[1]]:
        size, first, u = _list_marked((first, start[span[1]], u), indptr, indices, start, marked, (left, right), cursor)
        for i in range(size):
            lower = _lower(indptr, left[i], right[i])
            left[i], right[i] = fetch_add(cursor, lower, 1), left[i] + right[i] - lower
            prefetch(out, left[i])
        for i in range(size):
            out[np.uint64(left[i])] = right[i]


@kernel(inline="always")
def _lower(indptr, u, v):
    """End of smaller (degree, number), of u and v > u."""
    return u if indptr[u + 1] - indptr[u] <= indptr[v + 1] - indptr[v] else v


@kernel(allocates=False)
def _list_marked(where, indptr, indices, start, marked, ends, numbers):
    """Lists the ends of the next marked edges, at most a batch, and prefetches what their nodes will need.

    `where` is (first edge, end, a row at or before that of the first). Returns how many were found, the edge to
    continue from, and its row.
    """
    e, last, u = where
    left, right = ends
    size = 0
    while e < last and size < _BATCH:
        if marked[np.uint64(e)]:
            while start[u + 1] <= e:
                u += 1
            v = np.int64(indices[np.uint64(indptr[u + 1] - start[u + 1] + e)])
            prefetch(indptr, v)
            prefetch(numbers, v)
            left[size], right[size] = u, v
            size += 1
        e += 1
    return size, e, u


@kernel(inline="always")
def holds(indices, low, high, node):
    """Whether the sorted indices low .. high - 1 hold a node."""
    while low < high:
        middle = (low + high) // 2
        found = indices[np.uint64(middle)]
        if found == node:
            return True
        if found < node:
            low = middle + 1
        else:
            high = middle
    return False


@kernel(inline="always")
def _neighbor_at(graph, lists, position):
    """Neighbour, or where not `from_both_ends` successor, at a position or at the last; hubs may be codes."""
    (_, indices, from_both_ends), (_, successors, hubs) = graph, lists
    if from_both_ends:
        return np.uint64(indices[np.uint64(min(position, len(indices) - 1))])
    v = np.int64(successors[np.uint64(min(position, len(successors) - 1))])
    return np.uint64(hubs[~v] if v < 0 else v)


@kernel
def sort_successors(span, first, successors, codes):
    """Puts the code of every hub in its place, and sorts each row: hubs come first."""
    for u in range(span[0], span[1]):
        row = successors[first[u] : first[u + 1]]
        for i in range(len(row)):
            if codes[row[i]] < 0:
                row[i] = codes[row[i]]
        order.sort_row(row)


@kernel(inline="always")
def _flip(bits, place):
    bits[place >> _WORD] ^= _ONE << (place & _LAST_BIT)


@kernel(inline="always")
def _count_common(lists, v, low, high, marks, count, own):
    """Number of v's successors that are marked: hubs in a bitmap, others in a filter and the list low .. high - 1.

    Adds 1 to the counts of each; `own` is (counts of hubs, room for a list of them).
    """
    (first, successors, _), (is_hub_marked, seen), (of_hubs, hits) = lists, marks, own
    size, f, end = np.uint64(0), np.uint64(first[v]), np.uint64(first[v + _ONE])
    while f < end and successors[f] < 0:
        hub = np.uint64(~successors[f])
        hits[size] = hub
        size += is_hub_marked[hub >> _WORD] >> (hub & _LAST_BIT) & _ONE
        f += _ONE
    for i in range(size):
        of_hubs[hits[i]] += 1
    found = np.int64(size)
    while f < end:
        w = successors[f]
        if seen[np.uint64(w) & _LAST_BITS] and holds(successors, low, high, w):
            fetch_add(count, w, 1)
            found += 1
        f += _ONE
    return found


@kernel(allocates=False)
def _count_range(span, graph, lists, count, marks, own):
    """Adds what the nodes of a range find; apart from `count_triangles`, as one that makes arrays is slower."""
    (indptr, _, from_both_ends), (first, successors, _), (is_hub_marked, seen) = graph, lists, marks
    for u in range(span[0], span[1]):
        low, high, of_u = first[u], first[u + 1], 0
        size, others = high - low, low
        if size < 2:
            continue
        while others < high and successors[others] < 0:
            _flip(is_hub_marked, np.uint64(~successors[others]))
            others += 1
        for e in range(others, high):
            seen[np.uint64(successors[e]) & _LAST_BITS] = 1
        begin, end = (indptr[u], indptr[u + 1]) if from_both_ends else (low, high)
        for e in range(begin, end):
            prefetch(first, _neighbor_at(graph, lists, e + _AHEAD))
            prefetch(successors, first[_neighbor_at(graph, lists, e + _ROWS_AHEAD)])
            v = _neighbor_at(graph, lists, e)
            num = first[v + _ONE] - first[v]
            if not from_both_ends or num < size or (num == size and v < u):
                of_v = _count_common(lists, v, others, high, marks, count, own)
                if of_v:
                    fetch_add(count, v, of_v)
                    of_u += of_v
        if of_u:
            fetch_add(count, u, of_u)
        for e in range(low, others):
            _flip(is_hub_marked, np.uint64(~successors[e]))
        for e in range(others, high):
            seen[np.uint64(successors[e]) & _LAST_BITS] = 0


@kernel
def count_triangles(span, graph, lists, count):
    """count[v] += triangles at v; `graph` is (indptr, indices, from_both_ends), `lists` are (first, successors, hubs).

    In a list of successors hubs come first and then others in order. The shorter list of an edge is walked where its
    ends are looked at `from_both_ends`, else that of its upper end. Counts of hubs are below 2^32: there are fewer
    neighbours in a part.
    """
    widest, (first, _, hubs) = 0, lists
    for u in range(span[0], span[1]):
        widest = max(widest, first[u + 1] - first[u])
    of_hubs, hits = np.zeros(len(hubs), np.uint32), np.empty(widest + 1, np.uint32)
    is_hub_marked, seen = np.zeros(len(hubs) // 64 + 1, np.uint64), np.zeros(_FILTER, np.uint8)
    _count_range(span, graph, lists, count, (is_hub_marked, seen), (of_hubs, hits))
    for i in range(len(hubs)):
        if of_hubs[i]:
            fetch_add(count, hubs[i], np.int64(of_hubs[i]))


# Squares at every node and those expected: what triangles are to other graphs in one of two sides, users and shops.
#
# A user u has a square with another user w for each two shops v, v' that both know. Most squares are those of popular
# shops, so each step u - v - w weighs 1 / (d(v) - 1), the chance of w among the others at v:
#
#     squares(u) = sum over pairs v, v' of u's neighbours of shared(v, v') / ((d(v) - 1) (d(v') - 1)).
#
# In a random graph with these degrees v and v' share rate * (d(v) - 1) (d(v') - 1) users beside u, and a pair adds
#
#     rate = sum of d (d - 1) / (sum of d)^2 over the side of u.
#
# Both are given in units of the mean weight of u's pairs, in which they are spread as counts are; one is 1 at least.
#
# Nodes of more than sqrt(m) neighbours, which this rule would join to each other for certain, are nobody's v and
# nobody's w, in the count and in the rate, and have their own squares alone. Where more than 256 steps an entry of the
# graph are left the bound on degrees is lower. So the cost is linear: the sum of d^2 up to the bound, and 4 bytes a
# node in each thread. One thread adds up the squares of a node, in the order of its row: no result depends on the
# number of threads.


def squares(edges: EdgeIndex, side: NDArray[np.int8]) -> NDArray[np.float64]:
    """Weighted squares of every node, and how many a random graph would have, (2, n).

    >>> from hcm_scale.score.edge_index import edge_index
    >>> square = edge_index(np.array([0, 2, 4, 6, 8]), np.array([2, 3, 2, 3, 0, 1, 0, 1], np.int32))
    >>> squares(square, np.array([0, 0, 1, 1], np.int8)).tolist()
    [[1.0, 1.0, 1.0, 1.0], [0.25, 0.25, 0.25, 0.25]]
    """
    degree, out = np.diff(edges.indptr), np.zeros((2, edges.num_nodes))
    most = _largest_degree(degree)
    sides = side, shared_rates(degree, side, most)
    run_in_threads(len(degree), count_squares, edges.indptr, edges.indices, most, sides, out)
    return out


def shared_rates(degree: NDArray[np.int64], side: NDArray[np.int8], most: float = math.inf) -> NDArray[np.float64]:
    """By side, what products of two degrees on the other are multiplied by to give the expected common neighbours."""
    pairs = np.where(degree <= most, degree * (degree - 1.0), 0.0)
    return np.array([pairs[side == each].sum() / max(1.0, degree[side == each].sum()) ** 2 for each in (0, 1)])


def _largest_degree(degree: NDArray[np.int64]) -> int:
    """Degree up to which nodes count as neighbours of others."""
    num_entries = int(degree.sum())
    steps = np.bincount(degree[degree <= math.isqrt(num_entries // 2)])
    steps *= np.arange(len(steps)) ** 2
    return int(np.searchsorted(np.cumsum(steps), _STEPS_PER_ENTRY * num_entries, "right")) - 1


@kernel
def count_squares(span, indptr, indices, most, sides, out):
    """out[0, u] = counted and out[1, u] = expected squares; `sides` is (side of every node, rate of each side)."""
    side, rates = sides
    shared = np.zeros(len(indptr) - 1, np.float32)  # by w: weights of the steps to it from u; -1: not to be counted
    for u in range(len(shared)):
        if indptr[u + 1] - indptr[u] > most:
            shared[u] = -1.0
    for u in range(span[0], span[1]):
        own, shared[u] = shared[u], -1.0
        total, num, of_one, of_both = 0.0, 0, 0.0, 0.0
        for e in range(indptr[u], indptr[u + 1]):
            prefetch(indices, indptr[indices[min(e + _ROWS_AHEAD, len(indices) - 1)]])
            low, high = indptr[indices[e]], indptr[indices[e] + 1]
            if 1 < high - low <= most:
                weight = 1.0 / (high - low - 1)
                num, of_one, of_both = num + 1, of_one + weight, of_both + weight * weight
                for f in range(low, high):
                    w = np.uint64(indices[np.uint64(f)])
                    if shared[w] >= 0.0:
                        total += weight * shared[w]
                        shared[w] += np.float32(weight)
        for e in range(indptr[u], indptr[u + 1]):
            low, high = indptr[indices[e]], indptr[indices[e] + 1]
            if 1 < high - low <= most:
                for f in range(low, high):
                    w = np.uint64(indices[np.uint64(f)])
                    shared[w] = min(shared[w], np.float32(0.0))
        shared[u] = own
        if num > 1:
            pairs = 0.5 * num * (num - 1)
            unit = 0.5 * (of_one * of_one - of_both) / pairs
            out[0, u] = max(total / unit, 1.0) if total > 0.0 else 0.0
            out[1, u] = rates[side[u]] * pairs / unit
