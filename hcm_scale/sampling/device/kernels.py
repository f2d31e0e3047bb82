"""Triton kernels of training on a GPU: draw pairs; draw neighbours and sum their hidden rows, forward and backward.

A draw is a function of its key (`graph.shuffled`), so nothing that is drawn is ever stored. `sum_hidden` draws the
neighbours of a target, reads their rows of Â X, applies the first layer and adds up the result, all on the chip;
`sum_gradients` draws the same neighbours again and computes the hidden rows a second time. That costs 2 x q x width
operations an entry and saves writing and reading width floats of it.

Entries of a target are worked on 16 at a time, the least that a tensor core takes: slot 0 is the self loop, slot s > 0
the (s - 1)-th neighbour of the draw. Programs of `sum_gradients` walk over the targets in strides and leave one partial
sum each, so the order of addition is fixed: no atomics, equal bits at every run.

Where Triton is missing the file can still be read (`base/triton_jit.py`).
"""

from __future__ import annotations  # the kernels' `tl.constexpr` stay unread where Triton is missing

from hcm_scale.base.triton_jit import AVAILABLE, jit, tl
from hcm_scale.sampling.device import graph

constant = tl.constexpr if AVAILABLE else int
_ROUNDS = constant(graph.ROUNDS)
_GOLDEN = constant(graph.GOLDEN)
_FIRST = constant(graph.MULTIPLIERS[0])
_SECOND = constant(graph.MULTIPLIERS[1])
_SLOTS = constant(16)


@jit
def _mix(word):
    word = (word ^ (word >> 16)) * tl.full((), _FIRST, tl.uint32)
    word = (word ^ (word >> 15)) * tl.full((), _SECOND, tl.uint32)
    return word ^ (word >> 16)


@jit
def _word_of(key, item):
    """As `graph.word_of`; key and item are int64, the result is uint32."""
    word = _mix((item ^ key).to(tl.uint32))
    return _mix(word + (item >> 32).to(tl.uint32) + (key >> 32).to(tl.uint32))


@jit
def _shuffled(index, size, word):
    """As `graph.shuffled`, in uint32."""
    for _ in range(_ROUNDS):  # not unrolled: the compiler would hoist all keys out of the caller's loop, into registers
        word += tl.full((), _GOLDEN, tl.uint32)
        key = _mix(word)
        turn = ((key.to(tl.uint64) * size.to(tl.uint64)) >> 32).to(tl.uint32)
        other = tl.where(turn < index, turn - index + size, turn - index)
        coin = _mix(key ^ tl.maximum(index, other)) & 1
        index = tl.where(coin == 1, other, index)
    return index


