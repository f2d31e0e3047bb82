"""Arrays copied to a device and back by several threads, in pieces, through memory that the device reads by itself.

A copy from memory that the system may move costs a second one, and pages of a new array have to be made: a thread that
fills the same few pages again and again, while another's are on the bus, takes a third of the time.
"""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.threads import share_parts

# ----------------------------------------------------------------------------
# Triton, where it is installed: `jit` makes a function a kernel, `tl` is what kernels are written in.
#
# Where it is missing `AVAILABLE` is False, `jit` leaves a function as it is, which nobody can call, and files with
# kernels can still be read, if they have `from __future__ import annotations`. Only what runs on CUDA devices imports
# this, because Triton takes a second to import.


AVAILABLE = importlib.util.find_spec("triton") is not None
if AVAILABLE:
    import triton
    import triton.language as tl
else:
    triton = tl = None

__all__ = ["AVAILABLE", "jit", "tl", "triton"]


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return triton.jit(function) if AVAILABLE else function


MANY_ENTRIES = 1 << 27  # of a CSR: sixteen cores take a second or two for a pass over them, a GPU less to get them
_PIECE_BYTES = 1 << 25
_THREADS = 4


def free_bytes(device: torch.device | str) -> float:
    """Free memory of a CUDA device; of others, no end of it.

    What torch keeps for the next tensors goes back first: it is in pieces, which a large tensor may fit none of.
    """
    if torch.device(device).type != "cuda":
        return math.inf
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def copy_into_device(out: Tensor, array: NDArray[Any]) -> Tensor:
    """Fills `out`, of the array's shape and type, from an array that may be a read-only map."""

    def copy(room: Tensor, piece: slice) -> None:
        np.copyto(room.numpy(), array[piece])
        out[piece].copy_(room)

    _in_pieces(out, copy)
    return out


def copy_to_device(array: NDArray[Any], device: torch.device | str) -> Tensor:
    """The array on a device."""
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return copy_into_device(torch.empty(array.shape, dtype=kind, device=device), array)


def copy_from_device(tensor: Tensor, out: NDArray[Any]) -> None:
    """Fills `out`, of the tensor's shape and type."""

    def copy(room: Tensor, piece: slice) -> None:
        room.copy_(tensor[piece])
        out[piece] = room.numpy()

    _in_pieces(tensor, copy)


def _in_pieces(tensor: Tensor, copy: Callable[[Tensor, slice], None]) -> None:
    """Calls copy(room, piece) for slices of the first dimension, with room for a piece in memory."""
    length, row_bytes = len(tensor), tensor.element_size() * max(1, tensor[:1].numel())
    rows = max(1, _PIECE_BYTES // row_bytes)
    firsts = range(0, length, rows)
    shape = min(rows, length), *tensor.shape[1:]
    rooms = [
        torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for _ in range(min(_THREADS, len(firsts)))
    ]

    def work(me: int, first: int) -> None:
        piece = slice(first, min(first + rows, length))
        copy(rooms[me][: piece.stop - first], piece)

    share_parts(len(rooms), firsts, work)
