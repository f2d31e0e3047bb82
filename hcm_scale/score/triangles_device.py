"""Triangles at every node, counted on a CUDA device: the integers of `closure`. Importing this module imports Triton.

Nodes are named by falling degree, and every edge points to its end of smaller name: a triangle is found once, as a
successor that both ends of its edge of largest names have. The end of more successors owns the edge; an owner marks its
successors, and those of the other ends are looked up. As many programs as run at once each have a bit a node for marks,
so a step is one read of a list and one of a bit, mostly in the nearest cache, as most successors are hubs. Programs
take tasks, some owned edges of a node, from one queue, and end together. Lists need no order: edges are listed by
atomic cursors, those owned by the length of what is walked, so that the rows of a tile are of like length. Counts of
the first hubs have copies, as else all programs would add to the same few. Sums of integers do not depend on the order.

Device memory, with indices of b bytes: 4 b + 1 an edge, about 100 a node, and a bit a node and program.
"""

from __future__ import annotations  # the kernels' `tl.constexpr` stay unread where Triton is missing

import contextlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import TURN, copy_from_device, copy_into_device, copy_to_device, free_bytes
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl
from hcm_scale.score.device import edge_ends
from hcm_scale.score.edge_index import EdgeIndex

_MARGIN = 1.5  # free memory asked for, over what is held: hops are averaged at the same time
_NODE_BYTES = 100
_PROGRAMS, _WARPS = 4, 8  # of a multiprocessor, of each of them: with 64 registers a thread, all are taken
_SHAPES = (
    (64, 32, 32),
    (256, 16, 64),
    (1 << 62, 8, 128),
)  # owners of up to so many successors; rows, entries of a tile
_LENGTHS = (0, *(1 << power for power in range(6, 13)), 1 << 30)  # bounds of lists that are walked together
_SLICE = 4096  # owned edges of a task
_HUBS, _COPIES = 1 << 16, 32
_TILE = 1024


def triangles_on_device(edges: EdgeIndex, used: NDArray[np.bool_] | None, device: str) -> NDArray[np.int64] | None:
    """Triangles of the used edges, or of all, at every node, (n,); None where memory or Triton is missing.

    The edges must be undirected. While they are predicted there, this waits.
    """
    out, on_cuda = np.zeros(edges.num_nodes, np.int64), torch.device(device).type == "cuda"
    cores = torch.cuda.get_device_properties(device).multi_processor_count if on_cuda else 1
    held = (4 * edges.indices.itemsize + 1) * edges.num_edges + (_NODE_BYTES + _PROGRAMS * cores / 8) * len(out)
    if not AVAILABLE:
        return None
    with TURN, contextlib.suppress(torch.OutOfMemoryError):  # what averages at the same time may have taken it
        if free_bytes(device) < _MARGIN * held:
            return None
        if edges.num_edges:
            names = _names(copy_to_device(edges.indptr, device), edges.indices.dtype)
            with torch.cuda.device_of(names):  # where Triton launches: this may be a thread of its own
                counts = _count_all(*_lists(edges, used, names), num_programs=_PROGRAMS * cores)
            copy_from_device(counts[names.long()], out)
        return out
    return None


def _names(indptr: Tensor, kind: np.dtype[Any]) -> Tensor:
    """The place of every node by falling degree."""
    order = indptr.diff().sort(descending=True, stable=True)[1]
    names = torch.empty(len(order), dtype=torch.from_numpy(np.empty(0, kind)).dtype, device=order.device)
    names[order] = torch.arange(len(order), dtype=names.dtype, device=order.device)
    return names


