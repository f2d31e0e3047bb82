"""Seeded graphs without a download: communities, R-MAT, a road-like grid, and the default data set.

Pair e and attribute (i, k) are hashes of the seed and of e, i, k, made by integer and plain IEEE arithmetic without any
library function: a graph is a function of its arguments, at any thread count and on any machine. Pairs are drawn and
taken both ways, then loops and repeats are dropped, so a graph has a few per cent fewer edges than pairs. Node numbers
are permuted: neither degree nor community can be read off them. Isolated nodes stay.

Memory at the peak: 8 bytes a pair, 8 more for sorting and the CSR (8 bytes an edge), then 4 bytes an attribute.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, key, mix, unit
from hcm_scale.base.threads import run_in_slices, run_in_threads
from hcm_scale.graph.build import symmetric_csr
from hcm_scale.graph.store import Graph
from hcm_scale.synthetic.inject import inject

_STRUCTURE, _ATTRIBUTES, _CENTROIDS = 1, 2, 3  # uses of the seed
_HUB_RANK = 5.0  # offsets the ranks of the power law, so that no hub is joined to half of its community
_NODES_PER_COMMUNITY = 500
_CENTROID_NORM = 2.5  # beside noise of variance 1 in every attribute: neighbours are alike, but not obviously
_ONE = np.uint64(1)
_LOW16 = np.uint64(0xFFFF)
_LOW21 = np.uint64(0x1FFFFF)
_S16, _S21 = np.uint64(16), np.uint64(21)

# R-MAT quadrants .57, .19, .19, .05 (Graph500) as cumulative thresholds on 21 random bits: three levels a word.
_RMAT_A = np.uint64(round(0.57 * (1 << 21)))
_RMAT_AB = np.uint64(round(0.76 * (1 << 21)))
_RMAT_ABC = np.uint64(round(0.95 * (1 << 21)))

# The sum of four 16-bit uniforms, centred and scaled to variance 1: close to normal, and exact on every machine.
_BELL_MEAN = 2.0 * 65535.0
_BELL_SCALE = np.float32((3.0 / (65536.0**2 - 1.0)) ** 0.5)


def community(
    num_nodes: int,
    *,
    edges_per_node: int = 8,
    num_attributes: int = 20,
    num_communities: int | None = None,
    homophily: float = 0.8,
    seed: int = 0,
    dtype: str = "float32",
) -> Graph:
    """An attributed graph with planted communities and power-law degrees.

    A pair joins a member of a random community to one of the same community with probability `homophily`, else to
    one of any. Degrees have exponent 2.5, cut off by the size of the community; sizes follow a power law too, and by
    default there is one community per 500 nodes. Attributes are the community's centroid plus noise; all centroids
    lie on one sphere, so that the norm of a row does not tell its community.

    >>> g = community(1000, edges_per_node=4, num_attributes=3, seed=1)
    >>> g.num_nodes, 3500 < g.num_edges <= 4000, g.x.shape
    (1000, True, (1000, 3))
    """
    bounds, num_bits = _community_bounds(num_nodes, num_communities), (num_nodes - 1).bit_length()
    num_communities, num_pairs = len(bounds) - 1, num_nodes * edges_per_node
    drawn = Communities(bounds, np.cbrt(np.diff(bounds) + _HUB_RANK), _HUB_RANK, np.cbrt(_HUB_RANK))
    fixed = _key(seed, _STRUCTURE), drawn, float(homophily), num_bits
    draw = partial(run_in_threads, num_pairs, community_pairs, *fixed)
    settings = {"edges_per_node": edges_per_node, "num_communities": num_communities, "homophily": homophily}
    centroids = _noise((num_communities, num_attributes), seed, _CENTROIDS)
    norms = np.linalg.norm(centroids, axis=1, keepdims=True)
    centroids *= np.float32(_CENTROID_NORM) / np.maximum(norms, np.float32(1e-6))

    def add(first: int, rows: NDArray[np.float32]) -> None:
        add_centroids((0, len(rows)), members[first : first + len(rows)], centroids, rows)

    members = communities(num_nodes, num_communities=num_communities, seed=seed)
    return _make("community", draw, num_pairs, (num_nodes, num_attributes), seed, settings, dtype, add=add)


def communities(num_nodes: int, *, num_communities: int | None = None, seed: int = 0) -> NDArray[np.int32]:
    """The planted community of every node of `community` with the same arguments, i32 (num_nodes,).

    >>> np.bincount(communities(1000, num_communities=3, seed=1)).tolist()
    [437, 310, 253]
    """
    members = np.empty(num_nodes, np.int32)
    bounds, num_bits = _community_bounds(num_nodes, num_communities), (num_nodes - 1).bit_length()
    run_in_threads(len(bounds) - 1, community_members, _key(seed, _STRUCTURE), bounds, num_bits, members)
    return members


def rmat(
    scale: int,
    *,
    num_nodes: int | None = None,
    edge_factor: int = 8,
    num_attributes: int = 20,
    seed: int = 0,
    dtype: str = "float32",
) -> Graph:
    """The R-MAT graph of Graph500: 2^scale nodes, or `num_nodes` above half of that; the attributes are noise.

    edge_factor * num_nodes pairs are drawn among 2^scale places, which are then scaled to the nodes.

    >>> rmat(8, num_attributes=2, seed=1).num_nodes, rmat(8, num_nodes=200, num_attributes=2).num_nodes
    (256, 200)
    """
    num_nodes = 2**scale if num_nodes is None else num_nodes
    num_pairs = edge_factor * num_nodes
    draw = partial(run_in_threads, num_pairs, rmat_pairs, _key(seed, _STRUCTURE), scale, num_nodes)
    settings = {"scale": scale, "edge_factor": edge_factor}
    return _make("rmat", draw, num_pairs, (num_nodes, num_attributes), seed, settings, dtype)


def grid(
    width: int,
    height: int,
    *,
    num_attributes: int = 20,
    removed_share: float = 0.05,
    seed: int = 0,
    dtype: str = "float32",
) -> Graph:
    """A road-like graph of huge diameter: a grid, cell (row, column) = node row * width + column, some edges missing.

    >>> grid(3, 2, num_attributes=1, removed_share=0).num_edges
    7
    """
    num_nodes = width * height
    draw = partial(run_in_threads, num_nodes, grid_pairs, _key(seed, _STRUCTURE), width, height, float(removed_share))
    settings = {"width": width, "height": height, "removed_share": removed_share}
    return _make("grid", draw, 2 * num_nodes, (num_nodes, num_attributes), seed, settings, dtype)


def default(seed: int = 0) -> Graph:
    """The embedded data set: 20,000 nodes in communities, 300 structural and 300 attribute anomalies."""
    return inject(community(20_000, seed=seed), num_cliques=20, seed=seed, num_attribute_anomalies=None)


def _community_bounds(num_nodes: int, num_communities: int | None) -> NDArray[np.int64]:
    """Communities as ranges of positions, the c-th with a share of about (c + 1)^(-1/2), each with a member or more."""
    if num_communities is None:
        num_communities = max(1, num_nodes // _NODES_PER_COMMUNITY)
    numbers = np.arange(1, num_communities + 1)
    ends = np.cumsum(numbers**-0.5)
    spare = num_nodes - num_communities
    return np.concatenate([[0], numbers + np.rint(ends * (spare / ends[-1])).astype(np.int64)])


def _make(
    name: str,
    draw: Callable[..., None],
    num_pairs: int,
    shape: tuple[int, int],
    seed: int,
    settings: dict[str, Any],
    dtype: str,
    *,
    add: Callable[[int, NDArray[np.float32]], None] | None = None,
) -> Graph:
    """The graph of the pairs that draw(u, v) writes; attributes, (nodes, attributes), are noise and what `add` adds."""
    u, v = np.empty((2, num_pairs), np.int32)
    draw(u, v)
    indptr, indices = symmetric_csr(u, v, shape[0])
    del u, v
    columns = tuple(f"a{k}" for k in range(shape[1]))
    info = {"source": f"synthetic {name}", "seed": seed, **settings}
    x: Any = _noise(shape, seed, _ATTRIBUTES, dtype, add)  # of float16 readers make float32
    return Graph(indptr, indices, x=x, columns=columns, info=info)


def _noise(
    shape: tuple[int, int],
    seed: int,
    purpose: int,
    dtype: str = "float32",
    add: Callable[[int, NDArray[np.float32]], None] | None = None,
) -> NDArray[Any]:
    out = np.empty(shape, dtype)

    def fill(chunk: slice) -> None:
        rows = np.empty(out[chunk].shape, np.float32)
        bell_rows((0, len(rows)), _key(seed, purpose), chunk.start, rows)
        if add is not None:
            add(chunk.start, rows)
        out[chunk] = rows

    run_in_slices(shape[0], fill, size=1 << 13)
    return out


def _key(seed: int, purpose: int) -> np.uint64:
    return np.uint64(key(seed, purpose))


class Communities(NamedTuple):
    """Communities as ranges of positions, and the power law of the ranks in them."""

    bounds: NDArray[np.int64]  # (communities + 1,)
    roots: NDArray[np.float64]  # (communities,), of size + hub_rank; all roots are cube roots
    hub_rank: float
    hub_root: float


@kernel
def community_pairs(tasks, seed, communities, homophily, num_bits, u, v):
    """Pair e of a community graph: a member of a random community, and one of the same (homophily) or of any."""
    bounds = communities.bounds
    num_nodes = bounds[-1]
    labels = mix(np.uint64(seed), 1)
    for e in range(tasks[0], tasks[1]):
        state = mix(np.uint64(seed), e + 2)
        own = np.searchsorted(bounds, below(mix(state, 0), num_nodes), side="right") - 1
        other = own
        if unit(mix(state, 1)) >= homophily:
            other = np.searchsorted(bounds, below(mix(state, 2), num_nodes), side="right") - 1
        left = _member(mix(state, 3), own, communities)
        right = _member(mix(state, 4), other, communities)
        u[e] = permute(left, num_bits, num_nodes, labels)
        v[e] = permute(right, num_bits, num_nodes, labels)


@kernel(inline="always")
def _member(word, community, communities):
    """A position in this community, of rank r with P(r) ~ (r + hub_rank)^(-2/3): inverse of a cube root, no pow()."""
    bounds, roots, hub_rank, hub_root = communities
    root = hub_root + unit(word) * (roots[community] - hub_root)
    rank = np.int64(max(0.0, root * root * root - hub_rank))
    first = bounds[community]
    return first + min(rank, bounds[community + 1] - first - 1)


@kernel
def community_members(tasks, seed, bounds, num_bits, out):
    """out[i] = the community of node i."""
    num_nodes = bounds[-1]
    labels = mix(np.uint64(seed), 1)
    for community in range(tasks[0], tasks[1]):
        for position in range(bounds[community], bounds[community + 1]):
            out[permute(position, num_bits, num_nodes, labels)] = community


@kernel
def add_centroids(tasks, members, centroids, x):
    """x[i] += the centroid of node i's community."""
    for i in range(tasks[0], tasks[1]):
        centre = centroids[members[i]]
        for k in range(x.shape[1]):
            x[i, k] += centre[k]


