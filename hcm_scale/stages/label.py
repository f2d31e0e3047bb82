"""The label stage: a purified graph in, a sealed folder of labelled pairs out.

While the kernels search from the sources of one shard, a thread (on many cores several) sorts, writes and flushes the
shards before it. The sources are cut into shards by the plan alone; a process takes consecutive shards, so that it
reorders the graph once. Killed at any moment and started again, with any number of threads or processes, the stage
reuses the finished shards and ends in the same bytes.

Memory: what the BFS holds, and one shard more than there are writers (two on up to three cores), each of at most about
`shard_pairs` pairs in three copies of 9 to 17 bytes a pair.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.console import bar
from hcm_scale.graph import Graph
from hcm_scale.hops import HopBlock, choose_sources, label_hops, largest_usable_classes
from hcm_scale.hops.engines import STATE_BYTES
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.shards import LabelPlan, Labels, open_labels
from hcm_scale.shards import writer as folder
from hcm_scale.shards.labels import FORMAT, Shard
from hcm_scale.shards.writer import write_shard

__all__ = ["FORMAT", "label"]


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
    state_bytes: int = STATE_BYTES,
    world: World = ALONE,
) -> Labels:
    """Labels the pairs of `graph`, the purified one, into the folder `out` and opens it.

    `out` is empty, or holds what an earlier call with the same arguments left. Where there are several ranks each calls
    this, and every one refuses what one refuses. `state_bytes` bounds the searches of a thread, and never shows.
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
    sealed = folder.is_sealed(out)
    world.barrier()  # all have looked before one writes
    if not sealed:
        out.mkdir(parents=True, exist_ok=True)
        write_shards(graph, sources, out, plan, world, state_bytes)
        world.barrier()
        shards = folder.collect_shards(out, plan)
        world.barrier()
        check_classes(folder.total_counts(plan, shards))
        if world.leads:
            folder.seal_labels(out, plan, shards)
    elif world.leads:
        folder.remove_partial_shards(out)
    world.barrier()
    return open_labels(out, graph.fingerprint)


def write_shards(
    graph: Graph,
    sources: NDArray[Any],
    out: Path,
    plan: LabelPlan,
    world: World = ALONE,
    state_bytes: int = STATE_BYTES,
) -> None:
    """Makes the shards that fall to this rank and are not finished yet."""
    mine = range(*world.share(plan.num_shards))
    kept = {index: shard for index in mine if (shard := folder.finished_shards(out, plan, index)) is not None}
    num_pairs = sum(shard.num_rows for shard in kept.values())
    ranges = [plan.source_range(index) for index in mine]
    with (
        bar(sum(last - first for first, last in ranges), "source", "label") as progress,
        ThreadPoolExecutor(num_writers(), "shard-writer") as writer,
    ):
        progress.update(sum(shard.last - shard.first for shard in kept.values()))
        pending: deque[Future[Shard]] = deque()
        todo = [index for index in mine if index not in kept]
        for index, block in _blocks(graph, sources, plan, todo, state_bytes):
            if len(pending) == num_writers():
                num_pairs += pending.popleft().result().num_rows
            pending.append(writer.submit(write_shard, out, plan, index, block.u, block.v, block.hop, block.counts))
            progress.update(block.last - block.first)
            progress.set_postfix(pairs=num_pairs)
        num_pairs += sum(written.result().num_rows for written in pending)
        progress.set_postfix(pairs=num_pairs)


def num_writers() -> int:
    """Shards written at a time, each of them in memory; on many cores enough for the few shards of a default run."""
    return max(1, numba.get_num_threads() // 2)


def _blocks(
    graph: Graph, sources: NDArray[Any], plan: LabelPlan, todo: Sequence[int], state_bytes: int
) -> Iterator[tuple[int, HopBlock]]:
    """(shard, its pairs) for the shards still to do: one walk over the graph's sources a run of neighbouring shards."""
    cuts = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(todo)) if b != a + 1), len(todo)]
    for run in (todo[start:stop] for start, stop in pairwise(cuts) if stop > start):
        blocks = label_hops(
            graph.indptr,
            graph.indices,
            sources,
            classes=plan.classes,
            pairs_per_class=plan.pairs_per_class,
            seed=plan.seed,
            directed=graph.directed,
            sources_per_block=plan.sources_per_shard,
            first=plan.source_range(run[0])[0],
            last=plan.source_range(run[-1])[1],
            state_bytes=state_bytes,
        )
        yield from zip(run, blocks, strict=True)


def check_classes(counts: Sequence[int]) -> None:
    """ValueError naming the class without pairs, the counts, and the largest number of classes that all have pairs.

    >>> check_classes([5, 0, 2])
    Traceback (most recent call last):
    ValueError: hops.classes=3: no pair has hop 2 (pairs per class 1: 5, 2: 0, >= 3: 2); the most that all have pairs: 2
    """
    if min(counts) > 0:
        return
    names = [str(hop) for hop in range(1, len(counts))] + [f">= {len(counts)}"]
    listed = ", ".join(f"{name}: {count}" for name, count in zip(names, counts, strict=True))
    works = largest_usable_classes(np.asarray(counts))
    alike = (
        "no number of classes works: all pairs are neighbours, for the graph is too small or everybody is joined to all"
    )
    advice = f"the most that all have pairs: {works}" if works else alike
    empty = names[list(counts).index(0)]
    raise ValueError(f"hops.classes={len(counts)}: no pair has hop {empty} (pairs per class {listed}); {advice}")
