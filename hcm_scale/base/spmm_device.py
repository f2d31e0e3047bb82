"""Rows of Â x made on a CUDA device: importing this module imports Triton.

A program of the Triton kernel makes one row, entry after entry, by the steps of the CPU's kernel (`spmm.py`), so the
numbers are those of the CPU, to the bit. Device memory beside the graph and the result: x, or as many of its columns at
a time as there is room for.
"""

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_to_device, free_bytes
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl, triton

MOST_COLUMNS = 1024  # of a row that one program makes
_ROOM = 1.1  # device memory asked for, over what the columns take
_AT_ONCE = 16  # entries that are asked for before the first is added: a hub's row is one chain of additions


def propagate_into(out: Tensor, indptr: Tensor, indices: Tensor, scale: Tensor, x: NDArray[np.float32]) -> bool:
    """Whether the first columns of `out`, (n, q or more), were filled with Â x: not without Triton, or without room.

    The others are on the device already; edges weigh 1.
    """
    num_rows, num_columns = x.shape
    room = free_bytes(out.device) / (_ROOM * 4 * max(1, num_rows))
    at_once = int(min(num_columns, MOST_COLUMNS, room))
    if not AVAILABLE or at_once < 1:
        return False
    for first in range(0, num_columns, at_once):
        columns = copy_to_device(x[:, first : first + at_once], out.device)
        make_rows(out[:, first : first + at_once], indptr, indices, scale, columns)
    return True


def make_rows(
    out: Tensor, indptr: Tensor, indices: Tensor, scale: Tensor, x: Tensor, begin: int = 0, skipped: int = 0
) -> None:
    """Fills `out`, (rows, q or more), with the rows of Â x from `begin` on; x, (n, q), has at most `MOST_COLUMNS`.

    `indices` may lack the first `skipped` entries.
    """
    num_rows, size = len(out), x.shape[1]
    shape = {"COLUMNS": triton.next_power_of_2(size), "AT_ONCE": _AT_ONCE, "num_warps": 1}
    _make_row[(num_rows,)](indptr, indices, scale, begin, skipped, x, out, out.stride(0), size, **shape)


@jit(sizes=("begin", "skipped", "stride"))
def _make_row(
    indptr, indices, scale, begin, skipped, x, out, stride, num_columns, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr
):
    """A row of Â x."""
    row = tl.program_id(0).to(tl.int64)
    u = row + begin
    column = tl.arange(0, COLUMNS)
    inside = column < num_columns
    own = tl.load(scale + u)
    total = own * tl.load(x + u * num_columns + column, mask=inside, other=0.0)
    end = tl.load(indptr + u + 1) - skipped
    for first in range(tl.load(indptr + u) - skipped, end, AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            e = tl.full((), i, tl.int64) + first
            v = tl.load(indices + tl.minimum(e, end - 1)).to(tl.int64)
            values = tl.load(x + v * num_columns + column, mask=inside, other=0.0)
            total = tl.where(e < end, tl.fma(tl.load(scale + v), values, total), total)  # rounded once, as on the CPU
    tl.store(out + row * stride + column, own * total, mask=inside)
