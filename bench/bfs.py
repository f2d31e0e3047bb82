"""Hop counts from many sources: sources a second, how many nodes lie at each distance below C.

Ours is the BFS alone, `count_hops`: exact class sizes of every source. Laying the graph out is part of every run. The
peers do what their documentation offers for the same question, on as many sources as a few seconds allow (rates are
compared). Those that return every node instead of counts are given no counting to do.

Ours counts a pair once, at the earlier of its two sources, which costs a look at every node that is reached. The plain
numba BFS comes without that rule and with it. Where searches hardly meet and nothing can be shared, ours searches for
each source by itself too (docs/lab/tried.md).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csgraph

from bench import bfs_peers, data
from bench.bfs_kernels import plain_classes, plain_levels
from bench.harness import Case, Contender, Floor
from hcm_scale.graph.store import Graph
from hcm_scale.hops.label import _labeller, choose_sources

CLASSES = 4
RMAT_SCALE = {"smoke": 9, "quick": 20, "full": 20}
SMALL_SCALE = {"smoke": 9, "quick": 13, "full": 14}
GRID_SIDE = {"smoke": 40, "quick": 1000, "full": 1000}
NUM_SOURCES = {"smoke": 100, "quick": 2048, "full": 8192}
DEBIAN_SOURCES = {"smoke": 100, "quick": 30_000, "full": 100_000}  # searches are short there: enough for a second
GRID_SOURCES = {"smoke": 100, "quick": 100_000, "full": 400_000}
SOURCES_PER_THREAD = {"smoke": 50, "quick": 1024, "full": 1024}
PEER_SOURCES = {"smoke": 3, "quick": 12, "full": 60}
NUM_CHECKED = 3
PLAIN, PAIRS_ONCE = "plain numba BFS", "plain numba BFS, pairs once"


def cases(size: str) -> Iterator[Case]:
    """R-MAT against everybody, threads, a small graph for networkx, and two graphs of large diameter."""
    yield rmat_case(size)
    yield threads_case(size)
    yield small_case(size)
    yield debian_case(size)
    yield grid_case(size)


def rmat_case(size: str) -> Case:
    """The graph of the claim."""
    graph, few = data.rmat(RMAT_SCALE[size]), PEER_SOURCES[size]
    sources = choose_sources(graph.indptr, num_sources=NUM_SOURCES[size], seed=0)
    peers = [bfs_peers.igraph_neighborhood, bfs_peers.igraph_sizes, bfs_peers.scipy_dijkstra, bfs_peers.scipy_order]
    found, absent = gather([*peers, bfs_peers.graphblas_levels], graph, sources[:few])
    contenders = [ours(graph, sources, CLASSES), plain(graph, sources[: 4 * few], CLASSES), *found]
    names = {contender.name for contender in contenders}
    wanted = (Floor("hcm_scale", bfs_peers.NEIGHBORHOOD, 60), Floor("hcm_scale", bfs_peers.DIJKSTRA, 100))
    floors = [floor for floor in wanted if floor.peer in names]
    return Case(f"R-MAT, {data.describe(graph)}, C = {CLASSES}", "sources/s", contenders, floors, absent)


def threads_case(size: str) -> Case:
    """Ours at 1, 2, 4 ... threads, with two of the widest blocks for every thread: narrower ones share less."""
    graph, most = data.rmat(RMAT_SCALE[size]), numba.get_num_threads()
    num_sources = most * SOURCES_PER_THREAD[size]
    sources = choose_sources(graph.indptr, num_sources=num_sources, seed=0)
    counts = [2**k for k in range(most.bit_length()) if 2**k <= most]
    names = {threads: f"hcm_scale, {threads} threads" for threads in counts}
    contenders = [ours(graph, sources, CLASSES, names[threads], threads=threads) for threads in counts]
    floors = [Floor(names[8], names[1], 6.4)] if 8 in counts else []
    return Case(f"threads, {num_sources:,} sources, R-MAT, {data.describe(graph)}", "sources/s", contenders, floors)


def small_case(size: str) -> Case:
    """A graph small enough for networkx, which the authors' script labels with."""
    graph, few = data.rmat(SMALL_SCALE[size]), 4 * PEER_SOURCES[size]
    sources = choose_sources(graph.indptr, num_sources=NUM_SOURCES[size], seed=0)
    peers = [bfs_peers.networkx_lengths, bfs_peers.igraph_neighborhood, bfs_peers.scipy_dijkstra]
    found, absent = gather(peers, graph, sources[:few])
    contenders = [ours(graph, sources, CLASSES), *found]
    return Case(f"small R-MAT, {data.describe(graph)}, C = {CLASSES}", "sources/s", contenders, (), absent)


