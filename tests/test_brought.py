"""Files among the words of a command line become options, with columns that are guessed."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from hcm_scale.cli import main, overrides
from hcm_scale.config import MatrixGraph, TablesGraph

SMALL = ["hops.num_sources=20", "hops.pairs_per_class=5", "world=cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an edge table and a node table whose columns have names of their own."""
    monkeypatch.chdir(tmp_path)
    edges = [(f"n{i}", f"n{(i * 7 + 1) % 40}") for i in range(40)]
    Path("my edges.csv").write_text("\n".join(["payer,payee", *(f"{u},{v}" for u, v in edges)]))
    Path("nodes.csv").write_text("\n".join(["age,account", *(f"{i % 9},n{i}" for i in range(40))]))
    return tmp_path


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["hcm-scale", *words])
    return main.main(), capsys.readouterr().err


def options(run_dir: str) -> dict[str, object]:
    return json.loads(Path(run_dir, "config.json").read_text())["graph"]


def test_tables__are_read_with_guessed_columns_and_the_log_says_so(monkeypatch, capsys):
    status, err = ran(monkeypatch, capsys, "ingest", "my edges.csv", "nodes.csv", *SMALL)
    assert status == 0, err
    assert "graph.target_column=payee, graph.id_column=account (say so where it is another column)" in err
    assert "graph.source_column=payer" in Path("runs/my-edges/log").read_text()
    found = options("runs/my-edges")
    assert [found[name] for name in ("path", "nodes", "id_column", "target_column", "name")] == [
        *("my edges.csv", "nodes.csv", "account", "payee", "my edges")
    ]


def test_guess__is_told_also_where_an_error_follows(monkeypatch, capsys):
    with Path("my edges.csv").open("a") as stream:
        stream.write("\nn1,nobody")
    status, err = ran(monkeypatch, capsys, "ingest", "my edges.csv", "nodes.csv", *SMALL)
    assert status == 2
    assert err.index("guessed from the tables: graph.source_column=payer") < err.index("error: my edges.csv, nodes.csv")


def test_keys_that_are_given__win(monkeypatch, capsys):
    words = ["my edges.csv", "nodes.csv", "graph.name=mine", "graph.source_column=payee", "graph.target_column=payer"]
    status, err = ran(monkeypatch, capsys, "ingest", *words, *SMALL)
    assert status == 0, err
    found = options("runs/mine")
    assert (found["source_column"], found["target_column"], found["id_column"]) == ("payee", "payer", "account")


def test_matrix__is_read_by_its_own_source(monkeypatch, capsys):
    np.savez("graph.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), x=np.eye(3, dtype=np.float32))
    status, err = ran(monkeypatch, capsys, "ingest", "graph.npz", *SMALL)
    assert status == 0, err
    assert options("runs/graph")["source"] == "matrix"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["edge"], "'edge' is neither an option, KEY=VALUE, a file that is there"),
        (["node.csv"], "error: node.csv is not there; did you mean 'nodes.csv'?"),
        (["nowhere/nodes.csv"], "error: nowhere/nodes.csv is not there: there is no folder nowhere"),
        (
            ["--links", "my edges.csv"],
            "--links is not a flag (options are KEY=VALUE, files are named alone); hcm-scale",
        ),
        (["--seed", "1"], "--seed is not a flag (options are KEY=VALUE, files are named alone); did you mean 'seed'?"),
        (["graph.exclude=[Eröffnet]", "nodes.csv"], """are quoted: 'graph.exclude=["Eröffnet"]'"""),
        (["graph.exclude=age", "nodes.csv"], "list[str]; a list is written in brackets: graph.exclude=[age]"),
        (["score.fdr=10%"], "at most 0.999; 10% is written score.fdr=0.1"),
        (["world.device=gpu"], "world.device=gpu is not known; legal are auto, cpu, cuda; did you mean 'cuda'?"),
        (["nodes.csv", "my edges.csv", "nodes.csv"], "3 files; legal are an edge table and a node table"),
        (["nodes.csv", "graph.path=a.csv"], "nodes.csv and graph.path=... both name the graph"),
        (["my edges.csv", "nodes.csv", "graph.source_column=payr"], "graph.source_column='payr' is not a column of my"),
    ],
)
def test_mistake__is_named(monkeypatch, capsys, words, said):
    status, err = ran(monkeypatch, capsys, "ingest", *words)
    assert status == 2
    assert said in err
    assert not Path("runs").exists()


def test_finished_run_of_other_files__is_kept_unless_it_is_to_be_replaced(monkeypatch, capsys):
    Path("other").mkdir()
    Path("other/edges.csv").write_text(Path("my edges.csv").read_text())
    assert ran(monkeypatch, capsys, "ingest", "my edges.csv", "nodes.csv", "run_dir=r", *SMALL)[0] == 0
    Path("r/scores").mkdir()
    other = ["ingest", "other/edges.csv", "nodes.csv", "run_dir=r", *SMALL]
    status, err = ran(monkeypatch, capsys, *other)
    assert status == 2
    assert "run_dir=r holds a finished run of my edges.csv, nodes.csv, and this one is of other/edges.csv, node" in err
    assert options("r")["path"] == "my edges.csv"
    same = [f"{Path.cwd()}/my edges.csv", "nodes.csv", "graph.directed=true", "graph.name=x", "run_dir=r", *SMALL]
    assert ran(monkeypatch, capsys, "ingest", *same)[0] == 0
    Path("my edges.csv").write_text("payer,payee\nn0,n1\n")
    assert ran(monkeypatch, capsys, "ingest", *same)[0] == 0
    assert ran(monkeypatch, capsys, *other, "overwrite=true")[0] == 0
    assert options("r")["path"] == "other/edges.csv"


def test_value_of_a_flag__is_no_file(monkeypatch):
    Path("job").touch()
    assert main._take_files(["--cfg", "job", "nodes.csv", "-m"]) == (["nodes.csv"], ["--cfg", "job", "-m"])


def test_columns_of_an_option_file__are_not_guessed(caplog):
    caplog.set_level(logging.INFO)
    given = TablesGraph(path="my edges.csv", nodes="nodes.csv", source_column="payee", target_column="payer")
    assert overrides.name_columns(given, []).source_column == "payee"
    assert "source_column" not in caplog.text
    assert overrides.name_columns(MatrixGraph(), []) == MatrixGraph()


def test_url__is_fetched_to_be_guessed_from(folder):
    given = TablesGraph(path=f"file://{folder}/my%20edges.csv", nodes="nodes.csv")
    assert overrides.name_columns(given, []).id_column == "account"
