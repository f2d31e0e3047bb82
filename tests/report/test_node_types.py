"""Nodes of several types on their way to a person: explanations, the page, the served list and exports, by type."""

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from helpers import small_graph, small_run

from hcm_scale.cli.commands import COMMANDS
from hcm_scale.graph import Graph
from hcm_scale.graph.store import NodeTypes
from hcm_scale.report.wording import explanation_text
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.result import open_scores
from hcm_scale.score.table import read_scores
from hcm_scale.serve.server import Views


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users and shops, edges between the two and among users; shops have a hundred times the values of users."""
    graph, rng = small_graph(900), np.random.default_rng(0)
    is_shop = rng.random(900) < 0.4
    u = np.repeat(np.arange(900), graph.degrees)
    kept = ~(is_shop[u] & is_shop[graph.indices])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(u[kept], minlength=900))])
    x = np.where(is_shop[:, None], 500.0 + 100.0 * graph.x, graph.x).astype(np.float32)
    types = NodeTypes.of(np.where(is_shop, "shop", "user"))
    folder = tmp_path_factory.mktemp("typed") / "run"
    typed = Graph(indptr, graph.indices[kept], x=x, columns=("a", "b", "c"), node_types=types)
    small_run(folder, typed)
    return folder


def test_explanation__compares_a_node_with_its_own_type(run_dir):
    graph, table = Graph.open(run_dir / "graph"), read_scores(run_dir / "scores" / "scores.parquet")
    is_shop = graph.node_types.codes == graph.node_types.names.index("shop")
    num_linked = {name: np.count_nonzero(graph.degrees[of] > 0) for name, of in (("shop", is_shop), ("user", ~is_shop))}
    for name, of in (("shop", is_shop), ("user", ~is_shop)):
        first = table.filter(pc.equal(table["type"], name))["node"][0].as_py()
        (found,) = FinishedRun(run_dir).explain([str(first)])
        assert found.type == name
        assert {reason.num_ranked for reason in found.reasons} <= {num_linked[name], np.count_nonzero(of)}
        around = graph.indices[graph.indptr[first] : graph.indptr[first + 1]]
        alike = around[of[around]]
        assert found.num_alike == len(alike)
        theirs = graph.x[alike if len(alike) else of].mean(axis=0, dtype=np.float64)
        spread = graph.x[of].std(axis=0, dtype=np.float64)
        for difference in found.differences:
            column = "abc".index(difference.column)
            assert difference.neighbors == pytest.approx(theirs[column], rel=1e-5)
            assert difference.deviations == pytest.approx((graph.x[first, column] - theirs[column]) / spread[column])


def test_usual__is_the_median_over_nodes_of_like_degree_and_type(run_dir):
    graph, hops = Graph.open(run_dir / "graph"), open_scores(run_dir / "scores").edges().mean
    u = np.repeat(np.arange(900), graph.degrees)
    forward = u < graph.indices
    own = np.bincount(u[forward], hops, 900) + np.bincount(graph.indices[forward], hops, 900)
    digits = np.array([int(degree).bit_length() for degree in graph.degrees])
    num_told = 0
    for found in FinishedRun(run_dir).explain([str(node) for node in range(0, 900, 5)]):
        is_like = (digits == digits[found.node]) & (graph.node_types.codes == graph.node_types.codes[found.node])
        is_like = np.flatnonzero(is_like)
        for difference in found.differences:
            wanted = np.median(graph.x[is_like, "abc".index(difference.column)]) if len(is_like) >= 8 else None
            assert difference.usual == (wanted if wanted is None else pytest.approx(wanted))
            num_told += wanted is not None
        for reason in found.reasons:
            if reason.kind == "hop" and len(is_like) >= 8:
                assert reason.usual == pytest.approx(np.median(own[is_like] / graph.degrees[is_like]), rel=1e-5)
        text = explanation_text(found)
        if "usual is the median of" in " ".join(text.split()):
            assert f"usual is the median of {found.type} nodes with" in " ".join(text.split())
    assert num_told > 3


def test_page_and_list__show_types_and_filter_by_them(run_dir):
    views = Views(FinishedRun(run_dir))
    assert 'id="ranking-type"' in views.page()[0]
    found = json.loads(views.rows({"type": "shop"}))
    table = read_scores(run_dir / "scores" / "scores.parquet")
    assert found["total"] == pc.sum(pc.equal(table["type"], "shop")).as_py()
    assert {row["type"] for row in found["rows"]} == {"shop"}
    with pytest.raises(ValueError, match="type=bank is not legal; legal are user, shop"):
        views.rows({"type": "bank"})
    page = (run_dir / "report" / "report.html").read_text()
    assert '<option value="shop">' in page
    assert "type <b><bdi>" in page
    assert "all shop nodes" in views.explained({"rank": str(first_rank(table, "shop"))})


def first_rank(table, name: str) -> int:
    return table.filter(pc.equal(table["type"], name))["rank"][0].as_py()


def test_export__takes_the_nodes_of_one_type(run_dir, tmp_path):
    COMMANDS["export"]([str(run_dir), str(tmp_path / "shops.csv"), "--top", "7", "--type", "shop"])
    rows = pyarrow.csv.read_csv(tmp_path / "shops.csv")
    assert rows.column_names[:3] == ["rank", "id", "type"]
    assert rows["type"].to_pylist() == ["shop"] * 7
    table = read_scores(run_dir / "scores" / "scores.parquet")
    assert rows["rank"].to_pylist() == table.filter(pc.equal(table["type"], "shop"))["rank"].to_pylist()[:7]
    with pytest.raises(ValueError, match="--type bank: no node is of this type; legal are shop, user"):
        COMMANDS["export"]([str(run_dir), str(tmp_path / "banks.csv"), "--type", "bank"])
    with pytest.raises(ValueError, match="--type and --taught are for tables"):
        COMMANDS["export"]([str(run_dir), str(tmp_path / "shops.gexf"), "--type", "shop"])
    COMMANDS["export"]([str(run_dir), str(tmp_path / "all.graphml"), "--top", "3"])
    assert "user" in (tmp_path / "all.graphml").read_text()
