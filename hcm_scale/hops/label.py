"""Hop counts from many sources, capped at C classes, as a stream of small blocks of labelled pairs.

Result. hop(u, v) is the BFS distance. Class c < C holds the pairs at distance c, class C those that are farther apart
or unreachable. On an undirected graph a pair counts once, at the earlier of its two sources. Counts are exact; of each
(source, class) all pairs are kept, or a uniform sample of at most `pairs_per_class` keyed by (seed, source, class).
Blocks depend on the graph, the sources, C, the sample size and the seed, and on nothing else: not on the number of
threads, the width of a machine word, or how the sources are divided among processes.

Method. `wide` is the bit-parallel BFS, where 64 W sources share one search, and `sample` draws from its bits; `plain`
is one queue-based BFS per source, for graphs on which neighbourhoods hardly overlap. `engines` chooses between the two
and runs either on all threads; `layout` is the graph as they see it, and how their results become (u, v, hop).

Memory. The graph's layout, the state of one search per thread (see `engines`), and the kept nodes of the sources in
flight, at most 128 MiB or one block of sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.hops.engines import STATE_BYTES, WORDS, Labeller, make_labeller
from hcm_scale.hops.layout import Layout, empty_rows, linked_nodes, write_pairs

MIN_CLASSES, MAX_CLASSES = 2, 16
_ROUNDS = 2  # blocks that a thread labels between two yields
_ROWS_BYTES = 128 << 20  # of kept nodes in flight


@dataclass(frozen=True)
class HopBlock:
    """The labelled pairs of sources[first:last], ordered by class, then `u`, then `v`; `counts` are exact."""

    first: int
    last: int
    u: NDArray[Any]
    v: NDArray[Any]
    hop: NDArray[np.uint8]
    counts: NDArray[np.int64]


def choose_sources(indptr: NDArray[np.int64], *, num_sources: int | None, seed: int) -> NDArray[np.int64]:
    """A uniform sample of the nodes that have neighbours, sorted; all of them where `num_sources` is None or larger.

    >>> choose_sources(np.array([0, 1, 1, 3, 4]), num_sources=None, seed=0).tolist()
    [0, 2, 3]
    """
    if num_sources is not None and num_sources < 1:
        raise ValueError(f"num_sources={num_sources} must be at least 1, or None for all nodes with neighbours")
    linked = linked_nodes(indptr)
    if num_sources is None or num_sources >= len(linked):
        return linked
    generator = np.random.default_rng(rng.key(seed, len(indptr)))
    return np.sort(generator.choice(linked, num_sources, replace=False, shuffle=False))


def largest_usable_classes(counts: NDArray[np.int64]) -> int:
    """The largest C' <= C at which no class is empty, given the counts at C (classes C' .. C become one); 0 for none.

    >>> largest_usable_classes(np.array([9, 4, 0, 7])), largest_usable_classes(np.array([9, 0, 0, 0]))
    (3, 0)
    """
    filled = int(np.argmin(np.append(counts > 0, False)))  # classes before the first empty one
    usable = filled + 1 if counts[filled:].sum() > 0 else filled
    return usable if usable >= MIN_CLASSES else 0


def count_hops(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    sources: NDArray[Any],
    *,
    classes: int,
    directed: bool = False,
    words: int | None = None,
) -> NDArray[np.int64]:
    """The exact class sizes of every source, (sources, C), without any pair: the BFS alone.

    >>> count_hops(np.array([0, 1, 1, 3, 4]), np.array([2, 0, 3, 2], np.int32), np.array([0, 2]), classes=3).tolist()
    [[1, 1, 1], [1, 0, 1]]
    """
    sources = np.ascontiguousarray(sources, np.int64)
    _check(indptr, sources, classes, words)
    num = len(sources)
    layout, label = make_labeller(
        indptr, indices, sources, classes=classes, most=0, seed=0, directed=directed, num_sources=num, words=words
    )
    rows = empty_rows(layout, num, classes, 0)
    label(0, num, rows)
    return rows.counts


def label_hops(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    sources: NDArray[Any],
    *,
    classes: int,
    pairs_per_class: int | None,
    seed: int,
    directed: bool = False,
    sources_per_block: int,
    first: int = 0,
    last: int | None = None,
    words: int | None = None,
    state_bytes: int = STATE_BYTES,
) -> Iterator[HopBlock]:
    """One HopBlock per `sources_per_block` consecutive sources between positions `first` and `last`, in order.

    `sources` are sorted, distinct and have neighbours; `first` is a multiple of `sources_per_block`. `words` forces
    bit-parallel blocks of 64 `words` sources (1, 2, 4 or 8); None takes what is fastest with `state_bytes` a thread.
    The blocks are the same.
    """
    sources = np.ascontiguousarray(sources, np.int64)
    last = len(sources) if last is None else last
    _check(indptr, sources, classes, words)
    if pairs_per_class is not None and pairs_per_class < 1:
        raise ValueError(f"pairs_per_class={pairs_per_class} must be at least 1, or None for all pairs")
    if sources_per_block < 1:
        raise ValueError(f"sources_per_block={sources_per_block} must be at least 1")
    if not 0 <= first <= last <= len(sources) or first % sources_per_block:
        raise ValueError(
            f"first={first}, last={last} must lie between 0 and {len(sources)}, "
            f"first a multiple of sources_per_block={sources_per_block}"
        )
    num_nodes = len(indptr) - 1
    most = num_nodes if pairs_per_class is None else min(pairs_per_class, num_nodes)
    layout, label = make_labeller(
        indptr,
        indices,
        sources,
        classes=classes,
        most=most,
        seed=rng.key(seed),
        directed=directed,
        num_sources=last - first,
        words=words,
        state_bytes=state_bytes,
    )
    return _stream(layout, sources, label, classes=classes, most=most, step=sources_per_block, first=first, last=last)


def _stream(
    layout: Layout, sources: Any, label: Labeller, *, classes: int, most: int, step: int, first: int, last: int
) -> Iterator[HopBlock]:
    """Labels as many blocks at once as keep all threads busy, and yields them one by one."""
    row_bytes = min(layout.num_nodes, most * classes) * layout.names.itemsize
    batch = rows_in_flight(row_bytes, step, numba.get_num_threads())
    for start in range(first, last, batch):
        stop = min(start + batch, last)
        rows = empty_rows(layout, stop - start, classes, most)
        label(start, stop, rows)
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            part = rows.part(begin - start, end - start)
            yield HopBlock(begin, end, *write_pairs(part, layout.names, sources[begin:end]), part.counts.sum(axis=0))


def rows_in_flight(row_bytes: int, step: int, threads: int) -> int:
    """Sources whose rows are held at once: whole blocks of `step`, enough to keep all threads busy."""
    busy = _ROUNDS * threads * 64 * max(WORDS)
    return max(1, min(busy, _ROWS_BYTES // max(1, row_bytes)) // step) * step


def _check(indptr: Any, sources: NDArray[np.int64], classes: int, words: int | None) -> None:
    """Refuses bad input, by name, before any work."""
    if not MIN_CLASSES <= classes <= MAX_CLASSES:
        raise ValueError(f"classes={classes} must be between {MIN_CLASSES} and {MAX_CLASSES}")
    if words is not None and words not in WORDS:
        raise ValueError(f"words={words} must be one of {sorted(WORDS)}, or None to let the graph decide")
    if len(sources) == 0:
        raise ValueError("sources is empty; at least 1 node with neighbours is needed")
    if sources[0] < 0 or sources[-1] >= len(indptr) - 1 or np.any(np.diff(sources) <= 0):
        raise ValueError(f"sources must be sorted, distinct and between 0 and {len(indptr) - 2}")
    if np.any(indptr[sources] == indptr[sources + 1]):
        raise ValueError("sources must have neighbours; see choose_sources")
