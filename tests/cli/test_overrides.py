"""Words become a configuration: files among them, with columns that are guessed, and option files of the user's own."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from hcm_scale import HCM
from hcm_scale.cli import help, main, overrides
from hcm_scale.graph import Graph

SMALL = ["hops.num_sources=20", "hops.pairs_per_class=5", "world.device=cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an edge table and a node table whose columns have names of their own."""
    monkeypatch.chdir(tmp_path)
    edges = [(f"n{i}", f"n{(i * 7 + 1) % 40}") for i in range(40)]
    Path("my edges.csv").write_text("\n".join(["payer,payee", *(f"{u},{v}" for u, v in edges)]))
    Path("nodes.csv").write_text("\n".join(["age,account", *(f"{i % 9},n{i}" for i in range(40))]))
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    return main.main([*words]), capsys.readouterr().err


def options(run_dir: str) -> dict[str, object]:
    return json.loads(Path(run_dir, "config.json").read_text())["graph"]


def test_tables__are_read_with_guessed_columns_and_the_log_says_so(capsys):
    status, err = ran(capsys, "run", "until=ingest", "my edges.csv", "nodes.csv", *SMALL)
    assert status == 0, err
    assert "graph.target_column=payee, graph.id_column=account (where a guess is wrong, give this option)" in err
    assert "graph.source_column=payer" in Path("runs/my-edges/log").read_text()
    found = options("runs/my-edges")
    assert [found[name] for name in ("path", "nodes", "id_column", "target_column", "name")] == [
        *("my edges.csv", "nodes.csv", "account", "payee", "my edges")
    ]


def test_guess__is_told_also_where_an_error_follows(capsys):
    with Path("my edges.csv").open("a") as stream:
        stream.write("\nn1,nobody")
    status, err = ran(capsys, "run", "until=ingest", "my edges.csv", "nodes.csv", *SMALL)
    assert status == 2
    assert err.index("guessed from the tables: graph.source_column=payer") < err.index("error: my edges.csv, nodes.csv")


def test_keys_that_are_given__win(capsys):
    words = ["my edges.csv", "nodes.csv", "graph.name=mine", "graph.source_column=payee", "graph.target_column=payer"]
    status, err = ran(capsys, "run", "until=ingest", *words, *SMALL)
    assert status == 0, err
    found = options("runs/mine")
    assert (found["source_column"], found["target_column"], found["id_column"]) == ("payee", "payer", "account")


