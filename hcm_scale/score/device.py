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

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import (
    AVAILABLE,
    copy_from_device,
    copy_into_device,
    copy_to_device,
    free_bytes,
    jit,
    tl,
    triton,
)
from hcm_scale.base.threads import share_parts
from hcm_scale.score import edge_index
from hcm_scale.score.edge_index import EdgeIndex, PairHead, Pairs, check_finite, check_sample

# ----------------------------------------------------------------------------
# The edge pass of one sample as one Triton kernel: nothing per edge touches device memory but its ends and moments.
#
# A program takes a tile of edges, reads both embeddings of each (edges are sorted by their left end, so that one is
# mostly in cache), forms |z_u - z_v| in float32 and rounds it once, multiplies it by slabs of the first weight
# matrix, applies bias and ReLU, multiplies by the second, takes the expected class under softmax, and makes Welford's
# step.
#
# The type of `weight0` decides the first product: bfloat16, or float32 (TF32), which `fused_step` takes from nine
# classes on, where an expected hop spans more and 1e-2 would be missed. Sums are float32 throughout.
# Rounding the difference, not the embeddings, is what keeps near neighbours apart: a bfloat16 z has an error in
# proportion to |z|, a bfloat16 |z_u - z_v| one in proportion to itself.  Only CUDA scoring in bfloat16 imports this
# file, because Triton takes a second to import. Where Triton is missing the file can still be read
# (`base/device.py`).


_COARSE_CLASSES = 8
_PADDED_CLASSES = 16  # the smallest side of a tensor-core product


@jit
def _edge_tile(
    z,  # (n, WIDTH) f32 or bf16
    weight0,  # (WIDTH, HIDDEN), the type of the first product
    bias0,  # (HIDDEN,) f32
    weight1,  # (HIDDEN, PADDED) f32, zero beyond the classes
    bias1,  # (PADDED,) f32, -inf beyond the classes
    left,
    right,
    mean,
    m2,
    num_pairs,
    inverse_count,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    PADDED: tl.constexpr,
    SIGNED: tl.constexpr,
    EXPECTED: tl.constexpr,
    TILE: tl.constexpr,
    SLAB: tl.constexpr,
):
    """Welford's step of TILE edges."""
    pair = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = pair < num_pairs
    column = tl.arange(0, WIDTH)
    u = tl.load(left + pair, mask=inside, other=0).to(tl.int64)
    v = tl.load(right + pair, mask=inside, other=0).to(tl.int64)
    z_u = tl.load(z + u[:, None] * WIDTH + column[None, :]).to(tl.float32)
    z_v = tl.load(z + v[:, None] * WIDTH + column[None, :]).to(tl.float32)
    inputs = z_u - z_v
    if not SIGNED:
        inputs = tl.abs(inputs)
    inputs = inputs.to(weight0.dtype.element_ty)

    klass = tl.arange(0, PADDED)
    logits = tl.zeros((TILE, PADDED), dtype=tl.float32)
    for first in tl.static_range(0, HIDDEN, SLAB):
        unit = first + tl.arange(0, SLAB)
        slab = tl.load(weight0 + column[:, None] * HIDDEN + unit[None, :])
        hidden = tl.dot(inputs, slab) + tl.load(bias0 + unit)[None, :]
        hidden = tl.maximum(hidden, 0.0)
        logits += tl.dot(hidden, tl.load(weight1 + unit[:, None] * PADDED + klass[None, :]))

    poison = 0.0 * tl.sum(logits, 1)  # NaN where a logit is not finite, which argmax would hide
    logits += tl.load(bias1 + klass)[None, :]
    if EXPECTED:
        weight = tl.exp(logits - tl.max(logits, 1)[:, None])
        hop = tl.sum(weight * (klass + 1).to(tl.float32)[None, :], 1) / tl.sum(weight, 1)
    else:
        hop = tl.argmax(logits, 1).to(tl.float32) + 1.0
    hop += poison

    old = tl.load(mean + pair, mask=inside, other=0.0)
    spread = tl.load(m2 + pair, mask=inside, other=0.0)
    new = old + (hop - old) * inverse_count
    tl.store(mean + pair, new, mask=inside)
    tl.store(m2 + pair, spread + (hop - old) * (hop - new), mask=inside)


