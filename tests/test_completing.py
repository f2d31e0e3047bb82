"""Completion: what may come next, and real shells that ask for it."""

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hcm_scale import cli, manual
from hcm_scale.completing import candidates


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds hcm-scale, and none of the user's own settings."""
    script = tmp_path / "bin" / "hcm-scale"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hcm_scale "$@"\n')
    script.chmod(0o755)
    paths = {"PATH": f"{script.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return os.environ | paths | {"XDG_DATA_HOME": str(tmp_path), "TERM": "dumb"}


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
def test_bash__completes(surroundings: dict[str, str], line: str, found: list[str]):
    done = subprocess.run(["bash", "-c", ASK, "bash", line], capture_output=True, text=True, env=surroundings)
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not at hand")
def test_fish__completes_words_and_else_files(surroundings: dict[str, str], tmp_path: Path):
    (tmp_path / "edges.csv").touch()
    lines = {
        "hcm-scale expl": "explain",
        "hcm-scale run purify.similarity=": "purify.similarity=cosine purify.similarity=euclidean "
        "purify.similarity=jaccard",
        "hcm-scale run edg": "edges.csv",
        "hcm-scale run graph.path=edg": "graph.path=edges.csv",
    }
    asked = " ".join(f"'{line}'" for line in lines)
    code = f"hcm-scale completion fish | source; for line in {asked}; echo (complete -C $line); end"
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, env=surroundings, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (list(lines.values()), "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not at hand")
def test_zsh__completes_words_and_else_files(surroundings: dict[str, str], tmp_path: Path):
    """Typed into a shell on a terminal of its own: a line, a TAB, then `print` before it and Enter."""
    (tmp_path / "edges.csv").touch()
    lines = {
        "hcm-scale expl": "hcm-scale explain",
        "hcm-scale run purify.si": "hcm-scale run purify.similarity=",
        "hcm-scale run graph=t": "hcm-scale run graph=tables",
        "hcm-scale run graph.path=edg": "hcm-scale run graph.path=edges.csv",
    }
    typed = 'autoload -U compinit; compinit -u; eval "$(hcm-scale completion zsh)"\n'
    typed += "".join(f'{line}\t\x01print -r -- fo""und \x05 do""ne\n' for line in lines) + "exit\n"
    terminal, end = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=end, stdout=end, stderr=end, env=surroundings, cwd=tmp_path
    ) as zsh:
        os.write(terminal, typed.encode())
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while select.select([terminal], [], [], 60)[0] and (part := os.read(terminal, 1 << 16)):
                shown += part
        zsh.kill()
    os.close(terminal)
    assert [found.split() for found in re.findall("found (.*?) done", shown.decode())] == [
        line.split() for line in lines.values()
    ]


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
