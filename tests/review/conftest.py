"""A small finished run over nodes with text ids, half of its planted anomalies of one kind, and copies of it."""

import dataclasses
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import planted_graph, small_run

from hcm_scale.graph import Graph


@pytest.fixture(scope="session")
def graph() -> Graph:
    made = planted_graph()
    return dataclasses.replace(made, ids=pa.array([f"a{node:03}" for node in range(made.num_nodes)]))


@pytest.fixture(scope="session")
def finished(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("review") / "run"
    small_run(run_dir, dataclasses.replace(graph, y=None, kind=None), until="score")
    return run_dir


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))
