"""The pages for users are programs that run: their Python blocks and their shell blocks, from top to bottom,
and errors that a page shows are what is printed.
"""

import functools
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from helpers import FAST, as_words, small_graph
from scipy import io

import hcm_scale
from hcm_scale import HCM
from hcm_scale.cli import overrides
from hcm_scale.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shell(tmp_path_factory, monkeypatch):
    """A shell in which `hcm-scale` is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "hcm-scale"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hcm_scale "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(block: str) -> None:
        done = subprocess.run(["bash", "-euc", block], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        print(done.stdout)

    return run


def run_commands(block: str) -> None:
    """Runs a block of lines that all begin with hcm-scale, in this process."""
    for line in block.replace("\\\n", " ").splitlines():
        name, *words = shlex.split(line)
        assert (name, main(words)) == ("hcm-scale", 0), line


def run_page(name: str, run_block: Callable[[str], None] = run_commands) -> tuple[int, int]:
    """Runs a page in the current folder; how many blocks of Python and of the shell it has."""
    blocks = re.findall(r"```(python|bash)\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, name, "exec"), names)
        else:
            run_block(block)
    languages = [language for language, _ in blocks]
    return languages.count("python"), languages.count("bash")


@pytest.mark.gate
def test_python_page__runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_page("python.md") == (10, 0)
    said = capsys.readouterr().out
    assert "{'source_column': 'payer', 'target_column': 'payee', 'id_column': 'account'}" in said
    assert "rank" in said
    assert "scores 1 1 stage" in said


@pytest.mark.gate
def test_tutorial__runs_from_top_to_bottom_and_finds_what_it_planted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_page("tutorial.md") == (5, 4)
    said = capsys.readouterr().out
    assert "`time from 0 to 6 h` when it is `payer`: 31 of its 31 rows, where 6% is usual" in " ".join(said.split())
    mule = re.search(r"acc-0071   rank (\d+) of 1,500", said)
    assert mule is not None
    assert int(mule[1]) <= 15, said
    flagged, found = map(int, re.search(r"(\d+) flagged, (\d+) of 15 planted", said).groups())
    assert found >= 12
    assert flagged - found <= 3
    assert "drift   like the training graph" in said
    rank = int(re.search(r"\((\d+), '\w+', True\)", said)[1])
    assert rank <= 20


@pytest.mark.gate
def test_nightly_page__has_a_job_that_runs(tmp_path, monkeypatch, shell):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    payments = pd.DataFrame(rng.integers(0, 200, (900, 2)), columns=["payer", "payee"])
    payments.to_csv("payments.csv", index=False)
    pd.DataFrame({"account": range(200), "income": rng.normal(size=200)}).to_csv("accounts.csv", index=False)
    (options,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/nightly.md").read_text(), re.S)
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/nightly.yaml").write_text(options)
    assert run_page("nightly.md", shell) == (0, 1)
    assert pd.read_csv("strange.csv")["flagged"].all()
    (log,) = Path("runs").glob("*/log")
    assert {"time", "level", "message"} <= set(json.loads(log.read_text().splitlines()[-1]))
    shutil.copytree(ROOT / "examples/nightly", ".", dirs_exist_ok=True)
    night = ["./nightly.sh", "2026-11-17", "fail_on=flagged<1000"]
    assert subprocess.run(night, capture_output=True).returncode == 3
    listed = pd.read_csv("runs/2026-11-17.csv")
    assert (listed["rank"].tolist(), listed["flagged"].any()) == ([*range(1, 101)], False)  # nothing stands out
    assert subprocess.run([*night, "graph.path=nowhere.csv"], capture_output=True).returncode == 2
    assert subprocess.run([night[0], "2026-11-18", *night[2:]], capture_output=True).returncode == 3
    assert json.loads(Path("runs/2026-11-18/config.json").read_text())["since"] == "runs/2026-11-17"
    assert "nodes flagged now, not before: 0" in Path("runs/2026-11-18.changes.txt").read_text()


def test_kubernetes_job__is_one_and_starts_a_run_by_torchrun():
    from torch.distributed.run import get_args_parser

    job = yaml.safe_load((ROOT / "examples/kubernetes/job.yaml").read_text())
    pytest.importorskip("kubernetes_validate").validate(job, "1.31", strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    given = get_args_parser().parse_args(container["args"])
    assert (given.module, given.training_script, given.nproc_per_node) == (True, "hcm_scale", "gpu")
    command, *words = given.training_script_args
    assert (command, words[0]) == ("run", "payments/")
    with overrides.composing():
        request = overrides.read_words(command, words[1:])
        assert overrides.compose_config(request.overrides).log == "json"


def write_faulty_tables() -> None:
    """Tables of 60 nodes in a ring, each with one fault that the page of errors names."""
    ids = [f"n{number:02}" for number in range(60)]
    edges = pd.DataFrame(
        [(ids[a], ids[(a + step) % 60]) for a in range(60) for step in (1, 2)], columns=["source", "target"]
    )
    nodes = pd.DataFrame({"id": ids, "income": np.arange(60.0) % 7, "kind": ["a", "b", "c"] * 20})
    edges.to_csv("edges.csv", index=False)
    nodes.to_csv("nodes.csv", index=False)
    Path("empty.csv").write_text("")
    Path("header.csv").write_text("source,target\n")
    Path("notes.txt").write_text("hello")
    nodes.assign(kind="café").to_csv("latin.csv", index=False, encoding="latin-1")
    Path("strangers.csv").write_text("source,target\nn00,n01\nn01,n02\nn02,nobody\n")
    pd.concat([nodes, nodes[:1]]).to_csv("twice.csv", index=False)
    pd.DataFrame({"source": [0, 1], "target": [1, 2]}).to_parquet("numbers.parquet")
    Path("gap.csv").write_text("source,target\nn00,n01\n,n02\n")
    nodes.assign(income=[*range(5), np.inf, *range(54)]).to_parquet("infinite.parquet")
    nodes.assign(tags=[[1, 2]] * 60).to_parquet("lists.parquet")
    nodes.assign(fraud="maybe").to_csv("maybe.csv", index=False)
    pairs = itertools.islice(itertools.combinations(range(30), 2), 5, None)  # all but five, so that degrees differ
    pd.DataFrame(pairs, columns=["source", "target"]).to_csv("dense.csv", index=False)
    io.savemat("odd.mat", {"stuff": np.eye(3)})


EACH_COMMAND = """
import os, shlex, sys, hydra
from hcm_scale.cli import main
from hcm_scale.run import launch, pipeline

