"""The same blocks drawn by torch-sparse, the sampler under PyG's NeighborSampler. Optional: extra `sparse`.

Neighbours are drawn without replacement by torch-sparse's `sample_adj`. Self loops and weights are added here, so that
a block means the same as one of `neighbors.sample_blocks` and has the same expectation, Â.

The draw is not quite uniform: Floyd's algorithm picks its j-th number from 0 .. j, torch-sparse from 0 .. j - 1. Of d
neighbours, k drawn, the first d - k come with probability k / (d - 1) and the last k with (k - 1) / (d - 1), so weights
are divided by these instead of k / d. With k = 1 the last neighbour never comes, and no weight makes up for that.

Use it to compare, not to train large graphs: it copies the graph's indices to 64 bits (8 bytes an arc) and draws from
torch's global generator, so only one thread draws at a time. The generator is seeded by (seed, step, layer) and put
back after each draw; blocks are repeatable as long as no other thread uses torch's global generator meanwhile.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import rng
from hcm_scale.sampling import neighbors
from hcm_scale.sampling.neighbors import Block, FanOut, Sampler, check_fan_outs, check_nodes, most_drawn, repeated_seeds

_GENERATOR = threading.Lock()


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
    """A function sample(seeds, step) of this graph, as `neighbors.sampler`."""
    check_fan_outs(fan_outs, hub_cap)
    if any(most_drawn(fan_out, hub_cap) < 2 for fan_out in fan_outs):
        raise ValueError(f"fan_outs={list(fan_outs)}, hub_cap={hub_cap}: backend='torch_sparse' needs 2 or more")
    sample_adj = import_sample_adj()
    rowptr, col = torch.from_numpy(np.array(indptr, np.int64)), torch.from_numpy(np.array(indices, np.int64))

    def sample(seeds: NDArray[np.int64], step: int) -> tuple[NDArray[np.int64], tuple[Block, ...]]:
        check_nodes(seeds, scale, len(indptr) - 1)
        if num_repeats := len(seeds) - len(np.unique(seeds)):
            raise repeated_seeds(num_repeats, len(seeds))
        nodes = np.array(seeds, np.int64)
        blocks: list[Block] = []
        for layer in reversed(range(len(fan_outs))):
            with _GENERATOR, torch.random.fork_rng(devices=[]):
                torch.manual_seed(rng.key(seed, step, layer))
                drawn = sample_adj(rowptr, col, torch.from_numpy(nodes), most_drawn(fan_outs[layer], hub_cap), False)
            blocks.insert(0, _block([tensor.numpy() for tensor in drawn], nodes, indptr, scale, weights))
            nodes = drawn[2].numpy()
        return nodes, tuple(blocks)

    return sample


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


def _block(
    drawn: Sequence[NDArray[np.int64]],
    targets: NDArray[np.int64],
    indptr: NDArray[np.int64],
    scale: NDArray[np.float32],
    edge_weights: NDArray[np.float32] | None,
) -> Block:
    """The drawn neighbours, each row preceded by its self loop, weighed by how likely each was drawn."""
    rows, columns, sources, arcs = drawn
    begins, num_drawn = indptr[targets], np.diff(rows)
    degrees = indptr[targets + 1] - begins
    starts = (rows + np.arange(len(rows))).astype(np.int32)
    indices = np.insert(columns, rows[:-1], np.arange(len(targets))).astype(np.int32)
    weights = np.empty(len(indices), np.float32)
    neighbors.weigh(scale, sources, degrees, starts, indices, weights)
    in_row = arcs - np.repeat(begins, num_drawn)
    correction = _uniform_over_actual(in_row, np.repeat(degrees, num_drawn), np.repeat(num_drawn, num_drawn))
    if edge_weights is not None:
        correction *= edge_weights[arcs]
    weights *= np.insert(correction, rows[:-1], 1.0)
    return Block.of(starts, indices, weights, len(sources))


def _uniform_over_actual(
    place: NDArray[np.int64], degree: NDArray[np.int64], drawn: NDArray[np.int64]
) -> NDArray[np.float32]:
    """How much likelier a uniform draw is to take the neighbour at this place of the row than torch-sparse is."""
    late = place >= degree - drawn
    likely = (drawn - late) / np.maximum(degree - 1, 1)
    return np.where(drawn == degree, 1.0, drawn / degree / np.maximum(likely, 1e-9)).astype(np.float32)
