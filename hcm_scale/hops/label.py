"""Hop counts from many sources, capped at C classes, as a stream of small blocks of labelled pairs.

Result. hop(u, v) is the BFS distance. Class c < C holds the pairs at distance c, class C those that are farther apart
or unreachable. On an undirected graph a pair counts once, at the earlier of its two sources. Counts are exact; of each
(source, class) all pairs are kept, or a uniform sample of at most `pairs_per_class` keyed by (seed, source, class).
Blocks depend on the graph, the sources, C, the sample size and the seed, and on nothing else: not on the number of
threads, the width of a machine word, or how the sources are divided among processes.

Method. In `wide`, the bit-parallel BFS, 64 W sources share one search: a block for each thread, as wide as leaves none
idle, or, where their memory would force narrow ones, one wide block for all threads together, on the graph renamed by
degree. Where a few pilot searches show that sources share next to nothing each is searched by itself, in `thin`, on the
graph as given. On a CUDA device (`device`) an undirected graph is renamed and searched there, if sources share, samples
are asked for and the memory suffices. `layout` is the graph as searches see it, and how results become (u, v, hop).

Memory. The graph's layout; the kept nodes of the sources in flight, at most 128 MiB or one block of sources; and the
state of one search per thread, or of one for all. For m linked nodes and W words that is 3 rows of 8 W bytes a node,
W + W / 4 + 3 / 8 bytes a node of counts and bitmaps, and 512 W q bytes of ranks for samples of q pairs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.base.jit import kernel
from hcm_scale.base.names import MODEL_SIZES
from hcm_scale.base.npy import read_only
from hcm_scale.base.threads import share_parts
from hcm_scale.hops import layout as layouts
from hcm_scale.hops import thin
from hcm_scale.hops.wide import Columns, Request, label_block, wide_bytes, wide_scratch

WORDS = (8, 4, 2, 1)
STATE_BYTES = 256 << 20  # of a thread's searches
_MIN_CLASSES = MODEL_SIZES["num_classes"][0]
_NUM_PILOTS = 16
_FEW_ROWS, _USUAL_SOURCES = 1 << 22, 4096
_ROUNDS, _LEAST_BLOCKS = 2, 8  # widest blocks between two yields: of a thread, and of all, which sorts them by strength
_ROWS_BYTES = 128 << 20  # of kept nodes in flight
# Nanoseconds, measured on one machine: only their ratios matter, and those roughly.
_PILOT_ARC, _WIDE_ARC = 4.5, 5.0
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
    device: str = "cpu",
    on_sources: Callable[[int], object] = lambda num: None,
) -> Iterator[HopBlock]:
    """One HopBlock per `sources_per_block` consecutive sources between positions `first` and `last`, in order.

    `sources` are sorted, distinct and have neighbours; `first` is a multiple of `sources_per_block`. `words` forces
    bit-parallel blocks of 64 `words` sources (1, 2, 4 or 8); None takes what is fastest with `state_bytes` a thread.
    On a CUDA `device` the searches run there if they fit. The blocks are the same. `on_sources` is told how many more
    sources are labelled, by any thread, before their block is yielded.
    """
    sources, step = np.ascontiguousarray(sources, np.int64), sources_per_block
    stop = len(sources) if last is None else last
    assert 0 <= first <= stop <= len(sources)
    assert first % step == 0
    num_nodes = len(indptr) - 1
    most = num_nodes if pairs_per_class is None else min(pairs_per_class, num_nodes)
    names, label = _labeller(
        *(indptr, indices, sources, stop - first),
        classes=classes,
        directed=directed,
        most=most,
        seed=rng.key(seed),
        words=words,
        state_bytes=state_bytes,
        device=device,
        on_sources=on_sources,
    )
    row_bytes = min(num_nodes, most * classes) * names.itemsize
    in_flight = rows_in_flight(row_bytes, step, numba.get_num_threads())

    def blocks() -> Iterator[HopBlock]:
        for start in range(first, stop, in_flight):
            end = min(start + in_flight, stop)
            rows = label(start, end)
            for a, b in ((at, min(at + step, end)) for at in range(start, end, step)):
                own = rows.between(a - start, b - start)
                yield HopBlock(a, b, *layouts.write_pairs(own, names, sources[a:b]), own.counts.sum(axis=0))

    return blocks()


def rows_in_flight(row_bytes: int, step: int, threads: int) -> int:
    """Sources whose rows are held at once: whole blocks of `step`, enough to keep all threads busy."""
    busy = max(_ROUNDS * threads, _LEAST_BLOCKS) * 64 * max(WORDS)
    return max(1, min(-(-busy // step), _ROWS_BYTES // max(1, row_bytes) // step)) * step


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
    device: str = "cpu",
    on_sources: Callable[[int], object] = lambda num: None,
) -> tuple[NDArray[Any], Labeller]:
    """The nodes in the order of the layout, a function of graph, sources and C alone; and what labels the sources.

    `most` nodes are kept of each class; no rank is drawn where that is all nodes.
    """
    assert len(sources) > 0
    assert 0 <= sources[0] <= sources[-1] < len(indptr) - 1
    assert (np.diff(sources) > 0).all(), "sorted and distinct"
    assert (indptr[sources] < indptr[sources + 1]).all(), "see choose_sources"
    sharing = sharing_pays(indptr, indices, sources, classes=classes)
    threads, sample = numba.get_num_threads(), most if most < len(indptr) - 1 else 0

    def in_blocks(names: NDArray[Any], columns: int, takers: int, label: Callable[..., None]) -> Labeller:
        """What labels sources in blocks of like strength, by so many takers at a time."""

        def label_range(first: int, last: int) -> layouts.Rows:
            rows = layouts.empty_rows(names, last - first, classes, most)
            positions = first + layouts.by_strength(indptr, indices, sources[first:last])
            cut = range(0, last - first, columns)
            blocks = [Columns(np.sort(positions[at : at + columns]), first) for at in cut]
            share_parts(
                takers, blocks, lambda thread, block: _with_progress(block, classes, on_sources, label, thread, rows)
            )
            return rows

        return label_range

    if sharing and device != "cpu" and sample and words is None and not directed:
        from hcm_scale.hops import device as on_device  # imports Triton, which takes a second

        if on_device.fits_device(indptr, indices, device):
            request = Request(np.empty(0, np.int32), sources, np.uint64(seed), most)
            search = on_device.DeviceSearch(indptr, indices, request, device)
            return search.names, in_blocks(search.names, on_device.COLUMNS, 1, search.label_block)
    if sharing:
        layout = layouts.degree_layout(indptr, indices, directed=directed)
    else:
        layout = layouts.original_layout(indptr, indices)
    order = layouts.source_order(layout.node_of, sources, directed=directed)
    request = Request(order, sources, np.uint64(seed), most)
    if not sharing and words is None:
        takers = thin.num_takers(layout.num_nodes, threads, state_bytes)
        singles = [thin.thin_scratch(layout, sample) for _ in range(takers)]

        def label_thin(thread: int, block: Columns, rows: layouts.Rows, **_: Any) -> None:
            thin.label_each(layout.out_indptr, layout.out_indices, request, block, singles[thread], rows)

        return layout.names, in_blocks(layout.names, thin.COLUMNS, takers, label_thin)
    layout, shared = layouts.with_in_arcs(layout) if directed else layout, False
    if words is None:
        words, shared = choose_block(layout.num_linked, num_sources, sample, threads, state_bytes)
    takers, team = (1, threads) if shared else (threads, 1)
    states, lanes = [wide_scratch(layout.num_linked, words, sample) for _ in range(takers)], (np.uint64(0),) * words

    def label_wide(thread: int, block: Columns, rows: layouts.Rows, **callbacks: Any) -> None:
        label_block(layout, request, block, states[thread], lanes, rows, threads=team, **callbacks)

    return layout.names, in_blocks(layout.names, 64 * words, takers, label_wide)


def _with_progress(
    block: Columns,
    classes: int,
    on_sources: Callable[[int], object],
    label: Callable[..., None],
    thread: int,
    rows: Any,
) -> None:
    """Labels a block; as each class ends, a share of its sources counts as labelled. The first class takes no time."""
    reported = 0

    def report(hop: int) -> None:
        nonlocal reported
        if (more := len(block.positions) * (hop - 1) // (classes - 1) - reported) > 0:
            reported += more
            on_sources(more)

    label(thread, block, rows, on_class=report)
    report(classes)


def choose_block(
    num_linked: int, num_sources: int, pairs_per_class: int, threads: int, state_bytes: int = STATE_BYTES
) -> tuple[int, bool]:
    """The words of a block, and whether all threads share one: the widest for which there is room and work.

    A thread has `state_bytes` of room. Each width is a kernel of its own to compile. Where the searches take no time at
    all, the width is that of a run with the usual number of sources.
    """
    if num_linked * num_sources <= _FEW_ROWS:
        num_sources = max(num_sources, _USUAL_SOURCES)

    def widest(room: int, num_blocks: int) -> int:
        fits = [w for w in WORDS if wide_bytes(num_linked, w, pairs_per_class) <= room]
        return next((w for w in fits if 64 * w * num_blocks <= num_sources), min(fits, default=0))

    own, together = widest(state_bytes, threads), widest(threads * state_bytes, 1)
    is_large = wide_bytes(num_linked, max(WORDS), pairs_per_class) > state_bytes
    if threads > 1 and is_large and (together > own or own == 0):
        return max(together, 1), True
    return max(own, 1), False


def search_bytes(num_linked: int, num_sources: int, pairs_per_class: int, threads: int, state_bytes: int) -> int:
    """Bytes of the state of all blocks that are worked on at a time."""
    words, shared = choose_block(num_linked, num_sources, pairs_per_class, threads, state_bytes)
    return wide_bytes(num_linked, words, pairs_per_class) * (1 if shared else threads)


def sharing_pays(indptr: NDArray[np.int64], indices: NDArray[Any], sources: NDArray[Any], *, classes: int) -> bool:
    """Whether sources share so much that a block costs less than a search for each source, judged by a few of those.

    Together the pilots may read as many arcs as would cost what blocks do; they stop where that ends. The layout, and
    so which pairs are drawn, follows from it.
    """
    words, num_linked, given = max(WORDS), len(layouts.linked_nodes(indptr)), (read_only(indptr), read_only(indices))
    rows = num_linked * words * (_WIDE_ROW + classes * _WIDE_ROW_PER_CLASS)
    wide = rows + (classes - 2) * len(indices) * _WIDE_ARC
    pilots = sources[:: max(1, len(sources) // _NUM_PILOTS)][:_NUM_PILOTS]
    budget = len(pilots) * int(wide / (64 * words * _PILOT_ARC))
    visited, queue = np.zeros(len(indptr) - 1, np.bool_), np.empty(len(indptr) - 1, indices.dtype)
    for source in pilots:
        budget -= arcs_around(*given, source, classes - 1, budget, visited, queue)
        if budget < 0:
            return True
    return False


@kernel
def arcs_around(indptr, indices, source, num_levels, limit, visited, queue):
    """The arcs that a search of this depth reads; it stops early once they pass the limit."""
    queue[0] = source
    visited[source] = True
    start, stop, arcs = 0, 1, 0
    for _ in range(num_levels):
        for k in range(start, stop):
            arcs += indptr[queue[k] + 1] - indptr[queue[k]]
        if arcs > limit:
            break
        end = stop
        for k in range(start, stop):
            for e in range(indptr[queue[k]], indptr[queue[k] + 1]):
                if not visited[indices[e]]:
                    visited[indices[e]] = True
                    queue[end] = indices[e]
                    end += 1
        start, stop = stop, end
    visited[queue[:stop]] = False
    return arcs
