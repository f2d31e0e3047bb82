"""Whatever surrounds a run is answered with one line and a status: odd paths, full and read-only disks, foreign files.

Most commands run in this process, as `hcm-scale` runs them; those that need a disk of their own in a mount namespace.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import FAST, as_words

from hcm_scale.cli import main
from hcm_scale.cli.errors import error_line

SMALL = as_words(FAST | {"graph.num_nodes": 60, "graph.num_attributes": 3, "hops.classes": 3})
HOSTILE = ["ü", "end ", "two\nlines", "a=b", "a,b", "it's", '"q"', "'q'", "{a}", "[a]", "(a", "back\\", "~x", "null"]
EDGES = "source,target\n" + "".join(f"{i},{(i + 1) % 9}\n" for i in range(9))
NAMESPACE = ("unshare", "-rm", "sh", "-c")


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs a command as a user does, in an empty folder; (status, what it printed, its lines on stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, list[str]]:
        capsys.readouterr()
        status = main.main([*words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err.splitlines()

    return run


def refusal(answer: tuple[int, str, list[str]], status: int = 2) -> str:
    """The one line of a command that was refused."""
    assert answer[0] == status
    (line,) = [line for line in answer[2] if line.startswith("error: ")]
    assert answer[2][-1] == line
    assert "error" not in answer[1]
    return line


def has_namespaces() -> bool:
    tried = (*NAMESPACE, "mount -t tmpfs none /mnt")
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    assert main.main(["run", "graph=community", *SMALL, f"run_dir={run_dir}"]) == 0
    return run_dir


@pytest.mark.parametrize("name", HOSTILE)
def test_path__means_what_it_says(command, tmp_path, name):
    Path(f"{name}.csv").write_text(EDGES)
    sources = ("graph=tables", f"graph.path={name}.csv", "graph.featureless=degree")
    status, _, err = command("run", "until=ingest", *sources, f"run_dir={name}")
    assert status == 0, err
    assert (tmp_path / name / "graph" / "indptr.npy").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.csv"}


def test_sweep__keeps_its_commas(hcm_scale, tmp_path):
    done = hcm_scale(
        "run", "until=ingest", "graph=community", *SMALL, "-m", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}"
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "sweep").glob("*/config.json"))) == 2


def test_name__stays_inside_runs(command, tmp_path):
    for name, folder in (("../../escaped", "escaped"), ("..", "defaults"), ("a/b", "a-b")):
        assert command("run", "until=ingest", "graph=community", *SMALL, f"graph.name={name}")[0] == 0
        assert (tmp_path / "runs" / folder / "graph").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_run_dir__that_is_no_folder_is_named(command, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    words = ("run", "until=ingest", "graph=community", *SMALL)
    assert refusal(command(*words, "run_dir=file")) == "error: run_dir=file is a file; it names the folder of the run"
    assert "run_dir=link is a link to" in refusal(command(*words, "run_dir=link"))
    assert refusal(command(*words, "run_dir=file/run")) == "error: file/run: Not a directory"
    assert refusal(command("explain", "graph=community", "node=1", "run_dir=file")).startswith("error: file")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("purify.ratoi=0.1", "'purify.ratoi' is not an option; did you mean 'purify.ratio'?"),
        ("+purify.ratoi=0.1", "'purify.ratoi' is not an option; did you mean 'purify.ratio'?"),
        ("+exclude=[a]", "'exclude' is not an option; did you mean 'graph.exclude'?"),
        ("++graph.nodes=a", "'graph.nodes' is not an option of this source; those that have it: graph=tables"),
        ("graph.nodes=a", "'graph.nodes' is not an option of this source; those that have it: graph=tables"),
        ("inject=null", "inject=null cannot be read; ~inject is none of its option files"),
        ("hops={a: 1}", "'hops.a' is not an option; did you mean 'hops.classes'?"),
        ("graph=tabels", "graph=tabels is not known; legal are "),
        ("hops.classes=many", "hops.classes=many is not legal: int or None, at least 2 and at most 16"),
        ("seed=1,2", "seed=1,2 names several values: -m runs them all"),
        ("score.views=[a", "'score.views=[a' cannot be read"),
        ("run_dir=${nothing}", "run_dir"),
        ("nonsense", "'nonsense' is neither an option"),
    ],
)
def test_wrong_word__is_refused_in_our_own_words(command, tmp_path, word, said):
    line = refusal(command("run", "graph=community", *SMALL, word))
    assert said in line
    assert not re.search("struct|override|hydra|omegaconf|full_key", line, re.IGNORECASE)
    assert list(tmp_path.iterdir()) == []


def test_failed_run__leaves_no_folder_behind_but_what_was_there(command, tmp_path):
    words = ("run", "graph=tables", "graph.path=nowhere.csv")
    assert "nowhere.csv" in refusal(command(*words, "run_dir=deep/er/run"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    refusal(command(*words, "run_dir=mine"))
    assert (tmp_path / "mine" / "log").is_file()


def test_log__has_times_and_stdout_the_result_alone(command, tmp_path):
    status, out, err = command("run", "until=ingest", "graph=community", *SMALL, "run_dir=run")
    assert status == 0
    assert any(line.startswith("graph ") for line in err)
    assert "made in run" in out
    lines = (tmp_path / "run" / "log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ", line) for line in lines if "graph  " in line)


def test_rewritten_input__of_equal_size_and_time_is_noticed(command, tmp_path):
    table = tmp_path / "edges.csv"
    table.write_text(EDGES)
    words = ("run", "until=ingest", "graph=tables", "graph.path=edges.csv", "graph.featureless=degree", "run_dir=run")
    assert command(*words)[0] == 0
    before, times = np.load(tmp_path / "run/graph/indices.npy"), table.stat()
    table.write_text(EDGES.replace("3,4", "3,7"))
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert command(*words)[0] == 0
    assert not np.array_equal(np.load(tmp_path / "run/graph/indices.npy"), before)
    os.utime(table)
    assert "unchanged, kept" in " ".join(command(*words)[2])


@pytest.mark.parametrize("late", [False, True])
def test_text_of_windows__is_reported_as_such(command, tmp_path, late):
    rows = [f"{i},plain" for i in range(600_000 if late else 9)]
    (tmp_path / "nodes.csv").write_bytes(
        ("id,town\n" + "\n".join(rows) + f"\n{len(rows)},Zürich 5 €\n").encode("cp1252")
    )
    (tmp_path / "edges.csv").write_text(EDGES)
    line = refusal(command("run", "until=ingest", "graph=tables", "graph.path=edges.csv", "graph.nodes=nodes.csv"))
    assert f"nodes.csv is not UTF-8 text: line {len(rows) + 2:,} has the byte 0xFC" in line
    assert "Zürich 5 €" in line
    assert "iconv -f CP1252 -t UTF-8" in line


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("stages.json", content) for content in (b"", b"\xff", b'[{"name": {}}]')),
        *(("records/scores.json", content) for content in (b"7", b"[" * 5000, b'{"key": [1]}')),
    ],
)
def test_foreign_content__is_refused_by_name(command, finished, tmp_path, name, content):
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    (tmp_path / "run" / name).write_bytes(content)
    line = refusal(command("explain", "graph=community", *SMALL, "node=5", "run_dir=run"))
    assert Path(name).stem in line
    answer = command("run", "graph=community", *SMALL, "run_dir=run")
    assert answer[0] == 0 or Path(name).stem in refusal(answer)


def test_emptied_array__is_refused_by_name(command, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    (tmp_path / "run" / "graph" / "indices.npy").write_bytes(b"")
    for words in (("explain", "node=5"), ("run",)):
        assert "indices.npy is damaged" in refusal(command(*words, "graph=community", *SMALL, "run_dir=run"))


@pytest.mark.gate
@pytest.mark.skipif(not has_namespaces(), reason="needs a mount namespace")
def test_read_only_disk__is_enough_to_explain_and_one_line_for_a_run(finished):
    shown = "mount --bind -o ro {0} {0} && cd {0} && {1} -m hcm_scale explain graph=community node=5 run_dir=. && "
    shown += "{1} -m hcm_scale run graph=community run_dir=new"
    done = subprocess.run(
        (*NAMESPACE, shown.format(finished, sys.executable)), capture_output=True, text=True, check=False
    )
    assert "of 60" in done.stdout, done.stderr
    assert (done.returncode, done.stderr) == (1, "error: new: Read-only file system\n")


@pytest.mark.gate
@pytest.mark.skipif(not has_namespaces(), reason="needs a mount namespace")
def test_full_disk__is_told_with_path_and_room(tmp_path):
    words = "run until=ingest graph=community graph.num_nodes=60000 run_dir=run"
    shown = f"mount -t tmpfs -o size=2m none {tmp_path} && cd {tmp_path} && {sys.executable} -m hcm_scale {words}"
    done = subprocess.run((*NAMESPACE, shown), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert re.match(r"error: the disk of run\S+npy is full: [\d,]+ bytes are needed, [\d,]+ bytes are free there", line)


def limited(tmp_path: Path, limit: str, *words: str, **streams) -> tuple[int, str]:
    """The status and the last line of a command under a limit of the shell."""
    call = ["sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, "-m", "hcm_scale", *words]
    done = subprocess.run(call, stderr=subprocess.PIPE, text=True, cwd=tmp_path, **streams)
    return done.returncode, done.stderr.splitlines()[-1]


def test_limit_on_files__is_not_taken_for_a_full_disk(tmp_path):
    words = ("run", "until=ingest", "graph=community", "graph.num_nodes=9000", "run_dir=run")
    status, line = limited(tmp_path, "ulimit -f 100", *words)
    assert status == 1
    assert re.match(r"error: run\S+npy cannot be written, though [\d,]+ bytes are free .* a quota, `ulimit -f`", line)


def test_full_stdout__is_not_taken_for_a_full_disk_of_the_run(tmp_path, finished):
    with open("/dev/full", "w") as full:
        answer = limited(tmp_path, "true", "explain", str(finished), "5", stdout=full)
    assert answer == (1, "error: stdout: No space left on device")


def test_too_many_open_files__name_the_limit():
    assert error_line(OSError(24, "Too many open files")) == "Too many open files, which `ulimit -n` allows more of"


@pytest.mark.parametrize("words", [["--help"], ["run", "--cfg", "job"]])  # what we print, and what Hydra does
def test_closed_pipe__is_no_error(tmp_path, words):
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as closed:
        call = [sys.executable, "-m", "hcm_scale", *words]
        done = subprocess.run(call, stdout=closed, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_version__is_ours(command):
    assert command("run", "--version")[1] == command("--version")[1]
