"""Claims about injection: what the method says, nothing more changed, and it works on real and large graphs."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import io, sparse

from hcm_scale.graph import Graph, SparseRows
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import ATTRIBUTE, STRUCTURAL
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import draw_others, inject


def arcs(indptr, indices) -> set[tuple[int, int]]:
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return set(zip(rows.tolist(), indices.tolist(), strict=True))


def a_graph(sparse_rows: bool = False) -> Graph:
    graph = synthetic.community(800, num_attributes=6, num_communities=4, seed=3)
    if not sparse_rows:
        return graph
    counts = np.maximum(np.rint(graph.x), 0)
    return Graph(graph.indptr, graph.indices, x=SparseRows.of(sparse.csr_array(counts)), columns=graph.columns)


@given(st.integers(2, 30), st.integers(1, 29), st.integers(0, 1000))
def test_draw_others__gives_distinct_other_nodes(num_nodes, k, seed):
    k = min(k, num_nodes - 1)
    nodes = np.arange(num_nodes)
    drawn = draw_others(nodes, num_nodes, k, np.random.default_rng(seed))
    for node, row in zip(nodes, drawn, strict=True):
        assert len(set(row)) == k
        assert node not in row
        assert 0 <= row.min() <= row.max() < num_nodes


def test_draw_others__is_uniform():
    drawn = draw_others(np.full(30_000, 2), 6, 3, np.random.default_rng(0))
    np.testing.assert_allclose(
        np.bincount(drawn.ravel(), minlength=6) / 30_000, [0.6, 0.6, 0, 0.6, 0.6, 0.6], atol=0.02
    )


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_inject__takes_the_attributes_of_the_farthest_candidate(sparse_rows):
    graph = a_graph(sparse_rows)
    result = inject(graph, num_cliques=0, candidates=799, num_attribute_anomalies=40, seed=2)
    before, after = (g.x.csr().toarray() if sparse_rows else g.x for g in (graph, result))
    for node in np.flatnonzero(result.kind == ATTRIBUTE):
        distances = np.linalg.norm(before.astype(np.float64) - before[node], axis=1)
        taken = np.linalg.norm(after[node].astype(np.float64) - before[node])
        assert taken == pytest.approx(distances.max(), rel=1e-12)


def test_inject__tells_large_values_apart():
    x = np.array([[5e7], [5e7 + 4], [5e7 + 8]], np.float32)
    graph = Graph(np.zeros(4, np.int64), np.zeros(0, np.int32), x=x)
    result = inject(graph, num_cliques=0, candidates=2, num_attribute_anomalies=3)
    assert result.x.ravel().tolist() == [5e7 + 8, result.x[1, 0], 5e7]


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_inject__changes_what_the_method_says_and_nothing_else(sparse_rows):
    graph = a_graph(sparse_rows)
    result = inject(graph, num_cliques=4, clique_size=6, candidates=10, seed=1, num_attribute_anomalies=None)
    assert np.bincount(result.kind).tolist() == [800 - 48, 24, 24]
    np.testing.assert_array_equal(result.y, result.kind > 0)
    old, new = arcs(graph.indptr, graph.indices), arcs(result.indptr, result.indices)
    assert old <= new
    structural = set(np.flatnonzero(result.kind == STRUCTURAL).tolist())
    assert {node for arc in new - old for node in arc} <= structural
    before, after = (g.x.csr().toarray() if sparse_rows else g.x for g in (graph, result))
    changed = np.flatnonzero((before != after).any(axis=1))
    assert set(changed) <= set(np.flatnonzero(result.kind == ATTRIBUTE))
    for node in np.flatnonzero(result.kind == ATTRIBUTE):
        assert (before == after[node]).all(axis=1).any()
    assert result.columns == graph.columns
    assert isinstance(result.x, SparseRows) == sparse_rows


def test_inject__makes_cliques_of_the_size_asked_for():
    empty = Graph(np.zeros(101, np.int64), np.zeros(0, np.int32))
    result = inject(empty, num_cliques=3, clique_size=5, num_attribute_anomalies=0, seed=2)
    assert np.unique(result.degrees, return_counts=True)[1].tolist() == [85, 15]
    matrix = sparse.csr_array((np.ones(result.num_arcs), result.indices, result.indptr), shape=(100, 100))
    num_parts, part = sparse.csgraph.connected_components(matrix)
    assert num_parts == 85 + 3
    assert sorted(np.bincount(part))[-3:] == [5, 5, 5]
    assert np.all(np.diff(np.repeat(np.arange(100), result.degrees) * 100 + result.indices) > 0)


def test_inject__keeps_edges_that_exist_within_a_clique():
    triangle = Graph(np.array([0, 1, 2, 2]), np.array([1, 0], np.int32))
    result = inject(triangle, num_cliques=1, clique_size=3, num_attribute_anomalies=0)
    assert result.indices.tolist() == [1, 2, 0, 2, 0, 1]
    assert result.info["injected"]["num_edges_added"] == 2


def test_inject__copies_original_attributes_even_from_changed_nodes():
    """On three nodes at 0, 1 and 10 all are changed, each to the farthest of all others' original values."""
    graph = Graph(np.zeros(4, np.int64), np.zeros(0, np.int32), x=np.array([[0], [1], [10]], np.float32))
    result = inject(graph, num_cliques=0, num_attribute_anomalies=3)
    assert result.x.ravel().tolist() == [10, 10, 0]


