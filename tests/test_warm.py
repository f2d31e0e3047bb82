"""Kernels compiled before they are needed: by `hcm-scale warm`, or beside a run that starts cold."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["graph=community", "graph.num_nodes=300", "posterior.burn_in_steps=1", "posterior.num_samples=1"]


@pytest.fixture
def cold(tmp_path) -> dict[str, str]:
    """The environment of processes that find no compiled kernel, and put all their files into one folder."""
    return environment(tmp_path)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> tuple[Path, str]:
    """A folder like that of `cold` with all kernels compiled by `warm`, and what it said."""
    folder = tmp_path_factory.mktemp("warmed")
    return folder, say(environment(folder), "warm")


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"NUMBA_CACHE_DIR": str(folder / "kernels"), "TMPDIR": str(folder / "tmp"), "NUMBA_NUM_THREADS": "2"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own}


def say(surroundings: dict[str, str], *words: str) -> str:
    return subprocess.run(command(*words), env=surroundings, check=True, capture_output=True, text=True).stdout


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hcm_scale", *words]


def helpers(parent: int) -> list[int]:
    """The processes that compile ahead for another one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_helper = b"hcm_scale.run.precompile" in (folder / "cmdline").read_bytes()
            if is_helper and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for_helper(process: "subprocess.Popen[str]") -> int:
    until = time.monotonic() + 120
    while not (found := helpers(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return found[0]


@pytest.mark.gate
@pytest.mark.timeout(900)
def test_warm__compiles_all_that_a_run_calls_and_says_so(warmed):
    folder, first = warmed
    surroundings = environment(folder)
    (kernels,) = (folder / "kernels").iterdir()
    num_kernels = len(list(kernels.glob("*.nbi")))
    assert num_kernels >= 90
    assert f"compiling kernels into {kernels}" in first
    assert f"{num_kernels} kernels compiled in" in first
    assert say(surroundings, "warm") == f"all {num_kernels} kernels are ready, in {kernels}\n"
    assert re.search(r"kernels +compiled", say(surroundings, "doctor"))
    files = sorted(kernels.glob("*.nb*"))
    run = command("run", *SMALL, f"run_dir={folder / 'run'}")
    assert "compiling" not in subprocess.run(run, env=surroundings, check=True, capture_output=True, text=True).stderr
    assert sorted(kernels.glob("*.nb*")) == files
    assert not list((folder / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one nothing is compiled ahead")
def test_run__does_without_the_process_that_compiles_ahead_and_leaves_nothing_of_it(warmed, cold, tmp_path):
    shutil.copytree(warmed[0] / "kernels", tmp_path / "kernels")
    (kernels,) = (tmp_path / "kernels").iterdir()
    for path in sorted(kernels.glob("*.nbi"))[50:]:
        path.unlink()
    run = command("run", *SMALL, f"run_dir={tmp_path / 'run'}")
    process = subprocess.Popen(run, env=cold, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    os.kill(wait_for_helper(process), signal.SIGKILL)
    _, log = process.communicate()
    assert process.returncode == 0
    assert log.count("compiling kernels, once") == 1
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one nothing is compiled ahead")
def test_process_that_compiles_ahead__ends_with_its_run(cold, tmp_path):
    run = command("run", *SMALL, f"run_dir={tmp_path / 'run'}")
    process = subprocess.Popen(run, env=cold, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    helper = wait_for_helper(process)
    time.sleep(5)  # until it has asked to be told
    process.kill()
    process.wait()
    until = time.monotonic() + 60
    while Path(f"/proc/{helper}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