def test_matrix__is_read_by_its_own_source(capsys):
    np.savez("graph.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), x=np.eye(3, dtype=np.float32))
    status, err = ran(capsys, "run", "until=ingest", "graph.npz", *SMALL)
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
def test_mistake__is_named(capsys, words, said):
    status, err = ran(capsys, "run", "until=ingest", *words)
    assert status == 2
    assert said in err
    assert not Path("runs").exists()


def test_finished_run_of_other_files__is_kept_unless_it_is_to_be_replaced(capsys, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("elsewhere")
    Path("other").mkdir()
    Path("other/edges.csv").write_text(Path("my edges.csv").read_text())
    assert ran(capsys, "run", "until=ingest", "my edges.csv", "nodes.csv", "run_dir=r", *SMALL)[0] == 0
    Path("r/scores").mkdir()
    other = ["run", "until=ingest", "other/edges.csv", "nodes.csv", "run_dir=r", *SMALL]
    status, err = ran(capsys, *other)
    assert status == 2
    assert "run_dir=r holds a finished run of my edges.csv, nodes.csv, and this one is of other/edges.csv, node" in err
    assert options("r")["path"] == "my edges.csv"
    before, moved = Path.cwd(), shutil.copytree(Path.cwd(), tmp_path / "moved")
    with contextlib.chdir(moved):
        status, err = ran(capsys, "run", "until=ingest", "my edges.csv", "nodes.csv", "run_dir=r", *SMALL)
    assert f"a finished run of my edges.csv, nodes.csv in {before}, and this one is of my edges.csv, nodes.csv: " in err
    same = [f"{Path.cwd()}/my edges.csv", "nodes.csv", "graph.directed=true", "graph.name=x", "run_dir=r", *SMALL]
    assert ran(capsys, "run", "until=ingest", *same)[0] == 0
    Path("my edges.csv").write_text("payer,payee\nn0,n1\n")
    assert ran(capsys, "run", "until=ingest", *same)[0] == 0
    assert ran(capsys, *other, "overwrite=true")[0] == 0
    assert options("r")["path"] == "other/edges.csv"


def test_value_of_a_flag__is_no_file(capsys):
    Path("job").touch()
    status, _ = ran(capsys, "run", "--cfg", "job", "nodes.csv")
    assert status == 0


def test_columns_of_an_option_file__are_not_guessed(capsys):
    Path("conf/graph").mkdir(parents=True)
    columns = "source_column: payee\ntarget_column: payer\n"
    Path("conf/graph/mine.yaml").write_text(f"defaults:\n  - schema/tables@_here_\n  - _self_\n{columns}")
    status, err = ran(capsys, "run", "until=ingest", "my edges.csv", "nodes.csv", "graph=mine", *SMALL)
    assert status == 0, err
    assert "source_column" not in err
    assert (options("runs/my-edges")["source_column"], options("runs/my-edges")["id_column"]) == ("payee", "account")


def test_url__is_fetched_to_be_guessed_from(folder, capsys):
    words = [f"file://{folder}/my%20edges.csv", f"file://{folder}/nodes.csv", "run_dir=r"]
    status, err = ran(capsys, "run", "until=ingest", *words, *SMALL)
    assert status == 0, err
    assert options("r")["id_column"] == "account"


MINE = """# @package _global_
defaults:
  - override /graph: small
purify:
  ratio: 0.3
"""
GRAPH = """defaults:
  - schema/synthetic@_here_
  - _self_
name: small one
num_nodes: 60
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with a space in its name, that has option files."""
    folder = tmp_path / "my work"
    for name, text in {"experiment/mine.yaml": MINE, "graph/small.yaml": GRAPH}.items():
        path = folder / "conf" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.chdir(folder)
    return folder / "conf"


def said(capsys, *words: str) -> tuple[int, str, str]:
    return main.main([*words]), *capsys.readouterr()


def test_own_experiment__composes_with_our_schema(capsys, own):
    status, _, err = said(
        capsys, "run", "until=ingest", "experiment=mine", "world.device=cpu", "graph.num_attributes=3"
    )
    assert status == 0, err
    config = json.loads(Path("runs/small-one/config.json").read_text())
    assert (config["graph"]["num_nodes"], config["purify"]["ratio"]) == (60, 0.3)


def test_own_option__composes_where_hydra_runs_the_job(capsys, own):
    status, out, err = said(capsys, "run", "--cfg", "job", "graph=small")
    assert status == 0, err
    assert "num_nodes: 60" in out


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("experiment=mien", "; did you mean 'mine'?"),
        ("graph=smal", "; did you mean 'small'?"),
    ],
)
def test_misspelt_name__is_refused_with_the_nearest_of_both_places(capsys, word, answer, own):
    status, _, err = said(capsys, "run", word)
    assert status == 2
    assert answer in err
    assert "best/enron" in err or "tables" in err