def fused_step(
    z: Tensor,
    head: PairHead,
    pairs: Pairs,
    count: int,
    moments: Tensor,
    *,
    product: torch.dtype | None = None,
    tile: int = 64,
    slab: int = 64,
    num_warps: int = 4,
) -> None:
    """One sample over all pairs: updates `moments` (2, m) f32, the mean and the squared deviations, in place.

    z is (n, width) on the device, f32 or bf16; width and hidden must be powers of two of at least 16, at most 16
    classes.
    """
    width, hidden, num_classes = *head.weight0.shape, len(head.bias1)
    if wrong := _wrong_size(width, hidden, num_classes):
        raise ValueError(f"{wrong} bfloat16 scoring; use float32")
    product = product or (torch.bfloat16 if num_classes <= _COARSE_CLASSES else torch.float32)
    num_pairs = len(pairs.left)
    if num_pairs == 0:
        return
    weight1 = z.new_zeros(hidden, _PADDED_CLASSES, dtype=torch.float32)
    weight1[:, :num_classes] = head.weight1
    bias1 = z.new_full((_PADDED_CLASSES,), -torch.inf, dtype=torch.float32)
    bias1[:num_classes] = head.bias1
    _edge_tile[(triton.cdiv(num_pairs, tile),)](
        z.contiguous(),
        head.weight0.to(product).contiguous(),
        head.bias0.float().contiguous(),
        weight1,
        bias1,
        pairs.left,
        pairs.right,
        moments[0],
        moments[1],
        num_pairs,
        1.0 / count,
        WIDTH=width,
        HIDDEN=hidden,
        PADDED=_PADDED_CLASSES,
        SIGNED=pairs.signed,
        EXPECTED=pairs.expected,
        TILE=tile,
        SLAB=min(slab, hidden),
        num_warps=num_warps,
    )


def can_serve(head: PairHead) -> bool:
    """Whether the kernel takes a head of this size."""
    width, hidden = head.weight0.shape
    return not _wrong_size(width, hidden, len(head.bias1))


def _wrong_size(width: int, hidden: int, num_classes: int) -> str:
    """What the kernel cannot take, as the beginning of a sentence; empty where it can."""
    for name, size in (("width", width), ("hidden", hidden)):
        if size < 16 or size & (size - 1):
            return f"{name}={size} must be a power of two of at least 16 for"
    if num_classes > _PADDED_CLASSES:
        return f"{num_classes} hop classes are more than the {_PADDED_CLASSES} of"
    return ""


# ----------------------------------------------------------------------------
# AHP and IV of every node averaged on a CUDA device: one program of a Triton kernel takes a node and all its edges.
#
# A lane takes an edge. Where the neighbour has the smaller number the edge is looked up in that one's row, by
# bisection in all lanes at once, as the CPU does (`kernels.edge_number`). The nearest edges are those up to a bound,
# which 32 steps of bisection over the bits of the hops find; of equal ones the first are taken. Sums are float64, in
# the order of a tree: those of hops, which differ little in size, are exact in any order, those of variances good to
# the last places.
#
# Only large graphs on CUDA devices import this file, because Triton takes a second to import. Where Triton is missing
# the file can still be read (`base/device.py`). Device memory: the graph, 4 bytes an edge and mean, 4 for the
# variance, 8 bytes a node and result, and 24 a node.


_LANES = (32, 128, 1024)  # that a node of as many neighbours is given; of more a core takes care
_ROOM = 1.1  # times what is held


