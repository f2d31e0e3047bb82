"""Hop counts from many sources, capped at C classes, as a stream of small blocks of labelled pairs.

hop(u, v) is the BFS distance; class c < C holds the pairs at distance c, class C what is farther or unreachable. On
an undirected graph a pair counts once, at the earlier of its two sources. Counts are exact; of each (source, class)
all pairs are kept, or a uniform sample of at most `pairs_per_class` keyed by (seed, source, class). What a block
holds is a function of the graph, the sources, C, the sample size and the seed: not of threads, word width, or how the
work was split.

Memory: the renamed graph (see `layout`), the searches' state (see `engines`), and the rows of the sources in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.hops.engines import (
    STATE_BYTES,
    WORDS,
    Labeller,
    choose_words,
    plain_labeller,
    sharing_pays,
    wide_labeller,
)
from hcm_scale.hops.layout import (
    Layout,
    Rows,
    degree_layout,
    linked_nodes,
    original_layout,
    source_order,
    with_in_arcs,
    write_pairs,
)

MIN_CLASSES, MAX_CLASSES = 2, 16
_ROUNDS = 2  # blocks a thread works off between two yields
_ROWS_BYTES = 128 << 20  # of targets in flight


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
    filled = 0
    while filled < len(counts) and counts[filled] > 0:
        filled += 1
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
    num = len(sources)
    _check(indptr, sources, classes=classes, pairs=None, step=1, first=0, last=num, words=words)
    layout, label = _engine(
        indptr, indices, sources, classes=classes, most=0, seed=0, directed=directed, num=num, words=words
    )
    rows = _rows(layout, num, classes, 0)
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
    pairs, step = pairs_per_class, sources_per_block
    _check(indptr, sources, classes=classes, pairs=pairs, step=step, first=first, last=last, words=words)
    num_nodes = len(indptr) - 1
    most = num_nodes if pairs is None else min(pairs, num_nodes)
    how: dict[str, Any] = {"num": last - first, "words": words, "state_bytes": state_bytes}
    layout, label = _engine(indptr, indices, sources, classes=classes, most=most, seed=seed, directed=directed, **how)
    return _stream(layout, sources, label, classes=classes, most=most, step=step, first=first, last=last)


def _stream(
    layout: Layout, sources: Any, label: Labeller, *, classes: int, most: int, step: int, first: int, last: int
) -> Iterator[HopBlock]:
    """Labels as many blocks at once as keep all threads busy, and yields them one by one."""
    row_bytes = min(layout.num_nodes, most * classes) * layout.names.itemsize
    batch = rows_in_flight(row_bytes, step, numba.get_num_threads())
    for start in range(first, last, batch):
        stop = min(start + batch, last)
        rows = _rows(layout, stop - start, classes, most)
        label(start, stop, rows)
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            part = Rows(*(array[begin - start : end - start] for array in rows))
            yield HopBlock(begin, end, *write_pairs(part, layout.names, sources[begin:end]), part.counts.sum(axis=0))


def rows_in_flight(row_bytes: int, step: int, threads: int) -> int:
    """Sources whose rows are held at once: whole blocks of `step`, enough to keep all threads busy."""
    busy = _ROUNDS * threads * 64 * max(WORDS)
    return max(1, min(busy, _ROWS_BYTES // max(1, row_bytes)) // step) * step


def _rows(layout: Layout, num_sources: int, classes: int, most: int) -> Rows:
    width = min(layout.num_nodes, most * classes)
    counts, kept = np.empty((2, num_sources, classes), np.int64)
    return Rows(counts, kept, np.empty((num_sources, width), layout.names.dtype))


def _engine(
    indptr: Any,
    indices: Any,
    sources: Any,
    *,
    classes: int,
    most: int,
    seed: int,
    directed: bool,
    num: int,
    words: int | None,
    state_bytes: int = STATE_BYTES,
) -> tuple[Layout, Labeller]:
    """The layout, a function of graph, sources and C; and bit-parallel blocks on it, or plain searches."""
    layout, key = original_layout(indptr, indices), rng.key(seed)
    sharing = sharing_pays(layout, sources, classes=classes)
    if sharing:
        layout = degree_layout(indptr, indices, directed=directed)
    order = source_order(layout, sources, directed=directed)
    if not sharing and words is None:
        return layout, plain_labeller(layout, order, sources, seed=key, most=most)
    if directed:
        layout = with_in_arcs(layout)
    sample = most if most < layout.num_nodes else 0
    width = words or choose_words(layout.num_linked, num, sample, numba.get_num_threads(), state_bytes)
    return layout, wide_labeller(layout, order, sources, seed=key, most=most, words=width)


def _check(
    indptr: Any, sources: Any, *, classes: int, pairs: int | None, step: int, first: int, last: int, words: int | None
) -> None:
    """Every bad input, by name, before any work."""
    if not MIN_CLASSES <= classes <= MAX_CLASSES:
        raise ValueError(f"classes={classes} must be between {MIN_CLASSES} and {MAX_CLASSES}")
    if pairs is not None and pairs < 1:
        raise ValueError(f"pairs_per_class={pairs} must be at least 1, or None for all pairs")
    if step < 1:
        raise ValueError(f"sources_per_block={step} must be at least 1")
    if words is not None and words not in WORDS:
        raise ValueError(f"words={words} must be one of {sorted(WORDS)}, or None to let the graph decide")
    if len(sources) == 0:
        raise ValueError("sources is empty; at least 1 node with neighbours is needed")
    if sources[0] < 0 or sources[-1] >= len(indptr) - 1 or np.any(np.diff(sources) <= 0):
        raise ValueError(f"sources must be sorted, distinct and between 0 and {len(indptr) - 2}")
    if np.any(indptr[sources] == indptr[sources + 1]):
        raise ValueError("sources must have neighbours; see choose_sources")
    if not 0 <= first <= last <= len(sources) or first % step:
        raise ValueError(
            f"first={first}, last={last} must lie between 0 and {len(sources)}, "
            f"first a multiple of sources_per_block={step}"
        )
