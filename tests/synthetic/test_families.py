"""Claims about the generated graphs: valid, seeded, the same at any thread count, and of the promised shape."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from hcm_scale.graph import Graph
from hcm_scale.graph.build import symmetric_csr
from hcm_scale.synthetic import families as synthetic

MAKERS = {
    "community": lambda seed: synthetic.community(3000, num_attributes=5, seed=seed),
    "rmat": lambda seed: synthetic.rmat(11, num_attributes=5, seed=seed),
    "grid": lambda seed: synthetic.grid(60, 40, num_attributes=5, seed=seed),
}


def slow_csr(u, v, num_nodes):
    """The obvious twin: neighbour sets."""
    neighbours = [set() for _ in range(num_nodes)]
    for a, b in zip(u.tolist(), v.tolist(), strict=True):
        if a != b:
            neighbours[a].add(b)
            neighbours[b].add(a)
    indices = [b for row in neighbours for b in sorted(row)]
    return np.cumsum([0] + [len(row) for row in neighbours]), np.array(indices, np.int32)


def assert_valid(graph: Graph) -> None:
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    assert graph.indptr.dtype == np.int64
    assert graph.indices.dtype == np.int32
    assert np.all(rows != graph.indices)
    assert np.all(np.diff(rows * graph.num_nodes + graph.indices) > 0)
    matrix = sparse.csr_array((np.ones(graph.num_arcs), graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2)
    assert (matrix != matrix.T).nnz == 0


@given(st.integers(1, 1500), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=200))
def test_symmetric_csr__equals_neighbour_sets(num_nodes, pairs):
    u, v = np.array(pairs, np.int64).reshape(-1, 2).T % num_nodes
    u, v = u.astype(np.int32), v.astype(np.int32)
    for fast, slow in zip(symmetric_csr(u, v, num_nodes), slow_csr(u, v, num_nodes), strict=True):
        np.testing.assert_array_equal(fast, slow)


def test_symmetric_csr__sorts_long_rows_with_many_repeats():
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, 5000, (2, 20_000)).astype(np.int32)
    u[:15_000] = 7
    for fast, slow in zip(symmetric_csr(u, v, 5000), slow_csr(u, v, 5000), strict=True):
        np.testing.assert_array_equal(fast, slow)


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_permute__is_a_bijection(bound, seed):
    num_bits = (bound - 1).bit_length()
    image = [synthetic.permute(value, num_bits, bound, np.uint64(seed)) for value in range(bound)]
    assert sorted(image) == list(range(bound))


@pytest.mark.parametrize("name", MAKERS)
def test_every_graph__is_valid_and_a_function_of_its_seed(name):
    first, again, other = MAKERS[name](1), MAKERS[name](1), MAKERS[name](2)
    assert_valid(first)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert first.info["seed"] == 1


@pytest.mark.parametrize("name", MAKERS)
def test_every_graph__is_the_same_at_any_thread_count(name, all_threads):
    alone = MAKERS[name](3).fingerprint
    with all_threads():
        assert MAKERS[name](3).fingerprint == alone


def test_community__homophily_sets_the_share_of_edges_inside():
    for homophily in (0.0, 0.5, 0.9):
        graph = synthetic.community(20_000, num_communities=40, num_attributes=1, homophily=homophily, seed=5)
        members = synthetic.communities(20_000, num_communities=40, seed=5)
        rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
        inside = np.mean(members[rows] == members[graph.indices])
        shares = np.bincount(members) / len(members)
        assert abs(inside - (homophily + (1 - homophily) * (shares**2).sum())) < 0.03


def test_community__degrees_follow_a_power_law():
    degrees = synthetic.community(50_000, num_communities=5, num_attributes=1, seed=0).degrees
    tail = degrees[degrees >= 30]
    exponent = 1 + len(tail) / np.log(tail / 29.5).sum()  # the maximum-likelihood (Hill) estimate
    assert 2.2 < exponent < 2.8
    assert degrees.max() > 20 * degrees.mean()
    assert abs(degrees.mean() / 16 - 1) < 0.1


def test_community__attributes_tell_the_community():
    graph = synthetic.community(4000, num_communities=4, num_attributes=20, seed=0)
    members = synthetic.communities(4000, num_communities=4, seed=0)
    centres = np.stack([graph.x[members == c].mean(axis=0) for c in range(4)])
    nearest = ((graph.x[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == members) > 0.75
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 2.5, atol=0.3)
    assert abs((graph.x - centres[members]).std() - 1) < 0.02


def test_community__degree_and_community_say_nothing_about_the_node_number():
    graph = synthetic.community(20_000, num_attributes=1, seed=0)
    numbers = np.arange(20_000)
    assert abs(np.corrcoef(numbers, graph.degrees)[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers, synthetic.communities(20_000, seed=0))[0, 1]) < 0.03


def test_rmat__has_the_quadrant_shares_of_graph500():
    """Over one level the four quadrants are the four possible pairs of two nodes, before labels are permuted."""
    u, v = np.empty((2, 100_000), np.int32)
    synthetic.rmat_pairs((0, len(u)), np.uint64(0), 1, 2, u, v)
    shares = np.bincount(2 * u + v, minlength=4) / len(u)
    expected = np.array([0.57, 0.19, 0.19, 0.05])
    assert min(np.abs(shares - expected).max(), np.abs(shares - expected[::-1]).max()) < 0.01


@pytest.mark.parametrize("num_nodes", [2**14, 10_000])
def test_rmat__has_hubs_in_no_order(num_nodes):
    graph = synthetic.rmat(14, num_nodes=num_nodes, num_attributes=1, seed=0)
    assert graph.num_nodes == num_nodes
    assert graph.degrees.max() > 50 * graph.degrees.mean()
    assert abs(np.corrcoef(np.arange(graph.num_nodes), graph.degrees)[0, 1]) < 0.03


def test_grid__without_gaps_is_the_grid():
    graph = synthetic.grid(7, 5, num_attributes=1, removed_share=0)
    cells = [(a, b) for a in range(35) for b in range(35)]
    expected = {(a, b) for a, b in cells if abs(a % 7 - b % 7) + abs(a // 7 - b // 7) == 1}
    rows = np.repeat(np.arange(35), graph.degrees)
    assert set(zip(rows.tolist(), graph.indices.tolist(), strict=True)) == expected


def test_grid__loses_the_share_asked_for():
    full = 2 * 300 * 200 - 300 - 200
    assert abs(1 - synthetic.grid(300, 200, removed_share=0.1, num_attributes=1).num_edges / full - 0.1) < 0.01


def test_noise__is_bell_shaped_and_uncorrelated():
    x = synthetic.rmat(14, num_attributes=6, seed=0).x
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert np.abs(np.corrcoef(x.T) - np.eye(6)).max() < 0.04
    assert abs(np.mean(np.abs(x) < 1) - 0.68) < 0.02


def test_default__is_labelled_and_not_solved_by_looking_at_one_number():
    graph = synthetic.default()
    assert_valid(graph)
    assert graph.num_nodes == 20_000
    assert np.bincount(graph.kind).tolist() == [19_400, 300, 300]
    for score in (graph.degrees, np.linalg.norm(graph.x, axis=1)):
        ranks = np.argsort(np.argsort(score, kind="stable"), kind="stable")
        auc = (ranks[graph.y == 1].mean() - 299.5) / 19_400
        assert 0.5 < auc < 0.8


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_graphs__are_made(size):
    for graph in (synthetic.community(size), synthetic.rmat(size - 1), synthetic.grid(size, 1)):
        assert_valid(graph)


@pytest.mark.slow
def test_community__of_ten_million_nodes_stays_within_8_gib():
    code = (
        "from hcm_scale.synthetic import families as synthetic; from hcm_scale.base.memory import peak_rss_bytes\n"
        "g = synthetic.community(10_000_000); assert g.num_edges > 75_000_000, g.num_edges\n"
        "assert peak_rss_bytes() < 8 << 30, peak_rss_bytes(); print(g.num_edges, peak_rss_bytes())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("make", [partial(synthetic.community, 20_000), partial(synthetic.rmat, 8)])
def test_attributes__of_half_precision_are_the_others_rounded(make):
    whole, half = make(seed=3), make(seed=3, dtype="float16")
    assert half.x.dtype == np.float16
    np.testing.assert_array_equal(half.x, whole.x.astype(np.float16))
    np.testing.assert_array_equal(half.indices, whole.indices)
