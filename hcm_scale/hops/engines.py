"""Two ways to the same rows: bit-parallel blocks of sources, or one plain search after another.

On one layout both give the same rows, and the width of a block never shows. A few pilot searches decide between them:
where a source's neighbourhood is so small that reading the whole state once per block costs more than searching its
sources one by one, plain searches are taken, on the graph as given.

State per thread, for m linked nodes and W words (64 W sources a block): 3 wide words of 8 W bytes a node, and as
buffers W + W / 4 + 1 / 4 bytes a node of counts and bitmaps, and 512 W q bytes of ranks for samples of q. Plain: 2
bytes and 1 index a node. The widest block of at most `STATE_BYTES` a thread, or of
what the caller can spare, is taken that leaves no thread idle.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import share_parts
from hcm_scale.hops.layout import NOT_A_SOURCE, Layout, Rows, linked_nodes
from hcm_scale.hops.plain import IS_SOURCE, SOURCES_PER_TASK, STRETCH, PlainScratch, arcs_around, label_plain
from hcm_scale.hops.sample import Request
from hcm_scale.hops.wide import label_block, wide_bytes, wide_scratch

WORDS = (8, 4, 2, 1)
STATE_BYTES = 256 << 20
_NUM_PILOTS = 16
_FEW_ROWS, _USUAL_SOURCES = 1 << 22, 4096
# Nanoseconds, measured on one machine: only their ratios matter, and those roughly.
_PLAIN_ARC, _WIDE_ARC = 4.5, 5.0
_WIDE_ROW, _WIDE_ROW_PER_CLASS = 6.0, 0.7  # per word of a row

Labeller = Callable[[int, int, Rows], None]


def wide_labeller(layout: Layout, order: Any, sources: Any, *, seed: int, most: int, words: int) -> Labeller:
    """Labels ranges of sources in blocks of 64 `words`."""
    sample = most if most < layout.num_nodes else 0  # where all pairs are kept no rank is drawn
    scratch = [wide_scratch(layout.num_linked, words, sample) for _ in range(numba.get_num_threads())]
    lanes = (np.uint64(0),) * words
    request = Request(order, sources, np.uint64(seed), most)

    def label(first: int, last: int, rows: Rows) -> None:
        def work(me: int, i: int) -> None:
            label_block(layout, request, first + i, scratch[me], lanes, rows.part(i, i + 64 * words))

        share_parts(len(scratch), range(0, last - first, 64 * words), work)

    return label


def plain_scratch(order: NDArray[np.int32], names_dtype: Any, pairs_per_class: int) -> PlainScratch:
    """The state of one thread's searches, none of them made yet."""
    n = len(order)
    return PlainScratch(
        (order < NOT_A_SOURCE).astype(np.uint16) * np.uint16(IS_SOURCE),
        np.zeros(1, np.int64),
        np.empty(n, names_dtype),
        np.empty(n // STRETCH + 1, np.int64),
        np.empty(n // STRETCH + 1, np.int64),
        np.empty(pairs_per_class, np.int64),
        np.empty(3 * pairs_per_class, np.int64),
    )


def plain_labeller(layout: Layout, order: Any, sources: Any, *, seed: int, most: int) -> Labeller:
    """Labels ranges of sources one by one."""
    n = layout.num_nodes
    scratch: dict[int, PlainScratch] = {}

    def make(_: int, me: int) -> None:
        scratch[me] = plain_scratch(order, layout.names.dtype, most if most < n else 0)

    share_parts(numba.get_num_threads(), range(numba.get_num_threads()), make)
    request = Request(order, sources, np.uint64(seed), most)

    def label(first: int, last: int, rows: Rows) -> None:
        def work(me: int, i: int) -> None:
            label_plain(layout, request, first + i, scratch[me], rows.part(i, i + SOURCES_PER_TASK))

        share_parts(len(scratch), range(0, last - first, SOURCES_PER_TASK), work)

    return label


def choose_words(
    num_linked: int, num_sources: int, pairs_per_class: int, threads: int, state_bytes: int = STATE_BYTES
) -> int:
    """The widest block that fits into the budget and leaves a block for every thread.

    Each width is a kernel of its own to compile. Where the searches take no time at all, the width is that of a run
    with the usual number of sources.

    >>> choose_words(10**5, 4096, 256, threads=2), choose_words(10**5, 300, 256, threads=2)
    (8, 2)
    """
    if num_linked * num_sources <= _FEW_ROWS:
        num_sources = max(num_sources, _USUAL_SOURCES)
    for words in WORDS:
        fits = wide_bytes(num_linked, words, pairs_per_class) <= state_bytes
        if fits and 64 * words * threads <= num_sources:
            return words
    return 1


def sharing_pays(given: Layout, sources: NDArray[Any], *, classes: int) -> bool:
    """Whether blocks of the largest width are cheaper than plain searches, judged by a few of those.

    The pilots share a budget of arcs, what they may read at most if plain searches are to win: they stop where it ends.
    """
    words, num_linked = max(WORDS), len(linked_nodes(given.out_indptr))
    rows = num_linked * words * (_WIDE_ROW + classes * _WIDE_ROW_PER_CLASS)
    wide = rows + (classes - 2) * len(given.out_indices) * _WIDE_ARC
    pilots = sources[:: max(1, len(sources) // _NUM_PILOTS)][:_NUM_PILOTS]
    budget = len(pilots) * int(wide / (64 * words * _PLAIN_ARC))
    visited, queue = np.zeros(given.num_nodes, np.uint16), np.empty(given.num_nodes, given.names.dtype)
    for source in pilots:
        budget -= arcs_around(given, source, classes - 1, budget, visited, queue)
        if budget < 0:
            return True
    return False