def debian_case(size: str) -> Case:
    """A real graph of large diameter."""
    graph = data.debian() if size != "smoke" else None  # reading it takes longer than a smoke run may
    if graph is None:
        return Case("Debian files", "sources/s", [], absent=[f"{data.DEBIAN} (HCM_DATA names its folder)"])
    sources = choose_sources(graph.indptr, num_sources=DEBIAN_SOURCES[size], seed=0)
    found, absent = gather([bfs_peers.igraph_neighborhood], graph, sources[: 40 * PEER_SOURCES[size]])
    contenders = [ours(graph, sources, CLASSES), once(graph, sources, CLASSES), plain(graph, sources, CLASSES), *found]
    return Case(f"Debian files, {data.describe(graph)}, C = {CLASSES}", "sources/s", contenders, (), absent)


def grid_case(size: str) -> Case:
    """Where sources share next to nothing, so that each is searched for by itself."""
    graph, classes = data.grid(GRID_SIDE[size]), 16
    sources = choose_sources(graph.indptr, num_sources=GRID_SOURCES[size], seed=0)
    contenders = [ours(graph, sources, classes), once(graph, sources, classes), plain(graph, sources, classes)]
    return Case(f"grid, {data.describe(graph)}, C = {classes}", "sources/s", contenders, [])


def gather(
    peers: Sequence[Callable[[Graph, NDArray[np.int64], int], Contender]], graph: Graph, sources: NDArray[np.int64]
) -> tuple[list[Contender], list[str]]:
    """The peers that are installed, and the names of those that are not."""
    found, absent = [], []
    for peer in peers:
        try:
            found.append(peer(graph, sources, CLASSES - 1))
        except ImportError as error:
            absent.append(f"{error.name} ({error})")
    return found, absent


def ours(
    graph: Graph, sources: NDArray[np.int64], classes: int, name: str = "hcm_scale", *, threads: int | None = None
) -> Contender:
    """The bit-parallel search."""

    def run() -> NDArray[np.int64]:
        before = numba.get_num_threads()
        numba.set_num_threads(threads or before)
        try:
            return count_hops(graph, sources, classes)
        finally:
            numba.set_num_threads(before)

    return Contender(name, run, len(sources), functools.partial(check_classes, graph, sources))


def count_hops(graph: Graph, sources: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The exact class sizes of every source, (sources, C), without any pair: the search alone."""
    options: Any = {"classes": classes, "directed": False, "most": 0, "seed": 0, "words": None}
    label = _labeller(graph.indptr, graph.indices, sources, len(sources), **options)[1]
    return label(0, len(sources)).counts


def check_classes(graph: Graph, sources: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Class sizes, (sources, C), against scipy."""
    for position in np.linspace(0, len(sources) - 1, NUM_CHECKED).astype(int):
        np.testing.assert_array_equal(counts[position], wanted(graph, sources, position, counts.shape[1]))


def wanted(graph: Graph, sources: NDArray[np.int64], position: int, classes: int) -> NDArray[np.int64]:
    """The class sizes of one source by scipy, without the sources that come before it: those pairs are theirs."""
    distance = distances(graph, int(sources[position]), classes - 1)
    hop = np.where(np.isfinite(distance), distance, classes).astype(int)
    hop[sources[: position + 1]] = 0
    return np.bincount(hop, minlength=classes + 1)[1:]


def distances(graph: Graph, source: int, limit: int) -> NDArray[Any]:
    """Distances of at most `limit` from one source, infinite beyond."""
    return csgraph.dijkstra(data.adjacency(graph), unweighted=True, indices=source, limit=limit)


def plain(graph: Graph, sources: NDArray[np.int64], classes: int) -> Contender:
    """A queue and a stamp per node, sources over threads."""

    def run() -> NDArray[np.int64]:
        out = np.empty((len(sources), classes - 1), np.int64)
        plain_levels(graph.indptr, graph.indices, sources, *_scratch(graph), out)
        return out

    return Contender(PLAIN, run, len(sources), functools.partial(check_levels, graph, sources))


def once(graph: Graph, sources: NDArray[np.int64], classes: int) -> Contender:
    """The same, and every pair counted once."""

    def run() -> NDArray[np.int64]:
        order = np.full(graph.num_nodes, len(sources), np.int32)
        order[sources] = np.arange(len(sources))
        out = np.empty((len(sources), classes), np.int64)
        plain_classes(graph.indptr, graph.indices, sources, order, *_scratch(graph), out)
        return out

    return Contender(PAIRS_ONCE, run, len(sources), functools.partial(check_classes, graph, sources))


def _scratch(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Stamps and queues of all threads."""
    shape = numba.get_num_threads(), graph.num_nodes
    return np.full(shape, -1, np.int32), np.empty(shape, np.int32)


def check_levels(graph: Graph, sources: NDArray[np.int64], levels: NDArray[Any]) -> None:
    """Level sizes, (sources, levels), against scipy."""
    for position in range(min(NUM_CHECKED, len(sources))):
        distance = distances(graph, int(sources[position]), levels.shape[1])
        found = np.bincount(distance[np.isfinite(distance)].astype(int), minlength=levels.shape[1] + 1)
        np.testing.assert_array_equal(levels[position], found[1:])
