"""What is published works alone: an sdist, the wheel made from it, a clean environment, another folder.

`make test-slow` tries every python3.x on the PATH that has the libraries; a PATH that starts with environments of other
versions widens it.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers import lend_kernels

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = [f"python3.{minor}" for minor in range(11, 16)]
SHORT = [
    "graph=community",
    "graph.num_nodes=300",
    "hops.num_sources=80",
    "posterior.burn_in_steps=4",
    "world.device=cpu",
]
FIT = """
import numpy as np
from scipy import sparse
from hcm_scale import HCM
draws = np.random.default_rng(0)
edges = sparse.coo_array((np.ones(900), draws.integers(0, 300, (2, 900))), shape=(300, 300))
found = HCM({"posterior.burn_in_steps": 4}, num_samples=2, device="cpu").fit((edges, draws.normal(size=(300, 5))))
assert found.scores.shape == (300,) and "rank" in str(found.explain(5))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Made from the sdist, so that both are whole."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    assert len(list(out.glob("*.tar.gz"))) == 1
    return next(out.glob("*.whl"))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def said(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(wheel: Path, python: str, folder: Path) -> Path:
    """The interpreter of an environment in `folder`: the wheel, beside the libraries of `python`."""
    torch = "import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])"
    libraries = said(python, "-c", torch, cwd=folder)
    said(python, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    said(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel, cwd=folder)
    (site / "libraries.pth").write_text(libraries)
    assert (site / "hcm_scale" / "py.typed").is_file()
    ours = folder / "env" / "bin" / "python"
    assert said(ours, "-c", "import hcm_scale; print(hcm_scale.__file__)", cwd=folder).startswith(str(site))
    return ours


@pytest.mark.gate
def test_wheel__carries_its_configuration_and_runs_elsewhere(wheel, tmp_path):
    python = installed(wheel, sys.executable, tmp_path)
    lend_kernels(python, tmp_path, environment())
    said(python, "-m", "hcm_scale", "demo", *SHORT, cwd=tmp_path)
    assert (tmp_path / "runs" / "demo" / "report" / "report.html").is_file()


@pytest.mark.gate
def test_wheel__description_has_no_link_that_leads_nowhere_outside_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "## Install and try it" in text
    assert set(re.findall(r"\]\((\w+:)?", text) + re.findall(r'(?:src|href)="(\w+:)?', text)) == {"https:"}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", PYTHONS)
def test_wheel__runs_and_fits_on_every_python_that_has_the_libraries(wheel, name, tmp_path):
    python = shutil.which(name)
    if python is None or subprocess.run([python, "-c", "import numba, torch"], capture_output=True).returncode:
        pytest.skip(f"no {name} with numba and torch on the PATH")
    ours = installed(wheel, python, tmp_path)
    said(ours, "-W", "error", "-m", "hcm_scale", "run", *SHORT, cwd=tmp_path)
    assert (tmp_path / "runs" / "community-300" / "report" / "report.html").is_file()
    said(ours, "-W", "error", "-c", FIT, cwd=tmp_path)
