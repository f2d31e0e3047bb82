"""Kinds of evidence kept apart: places, the strongest kind, and their way through the table."""

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.base.order import double_places, num_known
from hcm_scale.graph.store import Graph
from hcm_scale.score.calibration import context_scale
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KINDS, OF_NEIGHBORS, ranks_of, strongest, surprise, weigh_evidence
from hcm_scale.score.nodes import NodeScores, attribute_scores, score_nodes, with_attributes, with_closure
from hcm_scale.score.table import kind_rank, node_scores, row_groups


def scores_table(graph, scores, rank_by):
    return pa.concat_tables(make() for make in row_groups(graph, scores, rank_by))


def middle_ranks(values, known=None):
    return ranks_of(double_places(values, known), num_known(values, known))


def numbers_of(num_nodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers with many ties."""
    rng = np.random.default_rng(seed)
    return {kind: rng.integers(0, 1 + num_nodes // 3, num_nodes).astype(float) for kind in KINDS}


def slow_place(values: np.ndarray, value: float) -> int:
    """The middle of the places that equal values hold, by counting."""
    above, equal = int(np.sum(values > value)), int(np.sum(values == value))
    return (2 * above + 1 + equal) // 2


def scored(num_nodes: int = 80, lonely: int = 5) -> tuple[Graph, NodeScores]:
    """A random graph with attributes whose last nodes have no neighbours."""
    rng = np.random.default_rng(3)
    joined = np.triu(rng.random((num_nodes, num_nodes)) < 0.15, 1)
    joined[-lonely:], joined[:, -lonely:] = False, False
    rows, columns = np.nonzero(joined | joined.T)
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=num_nodes))].astype(np.int64)
    graph = Graph(indptr, columns.astype(np.int32), x=rng.normal(size=(num_nodes, 4)).astype(np.float32))
    edges = edge_index(graph.indptr, graph.indices)
    mean, far = (rng.random(edges.num_edges).astype(np.float32) + 1 for _ in range(2))
    scores = score_nodes(edges, EdgeHops(mean, np.zeros_like(mean)), trim=0.0)
    scores = with_closure(scores, edges, mean, far_cut(mean, 0.4))
    assert graph.x is not None
    scale = context_scale(edges, graph.x, far - 1, 0.4)
    return graph, with_attributes(scores, attribute_scores(edges, graph.x, far - 1, scale))


@pytest.mark.parametrize("num_nodes", [1, 2, 7, 60])
def test_weigh__places_are_those_of_counting(num_nodes: int):
    numbers = numbers_of(num_nodes)
    has = np.random.default_rng(1).random(num_nodes) < 0.7
    found = weigh_evidence(numbers, has)
    for kind, places in zip(KINDS, found.places, strict=True):
        known = has if kind in OF_NEIGHBORS else np.ones(num_nodes, bool)
        ranked = numbers[kind][known]
        for node in range(num_nodes):
            middle = max(1, (len(ranked) + 1) // 2)
            assert places[node] == (slow_place(ranked, numbers[kind][node]) if known[node] else middle)


def test_weigh__four_bytes_a_node_and_kind():
    found = weigh_evidence(numbers_of(60), np.ones(60, bool)).places
    assert (found.dtype, found.shape) == (np.int32, (5, 60))


def test_places__of_nobody_known_are_the_middle():
    assert middle_ranks(np.zeros(3), np.zeros(3, bool)).tolist() == [0.5, 0.5, 0.5]
    assert double_places(np.zeros(0)).tolist() == []


def test_strongest__is_the_kind_with_the_largest_surprise():
    numbers, has = numbers_of(60), np.arange(60) % 4 > 0
    found = strongest(weigh_evidence(numbers, has).places, has)
    told = [surprise(middle_ranks(v, has if k in OF_NEIGHBORS else None)) for k, v in numbers.items()]
    for node in np.flatnonzero(has):  # places are rounded by half a place, of sixty
        assert told[found[node]][node] == pytest.approx(max(t[node] for t in told), abs=0.1)
    assert set(found[~has].tolist()) == {list(KINDS).index("attributes")}


def test_table__keeps_the_kinds_apart_and_gives_them_back():
    graph, scores = scored()
    table = scores_table(graph, scores, rank_by="score")
    back = node_scores(table)
    assert scores.places is not None
    assert np.array_equal(back.places, scores.places)
    assert np.array_equal(back.score, scores.score)
    for kind, column in KINDS.items():
        places, numbers = table[kind_rank(kind)].to_numpy(), table[column].to_numpy()
        order = np.lexsort((table["node"].to_numpy(), -numbers))
        ranked = order[np.isin(table["degree"].to_numpy()[order], 0, invert=True) | (kind == "attributes")]
        assert np.all(np.diff(places[ranked]) >= 0), kind
    assert set(table["evidence"].to_pylist()) <= set(KINDS)
    lonely = table["degree"].to_numpy() == 0
    assert set(np.array(table["evidence"].to_pylist())[lonely]) == {"attributes"}


def test_table__orders_equal_scores_by_node_number():
    numbers = weigh_evidence({kind: np.array([1.0, 2.0, 2.0, 1.0]) for kind in KINDS}, np.ones(4, bool))
    nothing, degree = np.zeros(4), np.full(4, 2)
    flags = np.zeros(4, np.uint8)
    scores = NodeScores(*[nothing] * 8, numbers.score, degree, flags, numbers.places)
    graph = Graph(np.arange(0, 10, 2), np.array([1, 3, 0, 2, 1, 3, 0, 2], np.int32))
    table = scores_table(graph, scores, rank_by="score")
    assert table["node"].to_pylist() == [1, 2, 0, 3]
    assert table["hop_rank"].to_pylist() == [1, 1, 3, 3]
