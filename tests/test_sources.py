"""What a source is known by: a changed file changes the run, a download does not."""

import os

import pytest

from hcm_scale.base import names
from hcm_scale.base.files import FolderError, write_sealed
from hcm_scale.config import Config, FolderGraph, MatrixGraph, SqlGraph, SyntheticGraph, TablesGraph
from hcm_scale.run import pipeline, sources


def test_stamp__knows_the_files_of_a_folder_and_of_a_glob(tmp_path):
    first = tmp_path / "edges-[0].csv"
    first.write_text("source,target\n0,1\n")
    for where in (tmp_path, first, tmp_path / "edges-*.csv"):
        graph = TablesGraph(path=str(where))
        before = sources.stamp(graph)
        assert before == sources.stamp(graph) != [[]]
        first.write_text(first.read_text() + "1,2\n")
        assert sources.stamp(graph) != before
    before = sources.stamp(graph)
    (tmp_path / "edges-1.csv").write_text("source,target\n5,6\n")
    assert sources.stamp(graph) != before


def test_folder_without_a_manifest__is_refused_before_it_is_walked(tmp_path, monkeypatch):
    monkeypatch.setattr("hcm_scale.run.sources.files_at", lambda where: pytest.fail("it was walked"))
    with pytest.raises(ValueError, match=r"graph\.path=.* is no graph folder: there is no manifest\.json in it"):
        sources.stamp(FolderGraph(path=str(tmp_path)))


def test_source__in_the_place_of_the_run_s_own_graph_is_refused(tmp_path):
    sources.check_outside_run_dir(FolderGraph(path=str(tmp_path / "graph")), tmp_path / "run")
    for graph in (FolderGraph(path=str(tmp_path / "graph")), TablesGraph(path=str(tmp_path / "graph" / "edges.csv"))):
        with pytest.raises(ValueError, match=r"graph\.path=.*keeps its own graph"):
            sources.check_outside_run_dir(graph, tmp_path)
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    sources.check_outside_run_dir(TablesGraph(path=str(tmp_path / "loop.csv")), tmp_path)


def test_options_of_the_last_run__that_are_damaged_are_told_by_name_and_never_waited_for(tmp_path):
    stored = tmp_path / "config.json"
    for text in ("[" * 100_000, "[]", "{", None):
        stored.unlink(missing_ok=True)
        os.mkfifo(stored) if text is None else stored.write_text(text)
        with pytest.raises(FolderError, match=r"config\.json is damaged: .*; remove it"):
            sources.check_same_input(SyntheticGraph(), tmp_path)
        with pytest.raises(FolderError, match=r"config\.json is damaged: .*; remove it"):
            pipeline.changed(tmp_path, Config())
    stored.unlink()
    sources.check_same_input(SyntheticGraph(), tmp_path)
    assert pipeline.changed(tmp_path, Config()) == []


def test_another_input__is_refused_however_long_a_query_is_and_of_a_wrong_type_by_name(tmp_path):
    (tmp_path / "scores").mkdir()
    one, other = (SqlGraph(path="sqlite:///a", edges=f"select {column}" + " " * 5000) for column in ("a", "b"))
    write_sealed(tmp_path / "config.json", {"graph": vars(one)})
    sources.check_same_input(one, tmp_path)
    with pytest.raises(ValueError, match="holds a finished run of"):
        sources.check_same_input(other, tmp_path)
    write_sealed(tmp_path / "config.json", {"graph": vars(one) | {"path": 5}})
    with pytest.raises(FolderError, match=r"config\.json: graph\.path=5 is not legal"):
        sources.check_same_input(one, tmp_path)


def test_stamp__knows_the_node_table_too(tmp_path):
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id\n0\n")
    graph = TablesGraph(path="absent.csv", nodes=str(nodes))
    before = sources.stamp(graph)
    nodes.write_text("id\n0\n1\n")
    assert sources.stamp(graph) != before


def test_stamp__of_what_has_no_file_of_its_own_never_changes(tmp_path):
    assert sources.stamp(SyntheticGraph()) == []
    assert sources.stamp(MatrixGraph(path=str(tmp_path / "none.mat"))) == [[]]


@pytest.mark.parametrize("family", names.FAMILIES)
def test_synthetic__makes_every_family_that_the_configuration_accepts(tmp_path, family):
    made = sources.reader(SyntheticGraph(family=family, num_nodes=64, num_attributes=2))(tmp_path / "graph")
    assert made.num_nodes == 64


@pytest.mark.parametrize("graph", [TablesGraph(), MatrixGraph(), FolderGraph()])
def test_path__that_is_not_said_is_asked_for(graph):
    with pytest.raises(ValueError, match=r"graph\.path is missing: graph=(tables|matrix|folder)"):
        sources.check_exists(graph)
    sources.check_exists(SqlGraph())
