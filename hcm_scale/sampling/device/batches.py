"""Batches on a GPU, made there as far as its memory allows.

| what fits SHARE of the free memory | pairs                                  | neighbours                            |
|------------------------------------|----------------------------------------|---------------------------------------|
| graph, attributes, pairs           | drawn on the GPU                       | drawn on the GPU                      |
| graph and attributes               | read ahead by a thread                 | drawn on the GPU                      |
| neither: `choose_fit` is None      | on the host; whole batches are copied by a side stream (`to_gpu`)              |

For two layers on an exact first hop, and edges without weights, batches are `EndsBatch`es: a step makes no host round
trip and can be replayed. Else they are `MiniBatch`es of explicit blocks, whose sizes the host must ask for. Draws have
the distribution of the CPU's (balanced classes, every pair of an epoch's draw once, neighbours without replacement,
unbiased) but not its bits. They are functions of (seed, epoch, step, node): a resume repeats them, and ranks of any
number share the same batches.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base import device as base_device
from hcm_scale.base.rng import key
from hcm_scale.sampling.batches import MiniBatch
from hcm_scale.sampling.device.fused import EndsBatch, fused_columns
from hcm_scale.sampling.device.graph import DeviceGraph, draw_blocks, graph_bytes, layer_key
from hcm_scale.sampling.device.pairs import DevicePairs, can_hold, draw, draw_into, epoch_key, pairs_bytes
from hcm_scale.sampling.neighbors import FanOut, most_drawn
from hcm_scale.sampling.pairs import Cut, PairBatch
from hcm_scale.shards import Labels

_NEIGHBORS = 0x4E42  # separates the neighbour draws from all others made with the same seed
SHARE = 0.8  # of the memory that is free, for what lives on the device and the work of one batch
_ENTRY_BYTES = 60  # of an explicit block, with the room that drawing it takes


@dataclass(frozen=True)
class Fit:
    """What goes onto the device; `columns` of x where the fused kernels serve, else None."""

    has_pairs: bool
    columns: int | None


def choose_fit(
    device: torch.device | str,
    num_nodes: int,
    indices: NDArray[Any],
    num_attributes: int,
    labels: Labels,
    *,
    batch_pairs: int,
    limits: Sequence[int],
    widths: tuple[int, int],
    exact_first_hop: bool,
    weighted: bool = False,
    free_bytes: int | None = None,
) -> Fit | None:
    """What fits the device's free memory; None where not even the graph does. `widths` are the model's and its head's.

    `limits` are the most neighbours a target draws, one a sampled layer.
    """
    device = torch.device(device)
    fused = exact_first_hop and len(limits) == 1 and not weighted  # the fused kernels know no weights of edges
    columns = fused_columns(num_attributes, widths[0], device) if fused else None
    free = base_device.free_bytes(device) if free_bytes is None else free_bytes
    ends = min(2 * batch_pairs, 2 * batch_pairs if columns else num_nodes)
    work = 4 * ((10 + 8 * widths[0]) * ends + 3 * sum(widths) * batch_pairs)  # activations and their gradients
    if not columns:
        rows = ends
        for limit in reversed(limits):
            entries = min(rows * (limit + 1), len(indices) + num_nodes)
            rows = min(entries, num_nodes)
            work += _ENTRY_BYTES * entries + 4 * (num_attributes + 4 * widths[0]) * rows
    left = SHARE * free - work - graph_bytes(num_nodes, indices, columns or num_attributes, weighted=weighted)
    return Fit(can_hold(labels) and pairs_bytes(labels) <= left, columns) if left >= 0 else None


def row_limits(fan_outs: Sequence[FanOut], hub_cap: int | None) -> tuple[int, ...]:
    """The most neighbours a target draws, per sampled layer."""
    return tuple(most_drawn(fan_out, hub_cap) for fan_out in fan_outs)


def fused_batches(
    graph: DeviceGraph,
    pairs: DevicePairs | Iterator[PairBatch],
    cut: Cut,
    limit: int,
    *,
    seed: int,
    first_step: int = 0,
) -> Iterator[EndsBatch]:
    """Batches first_step, first_step + 1, ... of a two-layer model, all in the same tensors.

    Pairs that come from the host must begin at `first_step` too.
    """
    room = cut.most
    ends = torch.zeros(2 * room, dtype=graph.indices.dtype, device=graph.device)
    hop = torch.zeros(room, dtype=torch.int64, device=graph.device)
    control = torch.zeros(4, dtype=torch.int64, device=graph.device)
    for t in itertools.count(first_step):
        epoch, step = divmod(t, cut.num_steps)
        start, stop = cut(step)
        _send([start, stop, epoch_key(seed, epoch), layer_key(step_key(seed, epoch, step), 0)], control)
        if isinstance(pairs, DevicePairs):
            draw_into(pairs, control, ends, hop)
        else:
            _copy_pairs(next(pairs), ends, hop)
        yield EndsBatch(graph, ends, hop, control[3:], limit, epoch, step)


def block_batches(
    graph: DeviceGraph,
    pairs: DevicePairs | Iterator[PairBatch],
    cut: Cut,
    limits: Sequence[int],
    *,
    seed: int,
    first_step: int = 0,
) -> Iterator[MiniBatch]:
    """Batches first_step, first_step + 1, ... with one explicit block per limit, input side first."""
    for t in itertools.count(first_step):
        epoch, step = divmod(t, cut.num_steps)
        if isinstance(pairs, DevicePairs):
            start, stop = cut(step)
            u, v, hop = draw(pairs, start, stop, epoch_key(seed, epoch))
        else:
            item = next(pairs)
            u, v, hop = (torch.from_numpy(part).to(graph.device) for part in (item.u, item.v, item.hop))
        seeds, ends = torch.unique(torch.cat([u, v]).long(), return_inverse=True)
        nodes, blocks = draw_blocks(graph, seeds, limits, step_key(seed, epoch, step))
        x = graph.x[nodes, : graph.num_attributes]
        yield MiniBatch(nodes, len(seeds), x, blocks, ends[: len(u)], ends[len(u) :], hop, epoch, step)


def step_key(seed: int, epoch: int, step: int) -> int:
    """The key of a batch's neighbours; `layer_key` makes one of it for each sampled layer."""
    return key(seed, _NEIGHBORS, epoch, step)


def _send(numbers: list[int], out: Tensor) -> None:
    """A few numbers to the device, without waiting for it."""
    words = torch.tensor(numbers)
    out.copy_(words.pin_memory() if out.device.type == "cuda" else words, non_blocking=True)


def _copy_pairs(item: PairBatch, ends: Tensor, hop: Tensor) -> None:
    """A host batch into the device's tensors; rows beyond its last pair get node 0 and no class."""
    room, count = len(hop), len(item.hop)
    padded = np.zeros((3, room), np.int64)
    padded[2] = -100
    padded[:, :count] = item.u, item.v, item.hop
    words = torch.from_numpy(padded)
    sent = (words.pin_memory() if hop.device.type == "cuda" else words).to(hop.device, non_blocking=True)
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
