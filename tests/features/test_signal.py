"""The number of components that edges choose, and components of many columns beside an exact decomposition."""

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.features import purify
from hcm_scale.features.components import fit_components
from hcm_scale.features.parts import Rotated
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.synthetic.families import community


def topics(num_topics: int, num_nodes: int = 1_200, num_words: int = 600) -> Graph:
    """Nodes write words of their topic and join nodes of their topic."""
    rng = np.random.default_rng(0)
    topic = rng.integers(0, num_topics, num_nodes)
    words = (topic[:, None] * 7 + rng.integers(0, 7, (num_nodes, 12))) % num_words
    words[:, :4] = rng.integers(0, num_words, (num_nodes, 4))
    x = np.zeros((num_nodes, num_words), np.float32)
    x[np.arange(num_nodes)[:, None], words] = 1.0
    order = np.argsort(topic, kind="stable")
    joined = sparse.coo_array((np.ones(num_nodes - 1), (order[:-1], order[1:])), shape=(num_nodes,) * 2).tocsr()
    joined = (joined + joined.T).tocsr()
    joined.sort_indices()
    return Graph(joined.indptr.astype(np.int64), joined.indices.astype(np.int32), x=SparseRows.of(sparse.csr_array(x)))


def test_trust__is_none_in_noise_whole_where_attributes_follow_edges_and_whole_where_nobody_can_tell():
    graph = community(3_000, num_attributes=5, homophily=0.9, seed=0)
    x, rng = np.asarray(graph.x), np.random.default_rng(0)
    assert purify.attribute_trust(graph.indptr, graph.indices, x) == 1.0
    for _ in range(5):
        noise = rng.standard_normal((3_000, 5)).astype(np.float32)
        assert purify.attribute_trust(graph.indptr, graph.indices, noise) < 0.4
    assert purify.attribute_trust(graph.indptr, graph.indices, rng.permutation(x)) < 0.4
    few = graph.indptr[graph.indptr <= 1_000]
    assert purify.attribute_trust(few, graph.indices[: few[-1]], noise) == 1.0


def test_transform__takes_as_many_components_as_tell_neighbours_from_strangers():
    graph = topics(num_topics=80)
    plain, chosen = (transform(graph.x, scale="auto", ends=ends) for ends in (None, purify.signal_edges(graph)))
    assert plain.x.shape[1] == 20
    assert 20 < chosen.x.shape[1] < 256
    assert purify.attribute_signal(graph, chosen.x) > purify.attribute_signal(graph, plain.x) + 0.01
    signal = chosen.record["signal"]
    assert signal[str(chosen.x.shape[1])] >= max(signal.values()) - 0.002
    assert transform(graph.x, scale="auto", pca=8, ends=purify.signal_edges(graph)).x.shape[1] == 8


def test_transform__keeps_twenty_where_no_number_is_better():
    graph = topics(num_topics=80)
    mixed = SparseRows.of(graph.x.csr()[np.random.default_rng(1).permutation(graph.num_nodes)])
    assert transform(mixed, scale="auto", ends=purify.signal_edges(graph)).x.shape[1] == 20


def test_components__of_many_columns_span_what_the_exact_ones_span():
    rng = np.random.default_rng(0)
    strength = 0.97 ** np.arange(300)
    rows = (rng.standard_normal((800, 300)) * strength) @ rng.standard_normal((300, 2_400)) / 50
    rows[np.abs(rows) < 0.05] = 0.0
    found = fit_components(lambda: [sparse.csr_array(rows.astype(np.float32))], 100)
    _, exact, loadings = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert found.loadings.shape == (2_400, 100)
    np.testing.assert_allclose(found.variances[:50], exact[:50] ** 2 / 799, rtol=1e-3)
    captured = np.linalg.norm(loadings[:50] @ found.loadings, axis=1)
    assert captured == pytest.approx(np.ones(50), abs=0.02)


def test_components__of_few_nodes_and_many_edges_are_tried_on_each_node_once(monkeypatch):
    rng, num_rows = np.random.default_rng(0), []
    graph = community(300, num_attributes=1, edges_per_node=8)
    x = (rng.random((300, 2_000)) < 0.1).astype(np.float32)
    apply = Rotated.apply
    monkeypatch.setattr(Rotated, "apply", lambda part, block: num_rows.append(len(block)) or apply(part, block))
    made = transform(x, scale="auto", ends=purify.signal_edges(graph))
    assert made.record["signal"]
    assert sum(num_rows) == 2 * 300  # the choice, and the features
