"""Sampled neighbourhoods as layered bipartite blocks, the rows of Â that a batch of seeds needs.

`sample_blocks` goes from the seeds towards the input. Each layer's targets draw at most `fan_out` neighbours, uniformly
and without replacement; targets and drawn neighbours together are the targets of the next layer. Degrees and weights
are the whole graph's: an entry weighs scale[u] * scale[v], for neighbours times degree / drawn and times the weight of
the edge where edges have one, so that the expected block is Â itself. The draw does not depend on edge weights. Rows
that draw every neighbour are exact, self loops always are, and fan-out `all` (None) reproduces the whole graph's
forward pass. A draw is a pure function of (seed, step, layer, node).

A block is a CSR of torch tensors. Its indices take 32 bits: they are positions within the batch, not nodes of the
graph. An entry costs 8 bytes, 16 with the transpose.

Cost: time in proportion to the entries, about 50 ns each; the memory of the blocks; and per calling thread 4 bytes a
node of scratch, held between calls so that telling new nodes from known ones takes one read.

Parallelism is across batches: threads may share a `sampler`, and get the same blocks whatever their number. Kernels are
serial and release the GIL. None enters numba's thread pool, which the model uses at the same time and which, where it
is the `workqueue` pool, aborts the process when two threads enter it at once. Random reads in large arrays decide the
speed, so each happens once: `plan` reads `indptr` for all targets into small arrays that the later passes read in
order, `weigh` reads `scale` once per node, and `relabel` and `gather` prefetch their cache lines.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.intrinsics import prefetch
from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, bits, mix

FanOut = int | None
_MAX_ENTRIES = 2**31 - 1
_FIRST_MARKS = 1024
_AHEAD = 16  # entries between prefetching a cache line and reading it


@dataclass(frozen=True, eq=False)
class Block:
    """One bipartite layer in CSR: row i times the sources' rows is target i's aggregate.

    The targets are the first `num_targets` of the sources, and each row's first entry is its self loop. The transpose
    makes the backward pass a row-wise product too; it is None where the sources need no gradients.
    """

    indptr: Tensor  # i32 (num_targets + 1,)
    indices: Tensor  # i32 (entries,): positions into the sources
    weights: Tensor  # f32 (entries,)
    num_targets: int
    num_sources: int
    t_indptr: Tensor | None = None  # i32 (num_sources + 1,)
    t_indices: Tensor | None = None  # i32 (entries,): positions into the targets
    t_weights: Tensor | None = None  # f32 (entries,)

    @staticmethod
    def of(
        indptr: NDArray[np.int32], indices: NDArray[np.int32], weights: NDArray[np.float32], num_sources: int
    ) -> "Block":
        """From arrays, sharing their memory."""
        forward = torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(weights)
        return Block(*forward, len(indptr) - 1, num_sources)

    @property
    def num_entries(self) -> int:
        return len(self.indices)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Block":
        """The same block with every tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in tensors(self)}
        return replace(self, **changed)

    def with_transpose(self) -> "Block":
        """The same block with its transpose filled in."""
        t_indptr = torch.empty(self.num_sources + 1, dtype=torch.int32)
        t_indices, t_weights = torch.empty_like(self.indices), torch.empty_like(self.weights)
        arrays = self.indptr, self.indices, self.weights, t_indptr, t_indices, t_weights
        transpose(*(array.numpy() for array in arrays))
        return replace(self, t_indptr=t_indptr, t_indices=t_indices, t_weights=t_weights)


def tensors(value: Any) -> list[tuple[str, Tensor]]:
    """The fields of a dataclass that hold a tensor."""
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return [(name, item) for name, item in named if isinstance(item, Tensor)]


Sampler = Callable[[NDArray[np.int64], int], tuple[NDArray[np.int64], tuple[Block, ...]]]  # of (seeds, step)


