"""Capped BFS from many sources: sources a second, against scipy, igraph and a plain BFS in numba.

Every contender finds what lies within C - 1 hops of its sources; ours also counts every class exactly, and its time
includes renaming the graph. On a grid and on a graph of real files, where searches have little to share, the question
is only whether ours is ever slower than plain searches. Peers run on fewer sources: rates are compared.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from bench.harness import Case, Contender, Floor
from hcm_scale.graph.synthetic import rmat
from hcm_scale.hops import choose_sources, label_hops
from hcm_scale.hops.label import count_hops

SCALE = {"smoke": 10, "quick": 20, "full": 20}
SIDE = {"smoke": 30, "quick": 1000, "full": 1000}
NUM_SOURCES = {"smoke": 256, "quick": 4096, "full": 16384}
NUM_PEER_SOURCES = {"smoke": 4, "quick": 8, "full": 32}
SHORT_SEARCHES = 16  # times as many sources where a search takes microseconds
PAIRS_PER_CLASS = 256


@dataclass(frozen=True)
class Problem:
    """A symmetric graph, all sources, the few that slow contenders get, and how many later nodes those reach."""

    name: str
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    classes: int
    sources: NDArray[np.int64]
    few: NDArray[np.int64]
    reached: NDArray[np.int64]


def prepare(name: str, indptr: Any, indices: Any, classes: int, size: str, times: int = 1) -> Problem:
    """Draws the sources and finds the answer for the few with scipy."""
    sources = choose_sources(indptr, num_sources=times * NUM_SOURCES[size], seed=0)
    few = sources[:: max(1, len(sources) // (times * NUM_PEER_SOURCES[size]))]
    balls = scipy_balls(indptr, indices, few, classes)
    return Problem(name, indptr, indices, classes, sources, few, count_later(balls, few, sources))


def count_later(balls: list[NDArray[Any]], few: Any, sources: Any) -> NDArray[np.int64]:
    """How many nodes of each ball pair with its source for the first time: those that are no source, or a later one."""
    return np.array([np.sum(~np.isin(ball, sources[sources <= s])) for ball, s in zip(balls, few, strict=True)])


def scipy_balls(indptr: Any, indices: Any, few: Any, classes: int) -> list[NDArray[Any]]:
    """The nodes within classes - 1 hops of each source, by scipy."""
    graph = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(indptr) - 1,) * 2)
    return [
        np.flatnonzero(np.isfinite(csgraph.dijkstra(graph, unweighted=True, indices=s, limit=classes - 1))) for s in few
    ]


def cases(size: str) -> Iterator[Case]:
    """R-MAT against three peers; a grid, and the real graph where it is at hand, against plain searches."""
    graph = rmat(SCALE[size], num_attributes=1)
    problem = prepare(f"R-MAT {graph.num_nodes:,} nodes", graph.indptr, graph.indices, 4, size)
    contenders = [ours(problem), ours_labelling(problem), with_scipy(problem), plain(problem)]
    floors = [Floor("hcm_scale BFS", "scipy dijkstra(limit)", 100)]
    absent = []
    try:
        contenders.append(with_igraph(problem))
        floors.append(Floor("hcm_scale BFS", "igraph neighborhood", 60))
    except ImportError as error:
        absent.append(f"igraph ({error})")
    yield Case(title(problem), "sources/s", contenders, floors, absent)
    for problem in little_to_share(size):
        yield Case(
            title(problem), "sources/s", [ours(problem), plain(problem)], [Floor("hcm_scale BFS", "plain numba BFS", 1)]
        )


def title(problem: Problem) -> str:
    return (
        f"{problem.name}, {len(problem.indices) // 2:,} edges, C = {problem.classes}, {numba.get_num_threads()} threads"
    )


def little_to_share(size: str) -> Iterator[Problem]:
    """Graphs of long diameter."""
    line = sparse.diags_array([np.ones(SIDE[size] - 1)] * 2, offsets=[-1, 1], shape=(SIDE[size],) * 2)
    grid = sparse.csr_array(sparse.kronsum(line, line))
    yield prepare(
        f"grid {SIDE[size]} x {SIDE[size]}",
        grid.indptr.astype(np.int64),
        grid.indices.astype(np.int32),
        16,
        size,
        SHORT_SEARCHES,
    )
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("HCM_DATA", beside)) / "debian_files_arm64.npz"
    if path.exists() and size != "smoke":
        with np.load(path, allow_pickle=False) as arrays:
            indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32)
        for classes in (4, 16):
            yield prepare("Debian files", indptr, indices, classes, size)


def ours(problem: Problem) -> Contender:
    """Exact class counts of all sources."""

    def verify(counts: NDArray[np.int64]) -> None:
        found = counts[np.searchsorted(problem.sources, problem.few), :-1].sum(axis=1)
        np.testing.assert_array_equal(found, problem.reached)

    run = lambda: count_hops(problem.indptr, problem.indices, problem.sources, classes=problem.classes)  # noqa: E731
    return Contender("hcm_scale BFS", run, len(problem.sources), verify)


def ours_labelling(problem: Problem) -> Contender:
    """The same with a sample of pairs drawn from every class of every source."""

    def run() -> int:
        blocks = label_hops(
            problem.indptr, problem.indices, problem.sources, classes=problem.classes,
            pairs_per_class=PAIRS_PER_CLASS, seed=0, sources_per_block=512,
        )  # fmt: skip
        return sum(len(block.u) for block in blocks)

    def verify(num_pairs: int) -> None:
        assert 0 < num_pairs <= len(problem.sources) * problem.classes * PAIRS_PER_CLASS

    return Contender(f"hcm_scale BFS and {PAIRS_PER_CLASS} pairs a class", run, len(problem.sources), verify)


def with_scipy(problem: Problem) -> Contender:
    return _peer(
        "scipy dijkstra(limit)", problem, lambda s: scipy_balls(problem.indptr, problem.indices, s, problem.classes)
    )


def with_igraph(problem: Problem) -> Contender:
    """All balls in one call, as igraph's manual would do it."""
    import igraph

    rows = np.repeat(np.arange(len(problem.indptr) - 1), np.diff(problem.indptr))
    once = rows < problem.indices
    graph = igraph.Graph(n=len(problem.indptr) - 1, edges=np.stack([rows[once], problem.indices[once]], axis=1))

    def balls(few: Any) -> list[NDArray[Any]]:
        return [np.array(ball) for ball in graph.neighborhood(few.tolist(), order=problem.classes - 1)]

    return _peer("igraph neighborhood", problem, balls)