for command in sys.stdin.read().splitlines():
    child = os.fork()  # each in a process of its own, which need not import everything anew
    if not child:
        with open("said", "w") as said:
            os.dup2(said.fileno(), 2)
        sys.argv = shlex.split(command)
        sys.exit(main.main())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open("said") as said:
        print(status, said.read().splitlines()[-1], flush=True)
"""


@pytest.mark.gate
@pytest.mark.skipif(torch.cuda.is_available(), reason="the page has what is said where there is no GPU")
def test_errors__are_as_they_are_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_faulty_tables()
    tables = {"graph": "tables", "graph.path": "edges.csv", "graph.nodes": "nodes.csv", "run_dir": "runs/monday"}
    assert main(["run", *as_words(tables | FAST)]) == 0
    shutil.copytree("runs/monday", "runs/hurt")
    with open("runs/hurt/purified/dropped.npy", "ab") as file:
        file.write(b"x")

    page = re.findall(r"^\$ (hcm-scale .*)\n(error: .*)$", (ROOT / "docs/errors.md").read_text(), re.M)
    assert len(page) == 34
    commands = "\n".join(command for command, _ in page)
    done = subprocess.run(
        [sys.executable, "-c", EACH_COMMAND], input=commands, capture_output=True, text=True, check=True
    )
    found = [(int(line[0]), line[2:]) for line in done.stdout.splitlines()]
    told = [".+".join(map(re.escape, line.split("..."))) for _, line in page]
    others = [now for now, line in zip(found, told, strict=True) if now[0] != 2 or not re.fullmatch(line, now[1])]
    assert others == []


@pytest.mark.gate
def test_notebook__runs_and_finds_what_it_planted(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    import nbformat  # here, since every process that collects tests would wait for it
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples/accounts.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "\n".join(str(cell.get("outputs")) for cell in notebook.cells)
    assert "'source_column': 'payer'" in shown
    counts = re.search(r"True +(\d+) +(\d+)", next(line for line in shown.splitlines() if "planted" in line))
    assert int(counts[2]) >= 12
    assert " of 1,500 (above " in shown


def test_page_on_plug_ins__is_followed_to_the_letter(tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric")
    graph = small_graph()
    page = (ROOT / "docs" / "plugins.md").read_text()
    names = {"np": np, "data": graph, "edges": {"source": [0, 1], "target": [1, 2]}, "nodes": None}
    monkeypatch.setattr(hcm_scale, "HCM", functools.partial(HCM, FAST))
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    for block in blocks:
        exec(compile(block.replace("return ...", "return np.diff(graph.indptr)"), "plugins.md", "exec"), names)
    assert len(blocks) == 4
    assert sorted(names["detector"].table["night_rank"].to_pylist())[0] == 1
    assert names["gexf"]("a.gexf") == (names["edges"], None)
