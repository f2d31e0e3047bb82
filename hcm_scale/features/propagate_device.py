"""Rows of Â x made on a CUDA device.

A program of the Triton kernel makes one row, entry after entry, by the steps of the CPU's kernel (`base/spmm.py`): its
own row of x by its scale, plus each neighbour's by that one's, all by its own. So the numbers are those of the CPU, to
the bit. Where Triton is missing the file can still be read, and nothing is made on a device. Device memory: the graph,
x and a chunk.
"""

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base.pinned import copied, copy_from, free_bytes
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl, triton
from hcm_scale.graph.store import Graph

_MOST_COLUMNS = 1024
_ROOM = 1.1  # times what is held

FillRows = Callable[[int, NDArray[np.float32]], None]


@jit
def _make_row(indptr, indices, scale, x, out, first, num_columns, COLUMNS: tl.constexpr):
    """Row first + i of Â x."""
    i = tl.program_id(0).to(tl.int64)
    u = first + i
    column = tl.arange(0, COLUMNS)
    inside = column < num_columns
    own = tl.load(scale + u)
    total = own * tl.load(x + u * num_columns + column, mask=inside, other=0.0)
    for e in range(tl.load(indptr + u), tl.load(indptr + u + 1)):
        v = tl.load(indices + e).to(tl.int64)
        total += tl.load(scale + v) * tl.load(x + v * num_columns + column, mask=inside, other=0.0)
    tl.store(out + i * num_columns + column, own * total, mask=inside)


def rows_on_device(
    structure: Graph, x: NDArray[np.float32], scale: NDArray[np.float32], device: str
) -> FillRows | None:
    """A function fill(first, out) that makes the rows of Â x from `first` on; None where it cannot."""
    held = structure.indptr.nbytes + structure.indices.nbytes + x.nbytes + scale.nbytes
    can = AVAILABLE and structure.weights is None and x.shape[1] <= _MOST_COLUMNS
    if not can or free_bytes(device) < _ROOM * held:
        return None
    there = [copied(array, device) for array in (structure.indptr, structure.indices, scale, x)]

    def fill(first: int, out: NDArray[np.float32]) -> None:
        rows = torch.empty(out.shape, device=device)
        columns = x.shape[1]
        _make_row[(len(out),)](*there, rows, first, columns, COLUMNS=triton.next_power_of_2(columns), num_warps=1)
        copy_from(rows, out)

    return fill