def plain(problem: Problem) -> Contender:
    """One search after the other, on as many sources as ours where searches are short."""
    n = len(problem.indptr) - 1
    visited, queue, stamps = np.zeros(n, np.int64), np.empty(n, problem.indices.dtype), count(1)

    def balls(few: Any) -> list[NDArray[Any]]:
        depth = problem.classes - 1
        sizes = (plain_bfs(problem.indptr, problem.indices, s, depth, next(stamps), visited, queue) for s in few)
        return [queue[:size].copy() for size in sizes]

    return _peer("plain numba BFS", problem, balls)


def _peer(name: str, problem: Problem, balls: Callable[[Any], list[NDArray[Any]]]) -> Contender:
    def verify(found: list[NDArray[Any]]) -> None:
        np.testing.assert_array_equal(count_later(found, problem.few, problem.sources), problem.reached)

    return Contender(name, lambda: balls(problem.few), len(problem.few), verify)


@numba.njit(cache=True)
def plain_bfs(indptr, indices, source, num_levels, stamp, visited, queue):
    """Fills the queue with what lies within num_levels of a source; visited[v] is the last search that saw v."""
    queue[0] = source
    visited[source] = stamp
    start, stop = 0, 1
    for _ in range(num_levels):
        end = stop
        for k in range(start, stop):
            for e in range(indptr[queue[k]], indptr[queue[k] + 1]):
                v = indices[e]
                if visited[v] != stamp:
                    visited[v] = stamp
                    queue[end] = v
                    end += 1
        start, stop = stop, end
    return stop
