"""Worlds are what their recipes say, and what is planted into them cannot be told by its degree."""

import json

import numpy as np
import pytest
from scipy.sparse import csgraph, csr_array

from bench.accuracy.oddities import GROUPS, Candidates, degrees, redirect
from bench.accuracy.worlds import WORLDS, as_problem, main, make_problem, odds_of, problems, run, world
from bench.accuracy.zoo import adjacency, edges
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.score import metrics

NODES = 2_000
MATCHED = ("group", "half_dense", "block", "ring_kept")
LOW = ("half_isolated", "mostly_isolated", "sparse_edges")  # an edge, or a few, is much there
CASES = [
    name for name in problems() if name.split(":")[1] in MATCHED and not name.startswith(LOW)
]  # such as follow:group


def inner(graph: Graph, members) -> csr_array:
    """The undirected graph of the members alone."""
    held = adjacency(graph)[members][:, members]
    return csr_array((held + held.T > 0).astype(int))


@pytest.mark.parametrize("name", WORLDS)
def test_world__is_a_legal_graph_and_a_function_of_its_seed(name):
    one, again, other = (world(name, NODES, seed).graph for seed in (1, 1, 2))
    one.check()
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(("name", "share"), [("half_isolated", 0.5), ("mostly_isolated", 0.75), ("follow", 0.0)])
def test_world__has_the_stated_share_of_nodes_without_an_edge(name, share):
    assert np.mean(degrees(world(name, NODES).graph) == 0) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("name", "mean"), [("sparse_edges", 2.5), ("follow", 16.0), ("dense_edges", 30.0)])
def test_world__has_the_stated_mean_degree(name, mean):
    assert degrees(world(name, NODES).graph).mean() == pytest.approx(mean, rel=0.01)


def alike(name: str) -> float:
    """How much nearer the standardised attributes of neighbours are than those of any two nodes: 0 not at all."""
    made = world(name, NODES)
    x = as_problem(name, make_problem(name, odds_of(name)[0], 0, NODES), 0).x
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    left, right = edges(made.graph)
    other = np.random.default_rng(0).permutation(right)
    return float(np.mean(np.sum(x[left] * x[right], axis=1)) - np.mean(np.sum(x[left] * x[other], axis=1)))


def test_world__attributes_follow_the_edges_as_far_as_the_recipe_says():
    assert alike("follow") > 0.1 > alike("weak") > 0.01 > abs(alike("unrelated"))


def test_world__columns():
    found = {name: world(name, NODES).graph.x for name in ("few_columns", "many_columns", "no_columns")}
    assert found["few_columns"].shape == (NODES, 3)
    assert found["no_columns"] is None
    assert isinstance(found["many_columns"], SparseRows)
    assert 10 < np.diff(found["many_columns"].indptr).mean() < 20


def test_world__hubs_have_a_fifth_of_all_as_partners_and_are_never_planted():
    made = world("hubs", NODES)
    assert made.hubs.sum() == 6
    assert degrees(made.graph)[made.hubs].min() >= NODES // 5 > 2 * degrees(made.graph)[~made.hubs].max()
    for odd in odds_of("hubs"):
        problem = make_problem("hubs", odd, 0, NODES)
        assert not (problem.hubs & (problem.y == 1)).any()


def test_world__two_types_differ_in_attributes_and_mix_in_edges():
    made = world("two_types", NODES)
    left, right = edges(made.graph)
    assert 0.4 < np.mean(made.types[left] != made.types[right]) < 0.6
    first, second = (made.graph.x[made.types == side].std(axis=0).mean() for side in range(2))
    assert first > 1.5 * second


def test_world__the_bad_are_larger_and_know_each_other_a_little_and_their_degree_does_not_tell():
    made, problem = world("fraud", NODES), make_problem("fraud", "own", 0, NODES)
    np.testing.assert_array_equal(problem.y == 1, made.bad)
    left, right = edges(made.graph)
    share = np.concatenate([made.bad[right[made.bad[left]]], made.bad[left[made.bad[right]]]]).mean()
    chance = made.bad[np.concatenate([left, right])].mean()
    assert 1.2 < share / chance < 3.5
    assert 0.4 < metrics.roc_auc(problem.y, degrees(made.graph)) < 0.6
    assert 0.6 < metrics.roc_auc(problem.y, np.linalg.norm(as_problem("fraud:own", problem, 0).x, axis=1)) < 0.8


@pytest.mark.parametrize("name", CASES)
def test_planted__cannot_be_told_by_their_degree(name):
    graph, y, _, _ = make_problem(*name.split(":"), 0, NODES)
    assert 0.02 <= y.mean() <= 0.06
    assert 0.35 < metrics.roc_auc(y, degrees(graph)) < 0.65


@pytest.mark.parametrize("name", ["half_isolated:group", "mostly_isolated:block", "sparse_edges:chain"])
def test_planted__cannot_be_told_by_their_degree_from_nodes_that_have_edges(name):
    graph, y, _, _ = make_problem(*name.split(":"), 0, NODES)
    joined = degrees(graph) > 0
    assert 0.35 < metrics.roc_auc(y[joined], degrees(graph)[joined]) < 0.65


