"""AHP and IV of every node averaged on a CUDA device: one program of a Triton kernel takes a node and all its edges.

A lane takes an edge. Where the neighbour has the smaller number the edge is looked up in that one's row, by bisection
in all lanes at once, as the CPU does (`kernels.edge_number`). The nearest edges are those up to a bound, which 32 steps
of bisection over the bits of the hops find; of equal ones the first are taken. Sums are float64, in the order of a
tree: those of hops, which differ little in size, are exact in any order, those of variances good to the last places.

Only large graphs on CUDA devices import this file, because Triton takes a second to import. Where Triton is missing the
file can still be read (`base/triton_jit.py`). Device memory: the graph, 4 bytes an edge and mean, 4 for the
variance, 8 bytes a node and result, and 24 a node.
"""

from __future__ import annotations  # the kernel's `tl.constexpr` stay unread where Triton is missing

from collections.abc import Sequence

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.pinned import copied, copy_from, copy_to, free_bytes
from hcm_scale.base.threads import share
from hcm_scale.base.triton_jit import AVAILABLE, jit, tl
from hcm_scale.score import kernels
from hcm_scale.score.numbering import EdgeIndex

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
    csr = [copied(array, device) for array in (edges.indptr, edges.indices, edges.start)]
    stacked = torch.empty(count, len(var), device=device)
    for row, mean in zip(stacked, means, strict=True):
        copy_to(row, mean)
    out = torch.zeros(count + 1, n, dtype=torch.float64, device=device)
    of_edges = stacked, copied(var, device), out, len(var), n, count, edges.directed
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
        copy_from(row, result)
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
        kernels.average_rows((v, v + 1), edges.for_kernels, keep, tuple(means), var, out[:-1], out[-1])

    share(numba.get_num_threads(), hubs.tolist(), average)
