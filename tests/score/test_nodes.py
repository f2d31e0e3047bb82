"""AHP, IV and HAV against plain loops over neighbours, z-scores against numpy, stability."""

import math
from dataclasses import replace

import numba
import numpy as np
import pytest
from scipy import sparse

from hcm_scale.base.rng import bits
from hcm_scale.features.purify import edge_similarity
from hcm_scale.score import nodes
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KindNumbers, weigh_evidence
from hcm_scale.score.threshold import judge
from hcm_scale.synthetic.families import rmat


def random_hops(index, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    mean = rng.integers(1, 4, index.num_edges) if ties else rng.uniform(1, 4, index.num_edges)
    return EdgeHops(mean.astype(np.float32), rng.uniform(0, 1, index.num_edges).astype(np.float32))


def slow_nodes(index, hops, trim=0.0):
    """The slow twin: for each node, its own draw, the nearest share of it, two averages."""
    ahp, iv = np.zeros(index.num_nodes), np.zeros(index.num_nodes)
    for v in range(index.num_nodes):
        row = index.indices[index.indptr[v] : index.indptr[v + 1]].tolist()
        edges = index.of_node(v).tolist()
        if len(index.limit):
            edges = [e for u, e in zip(row, edges, strict=True) if np.uint64(bits(index.seed, v, u)) <= index.limit[v]]
        edges = sorted(edges, key=lambda e: hops.mean[e]) if trim else edges
        edges = edges[: max(1, math.ceil(round((1 - trim) * len(edges), 6)))]
        if edges:
            ahp[v], iv[v] = hops.mean[edges].mean(dtype=np.float64), hops.var[edges].mean(dtype=np.float64)
    return ahp, iv


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.7, 0.99])
@pytest.mark.parametrize("max_neighbors", [None, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_score_nodes__equals_the_slow_twin(random_csr, directed, trim, max_neighbors, ties):
    index = edge_index(*random_csr(70, 250, directed=directed), directed=directed, max_neighbors=max_neighbors)
    hops = random_hops(index, ties=ties)
    scores = nodes.score_nodes(index, hops, trim=trim)
    ahp, iv = slow_nodes(index, hops, trim)
    np.testing.assert_allclose(scores.ahp, ahp, rtol=1e-12)
    np.testing.assert_allclose(scores.iv, iv, rtol=1e-12)
    np.testing.assert_allclose(scores.hav, ahp / ahp.max() + iv / iv.max(), rtol=1e-12)


def test_score_nodes__trim_keeps_the_rounded_up_share_and_at_least_one():
    star = np.concatenate([[0], np.arange(10, 21)]).astype(np.int64)  # node 0 with ten leaves
    index = edge_index(star[:12], np.concatenate([np.arange(1, 11), np.zeros(10)]).astype(np.int32))
    hops = EdgeHops(np.arange(10, 0, -1).astype(np.float32), np.zeros(10, np.float32))
    kept = {0.0: 10, 0.2: 8, 0.25: 8, 0.7: 3, 0.99: 1}
    for trim, size in kept.items():
        assert nodes.score_nodes(index, hops, trim=trim).ahp[0] == np.arange(1, size + 1).mean()


def hub_csr(num_leaves, num_pairs=3, num_isolated=2):
    """Node 0 with leaves, pairs of nodes that only have each other, and nodes without neighbours."""
    pairs = num_leaves + 1 + np.arange(2 * num_pairs).reshape(-1, 2)
    indices = np.concatenate([np.arange(1, num_leaves + 1), np.zeros(num_leaves), pairs[:, ::-1].ravel()])
    degree = np.concatenate([[num_leaves], np.ones(num_leaves + 2 * num_pairs), np.zeros(num_isolated)])
    return np.concatenate([[0], np.cumsum(degree)]).astype(np.int64), indices.astype(np.int32)


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 17, 3000])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("ties", [False, True])
def test_score_nodes__hubs_pairs_and_empty_rows_equal_the_slow_twin(num_leaves, trim, ties):
    index = edge_index(*hub_csr(num_leaves))
    hops = random_hops(index, seed=num_leaves, ties=ties)
    scores = nodes.score_nodes(index, hops, trim=trim)
    ahp, iv = slow_nodes(index, hops, trim)
    np.testing.assert_allclose(scores.ahp, ahp, rtol=1e-12)
    np.testing.assert_allclose(scores.iv, iv, rtol=1e-12)


