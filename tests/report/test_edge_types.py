"""Types of edges as a part of a graph."""

from dataclasses import replace

import numpy as np
import pytest

from hcm_scale.graph import Graph
from hcm_scale.synthetic.inject import inject

STAR = Graph(
    np.array([0, 2, 3, 4]),
    np.array([1, 2, 0, 0], np.int32),
    x=np.eye(3, dtype=np.float32),
    info={"edge_types": ["call", "mail"]},
    edge_types=np.array([3, 2, 3, 2], np.uint16),
)


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
