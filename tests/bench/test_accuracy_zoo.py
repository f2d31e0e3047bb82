"""The zoo plants what it says, by seed, and leaves known anomalies out of the measurement."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from bench.accuracy.problem import open_problem, parse_name, prepare
from bench.accuracy.worker import measure
from bench.accuracy.zoo import KINDS, plant
from bench.accuracy.zoo_table import markdown
from hcm_scale.graph import SparseRows
from hcm_scale.synthetic.families import community

GRAPH = community(1_500, edges_per_node=4, num_communities=6, seed=3)
STRUCTURE, ATTRIBUTES = ("clique", "rewire", "hub"), ("far", "swap")


def rows(graph):
    return graph.x.csr().toarray() if isinstance(graph.x, SparseRows) else graph.x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_plant__changes_what_the_kind_says_and_nothing_else(kind, strong, storage):
    held = SparseRows.of(sparse.csr_array(np.maximum(GRAPH.x, 0))) if storage == "sparse" else GRAPH.x
    graph = replace(GRAPH, x=held)
    planted = plant(graph, kind, strong=strong, seed=1).graph
    odd = planted.y == 1
    assert 5 <= odd.sum() <= 0.05 * len(odd)
    same_rows = (rows(planted) == rows(graph)).all(axis=1)
    same_degree = planted.degrees == graph.degrees
    if kind in STRUCTURE:
        assert same_rows.all()
        assert not same_degree[odd].all()
    elif kind in ATTRIBUTES:
        assert same_degree.all()
        assert same_rows[~odd].all()
        assert not same_rows[odd].all()
    else:
        assert same_rows[~odd].all()
        assert (planted.degrees[odd] > graph.degrees[odd]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_plant__is_a_function_of_its_seed_and_gives_a_clean_graph(kind):
    one, again, other = (plant(GRAPH, kind, strong=True, seed=seed).graph for seed in (1, 1, 2))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    pairs = set(zip(np.repeat(np.arange(1_500), one.degrees).tolist(), one.indices.tolist(), strict=True))
    assert len(pairs) == one.num_arcs
    assert all(u != v and (v, u) in pairs for u, v in pairs)


def test_plant__known_anomalies_are_neither_planted_nor_judged():
    known = (np.arange(1_500) % 3 == 0).astype(np.uint8)
    planted = plant(replace(GRAPH, y=known), "far", strong=True, seed=0)
    assert not (planted.graph.y & known).any()
    np.testing.assert_array_equal(planted.judged, known == 0)


def test_plant__refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="kind='ghost' is unknown"):
        plant(GRAPH, "ghost", strong=True, seed=0)


def test_zoo_problem__leaves_known_anomalies_out_of_the_measurement(tmp_path):
    prepare("Planted+far-weak", 0, tmp_path, tmp_path)
    problem = open_problem(tmp_path)
    assert problem.judged is not None
    problem = replace(problem, judged=np.arange(600) % 2 == 0)
    everywhere = np.where(problem.judged, problem.graph.y, 9.0)  # what is not judged would come first
    assert measure(problem, everywhere)["auc"] == 1.0


@pytest.mark.parametrize("name", ["Nowhere", "Amazon+ghost", "Amazon+hub-mild"])
def test_zoo_problem__of_an_unknown_name_is_refused(name):
    with pytest.raises(ValueError, match="is unknown; it is one of BlogCatalog"):
        parse_name(name)


def test_zoo_table__means_by_kind_and_graph():
    data = {"Amazon+hub": 0.25, "Amazon+hub-weak": 0.75, "dblp+far": 1.0}
    lines = [{"data": name, "row": "X", "status": "ok", "auc": auc} for name, auc in data.items()]
    table = markdown([*lines, {"data": "Amazon", "row": "X", "status": "ok", "auc": 0.0}])
    assert "| X | 0.667 | - | 1.000 | - | - | - | 0.500 | 0.500 | 1.000 | 1 of 3 |" in table
