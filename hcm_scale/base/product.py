"""x W + b, and its gradient, in the same bits at any number of threads.

A BLAS library cuts a product into as many parts as it has threads, and sums that are cut otherwise round otherwise.
Here the rows are cut into blocks whose size follows from the shapes alone; a block is made by one thread, whoever is
free, and what blocks have in common, the gradients of W and b, is added up in the order of the blocks. On a GPU the
product is torch's own.

Memory: the output, and for the gradient a matrix of the size of W a block, 8 million products each.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from hcm_scale.base.cores import num_cores
from hcm_scale.base.torch_threads import torch_threads

_BLOCK_PRODUCTS = 1 << 23  # a quarter of a millisecond of one core, ten times what a block costs besides
_LEAST_ROWS = 256  # a power of two, as block sizes are, so that all blocks begin at aligned addresses


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of x (rows, in) and weight (in, out), plus the bias (out,) where there is one, with a gradient.

    >>> affine(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [5.0]]), torch.tensor([1.0])).tolist()
    [[14.0]]
    """
    if x.device.type != "cpu":
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    result: Tensor = _Affine.apply(x, weight, bias)
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return affine_into(torch.empty(len(x), weight.shape[1], dtype=x.dtype), x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g, needs = gradients[0].contiguous(), ctx.needs_input_grad
        of_x = torch.empty_like(x) if needs[0] else None
        parts: dict[int, tuple[Tensor, Tensor]] = {}

        @torch.no_grad()
        def block(rows: slice) -> None:
            if of_x is not None:
                torch.mm(g[rows], weight.T, out=of_x[rows])
            parts[rows.start] = x[rows].T @ g[rows], g[rows].sum(0)

        in_blocks(len(x), weight.numel(), block)
        of_weight, of_bias = parts.pop(0)
        for first in sorted(parts):
            of_weight += parts[first][0]
            of_bias += parts[first][1]
        return of_x, of_weight, of_bias if needs[2] else None


@torch.no_grad()
def affine_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same without a gradient, written to `out`, which is returned."""

    @torch.no_grad()
    def block(rows: slice) -> None:
        if bias is None:
            torch.mm(x[rows], weight, out=out[rows])
        else:
            torch.addmm(bias, x[rows], weight, out=out[rows])

    if x.device.type == "cpu":
        in_blocks(len(x), weight.numel(), block)
    else:
        block(slice(None))
    return out


def in_blocks(num_rows: int, row_products: int, work: Callable[[slice], None]) -> None:
    """Calls work(rows) for the blocks that make up the rows, at least one, on as many threads as torch has."""
    size = max(_LEAST_ROWS, 1 << (_BLOCK_PRODUCTS // row_products).bit_length() - 1)
    blocks = [slice(first, first + size) for first in range(0, max(num_rows, 1), size)]
    num_threads, waiting = min(torch.get_num_threads(), len(blocks)), iter(blocks)

    def run() -> None:
        for rows in waiting:
            work(rows)

    with torch_threads(1):
        helpers = [_helpers().submit(run) for _ in range(num_threads - 1)]
        run()
        for helper in helpers:
            helper.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads in each of which torch works alone."""
    num_helpers, had = num_cores(), torch.get_num_threads()
    pool, meet = ThreadPoolExecutor(num_helpers, "product"), threading.Barrier(num_helpers)

    def settle_down() -> None:
        torch.set_num_threads(1)  # of this thread, and of those to come
        meet.wait()

    for helper in [pool.submit(settle_down) for _ in range(num_helpers)]:
        helper.result()
    torch.set_num_threads(had)
    return pool