@pytest.mark.parametrize("odd", GROUPS)
@pytest.mark.parametrize("name", ["follow", "directed"])
def test_planted__degrees_of_all_nodes_stay_nearly_as_they_were(name, odd):
    moved = np.abs(degrees(make_problem(name, odd, 0, NODES).graph) - degrees(world(name, NODES).graph))
    assert moved.sum() <= 0.02 * degrees(world(name, NODES).graph).sum()
    assert np.quantile(moved, 0.9) <= 1


@pytest.mark.parametrize(
    ("name", "odd", "sizes", "density"),
    [
        ("unrelated", "group", (8, 15), 1.0),
        ("dense_edges", "half_dense", (10, 60), 0.5),
        ("follow", "block", (12, 24), 0.5),
    ],
)
def test_planted__groups_have_the_stated_size_and_density(name, odd, sizes, density):
    made = world(name, NODES)
    candidates = Candidates(made, np.random.default_rng(0))
    for _ in range(5):
        group = GROUPS[odd](candidates)
        size = len(group.members)
        assert sizes[0] <= size <= sizes[1]
        held = inner(redirect(made, group, np.random.default_rng(1)), group.members)
        assert held.sum() / (size * (size - 1)) == pytest.approx(density, abs=0.06)


def test_planted__groups_are_cliques_in_the_whole_graph_too():
    graph, y, _, _ = make_problem("unrelated", "group", 3, NODES)
    among = inner(graph, np.flatnonzero(y))
    assert ((among @ among).multiply(among).sum(axis=1) / 2 >= 21).all()  # the triangles in a clique of eight


def test_planted__a_block_joins_each_of_one_side_to_each_of_the_other():
    graph, y, _, types = make_problem("bipartite", "block", 3, NODES)
    among = inner(graph, np.flatnonzero(y))
    assert among.sum(axis=1).min() >= 6
    users = types[y == 1] == 0
    assert users.sum() == (~users).sum()
    assert among[users][:, users].nnz == 0


def test_planted__a_star_has_leaves_of_one_or_two_edges_and_a_chain_two_neighbours_each():
    for name in ("follow", "sparse_edges"):
        graph, y, _, _ = make_problem(name, "star", 0, NODES)
        held = np.sort(degrees(graph)[y == 1])
        assert (held <= 2).sum() >= 0.85 * len(held)
        assert held[-1] >= 8
        graph, y, _, _ = make_problem(name, "chain", 0, NODES)
        assert (degrees(graph)[y == 1] <= 2).mean() > 0.9
        _, part = csgraph.connected_components(inner(graph, np.flatnonzero(y)), directed=False)
        assert np.bincount(part).min() >= 5


@pytest.mark.parametrize("odd", odds_of("bipartite"))
def test_bipartite__stays_bipartite(odd):
    graph, _, _, types = make_problem("bipartite", odd, 0, NODES)
    left, right = edges(graph)
    assert (types[left] != types[right]).all()


@pytest.mark.parametrize("name", ["follow:group", "many_columns:ring_kept", "directed:swap-weak", "hubs:none"])
def test_problem__is_a_function_of_its_seed(name):
    one, again, other = (make_problem(*name.split(":"), seed, NODES).graph for seed in (1, 1, 2))
    one.check()
    assert one.fingerprint == again.fingerprint != other.fingerprint


def test_problems__leave_out_what_makes_no_sense():
    names = set(problems())
    assert {"unrelated:group", "bipartite:block", "fraud:own", "no_columns:rewire-weak", "hubs:none"} <= names
    assert (
        not {"bipartite:group", "bipartite:rewire", "no_columns:swap", "unrelated:swap", "fraud:none", "follow:own"}
        & names
    )
    with pytest.raises(ValueError, match="odd='group' is unknown in bipartite"):
        make_problem("bipartite", "group")
    with pytest.raises(ValueError, match="world='moon' is unknown"):
        make_problem("moon", "group")
    with pytest.raises(ValueError, match="num_nodes=10 is out of range"):
        world("follow", 10)


def test_run__baselines_find_cliques_and_nothing_is_measured_where_nothing_is_planted():
    found = {line["method"]: line for line in run("unrelated:group", 0, NODES, ("structure", "attributes", "iforest"))}
    assert found.keys() == {"degree", "triangles", "core", "norm", "lof", "iforest"}
    assert found["triangles"]["auc"] > 0.85
    assert 0.35 < found["degree"]["auc"] < 0.65
    assert all("auc" not in line for line in run("hubs:none", 0, NODES, ("structure",)))
    hubs = {line["method"]: line["hubs_first"] for line in run("hubs:none", 0, NODES, ("structure",))}
    assert hubs["degree"] == 1.0


def test_command__writes_lines_and_prints_a_table(tmp_path, capsys):
    main(["--worlds", "no_columns", "--odd", "none", "group", "--nodes", "600", "--methods", "hcm", "structure",
          "--out", str(tmp_path / "lines.jsonl")])  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert {(line["problem"], line["method"]) for line in lines} == {
        (f"no_columns:{odd}", method) for odd in ("none", "group") for method in ("hcm", "degree", "triangles", "core")
    }
    assert "| no_columns:group | 0." in capsys.readouterr().out
