"""Far closure against a dense product, and the far edges against a sort."""

from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import kind_numbers
from scipy import sparse

from hcm_scale.score import triangles
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.evidence import weigh_evidence
from hcm_scale.score.kinds import closure
from hcm_scale.score.kinds.cohesion import cohesion
from hcm_scale.score.threshold import judge
from hcm_scale.score.triangles import count_and_expect
from hcm_scale.synthetic.families import rmat


def far_edges(mean, share):
    return closure.mark_far(mean, closure.far_cut(mean, share))


def far_triangles(edges, mean, share):
    """Far triangles at every node, from its closure."""
    expected = count_and_expect(edges).expected
    unit = np.diff(edges.indptr) + expected / 4
    return np.rint(np.expm1(closure.closure(edges, mean, closure.far_cut(mean, share), expected)) * unit)


def slow_triangles(indptr, indices, far):
    adjacency = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(indptr) - 1,) * 2).toarray()
    u, v = np.nonzero(np.triu(adjacency))
    marked = np.zeros_like(adjacency)
    marked[u[far], v[far]] = 1
    marked += marked.T
    return np.diag(marked @ marked @ marked) / 2


@given(st.integers(3, 40), st.integers(1, 300), st.integers(0, 99), st.floats(0.05, 1.0), st.integers(1, 2))
def test_far_triangles__equal_the_dense_count(num_nodes, num_edges, seed, share, threads):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((num_nodes, num_nodes)) < min(1.0, 2 * num_edges / num_nodes**2), 1)
    matrix = sparse.csr_array((upper | upper.T).astype(np.int8))
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    mean = rng.random(matrix.nnz // 2).astype(np.float32)
    far = far_edges(mean, share)
    assert far.sum() == int(Fraction(str(share)) * (matrix.nnz // 2))  # as the digits say
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        counted = far_triangles(edge_index(indptr, indices), mean, share)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(counted, slow_triangles(indptr, indices, far))


@pytest.mark.parametrize("few_steps", [0, 1 << 20])  # all edges from both ends, or from one
@pytest.mark.parametrize(("most", "least"), [(0, 64), (40, 64), (1 << 17, 64), (1 << 17, 1)])
def test_triangles__of_a_graph_with_hubs_equal_the_sparse_product(monkeypatch, most, least, few_steps):
    """Hubs are counted by bits of their own, the others searched for: none, some and all nodes are hubs here."""
    for name, value in {"_MAX_HUBS": most, "_LEAST_HUB": least, "_FEW_STEPS": few_steps}.items():
        monkeypatch.setattr(triangles, name, value)
    graph = rmat(13, seed=3)
    edges = edge_index(graph.indptr, graph.indices)
    mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
    u, v, _ = edges.edges(0, edges.num_edges)

    def slow(chosen):
        upper = sparse.csr_array((np.ones(chosen.sum()), (u[chosen], v[chosen])), shape=(graph.num_nodes,) * 2)
        marked = upper + upper.T
        return (marked @ marked * marked).sum(axis=1) / 2

    np.testing.assert_array_equal(far_triangles(edges, mean, 0.4), slow(far_edges(mean, 0.4)))
    every, (counted, expected, rate) = slow(np.ones(len(u), bool)), count_and_expect(edges)
    np.testing.assert_array_equal(counted, every)
    found, at_random = cohesion(count_and_expect(edges)), np.zeros(graph.num_nodes)
    triangles.expect_triangles((0, len(at_random)), graph.indptr, graph.indices, rate.value, 1, at_random)
    np.testing.assert_array_equal(expected, at_random)
    np.testing.assert_allclose(found[every > 0], (np.log1p(every) - np.log1p(at_random))[every > 0], atol=1e-12)
    assert not found[every == 0].any()


def slow_far(mean, share):
    wanted = int(Fraction(str(share)) * len(mean))
    scored = [e for e in range(len(mean)) if np.isfinite(mean[e])]
    largest = sorted(scored, key=lambda e: (mean[e], e))[::-1][:wanted]
    return [e in largest for e in range(len(mean))]


HOPS = st.one_of(st.sampled_from([1.0, 2.0, 2.0, float("nan"), float("inf"), 0.0]), st.floats(-4, 4, width=32))


@given(st.lists(HOPS, max_size=60), st.sampled_from([0.05, 0.29, 0.4, 0.5, 1.0]), st.integers(1, 2))
def test_far_edges__equal_a_sort(hops, share, threads):
    mean = np.array(hops, np.float32) + np.float32(0)  # no negative zero: it sorts below zero here, beside it there
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        assert far_edges(mean, share).tolist() == slow_far(mean, share)
    finally:
        numba.set_num_threads(before)


def test_far_edges__takes_exactly_its_share_among_ties():
    assert far_edges(np.ones(10, np.float32), 0.35).sum() == 3
    assert far_edges(np.ones(10, np.float32), 1.0).all()


def test_closure__finds_a_clique_of_far_edges(random_csr):
    indptr, indices = random_csr(300, 900, seed=1)
    adjacency = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(300, 300)).tolil()
    clique = np.arange(0, 300, 30)
    for u in clique:
        for v in clique:
            if u != v:
                adjacency[u, v] = 1
    matrix = sparse.csr_array(adjacency)
    matrix.sort_indices()
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    u, v = np.nonzero(np.triu(matrix.toarray()))
    hop = np.where(np.isin(u, clique) & np.isin(v, clique), 3.0, 1.0).astype(np.float32)
    score = closure.closure(edge_index(indptr, indices), hop, closure.far_cut(hop, 0.1), np.zeros(len(indptr) - 1))
    assert set(np.argsort(-score)[: len(clique)]) == set(clique)


def test_closure__is_the_logarithm_of_far_triangles_per_neighbour_and_four_expected_ones():
    """A triangle whose node 0 has a neighbour more, by a near edge: 1 triangle over 3, 2, 2 and 1 neighbours."""
    edges = edge_index(np.array([0, 3, 5, 7, 8]), np.array([1, 2, 3, 0, 2, 0, 1, 0], np.int32))
    hop = np.array([3, 3, 1, 3], np.float32)
    found = closure.closure(edges, hop, closure.far_cut(hop, 0.75), np.array([0.0, 0.0, 8.0, 8.0]))
    np.testing.assert_allclose(found, np.log1p([1 / 3, 1 / 2, 1 / 4, 0]))


@pytest.mark.parametrize("share", [0.01, 0.35, 1.0])
def test_mark_far__by_the_cut_of_another_graph(share):
    mean = np.random.default_rng(0).random(1_000).round(2).astype(np.float32)  # many ties
    cut = closure.far_cut(mean, share)
    assert closure.mark_far(mean, cut).sum() == int(share * 1_000)
    twice = closure.mark_far(np.concatenate([mean, mean]), cut)
    assert twice.sum() == 2 * int(share * 1_000)
    assert not closure.mark_far(mean - 2, cut).any() or share == 1.0


def test_share__out_of_range_is_named():
    with pytest.raises(ValueError, match="share=0"):
        closure.far_cut(np.zeros(0, np.float32), 0.0)


def test_cohesion__is_the_logarithm_of_triangles_over_those_expected(random_csr):
    indptr, indices = random_csr(80, 500)
    joined = np.zeros((80, 80))
    joined[np.repeat(np.arange(80), np.diff(indptr)), indices] = 1
    degree = joined.sum(axis=0)
    triangles = np.diag(joined @ joined @ joined) / 2
    rate = (degree * (degree - 1)).sum() / degree.sum() ** 2

    def expected(rate):
        others = np.maximum(degree - 1, 0)
        shared = np.minimum(rate * np.outer(others, others), np.minimum(others[:, None], others))
        return (joined * shared).sum(axis=1) / 2

    raised = rate * np.sqrt(max(1.0, triangles.sum() / expected(rate).sum()))
    made = count_and_expect(edge_index(indptr, indices))
    found, found_rate = cohesion(made), made.rate
    assert found_rate.value == pytest.approx(raised)
    assert not found_rate.of_squares
    np.testing.assert_allclose(
        found, np.where(triangles > 0, np.log1p(triangles) - np.log1p(expected(raised)), 0.0), atol=1e-12
    )
    np.testing.assert_allclose(cohesion(count_and_expect(edge_index(indptr, indices), found_rate)), found)


def test_cohesion__finds_a_ring_of_mules_and_not_the_merchant():
    rng = np.random.default_rng(0)
    num_nodes, merchant, ring = 5_000, 0, np.arange(1, 13)
    ends = [
        rng.integers(1, num_nodes, (2, 12_000)),
        np.stack([np.zeros(1_500, int), rng.integers(1, num_nodes, 1_500)]),
    ]
    ends.append(np.stack(np.meshgrid(ring, ring)).reshape(2, -1))
    left, right = np.concatenate(ends, axis=1)
    pairs = np.unique(np.stack([np.minimum(left, right), np.maximum(left, right)])[:, left != right], axis=1)
    arcs = np.concatenate([pairs, pairs[::-1]], axis=1)
    arcs = arcs[:, np.lexsort(arcs[::-1])]
    edges = edge_index(np.searchsorted(arcs[0], np.arange(num_nodes + 1)), arcs[1].astype(np.int32))
    found = cohesion(count_and_expect(edges))
    assert set(np.argsort(-found)[:20]) >= set(ring)
    assert found[merchant] < np.quantile(found, 0.95)


@pytest.mark.parametrize("scale", [13, 15])
def test_closure__of_edges_that_are_far_by_chance_is_not_largest_at_hubs(scale):
    """Per neighbour alone the far triangles of the hundred largest nodes are more than those of nearly all others."""
    graph = rmat(scale, edge_factor=16, num_attributes=1)
    edges = edge_index(graph.indptr, graph.indices)
    mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
    cut, hubs = closure.far_cut(mean, 0.4), np.argsort(-graph.degrees)[:100]

    def share_below(expected):
        found = closure.closure(edges, mean, cut, expected)
        return (found < np.median(found[hubs])).mean()

    assert share_below(np.zeros(graph.num_nodes)) > 0.99
    assert 0.5 < share_below(count_and_expect(edges).expected) < 0.9


@pytest.mark.parametrize("edges_per_node", [1.0, 1.6, 2.4, 3.0, 4.0])  # 2 to 12 % of the nodes have a triangle
@pytest.mark.parametrize("seed", range(3))
def test_cohesion__of_a_random_graph_with_few_triangles_flags_only_a_clique(edges_per_node, seed):
    rng, num_nodes = np.random.default_rng(seed), 5_000
    weights = rng.lognormal(0.0, 1.0, num_nodes)
    ends = rng.choice(num_nodes, (2, int(edges_per_node * num_nodes)), p=weights / weights.sum())
    clique = rng.choice(num_nodes, 12, replace=False)

    def flagged(ends):
        arcs = sparse.csr_array((np.ones(2 * ends.shape[1]), np.hstack([ends, ends[::-1]])), shape=(num_nodes,) * 2)
        arcs.setdiag(0)
        arcs.eliminate_zeros()
        edges = edge_index(arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32))
        kinds = kind_numbers({"cohesion": cohesion(count_and_expect(edges))}, np.diff(arcs.indptr) > 0)
        return np.flatnonzero(judge(weigh_evidence(kinds).sums, 0.1).flagged)

    assert not len(flagged(ends))
    found = flagged(np.hstack([ends, clique[np.array(np.triu_indices(12, 1))]]))
    assert np.isin(clique, found).mean() > 0.9
    assert np.isin(found, clique).mean() > 0.9


def test_undirected__joins_the_ends_of_every_arc_once():
    rng = np.random.default_rng(0)
    arcs = sparse.csr_array(np.triu(rng.random((30, 30)) < 0.2, 1) | np.tril(rng.random((30, 30)) < 0.1, -1))
    arcs.sort_indices()
    made = triangles.undirected(edge_index(arcs.indptr.astype(np.int64), arcs.indices.astype(np.int32), directed=True))
    wanted = arcs.toarray() | arcs.toarray().T
    found = np.zeros((30, 30), bool)
    found[np.repeat(np.arange(30), np.diff(made.indptr)), made.indices] = True
    np.testing.assert_array_equal(found, wanted)
    assert not made.directed
    assert made.num_edges == wanted.sum() // 2
