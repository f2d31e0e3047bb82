"""The edge pass on a CUDA device: ends and moments of all scored edges stay there, 16 bytes an edge.

float32 is plain torch, chunk by chunk, with full-precision products whatever the process has switched on; it agrees
with the CPU to 1e-4. bfloat16 is one fused kernel (`fused.py`), or plain torch with bfloat16 products where Triton is
missing. auto is the kernel where it can serve the model and hops are expected ones, else float32. The moments are
copied out once, after the last sample.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.pinned import copy_from
from hcm_scale.base.threads import share
from hcm_scale.score.head import Head, Pairs, check_finite, check_sample
from hcm_scale.score.numbering import EdgeIndex

_LIST_EDGES = 1 << 20  # edges listed on the host at a time


@torch.no_grad()
def sweep_device(
    edges: EdgeIndex,
    samples: Iterable[tuple[Tensor, Head]],
    mean: NDArray[np.float32],
    m2: NDArray[np.float32],
    *,
    chunk: int,
    device: torch.device,
    expected: bool,
    precision: str,
    on_edges: Callable[[int], object] = lambda num_edges: None,
) -> int:
    """Every sample over every edge on `device`; fills `mean` and `m2` on the host, returns the number of samples."""
    pairs = Pairs(*edge_ends(edges, device), signed=edges.directed, expected=expected)
    moments = torch.zeros(2, len(pairs.left), device=device)
    fused_step, count = None, 0
    with _exact_products():
        for z, head in samples:
            check_sample(edges, z, head)
            count += 1
            if count == 1:
                fused_step, precision = _choose(precision, head, expected)
            z, head = z.to(device), Head(*(part.to(device) for part in head))
            if fused_step is not None:
                fused_step(z, head, pairs, count, moments)
            else:
                plain_step(z, head, pairs, count, moments, chunk=chunk, precision=precision)
            check_finite(bool(torch.isfinite(moments[0]).all()), count)
            on_edges(len(pairs.left))
    _copy_out(edges, moments, mean, m2)
    return count


def edge_ends(edges: EdgeIndex, device: torch.device) -> tuple[Tensor, Tensor]:
    """Left and right ends of all scored edges, in order, in the graph's index type."""
    kind = torch.from_numpy(np.empty(0, edges.indices.dtype)).dtype
    ends = torch.empty(2, edges.num_edges, dtype=kind, device=device)
    if not len(edges.limit):

        def fill(_: int, first: int) -> None:
            left, right, _numbers = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))
            ends[0, first : first + len(left)] = torch.from_numpy(left)
            ends[1, first : first + len(left)] = torch.from_numpy(right)

        share(numba.get_num_threads(), range(0, edges.num_edges, _LIST_EDGES), fill)
        return ends[0], ends[1]
    filled = 0
    for first in range(0, edges.num_edges, _LIST_EDGES):
        left, right, number = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))
        ends[0, filled : filled + len(number)] = torch.from_numpy(left)
        ends[1, filled : filled + len(number)] = torch.from_numpy(right)
        filled += len(number)
    return ends[0, :filled], ends[1, :filled]


def plain_step(z: Tensor, head: Head, pairs: Pairs, count: int, moments: Tensor, *, chunk: int, precision: str) -> None:
    """One sample over all pairs in plain torch: gather, two products, softmax, Welford into `moments` (2, m)."""
    weight0, bias0, weight1, bias1 = (part.to(getattr(torch, precision)) for part in head)
    z = z.to(weight0.dtype)
    classes = torch.arange(1, len(bias1) + 1, device=z.device, dtype=torch.float32)
    for first in range(0, len(pairs.left), chunk):
        part = slice(first, first + chunk)
        inputs = z[pairs.left[part]] - z[pairs.right[part]]
        inputs = inputs if pairs.signed else inputs.abs_()
        logits = torch.addmm(bias1, torch.addmm(bias0, inputs, weight0).relu_(), weight1).float()
        hop = logits.softmax(1) @ classes if pairs.expected else logits.argmax(1).float() + 1
        hop += 0 * logits.sum(1)  # argmax hides a NaN: this carries it into the moments, where it is looked for
        mean, m2 = moments[0, part], moments[1, part]
        delta = hop - mean
        mean += delta / count
        m2 += delta * (hop - mean)


def _choose(
    precision: str, head: Head, expected: bool
) -> tuple[Callable[[Tensor, Head, Pairs, int, Tensor], None] | None, str]:
    """The Triton kernel's step, or None, and the precision of plain torch where that is to do."""
    if precision == "float32" or (precision == "auto" and not expected):  # a likeliest class may turn on the last bit
        return None, "float32"
    from hcm_scale.score import fused  # Triton takes a second to import

    if precision == "auto":
        return (fused.fused_step, "bfloat16") if fused.AVAILABLE and fused.can_serve(head) else (None, "float32")
    if not fused.AVAILABLE:
        warnings.warn("Triton is not installed: bfloat16 scoring runs in plain torch, which is slower", stacklevel=4)
        return None, precision
    return fused.fused_step, precision


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products in float32: TF32, if switched on for training, would cost three digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy_out(edges: EdgeIndex, moments: Tensor, mean: NDArray[np.float32], m2: NDArray[np.float32]) -> None:
    """Device moments, which are packed, to their edge numbers on the host."""
    if not len(edges.limit):
        copy_from(moments[0], mean)
        copy_from(moments[1], m2)
        return
    filled = 0
    for first in range(0, edges.num_edges, _LIST_EDGES):
        number = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))[2]
        part = moments[:, filled : filled + len(number)].cpu().numpy()
        mean[number], m2[number] = part[0], part[1]
        filled += len(number)