@jit
def _average_node(
    nodes,  # (programs,) i64
    num_kept,  # (programs,) i64
    indptr,
    indices,
    start,
    means,  # (NUM_MEANS, m) f32
    var,  # (m,) f32
    out,  # (NUM_MEANS + 1, n) f64
    num_edges,
    num_nodes,
    NUM_MEANS: tl.constexpr,
    DIRECTED: tl.constexpr,
    LANES: tl.constexpr,
):
    """The averages of one node, and last its IV."""
    v = tl.load(nodes + tl.program_id(0))
    kept = tl.load(num_kept + tl.program_id(0))
    end = tl.load(indptr + v + 1)
    position = tl.load(indptr + v) + tl.arange(0, LANES)
    inside = position < end
    u = tl.load(indices + position, mask=inside, other=0).to(tl.int64)
    edge = position - end + tl.load(start + v + 1)
    if not DIRECTED:
        below = inside & (u < v)
        low = tl.load(start + u, mask=below, other=0)
        high = tl.load(start + u + 1, mask=below, other=0)
        shift = tl.load(indptr + u + 1, mask=below, other=0) - high
        while tl.max(high - low, 0) > 0:
            is_open = low < high
            middle = (low + high) // 2
            before = tl.load(indices + middle + shift, mask=is_open, other=0) < v
            low = tl.where(is_open & before, middle + 1, low)
            high = tl.where(is_open & (before == 0), middle, high)
        edge = tl.where(below, low, edge)

    spread = tl.load(var + edge, mask=inside, other=0.0).to(tl.float64)
    for i in tl.static_range(NUM_MEANS):
        hop = tl.load(means + i * num_edges + edge, mask=inside, other=0.0)
        key = tl.where(inside, hop.to(tl.uint32, bitcast=True).to(tl.int64), 1 << 33)
        least, bound = tl.full((), 0, tl.int64), tl.full((), 1 << 32, tl.int64)
        for _ in range(33):
            middle_key = (least + bound) // 2
            enough = tl.sum((key <= middle_key).to(tl.int64), 0) >= kept
            bound = tl.where(enough, middle_key, bound)
            least = tl.where(enough, least, tl.minimum(middle_key + 1, bound))
        tied = (key == bound).to(tl.int64)
        num_nearer = tl.sum((key < bound).to(tl.int64), 0)
        chosen = (key < bound) | ((tied == 1) & (tl.cumsum(tied, 0) <= kept - num_nearer))
        tl.store(out + i * num_nodes + v, tl.sum(tl.where(chosen, hop.to(tl.float64), 0.0), 0) / kept)
        if i == 0:
            tl.store(out + NUM_MEANS * num_nodes + v, tl.sum(tl.where(chosen, spread, 0.0), 0) / kept)


