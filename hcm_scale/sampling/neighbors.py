"""Sampled neighbourhoods as layered bipartite blocks, the rows of Â that a batch of seeds needs.

`sample_blocks` walks from the seeds towards the input. Each layer's targets draw at most `fan_out` neighbours,
uniformly and without replacement; targets and drawn neighbours together are the targets of the layer before. Degrees
and weights are the whole graph's: an entry weighs scale[u] * scale[v], for neighbours times degree / drawn and times
the weight of the edge where edges have one, so that the expected block is Â itself. Weights do not sway the draw. Rows
that draw every neighbour are exact, self loops always are, and fan-out `all` (None) reproduces the whole graph's
forward pass. A draw is a pure function of (seed, step, layer, node).

Cost: time in proportion to the entries, about 50 ns each; the memory of the blocks, 8 bytes an entry; and per calling
thread 4 bytes a node of scratch, kept between calls so that telling new nodes from known ones takes one read.

Parallelism is across batches: threads may share a `sampler`, and get the same blocks whatever their number.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.sampling import kernels
from hcm_scale.sampling.block import Block

FanOut = int | None
_MAX_ENTRIES = 2**31 - 1


class DrawScratch:
    """Positions of nodes in the batch at hand, for one thread at a time.

    Each batch numbers its nodes from a base above all numbers of the batches before, so nothing is cleared in between.
    """

    def __init__(self, num_nodes: int) -> None:
        dtype = np.int32 if num_nodes < 2**30 else np.int64
        self.position: NDArray[Any] = np.full(num_nodes, -1, dtype)
        self.nodes = np.empty(num_nodes + 1, np.int64)  # touched, and so resident, only as far as a batch reaches
        self._used = 0

    def new_base(self) -> int:
        """A base for a new batch; all positions below it are stale."""
        num_nodes = len(self.position)
        if self._used > np.iinfo(self.position.dtype).max - num_nodes:
            self.position.fill(-1)
            self._used = 0
        base, self._used = self._used, self._used + num_nodes
        return base


Sampler = Callable[[NDArray[np.int64], int], tuple[NDArray[np.int64], tuple[Block, ...]]]


def sampler(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    scale: NDArray[np.float32],
    fan_outs: Sequence[FanOut],
    *,
    seed: int,
    hub_cap: int | None = None,
    weights: NDArray[np.float32] | None = None,
) -> Sampler:
    """`sample(seeds, step)` with everything else held. Threads may share it: each gets scratch of its own."""
    check_fan_outs(fan_outs, hub_cap)
    local = threading.local()

    def sample(seeds: NDArray[np.int64], step: int) -> tuple[NDArray[np.int64], tuple[Block, ...]]:
        if not hasattr(local, "scratch"):
            local.scratch = DrawScratch(len(indptr) - 1)
        options: dict[str, Any] = {"seed": seed, "step": step, "hub_cap": hub_cap, "scratch": local.scratch}
        return sample_blocks(indptr, indices, scale, seeds, fan_outs, weights=weights, **options)

    return sample


def sample_blocks(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    scale: NDArray[np.float32],
    seeds: NDArray[np.int64],
    fan_outs: Sequence[FanOut],
    *,
    seed: int,
    step: int,
    hub_cap: int | None = None,
    weights: NDArray[np.float32] | None = None,
    scratch: DrawScratch | None = None,
) -> tuple[NDArray[np.int64], tuple[Block, ...]]:
    """The nodes that the seeds need (i64, seeds first) and one block per fan-out, input side first.

    A fan-out of None takes all neighbours, or `hub_cap` of them where a node has more. `scale` is that of `gcn_scale`
    with the same `weights`, one an entry of the graph, or None where edges have none.

    >>> star = np.array([0, 3, 4, 5, 6]), np.array([1, 2, 3, 0, 0, 0], np.int32)
    >>> nodes, (block,) = sample_blocks(*star, np.float32([0.5, 0.7, 0.7, 0.7]), np.array([0]), [2], seed=0, step=0)
    >>> nodes[0], block.num_targets, block.num_sources, block.weights.tolist()[0]
    (np.int64(0), 1, 3, 0.25)
    """
    check_fan_outs(fan_outs, hub_cap)
    check_nodes(seeds, scale, len(indptr) - 1)
    seeds = np.ascontiguousarray(seeds, np.int64)
    scratch = DrawScratch(len(indptr) - 1) if scratch is None else scratch
    base = scratch.new_base()
    count = kernels.relabel(seeds, scratch.position, base, scratch.nodes, 0, np.empty(len(seeds), np.int32))
    if count < len(seeds):
        raise repeated_seeds(len(seeds) - count, len(seeds))
    blocks: list[Block] = []
    for layer in reversed(range(len(fan_outs))):
        limit = most_drawn(fan_outs[layer], hub_cap)
        key = seed, step, layer
        where: dict[str, Any] = {"base": base, "num_targets": count, "limit": limit, "key": key}
        block = _sample_layer(indptr, indices, scale, weights, scratch, **where)
        blocks.insert(0, block)
        count = block.num_sources
    return scratch.nodes[:count].copy(), tuple(blocks)


def _sample_layer(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    scale: NDArray[np.float32],
    edge_weights: NDArray[np.float32] | None,
    scratch: DrawScratch,
    *,
    base: int,
    num_targets: int,
    limit: int,
    key: tuple[int, int, int],
) -> Block:
    """The block whose targets are the first `num_targets` of `scratch.nodes`; appends its new sources there."""
    targets = scratch.nodes[:num_targets]
    begins, degrees = np.empty((2, num_targets), np.int64)
    starts = np.empty(num_targets + 1, np.int32)
    num_entries = kernels.plan(indptr, targets, limit, begins, degrees, starts)
    if num_entries > _MAX_ENTRIES:
        raise ValueError(
            f"a block of {num_entries} entries is too large (at most 2^31 - 1): lower fan_outs or the batch"
        )
    entries, weights = np.empty(num_entries, indices.dtype), np.empty(num_entries, np.float32)
    kernels.draw(indices, targets, begins, degrees, starts, key, entries)
    positions = np.empty(num_entries, np.int32)
    count = kernels.relabel(entries, scratch.position, base, scratch.nodes, num_targets, positions)
    kernels.weigh(scale, scratch.nodes[:count], degrees, starts, positions, weights)
    if edge_weights is not None:
        kernels.weigh_edges(indices, edge_weights, begins, degrees, starts, entries, weights)
    return Block.of(starts, positions, weights, count)


def most_drawn(fan_out: FanOut, hub_cap: int | None) -> int:
    """How many neighbours a row may have."""
    limit = hub_cap if fan_out is None else fan_out
    return _MAX_ENTRIES if limit is None else limit


def check_fan_outs(fan_outs: Sequence[FanOut], hub_cap: int | None) -> None:
    """Refuses fan-outs that are not positive integers or None."""
    for fan_out in fan_outs:
        if fan_out is not None and fan_out < 1:
            raise ValueError(f"fan_outs={list(fan_outs)} must be positive integers or all (None)")
    if hub_cap is not None and hub_cap < 1:
        raise ValueError(f"hub_cap={hub_cap} must be a positive integer or none (None)")


def check_nodes(seeds: NDArray[np.int64], scale: NDArray[np.float32], num_nodes: int) -> None:
    """Refuses seeds and scales that do not fit the graph: kernels index without checks."""
    if len(scale) != num_nodes:
        raise ValueError(f"scale has {len(scale)} entries; the graph has {num_nodes} nodes")
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
        raise ValueError(f"seeds run from {seeds.min()} to {seeds.max()}; nodes run from 0 to {num_nodes - 1}")


def repeated_seeds(num_repeats: int, num_seeds: int) -> ValueError:
    """The refusal of seeds that name a node twice: a row has one position."""
    return ValueError(f"seeds must be different nodes; {num_repeats} of {num_seeds} are repeats")
