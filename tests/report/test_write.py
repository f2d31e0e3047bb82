"""What the report gathers: equal to the obvious computation, small whatever the graph, valid JSON."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcm_scale.graph.store import Graph
from hcm_scale.report import digest, page
from hcm_scale.report.write import json_safe, write_report
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE
from hcm_scale.score.metrics import roc_auc
from hcm_scale.score.table import FILE, write_scores
from hcm_scale.stages import report as stage

World = Callable[..., Any]
CONTEXT = ("context", "context_closure", "residual")


def test_write_report__shows_whatever_scores_the_table_has(scored_world: World, tmp_path: Path):
    world = scored_world(kinds=False)
    scores = world.scores.append_column("far_closure", world.scores["ahp"]).drop_columns("iv")
    scores = scores.replace_schema_metadata({"rank_by": "far_closure"})
    report = write_report(tmp_path, run={}, **world._asdict() | {"scores": scores})
    assert report["scores"] == ["ahp", "hav", "closure", "strange", *CONTEXT, "score", "far_closure"]
    assert report["ranked_by"] == "far_closure"
    assert report["top"][0]["scores"]["far_closure"] == report["table"]["far_closure"][0]
    assert "Ranked by far closure" in (tmp_path / "report.html").read_text()


def test_write_report__writes_the_dict_that_it_returns(scored_world: World, tmp_path: Path):
    world = scored_world()
    report = write_report(tmp_path, run={"name": "ring"}, **world._asdict(), top=4, table_rows=20)
    assert json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail) == report
    assert report["table"]["rank"] == list(range(1, 21))
    assert [node["rank"] for node in report["top"]][:4] == [1, 2, 3, 4]
    assert report["table"]["id"][0] == world.scores["id"][0].as_py()
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_write_report__csv_is_the_whole_table(scored_world: World, tmp_path: Path):
    world = scored_world(first_ids=('a "quoted", id\nin two lines',))
    write_report(tmp_path, run={}, **world._asdict(), table_rows=5)
    assert not (tmp_path / "scores.csv").exists()
    write_report(tmp_path, run={}, **world._asdict(), table_rows=5, csv=True)
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == world.scores["id"].to_pylist()
    assert [row["evidence"] for row in rows] == world.scores["evidence"].to_pylist()
    assert [float(row["ahp"]) for row in rows] == world.scores["ahp"].to_pylist()


def test_write_report__explains_the_rest_of_a_group(scored_world: World, tmp_path: Path):
    world = scored_world()
    nodes = world.scores["node"].to_numpy()[[1, 4, 6, 9]]
    clique = np.array(sorted((u, v) for u in nodes for v in nodes if u != v))
    indptr = np.r_[0, np.cumsum(np.bincount(clique[:, 0], minlength=60))]
    graph = Graph(indptr, clique[:, 1].astype(np.int32), ids=world.graph.ids)
    edges = np.full(graph.num_edges, 2.0, np.float32)
    known = {"purified": None, "edge_mean": edges, "edge_var": edges, "x": None}
    report = write_report(tmp_path, run={}, **world._asdict() | known | {"graph": graph}, top=3)
    assert [[member["rank"] for member in group["members"]] for group in report["groups"]] == [[2, 5, 7, 10]]
    assert [node["rank"] for node in report["top"]] == [1, 2, 3, 5, 7, 10]
    assert "The first 3 and the rest of their groups" in page.render(report)


def test_render__of_the_json_is_the_page(scored_world: World, tmp_path: Path):
    world = scored_world()
    write_report(tmp_path, run={"name": "ring"}, **world._asdict(), top=4, table_rows=20)
    again = page.render(json.loads((tmp_path / "report.json").read_text()))
    assert again == (tmp_path / "report.html").read_text()


def test_write_report__accuracy_is_that_of_the_table(scored_world: World, tmp_path: Path):
    world = scored_world(200)
    report = write_report(tmp_path, run={}, **world._asdict())
    for name in ("ahp", "closure", "residual"):
        wanted = roc_auc(world.scores["y"].to_numpy(), world.scores[name].to_numpy())
        assert report["accuracy"]["scores"][name]["roc_auc"] == pytest.approx(wanted, rel=1e-6)
    assert report["graph"]["num_anomalies"] == 10


def test_write_report__without_labels_records_and_stages(scored_world: World, tmp_path: Path):
    world = scored_world(labelled=False)
    report = write_report(tmp_path, run={}, **world._asdict() | {"purified": None})
    assert report["accuracy"] is None
    assert list(report["distributions"]["ahp"]["groups"]) == ["all nodes"]
    assert report["edges"]["purified"] is None
    assert report["training"] == {}


@pytest.mark.parametrize("value", [0, 1])
def test_write_report__labels_of_one_class_tell_nothing(scored_world: World, tmp_path: Path, value: int):
    world = scored_world()
    y = np.full(60, value, np.uint8)
    scores = world.scores.drop_columns("y").append_column("y", [y])
    report = write_report(tmp_path, run={}, **world._asdict() | {"scores": scores, "graph": replace(world.graph, y=y)})
    assert report["accuracy"] is None


@pytest.mark.parametrize(("option", "value"), [("top", -1), ("table_rows", 0)])
def test_write_report__refuses_senseless_sizes(scored_world: World, tmp_path: Path, option: str, value: int):
    with pytest.raises(ValueError, match=f"{option}={value}"):
        write_report(tmp_path, run={}, **scored_world()._asdict(), **{option: value})


def test_distribution__counts_every_node_once():
    rng = np.random.default_rng(0)
    values, y = rng.normal(size=1000), np.arange(1000) % 10 == 0
    values[5], values[6] = 1e9, np.nan
    shown = digest.distribution(values, y, bins=20)
    assert shown is not None
    assert len(shown["edges"]) == 21
    assert shown["sizes"] == {"normal": 899, "anomalous": 100}
    assert [sum(shares) for shares in shown["groups"].values()] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert shown["edges"][-1] < 10  # one outlier does not flatten the rest
    known = values[np.isfinite(values)]
    beyond = [int(np.sum(known < shown["edges"][0])), int(np.sum(known > shown["edges"][-1]))]
    assert shown["folded"] == beyond
    assert beyond[1] >= 1
    assert digest.distribution(np.full(3, np.nan)) is None
    assert digest.distribution(np.ones(5)) is not None


def test_hop_distribution__does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch):
    hops = np.random.default_rng(0).uniform(1, 4, 1000).astype(np.float32)
    hops[3] = np.nan
    whole = digest.hop_distribution(hops)
    monkeypatch.setattr(digest, "_EDGES", 7)
    assert digest.hop_distribution(hops) == whole
    assert digest.hop_distribution(hops[:0]) is None
    assert digest.hop_distribution(np.full(3, np.nan, np.float32)) is None


def test_purification__counts_the_dropped_edges(scored_world: World):
    world = scored_world()
    found = digest.purification(world.graph, world.purified)
    assert found is not None
    assert found["num_dropped"] == world.graph.num_edges - world.purified.num_edges
    lost = world.graph.degrees - world.purified.degrees
    odd = world.graph.y == 1
    wanted = lost[odd].sum() / world.graph.degrees[odd].sum()
    assert found["dropped_share"]["anomalous"] == pytest.approx(wanted, abs=1e-6)


def test_training__thins_and_leaves_out_what_was_not_logged():
    records = [{"step": i, "loss": float(i), "accuracy": (0.5, float("nan"), 0.7)} for i in range(1000)]
    curves = digest.training([*records, {"step": 1000, "ahp_auc": 0.6}, {"step": 1010, "ahp_auc": 0.7}, {"loss": 1.0}])
    assert len(curves["loss"]["step"]) <= 160
    assert curves["loss"]["low"][0] == 0.0
    assert curves["loss"]["high"][-1] == 999.0
    assert "accuracy" not in curves  # the second class was never seen
    assert curves["auc"]["ahp_auc"]["mean"] == [0.6, 0.7]
    assert digest.training([{"step": 1}]) == digest.training([]) == {}


def test_json_safe__keeps_no_number_that_json_lacks():
    value = {"a": np.float32("nan"), "b": [np.inf, np.arange(2)], 3: {"c": True, "d": None}}
    assert json_safe(value) == {"a": None, "b": [None, [0, 1]], "3": {"c": True, "d": None}}


def test_stage__reads_what_other_stages_left(scored_world: World, tmp_path: Path):
    world = scored_world()
    write_scores(tmp_path / FILE, [lambda: world.scores])
    np.save(tmp_path / MEAN_FILE, world.edge_mean)
    np.save(tmp_path / VAR_FILE, world.edge_var)
    torn = b"[]\n\xb4\n" + b"[" * 100_000 + b'\n{"step": 3, "lo'
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n' + torn)
    shown = {"run": {"seed": 3}, "metrics": tmp_path / "metrics.jsonl", "top": 10, "table_rows": 1000}
    report = stage.report(world.graph, world.purified, tmp_path, tmp_path / "out", **shown)
    assert report["training"]["loss"]["mean"] == [2.0, 1.0]
    assert report["run"]["seed"] == 3
    assert "cores" in report["run"]["hardware"]
    first = world.scores["id"][0].as_py()
    assert stage.explain(world.graph, world.purified, tmp_path, [first])[0].rank == 1
    with pytest.raises(ValueError, match="node='nobody' is not in this graph"):
        stage.explain(world.graph, world.purified, tmp_path, ["nobody"])
    assert stage.read_records(tmp_path / "missing.jsonl") == []


def test_write_report__of_a_graph_without_edges(tmp_path: Path, scored_world: World):
    world = scored_world()
    lonely = Graph(np.zeros(61, np.int64), np.zeros(0, np.int32), ids=world.graph.ids)
    none = np.zeros(0, np.float32)
    report = write_report(
        tmp_path, run={}, scores=world.scores, graph=lonely, purified=lonely, edge_mean=none, edge_var=none
    )
    assert report["edges"]["hops"] is None
    assert all("no neighbours" in node["lead"] for node in report["top"])
