"""Completion: what may come next, and a real bash that asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hcm_scale import cli, manual
from hcm_scale.commands import completion
from hcm_scale.completing import candidates

ASK = """
eval "$(hcm-scale completion bash)"
COMP_LINE="$1" COMP_POINT=${#1}
_hcm_scale
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([""], {*manual.STAGES, *manual.COMMANDS}),
        (["run", ""], {"graph=", "experiment=", "purify.", "seed=", "log="}),
        (["run", "graph=ta"], {"graph=tables"}),
        (["run", "seed=1", "experiment=best/e"], {"experiment=best/enron"}),
        (["train", "posterior.ke"], {"posterior.kernel="}),
        (["train", "graph.sou"], {"graph.source=", "graph.source_column="}),
        (["run", "posterior.kernel=s"], {"posterior.kernel=sgld"}),
        (["run", "score.csv="], {"score.csv=true", "score.csv=false"}),
        (["run", "graph.nodes="], {"graph.nodes=null"}),
        (["run", "log=j"], {"log=json"}),
        (["run", "score.views=["], {"score.views=[purified]", "score.views=[original]"}),
        (["options", "purify.r"], {"purify.ratio"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_candidates__are_what_may_come_next(words, found):
    assert found <= set(candidates(words))
    assert all(word.startswith(words[-1]) for word in candidates(words))


@pytest.mark.parametrize("words", [["export", "runs/"], ["run", "edges.c"], ["run", "nothing=x"], ["run", "seed="]])
def test_candidates__leave_files_and_numbers_to_the_shell(words):
    assert candidates(words) == []


def test_own_options__are_candidates(tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert candidates(["run", "experiment=m"]) == ["experiment=mine"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hcm-scale expl", ["explain"]),
        ("hcm-scale run graph=t", ["tables"]),
        ("hcm-scale run seed=1 purify.si", ["purify.similarity="]),
        ("hcm-scale run purify.similarity=", ["cosine", "euclidean", "jaccard"]),
        ("hcm-scale completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_bash__completes(tmp_path: Path, line: str, found: list[str]):
    script = tmp_path / "hcm-scale"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hcm_scale "$@"\n')
    script.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ASK, "bash", line], capture_output=True, text=True, env=env)
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.parametrize(("shell", "words"), [("zsh", "compdef _hcm_scale"), ("fish", "complete -c hcm-scale")])
def test_other_shells__have_a_script(shell, words):
    assert words in completion.main([shell])


def test_completion__loads_nothing_heavy():
    heavy = {"hydra", "numba", "numpy", "omegaconf", "pyarrow", "torch", "yaml"}
    code = (
        "import sys; from hcm_scale.cli import main; sys.argv = ['hcm-scale', '--complete', 'run', 'graph=']; main();"
    )
    code += f"assert not {heavy!r} & sys.modules.keys(), {heavy!r} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_shell_completion_of_hydra__is_refused_with_a_hint(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hcm-scale", "run", "--shell-completion", "install=bash"])
    assert cli.main() == 2
    assert "hcm-scale completion bash" in capsys.readouterr().err
