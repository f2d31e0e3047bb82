"""Option files of the user's own, in conf/ of the working folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hcm_scale import HCM
from hcm_scale.cli import help, main

MINE = """# @package _global_
defaults:
  - override /graph: small
purify:
  ratio: 0.3
"""
SMALL = """defaults:
  - schema/synthetic@_here_
  - _self_
name: small one
num_nodes: 60
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with a space in its name, that has option files."""
    folder = tmp_path / "my work"
    for name, text in {"experiment/mine.yaml": MINE, "graph/small.yaml": SMALL}.items():
        path = folder / "conf" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.chdir(folder)
    return folder / "conf"


def said(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["hcm-scale", *words])
    return main.main(), *capsys.readouterr()


def test_own_experiment__composes_with_our_schema(monkeypatch, capsys):
    status, _, err = said(monkeypatch, capsys, "ingest", "experiment=mine", "world=cpu", "graph.num_attributes=3")
    assert status == 0, err
    config = json.loads(Path("runs/small-one/config.json").read_text())
    assert (config["graph"]["num_nodes"], config["purify"]["ratio"]) == (60, 0.3)


def test_own_option__composes_where_hydra_runs_the_job(monkeypatch, capsys):
    status, out, err = said(monkeypatch, capsys, "run", "--cfg", "job", "graph=small")
    assert status == 0, err
    assert "num_nodes: 60" in out


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("experiment=mien", "; did you mean 'mine'?"),
        ("graph=smal", "; did you mean 'small'?"),
    ],
)
def test_misspelt_name__is_refused_with_the_nearest_of_both_places(monkeypatch, capsys, word, answer):
    status, _, err = said(monkeypatch, capsys, "run", word)
    assert status == 2
    assert answer in err
    assert "best/enron" in err or "tables" in err


def test_unknown_key_in_an_own_file__is_named(monkeypatch, capsys, own):
    (own / "experiment" / "mine.yaml").write_text(MINE.replace("ratio", "ratoi"))
    status, _, err = said(monkeypatch, capsys, "run", "experiment=mine")
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
def test_fault_in_an_own_file__is_told_as_one_of_the_command_line(monkeypatch, capsys, own, line, answer):
    (own / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{line}\n")
    status, _, err = said(monkeypatch, capsys, "run", "experiment=mine")
    assert status == 2
    assert err.startswith(f"error: experiment/mine.yaml: {answer}")
    assert err.count("\n") == 1
    assert ("[override /graph: NAME]" in err) == ("graph" in line)


def test_own_file_that_is_no_yaml__is_named(monkeypatch, capsys, own):
    (own / "graph" / "small.yaml").write_text("name: [")
    status, _, err = said(monkeypatch, capsys, "run", "graph=small")
    assert status == 2
    assert "small.yaml" in err
    assert err.count("\n") == 1


def test_own_file_with_the_name_of_ours__is_refused(monkeypatch, capsys, own):
    (own / "graph" / "tables.yaml").write_text(SMALL)
    status, _, err = said(monkeypatch, capsys, "run", "graph=tables")
    assert status == 2
    assert "tables.yaml has the name of an option of the package" in err


def test_help__lists_own_options():
    assert " mine" in help.full_page()
    assert "rmat | small | sql" in help.full_page()


def test_own_option_of_a_group__is_taken_from_python_as_from_the_command_line(monkeypatch, capsys, own):
    (own / "purify").mkdir()
    (own / "purify" / "mine.yaml").write_text("ratio: 0.3\n")
    (own / "purify" / "wide.yaml").write_text("# @package _global_\nhops:\n  classes: 5\n")
    (own / "purify" / "both.yaml").write_text("defaults:\n  - cosine\n  - _self_\nratio: 0.1\n")
    script = "import sys; from hcm_scale import HCM; print([HCM({'purify': n}).config.purify for n in sys.argv[1:]])"
    alone = subprocess.run([sys.executable, "-c", script, "mine", "both"], check=True, capture_output=True, text=True)
    assert "ratio=0.3" in alone.stdout  # where no command line has made the folder known to Hydra
    assert "similarity='cosine', ratio=0.1" in alone.stdout
    for name in ("mine", "wide", "both"):
        status, out, err = said(monkeypatch, capsys, "run", "--cfg", "job", f"purify={name}")
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
    (own / "purify" / "none.yaml").touch()
    with pytest.raises(ValueError, match="has the name of an option of the package"):
        HCM({"purify": "none"})