def test_score_nodes__equal_hops_at_the_cut_are_taken_in_order():
    index = edge_index(*hub_csr(5, num_pairs=0))
    var = np.array([1, 2, 4, 8, 16], np.float32)
    for mean, kept in {(3, 2, 2, 2, 1): 2 + 4 + 16, (2, 2, 2, 2, 2): 1 + 2 + 4, (1, 2, 1, 2, 1): 1 + 4 + 16}.items():
        scores = nodes.score_nodes(index, EdgeHops(np.array(mean, np.float32), var), trim=0.4)
        assert scores.iv[0] == kept / 3


@pytest.mark.parametrize("sign", [1, -1])  # which one 0 * inf makes depends on the processor
def test_score_nodes__a_hop_that_is_no_number_is_the_farthest(sign):
    index = edge_index(*hub_csr(5, num_pairs=0))
    mean = np.array([4, math.copysign(math.nan, sign), 3, 2, 1], np.float32)
    trimmed, whole = (nodes.score_nodes(index, EdgeHops(mean, mean), trim=trim) for trim in (0.2, 0.0))
    assert trimmed.ahp[0] == trimmed.iv[0] == 10 / 4
    assert np.isnan(whole.ahp[0])
    assert np.isnan(whole.iv[0])
    assert np.isnan(trimmed.ahp[2])  # the leaf has no other neighbour


def test_score_nodes__nodes_without_neighbours_score_zero_and_are_flagged():
    index = edge_index(np.array([0, 1, 2, 2]), np.array([1, 0], np.int32))
    scores = nodes.score_nodes(index, EdgeHops(np.array([2], np.float32), np.array([0.5], np.float32)), trim=0.0)
    assert [scores.ahp[2], scores.iv[2], scores.hav[2]] == [0, 0, 0]
    assert scores.flags.tolist() == [0, 0, nodes.ISOLATED]
    assert scores.degree.tolist() == [1, 1, 0]


def test_score_nodes__directed_nodes_without_out_neighbours_are_flagged():
    index = edge_index(np.array([0, 1, 1]), np.array([1], np.int32), directed=True)
    scores = nodes.score_nodes(index, EdgeHops(np.array([2], np.float32), np.array([0.5], np.float32)), trim=0.0)
    assert scores.ahp.tolist() == [2, 0]
    assert scores.flags.tolist() == [0, nodes.NO_OUT_NEIGHBORS]


def test_score_nodes__flags_nodes_whose_neighbours_were_drawn(random_csr):
    indptr, indices = random_csr(50, 200)
    index = edge_index(indptr, indices, max_neighbors=4)
    flags = nodes.score_nodes(index, random_hops(index), trim=0.0).flags
    assert np.array_equal(flags == nodes.SAMPLED, np.diff(indptr) > 4)


def test_score_nodes__a_draw_is_unbiased(random_csr):
    csr = random_csr(30, 200, seed=4)
    hops = random_hops(edge_index(*csr))
    exact = nodes.score_nodes(edge_index(*csr), hops, trim=0.0).ahp
    drawn = [nodes.score_nodes(edge_index(*csr, max_neighbors=3, seed=s), hops, trim=0.0).ahp for s in range(400)]
    error = np.mean(drawn, 0) - exact
    assert np.all(abs(error) < 5 * np.std(drawn, 0) / np.sqrt(400) + 1e-9)


def test_score_nodes__does_not_depend_on_threads(random_csr):
    index = edge_index(*random_csr(900, 5000))
    hops = random_hops(index)
    many = nodes.score_nodes(index, hops, trim=0.2)
    try:
        numba.set_num_threads(1)
        one = nodes.score_nodes(index, hops, trim=0.2)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert np.array_equal(one.ahp, many.ahp)
    assert np.array_equal(one.iv, many.iv)


def test_score_nodes__hav_without_variance_is_normalised_ahp(random_csr):
    index = edge_index(*random_csr(20, 50))
    hops = random_hops(index)._replace(var=np.zeros(index.num_edges, np.float32))
    scores = nodes.score_nodes(index, hops, trim=0.0)
    assert np.array_equal(scores.hav, scores.ahp / scores.ahp.max())


def test_score_nodes__refuses_bad_input(random_csr):
    index = edge_index(*random_csr(20, 50))
    with pytest.raises(ValueError, match="the edges' mean has shape"):
        nodes.score_nodes(index, EdgeHops(np.zeros(3, np.float32), np.zeros(3, np.float32)), trim=0.0)


