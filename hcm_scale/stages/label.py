"""The label stage: a purified graph in, a sealed folder of labelled pairs out.

While the kernels search from the sources of one shard, a thread (on many cores several) sorts, writes and flushes the
shards before it. The sources are cut into shards by the plan alone; a process takes consecutive shards, so that it
reorders the graph once. Killed at any moment and started again, with any number of threads or processes, the stage
reuses the finished shards and ends in the same bytes.

Memory: what the BFS holds, and one shard more than there are writers (two on up to three cores), each of at most about
`shard_pairs` pairs in three copies of 9 to 17 bytes a pair.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from hcm_scale import shards as folder
from hcm_scale.base import files
from hcm_scale.base.console import Progress
from hcm_scale.graph import Graph
from hcm_scale.hops import HopBlock, choose_sources, label_hops, largest_usable_classes
from hcm_scale.hops.label import STATE_BYTES, WORDS, rows_in_flight, search_bytes, wide_bytes
from hcm_scale.hops.layout import linked_nodes
from hcm_scale.hops.thin import num_takers, thin_bytes
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.shards import FORMAT, LabelPlan, Labels, Shard, open_labels, write_shard

__all__ = ["FORMAT", "label"]
log = logging.getLogger(__name__)


def label(
    graph: Graph,
    out: Path,
    *,
    classes: int,
    num_sources: int | None,
    pairs_per_class: int | None,
    seed: int,
    shard_pairs: int,
    row_group_rows: int,
    adapts: bool = False,
    state_bytes: int = STATE_BYTES,
    device: str = "cpu",
    world: World = ALONE,
) -> Labels:
    """The labelled pairs of `graph`, the purified one, in the folder `out`.

    A class without pairs is an error; with `adapts` there are as many fewer classes as all have pairs.

    `out` is empty, or holds what an earlier call with the same arguments left. Every rank calls this, and all raise
    what one raises. `state_bytes` bounds the memory of a thread's searches; neither it nor the device changes the
    result.
    """
    sources = choose_sources(graph.indptr, num_sources=num_sources, seed=seed)
    if len(sources) == 0:
        raise ValueError("this graph has no edges, so hops.num_sources finds no source and there is no pair to label")
    plan = LabelPlan(
        fingerprint=graph.fingerprint,
        num_nodes=graph.num_nodes,
        directed=graph.directed,
        classes=classes,
        num_sources=len(sources),
        pairs_per_class=pairs_per_class,
        seed=seed,
        shard_pairs=shard_pairs,
        row_group_rows=row_group_rows,
    )
    sealed = (out / files.MANIFEST).exists()
    world.barrier()  # all have looked before one writes
    if not sealed:
        out.mkdir(parents=True, exist_ok=True)
        search = partial(
            label_hops,
            graph.indptr,
            graph.indices,
            sources,
            directed=graph.directed,
            state_bytes=state_bytes,
            device=device,
        )
        while True:
            shards = _make_shards(search, out, plan, world)
            counts = folder.total_counts(plan, shards)
            fewer = largest_usable_classes(np.asarray(counts))
            if not adapts or fewer in (0, plan.classes):
                break
            log.warning("no pair is %d hops apart: %d classes of hops are told apart, not %d", fewer, fewer, classes)
            if world.leads:
                folder.remove_shards(out)
            world.barrier()
            plan = replace(plan, classes=fewer)
        check_classes(counts)
        if world.leads:
            folder.seal_labels(out, plan, shards)
    elif world.leads:
        folder.remove_partial_shards(out)
    world.barrier()
    return open_labels(out, graph.fingerprint)


def _make_shards(search: Callable[..., Iterator[HopBlock]], out: Path, plan: LabelPlan, world: World) -> list[Shard]:
    """All shards of the plan; every rank makes its own and sees those of all."""
    of_plan = {"classes": plan.classes, "pairs_per_class": plan.pairs_per_class, "seed": plan.seed}
    blocks = partial(search, sources_per_block=plan.sources_per_shard, **of_plan)
    _write_shards(blocks, out, plan, range(*world.share(plan.num_shards)))
    world.barrier()
    shards = folder.collect_shards(out, plan)
    world.barrier()
    return shards


def _write_shards(search: Callable[..., Iterator[HopBlock]], out: Path, plan: LabelPlan, own: range) -> None:
    """Makes the shards of this rank, `own`, that are not finished yet; `search` has all arguments but the range."""
    finished = {index: shard for index in own if (shard := folder.read_finished_shard(out, plan, index)) is not None}
    num_pairs = sum(shard.num_rows for shard in finished.values())
    ranges, runs = [plan.source_range(index) for index in own], _runs([i for i in own if i not in finished])
    with (
        Progress(sum(last - first for first, last in ranges), "source", "label") as progress,
        ThreadPoolExecutor(num_writers(), "shard-writer") as writer,
    ):
        progress.skip(sum(shard.last - shard.first for shard in finished.values()))
        pending: deque[Future[Shard]] = deque()
        for run in runs:
            first, last = plan.source_range(run[0])[0], plan.source_range(run[-1])[1]
            blocks = search(first=first, last=last, on_sources=progress.update)  # renames the nodes
            for index, block in zip(run, blocks, strict=True):
                if len(pending) == num_writers():
                    num_pairs += pending.popleft().result().num_rows
                pending.append(writer.submit(write_shard, out, plan, index, block.u, block.v, block.hop, block.counts))
                progress.set_postfix(pairs=num_pairs)
        num_pairs += sum(written.result().num_rows for written in pending)
        progress.set_postfix(pairs=num_pairs)


def _runs(numbers: list[int]) -> list[list[int]]:
    """The numbers, cut where they do not follow each other.

    >>> _runs([1, 2, 5])
    [[1, 2], [5]]
    """
    cuts = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    return [numbers[start:stop] for start, stop in pairwise(cuts) if stop > start]


def num_writers() -> int:
    """Number of shards written at a time, each in memory; on many cores enough for the few of a default run."""
    return max(1, numba.get_num_threads() // 2)


def check_classes(counts: Sequence[int]) -> None:
    """ValueError naming the class without pairs, the counts, and the largest number of classes that all have pairs.

    >>> check_classes([5, 0, 2])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: hops.classes=3: no pair has hop 2 (pairs per class 1: 5, 2: 0, >= 3: 2); ... hops.classes=2 works
    """
    if min(counts) > 0:
        return
    names = [str(hop) for hop in range(1, len(counts))] + [f">= {len(counts)}"]
    listed = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    works = largest_usable_classes(np.asarray(counts))
    advice = f"the most that all have pairs: {works}, so hops.classes={works} works"
    if not works:
        why = "all pairs are neighbours, for the graph is too small or complete"
        advice = f"no number of classes works: {why}; bring more rows"
    empty = names[list(counts).index(0)]
    raise ValueError(f"hops.classes={len(counts)}: no pair has hop {empty} (pairs per class {listed}); {advice}")


class Searches(NamedTuple):
    """How sources are searched: threads, and the most bytes of state that each may have."""

    threads: int
    state_bytes: int


def ways_to_search(graph: Graph, options: dict[str, Any]) -> list[tuple[Searches, int]]:
    """How the labels of these options may be made, the fastest way first, and the bytes that each takes.

    All threads with blocks as wide as is fast, shared or their own, then narrower ones.
    """
    sources = choose_sources(graph.indptr, num_sources=options["num_sources"], seed=options["seed"])
    threads = numba.get_num_threads()
    if len(sources) == 0:
        return [(Searches(threads, STATE_BYTES), 0)]
    plan = LabelPlan("", graph.num_nodes, graph.directed, **options | {"num_sources": len(sources)})
    sizes = [wide_bytes(graph.num_nodes, words, plan.pairs_per_class or 0) for words in WORDS]
    widest = max(STATE_BYTES, -(-max(sizes) // threads))
    narrow = sorted({STATE_BYTES, *sizes, *(-(-size // threads) for size in sizes)}, reverse=True)
    ways = [Searches(threads, widest), *(Searches(threads, most) for most in narrow if most < widest)]
    num_linked, num_arcs = len(linked_nodes(graph.indptr)), graph.num_arcs * (1 + graph.directed)
    return [(way, needed_bytes(plan, num_linked, num_arcs, way)) for way in ways]


def needed_bytes(plan: LabelPlan, num_linked: int, num_arcs: int, searches: Searches) -> int:
    """The CSR in another order, the searches' state, the rows of the sources in flight, and the shards being made.

    A shard is held as it came (9 bytes a pair), in order (8) and encoded, in buffers that double as they grow and once
    more when it is written (22).
    """
    n, most = plan.num_nodes, plan.num_nodes if plan.pairs_per_class is None else plan.pairs_per_class
    blocks = search_bytes(num_linked, plan.num_sources, most if most < n else 0, *searches)
    state = 40 * n + 4 * num_arcs + max(blocks, num_takers(n, *searches) * thin_bytes(n))
    per_source = min(n - 1, min(most, num_arcs // max(1, num_linked)) + (plan.classes - 1) * most)
    width = plan.index_type.itemsize
    rows = rows_in_flight(min(n, most * plan.classes) * width, plan.sources_per_shard, searches.threads)
    in_flight = min(plan.num_sources, rows) * (per_source * width + 16 * plan.classes)
    shard, written = plan.sources_per_shard * per_source, min(plan.num_shards, num_writers())
    return (50 << 20) + state + in_flight + 9 * shard * min(plan.num_shards, written + 1) + 30 * shard * written
