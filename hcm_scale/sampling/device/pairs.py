"""All labelled pairs on a device, and an epoch's balanced draw from them, without a host round trip.

The sequence is that of `sampling.pairs`: position p of an epoch has class p mod C and is the (p div C)-th draw of that
class. Here the draws of a class are the first D of a keyed order of all its stored pairs (`graph.shuffled`), so each is
drawn at most once an epoch, with equal probability, and any position can be computed by itself. Memory: 8 bytes a pair
(16 from 2^31 nodes on).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hcm_scale.base.rng import key
from hcm_scale.sampling.device.graph import MAX_SIZE, shuffled, word_of
from hcm_scale.sampling.prefetch import prefetch
from hcm_scale.shards import Labels

_PAIRS = 0x7061  # separates these draws from all others made with the same seed
_TILE = 256
_READERS = 4


@dataclass(frozen=True, eq=False)
class DevicePairs:
    """Pairs class by class; those of class c lie at class_starts[c] .. class_starts[c + 1] - 1."""

    u: Tensor  # (pairs,), the graph's index type
    v: Tensor  # (pairs,)
    class_starts: Tensor  # i64 (C + 1,)

    @property
    def num_classes(self) -> int:
        return len(self.class_starts) - 1


def pairs_bytes(labels: Labels) -> int:
    """Bytes that `pairs_to` takes on the device."""
    return 2 * labels.num_pairs * labels.plan.index_type.itemsize


def can_hold(labels: Labels) -> bool:
    """Whether every class is small enough for 32-bit draws."""
    return max(labels.stored) <= MAX_SIZE


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
    """The key of an epoch's order."""
    return key(seed, _PAIRS, epoch)


def draw(pairs: DevicePairs, start: int, stop: int, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """u, v (graph's index type) and hop (i64) at positions start .. stop - 1 of the epoch of key `order`."""
    position = torch.arange(start, stop, device=pairs.u.device)
    hop = position % pairs.num_classes
    first = pairs.class_starts[hop]
    size = pairs.class_starts[hop + 1] - first
    place = first + shuffled(position // pairs.num_classes, size, word_of(order, hop))
    return pairs.u[place], pairs.v[place], hop


def draw_into(pairs: DevicePairs, place: Tensor, ends: Tensor, hop: Tensor) -> None:
    """The same by one kernel: `place` is i64 (3,) = start, stop, order on the device; fills `ends` and `hop`.

    `ends` (2 * room,) takes u of every pair, then v; rows beyond the last pair get node 0 and hop -100.
    """
    from hcm_scale.sampling.device import kernels  # Triton takes a while to import, for GPUs alone

    room = len(hop)
    grid = (-(-room // _TILE),)
    kernels.draw_pairs[grid](
        pairs.u, pairs.v, pairs.class_starts, place, ends, hop, room, CLASSES=pairs.num_classes, TILE=_TILE
    )