def scores_of(closure, flags=None) -> nodes.NodeScores:
    flags = np.zeros(len(closure), np.uint8) if flags is None else np.asarray(flags, np.uint8)
    numbers = ("ahp", "iv", "hav", "strange", "context", "context_closure", "residual", "cohesion", "score")
    nothing = dict.fromkeys(numbers, np.zeros(len(closure)))
    degree = np.full(len(closure), 10)
    return nodes.NodeScores(**nothing, closure=np.asarray(closure, float), degree=degree, flags=flags)


def standard(values):
    return (values - values.mean()) / values.std()


def test_with_strange__adds_the_z_scores_of_all_views_and_closure_and_starts_at_zero():
    a, b = np.array([1.0, 2.0, 4.0, 3.0]), np.array([10.0, 30.0, 20.0, 5.0])
    closure = np.array([0.0, 1.0, 0.0, 3.0])
    scores, usual = nodes.with_strange(scores_of(closure), [a, b])
    wanted = standard(standard(a) + standard(b)) + standard(closure)
    np.testing.assert_allclose(scores.strange, wanted - wanted.min(), atol=1e-12)
    again, _ = nodes.with_strange(scores_of(closure), [a, b], usual)
    np.testing.assert_array_equal(again.strange, scores.strange)
    moved, _ = nodes.with_strange(scores_of(closure), [a + 1, b], usual)
    assert np.all(moved.strange > scores.strange), "by the measure of another graph"


def test_with_strange__unscored_nodes_stay_at_zero_and_out_of_the_statistics():
    flags = [0, 0, 0, nodes.ISOLATED]
    views = [np.array([1.0, 2.0, 4.0, 0.0]), np.array([3.0, 1.0, 2.0, 0.0])]
    with_isolated, _ = nodes.with_strange(scores_of(np.zeros(4), flags), views)
    without, _ = nodes.with_strange(scores_of(np.zeros(3)), [view[:3] for view in views])
    assert with_isolated.strange[3] == 0
    np.testing.assert_allclose(with_isolated.strange[:3], without.strange)


def test_with_strange__flat_views_do_not_divide_by_zero():
    flat = [np.full(3, 2.0), np.full(3, 5.0)]
    assert not nodes.with_strange(scores_of(np.zeros(3)), flat)[0].strange.any()
    assert not nodes.with_strange(scores_of(np.zeros(2), [nodes.ISOLATED, nodes.ISOLATED]), flat[:0])[0].strange.any()


def slow_zscale(values, scored):
    """Means, spreads, the least sum and the shifted sums of z-scores, in plain numpy."""
    known = [value[scored] for value in values]
    means, spreads = [value.mean() for value in known], [value.std() for value in known]
    total = np.zeros(len(known[0]))
    for value, mean, spread in zip(known, means, spreads, strict=True):
        if spread > 0:
            total += (value - mean) / spread
    out = np.zeros(len(scored))
    out[scored] = total - total.min()
    return means, spreads, total.min(), out


