"""What the report gathers: equal to the obvious computation, small whatever the graph, valid JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcm_scale.graph import Graph
from hcm_scale.report import page
from hcm_scale.score import metrics
from hcm_scale.score import table as ranked_table
from hcm_scale.score.edges import EdgeHops, save_hops
from hcm_scale.stages import report as stage

World = Callable[..., Any]


def test_write_report__writes_the_dict_that_it_returns(scored_world: World, tmp_path: Path):
    world = scored_world()
    report = world.report(tmp_path, run={"name": "ring"}, top=4, table_rows=20)
    assert json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail) == report
    assert report["table"]["rank"] == list(range(1, 21))
    assert [node["rank"] for node in report["top"]][:4] == [1, 2, 3, 4]
    assert report["table"]["id"][0] == world.scores["id"][0].as_py()
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_render__of_the_json_is_the_page(scored_world: World, tmp_path: Path):
    world = scored_world()
    world.report(tmp_path, run={"name": "ring"}, top=4, table_rows=20)
    again = page.render(json.loads((tmp_path / "report.json").read_text()))
    assert again == (tmp_path / "report.html").read_text()


def test_write_report__accuracy_is_that_of_the_table(scored_world: World, tmp_path: Path):
    world = scored_world(200)
    report = world.report(tmp_path)
    for name in ("ahp", "closure", "residual"):
        wanted = metrics.roc_auc(world.scores["y"].to_numpy(), world.scores[name].to_numpy())
        assert report["accuracy"]["scores"][name]["roc_auc"] == pytest.approx(wanted, rel=1e-6)
    assert report["graph"]["num_anomalies"] == 10


def test_write_report__without_labels_and_stages(scored_world: World, tmp_path: Path):
    world = scored_world(labelled=False)
    report = world._replace(purified=None).report(tmp_path)
    assert report["accuracy"] is None
    assert list(report["distributions"]["ahp"]["groups"]) == ["all nodes"]
    assert report["edges"]["purified"] is None


@pytest.mark.parametrize("value", [0, 1])
def test_write_report__labels_of_one_class_tell_nothing(scored_world: World, tmp_path: Path, value: int):
    world = scored_world()
    y = np.full(60, value, np.uint8)
    scores = world.scores.drop_columns("y").append_column("y", [y])
    report = world._replace(scores=scores, graph=replace(world.graph, y=y)).report(tmp_path)
    assert report["accuracy"] is None


def test_stage__reads_what_other_stages_left(scored_world: World, tmp_path: Path):
    world = scored_world()
    ranked_table.write_scores(tmp_path / "scores.parquet", [lambda: world.scores])
    save_hops(EdgeHops(world.edge_mean, world.edge_var), tmp_path)
    report = stage.report(world.graph, world.purified, tmp_path, tmp_path / "out", run={"seed": 3})
    assert report["run"]["seed"] == 3
    assert "cores" in report["run"]["hardware"]


def test_write_report__of_a_graph_without_edges(tmp_path: Path, scored_world: World):
    world = scored_world()
    lonely = Graph(np.zeros(61, np.int64), np.zeros(0, np.int32), ids=world.graph.ids)
    none = np.zeros(0, np.float32)
    report = type(world)(lonely, lonely, world.scores, none, none, None).report(tmp_path)
    assert report["edges"]["hops"] is None
    assert all("No edge leads from it" in node["lead"] for node in report["top"])


@pytest.mark.parametrize("name", ["p", "flagged"])
def test_write_report__of_a_table_that_lost_half_of_the_verdict_shows_none(
    scored_world: World, tmp_path: Path, name: str
):
    world = scored_world()
    values = {"p": np.linspace(0, 1, 60), "flagged": np.arange(60) < 3}[name]
    assert world._replace(scores=world.scores.append_column(name, [values])).report(tmp_path)["flagged"] is None


def test_write_report__does_not_depend_on_row_groups(scored_world: World, tmp_path: Path):
    world = scored_world(2500, rank_by="score")
    table = world.scores.append_column("p", [np.linspace(0, 1, 2500)])
    world = world._replace(scores=table.append_column("flagged", [np.arange(2500) % 3 == 0]))
    folders = tmp_path / "one", tmp_path / "many"
    reports = []
    for folder, group_rows in zip(folders, (2500, 300), strict=True):
        folder.mkdir()
        reports.append(world.report(folder, group_rows, top=12, table_rows=1400))
    assert reports[0] == reports[1]
    assert reports[0]["table"]["id"] == world.scores["id"].to_pylist()[:1400]


def test_write_report__has_no_number_that_json_lacks(scored_world: World, tmp_path: Path):
    run = {"a": np.float32("nan"), "b": [np.inf, np.arange(2)], 3: {"c": True, "d": None}}
    assert scored_world().report(tmp_path, run=run)["run"] == {
        "a": None,
        "b": [None, [0, 1]],
        "3": {"c": True, "d": None},
    }


AS_ANOTHER = """
import os, pathlib, sys
from hcm_scale.report import page
page.kernel_folder = lambda: pathlib.Path(sys.argv[1])
os.setuid(os.getuid() or 65534)
print(page.templates().get_template("page.css").render()[:1] != "")
"""


@pytest.mark.gate
def test_templates__are_read_where_another_user_has_made_the_folder_of_kernels(tmp_path):
    tmp_path.chmod(0o555)
    command = [sys.executable, "-c", AS_ANOTHER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
    tmp_path.chmod(0o755)
    assert not list(tmp_path.iterdir())
