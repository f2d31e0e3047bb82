"""Bit-parallel BFS on a CUDA device: the rows of `wide`, to the bit. Importing this module imports Triton.

The graph is copied to the device and renamed there by falling degree, as `layout.degree_layout` does. A block of 512
sources is searched as in `wide`, a bit a source, with these differences. Every level is a pull that ends early, by
programs that take one hub, one node or eight small nodes each; a byte a node says whether its row of the frontier is
zero, so that a sparse level reads bytes from the cache of the chip instead of rows. Column j sits on bit j mod 64 of
word j / 64. Members are counted by chunks of 64 and groups of 512 nodes; sizes come to the host, where `want_class`
draws the ranks as for the cores; the ranks are searched for among the sums over groups, and from there bit by bit.

Device memory, for n nodes and A arcs with indices of b bytes: 2 A b for the graph and its renamed copy (the first is
dropped), and about 27 W + 60 bytes a node. A level moves at most (b + 1 + 8 W) bytes an arc and 33 W a node.
"""

from __future__ import annotations  # the kernels' `tl.constexpr` stay unread where Triton is missing

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_from_device, copy_to_device, free_bytes
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl
from hcm_scale.hops.layout import HUBS, NOT_A_SOURCE, Rows
from hcm_scale.hops.wide import CHUNK, GROUP, Columns, Cursor, Request, want_class

WORDS = 8
COLUMNS = 64 * WORDS
_NODE_BYTES = 60 + 27 * WORDS
_MARGIN = 1.1  # free memory asked for, over what the arrays take
# Of the pull: nodes of more than so many arcs, nodes of a program, arcs read at a time, warps.
_SHAPES = ((512, 1, 256, 8), (8, 1, 32, 1), (0, 8, 8, 2))
_TILE = 128


def fits_device(indptr: NDArray[np.int64], indices: NDArray[Any], device: str) -> bool:
    """Whether the searches run on this device: a CUDA one, with Triton and room for them."""
    if torch.device(device).type != "cuda" or not AVAILABLE:
        return False
    held = 2 * indices.nbytes + _NODE_BYTES * len(indptr)
    return free_bytes(device) >= _MARGIN * held


class DeviceLayout(NamedTuple):
    """The linked nodes renamed by falling degree, as in `layout.Layout`; `names` and `node_of` are of all nodes."""

    indptr: Tensor  # i64 (m + 1,)
    indices: Tensor  # (arcs,)
    names: Tensor
    node_of: Tensor


def layout_on_device(indptr: NDArray[np.int64], indices: NDArray[Any], device: str) -> DeviceLayout:
    """`layout.degree_layout` of an undirected graph, on the device."""
    given, near = copy_to_device(indptr, device), copy_to_device(indices, device)
    degrees, order = given.diff().sort(descending=True, stable=True)
    num_linked = int(degrees.count_nonzero())
    names = order.to(near.dtype)
    node_of = torch.empty_like(names)
    node_of[order] = torch.arange(len(names), dtype=names.dtype, device=device)
    out_indptr = torch.zeros(num_linked + 1, dtype=torch.int64, device=device)
    torch.cumsum(degrees[:num_linked], 0, out=out_indptr[1:])
    del degrees, order
    out = torch.empty_like(near)
    _rename[(num_linked,)](given, near, names, node_of, out_indptr, out, HUBS=HUBS, TILE=_TILE, num_warps=1)
    return DeviceLayout(out_indptr, out, names, node_of)


