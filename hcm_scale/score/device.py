"""The edge pass on a CUDA device: ends and moments of all scored edges stay there, 16 bytes an edge.

Where that does not fit beside the graph and its embedding, ranges of edges pass through instead: under each sample the
ends of a range are listed on the host, go to the device with its moments, and these come back. Several ranges are under
way at a time, so that one is listed while another is on the bus or computed. The kernel's numbers are the same bits
either way; a product of plain torch may round by its shape.

float32 is plain torch, chunk by chunk, with full-precision products whatever the process has switched on; it agrees
with the CPU to 1e-4. bfloat16 is one fused kernel (`fused.py`), or plain torch with bfloat16 products where Triton is
missing. auto is the kernel where it can serve the model and hops are expected ones, else float32. The moments are
copied out once, after the last sample.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.pinned import copied, copy_from, copy_to, free_bytes
from hcm_scale.base.threads import share
from hcm_scale.score.head import Head, Pairs, check_finite, check_sample
from hcm_scale.score.numbering import EdgeIndex

_LIST_EDGES = 1 << 20  # edges listed on the host at a time
_HELD_BYTES = 17  # an edge: its ends, its moments, and whether they are finite
_WORK_BYTES = 1 << 29  # a chunk of plain torch
_RANGE_EDGES = 1 << 21  # that pass through the device together
_UNDER_WAY = 8  # such ranges

Step = Callable[[Tensor, Head, Pairs, int, Tensor], None]


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
    step, held, count = None, None, 0
    with _exact_products():
        for z, head in samples:
            check_sample(edges, z, head)
            z, head, count = z.to(device), Head(*(part.to(device) for part in head)), count + 1
            if step is None:
                step = _choose(precision, head, expected, chunk)
                held = _hold(edges, device, expected)
            if held is None:
                _pass_through(edges, partial(step, z, head), count, (mean, m2), device, expected, on_edges)
            else:
                step(z, head, held.pairs, count, held.moments)
                check_finite(bool(torch.isfinite(held.moments[0]).all()), count)
                on_edges(len(held.pairs.left))
    if held is not None:
        _copy_out(edges, held.moments, mean, m2)
    return count


class Held(NamedTuple):
    """All scored edges on a device, and their moments, (2, m) f32."""

    pairs: Pairs
    moments: Tensor


def _hold(edges: EdgeIndex, device: torch.device, expected: bool) -> Held | None:
    """All edges on the device; None where they do not fit."""
    if _HELD_BYTES * edges.num_edges + _WORK_BYTES > free_bytes(device):
        return None
    pairs = Pairs(*edge_ends(edges, device), signed=edges.directed, expected=expected)
    return Held(pairs, torch.zeros(2, len(pairs.left), device=device))


def _pass_through(
    edges: EdgeIndex,
    step: Callable[[Pairs, int, Tensor], None],
    count: int,
    host: tuple[NDArray[np.float32], NDArray[np.float32]],
    device: torch.device,
    expected: bool,
    on_edges: Callable[[int], object],
) -> None:
    """The count-th sample over all edges, whose mean and squared deviations are on the host."""
    one_at_a_time = threading.Lock()

    def take(_: int, first: int) -> None:
        left, right, number = edges.edges(first, min(first + _RANGE_EDGES, edges.num_edges))
        chosen = number if len(edges.limit) else slice(first, first + len(number))
        pairs = Pairs(copied(left, device), copied(right, device), signed=edges.directed, expected=expected)
        moments = torch.zeros(2, len(number), device=device)
        if count > 1:
            for row, values in zip(moments, host, strict=True):
                copy_to(row, values[chosen])
        with one_at_a_time:  # plain torch has no room for the chunks of several
            step(pairs, count, moments)
        check_finite(bool(torch.isfinite(moments[0]).all()), count)
        found = np.empty((2, len(number)), np.float32)
        copy_from(moments, found)
        for values, row in zip(host, found, strict=True):
            values[chosen] = row
        with one_at_a_time:
            on_edges(len(number))

    share(_UNDER_WAY, range(0, edges.num_edges, _RANGE_EDGES), take)


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


def _choose(precision: str, head: Head, expected: bool, chunk: int) -> Step:
    """How a sample is taken over pairs: by the Triton kernel, or by plain torch."""
    plain = partial(plain_step, chunk=chunk)
    if precision == "float32" or (precision == "auto" and not expected):  # a likeliest class may turn on the last bit
        return partial(plain, precision="float32")
    from hcm_scale.base import triton_jit  # Triton takes a second to import
    from hcm_scale.score import fused

    if precision == "auto":
        serves = triton_jit.AVAILABLE and fused.can_serve(head)
        return fused.fused_step if serves else partial(plain, precision="float32")
    if not triton_jit.AVAILABLE:
        warnings.warn("Triton is not installed: bfloat16 scoring runs in plain torch, which is slower", stacklevel=4)
        return partial(plain, precision=precision)
    return fused.fused_step


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
