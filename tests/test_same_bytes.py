"""A run writes the same bytes whatever its number of threads, and the same as the previous commit did.

Floating-point results differ between types of CPU, so there are no stored digests: both sides run on this machine. The
previous commit is HEAD~1, or what HCM_BEFORE names; a commit that changes what a run writes says so in its message, in
a line that begins with "Bytes change:", and is then not compared.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from helpers import lend_kernels
from same_bytes import compare, run, write_data

ROOT = Path(__file__).resolve().parents[1]
NAMES = ["tables", "directed", "sampled"]
BEFORE = os.environ.get("HCM_BEFORE", "HEAD~1")


def git(*arguments: str) -> bytes:
    """What git prints; skips the test where there is no git or no such commit, as in a shallow clone."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode:
        pytest.skip(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def now(data, tmp_path_factory) -> Path:
    """A run of each configuration, by its name."""
    out = tmp_path_factory.mktemp("now")
    run(ROOT, NAMES, data, out)
    return out


@pytest.fixture(scope="module")
def before(data, tmp_path_factory) -> Path:
    """The same by the previous commit."""
    if b"\nBytes change:" in git("log", "--format=%n%B", f"{BEFORE}..HEAD"):
        pytest.skip(f"a commit since {BEFORE} says that bytes change")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(git("archive", BEFORE, "hcm_scale", "conf"))) as archive:
        archive.extractall(folder, filter="data")
    lend_kernels(sys.executable, folder, os.environ | {"PYTHONPATH": str(folder)})
    run(folder, NAMES, data, folder / "runs")
    return folder / "runs"


@pytest.mark.gate
@pytest.mark.timeout(1200)
def test_run__writes_the_same_bytes_with_another_number_of_threads(now, data, tmp_path):
    check_threads("tables", now, data, tmp_path)


@pytest.mark.slow
def test_run_of_a_grid__writes_the_same_bytes_with_another_number_of_threads(data, tmp_path):
    run(ROOT, ["grid"], data, tmp_path / "wide")
    check_threads("grid", tmp_path / "wide", data, tmp_path)


def check_threads(name: str, wide: Path, data: Path, scratch: Path) -> None:
    run(ROOT, [name], data, scratch / "one", ["world.threads=1"])
    num_files, different = compare(wide / name, scratch / "one" / name)
    assert num_files > 20
    assert different == []


@pytest.mark.gate
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_run__writes_the_same_bytes_as_the_previous_commit(name, before, now):
    num_files, different = compare(before / name, now / name)
    assert num_files > 20
    assert different == []