def _lists(edges: EdgeIndex, used: NDArray[np.bool_] | None, names: Tensor) -> list[Tensor]:
    """Successors of every node, and the other ends of the edges that it owns, each as bounds, (n + 1,), and a list."""
    num, made, size = edges.num_edges, [], names[:0]
    ends = edge_ends(edges, names.device)
    is_used = torch.ones(num, dtype=torch.uint8, device=names.device)
    if used is not None:
        copy_into_device(is_used, used.view(np.uint8))
    grid = (-(-num // _TILE),)
    for is_first, lengths in ((True, (_LENGTHS[0], _LENGTHS[-1])), (False, _LENGTHS)):
        count = torch.zeros(len(names), dtype=torch.int32, device=names.device)
        _orient[grid](*ends, is_used, names if is_first else size, count, num, RENAMES=is_first, TILE=_TILE)
        size = count if is_first else size
        bounds = torch.zeros(len(names) + 1, dtype=torch.int64, device=names.device)
        torch.cumsum(count, 0, out=bounds[1:])
        cursor, out = bounds[:-1].clone(), torch.empty(int(bounds[-1]), dtype=names.dtype, device=names.device)
        for shortest, above in pairwise(lengths):
            _list[grid](*ends, is_used, size, cursor, out, num, shortest, above, TILE=_TILE)
        made += [bounds, out]
    return made


def _count_all(first: Tensor, successors: Tensor, owned_first: Tensor, owned: Tensor, *, num_programs: int) -> Tensor:
    """Triangles by names; beyond the last one, 0."""
    lists, size, num_owned = (first, successors, owned_first, owned), first.diff(), owned_first.diff()
    counts = first.new_zeros(_COPIES * _HUBS + max(len(size), _HUBS))
    bits = torch.zeros(num_programs, -(-len(size) // 32), dtype=torch.int32, device=first.device)
    for (least, *_), (most, rows, lanes) in pairwise([(0,), *_SHAPES]):
        tasks = _tasks((size > least) & (size <= most), owned_first, num_owned)
        state = counts, bits, bits.shape[1], first.new_zeros(1), len(tasks[0])
        shape = {"ROWS": rows, "LANES": lanes, "num_warps": _WARPS}
        _count[(num_programs,)](*tasks, *lists, *state, HUBS=_HUBS, COPIES=_COPIES, SLICE=_SLICE, **shape)
    copies, counts = counts[: _COPIES * _HUBS], counts[_COPIES * _HUBS :]
    counts[:_HUBS] += copies.view(_COPIES, _HUBS).sum(0)
    return counts


def _tasks(chosen: Tensor, owned_first: Tensor, num_owned: Tensor) -> tuple[Tensor, Tensor]:
    """A node and the position of its first owned edge, for every slice of the edges of the chosen nodes."""
    nodes = chosen.nonzero().squeeze(1)
    num = (num_owned[nodes] + _SLICE - 1) // _SLICE
    before = (num.cumsum(0) - num).repeat_interleave(num)
    nodes = nodes.repeat_interleave(num)
    return nodes, owned_first[nodes] + _SLICE * (torch.arange(len(nodes), device=nodes.device) - before)


@jit(sizes=("num",))
def _orient(left, right, used, keys, count, num, RENAMES: tl.constexpr, TILE: tl.constexpr):
    """Makes the end of larger key the left one of every used edge, and counts the edges of each.

    Keys are new names, which take the place of the ends, or sizes, by which edges with an end of size 0 are not used.
    """
    e = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_used = tl.load(used + e, mask=e < num, other=0) != 0
    a, b = tl.load(left + e, mask=is_used, other=0), tl.load(right + e, mask=is_used, other=0)
    of_a, of_b = tl.load(keys + a, mask=is_used, other=0), tl.load(keys + b, mask=is_used, other=0)
    if RENAMES:
        first, second = tl.maximum(of_a, of_b), tl.minimum(of_a, of_b)
    else:
        first, second = tl.where(of_a < of_b, b, a), tl.where(of_a < of_b, a, b)
        is_used = is_used & (tl.minimum(of_a, of_b) > 0)
        tl.store(used + e, is_used.to(tl.uint8), mask=e < num)
    tl.store(left + e, first, mask=is_used)
    tl.store(right + e, second, mask=is_used)
    tl.atomic_add(count + first, 1, mask=is_used, sem="relaxed")


@jit(sizes=("num", "shortest", "above"))
def _list(left, right, used, size, cursor, out, num, shortest, above, TILE: tl.constexpr):
    """Appends its right end to the list of an edge's left one, where the size of the right end is in a range."""
    e = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_used = tl.load(used + e, mask=e < num, other=0) != 0
    a, b = tl.load(left + e, mask=is_used, other=0), tl.load(right + e, mask=is_used, other=0)
    length = tl.load(size + b, mask=is_used, other=-1)
    is_used = is_used & (length >= shortest) & (length < above)
    place = tl.atomic_add(cursor + a, 1, mask=is_used, sem="relaxed")
    tl.store(out + place, b, mask=is_used)


@jit(sizes=("num_words", "num_tasks"))
def _count(
    nodes,  # i64 (tasks,)
    begins,  # i64 (tasks,), positions in `owned`
    first,  # i64 (n + 1,)
    successors,
    owned_first,  # i64 (n + 1,)
    owned,
    counts,  # i64: COPIES of those of the first HUBS nodes, then those of all
    bits,  # i32 (programs, num_words), all 0 before and after
    num_words,
    queue,  # i64 (1,): the next task
    num_tasks,
    HUBS: tl.constexpr,
    COPIES: tl.constexpr,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Counts the triangles of tasks until there are no more."""
    marks = bits + tl.program_id(0).to(tl.int64) * num_words
    wide, lane = tl.arange(0, ROWS * LANES), tl.arange(0, LANES)[None, :]
    task = tl.atomic_add(queue, 1, sem="relaxed")
    while task < num_tasks:
        u, begin = tl.load(nodes + task), tl.load(begins + task)
        low, high = tl.load(first + u), tl.load(first + u + 1)
        end = tl.minimum(begin + SLICE, tl.load(owned_first + u + 1))
        own = low
        while own < high:
            w = tl.load(successors + own + wide, mask=own + wide < high, other=0)
            bit = tl.full((ROWS * LANES,), 1, tl.int32) << (w & 31).to(tl.int32)
            tl.atomic_or(marks + (w >> 5), bit, mask=own + wide < high, sem="relaxed")
            own += ROWS * LANES
        tl.debug_barrier()
        of_u = begin * 0
        while begin < end:
            row = begin + tl.arange(0, ROWS)
            v = tl.load(owned + row, mask=row < end, other=0).to(tl.int64)
            at, stop = tl.load(first + v, mask=row < end, other=0), tl.load(first + v + 1, mask=row < end, other=0)
            longest, done = tl.max(stop - at, 0), begin * 0
            hits = tl.zeros((ROWS, LANES), dtype=tl.int32)
            while done < longest:
                e = (at + done)[:, None] + lane
                inside = e < stop[:, None]
                w = tl.load(successors + e, mask=inside, other=0, cache_modifier=".cg")
                word = tl.load(marks + (w >> 5), mask=inside, other=0)
                hit = inside & (((word >> (w & 31).to(tl.int32)) & 1) != 0)
                place = w.to(tl.int64) + tl.where(w < HUBS, task % COPIES * HUBS, COPIES * HUBS)
                tl.atomic_add(counts + place, tl.full((ROWS, LANES), 1, tl.int64), mask=hit, sem="relaxed")
                hits += hit.to(tl.int32)
                done += LANES
            of_v = tl.sum(hits, 1).to(tl.int64)
            tl.atomic_add(counts + COPIES * HUBS + v, of_v, mask=of_v > 0, sem="relaxed")
            of_u += tl.sum(of_v, 0)
            begin += ROWS
        tl.atomic_add(counts + COPIES * HUBS + u, of_u, sem="relaxed")
        tl.debug_barrier()
        own = low
        while own < high:
            w = tl.load(successors + own + wide, mask=own + wide < high, other=0)
            tl.store(marks + (w >> 5), tl.zeros((ROWS * LANES,), tl.int32), mask=own + wide < high)
            own += ROWS * LANES
        tl.debug_barrier()
        task = tl.atomic_add(queue, 1, sem="relaxed")