class DrawScratch:
    """Positions of nodes in the current batch, for one thread at a time.

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
    """A function sample(seeds, step) of this graph. Threads may share it: each gets scratch of its own."""
    check_fan_outs(fan_outs, hub_cap)
    local = threading.local()
    draw_blocks = functools.partial(
        sample_blocks, indptr, indices, scale, fan_outs=fan_outs, seed=seed, hub_cap=hub_cap, weights=weights
    )

    def sample(seeds: NDArray[np.int64], step: int) -> tuple[NDArray[np.int64], tuple[Block, ...]]:
        if not hasattr(local, "scratch"):
            local.scratch = DrawScratch(len(indptr) - 1)
        return draw_blocks(seeds, step=step, scratch=local.scratch)

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
    count = relabel(seeds, scratch.position, base, scratch.nodes, 0, np.empty(len(seeds), np.int32))
    if count < len(seeds):
        raise repeated_seeds(len(seeds) - count, len(seeds))
    blocks: list[Block] = []
    for layer in reversed(range(len(fan_outs))):
        limit, key = most_drawn(fan_outs[layer], hub_cap), (seed, step, layer)
        block = _sample_layer(indptr, indices, scale, weights, scratch, base, num_targets=count, limit=limit, key=key)
        blocks.insert(0, block)
        count = block.num_sources
    return scratch.nodes[:count].copy(), tuple(blocks)


def _sample_layer(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    scale: NDArray[np.float32],
    edge_weights: NDArray[np.float32] | None,
    scratch: DrawScratch,
    base: int,
    *,
    num_targets: int,
    limit: int,
    key: tuple[int, int, int],
) -> Block:
    """The block whose targets are the first `num_targets` of `scratch.nodes`; appends its new sources there."""
    targets = scratch.nodes[:num_targets]
    begins, degrees = np.empty((2, num_targets), np.int64)
    starts = np.empty(num_targets + 1, np.int32)
    num_entries = plan(indptr, targets, limit, begins, degrees, starts)
    if num_entries > _MAX_ENTRIES:
        raise ValueError(
            f"a block of {num_entries} entries is too large (at most 2^31 - 1): lower fan_outs or the batch"
        )
    entries, weights = np.empty(num_entries, indices.dtype), np.empty(num_entries, np.float32)
    draw(indices, targets, begins, degrees, starts, key, entries)
    positions = np.empty(num_entries, np.int32)
    count = relabel(entries, scratch.position, base, scratch.nodes, num_targets, positions)
    weigh(scale, scratch.nodes[:count], degrees, starts, positions, weights)
    if edge_weights is not None:
        weigh_edges(indices, edge_weights, begins, degrees, starts, entries, weights)
    return Block.of(starts, positions, weights, count)


def most_drawn(fan_out: FanOut, hub_cap: int | None) -> int:
    """The most neighbours that a target draws."""
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
    """The error for seeds that name a node twice: a node has one position."""
    return ValueError(f"seeds must be different nodes; {num_repeats} of {num_seeds} are repeats")


@kernel(nogil=True)
def plan(indptr, targets, fan_out, begins, degrees, starts):
    """Where each target's neighbours begin in the graph, how many it has, and where its entries start in the block.

    A row has one self loop and at most `fan_out` neighbours. Returns the number of entries; `starts`, of 32 bits, is
    good only where that number is below 2^31.
    """
    num_entries = 0
    starts[0] = 0
    for i in range(len(targets)):
        u = targets[i]
        begins[i] = indptr[u]
        degrees[i] = indptr[u + 1] - indptr[u]
        num_entries += 1 + min(degrees[i], fan_out)
        starts[i + 1] = num_entries
    return num_entries


@kernel(nogil=True)
def draw(indices, targets, begins, degrees, starts, key, out):
    """For each target: the target itself, then a uniform draw of its neighbours without replacement.

    `starts` says how many. All of them are copied in order; of more than half, the rest is drawn and left out. The key
    is (seed, step, layer).
    """
    seed, step, layer = key
    taken = np.zeros(_FIRST_MARKS, np.uint8)
    for i in range(len(targets)):
        begin, degree, entry = begins[i], degrees[i], starts[i]
        count = starts[i + 1] - entry - 1
        out[entry] = targets[i]
        row = out[entry + 1 : entry + 1 + count]
        if count == degree:
            for k in range(count):
                row[k] = indices[begin + k]
            continue
        if degree > len(taken):
            taken = np.zeros(2 * degree, np.uint8)
        state = bits(seed, step, layer, targets[i])
        if 2 * count <= degree:
            choose(state, degree, count, taken, row)
            for k in range(count):
                taken[row[k]] = 0
                row[k] = indices[begin + row[k]]
        else:
            choose(state, degree, degree - count, taken, row)  # the marks count; the row is written again below
            k = 0
            for j in range(degree):
                if not taken[j]:
                    row[k] = indices[begin + j]
                    k += 1
                taken[j] = 0


@kernel(nogil=True, inline="always")
def choose(state, bound, count, taken, out):
    """`count` different numbers below `bound`, every subset equally likely, marked in `taken` (Floyd's algorithm)."""
    for k in range(count):
        top = bound - count + k
        pick = below(mix(state, k), top + 1)
        if taken[pick]:
            pick = top
        taken[pick] = 1
        out[k] = pick


@kernel(nogil=True)
def relabel(entries, position, base, nodes, count, out):
    """Positions of the entries in `nodes`; new ones are appended there in order of appearance. Returns the new count.

    `position[v] - base` is v's position, or negative where v is not in this batch yet. Written without a branch:
    whether a node is new is a coin toss, and a wrong guess would stall the reads that follow. `nodes` needs one
    spare slot.
    """
    last = len(entries) - 1
    for e in range(len(entries)):
        prefetch(position, entries[min(e + _AHEAD, last)])
        v = entries[e]
        known = position[v] - base
        is_new = known < 0
        place = count if is_new else known
        nodes[count] = v
        position[v] = base + place
        out[e] = place
        count += 1 if is_new else 0
    return count


@kernel(nogil=True)
def weigh(scale, nodes, degrees, starts, indices, out):
    """The whole graph's GCN weights scale[u] * scale[v], those of neighbours times degree / drawn."""
    scales = np.empty(len(nodes), np.float32)
    for i in range(len(nodes)):
        scales[i] = scale[nodes[i]]
    for i in range(len(degrees)):
        start, end = starts[i], starts[i + 1]
        own = scales[i]
        out[start] = own * own
        boosted = own * np.float32(degrees[i] / max(end - start - 1, 1))
        for e in range(start + 1, end):
            out[e] = boosted * scales[indices[e]]


@kernel(nogil=True)
def weigh_edges(graph, weights, begins, degrees, starts, entries, out):
    """Multiplies the weights of drawn neighbours by those of their edges, found by binary search in the graph's rows.

    `graph` are the CSR's indices and `entries` the nodes that were drawn, self loops first.
    """
    for i in range(len(begins)):
        first = starts[i] + 1
        takes_all = starts[i + 1] - first == degrees[i]  # in the order of the row
        for e in range(first, starts[i + 1]):
            at, end = begins[i], begins[i] + degrees[i]
            if takes_all:
                at += e - first
            else:
                while at < end:
                    middle = (at + end) // 2
                    if graph[middle] < entries[e]:
                        at = middle + 1
                    else:
                        end = middle
            out[e] *= weights[at]


@kernel(nogil=True)
def transpose(indptr, indices, weights, t_indptr, t_indices, t_weights):
    """The CSR of the transpose by counting; entries of a row come in the order of their old rows."""
    num_rows, num_columns = len(indptr) - 1, len(t_indptr) - 1
    t_indptr[:] = 0
    for e in range(len(indices)):
        t_indptr[indices[e] + 1] += 1
    for j in range(num_columns):
        t_indptr[j + 1] += t_indptr[j]
    free = t_indptr[:-1].copy()
    for i in range(num_rows):
        for e in range(indptr[i], indptr[i + 1]):
            slot = free[indices[e]]
            free[indices[e]] += 1
            t_indices[slot] = i
            t_weights[slot] = weights[e]


@kernel(nogil=True)
def gather(x, nodes, out):
    """out[i] = x[nodes[i]]."""
    width, last = x.shape[1], len(nodes) - 1
    for i in range(len(nodes)):
        place = nodes[min(i + _AHEAD, last)] * width
        prefetch(x, place)
        prefetch(x, place + width - 1)
        row = x[nodes[i]]
        for k in range(width):
            out[i, k] = row[k]
