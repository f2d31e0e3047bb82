"""Cases: what is one, its p, and that nothing depends on the order of anything."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.cases.find import ALONE, GROUP, Case, find_cases, num_flagged
from hcm_scale.cases.store import as_cases, id_text, open_cases
from hcm_scale.graph import Graph
from tests.helpers import small_graph

NONE = np.zeros(0, np.int64)


def with_clique(num_nodes: int = 300, size: int = 10) -> Graph:
    graph = small_graph(num_nodes)
    left = np.repeat(np.arange(num_nodes), graph.degrees)
    pairs = {*zip(left.tolist(), graph.indices.tolist(), strict=True), *itertools.permutations(range(size), 2)}
    ends = np.array(sorted(pairs))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[:, 0], minlength=num_nodes))])
    return replace(graph, indptr=indptr, indices=ends[:, 1].astype(np.int32))


def found(graph: Graph, p: np.ndarray) -> list[Case]:
    return find_cases(graph, p, p < 1e-5, None, np.zeros((len(p), 4)))


def test_find_cases__a_clique_is_one_and_a_node_by_itself_another():
    graph, p = with_clique(), np.linspace(0.02, 1.0, 300)
    p[:10], p[200] = 1e-6, 1e-9
    alone, group = found(graph, p)
    assert (group.core.tolist(), group.held_by, len(group.rows)) == (list(range(10)), GROUP, 0)
    assert (alone.core.tolist(), alone.held_by) == ([200], ALONE)
    assert group.p == pytest.approx(1e-7)  # ten nodes of 1e-6
    assert alone.p == pytest.approx(1e-9)


def test_find_cases__where_no_node_stands_out_there_is_none():
    assert found(with_clique(), np.linspace(0.02, 1.0, 300)) == []


def test_find_cases__of_nodes_with_other_numbers_are_the_same():
    graph, p = with_clique(), np.random.default_rng(0).uniform(0.005, 1.0, 300)
    p[:10] = 1e-6
    order = np.random.default_rng(1).permutation(300)  # new node i is old node order[i]
    number = np.argsort(order)
    left, right = number[np.repeat(np.arange(300), graph.degrees)], number[graph.indices]
    at = np.lexsort((right, left))
    moved = Graph(
        np.concatenate([[0], np.cumsum(np.bincount(left, minlength=300))]), right[at].astype(np.int32), x=graph.x[order]
    )
    before = [({*case.members.tolist()}, round(case.surprise, 9)) for case in found(graph, p)]
    after = [({*order[case.members].tolist()}, round(case.surprise, 9)) for case in found(moved, p[order])]
    assert sorted(before, key=repr) == sorted(after, key=repr)


def test_num_flagged__is_that_of_benjamini_and_hochberg():
    p = np.array([1e-6, 1e-5, 2.9e-4, 0.2])
    cases = [Case(NONE, NONE, NONE, ALONE, -np.log(each)) for each in p]
    assert num_flagged(cases, 1000, 0.1) == 3  # 2.9e-4 * 1000 <= .1 * 3
    assert num_flagged(cases, 2000, 0.1) == 2
    assert num_flagged([], 10, 0.1) == 0


def test_cases__are_read_as_they_were_written_and_a_damaged_folder_is_refused(tmp_path):
    graph, p = with_clique(), np.linspace(0.002, 1.0, 300)
    p[:10] = 1e-6
    cases = as_cases(graph, found(graph, p), 1)
    cases.save(tmp_path)
    again = open_cases(tmp_path, graph)
    assert [flat(case) for case in again] == [flat(case) for case in cases]
    assert (again.num_flagged, len(again)) == (1, len(cases))
    assert cases.position("1") == 0 == cases.position(cases.id_of(0).lower())
    assert 0 in again.of_node(3)
    for name in ("0", str(len(cases) + 1), "ZZZZZZZZZZ", "", "x"):
        with pytest.raises(ValueError, match="is not there"):
            cases.position(name)
    other = Graph(np.zeros(6, np.int64), np.zeros(0, np.int32))
    with pytest.raises(FolderError):
        open_cases(tmp_path, other)
    table = np.load(tmp_path / "cases.npy")
    table["core"][0] += 100
    np.save(tmp_path / "cases.npy", table)
    with pytest.raises(FolderError):
        open_cases(tmp_path, graph)


def flat(case: Case) -> Case:
    return case._replace(core=case.core.tolist(), others=case.others.tolist(), rows=case.rows.tolist())


def test_ids__of_equal_cores_differ():
    graph = small_graph()
    same = [Case(np.array([4]), NONE, NONE, ALONE, 9.0)] * 3
    ids = [int(each) for each in as_cases(graph, same, 0).table["id"]]
    assert len({*ids}) == 3
    assert all(len(id_text(each)) == 10 for each in ids)