@kernel
def rmat_pairs(tasks, seed, scale, num_nodes, u, v):
    """Pair e of an R-MAT graph of at most 2^scale nodes, labels permuted so that degree says nothing about the id."""
    labels = mix(np.uint64(seed), 1)
    for e in range(tasks[0], tasks[1]):
        state = mix(np.uint64(seed), e + 2)
        word = np.uint64(0)
        row = np.int64(0)
        column = np.int64(0)
        for level in range(scale):
            if level % 3 == 0:
                word = mix(state, level)
            draw = word & _LOW21
            word >>= _S21
            down = draw >= _RMAT_AB
            right = (draw >= _RMAT_A) ^ down ^ (draw >= _RMAT_ABC)
            row = 2 * row + down
            column = 2 * column + right
        u[e] = permute(row * num_nodes >> scale, scale, num_nodes, labels)
        v[e] = permute(column * num_nodes >> scale, scale, num_nodes, labels)


@kernel
def grid_pairs(tasks, seed, width, height, removed_share, u, v):
    """Pairs 2i and 2i + 1: cell i with its right and its lower neighbour, or a loop where there is none."""
    for cell in range(tasks[0], tasks[1]):
        state = mix(np.uint64(seed), cell)
        for side in range(2):
            inside = (cell % width < width - 1) if side == 0 else (cell < width * (height - 1))
            kept = inside and unit(mix(state, side)) >= removed_share
            u[2 * cell + side] = cell
            v[2 * cell + side] = cell + (1 if side == 0 else width) if kept else cell


