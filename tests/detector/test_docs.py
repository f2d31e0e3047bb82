"""The pages for users are programs that run: their Python blocks and their shell blocks, from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def run_page(name: str, shell) -> tuple[int, int]:
    """Runs a page in the current folder; how many blocks of Python and of the shell it has."""
    blocks = re.findall(r"```(python|bash)\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, name, "exec"), names)
        else:
            shell(block)
    languages = [language for language, _ in blocks]
    return languages.count("python"), languages.count("bash")


@pytest.mark.gate
def test_python_page__runs_from_top_to_bottom(tmp_path, monkeypatch, capsys, shell):
    monkeypatch.chdir(tmp_path)
    assert run_page("python.md", shell) == (6, 0)
    said = capsys.readouterr().out
    assert "{'source_column': 'payer', 'target_column': 'payee', 'id_column': 'account'}" in said
    assert "rank" in said
    assert "scores 1 1 stage" in said


@pytest.mark.gate
def test_tutorial__runs_from_top_to_bottom_and_finds_what_it_planted(tmp_path, monkeypatch, capsys, shell):
    monkeypatch.chdir(tmp_path)
    assert run_page("tutorial.md", shell) == (4, 3)
    said = capsys.readouterr().out
    assert "acc-0071   rank 1 of 1,500" in said
    flagged, found = map(int, re.search(r"(\d+) flagged, (\d+) of 15 planted", said).groups())
    assert found >= 12
    assert flagged - found <= 3
    assert "drift   like the training graph" in said
    rank = int(re.search(r"\((\d+), '\w+', True\)", said)[1])
    assert rank <= 20
    assert (tmp_path / "runs/monday/report/scores.csv").exists()
