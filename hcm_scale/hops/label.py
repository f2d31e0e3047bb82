"""Hop counts from many sources, capped at C classes, as a stream of small blocks of labelled pairs.

Result. hop(u, v) is the BFS distance. Class c < C holds the pairs at distance c, class C those that are farther apart
or unreachable. On an undirected graph a pair counts once, at the earlier of its two sources. Counts are exact; of each
(source, class) all pairs are kept, or a uniform sample of at most `pairs_per_class` keyed by (seed, source, class).
Blocks depend on the graph, the sources, C, the sample size and the seed, and on nothing else: not on the number of
threads, the width of a machine word, or how the sources are divided among processes.

Method. In `wide`, the bit-parallel BFS, 64 W sources share one search; `plain` is one queue-based BFS per source. On
one layout both return the same rows. A few pilot searches decide: where neighbourhoods are so small that one pass over
the state of a block costs more than searching its sources one by one, plain searches run on the graph as given.
Otherwise blocks run on the graph renamed by degree, as wide as the memory allows and as leaves no thread idle.
`layout` is the graph as the searches see it, and how their results become (u, v, hop).

Memory. The graph's layout; the kept nodes of the sources in flight, at most 128 MiB or one block of sources; and the
state of one search per thread. For m linked nodes and W words that is 3 rows of 8 W bytes a node, W + W / 4 + 1 / 4
bytes a node of counts and bitmaps, and 512 W q bytes of ranks for samples of q pairs; plain: 2 bytes, 1 index a node.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.base.names import MODEL_SIZES
from hcm_scale.base.threads import share_parts
from hcm_scale.hops import layout as layouts
from hcm_scale.hops.plain import SOURCES_PER_TASK, arcs_around, label_plain, plain_scratch
from hcm_scale.hops.wide import Request, label_block, wide_bytes, wide_scratch

WORDS = (8, 4, 2, 1)
STATE_BYTES = 256 << 20  # of a thread's searches
_MIN_CLASSES = MODEL_SIZES["num_classes"][0]
_NUM_PILOTS = 16
_FEW_ROWS, _USUAL_SOURCES = 1 << 22, 4096
_ROUNDS = 2  # blocks that a thread labels between two yields
_ROWS_BYTES = 128 << 20  # of kept nodes in flight
# Nanoseconds, measured on one machine: only their ratios matter, and those roughly.
_PLAIN_ARC, _WIDE_ARC = 4.5, 5.0
_WIDE_ROW, _WIDE_ROW_PER_CLASS = 6.0, 0.7  # per word of a row

Labeller = Callable[[int, int], layouts.Rows]  # the rows of the sources at positions first .. last - 1


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
    linked = layouts.linked_nodes(indptr)
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
    return usable if usable >= _MIN_CLASSES else 0


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
    sources, last = np.ascontiguousarray(sources, np.int64), len(sources)
    found = _labeller(indptr, indices, sources, last, classes=classes, directed=directed, most=0, seed=0, words=words)
    return found[1](0, last).counts


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
    sources, step = np.ascontiguousarray(sources, np.int64), sources_per_block
    stop = len(sources) if last is None else last
    assert 0 <= first <= stop <= len(sources)
    assert first % step == 0
    num_nodes = len(indptr) - 1
    most = num_nodes if pairs_per_class is None else min(pairs_per_class, num_nodes)
    layout, label = _labeller(
        *(indptr, indices, sources, stop - first),
        classes=classes,
        directed=directed,
        most=most,
        seed=rng.key(seed),
        words=words,
        state_bytes=state_bytes,
    )
    row_bytes = min(num_nodes, most * classes) * layout.names.itemsize
    in_flight = rows_in_flight(row_bytes, step, numba.get_num_threads())

    def blocks() -> Iterator[HopBlock]:
        for start in range(first, stop, in_flight):
            end = min(start + in_flight, stop)
            rows = label(start, end)
            for a, b in ((at, min(at + step, end)) for at in range(start, end, step)):
                part = rows.part(a - start, b - start)
                yield HopBlock(a, b, *layouts.write_pairs(part, layout.names, sources[a:b]), part.counts.sum(axis=0))

    return blocks()


def rows_in_flight(row_bytes: int, step: int, threads: int) -> int:
    """Sources whose rows are held at once: whole blocks of `step`, enough to keep all threads busy."""
    busy = _ROUNDS * threads * 64 * max(WORDS)
    return max(1, min(busy, _ROWS_BYTES // max(1, row_bytes)) // step) * step


def _labeller(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    sources: NDArray[np.int64],
    num_sources: int,
    *,
    classes: int,
    directed: bool,
    most: int,
    seed: int,
    words: int | None,
    state_bytes: int = STATE_BYTES,
) -> tuple[layouts.Layout, Labeller]:
    """The layout, a function of graph, sources and C alone; and what labels `num_sources` of the sources on it.

    `most` nodes are kept of each class; no rank is drawn where that is all nodes.
    """
    assert len(sources) > 0
    assert 0 <= sources[0] <= sources[-1] < len(indptr) - 1
    assert (np.diff(sources) > 0).all(), "sorted and distinct"
    assert (indptr[sources] < indptr[sources + 1]).all(), "see choose_sources"
    sharing = sharing_pays(indptr, indices, sources, classes=classes)
    if sharing:
        layout = layouts.degree_layout(indptr, indices, directed=directed)
    else:
        layout = layouts.original_layout(indptr, indices)
    order = layouts.source_order(layout, sources, directed=directed)
    request = Request(order, sources, np.uint64(seed), most)
    threads, sample = numba.get_num_threads(), most if most < layout.num_nodes else 0
    label: Callable[[int, int, layouts.Rows], Any]  # by a thread: the rows from the source at a position on
    if sharing or words is not None:
        layout = layouts.with_in_arcs(layout) if directed else layout
        words = words or choose_words(layout.num_linked, num_sources, sample, threads, state_bytes)
        blocks = [wide_scratch(layout.num_linked, words, sample) for _ in range(threads)]
        step, lanes = 64 * words, (np.uint64(0),) * words
        label = lambda me, start, rows: label_block(layout, request, start, blocks[me], lanes, rows)  # noqa: E731
    else:
        step, singles = SOURCES_PER_TASK, plain_scratch(order, layout.names.dtype, sample, threads)
        label = lambda me, start, rows: label_plain(layout, request, start, singles[me], rows)  # noqa: E731

    def label_range(first: int, last: int) -> layouts.Rows:
        rows = layouts.empty_rows(layout, last - first, classes, most)
        steps = range(0, last - first, step)
        share_parts(threads, steps, lambda me, i: label(me, first + i, rows.part(i, i + step)))
        return rows

    return layout, label_range


def choose_words(
    num_linked: int, num_sources: int, pairs_per_class: int, threads: int, state_bytes: int = STATE_BYTES
) -> int:
    """The widest block that fits into the budget and leaves a block for every thread.

    Each width is a kernel of its own to compile. Where the searches take no time at all, the width is that of a run
    with the usual number of sources.
    """
    if num_linked * num_sources <= _FEW_ROWS:
        num_sources = max(num_sources, _USUAL_SOURCES)
    for words in WORDS:
        fits = wide_bytes(num_linked, words, pairs_per_class) <= state_bytes
        if fits and 64 * words * threads <= num_sources:
            return words
    return 1


def sharing_pays(indptr: NDArray[np.int64], indices: NDArray[Any], sources: NDArray[Any], *, classes: int) -> bool:
    """Whether blocks of the largest width are cheaper than plain searches, judged by a few of those.

    Together the pilots may read as many arcs as plain searches could if they were to win; they stop where that ends.
    """
    words, num_linked, given = max(WORDS), len(layouts.linked_nodes(indptr)), layouts.original_layout(indptr, indices)
    rows = num_linked * words * (_WIDE_ROW + classes * _WIDE_ROW_PER_CLASS)
    wide = rows + (classes - 2) * len(indices) * _WIDE_ARC
    pilots = sources[:: max(1, len(sources) // _NUM_PILOTS)][:_NUM_PILOTS]
    budget = len(pilots) * int(wide / (64 * words * _PLAIN_ARC))
    visited, queue = np.zeros(given.num_nodes, np.uint16), np.empty(given.num_nodes, given.names.dtype)
    for source in pilots:
        budget -= arcs_around(given, source, classes - 1, budget, visited, queue)
        if budget < 0:
            return True
    return False
