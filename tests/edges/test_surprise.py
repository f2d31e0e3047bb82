"""Numbers of edges are those of a slow count, strange edges lead the list, and clean graphs have hardly a flag."""

from dataclasses import replace

import numba
import numpy as np
import pytest
from scipy import sparse

from hcm_scale.base.threads import kernel_threads
from hcm_scale.edges.surprise import KINDS, EdgeData, edge_scale, rank_edges
from hcm_scale.features.purify import cosine_distance
from hcm_scale.graph import Graph
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.metrics import roc_auc
from tests.helpers import small_graph


def with_edges(graph: Graph, left, right, directed: bool = False) -> Graph:
    ends = (left, right) if directed else (np.r_[left, right], np.r_[right, left])
    csr = sparse.coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(graph.num_nodes,) * 2).tocsr()
    csr.sort_indices()
    indptr, indices = csr.indptr.astype(np.int64), csr.indices.astype(np.int32)
    return replace(graph, indptr=indptr, indices=indices, directed=directed, path=None)


def ends_of(graph: Graph):
    left = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    once = graph.directed | (left < graph.indices)
    return left[once], graph.indices[once].astype(np.int64)


def data_of(graph: Graph, hop=None, **more) -> EdgeData:
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    rng = np.random.default_rng(0)
    hop = (1 + rng.random(edges.num_edges)).astype(np.float32) if hop is None else hop
    return EdgeData(edges, hop, np.zeros_like(hop), np.asarray(graph.x, np.float32), **more)


@pytest.mark.parametrize("directed", [False, True])
def test_numbers__are_those_of_a_slow_count(directed):
    graph = small_graph(150, 4)
    left, right = ends_of(graph)
    graph = with_edges(graph, left, right, directed)
    data, (left, right) = data_of(graph), ends_of(graph)
    found = data.numbers(np.arange(graph.num_edges))
    np.testing.assert_array_equal([found.left, found.right], [left, right])
    around = [set(data.joined.indices[slice(*data.joined.indptr[v : v + 2])].tolist()) for v in range(graph.num_nodes)]
    for i, (u, v) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        assert found.shared[i] == len(around[u] & around[v])
        assert found.unlike[i] == pytest.approx(float(cosine_distance(graph.x[u], graph.x[v])), abs=1e-5)
        means = [graph.x[sorted(around[a] - {b} | {a})].mean(axis=0, dtype=float) for a, b in ((u, v), (v, u))]
        assert found.around[i] == pytest.approx(float(cosine_distance(*means)), abs=1e-4)
    some = np.array([7, 3, 11])
    np.testing.assert_array_equal(data.numbers(some).shared, found.shared[some])


def test_numbers__of_a_graph_with_a_hub_of_all_nodes():
    graph = small_graph(300, 3)
    left, right = ends_of(graph)
    graph = with_edges(graph, np.r_[left, np.zeros(299, int)], np.r_[right, np.arange(1, 300)])
    data, (left, right) = data_of(graph), ends_of(graph)
    matrix = sparse.csr_array((np.ones(graph.num_arcs), graph.indices, graph.indptr), shape=(300, 300))
    slow = matrix[left].multiply(matrix[right]).sum(axis=1)
    np.testing.assert_array_equal(data.numbers(np.arange(len(left))).shared, slow)


def planted(num_nodes: int = 2_000, num_odd: int = 20):
    """Communities without stray edges, random pairs joined, and hops that rise with neither."""
    graph, rng = small_graph(num_nodes, 8), np.random.default_rng(3)
    odd = rng.integers(0, num_nodes, (2, 4 * num_odd))
    left, right = ends_of(graph)
    known = {*zip(left.tolist(), right.tolist(), strict=True)}
    pairs = [(min(p), max(p)) for p in odd.T.tolist() if p[0] != p[1] and (min(p), max(p)) not in known][:num_odd]
    graph = with_edges(graph, *np.r_[np.c_[left, right], pairs].T)
    ends = zip(*(end.tolist() for end in ends_of(graph)), strict=True)
    return graph, np.array([pair in set(pairs) for pair in ends])


def test_rank_edges__random_pairs_lead_and_ranks_follow_p():
    graph, is_odd = planted()
    data = data_of(graph, (1 + np.where(is_odd, 1.0, 0.0) + np.random.default_rng(1).random(len(is_odd))).astype("f4"))
    ranked = rank_edges(data, edge_scale(data), 0.1)
    assert roc_auc(is_odd.astype(np.uint8), ranked.surprise) > 0.9
    first = ranked.first()
    assert (np.diff(ranked.verdict.p[first]) >= 0).all()
    num_flagged = int(ranked.verdict.flagged.sum())
    assert ranked.verdict.flagged[first[:num_flagged]].all()
    np.testing.assert_array_equal(ranked.first(5), first[:5])


