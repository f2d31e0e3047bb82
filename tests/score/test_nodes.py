"""AHP, IV and HAV against plain loops over neighbours, z-scores against numpy, stability."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from kinds import hops_of, inputs_of, plain_scores
from scipy import sparse

from hcm_scale.score import nodes
from hcm_scale.score.calibration import ZScale
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KindNumbers, weigh_evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.kinds.closure import strange
from hcm_scale.score.kinds.inputs import NodeHops
from hcm_scale.score.kinds.kind import Facts
from hcm_scale.score.threshold import judge
from hcm_scale.synthetic.families import rmat


def random_hops(index, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    mean = rng.integers(1, 4, index.num_edges) if ties else rng.uniform(1, 4, index.num_edges)
    return EdgeHops(mean.astype(np.float32), rng.uniform(0, 1, index.num_edges).astype(np.float32))


def score_nodes(index, hops, trim=0.0):
    """AHP, IV, HAV, closure, strange, degrees and flags."""
    inputs = inputs_of(index, hops=hops_of(index, hops.mean, hops.var, trim), far_share=0.5)
    numbers = nodes.make_numbers([KINDS["hop"], KINDS["closure"]], inputs)
    degree, flags = nodes.degrees_and_flags(index)
    return SimpleNamespace(**numbers, degree=degree, flags=flags)


def slow_nodes(index, hops, trim=0.0):
    """The slow twin: for each node the nearest share of its edges, two averages."""
    ahp, iv = np.zeros(index.num_nodes), np.zeros(index.num_nodes)
    for v in range(index.num_nodes):
        edges = index.of_node(v).tolist()
        edges = sorted(edges, key=lambda e: hops.mean[e]) if trim else edges
        edges = edges[: max(1, math.ceil(round((1 - trim) * len(edges), 6)))]
        if edges:
            ahp[v], iv[v] = hops.mean[edges].mean(dtype=np.float64), hops.var[edges].mean(dtype=np.float64)
    return ahp, iv


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.7, 0.99])
@pytest.mark.parametrize("ties", [False, True])
def test_score_nodes__equals_the_slow_twin(random_csr, directed, trim, ties):
    index = edge_index(*random_csr(70, 250, directed=directed), directed=directed)
    hops = random_hops(index, ties=ties)
    scores = score_nodes(index, hops, trim=trim)
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
        assert score_nodes(index, hops, trim=trim).ahp[0] == np.arange(1, size + 1).mean()


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
    scores = score_nodes(index, hops, trim=trim)
    ahp, iv = slow_nodes(index, hops, trim)
    np.testing.assert_allclose(scores.ahp, ahp, rtol=1e-12)
    np.testing.assert_allclose(scores.iv, iv, rtol=1e-12)


def test_score_nodes__equal_hops_at_the_cut_are_taken_in_order():
    index = edge_index(*hub_csr(5, num_pairs=0))
    var = np.array([1, 2, 4, 8, 16], np.float32)
    for mean, kept in {(3, 2, 2, 2, 1): 2 + 4 + 16, (2, 2, 2, 2, 2): 1 + 2 + 4, (1, 2, 1, 2, 1): 1 + 4 + 16}.items():
        scores = score_nodes(index, EdgeHops(np.array(mean, np.float32), var), trim=0.4)
        assert scores.iv[0] == kept / 3


@pytest.mark.parametrize("sign", [1, -1])  # which one 0 * inf makes depends on the processor
def test_score_nodes__a_hop_that_is_no_number_is_the_farthest(sign):
    index = edge_index(*hub_csr(5, num_pairs=0))
    mean = np.array([4, math.copysign(math.nan, sign), 3, 2, 1], np.float32)
    trimmed, whole = (score_nodes(index, EdgeHops(mean, mean), trim=trim) for trim in (0.2, 0.0))
    assert trimmed.ahp[0] == trimmed.iv[0] == 10 / 4
    assert np.isnan(whole.ahp[0])
    assert np.isnan(whole.iv[0])
    assert np.isnan(trimmed.ahp[2])  # the leaf has no other neighbour


def test_score_nodes__nodes_without_neighbours_score_zero_and_are_flagged():
    index = edge_index(np.array([0, 1, 2, 2]), np.array([1, 0], np.int32))
    scores = score_nodes(index, EdgeHops(np.array([2], np.float32), np.array([0.5], np.float32)), trim=0.0)
    assert [scores.ahp[2], scores.iv[2], scores.hav[2]] == [0, 0, 0]
    assert scores.flags.tolist() == [0, 0, nodes.ISOLATED]
    assert scores.degree.tolist() == [1, 1, 0]


def test_score_nodes__directed_nodes_without_out_neighbours_are_flagged():
    index = edge_index(np.array([0, 1, 1]), np.array([1], np.int32), directed=True)
    scores = score_nodes(index, EdgeHops(np.array([2], np.float32), np.array([0.5], np.float32)), trim=0.0)
    assert scores.ahp.tolist() == [2, 0]
    assert scores.flags.tolist() == [0, nodes.NO_OUT_NEIGHBORS]


def test_score_nodes__does_not_depend_on_threads(random_csr):
    index = edge_index(*random_csr(900, 5000))
    hops = random_hops(index)
    many = score_nodes(index, hops, trim=0.2)
    try:
        numba.set_num_threads(1)
        one = score_nodes(index, hops, trim=0.2)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert np.array_equal(one.ahp, many.ahp)
    assert np.array_equal(one.iv, many.iv)


def test_score_nodes__hav_without_variance_is_normalised_ahp(random_csr):
    index = edge_index(*random_csr(20, 50))
    hops = random_hops(index)._replace(var=np.zeros(index.num_edges, np.float32))
    scores = score_nodes(index, hops, trim=0.0)
    assert np.array_equal(scores.hav, scores.ahp / scores.ahp.max())


def strange_of(closure, views=(), scored=None, reference=None):
    """`strange` of nodes by the AHP of each view and their closure, and what it is measured by."""
    scored = np.ones(len(closure), bool) if scored is None else np.asarray(scored, bool)
    indptr = np.concatenate([[0], np.cumsum(scored)]).astype(np.int64)
    ahp = views[0] if len(views) else np.zeros(len(closure))
    hops = NodeHops(np.zeros(0, np.float32), ahp, ahp, views)
    inputs = inputs_of(
        edge_index(indptr, np.zeros(indptr[-1], np.int32), directed=True), hops=hops, reference=reference
    )
    return strange(inputs, np.asarray(closure, float)), inputs.scale


def standard(values):
    return (values - values.mean()) / values.std()


def test_strange__adds_the_z_scores_of_all_views_and_closure_and_starts_at_zero():
    a, b = np.array([1.0, 2.0, 4.0, 3.0]), np.array([10.0, 30.0, 20.0, 5.0])
    closure = np.array([0.0, 1.0, 0.0, 3.0])
    found, scale = strange_of(closure, [a, b])
    wanted = standard(standard(a) + standard(b)) + standard(closure)
    np.testing.assert_allclose(found, wanted - wanted.min(), atol=1e-12)
    np.testing.assert_array_equal(strange_of(closure, [a, b], reference=scale)[0], found)
    assert np.all(strange_of(closure, [a + 1, b], reference=scale)[0] > found), "by the measure of another graph"


def test_strange__unscored_nodes_stay_at_zero_and_out_of_the_statistics():
    views = [np.array([1.0, 2.0, 4.0, 0.0]), np.array([3.0, 1.0, 2.0, 0.0])]
    with_isolated, _ = strange_of(np.zeros(4), views, [True, True, True, False])
    assert with_isolated[3] == 0
    np.testing.assert_allclose(with_isolated[:3], strange_of(np.zeros(3), [view[:3] for view in views])[0])


def test_strange__flat_views_do_not_divide_by_zero():
    flat = [np.full(3, 2.0), np.full(3, 5.0)]
    assert not strange_of(np.zeros(3), flat)[0].any()
    assert not strange_of(np.zeros(2), scored=[False, False])[0].any()


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
def test_strange__equals_numpy_at_any_number_of_threads(size, share, monkeypatch):
    rng = np.random.default_rng(size)
    views = [rng.gamma(2.0, size=size), rng.exponential(size=size).round(1) - 3.0, np.full(size, 0.5)]
    scored = rng.random(size) < share
    scored[size // 2] = True
    closure, made = rng.exponential(size=size).round(2), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        found, scale = strange_of(closure, views, scored)
        made.append((scale["views"].tolist(), found.tolist()))
    assert made[0] == made[1] == made[2]
    means, spreads, least, hop = slow_zscale(views, scored)
    of_views = ZScale.unpacked(scale["views"])
    np.testing.assert_allclose(of_views.means, means, rtol=1e-13)
    np.testing.assert_allclose(of_views.spreads, spreads, rtol=1e-13, atol=1e-13)
    if size <= 5_000:
        assert made[0][0] == [*means, *spreads, least]
    np.testing.assert_allclose(found, slow_zscale([hop, closure], scored)[3], atol=1e-10)


@pytest.mark.parametrize("size", [0, 5])
def test_strange__of_nobody_scored_is_zero(size):
    found, scale = strange_of(np.arange(size) * 1.0, [np.ones(size)], np.zeros(size, bool))
    assert found.tolist() == [0.0] * size
    assert scale["both"].tolist() == [0.0] * 5


def stability(scores, views, rank_by="score", reference=None):
    inputs = inputs_of(edge_index(np.zeros(len(scores.degree) + 1, np.int64), np.zeros(0, np.int32)))
    inputs.hops = NodeHops(np.zeros(0, np.float32), views[0], views[0], views)
    return nodes.stability(scores, inputs, rank_by, reference)


def test_stability__is_the_share_of_first_nodes_that_stay_with_either_encoder():
    numbers = np.arange(40.0)
    scores = nodes.with_score(plain_scores({"ahp": numbers}))
    assert stability(scores, [numbers]) is None
    assert stability(scores, [numbers, numbers]) == 1.0
    other = numbers.copy()
    other[[38, 0]] = other[[0, 38]]
    assert stability(scores, [numbers, other]) == 0.75
    assert stability(scores, [numbers, other], "ahp") == 0.75
    sure = replace(scores, score=scores.score + 100 * (numbers >= 36))
    assert stability(sure, [numbers, other]) == 1.0, "other evidence holds them"


@pytest.mark.parametrize("has_types", [False, True])
def test_stability__of_another_graph_is_measured_by_the_reference(has_types):
    """Most of today's nodes are beyond all that the reference has: by today's own gains other nodes would be first."""
    from hcm_scale.graph.store import NodeTypes

    rng = np.random.default_rng(0)
    usual, ahp = rng.normal(size=600), rng.normal(6.0, 3.0, 600)
    residual = rng.exponential(3.0, 600)
    reference = plain_scores({"ahp": usual, "residual": rng.exponential(size=600)})
    today = plain_scores({"ahp": ahp, "residual": residual})
    if has_types:
        types, groups = NodeTypes.of(["a"] * 300 + ["b"] * 300), {"a": 0, "b": 1, None: 0}
        reference, today = (replace(each, types=types, groups=groups) for each in (reference, today))
    views = [ahp + rng.normal(size=600), ahp + rng.normal(size=600)]
    firsts = []
    for view in views:
        changed = replace(today, numbers={**today.numbers, "ahp": view})
        score = nodes.with_score(changed, reference).score
        firsts.append(np.argsort(-score, kind="stable")[:60])
    wanted = len(np.intersect1d(*firsts)) / 60
    scores = nodes.with_score(today, reference)
    assert stability(scores, views, reference=reference) == wanted


def test_stability__says_nothing_where_far_more_than_the_first_nodes_tie_at_the_top():
    """A twentieth of the nodes are alike by all kinds: any hundred of them are the first."""
    rng = np.random.default_rng(0)
    top = np.arange(40_000) < 2_000
    numbers = {kind.column: np.where(top, 1e6, rng.normal(size=40_000)) for kind in KINDS.values()}
    views = [np.where(top, 1e6 + rng.normal(size=40_000), numbers["ahp"]) for _ in range(2)]
    scores = nodes.with_score(plain_scores(numbers))
    assert stability(scores, views) is None
    assert stability(scores, [numbers["ahp"]] * 2) is None


def test_closure__adds_two_z_scores(random_csr):
    index = edge_index(*random_csr(60, 300, seed=4))
    scores = score_nodes(index, random_hops(index))
    assert scores.closure.any()
    expected = sum((part - part.mean()) / part.std() for part in (scores.ahp, scores.closure))
    assert (np.diff(index.indptr) > 0).all()
    np.testing.assert_allclose(scores.strange, expected - expected.min(), atol=1e-9)


def test_closure__of_a_directed_graph_is_zero(random_csr):
    index = edge_index(*random_csr(30, 100, directed=True), directed=True)
    scores = score_nodes(index, random_hops(index))
    assert not scores.closure.any()
    assert np.all(np.diff(scores.strange[np.argsort(scores.ahp)]) >= 0)


def test_numbers__of_hubs_are_those_of_usual_nodes():
    """A skewed graph whose attributes follow the edges: p of its hubs was .13 by far triangles per neighbour."""
    graph = rmat(14, edge_factor=16)
    joined = sparse.csr_array((np.ones(graph.num_arcs, np.float32), graph.indices, graph.indptr))
    around = graph.x
    for _ in range(2):
        around = (around + joined @ around / np.maximum(graph.degrees, 1)[:, None]) / 2
    smooth = (graph.x + around / around.std(axis=0)).astype(np.float32)
    inputs = inputs_of(edge_index(graph.indptr, graph.indices), smooth)
    kinds = [KINDS[name] for name in ("context", "context_closure", "attributes")]
    numbers = nodes.make_numbers(kinds, inputs)
    of_kind = {kind: numbers[kind.column] for kind in kinds}
    facts = Facts(nodes.mean_degree(graph.degrees), inputs.trust)
    verdict = judge(weigh_evidence(KindNumbers(of_kind, graph.degrees > 0, facts)).sums, 0.1)
    assert not verdict.flagged.any()
    assert np.median(verdict.p[np.argsort(-graph.degrees)[:100]]) > 0.2
