"""Kernels compiled before they are needed: by `hcm-scale warm`, or beside a run that starts cold.

To compile all takes a minute, so both start with most of what this checkout has compiled.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import lend_kernels

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["graph=community", "graph.num_nodes=300", "posterior.burn_in_steps=1", "posterior.num_samples=1"]
CALLED = """
import sys
from numba.core.dispatcher import Dispatcher
from hcm_scale.cli.main import main

status = main(sys.argv[1:])
for name, module in sorted(sys.modules.items()):
    for kernel in vars(module).values() if name.startswith("hcm_scale.") else ():
        if isinstance(kernel, Dispatcher):
            for types in kernel.signatures:
                print("called", kernel._cache._impl.filename_base, types)
sys.exit(status)
"""


@pytest.fixture
def cold(tmp_path) -> dict[str, str]:
    """The environment of processes that find no compiled kernel, and put all their files into one folder."""
    return environment(tmp_path)


@pytest.fixture
def lent(cold, tmp_path) -> Path:
    """The folder of kernels of such processes, with those of this checkout in it."""
    return lend_kernels(sys.executable, tmp_path, cold)


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"NUMBA_CACHE_DIR": str(folder / "kernels"), "TMPDIR": str(folder / "tmp"), "NUMBA_NUM_THREADS": "2"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own}


def ended(surroundings: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], env=surroundings, check=True, capture_output=True, text=True)


def called(surroundings: dict[str, str], *words: str) -> tuple[str, str, set[str]]:
    """What a command prints and logs, and the kernels that it calls, each with its types."""
    done = ended(surroundings, "-c", CALLED, *words)
    lines = done.stdout.splitlines()
    kernels = {line for line in lines if line.startswith("called ")}
    return "\n".join(line for line in lines if line not in kernels), done.stderr, kernels


def start_run(surroundings: dict[str, str], folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "hcm_scale", "run", *SMALL, f"run_dir={folder / 'run'}"]
    return subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


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
def test_warm__compiles_all_that_a_run_calls_and_says_so(cold, lent, tmp_path):
    missing = sorted(lent.glob("*.nbi"))[::25]
    for path in missing:
        path.unlink()
    num_before = len(list(lent.glob("*.nbi")))
    said, _, ready = called(cold, "warm")
    num_kernels = len(list(lent.glob("*.nbi")))
    assert num_kernels >= 90
    assert re.fullmatch(rf"{num_kernels - num_before} kernels compiled in \d+ s; all are ready, in {lent}", said)
    files = sorted(lent.glob("*.nb*"))
    _, log, of_run = called(cold, "run", *SMALL, f"run_dir={tmp_path / 'run'}")
    assert len(of_run) > 60
    assert of_run <= ready
    assert "compiling" not in log
    assert sorted(lent.glob("*.nb*")) == files
    assert ended(cold, "-m", "hcm_scale", "warm").stdout == f"all {num_kernels} kernels are ready, in {lent}\n"
    assert re.search(r"kernels +compiled", ended(cold, "-m", "hcm_scale", "doctor").stdout)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one nothing is compiled ahead")
def test_run__does_without_the_process_that_compiles_ahead_and_leaves_nothing_of_it(cold, lent, tmp_path):
    for path in sorted(lent.glob("*.nbi"))[59:]:  # one more, and none would be compiled ahead
        path.unlink()
    process = start_run(cold, tmp_path)
    os.kill(wait_for_helper(process), signal.SIGKILL)
    _, log = process.communicate()
    assert process.returncode == 0
    assert log.count("compiling kernels, once") == 1
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one nothing is compiled ahead")
def test_process_that_compiles_ahead__ends_with_its_run(cold, tmp_path):
    process = start_run(cold, tmp_path)
    helper = wait_for_helper(process)
    until = time.monotonic() + 120
    while "llvmlite" not in Path(f"/proc/{helper}/maps").read_text():  # it asks to be told before it imports this
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.communicate()
    while Path(f"/proc/{helper}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
