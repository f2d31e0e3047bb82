"""Mini-batches: labelled pairs -> unique seeds -> blocks -> attributes.

`make_batch` turns one `PairBatch` into all that the model needs to predict it. Nodes that occur in several pairs are
encoded once. Attributes are gathered row by row from an (n, q) array, which may be a memory map: only the rows of the
batch are read. Full batch is the same thing with all pairs and fan-out `all`.

Memory of one batch: 4 q bytes a node, 16 an entry of a block (8 without its transpose), 24 a pair.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.model import MiniBatch
from hcm_scale.sampling.neighbors import NeighborSampler, gather
from hcm_scale.sampling.pairs import PairBatch
from hcm_scale.sampling.torch_sparse_backend import TorchSparseSampler

BACKENDS: dict[str, type[NeighborSampler]] = {"numba": NeighborSampler, "torch_sparse": TorchSparseSampler}


def make_sampler(backend: str, *graph: Any, **options: Any) -> NeighborSampler:
    """The neighbour sampler of this name; the other arguments are those of `NeighborSampler`."""
    return BACKENDS[backend](*graph, **options)


def make_batch(
    pairs: PairBatch, x: NDArray[np.float32], sample: NeighborSampler, *, input_gradients: bool = True
) -> MiniBatch:
    """One batch, on the CPU. Every draw is keyed by the batch's (epoch, step), so equal pairs give equal batches.

    Blocks carry their transposes; the first goes without where `input_gradients` is off, that is, where the model
    multiplies it with the attributes directly and nothing flows back through it.
    """
    seeds, positions = np.unique(np.concatenate([pairs.u, pairs.v]), return_inverse=True)
    nodes, blocks = sample(seeds, rng.key(pairs.epoch, pairs.step))
    if len(nodes) and nodes.max() >= len(x):
        raise ValueError(f"x has {len(x)} rows; the batch needs the attributes of node {nodes.max()}")
    rows = np.empty((len(nodes), x.shape[1]), np.float32)
    gather(x, nodes, rows)
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
