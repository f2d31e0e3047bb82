"""The set around a clue: what belongs to it is taken, and nothing where nothing holds."""

import itertools

import numpy as np

from hcm_scale.cases.clue import grow_from
from hcm_scale.cases.groups import Structure
from tests.cases.test_groups import random_edges, structure


def world(seed: int = 0) -> tuple[Structure, np.ndarray]:
    """A sparse random graph with a clique of nodes 0 to 9, half as strange as nodes are flagged."""
    edges = [*itertools.combinations(range(10), 2), *random_edges(1000, 3000, np.random.default_rng(seed))]
    p = np.random.default_rng(seed + 1).uniform(0.0, 1.0, 1000)
    p[:10] = np.random.default_rng(seed + 2).uniform(0.0, 0.01, 10)
    return structure(edges, 1000), p


def test_grow_from__takes_the_group_of_a_member_and_says_why():
    graph, p = world()
    taken = grow_from(graph, [3], p, None)
    assert {one.node for one in taken} >= {*range(10)} - {3}
    assert sum(one.node >= 10 for one in taken) <= 1
    assert all(one.gain > 0 for one in taken)
    assert any("joined to" in one.why for one in taken)


def test_grow_from__takes_nothing_where_nothing_holds():
    graph, _ = world()
    num_taken = [
        len(grow_from(graph, [node], np.random.default_rng(node).uniform(0, 1, 1000), None)) for node in range(100, 140)
    ]
    assert np.mean(np.array(num_taken) > 0) <= 0.2
