"""Chooses how sources are searched, and runs the searches on all threads.

On one layout, bit-parallel blocks (`wide`) and single searches (`plain`) return the same rows, and the width of a block
never shows. A few pilot searches decide: where neighbourhoods are so small that one pass over the state of a block
costs more than searching its sources one by one, plain searches run on the graph as given. Otherwise blocks run on the
graph renamed by degree, as wide as the memory allows and as leaves no thread idle.

State per thread, for m linked nodes and W words (64 W sources a block): 3 rows of 8 W bytes a node, W + W / 4 + 1 / 4
bytes a node of counts and bitmaps, and 512 W q bytes of ranks for samples of q pairs. Plain: 2 bytes and 1 index a
node.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import share_parts
from hcm_scale.hops.layout import Layout, Rows, degree_layout, linked_nodes, original_layout, source_order, with_in_arcs
from hcm_scale.hops.plain import SOURCES_PER_TASK, arcs_around, label_plain, plain_scratch
from hcm_scale.hops.sample import Request
from hcm_scale.hops.wide import label_block, wide_bytes, wide_scratch

WORDS = (8, 4, 2, 1)
STATE_BYTES = 256 << 20
_NUM_PILOTS = 16
_FEW_ROWS, _USUAL_SOURCES = 1 << 22, 4096
# Nanoseconds, measured on one machine: only their ratios matter, and those roughly.
_PLAIN_ARC, _WIDE_ARC = 4.5, 5.0
_WIDE_ROW, _WIDE_ROW_PER_CLASS = 6.0, 0.7  # per word of a row

Labeller = Callable[[int, int, Rows], None]  # fills the rows of the sources at positions first .. last - 1


def make_labeller(
    indptr: Any,
    indices: Any,
    sources: NDArray[np.int64],
    *,
    classes: int,
    most: int,
    seed: int,
    directed: bool,
    num_sources: int,
    words: int | None,
    state_bytes: int = STATE_BYTES,
) -> tuple[Layout, Labeller]:
    """The layout, a function of graph, sources and C alone; and the labeller of `num_sources` of the sources on it.

    Of each class at most `most` nodes are kept; no rank is drawn where that is all nodes.
    """
    layout = original_layout(indptr, indices)
    sharing = sharing_pays(layout, sources, classes=classes)
    if sharing:
        layout = degree_layout(indptr, indices, directed=directed)
    request = Request(source_order(layout, sources, directed=directed), sources, np.uint64(seed), most)
    threads, sample = numba.get_num_threads(), most if most < layout.num_nodes else 0

    if not sharing and words is None:
        singles = plain_scratch(request.order, layout.names.dtype, sample, threads)

        def label_singles(me: int, start: int, rows: Rows) -> None:
            label_plain(layout, request, start, singles[me], rows)

        return layout, _in_steps(SOURCES_PER_TASK, label_singles)

    if directed:
        layout = with_in_arcs(layout)
    words = words or choose_words(layout.num_linked, num_sources, sample, threads, state_bytes)
    blocks, lanes = [wide_scratch(layout.num_linked, words, sample) for _ in range(threads)], (np.uint64(0),) * words

    def label_wide(me: int, start: int, rows: Rows) -> None:
        label_block(layout, request, start, blocks[me], lanes, rows)

    return layout, _in_steps(64 * words, label_wide)


def _in_steps(step: int, label: Callable[[int, int, Rows], None]) -> Labeller:
    """A labeller that gives `step` sources at a time to a thread, as label(thread, position, their rows)."""
    threads = numba.get_num_threads()

    def label_range(first: int, last: int, rows: Rows) -> None:
        steps = range(0, last - first, step)
        share_parts(threads, steps, lambda me, i: label(me, first + i, rows.part(i, i + step)))

    return label_range


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

    Together the pilots may read as many arcs as plain searches could if they were to win; they stop where that ends.
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
