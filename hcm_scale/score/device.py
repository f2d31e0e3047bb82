"""Scoring on a CUDA device: moments of predicted hops, and their averages over each node's edges.

`predict_on_device` keeps the ends and moments of all scored edges on the device, 16 bytes per edge, and copies the
moments out after the last sample. Where they do not fit beside the graph and its embedding, ranges of edges pass
through instead: under each sample the ends of a range are listed on the host, copied with its moments, and the moments
come back; several ranges are in flight, so that one is listed while another is copied or computed. The fused kernel
gives the same bits either way; a product of plain torch may round by its shape.

| precision | a sample is taken over the edges by                                                              |
|-----------|--------------------------------------------------------------------------------------------------|
| float32   | plain torch, chunk by chunk, with full-precision products; agrees with the CPU to 1e-4           |
| bfloat16  | one fused Triton kernel; plain torch with bfloat16 products where Triton is missing              |
| auto      | the kernel where it supports the model's sizes and hops are expected ones, else float32          |

`average_on_device` computes AHP and IV by one program of a Triton kernel per node; the numbers of a hub's edges are
gathered first, and walked over. Device memory: the graph, 4 bytes per edge and mean, 4 for the variance, 8 bytes per
node and result, 32 per node, and 4 per gathered edge and number.

Importing this module imports Triton; where it is missing, the module can still be imported.
"""

from __future__ import annotations  # the kernels' `tl.constexpr` stay unread where Triton is missing

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_from_device, copy_into_device, copy_to_device, free_bytes
from hcm_scale.base.threads import share_parts
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl, triton
from hcm_scale.score.edge_index import EdgeIndex, PairHead, Pairs, check_finite

_LIST_EDGES = 1 << 20  # edges listed on the host at a time
_PASS_EDGES = 1 << 23  # and on the device
_HELD_BYTES = 17  # per edge: its ends, its moments, and whether they are finite
_WORK_BYTES = 1 << 29  # of a chunk of plain torch
_RANGE_EDGES = 1 << 21  # edges that pass through the device together
_NUM_RANGES = 8  # in flight
_COARSE_CLASSES = 8  # up to which a bfloat16 product keeps expected hops within 1e-2
_PADDED_CLASSES = 16  # the smallest side of a tensor-core product
_LANES = (32, 128, 1024)  # given to a node of at most as many neighbours; nodes of more walk over theirs
_HUB_ENTRIES = 1 << 26  # of hubs that are averaged together
_MARGIN = 1.1  # free memory needed, over what is held

Array = NDArray[np.float32]
Step = Callable[[Tensor, PairHead, Pairs, int, Tensor], None]


@torch.no_grad()
def predict_on_device(
    edges: EdgeIndex,
    samples: Iterable[tuple[Tensor, PairHead]],
    mean: Array,
    m2: Array,
    *,
    chunk: int,
    device: torch.device,
    expected: bool,
    precision: str,
    on_edges: Callable[[int], object] = lambda num_edges: None,
) -> int:
    """Number of samples; each updates the moments of every scored edge, which end up in `mean` and `m2` on the host."""
    step: Step | None = None
    pairs, moments, count = None, torch.empty(0), 0
    with _exact_products():
        for z, head in samples:
            z, head, count = z.to(device), PairHead(*(part.to(device) for part in head)), count + 1
            if step is None:
                step = _choose(precision, head, expected, chunk)
                if _HELD_BYTES * edges.num_edges + _WORK_BYTES <= free_bytes(device):
                    pairs = Pairs(*edge_ends(edges, device), signed=edges.directed, expected=expected)
                    moments = torch.zeros(2, len(pairs.left), device=device)
            if pairs is None:
                _pass_through(edges, partial(step, z, head), count, (mean, m2), device, expected, on_edges)
            else:
                step(z, head, pairs, count, moments)
                check_finite(bool(torch.isfinite(moments[0]).all()), count)
                on_edges(len(pairs.left))
    if pairs is not None:
        copy_from_device(moments[0], mean)
        copy_from_device(moments[1], m2)
    return count


