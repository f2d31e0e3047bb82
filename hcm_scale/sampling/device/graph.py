"""The graph on a device, and the rows of Â that a batch needs, drawn there in plain torch.

`draw_rows` draws at most `limit` neighbours a target, uniformly and without replacement, with the weights of
`neighbors`: scale[u] * scale[v], for neighbours times degree / drawn and the weight of the edge where edges have one,
so that the expected row is Â's. A draw is a function of (key, node) alone. `draw_blocks` does so layer by layer and
numbers the nodes, and gives what the CPU's sampler gives (other neighbours, the same law). It asks the device for
sizes, a few times a layer; where one layer is sampled, `EndsBatch` does without blocks.

Draws without replacement are the first k of a keyed random order of 0 .. size - 1 that is computed, not stored, any
number of it by itself: swap-or-not (Hoang, Morris and Rogaway 2012). A round pairs every number x with the partner
(turn - x) mod size, and one coin per pair says whether the two swap. A round undoes itself, so any number of rounds is
a bijection, at every size and without a table. A number that has been swapped once is uniform; with probability
2^-ROUNDS it never is. Words have 32 bits. torch has no unsigned arithmetic, so they live in int64 here;
`kernels` does the same in uint32 and gets the same numbers.

Memory: 4 bytes an entry of the graph (8 from 2^31 nodes on) and 4 for its weight, if any, 12 + 4 q bytes a node; per
batch about 60 bytes an entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_into_device, copy_to_device
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import ModelInput, Propagated, gcn_scale
from hcm_scale.model import Block

ROUNDS = 24
MAX_SIZE = 2**31 - 1
GOLDEN = 0x9E3779B9
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)  # of Chris Wellons' lowbias32
_MASK = 0xFFFFFFFF
_MANY_ENTRIES = 1 << 22  # of a CSR: with fewer the cores make Â x sooner than a kernel is compiled


def mix(word: Tensor) -> Tensor:
    """A bijection of 32-bit words that leaves no bit of the input recognisable."""
    word = ((word ^ (word >> 16)) * MULTIPLIERS[0]) & _MASK
    word = ((word ^ (word >> 15)) * MULTIPLIERS[1]) & _MASK
    return word ^ (word >> 16)


def word_of(key: int | Tensor, item: Tensor) -> Tensor:
    """32 random bits for `item` under a 63-bit key, both i64."""
    word = mix((item ^ key) & _MASK)
    return mix((word + (item >> 32) + (key >> 32)) & _MASK)


def shuffled(index: Tensor, size: Tensor, word: Tensor) -> Tensor:
    """The index-th of 0 .. size - 1 in the order of `word`; i64 tensors that broadcast, sizes below 2^31.

    >>> shuffled(torch.arange(5), torch.tensor(5), torch.tensor(7)).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    for number in range(ROUNDS):
        key = mix((word + (number + 1) * GOLDEN) & _MASK)
        other = (key * size >> 32) - index
        other = torch.where(other < 0, other + size, other)
        coin = mix(key ^ torch.maximum(index, other)) & 1
        index = torch.where(coin == 1, other, index)
    return index


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """A graph with attributes in one device's memory."""

    indptr: Tensor  # i64 (n + 1,)
    indices: Tensor  # i32 or i64 (entries,)
    scale: Tensor  # f32 (n,)
    x: Tensor  # f32 (n, q) or more columns, zero from q on
    num_attributes: int  # q
    weights: Tensor | None = None  # f32 (entries,)

    @property
    def num_nodes(self) -> int:
        return len(self.scale)

    @property
    def device(self) -> torch.device:
        return self.x.device


def graph_to(
    device: torch.device | str,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: ModelInput,
    num_columns: int | None = None,
    weights: NDArray[np.float32] | None = None,
) -> DeviceGraph:
    """Copies a graph and its attributes, in pieces; `num_columns` of at least q leaves room beside the attributes.

    An x that is not made yet is made there.
    """
    assert len(x) == len(indptr) - 1
    padded = torch.zeros(len(x), num_columns or x.shape[1], device=device)
    arrays = [indptr, indices, *([] if weights is None else [weights])]
    starts, near, *edges = (copy_to_device(array, device) for array in arrays)
    scale = torch.from_numpy(gcn_scale(indptr, weights)).to(device)
    is_made = False
    if isinstance(x, Propagated) and len(indices) == len(x.indices) >= _MANY_ENTRIES and weights is None:
        from hcm_scale.base.spmm_device import propagate_into  # imports Triton

        is_made = propagate_into(padded, starts, near, scale, x.x)
    if not is_made:
        copy_into_device(padded[:, : x.shape[1]], np.asarray(x))
    return DeviceGraph(starts, near, scale, padded, x.shape[1], *edges)


def graph_bytes(num_nodes: int, indices: NDArray[Any], num_columns: int, *, weighted: bool = False) -> int:
    return indices.nbytes + 4 * len(indices) * weighted + num_nodes * (12 + 4 * num_columns)


def draw_rows(graph: DeviceGraph, targets: Tensor, limit: int, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of Â, each its self loop, then its draw: starts i64 (targets + 1,), nodes i64 and weights f32 (entries,)."""
    begin = graph.indptr[targets]
    degree = graph.indptr[targets + 1] - begin
    drawn = degree.clamp(max=limit)
    starts = torch.zeros(len(targets) + 1, dtype=torch.int64, device=graph.device)
    torch.cumsum(drawn + 1, 0, out=starts[1:])
    row = torch.repeat_interleave(drawn + 1)
    position = torch.arange(len(row), device=graph.device) - starts[row] - 1  # -1 is the self loop
    some = ((degree > limit)[row] & (position >= 0)).nonzero().squeeze(1)
    position[some] = shuffled(position[some], degree[row[some]], word_of(key, targets[row[some]]))
    is_loop = position < 0
    nodes = targets[row]
    near = ~is_loop
    entries = (begin[row] + position)[near]
    nodes[near] = graph.indices[entries].long()
    own = graph.scale[targets]
    boosted = own * (degree.float() / drawn.clamp(min=1).float())
    weights = torch.where(is_loop, own[row], boosted[row]) * graph.scale[nodes]
    if graph.weights is not None:
        weights[near] *= graph.weights[entries]
    return starts, nodes, weights


def draw_blocks(
    graph: DeviceGraph, seeds: Tensor, limits: Sequence[int], step_key: int
) -> tuple[Tensor, tuple[Block, ...]]:
    """The nodes that the seeds (different ones) need, seeds first, and one block per limit, input side first."""
    position = torch.full((graph.num_nodes,), -1, dtype=torch.int64, device=graph.device)
    position[seeds] = torch.arange(len(seeds), device=graph.device)
    nodes = seeds
    blocks: list[Block] = []
    for layer in reversed(range(len(limits))):
        num_targets = len(nodes)
        starts, entries, weights = draw_rows(graph, nodes, limits[layer], key(step_key, layer))
        fresh = torch.unique(entries[position[entries] < 0])
        position[fresh] = torch.arange(num_targets, num_targets + len(fresh), device=graph.device)
        nodes = torch.cat([nodes, fresh])
        blocks.insert(0, Block(starts.int(), position[entries].int(), weights, num_targets, len(nodes)))
    return nodes, tuple(blocks)
