"""Context surprise against plain loops, and what it is meant to see."""

import math

import numpy as np
import pytest

from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.kinds.context import context, node_spread, surprise_of_bins

NUM_BINS = 1 << 16  # of distances between 0 and 2


def plain_context(index, distance):
    """The z-scores as if edges were independent."""
    return context(index, distance, surprise_of_bins(distance), 0.0)[0]


def slow_context(index, distance):
    """The slow twin: ranks by sorting bins, a sum over each row."""
    bins = np.minimum((distance * (NUM_BINS / 2)).astype(np.int64), NUM_BINS - 1)
    out = np.zeros(index.num_nodes)
    for v in range(index.num_nodes):
        total = 0.0
        for e in index.of_node(v):
            rank = ((bins < bins[e]).sum() + 0.5 * (bins == bins[e]).sum()) / len(bins)
            total += -math.log(1 - rank)
        d = len(index.of_node(v))
        out[v] = ((total / d) ** (1 / 3) - 1 + 1 / (9 * d)) * math.sqrt(9 * d) if d else 0.0
    return out


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_context__equals_the_slow_twin(random_csr, directed, ties):
    index = edge_index(*random_csr(60, 150, directed=directed), directed=directed)
    rng = np.random.default_rng(1)
    distance = rng.choice([0.0, 1.0, 2.0], index.num_edges) if ties else rng.uniform(0, 2, index.num_edges)
    distance = distance.astype(np.float32)
    np.testing.assert_allclose(plain_context(index, distance), slow_context(index, distance), rtol=1e-6, atol=1e-6)


def test_context__of_equal_distances_depends_on_the_degree_alone(random_csr):
    index = edge_index(*random_csr(40, 90))
    found, degree = plain_context(index, np.ones(index.num_edges, np.float32)), np.diff(index.indptr)
    for d in np.unique(degree):
        assert np.ptp(found[degree == d]) == 0


def test_context__of_random_edges_is_about_standard_normal(random_csr):
    index = edge_index(*random_csr(4_000, 40_000))
    distance = np.random.default_rng(0).uniform(0, 2, index.num_edges).astype(np.float32)
    found = plain_context(index, distance)
    assert abs(found.mean()) < 0.1
    assert abs(found.std() - 1) < 0.1


def test_context__refuses_distances_of_another_graph(random_csr):
    index = edge_index(*random_csr(20, 30))
    with pytest.raises(ValueError, match="distances have shape"):
        plain_context(index, np.ones(7, np.float32))


def test_surprise__of_bins_rises_and_has_a_mean_of_about_one(random_csr):
    distance = np.random.default_rng(0).beta(2, 5, 100_000).astype(np.float32)
    table = surprise_of_bins(distance)
    assert (np.diff(table) >= 0).all()
    assert abs(table[(distance * (NUM_BINS / 2)).astype(int)].mean() - 1) < 0.01


def test_context__sees_a_node_that_is_unlike_its_neighbours(random_csr):
    indptr, indices = random_csr(100, 400)
    x = np.random.default_rng(0).normal(1, 0.1, (100, 5)).astype(np.float32)
    x[int(np.diff(indptr).argmax())] *= -1
    edges, unit = edge_index(indptr, indices), x / np.linalg.norm(x, axis=1, keepdims=True)
    left, right, _ = edges.edges(0, edges.num_edges)
    distance = 1 - (unit[left] * unit[right]).sum(axis=1)
    assert plain_context(edges, distance).argmax() == np.diff(indptr).argmax()


def test_node_spread__is_the_variance_between_nodes_whatever_their_degree():
    rng = np.random.default_rng(0)
    degree = rng.integers(1, 2_000, 20_000)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    z_score = rng.standard_normal(len(degree)) * np.sqrt(1 + 0.04 * degree)
    assert node_spread(indptr, z_score) == pytest.approx(0.04, rel=0.05)
    assert node_spread(indptr, 0.9 * rng.standard_normal(len(degree))) == 0.0


def test_node_spread__makes_the_median_square_that_of_a_normal_number():
    rng = np.random.default_rng(1)
    degree = rng.integers(1, 50, 2_001)
    z_score = rng.standard_normal(len(degree)) * np.sqrt(1 + 0.1 * degree)
    spread = node_spread(np.concatenate([[0], np.cumsum(degree)]), z_score)
    assert np.median(z_score**2 / (1 + spread * degree)) == pytest.approx(0.454936, rel=1e-9)


def test_context__a_hub_that_differs_a_little_is_not_the_first():
    rng = np.random.default_rng(0)
    num_leaves = 3_000
    others = rng.integers(1, num_leaves + 1, (2, 6_000))
    left = np.concatenate([np.zeros(num_leaves, np.int64), others[0]])
    right = np.concatenate([np.arange(1, num_leaves + 1), others[1]])
    pairs = np.unique(np.sort(np.stack([left, right]), axis=0)[:, left != right], axis=1)
    ends = np.concatenate([pairs, pairs[::-1]], axis=1)
    ends = ends[:, np.lexsort(ends[::-1])]
    index = edge_index(np.searchsorted(ends[0], np.arange(num_leaves + 2)), ends[1].astype(np.int32))
    own = 0.1 * rng.standard_normal(num_leaves + 1)  # nodes differ, and the hub is one deviation above the middle
    own[0] = 0.1
    distance = (1.0 + own[pairs[0]] + own[pairs[1]] + 0.1 * rng.standard_normal(pairs.shape[1])).astype(np.float32)
    assert plain_context(index, distance)[0] == plain_context(index, distance).max()
    found, spread = context(index, distance, surprise_of_bins(distance))
    assert spread > 0.0
    assert (found > found[0]).sum() > 100