class DeviceSearch:
    """Labels blocks of at most 512 sources; holds the graph and the state of a block on the device.

    `names` are the nodes in the order of the layout, on the host. The request's own `order` is not read.
    """

    def __init__(self, indptr: NDArray[np.int64], indices: NDArray[Any], request: Request, device: str) -> None:
        layout = self._layout = layout_on_device(indptr, indices, device)
        self._request, sources, most = request, request.sources, request.most
        self.names = np.empty(len(layout.names), indices.dtype)
        copy_from_device(layout.names, self.names)
        self._roots = layout.node_of[copy_to_device(sources, device)].long()
        order = torch.full((len(self.names),), NOT_A_SOURCE, dtype=torch.int32, device=device)
        order[self._roots] = torch.arange(len(sources), dtype=torch.int32, device=device)
        self._order, num_linked = order, len(layout.indptr) - 1
        self._seen, self._front, self._new = torch.empty(3, num_linked, WORDS, dtype=torch.int64, device=device)
        self._active, self._new_active = (torch.empty(num_linked, dtype=torch.int8, device=device) for _ in range(2))
        self._as_it_is, self._flipped = (torch.tensor([word], device=device) for word in (0, -1))
        self._num_groups = -(-num_linked // (CHUNK * GROUP))
        self._chunk_counts = torch.empty(self._num_groups * GROUP, COLUMNS, dtype=torch.uint8, device=device)
        self._group_counts = torch.empty(COLUMNS, self._num_groups, dtype=torch.int32, device=device)
        degrees = layout.indptr.diff()
        self._bounds = [0, *(int((degrees > least).sum()) for least, *_ in _SHAPES)]
        below, coming, taken, wanted, filled = np.zeros((5, COLUMNS), np.int64)
        ranks = np.zeros((COLUMNS, most), np.int64)
        self._cursor = Cursor(below, coming, taken, wanted, filled, np.zeros(COLUMNS, np.bool_), ranks)
        self._table = np.empty(3 * most, np.int64)

    def label_block(self, _: int, columns: Columns, rows: Rows, *, on_class: Callable[[int], object]) -> None:
        device, count = self._seen.device, len(columns.positions)
        column = torch.arange(count, device=device)
        roots = self._roots[torch.from_numpy(columns.positions).to(device)]
        bits = torch.ones_like(column) << (column % 64)
        for level in (self._seen, self._front):
            level.zero_()
            level[roots, column // 64] = bits
        self._active.zero_()
        self._active[roots] = 1
        full = torch.zeros(COLUMNS, dtype=torch.int64, device=device)
        full[:count] = bits
        full = full.view(WORDS, 64).sum(1)
        self._cursor.filled[:] = 0
        num_classes = rows.counts.shape[1]
        for hop in range(1, num_classes):
            self._pull(full)
            self._take_class(hop, columns, self._new, self._as_it_is, rows)
            self._front, self._new = self._new, self._front
            self._active, self._new_active = self._new_active, self._active
            on_class(hop)
        self._take_class(num_classes, columns, self._seen, self._flipped, rows)

    def _pull(self, full: Tensor) -> None:
        """One level: `new` becomes what the frontier reaches for the first time."""
        state = self._front, self._active, full, self._seen, self._new, self._new_active
        for shape, start, stop in zip(_SHAPES, self._bounds, self._bounds[1:], strict=False):
            _, nodes, near, warps = shape
            if stop > start:
                grid = (-(-(stop - start) // nodes),)
                arcs = self._layout.indptr, self._layout.indices
                _pull[grid](*arcs, *state, start, stop, W=WORDS, NODES=nodes, NEAR=near, num_warps=warps)

    def _take_class(self, hop: int, columns: Columns, level: Tensor, flip: Tensor, rows: Rows) -> None:
        """Counts the class that a level (flipped or not) holds, and keeps all of it or a sample."""
        request, cursor, device, num_linked = self._request, self._cursor, level.device, len(level)
        positions = columns.positions
        padded = np.full(COLUMNS, NOT_A_SOURCE, np.int32)  # no node comes after a column without a source
        padded[: len(positions)] = positions
        members = level, self._order, torch.from_numpy(padded).to(device), flip, self._chunk_counts
        sizes_of = {"W": WORDS, "CHUNK": CHUNK, "GROUP": GROUP}
        _count[(self._num_groups,)](*members, self._group_counts, num_linked, self._num_groups, **sizes_of)
        sums = self._group_counts.cumsum(1)
        num_isolated = len(self.names) - num_linked if hop == rows.counts.shape[1] else 0  # as in `wide`
        sizes = sums[:, -1].cpu().numpy() + num_isolated
        want_class(request, columns, hop, sizes, self._table, cursor, rows)
        rank = np.arange(request.most)
        ranks = np.where(cursor.take_all[:, None], rank, cursor.ranks)
        targets = self._nodes_at(torch.from_numpy(ranks).to(device), sums, members).cpu().numpy()
        column, at = np.nonzero(rank < cursor.wanted[: len(positions), None])
        rows.targets[positions[column] - columns.first, cursor.filled[column] + at] = targets[column, at]
        cursor.filled[: len(positions)] += cursor.wanted[: len(positions)]

    def _nodes_at(self, ranks: Tensor, sums: Tensor, members: tuple[Any, ...]) -> Tensor:
        """The members of each column at these ranks, (columns, ranks); beyond the last one, the isolated nodes."""
        num_linked = len(members[0])
        group = torch.searchsorted(sums, ranks, right=True)
        before = torch.where(group > 0, sums.gather(1, (group - 1).clamp(min=0)), 0)
        out = num_linked + ranks - sums[:, -1:]
        grid, most = (-(-ranks.numel() // _TILE),), ranks.shape[1]
        sizes_of = {"W": WORDS, "CHUNK": CHUNK, "GROUP": GROUP, "TILE": _TILE}
        inside = ranks.numel(), most, num_linked, self._num_groups
        _pick[grid](*members, group, ranks - before, out, *inside, **sizes_of)
        return out


@jit
def _rename(indptr, indices, names, node_of, out_indptr, out_indices, HUBS: tl.constexpr, TILE: tl.constexpr):
    """Row i becomes the row of node names[i] under new names, its hubs first: as `layout.rename_rows`."""
    i = tl.program_id(0).to(tl.int64)
    u = tl.load(names + i).to(tl.int64)
    e, end = tl.load(indptr + u), tl.load(indptr + u + 1)
    front, back = tl.load(out_indptr + i), tl.load(out_indptr + i + 1)
    while e < end:
        at = e + tl.arange(0, TILE)
        used = at < end
        v = tl.load(node_of + tl.load(indices + at, mask=used, other=0).to(tl.int64), mask=used, other=0)
        is_hub, is_other = (used & (v < HUBS)).to(tl.int64), (used & (v >= HUBS)).to(tl.int64)
        slot = tl.where(is_hub == 1, front + tl.cumsum(is_hub, 0) - 1, back - tl.cumsum(is_other, 0))
        tl.store(out_indices + slot, v, mask=used)
        front += tl.sum(is_hub, 0)
        back -= tl.sum(is_other, 0)
        e += TILE


@jit
def _either(a, b):
    return a | b


@jit(sizes=("first", "stop"))
def _pull(
    indptr,
    indices,
    front,  # i64 (m, W)
    active,  # i8 (m,): whether a row of `front` is not zero
    full,  # i64 (W,): all sources of the block
    seen,
    new,
    new_active,
    first,
    stop,
    W: tl.constexpr,
    NODES: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Rows first .. stop - 1 of `new`: the OR of the rows of their neighbours, without what was seen before."""
    node = first + tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    inside = node < stop
    at = tl.load(indptr + node, mask=inside, other=0)
    end = tl.load(indptr + node + 1, mask=inside, other=0)
    word = tl.arange(0, W)
    offset = node[:, None] * W + word[None, :]
    old = tl.load(seen + offset, mask=inside[:, None], other=0)
    wanted = tl.load(full + word)[None, :]
    row = old
    is_open = (at < end) & (tl.max(((wanted & ~row) != 0).to(tl.int32), 1) > 0)
    while tl.max(is_open.to(tl.int32), 0) > 0:
        e = at[:, None] + tl.arange(0, NEAR)[None, :]
        used = (e < end[:, None]) & is_open[:, None]
        u = tl.load(indices + e, mask=used, other=0).to(tl.int64)
        used = used & (tl.load(active + u, mask=used, other=0) != 0)
        rows = tl.load(front + u[:, :, None] * W + word[None, None, :], mask=used[:, :, None], other=0)
        row |= tl.reduce(rows, 1, _either)
        at += NEAR
        is_open = (at < end) & (tl.max(((wanted & ~row) != 0).to(tl.int32), 1) > 0)
    fresh = row & ~old
    tl.store(new + offset, fresh, mask=inside[:, None])
    tl.store(seen + offset, row, mask=inside[:, None])
    tl.store(new_active + node, tl.max((fresh != 0).to(tl.int32), 1).to(tl.int8), mask=inside)


@jit(sizes=("num_linked", "num_groups"))
def _count(
    rows,  # i64 (m, W)
    order,  # i32 (n,), see layout.source_order
    positions,  # i32 (64 W,), of the columns' sources
    flip,  # i64 (1,): 0, or -1 where the class is what the rows do not hold
    chunk_counts,  # u8 (chunks, 64 W)
    group_counts,  # i32 (64 W, groups)
    num_linked,
    num_groups,
    W: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The members of one group of nodes, by column and chunk; a shift of a signed word keeps its lowest bit right."""
    group = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, 64 * W)
    word, bit = column // 64, (column % 64).to(tl.int64)
    position = tl.load(positions + column)
    total, turned = tl.zeros((64 * W,), dtype=tl.int32), tl.load(flip)
    for chunk in range(GROUP):
        count = tl.zeros((64 * W,), dtype=tl.int32)
        for i in range(CHUNK):
            v = (group * GROUP + chunk) * CHUNK + i
            own = tl.load(order + v, mask=v < num_linked, other=-1)
            word_of_row = tl.load(rows + tl.minimum(v, num_linked - 1) * W + word)
            count += tl.where(own > position, ((word_of_row ^ turned) >> bit) & 1, 0).to(tl.int32)
        tl.store(chunk_counts + (group * GROUP + chunk) * (64 * W) + column, count.to(tl.uint8))
        total += count
    tl.store(group_counts + column.to(tl.int64) * num_groups + group, total)


@jit(sizes=("num", "num_linked", "num_groups"))
def _pick(
    rows,
    order,
    positions,
    flip,
    chunk_counts,
    groups,  # i64 (columns, most): the group that a rank lies in, or their number
    ranks,  # i64 (columns, most), within the group
    out,  # i64 (columns, most)
    num,
    most,
    num_linked,
    num_groups,
    W: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    """The node at each rank; what lies beyond all groups is left as it is."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = i // most
    group = tl.load(groups + i, mask=i < num, other=num_groups)
    used = group < num_groups
    rank = tl.load(ranks + i, mask=used, other=0)
    position = tl.load(positions + column, mask=used, other=0)
    is_found, chunk = rank < 0, group * 0
    for c in range(GROUP):
        offset = (group * GROUP + c) * (64 * W) + column
        count = tl.load(chunk_counts + offset, mask=used, other=0).to(tl.int64)
        is_found = is_found | (rank < count)
        chunk += tl.where(is_found, 0, 1)
        rank -= tl.where(is_found, 0, count)
    word, bit, node, turned = column // 64, column % 64, group * 0, tl.load(flip)
    for k in range(CHUNK):
        v = (group * GROUP + chunk) * CHUNK + k
        there = used & (v < num_linked)
        own = tl.load(order + v, mask=there, other=-1)
        bit_held = ((tl.load(rows + v * W + word, mask=there, other=0) ^ turned) >> bit) & 1
        is_member = (bit_held == 1) & (own > position)
        node = tl.where(is_member & (rank == 0), v, node)
        rank -= tl.where(is_member, 1, 0)
    tl.store(out + i, node, mask=used)
