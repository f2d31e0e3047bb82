"""What is said of an edge is so, and says what is usual for edges of like degrees."""

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.graph import Graph
from hcm_scale.report import wording
from hcm_scale.report.evidence import Evidence
from hcm_scale.synthetic.families import community
from tests.helpers import small_detector


def edges_of(graph: Graph, hop=None, **more) -> StrangeEdges:
    nodes = np.arange(graph.num_nodes)
    scores = pa.table({"node": nodes, "rank": nodes + 1})
    rng = np.random.default_rng(0)
    hop = (1 + rng.random(graph.num_edges)).astype(np.float32) if hop is None else hop
    x = np.asarray(graph.x, np.float32)
    return StrangeEdges(Evidence.of(graph, None, scores, hop, np.full_like(hop, 0.04), x))


def far_graph() -> tuple[Graph, np.ndarray, int]:
    """A graph whose edge 5 looks far, and whose first end has an odd column."""
    graph = community(1_500, num_attributes=3, num_communities=5, seed=0)
    hop = (1.2 + 0.1 * np.random.default_rng(1).random(graph.num_edges)).astype(np.float32)
    hop[5] = 3.9
    return graph, hop, 5


def test_explain__tells_the_hop_its_spread_and_what_is_usual():
    graph, hop, number = far_graph()
    found = edges_of(graph, hop)
    left, right = (int(end[0]) for end in found.data.ends(np.array([number])))
    about = found.explain(left, right)
    (reason,) = [reason for reason in about.reasons if reason.kind == "hop"]
    assert (reason.value, reason.notable) == (pytest.approx(3.9), True)
    assert reason.usual == pytest.approx(1.25, abs=0.02)
    assert about.std == pytest.approx(0.2)
    said = " ".join(wording.edge_text(about).split())
    assert "Seem far apart: to the model its ends look 3.9 hops apart (± 0.20), and they are one" in said
    assert "where 1.2 is usual for edges between nodes of" in said or "where 1.3 is usual" in said
    for degree in about.degrees:
        low = 1 << degree.bit_length() - 1
        assert f"of {low} to {2 * low - 1} neighbours" in said


def test_explain__names_the_attributes_of_both_ends_that_differ_most():
    graph, hop, number = far_graph()
    left, right = (int(end[0]) for end in edges_of(graph, hop).data.ends(np.array([number])))
    x = np.array(graph.x)
    x[left], x[right] = [9, 0.5, 0], [-9, 0.5, 0]
    graph = Graph(graph.indptr, graph.indices, x, columns=("amount", "age", "risk"))
    about = edges_of(graph, hop).explain(left, right)
    first = about.differences[0]
    assert (first.column, first.value, first.neighbors) == ("amount", 9.0, -9.0)
    assert f"`amount` is 9 for {left} and -9 for {right}" in " ".join(wording.edge_text(about).split())


def test_explain__of_an_ordinary_edge_claims_nothing():
    graph, hop, _ = far_graph()
    found = edges_of(graph, hop)
    last = found.first(None)[-1:]
    about = found.explain(*(int(end[0]) for end in found.data.ends(last)))
    assert about.share == pytest.approx(1.0)
    assert "No kind of evidence has it among the first 5% of the edges" in wording.edge_text(about)
    assert about.flagged is False


def test_table__of_nothing_and_of_a_graph_without_edges():
    graph, hop, _ = far_graph()
    none, first = edges_of(graph, hop).table(0), edges_of(graph, hop).table(3)
    assert (none.num_rows, none.schema) == (0, first.schema)
    assert first["source"].type == first["target"].type == pa.int64()
    lonely = Graph(np.zeros(4, np.int64), np.zeros(0, np.int32), np.ones((3, 2), np.float32))
    assert edges_of(lonely, np.zeros(0, np.float32)).table().num_rows == 0


def test_edges__of_several_types_are_compared_within_the_pair_of_types():
    graph = community(600, num_attributes=3, seed=0)
    names = np.where(np.arange(600) % 2, "user", "shop")
    found = small_detector().fit(graph, node_type=names)
    assert found.edges_.num_rows == graph.num_edges
    data = StrangeEdges(Evidence.of(graph, None, found.table, *np.ones((2, graph.num_edges), "f4"), graph.x)).data
    numbers = data.numbers(np.arange(graph.num_edges))
    of_pair: dict[tuple[str, ...], set[int]] = {}
    for u, v, number in zip(numbers.left, numbers.right, data.classes(numbers), strict=True):
        of_pair.setdefault(tuple(sorted((names[u], names[v]))), set()).add(int(number) >> 16)
    assert [len(classes) for classes in of_pair.values()] == [1, 1, 1]
    assert len(set.union(*of_pair.values())) == 3


def test_edges__of_a_directed_graph_are_arcs():
    graph = community(300, num_attributes=3, seed=0)
    directed = Graph(graph.indptr, graph.indices, graph.x, directed=True)
    found = small_detector(directed)
    assert found.edges_.num_rows == graph.num_arcs
    row = found.edges_.slice(0, 1).to_pylist()[0]
    ends = row["source"], row["target"]
    assert found.explain(edge=ends).data["degrees"] == tuple(int(graph.degrees[end]) for end in ends)
