"""A finished run is read as it was made: from any folder, after other fits, by whoever holds it."""

import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale import HCM
from hcm_scale.cli import commands, main
from hcm_scale.config import TablesGraph
from hcm_scale.run.finished import FinishedRun
from hcm_scale.run.sources import would_read
from tests.helpers import FAST, as_words, small_detector, small_graph


def tables(folder: Path) -> tuple[Path, Path]:
    """An edge table and a node table."""
    graph, rng = small_graph(200, 3), np.random.default_rng(0)
    left = np.repeat(np.arange(200), graph.degrees)
    edges = pa.table({"source": left, "target": graph.indices, "amount": rng.lognormal(3, 1, len(left))})
    pq.write_table(edges, folder / "edges.parquet")
    nodes = pa.table({"id": np.arange(200)} | {f"x{k}": graph.x[:, k].astype(float) for k in range(3)})
    pq.write_table(nodes, folder / "nodes.parquet")
    return folder / "edges.parquet", folder / "nodes.parquet"


# Python.


@pytest.mark.parametrize("keeps_folder", [True, False])
def test_verdicts__of_a_fit_are_not_those_of_the_next(tmp_path, keeps_folder):
    detector = small_detector(run_dir=tmp_path / "run" if keeps_folder else None)
    y = np.full(200, -1)
    y[:5], y[5:10] = 1, 0
    assert "10 verdicts (5 bad, 5 good)" in repr(detector.fit(small_graph(), y=y).teach())
    detector.fit(small_graph(seed=3))
    printed = repr(detector.teach({7: True, 8: False}))
    assert "2 verdicts (1 bad, 1 good)" in printed
    assert "different verdicts" not in printed


def check_applied(found: HCM, other: HCM) -> None:
    """Whether a detector that another made answers all that needs the samples, and can itself score a third graph."""
    gc.collect()
    assert found.embedding_.shape == (200, 16)
    assert [len(samples) for samples in found.samples_.values()] == [2, 2]
    assert found.trace_.num_rows
    rows = found.score_edges(pa.table({"source": [0, 1], "target": [150, 999]}), source_column="source")
    assert rows["edge_status"].to_pylist() == ["new", "new account"]
    np.testing.assert_array_equal(found.predict(small_graph(seed=5)), other.predict(small_graph(seed=5)))


def test_apply__keeps_what_it_was_made_by_here_and_after_it_was_saved(tmp_path):
    first = small_detector(small_graph())
    found = small_detector(small_graph()).apply(small_graph(seed=4))
    check_applied(found, first)
    found.save(tmp_path / "saved")
    embedding = found.embedding_
    del found
    gc.collect()
    moved = Path(shutil.move(tmp_path / "saved", tmp_path / "elsewhere"))
    loaded = HCM.load(moved)
    check_applied(loaded, first)
    np.testing.assert_array_equal(loaded.embedding_, embedding)
    assert list(Path(moved / "trained").iterdir())


def test_apply__of_a_run_that_was_made_again_refuses_other_samples(tmp_path):
    detector = small_detector(small_graph(), run_dir=tmp_path / "run")
    found = detector.apply(small_graph(seed=4))
    detector.set_params(seed=7).fit(small_graph())
    with pytest.raises(ValueError, match="is not of the train-"):
        _ = found.embedding_


# Paths.


def test_paths__mean_what_they_meant_when_the_run_was_made(tmp_path, monkeypatch, capsys):
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir(), elsewhere.mkdir()
    tables(there)
    monkeypatch.chdir(there)
    assert main.main(["run", "edges.parquet", "nodes.parquet", "run_dir=first", *as_words(FAST)]) == 0
    assert main.main(["run", "edges.parquet", "nodes.parquet", "run_dir=second", "trained=first"]) == 0
    monkeypatch.chdir(elsewhere)
    for name in ("first", "second"):
        printed = commands.export_run([str(there / name), "rows.parquet", "--edges", "--top", "5"])
        assert "5 rows" in printed
        assert "amount" in pq.read_table("rows.parquet").column_names
    new = pa.table({"source": [0], "target": [150], "amount": [1.0]})
    pq.write_table(new, "new.parquet")
    assert "1 row in" in commands.score_edges([str(there / "second"), "new.parquet", "-o", "scored.csv"])
    assert FinishedRun(there / "second").trained.folder == there / "first"
    tables(elsewhere)
    again = ["run", "edges.parquet", "nodes.parquet", f"run_dir={there / 'first'}", *as_words(FAST)]
    assert main.main(again) == 2  # other files of the same names
    assert "holds a finished run of edges.parquet, nodes.parquet" in capsys.readouterr().err


def test_paths__of_queries_mean_what_they_meant(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    (there / "in").mkdir(parents=True), elsewhere.mkdir()
    tables(there / "in")
    monkeypatch.chdir(there)
    words = ["graph=sql", "graph.path=duckdb://", "graph.edges=from 'in/edges.parquet'"]
    words += ["graph.nodes=from read_parquet('in/n*.parquet')", "run_dir=run"]
    assert main.main(["run", *words, *as_words(FAST)]) == 0
    monkeypatch.chdir(elsewhere)
    assert "5 rows" in commands.export_run([str(there / "run"), "rows.csv", "--edges", "--top", "5"])


# What is written.


def test_new_file__among_the_tables_of_a_run_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    for where in ("in", "in/*.csv", "in/a*"):
        graph = TablesGraph(path=str(tmp_path / where))
        told = [would_read(graph, tmp_path / name) for name in ("in/a.csv", "a.csv", "in/a.graphml")]
        assert told == [True, False, False]


@pytest.mark.parametrize("name", ["edges.parquet", "link.parquet", "hard.parquet", "node.parquet", "scores.parquet"])
def test_export__onto_a_file_of_the_run_is_refused_by_whatever_name(made, tmp_path, name):
    run, edges, nodes = made
    given = {"edges.parquet": edges, "node.parquet": nodes}
    out = given.get(name, tmp_path / name)
    if name == "link.parquet":
        out.symlink_to(edges)
    elif name == "hard.parquet":
        os.link(edges, out)
    elif name == "scores.parquet":
        os.link(run / "scores" / "scores.parquet", out)
    before = [path.read_bytes() for path in (edges, nodes)]
    for words in (["--edges", "--top", "10"], ["--top", "10"]):
        with pytest.raises(ValueError, match=r"which the run in .* reads; name another file"):
            commands.export_run([str(run), str(out), *words])
    with pytest.raises(ValueError, match=r"which the run in .* reads; name another file"):
        commands.review_run([str(run), "--csv", str(out)])
    with pytest.raises(ValueError, match=r"which the run in .* reads; name another file"):
        commands.score_edges([str(run), str(edges), "-o", str(out)])
    assert [path.read_bytes() for path in (edges, nodes)] == before


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("made")
    edges, nodes = tables(folder)
    assert main.main(["run", str(edges), str(nodes), f"run_dir={folder / 'run'}", *as_words(FAST)]) == 0
    return folder / "run", edges, nodes


def test_review__of_a_single_node_is_the_head_of_the_list(made):
    run = FinishedRun(made[0])
    first = run.ranked.slice(0, 1)["id"][0].as_py()
    printed = commands.review_run([str(made[0]), "1"])
    assert f"1  {first}   (head of the list)" in printed


def test_interrupt__without_a_signal_has_a_name(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_dispatch", interrupted)
    assert main.main(["run"]) == 130
    assert capsys.readouterr().err.startswith("stopped by SIGINT; to go on")
