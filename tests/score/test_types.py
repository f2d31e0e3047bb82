"""Nodes of several types are compared with their own type: ranks by kind, scores and p."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from helpers import small_graph, small_run
from kinds import COLUMNS
from scipy import sparse

from hcm_scale.graph import Graph
from hcm_scale.graph.store import NodeTypes
from hcm_scale.score import evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.nodes import NodeScores, verdict_of, with_score
from hcm_scale.score.table import node_scores, read_scores


def typed_graph(num_nodes: int = 900, share: float = 0.4) -> Graph:
    """`small_graph` with users and shops, which have other attributes."""
    graph, rng = small_graph(num_nodes), np.random.default_rng(0)
    is_shop = rng.random(num_nodes) < share
    x = np.where(is_shop[:, None], 5.0 + 3.0 * graph.x, graph.x).astype(np.float32)
    return replace(graph, x=x, node_types=NodeTypes.of(np.where(is_shop, "shop", "user")))


def random_scores(rng, num_nodes: int, types: NodeTypes | None, groups=None) -> NodeScores:
    numbers = {name: rng.gamma(2.0, size=num_nodes) for name in COLUMNS}
    degree = rng.integers(0, 9, num_nodes)
    flags = (degree == 0).astype(np.uint8)
    return NodeScores(tuple(KINDS.values()), numbers, degree, flags, types=types, groups=groups)


def some(scores: NodeScores, nodes: np.ndarray) -> NodeScores:
    """These nodes alone, as if there were no others."""
    numbers = {name: values[nodes] for name, values in scores.numbers.items()}
    return NodeScores(scores.kinds, numbers, scores.degree[nodes], scores.flags[nodes])


@pytest.mark.parametrize("is_other", [False, True])
def test_scores_and_p__are_those_of_each_type_by_itself(is_other):
    rng = np.random.default_rng(1)
    types = [NodeTypes.of(rng.choice(["user", "shop", "bank"], size, p=[0.6, 0.35, 0.05])) for size in (1500, 2000)]
    groups = evidence.type_groups(types[1])
    assert groups == {"user": 0, "shop": 1, "bank": 0, None: 0}  # a hundred banks show no bulk
    scores, other = (random_scores(rng, len(t.codes), t, groups) for t in types)
    made = with_score(scores, other if is_other else None)
    p = verdict_of(made, 0.1, other if is_other else None).p
    is_shop, was_shop = (np.asarray(t.encode(t.codes).cast("string")) == "shop" for t in types)
    for mine, theirs in ((is_shop, was_shop), (~is_shop, ~was_shop)):
        like = some(other, np.flatnonzero(theirs)) if is_other else None
        alone = with_score(some(scores, np.flatnonzero(mine)), like)
        np.testing.assert_array_equal(made.score[mine], alone.score)
        np.testing.assert_array_equal(made.places[:, mine], alone.places)
        np.testing.assert_array_equal(p[mine], verdict_of(alone, 0.1, like).p)


def test_type_groups__pools_small_types():
    counts = {"a": 250, "b": 150, "c": 120, "d": 400}
    types = NodeTypes.of([name for name, count in counts.items() for _ in range(count)])
    assert evidence.type_groups(types) == {"d": 0, "a": 1, "b": 2, "c": 2, None: 2}


def test_run__ranks_by_kind_within_a_type_and_keeps_the_types(tmp_path: Path):
    graph = typed_graph()
    small_run(tmp_path / "run", graph, until="score")
    table = read_scores(tmp_path / "run" / "scores" / "scores.parquet")
    assert Graph.open(tmp_path / "run" / "graph").node_types.names == ("shop", "user")
    for name in ("shop", "user"):
        rows = table.filter(pc.equal(table["type"], name))
        kind, number = "attributes_rank", rows["residual"].to_numpy()
        order = np.argsort(np.argsort(-number, kind="stable"))
        np.testing.assert_array_equal(rows[kind].to_numpy(), order + 1)
    scores = node_scores(table)
    np.testing.assert_array_equal(scores.types.codes, graph.node_types.codes)
    assert scores.groups == {"user": 0, "shop": 1, None: 0}


def test_run__of_another_graph_is_measured_by_the_same_type(tmp_path: Path):
    graph = typed_graph()
    small_run(tmp_path / "run", graph, until="score")
    small_run(tmp_path / "next", graph, until="score", trained=str(tmp_path / "run"))
    first, again = (node_scores(read_scores(tmp_path / run / "scores" / "scores.parquet")) for run in ("run", "next"))
    np.testing.assert_array_equal(first.places, again.places)
    np.testing.assert_allclose(first.score, again.score, rtol=1e-9)


def test_run__of_one_type_writes_the_bytes_of_none(tmp_path: Path):
    graph = small_graph()
    assert NodeTypes.of(["user"] * graph.num_nodes) is None
    few = replace(graph, node_types=NodeTypes.of(["user"] * (graph.num_nodes - 5) + [None] * 5))
    for name, given in (("plain", graph), ("few", few)):
        small_run(tmp_path / name, given, until="score")
    plain, few_table = (read_scores(tmp_path / name / "scores" / "scores.parquet") for name in ("plain", "few"))
    assert "type" not in plain.column_names
    assert few_table.drop_columns(["type"]).equals(plain)  # too few to be compared by themselves
    assert few_table["type"].null_count == 5


def graph_of(left: np.ndarray, right: np.ndarray, num_nodes: int) -> Graph:
    ones = sparse.coo_array((np.ones(len(left), np.int8), (left, right)), shape=(num_nodes, num_nodes)).tocsr()
    both = sparse.csr_array(ones + ones.T)
    both.sort_indices()
    x = np.random.default_rng(0).normal(size=(num_nodes, 3)).astype(np.float32)
    return Graph(both.indptr.astype(np.int64), both.indices.astype(np.int32), x=x)


def sided(num_left: int, num_right: int, num_edges: int, odd_edge: bool = False, shift: float = 1.0) -> Graph:
    """Edges between two sides of different means, nodes numbered in any order; the last three nodes have none."""
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, num_left, num_edges), num_left + rng.integers(0, num_right, num_edges)
    if odd_edge:
        left, right = np.append(left, 0), np.append(right, 1)
    number = rng.permutation(num_left + num_right)
    graph = graph_of(number[left], number[right], num_left + num_right + 3)
    graph.x[number[:num_left]] += shift
    return graph


def tree(num_nodes: int) -> Graph:
    parent = np.array([np.random.default_rng(i).integers(0, i) for i in range(1, num_nodes)])
    return graph_of(np.arange(1, num_nodes), parent, num_nodes)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (sided(450, 260, 3000), {"side 1", "side 2", None}),
        (sided(450, 260, 3000, odd_edge=True), None),
        (sided(450, 260, 3000, shift=0.0), None),  # alike, so that one bulk is better than two
        (sided(350, 350, 3000), None),  # of one size: nothing says which is which tomorrow
        (sided(600, 120, 3000), None),  # too few to show their bulk
        (tree(700), None),  # two colours, and no cycle that could have been odd
    ],
    ids=["two sides", "an odd edge", "alike", "one size", "few", "tree"],
)
def test_sides__are_types_where_the_edges_show_them(tmp_path: Path, caplog, graph, expected):
    caplog.set_level("INFO")
    small_run(tmp_path / "run", graph, until="score")
    table = read_scores(tmp_path / "run" / "scores" / "scores.parquet")
    assert ("type" in table.column_names) == (expected is not None)
    assert ("the graph has two sides" in caplog.text) == (expected is not None)
    if expected:
        side = node_scores(table).types
        assert {*table["type"].to_pylist()} == expected
        ends = np.repeat(np.arange(graph.num_nodes), graph.degrees)
        assert (side.codes[ends] != side.codes[graph.indices]).all()
        assert np.bincount(side.codes)[:2].argmax() == side.names.index("side 1")


def test_user_of_usual_size__is_odd_among_shops_only_if_types_are_known(tmp_path: Path):
    """A user as large as a shop is no rare sight among all nodes, and the first among users."""
    rng = np.random.default_rng(2)
    is_shop = np.arange(1000) < 300
    graph = graph_of(rng.integers(0, 1000, 5000), rng.integers(0, 1000, 5000), 1000)
    x = rng.normal(size=(1000, 3)) + np.where(is_shop, 12.0, 0.0)[:, None]
    x[999] = 12.0
    graph = replace(graph, x=x.astype(np.float32))
    typed = replace(graph, node_types=NodeTypes.of(np.where(is_shop, "shop", "user")))
    places = {}
    for name, given in (("plain", graph), ("typed", typed)):
        small_run(tmp_path / name, given, until="score")
        rows = read_scores(tmp_path / name / "scores" / "scores.parquet")
        row = rows.filter(pc.equal(rows["node"], 999)).to_pylist()[0]
        places[name] = row["attributes_rank"]
    assert places["typed"] == 1
    assert places["plain"] > 1
