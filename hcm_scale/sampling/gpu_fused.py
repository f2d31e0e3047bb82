"""Batches whose sampled neighbourhoods never exist in memory: for two layers on an exact first hop, on a CUDA device.

Such a model needs, of a target, s = sum_e weight_e relu(x_e W + b) over its drawn entries e, and x_e are rows of Â X.
`EndsBatch.sum_hidden(W, b)` computes s by one Triton kernel that draws, reads, multiplies and adds on the chip, and the
gradients of W and b by another that does it all again (`gpu_kernels`). Every end of a pair is a target of its own:
finding repeats would cost more than it saves, and equal nodes draw equal neighbours anyway.

Shapes never change and all tensors are refilled in place, so a step can be recorded once and replayed. Products are in
TF32 unless torch is set to the highest precision. Memory: the ends and s, 4 + 4 width bytes an end.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hcm_scale.sampling import gpu_kernels as kernels
from hcm_scale.sampling.gpu_graph import DeviceGraph

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

    def sum_hidden(self, weight: Tensor, bias: Tensor) -> Tensor:
        """(2 * room, width): of every end, the weighted sum of relu(x W + b) over its sampled row of Â."""
        result: Tensor = _SumHidden.apply(weight, bias, self)
        return result


def fused_columns(num_attributes: int, width: int, device: torch.device) -> int | None:
    """Columns of x for the kernels, a power of two of at least q; None where they cannot serve these sizes or this
    device.
    """
    columns = max(16, 1 << (num_attributes - 1).bit_length())
    is_power = width >= 16 and width & (width - 1) == 0
    if device.type != "cuda" or not kernels.AVAILABLE or not is_power or columns * width > _LARGEST:
        return None
    return columns


class _SumHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, batch: EndsBatch) -> Tensor:
        ctx.save_for_backward(weight, bias)
        ctx.batch = batch
        out = weight.new_empty(len(batch.ends), weight.shape[1])
        grid = (-(-len(out) // _FORWARD["TARGETS"]),)
        kernels.sum_hidden[grid](*_inputs(batch, weight, bias), out, **_shape(batch, weight), **_FORWARD)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, bias = ctx.saved_tensors
        num_tiles = -(-len(ctx.batch.ends) // _BACKWARD["TARGETS"])
        programs = min(num_tiles, _num_cores(weight.device) * _PROGRAMS_PER_CORE)
        parts = weight.new_empty(programs, ctx.batch.graph.x.shape[1], weight.shape[1])
        shifts = bias.new_empty(programs, len(bias))
        inputs = *_inputs(ctx.batch, weight, bias), gradients[0].contiguous()
        kernels.sum_gradients[(programs,)](*inputs, parts, shifts, **_shape(ctx.batch, weight), **_BACKWARD)
        return parts.sum(0)[: len(weight)], shifts.sum(0), None


def _inputs(batch: EndsBatch, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    graph = batch.graph
    padded = functional.pad(weight, (0, 0, 0, graph.x.shape[1] - len(weight)))
    csr = graph.indptr, graph.indices, graph.scale, graph.x
    return batch.ends, *csr, padded, bias, batch.key, len(batch.ends), batch.limit


def _shape(batch: EndsBatch, weight: Tensor) -> dict[str, Any]:
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {"Q": batch.graph.x.shape[1], "WIDTH": weight.shape[1], "PRECISION": precision}


def _num_cores(device: torch.device) -> int:
    """Multiprocessors; one where Triton's interpreter stands in for a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
