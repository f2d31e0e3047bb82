"""Copies of large arrays to a CUDA device and back.

Arrays are copied by several threads, in pieces, through pinned memory, which the device reads by itself. A copy from
pageable memory costs a second one, and a new array the making of its pages: threads that fill the same few pages again
and again, while another's are on the bus, take a third of the time.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.threads import share_parts

TURN = threading.Lock()  # of work that takes much of a device's memory: one such work at a time decides what fits
_PIECE_BYTES = 1 << 25
_THREADS = 4


def free_bytes(device: torch.device | str) -> float:
    """Free memory of a CUDA device, after torch has returned what it caches; infinite for other devices."""
    if torch.device(device).type != "cuda":
        return math.inf
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def copy_into_device(out: Tensor, array: NDArray[Any]) -> Tensor:
    """`out`, of the array's shape and type, filled from the array, which may be a read-only map."""

    def copy(buffer: Tensor, piece: slice) -> None:
        np.copyto(buffer.numpy(), array[piece])
        out[piece].copy_(buffer)

    _in_pieces(out, copy)
    return out


def copy_to_device(array: NDArray[Any], device: torch.device | str) -> Tensor:
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return copy_into_device(torch.empty(array.shape, dtype=kind, device=device), array)


def copy_from_device(tensor: Tensor, out: NDArray[Any]) -> None:
    """Fills `out`, of the tensor's shape and type."""

    def copy(buffer: Tensor, piece: slice) -> None:
        buffer.copy_(tensor[piece])
        out[piece] = buffer.numpy()

    _in_pieces(tensor, copy)


def _in_pieces(tensor: Tensor, copy: Callable[[Tensor, slice], None]) -> None:
    """Calls copy(buffer, piece) for slices of the first dimension, each with a buffer in memory."""
    length, row_bytes = len(tensor), tensor.element_size() * max(1, tensor[:1].numel())
    rows = max(1, _PIECE_BYTES // row_bytes)
    firsts = range(0, length, rows)
    shape = min(rows, length), *tensor.shape[1:]
    buffers = [
        torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for _ in range(min(_THREADS, len(firsts)))
    ]

    def work(thread: int, first: int) -> None:
        piece = slice(first, min(first + rows, length))
        copy(buffers[thread][: piece.stop - first], piece)

    share_parts(len(buffers), firsts, work)
