"""Squares of graphs with two sides: counts and expectations against loops, and what they find."""

from itertools import combinations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import kind_numbers
from scipy import sparse

from hcm_scale.base.threads import kernel_threads
from hcm_scale.graph import Graph
from hcm_scale.graph.lookup import two_sides
from hcm_scale.score import evidence, threshold
from hcm_scale.score import triangles as counting
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.kinds.cohesion import cohesion


def edges_of(users, shops, num_nodes):
    ends = np.r_[users, shops], np.r_[shops, users]
    matrix = sparse.csr_array((np.ones(len(ends[0]), bool), ends), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    return edge_index(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))


def random_edges(num_users, num_shops, num_edges, seed, *, hubs=0):
    """Users and shops joined by weights of heavy tails; the last `hubs` shops are known to half of the users."""
    rng = np.random.default_rng(seed)
    weights = [rng.lognormal(0, 1, size) for size in (num_users, num_shops)]
    users, shops = (rng.choice(len(each), num_edges, p=each / each.sum()) for each in weights)
    for hub in range(hubs):
        users = np.r_[users, rng.permutation(num_users)[: num_users // 2]]
        shops = np.r_[shops, np.full(num_users // 2, num_shops - 1 - hub)]
    return users, shops + num_users


def sides_of(edges):
    return two_sides(Graph(edges.indptr, edges.indices))


def slow_squares(edges, side, most):
    """By the formula in the module's docstring, a pair of neighbours at a time; `most` bounds degrees."""
    joined = [set(row) for row in np.split(edges.indices, edges.indptr[1:-1])]
    degree = np.array([len(row) for row in joined], float)
    plain = degree <= most
    counted, expected = np.zeros((2, len(degree)))
    for u, row in enumerate(joined):
        pairs = list(combinations([v for v in row if plain[v] and degree[v] > 1], 2))
        weights = [1 / ((degree[v] - 1) * (degree[w] - 1)) for v, w in pairs]
        shared = [sum(plain[w] for w in joined[a] & joined[b] if w != u) for a, b in pairs]
        own = side == side[u]
        rate = (degree * (degree - 1) * plain)[own].sum() / max(1, degree[own].sum() ** 2)
        if pairs:
            unit = np.mean(weights)
            counted[u], expected[u] = np.dot(shared, weights) / unit, rate * len(pairs) / unit
            counted[u] = max(counted[u], 1) if sum(shared) else 0
    return counted, expected


@given(
    st.integers(2, 30), st.integers(2, 30), st.integers(0, 250), st.integers(0, 99), st.integers(0, 2), st.booleans()
)
def test_squares__equal_a_loop_over_pairs_of_neighbours(num_users, num_shops, num_edges, seed, hubs, bounded):
    edges = edges_of(*random_edges(num_users, num_shops, num_edges, seed, hubs=min(hubs, num_shops)), 60)
    side, degree = sides_of(edges), np.diff(edges.indptr)
    most = int(np.sqrt(edges.num_edges))
    with pytest.MonkeyPatch.context() as patch:
        if bounded:
            patch.setattr(counting, "_STEPS_PER_ENTRY", 4)
            most = max((d for d in range(most + 1) if (degree[degree <= d] ** 2).sum() <= 4 * degree.sum()), default=0)
        found = counting.squares(edges, side)
    np.testing.assert_allclose(found, slow_squares(edges, side, most), rtol=1e-5, atol=1e-9)


def test_squares__are_the_same_bytes_whatever_the_threads():
    edges = edges_of(*random_edges(2_000, 500, 20_000, seed=1, hubs=2), 2_500)
    found, had = [], numba.get_num_threads()
    for threads in (1, 2):
        with kernel_threads(threads):
            of_nodes = cohesion(counting.count_and_expect(edges))
            found.append(np.stack([*counting.squares(edges, sides_of(edges)), of_nodes]).tobytes())
    assert found[0] == found[1]
    assert numba.get_num_threads() == had


@pytest.mark.parametrize(("hubs", "off"), [(0, 0.05), (3, 0.3)])  # hubs that all users know alike are no chance
def test_squares__of_a_random_graph_are_as_many_as_expected_whatever_the_degree(hubs, off):
    edges = edges_of(*random_edges(3_000, 1_000, 25_000, seed=2, hubs=hubs), 4_000)
    side, degree = sides_of(edges), np.diff(edges.indptr)
    counted, expected = counting.squares(edges, side)
    for each in (0, 1):
        for low, high in ((3, 10), (10, 40), (40, 4_000)):
            among = (side == each) & (degree >= low) & (degree < high)
            assert among.sum() > 20
            assert counted[among].sum() / expected[among].sum() == pytest.approx(1, abs=off)


@pytest.mark.parametrize("hubs", [0, 3])
def test_cohesion__finds_a_block_of_users_and_shops_and_no_hub(hubs):
    users, shops = random_edges(3_500, 1_500, 40_000, seed=hubs, hubs=hubs)
    usual = np.abs(np.bincount(np.r_[users, shops], minlength=5_000) - 14) < 7  # neighbours
    left, right = np.flatnonzero(usual[:3_500])[:8], np.flatnonzero(usual[3_500:])[:8] + 3_500
    block = np.divmod(np.arange(64), 8)
    edges = edges_of(np.r_[users, left[block[0]]], np.r_[shops, right[block[1]]], 5_000)
    made = counting.count_and_expect(edges)
    found, rate = cohesion(made), made.rate
    assert rate.of_squares
    assert {*left, *right} <= set(np.argsort(-found)[:50])  # the first 1 %
    assert found[np.diff(edges.indptr) > 1_000].max(initial=0) < np.quantile(found, 0.95)
    np.testing.assert_allclose(cohesion(counting.count_and_expect(edges, rate)), found)


@pytest.mark.parametrize("hubs", [0, 3])
@pytest.mark.parametrize("num_edges", [4_000, 8_000, 30_000])
def test_cohesion__of_a_clean_graph_flags_no_node(num_edges, hubs):
    for seed in range(4):
        edges = edges_of(*random_edges(3_500, 1_500, num_edges, seed, hubs=hubs), 5_000)
        of_nodes = cohesion(counting.count_and_expect(edges))
        numbers = kind_numbers({"cohesion": of_nodes}, np.diff(edges.indptr) > 0)
        assert not threshold.judge(evidence.weigh_evidence(numbers).sums, 0.1).flagged.any()


def test_cohesion__of_one_kind_is_not_judged_by_the_other(random_csr, caplog):
    sided = edges_of(*random_edges(100, 50, 600, seed=0), 150)
    other = edge_index(*random_csr(100, 600))
    rates = [counting.count_and_expect(edges).rate for edges in (other, sided)]
    for edges, rate in zip((sided, other), rates, strict=True):
        caplog.clear()
        assert not cohesion(counting.count_and_expect(edges, rate)).any()
        assert "triangles and squares tell nothing" in caplog.text