def test_unknown_key_in_an_own_file__is_named(capsys, own):
    (own / "experiment" / "mine.yaml").write_text(MINE.replace("ratio", "ratoi"))
    status, _, err = said(capsys, "run", "experiment=mine")
    assert status == 2
    assert "ratoi" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("purify: {ratoi: 0.3}", "'purify.ratoi' is not an option; did you mean 'purify.ratio'?"),
        ("purify: {ratio: much}", "purify.ratio is not legal: float, at least 0.0 and at most 0.99"),
        ("graph: {path: a.csv}", "'graph.path' is not an option of this source; those that have it: graph=tables, "),
    ],
)
def test_fault_in_an_own_file__is_told_as_one_of_the_command_line(capsys, own, line, answer):
    (own / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{line}\n")
    status, _, err = said(capsys, "run", "experiment=mine")
    assert status == 2
    assert err.startswith(f"error: experiment/mine.yaml: {answer}")
    assert err.count("\n") == 1
    assert ("[override /graph: NAME]" in err) == ("graph" in line)


def test_own_file_that_is_no_yaml__is_named(capsys, own):
    (own / "graph" / "small.yaml").write_text("name: [")
    status, _, err = said(capsys, "run", "graph=small")
    assert status == 2
    assert "small.yaml" in err
    assert err.count("\n") == 1


def test_own_file_with_the_name_of_ours__is_refused(capsys, own):
    (own / "graph" / "tables.yaml").write_text(GRAPH)
    status, _, err = said(capsys, "run", "graph=tables")
    assert status == 2
    assert "tables.yaml has the name of an option of the package" in err


def test_help__lists_own_options(own):
    assert " mine" in help.full_page()
    assert "rmat | small | sql" in help.full_page()


def test_own_option_of_a_group__is_taken_from_python_as_from_the_command_line(capsys, own):
    (own / "purify").mkdir()
    (own / "purify" / "mine.yaml").write_text("ratio: 0.3\n")
    (own / "purify" / "wide.yaml").write_text("# @package _global_\nhops:\n  classes: 5\n")
    (own / "purify" / "both.yaml").write_text("defaults:\n  - cosine\n  - _self_\nratio: 0.1\n")
    script = "import sys; from hcm_scale import HCM; print([HCM({'purify': n}).config.purify for n in sys.argv[1:]])"
    alone = subprocess.run([sys.executable, "-c", script, "mine", "both"], check=True, capture_output=True, text=True)
    assert "ratio=0.3" in alone.stdout  # where no command line has made the folder known to Hydra
    assert "similarity='cosine', ratio=0.1" in alone.stdout
    for name in ("mine", "wide", "both"):
        status, out, err = said(capsys, "run", "--cfg", "job", f"purify={name}")
        assert status == 0, err
        composed = OmegaConf.create(out)
        found = HCM({"purify": name}).config
        assert vars(found.purify) == composed.purify
        assert found.hops.classes == composed.hops.classes
    with pytest.raises(ValueError, match="purify=mien is not known; legal are both, cosine, euclidean, jaccard, mine"):
        HCM({"purify": "mien"})
    with pytest.raises(ValueError, match=r"purify=\.\./graph/small is not known"):
        HCM({"purify": "../graph/small"})
    (own / "purify" / "both.yaml").write_text("defaults:\n  - cosin\n")
    with pytest.raises(ValueError, match="cosin"):
        HCM({"purify": "both"})
    (own / "purify" / "cosine.yaml").touch()
    with pytest.raises(ValueError, match="has the name of an option of the package"):
        HCM({"purify": "cosine"})


def test_node_tables_of_several_types__are_one_word(capsys):
    lines = Path("nodes.csv").read_text().splitlines()
    Path("users.csv").write_text("\n".join(lines[:3]) + "\n")
    Path("shops.csv").write_text("\n".join([lines[0], *lines[3:]]) + "\n")
    status, err = ran(capsys, "run", "until=ingest", "my edges.csv", "users.csv,shops.csv", *SMALL)
    assert status == 0, err
    assert "graph.node_type_column=type" in err
    assert options("runs/my-edges")["nodes"] == "users.csv,shops.csv"
    graph = Graph.open("runs/my-edges/graph")
    assert graph.node_types.names == ("shops", "users")


@pytest.mark.parametrize("quote", ["'", '"', ""])
def test_text_in_quotes__as_hydra_asks_for_it_is_the_text(quote):
    request = overrides.read_words("run", [f"fail_on={quote}drift,missing-column{quote}"])
    with overrides.composing():
        assert overrides.compose_config(request.overrides).fail_on == "drift,missing-column"