def test_rank_edges__does_not_depend_on_threads():
    graph, _ = planted(600)
    data = data_of(graph)
    many = rank_edges(data, edge_scale(data), 0.1).surprise
    with kernel_threads(1):
        one = rank_edges(data_of(graph), edge_scale(data_of(graph)), 0.1).surprise
    np.testing.assert_array_equal(many, one)
    assert numba.get_num_threads() >= 1


def test_rank_edges__noise_of_all_kinds_has_no_flag():
    flags = 0
    for seed in range(3):
        graph = small_graph(1_000, 6, seed=seed)
        data = data_of(replace(graph, x=np.random.default_rng(seed).normal(size=graph.x.shape).astype(np.float32)))
        flags += int(rank_edges(data, edge_scale(data), 0.1).verdict.flagged.sum())
    assert flags <= 1


def test_edge_scale__degrees_alone_make_no_edge_strange():
    graph = small_graph(3_000, 4)
    data = data_of(graph)
    degree = np.minimum(data.degree[ends_of(graph)[0]], data.degree[ends_of(graph)[1]])
    noise = np.random.default_rng(2).random(graph.num_edges)
    by_degree = replace(data, hop=(1 + 2 / (1 + np.log(degree)) + 0.1 * noise).astype(np.float32))
    found, scale = by_degree.numbers(np.arange(graph.num_edges)), edge_scale(by_degree)
    hops = scale.surprises(found, by_degree.classes(found))[KINDS.index("hop")]
    is_low = degree <= np.quantile(degree, 0.2)
    assert roc_auc(is_low.astype(np.uint8), by_degree.hop.astype(float)) > 0.95
    assert abs(roc_auc(is_low.astype(np.uint8), hops) - 0.5) < 0.2


def test_edge_scale__an_edge_that_was_not_scored_is_judged_by_the_rest():
    graph, is_odd = planted(600)
    hop = np.where(np.arange(len(is_odd)) % 3 == 0, np.nan, 1.5).astype(np.float32)
    ranked = rank_edges(data := data_of(graph, hop), edge_scale(data), 0.1)
    assert np.isfinite([ranked.surprise, ranked.verdict.p]).all()


def test_edge_scale__shared_neighbours_say_nothing_where_there_are_no_triangles():
    rng = np.random.default_rng(0)
    graph = with_edges(small_graph(400, 3), rng.integers(0, 200, 1_500), rng.integers(200, 400, 1_500))
    scale = edge_scale(data := data_of(graph))
    found = data.numbers(np.arange(graph.num_edges))
    assert not scale.surprises(found, data.classes(found))[KINDS.index("shared")].any()


def test_edge_scale__untrusted_attributes_count_for_nothing():
    graph, _ = planted(600)
    data = data_of(graph, trust=0.0)
    other = replace(data, features=np.random.default_rng(5).normal(size=graph.x.shape).astype(np.float32))
    np.testing.assert_array_equal(
        rank_edges(data, edge_scale(data), 0.1).surprise, rank_edges(other, edge_scale(other), 0.1).surprise
    )


def test_compare__pairs_that_are_no_edges_are_judged_as_if_they_were():
    graph, n = small_graph(300, 4), 300
    left, right = ends_of(graph)
    without = with_edges(graph, left[1:], right[1:])
    whole, less = data_of(graph), data_of(without)
    less.__dict__["rate"] = whole.rate
    (one,) = whole.edges.find(left[:1], right[:1])
    own = whole.numbers(np.array([one]))
    new = less.compare(left[:1], right[:1], own.hop, own.var)
    for name, of_own, of_new in zip(own._fields, own, new, strict=True):
        np.testing.assert_allclose(of_new, of_own, rtol=1e-5, atol=1e-6, err_msg=name)
    assert whole.classes(own) == less.classes(new)
    assert (less.edges.find([left[0], -1, 5], [right[0], 3, n]) == -1).all()


def test_with_new_nodes__nodes_that_came_later_change_no_number_of_others_and_are_a_group_of_their_own():
    graph = small_graph(300, 4)
    data = data_of(graph, group=(np.arange(300) % 2).astype(np.uint8))
    later = data.with_new_nodes((np.array([0, 2, 2]), np.array([3, 7])))
    every = np.arange(graph.num_edges)
    for own, same in zip(data.numbers(every), later.numbers(every), strict=True):
        np.testing.assert_array_equal(own, same)
    found = later.compare(np.array([3, 5, 300]), np.array([300, 300, 301]), *np.ones((2, 3), np.float32))
    assert found.others.tolist() == [[data.degree[3], data.degree[5], 2], [1, 2, 0]]
    assert np.isnan(found.unlike).all()
    assert np.isnan(found.around).tolist() == [False, False, True]
    scale = edge_scale(later)
    assert (scale.columns_of(later.classes(found)) == len(scale.classes)).all()
    assert np.isfinite(scale.surprises(found, later.classes(found))).all()