def average_on_device(
    edges: EdgeIndex, means: Sequence[NDArray[np.float32]], var: NDArray[np.float32], keep: float, device: str
) -> NDArray[np.float64] | None:
    """As `kernels.average_rows`: AHP by each mean, and last the IV, (means + 1, n); None where a device cannot.

    All edges must be drawn.
    """
    n, count = edges.num_nodes, len(means)
    held = 16 * n + edges.indices.nbytes + (count + 1) * (var.nbytes + 8 * n) + 24 * n
    if not AVAILABLE or free_bytes(device) < _ROOM * held:
        return None
    csr = [copy_to_device(array, device) for array in (edges.indptr, edges.indices, edges.start)]
    stacked = torch.empty(count, len(var), device=device)
    for row, mean in zip(stacked, means, strict=True):
        copy_into_device(row, mean)
    out = torch.zeros(count + 1, n, dtype=torch.float64, device=device)
    of_edges = stacked, copy_to_device(var, device), out, len(var), n, count, edges.directed
    degree, fewest = csr[0].diff(), 1
    for lanes in _LANES:
        nodes = ((degree >= fewest) & (degree <= lanes)).nonzero().squeeze(1)
        if len(nodes):
            kept = (keep * degree[nodes].double() - 1e-9).ceil().clamp(min=1).long()
            warps = min(4, lanes // 32)
            _average_node[(len(nodes),)](nodes, kept, *csr, *of_edges, LANES=lanes, num_warps=warps)
        fewest = lanes + 1
    found = np.empty(out.shape)
    for row, result in zip(out, found, strict=True):
        copy_from_device(row, result)
    _average_hubs((degree >= fewest).nonzero().squeeze(1), edges, means, var, keep, found)
    return found


def _average_hubs(
    hubs: Tensor,
    edges: EdgeIndex,
    means: Sequence[NDArray[np.float32]],
    var: NDArray[np.float32],
    keep: float,
    out: NDArray[np.float64],
) -> None:
    """Nodes of more neighbours than lanes, by the CPU's kernel."""

    def average(_: int, v: int) -> None:
        edge_index.average_rows((v, v + 1), edges.for_kernels, keep, tuple(means), var, out[:-1], out[-1])

    share_parts(numba.get_num_threads(), hubs.tolist(), average)


_LIST_EDGES = 1 << 20  # edges listed on the host at a time
_HELD_BYTES = 17  # an edge: its ends, its moments, and whether they are finite
_WORK_BYTES = 1 << 29  # a chunk of plain torch
_RANGE_EDGES = 1 << 21  # that pass through the device together
_UNDER_WAY = 8  # such ranges

Step = Callable[[Tensor, PairHead, Pairs, int, Tensor], None]


@torch.no_grad()
def predict_on_device(
    edges: EdgeIndex,
    samples: Iterable[tuple[Tensor, PairHead]],
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
            z, head, count = z.to(device), PairHead(*(part.to(device) for part in head)), count + 1
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
        pairs = Pairs(
            copy_to_device(left, device), copy_to_device(right, device), signed=edges.directed, expected=expected
        )
        moments = torch.zeros(2, len(number), device=device)
        if count > 1:
            for row, values in zip(moments, host, strict=True):
                copy_into_device(row, values[chosen])
        with one_at_a_time:  # plain torch has no room for the chunks of several
            step(pairs, count, moments)
        check_finite(bool(torch.isfinite(moments[0]).all()), count)
        found = np.empty((2, len(number)), np.float32)
        copy_from_device(moments, found)
        for values, row in zip(host, found, strict=True):
            values[chosen] = row
        with one_at_a_time:
            on_edges(len(number))

    share_parts(_UNDER_WAY, range(0, edges.num_edges, _RANGE_EDGES), take)


def edge_ends(edges: EdgeIndex, device: torch.device) -> tuple[Tensor, Tensor]:
    """Left and right ends of all scored edges, in order, in the graph's index type."""
    kind = torch.from_numpy(np.empty(0, edges.indices.dtype)).dtype
    ends = torch.empty(2, edges.num_edges, dtype=kind, device=device)
    if not len(edges.limit):

        def fill(_: int, first: int) -> None:
            left, right, _numbers = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))
            ends[0, first : first + len(left)] = torch.from_numpy(left)
            ends[1, first : first + len(left)] = torch.from_numpy(right)

        share_parts(numba.get_num_threads(), range(0, edges.num_edges, _LIST_EDGES), fill)
        return ends[0], ends[1]
    filled = 0
    for first in range(0, edges.num_edges, _LIST_EDGES):
        left, right, number = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))
        ends[0, filled : filled + len(number)] = torch.from_numpy(left)
        ends[1, filled : filled + len(number)] = torch.from_numpy(right)
        filled += len(number)
    return ends[0, :filled], ends[1, :filled]


def plain_step(
    z: Tensor, head: PairHead, pairs: Pairs, count: int, moments: Tensor, *, chunk: int, precision: str
) -> None:
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


def _choose(precision: str, head: PairHead, expected: bool, chunk: int) -> Step:
    """How a sample is taken over pairs: by the Triton kernel, or by plain torch."""
    plain = partial(plain_step, chunk=chunk)
    if precision == "float32" or (precision == "auto" and not expected):  # a likeliest class may turn on the last bit
        return partial(plain, precision="float32")
    from hcm_scale.base import device as triton_jit  # Triton takes a second to import

    if precision == "auto":
        serves = triton_jit.AVAILABLE and can_serve(head)
        return fused_step if serves else partial(plain, precision="float32")
    if not triton_jit.AVAILABLE:
        warnings.warn("Triton is not installed: bfloat16 scoring runs in plain torch, which is slower", stacklevel=4)
        return partial(plain, precision=precision)
    return fused_step


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
        copy_from_device(moments[0], mean)
        copy_from_device(moments[1], m2)
        return
    filled = 0
    for first in range(0, edges.num_edges, _LIST_EDGES):
        number = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))[2]
        part = moments[:, filled : filled + len(number)].cpu().numpy()
        mean[number], m2[number] = part[0], part[1]
        filled += len(number)