def test_inject__joins_both_ways_on_a_directed_graph(random_csr):
    indptr, indices = random_csr(60, 150, seed=1, directed=True)
    result = inject(
        Graph(indptr, indices, directed=True), num_cliques=2, clique_size=4, num_attribute_anomalies=0, seed=3
    )
    joined = arcs(result.indptr, result.indices)
    added = joined - arcs(indptr, indices)
    assert len(added) == result.info["injected"]["num_edges_added"] > 0
    assert {(v, u) for u, v in added} <= joined


def test_inject__is_a_function_of_its_seed_and_keeps_ids():
    graph = a_graph()
    graph = Graph(graph.indptr, graph.indices, x=graph.x, ids=pa.array([f"n{i}" for i in range(800)]))
    first, again, other = (inject(graph, num_cliques=2, seed=seed, num_attribute_anomalies=None) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.external_id(5) == "n5"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_cliques": -1}, "num_cliques=-1"),
        ({"num_cliques": 1, "clique_size": 1}, "clique_size=1"),
        ({"num_cliques": 30}, r"inject\.num_cliques \* inject\.clique_size"),
        ({"num_cliques": 0, "num_attribute_anomalies": -3}, "num_attribute_anomalies=-3"),
        ({"num_cliques": 0, "num_attribute_anomalies": 801}, "num_attribute_anomalies=801"),
    ],
)
def test_inject__refuses_bad_settings_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        inject(a_graph(), **{"num_attribute_anomalies": None, **settings})


def test_inject__refuses_attributes_of_others_where_there_are_none():
    alone = Graph(np.zeros(2, np.int64), np.zeros(0, np.int32), x=np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match=r"inject\.num_attribute_anomalies=1 .* on 1 nodes it runs from 0 to 0"):
        inject(alone, num_cliques=0, num_attribute_anomalies=1)


def test_inject__refuses_labels_and_missing_attributes():
    labelled = inject(a_graph(), num_cliques=1, num_attribute_anomalies=None)
    with pytest.raises(ValueError, match="this graph has labels"):
        inject(labelled, num_cliques=1, num_attribute_anomalies=None)
    bare = Graph(labelled.indptr, labelled.indices)
    with pytest.raises(ValueError, match="needs attributes"):
        inject(bare, num_cliques=1, num_attribute_anomalies=None)


def test_inject__works_on_a_mapped_graph(tmp_path):
    graph = a_graph()
    mapped = inject(graph.save(tmp_path / "g"), num_cliques=2, seed=1, num_attribute_anomalies=None)
    assert mapped.fingerprint == inject(graph, num_cliques=2, seed=1, num_attribute_anomalies=None).fingerprint


@pytest.mark.parametrize(("name", "num_cliques"), [("BlogCatalog.mat", 10), ("Flickr.mat", 15)])
def test_inject__on_real_attributes_picks_far_rows(real_data, name, num_cliques):
    content = io.loadmat(real_data(name))
    network = sparse.csr_array(content["Network"])
    x = SparseRows.of(content["Attributes"])
    graph = Graph(network.indptr.astype(np.int64), network.indices.astype(np.int32), x=x)
    result = inject(graph, num_cliques=num_cliques, seed=0, num_attribute_anomalies=None)
    assert np.bincount(result.kind)[1:].tolist() == [15 * num_cliques] * 2
    assert 0 < result.num_edges - graph.num_edges <= num_cliques * 105
    sizes = np.diff(result.x.indptr)
    assert sizes[result.kind == ATTRIBUTE].mean() > 1.2 * sizes[result.kind == 0].mean()


def test_inject__works_on_a_million_nodes(real_data):
    with np.load(real_data("debian_files_arm64.npz"), allow_pickle=False) as content:
        x = SparseRows(content["x_indptr"], content["x_indices"], content["x_data"], int(content["x_shape"][1]))
        graph = Graph(content["indptr"], content["indices"], x=x)
    result = inject(graph, num_cliques=100, seed=0, num_attribute_anomalies=None)
    assert result.y.sum() == 3000
    assert result.x.shape == x.shape


def test_find_arcs__equals_set_membership(random_csr):
    csr = random_csr(40, 120, seed=2)
    u, v = np.divmod(np.arange(1600), 40)
    present = arcs(*csr)
    assert find_arcs(*csr, u, v)[1].tolist() == [(a, b) in present for a, b in zip(u.tolist(), v.tolist(), strict=True)]
    assert find_arcs(*csr, [], [])[1].tolist() == []


def test_find_arcs__equals_searchsorted_in_the_row(random_csr):
    indptr, indices = random_csr(30, 90, seed=4)
    u, v = np.divmod(np.arange(900), 30)
    expected = [indptr[a] + np.searchsorted(indices[indptr[a] : indptr[a + 1]], b) for a, b in zip(u, v, strict=True)]
    assert find_arcs(indptr, indices, u, v)[0].tolist() == expected
