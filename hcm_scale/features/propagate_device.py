"""Rows of Â x made on a CUDA device: importing this module imports Triton.

A program of the Triton kernel makes one row, entry after entry, by the steps of the CPU's kernel (`base/spmm.py`), so
the numbers are those of the CPU, to the bit. Device memory: the graph, x and a chunk of rows.
"""

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base.device import copy_from_device, copy_to_device, free_bytes
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl, triton
from hcm_scale.graph import Graph

_MOST_COLUMNS = 1024  # of a row that one program makes
_ROOM = 1.1  # device memory asked for, over what the arrays take


def rows_on_device(
    structure: Graph, x: NDArray[np.float32], scale: NDArray[np.float32], device: str
) -> Callable[[int, NDArray[np.float32]], None] | None:
    """A function fill(first, out) that makes the rows of Â x from `first` on; None where the device cannot."""
    held = structure.indptr.nbytes + structure.indices.nbytes + x.nbytes + scale.nbytes
    can = AVAILABLE and structure.weights is None and x.shape[1] <= _MOST_COLUMNS
    if not can or free_bytes(device) < _ROOM * held:
        return None
    there = [copy_to_device(array, device) for array in (structure.indptr, structure.indices, scale, x)]

    def fill(first: int, out: NDArray[np.float32]) -> None:
        rows = torch.empty(out.shape, device=device)
        columns = x.shape[1]
        _make_row[(len(out),)](*there, rows, first, columns, COLUMNS=triton.next_power_of_2(columns), num_warps=1)
        copy_from_device(rows, out)

    return fill


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
