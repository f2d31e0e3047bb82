"""The edge pass of one sample as one Triton kernel: nothing per edge touches device memory but its ends and moments.

A program takes a tile of edges, reads both embeddings of each (edges are sorted by their left end, so that one is
mostly in cache), forms |z_u - z_v| in float32 and rounds it once, multiplies it by slabs of the first weight matrix,
applies bias and ReLU, multiplies by the second, takes the expected class under softmax, and makes Welford's step.

The type of `weight0` decides the first product: bfloat16, or float32 (TF32), which `fused_step` takes from nine classes
on, where an expected hop spans more and 1e-2 would be missed. Sums are float32 throughout. Rounding the difference, not
the embeddings, is what keeps near neighbours apart: a bfloat16 z has an error in proportion to |z|, a bfloat16
|z_u - z_v| one in proportion to itself.

Only CUDA scoring in bfloat16 imports this file, because Triton takes a second to import. Where Triton is missing
the file can still be read (`base/triton_jit.py`).
"""

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

import torch
from torch import Tensor

from hcm_scale.base.triton_jit import jit, tl, triton
from hcm_scale.score.head import Head, Pairs

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
    head: Head,
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


def can_serve(head: Head) -> bool:
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
