"""Batches on a GPU, made there as far as its memory allows.

| what fits SHARE of the free memory | pairs                                  | neighbours                            |
|------------------------------------|----------------------------------------|---------------------------------------|
| graph, attributes, pairs           | drawn on the GPU                       | drawn on the GPU                      |
| graph and attributes               | read ahead by a thread                 | drawn on the GPU                      |
| neither: `choose_fit` is None      | on the host; whole batches are copied by a side stream (`to_gpu`)              |

For two layers on an exact first hop, and edges without weights, batches are `EndsBatch`es, whose sampled neighbourhoods
never exist in memory. Such a model needs, of a target, s = sum_e weight_e relu(x_e W + b) over its drawn entries e, and
x_e are rows of Â X. `EndsBatch.sum_hidden(W, b)` computes s by one Triton kernel that draws, reads, multiplies and adds
on the chip, and the gradients of W and b by another that does it all again (`kernels`). A node that ends several pairs
is summed once: sources and hubs come again and again, and of a batch with all neighbours up to 256 a sixth of the work
is left. Shapes never change and all tensors are refilled in place: a step makes no host round trip and can be recorded
once and replayed. Products are in TF32 unless torch is set to the highest precision. Memory: 40 + 4 width bytes an end.

Else they are `MiniBatch`es of explicit blocks, whose sizes the host must ask for. Draws have the distribution of the
CPU's (balanced classes, every pair of an epoch's draw once, neighbours without replacement, unbiased) but not its bits.
They are functions of (seed, epoch, step, node): a resume repeats them, and ranks of any number share the same batches.

Pairs come in the sequence of `sampling.pairs`: position p of an epoch has class p mod C and is the (p div C)-th draw of
that class. Here the draws of a class are the first D of a keyed order of all its stored pairs (`graph.shuffled`), so
any position can be computed by itself, without a host round trip. Memory: 8 bytes a pair (16 from 2^31 nodes on).
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hcm_scale.base import device as base_device
from hcm_scale.base.rng import key
from hcm_scale.base.threads import prefetch
from hcm_scale.graph import Graph
from hcm_scale.model import Block, MiniBatch
from hcm_scale.sampling.device.graph import MAX_SIZE, DeviceGraph, draw_blocks, graph_bytes, shuffled, word_of
from hcm_scale.sampling.pairs import Cut, PairBatch
from hcm_scale.shards import Labels

_NEIGHBORS = 0x4E42  # separates the neighbour draws from all others made with the same seed
SHARE = 0.8  # of the memory that is free, for what lives on the device and the work of one batch
_PAIRS = 0x7061  # separates the draws of pairs
_TILE = 256
_READERS = 4
_FORWARD = {"TARGETS": 1, "num_warps": 2}  # targets a program works on at once
_BACKWARD = {"TARGETS": 1, "num_warps": 2}
_PROGRAMS_PER_CORE = 8
_LARGEST = 1 << 13  # columns x width of the gradient that one program holds in registers
_ENTRY_BYTES = 60  # of an explicit block, with the room that drawing it takes


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
    shape = _shape(batch, weight) | _FORWARD
    kernels.sum_hidden[(-(-len(out) // _FORWARD["TARGETS"]),)](*_inputs(batch, nodes, weight, bias), out, **shape)
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
        programs = _PROGRAMS_PER_CORE  # on one core, where Triton's interpreter stands in for a device
        if weight.is_cuda:
            programs *= torch.cuda.get_device_properties(weight.device).multi_processor_count
        programs = min(num_tiles, programs)
        by_program = weight.new_empty(programs, ctx.batch.graph.x.shape[1], weight.shape[1])
        shifts = bias.new_empty(programs, len(bias))
        inputs = *_inputs(ctx.batch, nodes, weight, bias), gradients[0].contiguous()
        kernels.sum_gradients[(programs,)](*inputs, by_program, shifts, **_shape(ctx.batch, weight), **_BACKWARD)
        return by_program.sum(0)[: len(weight)], shifts.sum(0), None, None


def _inputs(batch: EndsBatch, nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    graph = batch.graph
    padded = functional.pad(weight, (0, 0, 0, graph.x.shape[1] - len(weight)))
    csr = graph.indptr, graph.indices, graph.scale, graph.x
    return nodes, *csr, padded, bias, batch.key, len(nodes), batch.limit


def _shape(batch: EndsBatch, weight: Tensor) -> dict[str, Any]:
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {"Q": batch.graph.x.shape[1], "WIDTH": weight.shape[1], "PRECISION": precision}


@dataclass(frozen=True, eq=False)
class DevicePairs:
    """Pairs class by class; those of class c lie at class_starts[c] .. class_starts[c + 1] - 1."""

    u: Tensor  # (pairs,), the graph's index type
    v: Tensor  # (pairs,)
    class_starts: Tensor  # i64 (C + 1,)

    @property
    def num_classes(self) -> int:
        return len(self.class_starts) - 1


PairSource = DevicePairs | Iterator[PairBatch]  # pairs from the host begin at the same step as the batches


@dataclass(frozen=True)
class Fit:
    """What goes onto the device; `columns` of x where the fused kernels serve, else None."""

    has_pairs: bool
    columns: int | None


def choose_fit(
    device: torch.device | str,
    graph: Graph,
    num_attributes: int,
    labels: Labels,
    *,
    batch_pairs: int,
    limits: Sequence[int],
    widths: tuple[int, int],
    exact_first_hop: bool,
) -> Fit | None:
    """What fits the device's free memory; None where not even the graph does. `widths` are the model's and its head's.

    `limits` are the most neighbours a target draws, one a sampled layer.
    """
    device, num_nodes, weighted = torch.device(device), graph.num_nodes, graph.weights is not None
    fused = exact_first_hop and len(limits) == 1 and not weighted  # the fused kernels know no weights of edges
    columns = fused_columns(num_attributes, widths[0], device) if fused else None
    ends = min(2 * batch_pairs, 2 * batch_pairs if columns else num_nodes)
    work = 4 * ((10 + 8 * widths[0]) * ends + 3 * sum(widths) * batch_pairs)  # activations and their gradients
    if not columns:
        rows = ends
        for limit in reversed(limits):
            entries = min(rows * (limit + 1), len(graph.indices) + num_nodes)
            rows = min(entries, num_nodes)
            work += _ENTRY_BYTES * entries + 4 * (num_attributes + 4 * widths[0]) * rows
    held = graph_bytes(num_nodes, graph.indices, columns or num_attributes, weighted=weighted)
    left = SHARE * base_device.free_bytes(device) - work - held
    fits_pairs = 2 * labels.num_pairs * labels.plan.index_type.itemsize <= left
    return Fit(fits_pairs and max(labels.stored) <= MAX_SIZE, columns) if left >= 0 else None  # draws have 32 bits


def pairs_to(device: torch.device | str, labels: Labels) -> DevicePairs:
    """Reads all stored pairs, a few row groups at a time."""
    kind = getattr(torch, labels.plan.index_type.name)
    u, v = torch.empty(2, labels.num_pairs, dtype=kind, device=device)
    groups = [group for hop in range(1, labels.classes + 1) for group in labels.row_groups(hop)]
    filled = 0
    for ends in prefetch(groups, labels.read, depth=2 * _READERS, workers=_READERS):
        for out, array in zip((u, v), ends, strict=True):
            out[filled : filled + len(array)] = torch.tensor(array)
        filled += len(ends[0])
    starts = torch.tensor([0, *labels.stored]).cumsum(0)
    return DevicePairs(u, v, starts.to(device))


def epoch_key(seed: int, epoch: int) -> int:
    return key(seed, _PAIRS, epoch)


def draw(pairs: DevicePairs, start: int, stop: int, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """u, v (graph's index type) and hop (i64) at positions start .. stop - 1 of the epoch of key `order`."""
    position = torch.arange(start, stop, device=pairs.u.device)
    hop = position % pairs.num_classes
    first = pairs.class_starts[hop]
    size = pairs.class_starts[hop + 1] - first
    drawn_at = first + shuffled(position // pairs.num_classes, size, word_of(order, hop))
    return pairs.u[drawn_at], pairs.v[drawn_at], hop


def draw_into(pairs: DevicePairs, bounds: Tensor, ends: Tensor, hop: Tensor) -> None:
    """The same by one kernel: `bounds` is i64 (3,) = start, stop, order on the device; fills `ends` and `hop`.

    `ends` (2 * room,) takes u of every pair, then v; rows beyond the last pair get node 0 and hop -100.
    """
    from hcm_scale.sampling.device import kernels  # Triton takes a while to import, for GPUs alone

    room = len(hop)
    grid = (-(-room // _TILE),)
    kernels.draw_pairs[grid](
        pairs.u, pairs.v, pairs.class_starts, bounds, ends, hop, room, CLASSES=pairs.num_classes, TILE=_TILE
    )


def fused_batches(
    graph: DeviceGraph, pairs: PairSource, cut: Cut, limit: int, *, seed: int, first_step: int = 0
) -> Iterator[EndsBatch]:
    """Batches first_step, first_step + 1, ... of a two-layer model, all in the same tensors."""
    room = cut.most
    ends = torch.zeros(2 * room, dtype=graph.indices.dtype, device=graph.device)
    hop = torch.zeros(room, dtype=torch.int64, device=graph.device)
    control = torch.zeros(4, dtype=torch.int64, device=graph.device)
    for t in itertools.count(first_step):
        epoch, step = divmod(t, cut.num_steps)
        start, stop = cut(step)
        numbers = torch.tensor([start, stop, epoch_key(seed, epoch), key(step_key(seed, epoch, step), 0)])
        control.copy_(_pinned(numbers, control.device), non_blocking=True)
        if isinstance(pairs, DevicePairs):
            draw_into(pairs, control, ends, hop)
        else:
            _copy_pairs(next(pairs), ends, hop)
        yield EndsBatch(graph, ends, hop, control[3:], limit, epoch, step)


def block_batches(
    graph: DeviceGraph, pairs: PairSource, cut: Cut, limits: Sequence[int], *, seed: int, first_step: int = 0
) -> Iterator[MiniBatch]:
    """Batches first_step, first_step + 1, ... with one explicit block per limit, input side first."""
    for t in itertools.count(first_step):
        epoch, step = divmod(t, cut.num_steps)
        if isinstance(pairs, DevicePairs):
            start, stop = cut(step)
            u, v, hop = draw(pairs, start, stop, epoch_key(seed, epoch))
        else:
            item = next(pairs)
            u, v, hop = (torch.from_numpy(array).to(graph.device) for array in (item.u, item.v, item.hop))
        seeds, ends = torch.unique(torch.cat([u, v]).long(), return_inverse=True)
        nodes, blocks = draw_blocks(graph, seeds, limits, step_key(seed, epoch, step))
        x = graph.x[nodes, : graph.num_attributes]
        yield MiniBatch(nodes, len(seeds), x, blocks, ends[: len(u)], ends[len(u) :], hop, epoch, step)


def step_key(seed: int, epoch: int, step: int) -> int:
    """The key of a batch's neighbours; key(it, layer) is that of one sampled layer."""
    return key(seed, _NEIGHBORS, epoch, step)


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A host's tensor in memory from which this device copies without waiting."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _copy_pairs(item: PairBatch, ends: Tensor, hop: Tensor) -> None:
    """A host batch into the device's tensors; rows beyond its last pair get node 0 and no class."""
    room, count = len(hop), len(item.hop)
    padded = np.zeros((3, room), np.int64)
    padded[2] = -100
    padded[:, :count] = item.u, item.v, item.hop
    sent = _pinned(torch.from_numpy(padded), hop.device).to(hop.device, non_blocking=True)
    ends.copy_(sent[:2].reshape(-1))
    hop.copy_(sent[2])


def to_gpu(batches: Iterable[MiniBatch], device: torch.device | str) -> Iterator[MiniBatch]:
    """The same batches on `device`, copied by a side stream while the GPU works on the one before.

    They should be in page-locked memory, or copies wait for the host. Two batches are on the device at a time.
    """
    side = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(side):
            sent = batch.to(device, non_blocking=True)
        main = torch.cuda.current_stream(device)
        main.wait_stream(side)

        def keep(tensor: Tensor, main: torch.cuda.Stream = main) -> Tensor:
            tensor.record_stream(main)  # its memory belongs to the side stream, which must not reuse it too early
            return tensor

        yield sent.map(keep)