@jit(sizes=("room",))
def draw_pairs(
    pairs_u,
    pairs_v,
    class_starts,  # i64 (CLASSES + 1,)
    bounds,  # i64 (3,): start, stop, key
    ends,  # (2 * room,): u of every pair, then v
    hop,  # i64 (room,): -100 beyond the last pair, which the loss leaves out
    room,
    CLASSES: tl.constexpr,
    TILE: tl.constexpr,
):
    """The pairs at positions start .. stop - 1 of an epoch's sequence: position p is draw p // C of class p % C."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    position = tl.load(bounds) + row
    used = position < tl.load(bounds + 1)
    klass = position % CLASSES
    first = tl.load(class_starts + klass)
    size = tl.load(class_starts + klass + 1) - first
    word = _word_of(tl.load(bounds + 2), klass)
    rank = tl.where(used, position // CLASSES, 0)
    pair = first + _shuffled(rank.to(tl.uint32), size.to(tl.uint32), word).to(tl.int64)
    inside = row < room
    tl.store(ends + row, tl.load(pairs_u + pair, mask=used, other=0), mask=inside)
    tl.store(ends + room + row, tl.load(pairs_v + pair, mask=used, other=0), mask=inside)
    tl.store(hop + row, tl.where(used, klass, -100), mask=inside)


@jit
def _targets(targets, indptr, scale, key, target, num_targets, limit):
    """Of each target: the node, where its neighbours begin, how many it has and draws, its scale, its word.

    A target of -1 is no node and has no entries.
    """
    node = tl.load(targets + target, mask=target < num_targets, other=-1).to(tl.int64)
    inside = node >= 0
    node = tl.maximum(node, 0)
    begin = tl.load(indptr + node)
    degree = (tl.load(indptr + node + 1) - begin).to(tl.int32)
    drawn = tl.where(inside, tl.minimum(degree, limit), -1)  # -1: not even a self loop
    own = tl.load(scale + node)
    return node, begin, degree, drawn, own, _word_of(tl.load(key), node)


@jit
def _entries(indices, scale, x, node, begin, degree, drawn, own, word, slot, any_drawn, Q: tl.constexpr):
    """Of each slot: the weight, and the row of x that it weighs."""
    position = slot - 1
    if any_drawn:
        some = _shuffled(tl.maximum(position, 0).to(tl.uint32), degree.to(tl.uint32), word).to(tl.int32)
        position = tl.where(drawn < degree, some, position)
    used = slot <= drawn
    near = tl.load(indices + begin + position, mask=used & (slot > 0), other=0).to(tl.int64)
    near = tl.where(slot == 0, node, near)
    boosted = own * (degree.to(tl.float32) / tl.maximum(drawn, 1).to(tl.float32))
    factor = tl.where(slot == 0, own, boosted)
    weight = tl.where(used, factor * tl.load(scale + near, mask=used, other=0.0), 0.0)
    column = tl.arange(0, Q)
    return weight, tl.load(x + near[:, None] * Q + column[None, :], mask=used[:, None], other=0.0)


@jit(sizes=("num_targets",))
def sum_hidden(
    targets,
    indptr,
    indices,
    scale,
    x,  # f32 (n, Q), zero beyond the attributes
    weight,  # f32 (Q, WIDTH)
    bias,  # f32 (WIDTH,)
    key,  # i64 (1,)
    num_targets,
    limit,
    out,  # f32 (num_targets, WIDTH)
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
    TARGETS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[i] = sum over the drawn entries e of target i of weight_e * relu(x_e W + b)."""
    row = tl.arange(0, TARGETS * _SLOTS)
    target = tl.program_id(0) * TARGETS + row // _SLOTS
    node, begin, degree, drawn, own, word = _targets(targets, indptr, scale, key, target, num_targets, limit)
    any_drawn = tl.max((drawn < degree).to(tl.int32), 0) > 0
    column, unit = tl.arange(0, Q), tl.arange(0, WIDTH)
    matrix = tl.load(weight + column[:, None] * WIDTH + unit[None, :])
    shift = tl.load(bias + unit)[None, :]
    sums = tl.zeros((TARGETS, WIDTH), dtype=tl.float32)
    for first in range(0, tl.max(drawn, 0) + 1, _SLOTS):
        slot = first + row % _SLOTS
        factor, rows = _entries(indices, scale, x, node, begin, degree, drawn, own, word, slot, any_drawn, Q)
        hidden = tl.maximum(tl.dot(rows, matrix, input_precision=PRECISION) + shift, 0.0) * factor[:, None]
        sums += tl.sum(tl.reshape(hidden, (TARGETS, _SLOTS, WIDTH)), 1)
    summed = tl.program_id(0) * TARGETS + tl.arange(0, TARGETS)
    where = summed[:, None].to(tl.int64) * WIDTH + unit[None, :]
    tl.store(out + where, sums, mask=(summed < num_targets)[:, None])


@jit(sizes=("num_targets",))
def sum_gradients(
    targets,
    indptr,
    indices,
    scale,
    x,
    weight,
    bias,
    key,
    num_targets,
    limit,
    gradient,  # f32 (num_targets, WIDTH): of the output of `sum_hidden`
    out_weight,  # f32 (programs, Q, WIDTH)
    out_bias,  # f32 (programs, WIDTH)
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
    TARGETS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Each program's part of the gradients of weight and bias."""
    row = tl.arange(0, TARGETS * _SLOTS)
    column, unit = tl.arange(0, Q), tl.arange(0, WIDTH)
    matrix = tl.load(weight + column[:, None] * WIDTH + unit[None, :])
    shift = tl.load(bias + unit)[None, :]
    matrix_sum = tl.zeros((Q, WIDTH), dtype=tl.float32)
    shift_sum = tl.zeros((WIDTH,), dtype=tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_targets, TARGETS), tl.num_programs(0)):
        target = tile * TARGETS + row // _SLOTS
        node, begin, degree, drawn, own, word = _targets(targets, indptr, scale, key, target, num_targets, limit)
        any_drawn = tl.max((drawn < degree).to(tl.int32), 0) > 0
        where = target[:, None].to(tl.int64) * WIDTH + unit[None, :]
        back = tl.load(gradient + where, mask=(target < num_targets)[:, None], other=0.0)
        for first in range(0, tl.max(drawn, 0) + 1, _SLOTS):
            slot = first + row % _SLOTS
            factor, rows = _entries(indices, scale, x, node, begin, degree, drawn, own, word, slot, any_drawn, Q)
            hidden = tl.dot(rows, matrix, input_precision=PRECISION) + shift
            flow = tl.where(hidden > 0, back * factor[:, None], 0.0)
            matrix_sum += tl.dot(tl.trans(rows), flow, input_precision=PRECISION)
            shift_sum += tl.sum(flow, 0)
    program = tl.program_id(0)
    tl.store(out_weight + (program * Q + column[:, None]) * WIDTH + unit[None, :], matrix_sum)
    tl.store(out_bias + program * WIDTH + unit, shift_sum)
