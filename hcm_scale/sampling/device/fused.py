"""Batches whose sampled neighbourhoods never exist in memory: for two layers on an exact first hop, on a CUDA device.

Such a model needs, of a target, s = sum_e weight_e relu(x_e W + b) over its drawn entries e, and x_e are rows of Â X.
`EndsBatch.sum_hidden(W, b)` computes s by one Triton kernel that draws, reads, multiplies and adds on the chip, and the
gradients of W and b by another that does it all again (`kernels`). A node that ends several pairs is summed once:
sources and hubs come again and again, and of a batch with all neighbours up to 256 a sixth of the work is left.

Shapes never change and all tensors are refilled in place, so a step can be recorded once and replayed. Products are in
TF32 unless torch is set to the highest precision. Memory: 40 + 4 width bytes an end.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hcm_scale.model import Block
from hcm_scale.sampling.device.graph import DeviceGraph

_FORWARD = {"TARGETS": 1, "num_warps": 2}  # targets a program works on at once
_BACKWARD = {"TARGETS": 1, "num_warps": 2}
_PROGRAMS_PER_CORE = 8
_LARGEST = 1 << 13  # columns x width of the gradient that one program holds in registers


@dataclass(frozen=True, eq=False)
class EndsBatch:
    """Labelled pairs, by their nodes. `is_static`: the next batch reuses these tensors, with other content."""

    graph: DeviceGraph
    ends: Tensor  # (2 * room,), the graph's index type: u of every pair, then v
    hop: Tensor  # i64 (room,): class index 0 .. C - 1, or -100 beyond the last pair
    key: Tensor  # i64 (1,): which neighbours are drawn
    limit: int  # neighbours drawn a target
    epoch: int
    step: int
    is_static: bool = True

    def sum_hidden(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Block]:
        """Of every different end, the weighted sum of relu(x W + b) over its sampled row of Â, (2 * room, width).

        Rows beyond the different ends are zero. The block gives every end, u's then v's, its row.
        """
        nodes, spread = distinct(self.ends)
        return _SumHidden.apply(weight, bias, nodes, self), spread


def distinct(ends: Tensor) -> tuple[Tensor, Block]:
    """The different nodes among the ends, in order, then -1 to the same length; and the block from them to the ends."""
    ordered, order = ends.sort(stable=True)
    rank = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    nodes = torch.full_like(ends, -1).scatter_(0, rank, ordered)
    position = torch.empty_like(order).scatter_(0, order, rank)
    count = torch.arange(len(ends) + 1, device=ends.device)
    starts, ones = torch.searchsorted(rank, count), torch.ones(len(ends), device=ends.device)
    transposed = starts.int(), order.int(), ones
    return nodes, Block(count.int(), position.int(), ones, len(ends), len(ends), *transposed)


def fused_columns(num_attributes: int, width: int, device: torch.device) -> int | None:
    """Columns of x for the kernels, a power of two >= q; None where they do not support these sizes or this device."""
    columns = max(16, 1 << (num_attributes - 1).bit_length())
    is_power = width >= 16 and width & (width - 1) == 0
    if device.type != "cuda" or find_spec("triton") is None or not is_power or columns * width > _LARGEST:
        return None
    return columns


def sum_hidden(batch: EndsBatch, nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of each node (-1 is none), the weighted sum of relu(x W + b) over its row of Â, as the batch draws it."""
    from hcm_scale.sampling.device import kernels  # Triton takes a while to import, for GPUs alone

    out = weight.new_empty(len(nodes), weight.shape[1])
    grid = (-(-len(out) // _FORWARD["TARGETS"]),)
    kernels.sum_hidden[grid](*_inputs(batch, nodes, weight, bias), out, **_shape(batch, weight), **_FORWARD)
    return out


class _SumHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, nodes: Tensor, batch: EndsBatch) -> Tensor:
        ctx.save_for_backward(weight, bias, nodes)
        ctx.batch = batch
        return sum_hidden(batch, nodes, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        from hcm_scale.sampling.device import kernels

        weight, bias, nodes = ctx.saved_tensors
        num_tiles = -(-len(nodes) // _BACKWARD["TARGETS"])
        programs = min(num_tiles, _num_cores(weight.device) * _PROGRAMS_PER_CORE)
        parts = weight.new_empty(programs, ctx.batch.graph.x.shape[1], weight.shape[1])
        shifts = bias.new_empty(programs, len(bias))
        inputs = *_inputs(ctx.batch, nodes, weight, bias), gradients[0].contiguous()
        kernels.sum_gradients[(programs,)](*inputs, parts, shifts, **_shape(ctx.batch, weight), **_BACKWARD)
        return parts.sum(0)[: len(weight)], shifts.sum(0), None, None


def _inputs(batch: EndsBatch, nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    graph = batch.graph
    padded = functional.pad(weight, (0, 0, 0, graph.x.shape[1] - len(weight)))
    csr = graph.indptr, graph.indices, graph.scale, graph.x
    return nodes, *csr, padded, bias, batch.key, len(nodes), batch.limit


def _shape(batch: EndsBatch, weight: Tensor) -> dict[str, Any]:
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {"Q": batch.graph.x.shape[1], "WIDTH": weight.shape[1], "PRECISION": precision}


def _num_cores(device: torch.device) -> int:
    """Multiprocessors; one where Triton's interpreter stands in for a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
