"""The same blocks drawn by torch-sparse, the sampler under PyG's NeighborSampler. Optional: extra `sparse`.

Neighbours are drawn without replacement by torch-sparse's `sample_adj`. Self loops and weights are added here, so that
a block means the same as one of `NeighborSampler` and has the same expectation, Â.

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
from hcm_scale.model import Block
from hcm_scale.sampling.neighbors import Drawn, NeighborSampler, weigh

_GENERATOR = threading.Lock()


class TorchSparseSampler(NeighborSampler):
    """As `NeighborSampler`, with the neighbours that torch-sparse draws."""

    def __init__(self, *graph: Any, **options: Any) -> None:
        super().__init__(*graph, **options)
        if any(limit < 2 for limit in self.limits):
            raise ValueError(f"fan-outs of {self.limits}: backend='torch_sparse' needs 2 or more")
        self._sample_adj = import_sample_adj()
        self._graph = [torch.from_numpy(np.array(part, np.int64)) for part in (self.indptr, self.indices)]

    def __call__(self, seeds: NDArray[np.int64], step: int) -> Drawn:
        nodes = self._checked(seeds)
        blocks: list[Block] = []
        for layer in reversed(range(len(self.limits))):
            with _GENERATOR, torch.random.fork_rng(devices=[]):
                torch.manual_seed(rng.key(self.seed, step, layer))
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
        in_row = arcs - np.repeat(begins, num_drawn)
        correction = _uniform_over_actual(in_row, np.repeat(degrees, num_drawn), np.repeat(num_drawn, num_drawn))
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


def _uniform_over_actual(
    place: NDArray[np.int64], degree: NDArray[np.int64], drawn: NDArray[np.int64]
) -> NDArray[np.float32]:
    """How much likelier a uniform draw is to take the neighbour at this place of the row than torch-sparse is."""
    late = place >= degree - drawn
    likely = (drawn - late) / np.maximum(degree - 1, 1)
    return np.where(drawn == degree, 1.0, drawn / degree / np.maximum(likely, 1e-9)).astype(np.float32)