@kernel
def permute(value, num_bits, bound, seed):
    """A seeded bijection of 0 .. bound - 1, where 2^(num_bits - 1) < bound <= 2^num_bits.

    Odd multiplications and xor-shifts are bijections of num_bits bits; what lands at or above the bound is mapped again
    until it lands below, which keeps it a bijection and takes less than two rounds on average.
    """
    mask = (_ONE << np.uint64(num_bits)) - _ONE
    shift = np.uint64(max(1, (num_bits + 1) // 2))
    x = np.uint64(value)
    while True:
        for turn in range(4):
            word = mix(np.uint64(seed), turn)
            x = (x * (word | _ONE) + (word >> shift)) & mask
            x ^= x >> shift
        if x < np.uint64(bound):
            return np.int64(x)


@kernel
def bell_rows(tasks, seed, first, out):
    """out[i, k] = independent bell-shaped noise of mean 0 and variance 1, that of row first + i."""
    for i in range(tasks[0], tasks[1]):
        row = mix(np.uint64(seed), first + i)
        for k in range(out.shape[1]):
            out[i, k] = _bell(mix(row, k))


@kernel(inline="always")
def _bell(word):
    total = (word & _LOW16) + ((word >> _S16) & _LOW16) + ((word >> (_S16 + _S16)) & _LOW16) + (word >> np.uint64(48))
    return np.float32(np.float64(total) - _BELL_MEAN) * _BELL_SCALE
