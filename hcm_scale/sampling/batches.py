"""Mini-batches: labelled pairs -> unique seeds -> blocks -> attributes.

`make_batch` turns one `PairBatch` into all that the model needs to predict it. Nodes that occur in several pairs are
encoded once. Attributes are gathered row by row from an (n, q) array, which may be a memory map: only the rows of the
batch are read. Full batch is the same thing with all pairs and fan-out `all`.

Memory of one batch: 4 q bytes a node, 16 an entry of a block (8 without its transpose), 24 a pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base import rng
from hcm_scale.sampling import neighbors, torch_sparse_backend
from hcm_scale.sampling.neighbors import Block, FanOut, Sampler, tensors
from hcm_scale.sampling.pairs import PairBatch

BACKENDS: dict[str, Callable[..., Sampler]] = {"numba": neighbors.sampler, "torch_sparse": torch_sparse_backend.sampler}


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """Labelled pairs and the input that predicts them. Seeds come first: `out[:num_seeds]` is the answer."""

    nodes: Tensor  # i64 (sources of blocks[0],): nodes of the graph
    num_seeds: int
    x: Tensor  # f32 (len(nodes), q)
    blocks: tuple[Block, ...]  # input side first; blocks[i].num_targets == blocks[i + 1].num_sources
    left: Tensor  # i64 (pairs,): position of u among the seeds
    right: Tensor  # i64 (pairs,): position of v
    hop: Tensor  # i64 (pairs,): class index 0 .. C - 1
    epoch: int
    step: int

    def map(self, change: Callable[[Tensor], Tensor]) -> "MiniBatch":
        """The same batch with every tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in tensors(self)}
        return replace(self, blocks=tuple(block.map(change) for block in self.blocks), **changed)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "MiniBatch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "MiniBatch":
        """In page-locked memory, from where a GPU can copy while the CPU goes on."""
        return self.map(Tensor.pin_memory)


def make_sampler(
    backend: str,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    scale: NDArray[np.float32],
    fan_outs: Sequence[FanOut],
    *,
    seed: int,
    hub_cap: int | None = None,
    weights: NDArray[np.float32] | None = None,
) -> Sampler:
    """The neighbour sampler of this name; see `neighbors.sampler`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {sorted(BACKENDS)}")
    return BACKENDS[backend](indptr, indices, scale, fan_outs, seed=seed, hub_cap=hub_cap, weights=weights)


def make_batch(pairs: PairBatch, x: NDArray[np.float32], sample: Sampler, *, input_gradients: bool = True) -> MiniBatch:
    """One batch, on the CPU. Every draw is keyed by the batch's (epoch, step), so equal pairs give equal batches.

    Blocks carry their transposes; the first goes without where `input_gradients` is off, that is, where the model
    multiplies it with the attributes directly and nothing flows back through it.
    """
    seeds, positions = np.unique(np.concatenate([pairs.u, pairs.v]), return_inverse=True)
    nodes, blocks = sample(seeds, rng.key(pairs.epoch, pairs.step))
    if len(nodes) and nodes.max() >= len(x):
        raise ValueError(f"x has {len(x)} rows; the batch needs the attributes of node {nodes.max()}")
    rows = np.empty((len(nodes), x.shape[1]), np.float32)
    neighbors.gather(x, nodes, rows)
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
