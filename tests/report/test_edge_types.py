"""Types of edges in an explanation."""

from dataclasses import replace

import numpy as np
import pytest

from hcm_scale.graph.store import Graph
from hcm_scale.report import wording
from hcm_scale.report.explain import Explanation, Neighbor, _edge_types
from hcm_scale.synthetic.inject import inject

STAR = Graph(
    np.array([0, 2, 3, 4]),
    np.array([1, 2, 0, 0], np.int32),
    x=np.eye(3, dtype=np.float32),
    info={"edge_types": ["call", "mail"]},
    edge_types=np.array([3, 2, 3, 2], np.uint16),
)


def test_types__are_those_of_the_node_s_own_row():
    assert _edge_types(STAR, 0) == [("call", "mail"), ("mail",)]
    assert _edge_types(STAR, 2) == [("mail",)]
    assert _edge_types(replace(STAR, edge_types=None), 0) == [(), ()]
    assert _edge_types(replace(STAR, info={"edge_types": 5}), 0) == [(), ()]


def test_types__stand_beside_the_neighbour():
    neighbors = (Neighbor("b", 1, 3.0, 0.1, True, ("call", "mail")), Neighbor("c", 2, 1.0, 0.1, False))
    lines = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, neighbors, ())).splitlines()
    assert "neighbour    predicted hop   edge       type" in lines
    assert "b             3.00 ± 0.10    dropped    call, mail" in lines
    assert "c             1.00 ± 0.10    kept" in lines
    bare = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, neighbors[1:], ())).splitlines()
    assert "neighbour    predicted hop   edge" in bare


def test_types__are_part_of_what_a_graph_is_known_by_and_checked(tmp_path):
    assert replace(STAR, edge_types=None).fingerprint != STAR.fingerprint
    opened = STAR.save(tmp_path / "g")
    assert Graph.open(opened.path).edge_types.tolist() == [3, 2, 3, 2]
    with pytest.raises(ValueError, match="edge_types has 1 entries; 4 were expected"):
        replace(STAR, edge_types=np.zeros(1, np.uint16)).check()


def test_types__go_where_edges_are_planted():
    big = Graph(
        np.zeros(101, np.int64),
        np.zeros(0, np.int32),
        x=np.eye(100, dtype=np.float32),
        edge_types=np.zeros(0, np.uint16),
    )
    planted = inject(big, num_cliques=1, clique_size=3, num_attribute_anomalies=0)
    planted.check()
    assert planted.edge_types is None
