"""A small finished run with ids that would do harm as HTML, and a server over it."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import small_detector, small_graph

from hcm_scale.serve.server import Server


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "a run"
    ids = [f"<img src=x onerror='window.hacked = 1'>{i}" for i in range(300)]
    small_detector(replace(small_graph(300, 4), ids=pa.array(ids)), views=["purified"], run_dir=folder)
    return folder


@pytest.fixture
def server(run_dir: Path) -> Iterator[Server]:
    with Server(run_dir) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
