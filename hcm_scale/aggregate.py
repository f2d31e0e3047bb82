"""The sum over neighbours as one differentiable operation: `aggregate(block, h)` = B h for a sparse B.

The gradient with respect to h is Bᵀ times the gradient of the output, and Bᵀ is again a CSR matrix, so forward and
backward are the same row-wise product: every output row is written once, in order, by one thread. The result does
not depend on the number of threads, and there are no atomics. The weights are constants: they get no gradient.

On the CPU the rows are shared between plain threads, as many as torch uses, that run a serial kernel without the GIL.
Not numba's own pool: torch's OpenMP threads and numba's wait for work by spinning, and alternating between two such
pools in every step cost three quarters of the speed on two cores. Elsewhere the product is torch's weighted
`embedding_bag`, the same sum in one kernel. Memory: the output, nothing per entry.
"""

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hcm_scale.base.cores import num_cores
from hcm_scale.base.spmm import csr_row_range

Array = NDArray[Any]
_PART_PRODUCTS = 1 << 20  # below about a third of a millisecond of work a thread is not worth waking


class Bipartite(Protocol):
    """What is read of a block: a CSR matrix (num_targets, num_sources), and its transpose where somebody made it."""

    @property
    def indptr(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def num_sources(self) -> int: ...
    @property
    def t_indptr(self) -> Tensor | None: ...
    @property
    def t_indices(self) -> Tensor | None: ...
    @property
    def t_weights(self) -> Tensor | None: ...


def aggregate(block: Bipartite, h: Tensor) -> Tensor:
    """Row i of the result is the sum of weights[e] * h[indices[e]] over the entries e of row i: (targets, width)."""
    if h.shape[0] != block.num_sources:
        raise ValueError(f"h has {h.shape[0]} rows; this block aggregates over {block.num_sources} sources")
    result: Tensor = _Aggregate.apply(h, block)
    return result


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Bipartite) -> Tensor:
        ctx.block = block
        return row_sums(block.indptr, block.indices, block.weights, h)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return row_sums(*transposed(ctx.block), gradients[0]), None


def transposed(block: Bipartite) -> tuple[Tensor, Tensor, Tensor]:
    """The CSR of the transpose, (num_sources, num_targets): the block's own, or made here by a stable sort."""
    if block.t_indptr is not None and block.t_indices is not None and block.t_weights is not None:
        return block.t_indptr, block.t_indices, block.t_weights
    columns, order = torch.sort(block.indices, stable=True)
    rows = torch.repeat_interleave(block.indptr.diff().long()).to(block.indices.dtype)
    edges = torch.arange(block.num_sources + 1, dtype=columns.dtype, device=columns.device)
    starts = torch.searchsorted(columns, edges).to(block.indptr.dtype)
    return starts, rows[order], block.weights[order]


def row_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """CSR times dense, without autograd.

    >>> indptr, indices, weights = torch.tensor([0, 2, 2]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    >>> row_sums(indptr, indices, weights, torch.tensor([[3.0], [5.0]])).tolist()
    [[13.0], [0.0]]
    """
    h = h.detach().contiguous()
    if h.device.type != "cpu":
        return bag_sums(indptr, indices, weights, h)
    out = torch.empty(len(indptr) - 1, h.shape[1], dtype=h.dtype)
    _threaded(*(tensor.numpy() for tensor in (indptr, indices, weights, h, out)))
    return out


def _threaded(indptr: Array, indices: Array, weights: Array, h: Array, out: Array) -> None:
    """Cuts the rows into one part of about equal work per thread; the caller does the first part itself."""
    parts = min(torch.get_num_threads(), 1 + indices.size * h.shape[1] // _PART_PRODUCTS)
    cuts = np.searchsorted(indptr, np.arange(1, parts) * (indices.size / parts)).tolist()
    ranges = list(itertools.pairwise([0, *cuts, len(indptr) - 1]))
    rest = [_threads().submit(csr_row_range, indptr, indices, weights, h, *cut, out) for cut in ranges[1:]]
    csr_row_range(indptr, indices, weights, h, *ranges[0], out)
    for future in rest:
        future.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_cores(), "aggregate")


def bag_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """The same product by torch alone, on any device."""
    starts = indptr.to(indices.dtype)
    return functional.embedding_bag(
        indices, h, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
