"""A small finished run with ids that would do harm as HTML, and servers over it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import serving, small_detector, small_graph

from hcm_scale.serve.server import Server


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "a run"
    ids = [f"<img src=x onerror='window.hacked = 1'>{i}" for i in range(300)]
    small_detector(replace(small_graph(300, 4), ids=pa.array(ids)), views=["purified"], run_dir=folder)
    return folder


@pytest.fixture
def server(run_dir: Path) -> Iterator[Server]:
    with serving(run_dir) as made:
        yield made


@pytest.fixture
def own_run(run_dir: Path, tmp_path: Path) -> Path:
    """A copy to which verdicts may be added."""
    return shutil.copytree(run_dir, tmp_path / "run")


@pytest.fixture
def start(own_run: Path) -> Iterator[Callable[..., Server]]:
    """`start(by)` is a server over the copy."""
    with ExitStack() as stack:
        yield lambda by=None: stack.enter_context(serving(own_run, by))
