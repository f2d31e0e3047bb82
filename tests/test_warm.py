"""Kernels compiled before they are needed, by `hcm-scale warm`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["graph=community", "graph.num_nodes=300", "posterior.burn_in_steps=1", "posterior.num_samples=1"]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> tuple[Path, str]:
    """A folder with all kernels compiled by `warm`, and what it said."""
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
    for name, words in (("small", SMALL), ("default", [])):
        run = command("run", *words, f"run_dir={folder / name}")
        done = subprocess.run(run, env=surroundings, check=True, capture_output=True, text=True)
        assert "compiling" not in done.stderr
    assert sorted(kernels.glob("*.nb*")) == files
    assert not list((folder / "tmp").iterdir())
