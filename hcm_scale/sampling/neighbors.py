"""Mini-batches: labelled pairs -> unique seeds -> sampled neighbourhoods as layered bipartite blocks -> attributes.

`make_batch` turns one `PairBatch` into all that the model needs to predict it. Nodes that occur in several pairs are
encoded once. Attributes are gathered row by row from an (n, q) array, which may be a memory map: only the rows of the
batch are read. Full batch is the same thing with all pairs and fan-out `all`. Memory of one batch: 4 q bytes a node, 16
an entry of a block (8 without its transpose), 24 a pair.

`NeighborSampler` goes from the seeds towards the input. Each layer's targets draw at most `fan_out` neighbours,
uniformly and without replacement; targets and drawn neighbours together are the targets of the next layer. Degrees and
weights are the whole graph's: an entry weighs scale[u] * scale[v], for neighbours times degree / drawn and times the
weight of the edge where edges have one, so that the expected block is Â itself. The draw does not depend on edge
weights. Rows that draw every neighbour are exact, self loops always are, and fan-out `all` (None) reproduces the whole
graph's forward pass. A draw is a pure function of (seed, step, layer, node).

Cost: time in proportion to the entries, about 50 ns each; 8 bytes an entry; and per calling thread 4 bytes a node of
scratch, held between calls so that telling new nodes from known ones takes one read.

Parallelism is across batches: threads may share a sampler, and get the same blocks whatever their number. Kernels are
serial and release the GIL. None enters numba's thread pool, which the model uses at the same time and which, where it
is the `workqueue` pool, aborts the process when two threads enter it at once. Random reads in large arrays decide the
speed, so each happens once: `plan` reads `indptr` for all targets into small arrays that the later passes read in
order, `weigh` reads `scale` once per node, and `relabel` and `gather` prefetch their cache lines.

`TorchSparseSampler` has the same blocks drawn by torch-sparse, the sampler under PyG's NeighborSampler (extra
`sparse`). Use it to compare, not to train large graphs: it copies the graph's indices to 64 bits (8 bytes an arc) and
draws from torch's global generator, so only one thread draws at a time. The generator is seeded by (seed, step, layer)
and put back after each draw; blocks are repeatable as long as no other thread uses torch's global generator meanwhile.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel, prefetch
from hcm_scale.base.order import first_not_below
from hcm_scale.base.rng import below, bits, key, mix
from hcm_scale.base.spmm import ModelInput, Propagated
from hcm_scale.model import GENERATOR, Block, MiniBatch
from hcm_scale.sampling.pairs import PairBatch

FanOut = int | None
Drawn = tuple[NDArray[np.int64], tuple[Block, ...]]  # the nodes that seeds need, seeds first; blocks, input side first
_MAX_ENTRIES = 2**31 - 1
_FIRST_MARKS = 1024
_AHEAD = 16  # entries between prefetching a cache line and reading it


def most_drawn(fan_out: FanOut, hub_cap: int | None) -> int:
    limit = hub_cap if fan_out is None else fan_out
    return _MAX_ENTRIES if limit is None else limit


class NeighborSampler:
    """sample(seeds, step): the nodes that these different seeds need, and one block per fan-out.

    A fan-out of None takes all neighbours, or `hub_cap` of them where a node has more. `scale` is that of `gcn_scale`
    with the same `weights`, one an entry of the graph, or None where edges have none. Threads may share a sampler.

    >>> star = np.array([0, 3, 4, 5, 6]), np.array([1, 2, 3, 0, 0, 0], np.int32)
    >>> nodes, (block,) = NeighborSampler(*star, np.float32([0.5, 0.7, 0.7, 0.7]), [2], seed=0)(np.array([0]), 0)
    >>> nodes[0], block.num_targets, block.num_sources, block.weights.tolist()[0]
    (np.int64(0), 1, 3, 0.25)
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        scale: NDArray[np.float32],
        fan_outs: Sequence[FanOut],
        *,
        seed: int,
        hub_cap: int | None = None,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        self.num_nodes = len(indptr) - 1
        assert len(scale) == self.num_nodes
        self.indptr, self.indices, self.scale, self.weights = indptr, indices, scale, weights
        self.limits, self.seed = [most_drawn(fan_out, hub_cap) for fan_out in fan_outs], seed
        self._local = threading.local()

    def __call__(self, seeds: NDArray[np.int64], step: int) -> Drawn:
        seeds = self._checked(seeds)
        if not hasattr(self._local, "scratch"):
            self._local.scratch = _Scratch(self.num_nodes)
        scratch: _Scratch = self._local.scratch
        scratch.start_batch()
        num_different = scratch.number(seeds, np.empty(len(seeds), np.int32))
        assert num_different == len(seeds), "a node has one position"
        blocks: list[Block] = []
        for layer in reversed(range(len(self.limits))):
            blocks.insert(0, self._draw_layer(scratch, self.limits[layer], (self.seed, step, layer)))
        return scratch.nodes[: scratch.count].copy(), tuple(blocks)

    def _checked(self, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
        """The seeds, contiguous; kernels index without checks, so those outside the graph are refused."""
        if len(seeds) and (seeds.min() < 0 or seeds.max() >= self.num_nodes):
            raise ValueError(f"seeds run from {seeds.min()} to {seeds.max()}; nodes run from 0 to {self.num_nodes - 1}")
        return np.ascontiguousarray(seeds, np.int64)

    def _draw_layer(self, scratch: "_Scratch", limit: int, key: tuple[int, int, int]) -> Block:
        """The block whose targets are all nodes of the batch so far; its new sources join them."""
        targets = scratch.nodes[: scratch.count]
        begins, degrees = np.empty((2, len(targets)), np.int64)
        starts = np.empty(len(targets) + 1, np.int32)
        num_entries = plan(self.indptr, targets, limit, begins, degrees, starts)
        if num_entries > _MAX_ENTRIES:
            raise ValueError(
                f"a block of {num_entries} entries is too large (at most 2^31 - 1): lower fan_outs or the batch"
            )
        entries, weights = np.empty(num_entries, self.indices.dtype), np.empty(num_entries, np.float32)
        draw(self.indices, targets, begins, degrees, starts, key, entries)
        positions = np.empty(num_entries, np.int32)
        count = scratch.number(entries, positions)
        weigh(self.scale, scratch.nodes[:count], degrees, starts, positions, weights)
        if self.weights is not None:
            weigh_edges(self.indices, self.weights, begins, degrees, starts, entries, weights)
        return Block.of(starts, positions, weights, count)


class _Scratch:
    """The nodes of the current batch and their positions, for one thread.

    Each batch numbers its nodes from a base above all numbers of the batches before, so nothing is cleared in between.
    """

    def __init__(self, num_nodes: int) -> None:
        self.position: NDArray[Any] = np.full(num_nodes, -1, np.int32 if num_nodes < 2**30 else np.int64)
        self.nodes = np.empty(num_nodes + 1, np.int64)  # touched, and so resident, only as far as a batch reaches
        self.base = -num_nodes
        self.count = 0

    def start_batch(self) -> None:
        """Forgets all nodes: positions below the new base are stale."""
        self.base, self.count = self.base + len(self.position), 0
        if self.base > np.iinfo(self.position.dtype).max - len(self.position):
            self.position.fill(-1)
            self.base = 0

    def number(self, entries: NDArray[Any], out: NDArray[np.int32]) -> int:
        """Writes the positions of these nodes to `out`, new ones at the end; the number of nodes so far."""
        entries = entries.astype(self.position.dtype, copy=False)  # one kernel to compile
        self.count = relabel(entries, self.position, self.base, self.nodes, self.count, out)
        return self.count


class TorchSparseSampler(NeighborSampler):
    """As `NeighborSampler`, with neighbours that torch-sparse draws without replacement; loops and weights are ours.

    Its draw is not quite uniform: Floyd's algorithm picks its j-th number from 0 .. j, torch-sparse from 0 .. j - 1. Of
    d neighbours, k drawn, the first d - k come with probability k / (d - 1) and the last k with (k - 1) / (d - 1), so
    weights are divided by these instead of k / d, and the expected block is Â again. With k = 1 the last neighbour
    never comes, and no weight makes up for that.
    """

    def __init__(self, *graph: Any, **options: Any) -> None:
        super().__init__(*graph, **options)
        if any(limit < 2 for limit in self.limits):
            raise ValueError(f"fan-outs of {self.limits}: backend='torch_sparse' needs 2 or more")
        self._sample_adj = import_sample_adj()
        self._graph = [torch.from_numpy(np.array(array, np.int64)) for array in (self.indptr, self.indices)]

    def __call__(self, seeds: NDArray[np.int64], step: int) -> Drawn:
        nodes = self._checked(seeds)
        blocks: list[Block] = []
        for layer in reversed(range(len(self.limits))):
            with GENERATOR, torch.random.fork_rng(devices=[]):
                torch.manual_seed(key(self.seed, step, layer))
                drawn = self._sample_adj(*self._graph, torch.from_numpy(nodes), self.limits[layer], False)
            blocks.insert(0, self._block([tensor.numpy() for tensor in drawn], nodes))
            nodes = drawn[2].numpy()
        return nodes, tuple(blocks)

    def _block(self, drawn: Sequence[NDArray[np.int64]], targets: NDArray[np.int64]) -> Block:
        """The drawn neighbours, each row preceded by its self loop, weighed by how likely each was drawn."""
        rows, columns, sources, arcs = drawn
        begins, num_drawn = self.indptr[targets], np.diff(rows)
        degrees = self.indptr[targets + 1] - begins
        starts = (rows + np.arange(len(rows))).astype(np.int32)
        indices = np.insert(columns, rows[:-1], np.arange(len(targets))).astype(np.int32)
        weights = np.empty(len(indices), np.float32)
        weigh(self.scale, sources, degrees, starts, indices, weights)
        degree, drawn_of = np.repeat(degrees, num_drawn), np.repeat(num_drawn, num_drawn)
        is_late = arcs - np.repeat(begins, num_drawn) >= degree - drawn_of
        likely = np.maximum((drawn_of - is_late) / np.maximum(degree - 1, 1), 1e-9)
        correction = np.where(drawn_of == degree, 1.0, drawn_of / degree / likely).astype(np.float32)
        if self.weights is not None:
            correction *= self.weights[arcs]
        weights *= np.insert(correction, rows[:-1], 1.0)
        return Block.of(starts, indices, weights, len(sources))


def import_sample_adj() -> Callable[..., Any]:
    """(rowptr, col, nodes, limit, replace) -> rowptr, col, sources (nodes first) and arc numbers of what was drawn."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its import goes through torch.jit.script
            import torch_sparse  # noqa: F401  registers the operator
    except (ImportError, OSError) as error:
        raise ValueError(
            "sampling.backend=torch_sparse needs the extra sparse: pip install 'hcm-scale[sparse]', or take "
            f"sampling.backend=numba ({error})"
        ) from error
    return torch.ops.torch_sparse.sample_adj


BACKENDS: dict[str, type[NeighborSampler]] = {"numba": NeighborSampler, "torch_sparse": TorchSparseSampler}


def make_batch(pairs: PairBatch, x: ModelInput, sample: NeighborSampler, *, input_gradients: bool = True) -> MiniBatch:
    """One batch, on the CPU. Every draw is keyed by the batch's (epoch, step), so equal pairs give equal batches.

    Blocks carry their transposes; the first goes without where `input_gradients` is off, that is, where the model
    multiplies it with the attributes directly and nothing flows back through it.
    """
    seeds, positions = np.unique(np.concatenate([pairs.u, pairs.v]), return_inverse=True)
    nodes, blocks = sample(seeds, key(pairs.epoch, pairs.step))
    if isinstance(x, Propagated):
        rows = x.rows(nodes)
    else:
        gather(x, nodes, rows := np.empty((len(nodes), x.shape[1]), np.float32))
    ends = torch.from_numpy(positions)
    return MiniBatch(
        nodes=torch.from_numpy(nodes),
        num_seeds=len(seeds),
        x=torch.from_numpy(rows),
        blocks=tuple(b.with_transpose() if i or input_gradients else b for i, b in enumerate(blocks)),
        left=ends[: len(pairs.u)],
        right=ends[len(pairs.u) :],
        hop=torch.from_numpy(pairs.hop),
        epoch=pairs.epoch,
        step=pairs.step,
    )


@kernel(nogil=True)
def plan(indptr, targets, fan_out, begins, degrees, starts):
    """Where each target's neighbours begin in the graph, how many it has, and where its entries start in the block.

    A row has one self loop and at most `fan_out` neighbours. Returns the number of entries, which must be below 2^31.
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

    `starts` says how many. Of more than half, the rest is drawn and left out. The key is (seed, step, layer).
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

    `position[v] - base` is v's position, negative where v is new; `nodes` needs a spare slot. Written without a branch:
    whether a node is new is a coin toss, and a wrong guess would stall the reads that follow.
    """
    last = len(entries) - 1
    for e in range(len(entries)):
        prefetch(position, entries[min(e + _AHEAD, last)])
        v = entries[e]
        old = position[v] - base
        is_new = old < 0
        number = count if is_new else old
        nodes[count] = v
        position[v] = base + number
        out[e] = number
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
            begin, drawn = begins[i], entries[e]
            at = begin + e - first if takes_all else first_not_below(graph, begin, begin + degrees[i], drawn)
            out[e] *= weights[at]


@kernel(nogil=True)
def gather(x, nodes, out):
    width, last = x.shape[1], len(nodes) - 1
    for i in range(len(nodes)):
        offset = nodes[min(i + _AHEAD, last)] * width
        prefetch(x, offset)
        prefetch(x, offset + width - 1)
        row = x[nodes[i]]
        for k in range(width):
            out[i, k] = row[k]