@pytest.mark.parametrize("share", [1.0, 0.99, 0.2])
@pytest.mark.parametrize("size", [1, 7, 130, 5_000, (1 << 18) + 1, 700_001])  # the last ones are summed in pieces
def test_with_strange__equals_numpy_at_any_number_of_threads(size, share, monkeypatch):
    rng = np.random.default_rng(size)
    views = [rng.gamma(2.0, size=size), rng.exponential(size=size).round(1) - 3.0, np.full(size, 0.5)]
    scored = rng.random(size) < share
    scored[size // 2] = True
    scores, made = scores_of(rng.exponential(size=size).round(2), np.where(scored, 0, nodes.ISOLATED)), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        found, scale = nodes.with_strange(scores, views)
        made.append(
            (scale.views.means.tolist(), scale.views.spreads.tolist(), scale.views.least, found.strange.tolist())
        )
    assert made[0] == made[1] == made[2]
    means, spreads, least, hop = slow_zscale(views, scored)
    np.testing.assert_allclose(scale.views.means, means, rtol=1e-13)
    np.testing.assert_allclose(scale.views.spreads, spreads, rtol=1e-13, atol=1e-13)
    if size <= 5_000:
        assert made[0][:3] == (means, spreads, least)
    np.testing.assert_allclose(found.strange, slow_zscale([hop, scores.closure], scored)[3], atol=1e-10)


@pytest.mark.parametrize("size", [0, 5])
def test_with_strange__of_nobody_scored_is_zero(size):
    scores, scale = nodes.with_strange(scores_of(np.arange(size) * 1.0, np.full(size, nodes.ISOLATED)), [np.ones(size)])
    assert scores.strange.tolist() == [0.0] * size
    assert str(scale.both) == str(scale.both._replace(means=np.zeros(2), spreads=np.zeros(2), least=0.0))


def test_stability__is_the_share_of_first_nodes_that_stay_with_either_encoder():
    numbers = np.arange(40.0)
    hop_alone = weigh_evidence(KindNumbers({"hop": numbers}, np.ones(40, bool))).score
    scores = replace(scores_of(np.zeros(40)), ahp=numbers, score=hop_alone)
    assert nodes.stability(scores, [numbers], "score") is None
    assert nodes.stability(scores, [numbers, numbers], "score") == 1.0
    other = numbers.copy()
    other[[38, 0]] = other[[0, 38]]
    assert nodes.stability(scores, [numbers, other], "score") == 0.75
    assert nodes.stability(scores, [numbers, other], "ahp") == 0.75
    sure = replace(scores, score=scores.score + 100 * (numbers >= 36))
    assert nodes.stability(sure, [numbers, other], "score") == 1.0, "other evidence holds them"


def test_with_closure__adds_two_z_scores_and_keeps_the_rest(random_csr):
    index = edge_index(*random_csr(60, 300, seed=4))
    hops = random_hops(index)
    plain = nodes.score_nodes(index, hops, trim=0.0)
    scores, _ = nodes.with_strange(nodes.with_closure(plain, index, hops.mean, far_cut(hops.mean, 0.5), np.ones(60)))
    assert not plain.closure.any()
    assert scores.closure.any()
    expected = sum((part - part.mean()) / part.std() for part in (scores.ahp, scores.closure))
    linked = index.indptr[1:] > index.indptr[:-1]
    assert linked.all()
    np.testing.assert_allclose(scores.strange, expected - expected.min(), atol=1e-9)
    assert np.array_equal(scores.ahp, plain.ahp)


def test_with_closure__leaves_a_directed_graph_alone(random_csr):
    index = edge_index(*random_csr(30, 100, directed=True), directed=True)
    plain = nodes.score_nodes(index, random_hops(index), trim=0.0)
    mean = random_hops(index).mean
    assert nodes.with_closure(plain, index, mean, far_cut(mean, 0.5), np.zeros(30)) is plain
    assert np.all(np.diff(nodes.with_strange(plain)[0].strange[np.argsort(plain.ahp)]) >= 0)


def test_with_closure__scores_nodes_that_drew_their_neighbours_too(random_csr):
    edges = edge_index(*random_csr(60, 400), max_neighbors=3)
    mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
    plain = nodes.score_nodes(edges, EdgeHops(mean, mean), trim=0.0)
    scores = nodes.with_closure(plain, edges, mean, far_cut(mean, 0.4), np.zeros(60))
    assert np.count_nonzero(nodes.with_strange(scores)[0].strange == 0) == 1


def test_attribute_scores__of_hubs_are_those_of_usual_nodes():
    """A skewed graph whose attributes follow the edges: p of its hubs was .13 by far triangles per neighbour."""
    graph = rmat(14, edge_factor=16)
    joined = sparse.csr_array((np.ones(graph.num_arcs, np.float32), graph.indices, graph.indptr))
    around = graph.x
    for _ in range(2):
        around = (around + joined @ around / np.maximum(graph.degrees, 1)[:, None]) / 2
    smooth = (graph.x + around / around.std(axis=0)).astype(np.float32)
    distance = 1 - edge_similarity(graph.indptr, graph.indices, smooth, "cosine")
    found, _ = nodes.attribute_scores(edge_index(graph.indptr, graph.indices), smooth, distance, 0.4)
    of_kind = {"context": found.context, "context_closure": found.context_closure, "attributes": found.residual}
    numbers = KindNumbers(of_kind, graph.degrees > 0, nodes.mean_degree(graph.degrees), found.trust)
    verdict = judge(weigh_evidence(numbers).sums, 0.1)
    assert not verdict.flagged.any()
    assert np.median(verdict.p[np.argsort(-graph.degrees)[:100]]) > 0.2