def _pass_through(
    edges: EdgeIndex,
    step: Callable[[Pairs, int, Tensor], None],
    count: int,
    host: tuple[Array, Array],
    device: torch.device,
    expected: bool,
    on_edges: Callable[[int], object],
) -> None:
    """Updates the moments of all edges, which are on the host, with the count-th sample."""
    one_at_a_time = threading.Lock()

    def take(_: int, first: int) -> None:
        left, right, number = edges.edges(first, min(first + _RANGE_EDGES, edges.num_edges))
        chosen = slice(first, first + len(number))
        ends = copy_to_device(left, device), copy_to_device(right, device)
        moments = torch.zeros(2, len(number), device=device)
        if count > 1:
            for row, values in zip(moments, host, strict=True):
                copy_into_device(row, values[chosen])
        with one_at_a_time:  # plain torch has no room for the chunks of several
            step(Pairs(*ends, signed=edges.directed, expected=expected), count, moments)
        check_finite(bool(torch.isfinite(moments[0]).all()), count)
        found = np.empty((2, len(number)), np.float32)
        copy_from_device(moments, found)
        for values, row in zip(host, found, strict=True):
            values[chosen] = row
        with one_at_a_time:
            on_edges(len(number))

    share_parts(_NUM_RANGES, range(0, edges.num_edges, _RANGE_EDGES), take)


def edge_ends(edges: EdgeIndex, device: torch.device) -> tuple[Tensor, Tensor]:
    """Left and right ends of all edges, in order, in the graph's index type."""
    kind = torch.from_numpy(np.empty(0, edges.indices.dtype)).dtype
    ends = torch.empty(2, edges.num_edges, dtype=kind, device=device)
    needed = edges.indices.nbytes + 24 * edges.num_nodes + 32 * _PASS_EDGES
    if needed <= free_bytes(device):
        _list_ends(edges, ends)
        return ends[0], ends[1]

    def fill(_: int, first: int) -> None:
        left, right, number = edges.edges(first, min(first + _LIST_EDGES, edges.num_edges))
        ends[0, first : first + len(number)] = torch.from_numpy(left)
        ends[1, first : first + len(number)] = torch.from_numpy(right)

    share_parts(numba.get_num_threads(), range(0, edges.num_edges, _LIST_EDGES), fill)
    return ends[0], ends[1]


def _list_ends(edges: EdgeIndex, ends: Tensor) -> None:
    """Fills `ends`, (2, edges), from the CSR, which is on the device meanwhile."""
    start, shift, indices = (copy_to_device(a, ends.device) for a in (edges.start, edges.indptr[1:], edges.indices))
    shift -= start[1:]
    for first in range(0, edges.num_edges, _PASS_EDGES):
        part = slice(first, min(first + _PASS_EDGES, edges.num_edges))
        number = torch.arange(part.start, part.stop, device=ends.device)
        left = torch.searchsorted(start, number, right=True) - 1
        ends[0, part] = left
        ends[1, part] = indices[number.add_(shift[left])]


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products in float32: TF32, if switched on for training, would cost three digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _choose(precision: str, head: PairHead, expected: bool, chunk: int) -> Step:
    """How a sample is taken over pairs: by the Triton kernel, or by plain torch."""
    exact = partial(plain_step, chunk=chunk, precision="float32")
    if precision == "float32" or (precision == "auto" and not expected):  # a likeliest class may turn on the last bit
        return exact
    if precision == "auto":
        return fused_step if AVAILABLE and not _unsupported(head) else exact
    if not AVAILABLE:
        warnings.warn("Triton is not installed: bfloat16 scoring runs in plain torch, which is slower", stacklevel=4)
        return partial(plain_step, chunk=chunk, precision=precision)
    return fused_step


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
    """One sample over all pairs by the Triton kernel: updates `moments` (2, m) f32 in place.

    z is (n, width) on the device, f32 or bf16; width and hidden must be powers of two of at least 16, at most 16
    classes. The first product is bfloat16, or TF32 from nine classes on, where an expected hop spans more.
    """
    width, hidden, num_classes = *head.weight0.shape, len(head.bias1)
    if reason := _unsupported(head):
        raise ValueError(f"{reason} bfloat16 scoring; use float32")
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


def _unsupported(head: PairHead) -> str:
    """Which size of the head the kernel does not support, as the beginning of a sentence; empty if none."""
    for name, size in zip(("width", "hidden"), head.weight0.shape, strict=True):
        if size < 16 or size & (size - 1):
            return f"{name}={size} must be a power of two of at least 16 for"
    if len(head.bias1) > _PADDED_CLASSES:
        return f"{len(head.bias1)} hop classes are more than the {_PADDED_CLASSES} of"
    return ""


