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
from hcm_scale.graph import Graph
from hcm_scale.synthetic.payments import payments

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


def without_numbers(line: str) -> str:
    """A line of what is printed, whatever its numbers, ids of cases and gaps are."""
    return re.sub(r"\b[0-9A-Z]{10}\b|[\d.,]+(e-\d+)?", "#", " ".join(line.split()))


@pytest.mark.gate
def test_tutorial__runs_from_top_to_bottom_and_finds_what_it_planted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_page("tutorial.md") == (5, 4)
    said, told = capsys.readouterr()
    printed = {without_numbers(line) for line in (said + told).splitlines()}
    for block in re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.S):
        assert {without_numbers(line) for line in block.splitlines() if line.strip(" .")} - printed == set()
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
    transfers = pd.DataFrame(rng.integers(0, 200, (900, 2)), columns=["payer", "payee"])
    transfers.to_csv("payments.csv", index=False)
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


def commands_of(page: str) -> list[list[str]]:
    """The words of every command in the blocks of a page, in their order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
    of_shell = [block for language, block in blocks if language in ("", "bash")]
    lines = [line for block in of_shell for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("hcm-scale ")]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> None:
    """In the current folder the tables and runs that pages name: payments of 2,400 accounts, and a small graph."""
    monkeypatch.chdir(tmp_path)
    rows, _ = payments(2_400)
    ids = sorted({*rows["payer"].to_pylist(), *rows["payee"].to_pylist()})
    tables = {
        "payments": rows.to_pandas(),
        "tuesday": rows.to_pandas(),
        "today": rows.slice(len(rows) - 50).to_pandas(),
    }
    tables["accounts"] = pd.DataFrame(
        {"account": ids, "income": np.arange(len(ids)) % 97, "land": ["at", "de"] * 1_200}
    )
    tables["confirmed-cases"] = pd.DataFrame({"id": ids[:20], "verdict": ["bad", "good"] * 10})
    for some in ("", "2"):
        graph = small_graph(300)
        ends = np.repeat(np.arange(300), np.diff(graph.indptr)), np.asarray(graph.indices)
        tables[f"edges{some}"] = pd.DataFrame({"source": ends[0], "target": ends[1]})
        tables[f"nodes{some}"] = pd.DataFrame(np.asarray(graph.x), columns=list("abc")).rename_axis("id").reset_index()
    for name, table in tables.items():
        table.to_csv(f"{name}.csv", index=False)
    assert main(["run", "payments.csv", *as_words(FAST)]) == 0
    for name in ("monday", "accounts", "other"):
        shutil.copytree("runs/payments", f"runs/{name}")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("page", "count"),
    [("README.md", 11), ("docs/payments.md", 5), ("docs/cases.md", 9), ("docs/verdicts.md", 7), ("docs/output.md", 2)],
)
@pytest.mark.usefixtures("desk")
def test_pages__have_commands_that_run_one_after_the_other(page, count):
    commands = commands_of(page)
    assert len(commands) == count
    for words in commands:
        if words[0] == "teach" and (asked := Path(words[2])).name == "review.csv":  # a person has filled it in
            table = pd.read_csv(asked)
            table.assign(verdict=["bad", "good"] * (len(table) // 2) + ["bad"] * (len(table) % 2)).to_csv(
                asked, index=False
            )
        if words[0] != "serve":  # until it is stopped
            assert main([*words, *(as_words(FAST) if words[0] == "run" else [])]) == 0, words


@pytest.mark.gate
def test_page_on_data__has_commands_that_read_what_they_name(tmp_path, monkeypatch):
    """All but those of other machines, each in a folder of its own."""
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    shops = [f"s{number}" for number in range(40)]
    users = [f"u{number}" for number in range(80)]
    rng = np.random.default_rng(0)
    edges = pd.DataFrame({"payer": rng.choice(users, 400), "payee": rng.choice(shops, 400)})
    sides = {
        name: pd.DataFrame({"id": ids, "size": rng.normal(size=len(ids))})
        for name, ids in {"users": users, "shops": shops}.items()
    }
    nodes = pd.concat([table.assign(type=name, role=name) for name, table in sides.items()])
    for name, table in {"edges": edges, "purchases": edges, "nodes": nodes, **sides}.items():
        table.to_csv(f"{name}.csv", index=False)
    for folder, table in {"edges": edges, "nodes": nodes}.items():
        Path(folder).mkdir()
        table.to_parquet(f"{folder}/part-0.parquet")
    edges.to_parquet("edges.parquet")
    with duckdb.connect("bank.db") as bank:
        bank.sql("create table transfers as from edges")
        bank.sql("create table accounts as from nodes")
    elsewhere = re.compile("s3://|https://|postgresql://")
    commands = [words for words in commands_of("docs/data.md") if not elsewhere.search(" ".join(words))]
    assert len(commands) == 7
    for number, words in enumerate(commands):
        assert main([*words, f"run_dir=runs/{number}", "until=ingest"]) == 0, words
        assert Graph.open(f"runs/{number}/graph").num_nodes == 120


def test_readme__has_python_that_runs(monkeypatch):
    graph = small_graph()
    ids = ["alice", *(f"n{node}" for node in range(1, graph.num_nodes))]
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), np.asarray(graph.indices)
    edges = pd.DataFrame({end: np.array(ids)[own] for end, own in zip(("source", "target"), ends, strict=True)})
    names = {"edges": edges, "nodes": pd.DataFrame(np.asarray(graph.x), columns=list("abc")).assign(id=ids)}
    monkeypatch.setattr(hcm_scale, "HCM", functools.partial(HCM, FAST))
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(compile(block, "README.md", "exec"), names)
    assert names["detector"].ids_[0] == "alice"


@pytest.mark.gate
def test_readme__shows_what_the_demo_says(tmp_path, monkeypatch, capsys):
    """The same lines, and numbers that are the same but for what another processor makes of them."""
    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 0
    said, page = capsys.readouterr().out, (ROOT / "README.md").read_text()
    for pattern in (
        r"(\d+) cases, (\d+) of them flagged",
        r"(\d+) nodes stand out at a",
        r"^ +1  \w{10} +below 1e-6 +(\d+)",
    ):
        (now,), (then,) = (re.findall(pattern, text, re.M) for text in (said, page))
        numbers = [np.array(each if isinstance(each, tuple) else [each], float) for each in (now, then)]
        np.testing.assert_allclose(*numbers, rtol=0.15)
    for line in (
        "case  id                   p   members   held together by",
        "rank  id                           Score",
    ):
        assert line in said
        assert line in page


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
