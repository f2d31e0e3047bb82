"""What is compiled before it is needed: all that a run calls, by `hcm-scale warm` or beside a run that starts cold."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hcm_scale.base import jit
from hcm_scale.base.jit import SECONDS

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["graph=community", "graph.num_nodes=300", "posterior.burn_in_steps=1", "posterior.num_samples=1"]


@pytest.fixture
def cold(tmp_path) -> dict[str, str]:
    """The environment of processes that find no compiled kernel, and put all their files into one place."""
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
    kernels, surroundings = folder / "kernels", environment(folder)
    assert f"compiling kernels into {kernels}: about" in first
    assert f"{len(SECONDS)} kernels compiled in" in first
    assert {path.name.split(".cpython")[0] for path in kernels.rglob("*.nbc")} >= SECONDS.keys()
    assert say(surroundings, "warm") == f"all {len(SECONDS)} kernels are ready, in {kernels}\n"
    files = sorted(kernels.rglob("*.nbc"))
    run = command("run", *SMALL, f"run_dir={folder / 'run'}")
    assert "compiling" not in subprocess.run(run, env=surroundings, check=True, capture_output=True, text=True).stderr
    assert sorted(kernels.rglob("*.nbc")) == files
    assert not list((folder / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one nothing is compiled ahead")
def test_run__does_without_the_process_that_compiles_ahead_and_leaves_nothing_of_it(warmed, cold, tmp_path):
    shutil.copytree(warmed[0] / "kernels", tmp_path / "kernels")
    for path in [*(tmp_path / "kernels").rglob("ready.nbc.*"), *(tmp_path / "kernels").rglob("hcm_scale.score.*")]:
        path.unlink()
    run = command("run", *SMALL, f"run_dir={tmp_path / 'run'}")
    process = subprocess.Popen(run, env=cold, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    os.kill(wait_for_helper(process), signal.SIGKILL)
    _, log = process.communicate()
    assert process.returncode == 0
    assert log.count("compiling kernels, once, about") == 1
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


def test_stamp__is_of_the_package_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "PACKAGE", tmp_path)
    jit.cache_folders.cache_clear()
    jit.writable_folder.cache_clear()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    (tmp_path / "a.py").write_text("1")
    assert not jit.is_ready()
    jit.set_ready(jit.stamp())
    assert jit.is_ready()
    jit.start_precompiling()
    assert jit.num_compiling() == 1
    (tmp_path / "a.py").write_text("12")
    assert not jit.is_ready()
    jit.cache_folders.cache_clear()
    jit.writable_folder.cache_clear()
