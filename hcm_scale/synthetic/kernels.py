"""Kernels of the synthetic graphs: what edge e, or attribute k of node i, is. Jitted functions only.

Every number is a hash of (seed, what it is for), so a kernel's result is the same for any thread count and any order.
All arithmetic is on integers or plain IEEE operations, with no library function, so it is the same on any machine
too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, mix, unit

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


class Communities(NamedTuple):
    """Communities as ranges of positions, and the power law of the ranks in them."""

    bounds: NDArray[np.int64]  # (communities + 1,)
    roots: NDArray[np.float64]  # (communities,), of size + hub_rank; all roots are cube roots
    hub_rank: float
    hub_root: float


@kernel
def permute(value, num_bits, bound, seed):
    """A seeded bijection of 0 .. bound - 1, where 2^(num_bits - 1) < bound <= 2^num_bits.

    Odd multiplications and xor-shifts are bijections of num_bits bits; what lands at or above the bound walks on until
    it lands below, which keeps it a bijection and takes less than two rounds on average.
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


@kernel(inline="always")
def _bell(word):
    total = (word & _LOW16) + ((word >> _S16) & _LOW16) + ((word >> (_S16 + _S16)) & _LOW16) + (word >> np.uint64(48))
    return np.float32(np.float64(total) - _BELL_MEAN) * _BELL_SCALE


@kernel
def bell_rows(part, seed, out):
    """out[i, k] = independent bell-shaped noise of mean 0 and variance 1."""
    for i in range(part[0], part[1]):
        row = mix(np.uint64(seed), i)
        for k in range(out.shape[1]):
            out[i, k] = _bell(mix(row, k))


@kernel
def rmat_pairs(part, seed, scale, u, v):
    """Pair e of an R-MAT graph of 2^scale nodes, labels permuted so that degree says nothing about the id."""
    num_nodes = np.int64(1) << np.int64(scale)
    labels = mix(np.uint64(seed), 1)
    for e in range(part[0], part[1]):
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
        u[e] = permute(row, scale, num_nodes, labels)
        v[e] = permute(column, scale, num_nodes, labels)


@kernel(inline="always")
def _rank(word, size_root, hub_rank, hub_root):
    """A rank in a community with P(rank) ~ (rank + hub_rank)^(-2/3): the inverse of a cube root, hence no pow()."""
    root = hub_root + unit(word) * (size_root - hub_root)
    return np.int64(max(0.0, root * root * root - hub_rank))


@kernel(inline="always")
def _member(word, community, communities):
    """A node position of this community, drawn by the power law of its ranks."""
    bounds, roots, hub_rank, hub_root = communities
    first = bounds[community]
    rank = _rank(word, roots[community], hub_rank, hub_root)
    return first + min(rank, bounds[community + 1] - first - 1)


@kernel
def community_pairs(part, seed, communities, homophily, num_bits, u, v):
    """Pair e of a community graph: a member of a random community, and one of the same (homophily) or of any."""
    bounds = communities.bounds
    num_nodes = bounds[-1]
    labels = mix(np.uint64(seed), 1)
    for e in range(part[0], part[1]):
        state = mix(np.uint64(seed), e + 2)
        own = np.searchsorted(bounds, below(mix(state, 0), num_nodes), side="right") - 1
        other = own
        if unit(mix(state, 1)) >= homophily:
            other = np.searchsorted(bounds, below(mix(state, 2), num_nodes), side="right") - 1
        left = _member(mix(state, 3), own, communities)
        right = _member(mix(state, 4), other, communities)
        u[e] = permute(left, num_bits, num_nodes, labels)
        v[e] = permute(right, num_bits, num_nodes, labels)


@kernel
def community_members(part, seed, bounds, num_bits, out):
    """out[i] = the community of node i."""
    num_nodes = bounds[-1]
    labels = mix(np.uint64(seed), 1)
    for community in range(part[0], part[1]):
        for position in range(bounds[community], bounds[community + 1]):
            out[permute(position, num_bits, num_nodes, labels)] = community


@kernel
def add_centroids(part, members, centroids, x):
    """x[i] += the centroid of node i's community."""
    for i in range(part[0], part[1]):
        centre = centroids[members[i]]
        for k in range(x.shape[1]):
            x[i, k] += centre[k]


@kernel
def grid_pairs(part, seed, width, height, removed_share, u, v):
    """Pairs 2i and 2i + 1: cell i with its right and its lower neighbour, or a loop where there is none."""
    for cell in range(part[0], part[1]):
        state = mix(np.uint64(seed), cell)
        for side in range(2):
            inside = (cell % width < width - 1) if side == 0 else (cell < width * (height - 1))
            kept = inside and unit(mix(state, side)) >= removed_share
            u[2 * cell + side] = cell
            v[2 * cell + side] = cell + (1 if side == 0 else width) if kept else cell