@jit(sizes=("num_pairs",))
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
    """Welford's step of TILE edges: nothing per edge touches device memory but its ends, embeddings and moments.

    |z_u - z_v| is formed in float32 and rounded once: a bfloat16 z has an error in proportion to |z|, a bfloat16
    |z_u - z_v| one in proportion to itself, which keeps near neighbours apart. Sums are float32 throughout.
    """
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


def average_on_device(
    edges: EdgeIndex, means: Sequence[Array], var: Array, keep: float, device: str
) -> NDArray[np.float64] | None:
    """AHP by each mean, and last the IV, (means + 1, n), as `average_rows` of the CPU; None where memory or Triton is
    missing. All edges must be drawn.
    """
    n, count = edges.num_nodes, len(means)
    gathered = 4 * min(_HUB_ENTRIES + n, len(edges.indices))
    held = 16 * n + edges.indices.nbytes + (count + 1) * (var.nbytes + 8 * n + gathered) + 32 * n
    if not AVAILABLE or free_bytes(device) < _MARGIN * held:
        return None
    csr = [copy_to_device(array, device) for array in (edges.indptr, edges.indices, edges.start)]
    stacked = torch.empty(count, len(var), device=device)
    for row, mean in zip(stacked, means, strict=True):
        copy_into_device(row, mean)
    out = torch.zeros(count + 1, n, dtype=torch.float64, device=device)
    moments = stacked, copy_to_device(var, device)
    degree, fewest = csr[0].diff(), 1
    kept = (keep * degree.double() - 1e-9).ceil().clamp(min=1).long()
    for lanes in _LANES:
        nodes = ((degree >= fewest) & (degree <= lanes)).nonzero().squeeze(1)
        if len(nodes):
            sizes, warps = (len(var), n, count, edges.directed), min(4, lanes // 32)
            _average_node[(len(nodes),)](nodes, kept, *csr, *moments, out, *sizes, LANES=lanes, num_warps=warps)
        fewest = lanes + 1
    hubs = (degree >= fewest).nonzero().squeeze(1)
    for some in hubs.split(_hubs_at_once(degree[hubs])):
        first = degree[some].cumsum(0) - degree[some]
        rows = torch.empty(count + 1, int(degree[some].sum()), device=device)
        size, shape = rows.shape[1], {"LANES": _LANES[-1], "num_warps": 8}
        _gather_hub[(len(some),)](some, first, rows, size, *csr, *moments, len(var), count, edges.directed, **shape)
        _average_hub[(len(some),)](some, kept, first, rows, size, degree, out, n, count, **shape)
    found = np.empty(out.shape)
    for row, result in zip(out, found, strict=True):
        copy_from_device(row, result)
    return found


def _hubs_at_once(degree: Tensor) -> list[int]:
    """Numbers of consecutive hubs whose entries are gathered together: some _HUB_ENTRIES, or one hub of more."""
    if not len(degree):
        return []
    return torch.unique_consecutive(degree.cumsum(0) // _HUB_ENTRIES, return_counts=True)[1].tolist()


@jit
def _edge_of(v, position, inside, indptr, indices, start, DIRECTED: tl.constexpr):
    """The numbers of the edges at these positions of the row of v.

    Where the neighbour has the smaller number, the edge is looked up in that one's row, by bisection in all lanes at
    once.
    """
    u = tl.load(indices + position, mask=inside, other=0).to(tl.int64)
    edge = position - tl.load(indptr + v + 1) + tl.load(start + v + 1)
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
    return edge


@jit(sizes=("num_edges", "num_nodes"))
def _average_node(
    nodes,  # (programs,) i64
    num_kept,  # (n,) i64
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
    """Averages of one node by each mean, and last its IV; a lane takes an edge.

    The nearest edges are those up to a bound, found by bisection over the bits of the hops; of equal ones the first are
    taken. Sums are float64 in the order of a tree: exact for hops, which differ little in size.
    """
    v = tl.load(nodes + tl.program_id(0))
    kept = tl.load(num_kept + v)
    position = tl.load(indptr + v) + tl.arange(0, LANES)
    inside = position < tl.load(indptr + v + 1)
    edge = _edge_of(v, position, inside, indptr, indices, start, DIRECTED)
    iv = tl.zeros((), tl.float64)
    for i in range(NUM_MEANS):
        hop = tl.load(means + edge, mask=inside, other=0.0)
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
        tl.store(out + v, tl.sum(tl.where(chosen, hop.to(tl.float64), 0.0), 0) / kept)
        if i == 0:
            iv = tl.sum(tl.load(var + edge, mask=chosen, other=0.0).to(tl.float64), 0) / kept
        means += num_edges  # not i * num_edges, which may be more than 32 bits hold
        out += num_nodes
    tl.store(out + v, iv)


@jit(sizes=("num_entries", "num_edges"))
def _gather_hub(
    nodes,
    first,  # (programs,) i64: where the node's entries begin in `rows`
    rows,  # (NUM_MEANS + 1, num_entries) f32: of every entry its hop by each mean, and last its variance
    num_entries,
    indptr,
    indices,
    start,
    means,
    var,
    num_edges,
    NUM_MEANS: tl.constexpr,
    DIRECTED: tl.constexpr,
    LANES: tl.constexpr,
):
    """The numbers of the edges of a node of more neighbours than lanes, in the order of its row."""
    v = tl.load(nodes + tl.program_id(0))
    place = tl.load(first + tl.program_id(0)) + tl.arange(0, LANES)
    begin, end = tl.load(indptr + v), tl.load(indptr + v + 1)
    for at in range(begin, end, LANES):
        position = at + tl.arange(0, LANES)
        inside = position < end
        edge = _edge_of(v, position, inside, indptr, indices, start, DIRECTED)
        mean, row = means, rows + place
        for _ in tl.static_range(NUM_MEANS):
            tl.store(row, tl.load(mean + edge, mask=inside, other=0.0), mask=inside)
            mean += num_edges
            row += num_entries
        tl.store(row, tl.load(var + edge, mask=inside, other=0.0), mask=inside)
        place += LANES


@jit(sizes=("num_entries", "num_nodes"))
def _average_hub(
    nodes,
    num_kept,
    first,
    rows,
    num_entries,
    degree,  # (n,) i64
    out,
    num_nodes,
    NUM_MEANS: tl.constexpr,
    LANES: tl.constexpr,
):
    """As `_average_node`, of a node whose entries are in `rows`, LANES of them at a time."""
    v = tl.load(nodes + tl.program_id(0))
    kept, size = tl.load(num_kept + v), tl.load(degree + v)
    lane, row = tl.arange(0, LANES), rows + tl.load(first + tl.program_id(0))
    variances = row
    for _mean in tl.static_range(NUM_MEANS):
        variances += num_entries
    iv = tl.zeros((), tl.float64)
    for i in range(NUM_MEANS):
        least, bound = tl.full((), 0, tl.int64), tl.full((), 1 << 32, tl.int64)
        num_nearer = tl.full((), 0, tl.int64)
        for _ in range(33):
            middle_key = (least + bound) // 2
            nearer = tl.zeros((LANES,), tl.int64)
            for at in range(0, size, LANES):
                hop = tl.load(row + at + lane, mask=at + lane < size, other=0.0)
                is_near = hop.to(tl.uint32, bitcast=True).to(tl.int64) <= middle_key
                nearer += (is_near & (at + lane < size)).to(tl.int64)
            found = tl.sum(nearer, 0)
            num_nearer = tl.where(found < kept, tl.maximum(num_nearer, found), num_nearer)
            bound = tl.where(found >= kept, middle_key, bound)
            least = tl.where(found >= kept, least, tl.minimum(middle_key + 1, bound))
        total, spread = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
        num_tied = tl.full((), 0, tl.int64)
        for at in range(0, size, LANES):
            inside = at + lane < size
            hop = tl.load(row + at + lane, mask=inside, other=0.0)
            key = tl.where(inside, hop.to(tl.uint32, bitcast=True).to(tl.int64), 1 << 33)
            tied = (key == bound).to(tl.int64)
            chosen = (key < bound) | ((tied == 1) & (num_tied + tl.cumsum(tied, 0) <= kept - num_nearer))
            num_tied += tl.sum(tied, 0)
            total += tl.where(chosen, hop.to(tl.float64), 0.0)
            if i == 0:
                spread += tl.load(variances + at + lane, mask=chosen, other=0.0).to(tl.float64)
        tl.store(out + v, tl.sum(total, 0) / kept)
        if i == 0:
            iv = tl.sum(spread, 0) / kept
        row += num_entries
        out += num_nodes
    tl.store(out + v, iv)
