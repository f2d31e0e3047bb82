"""A small finished run with ids that would do harm as HTML, and a server over it."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from hcm_scale import HCM
from hcm_scale.serve.server import Server
from hcm_scale.synthetic import families as synthetic

SMALL = {
    "hops.num_sources": 100,
    "hops.pairs_per_class": 30,
    "sampling.batch_pairs": 256,
    "model.width": 8,
    "model.head_width": 8,
    "posterior.burn_in_steps": 5,
    "posterior.num_samples": 2,
    "posterior.thin_steps": 1,
    "score.views": ["purified"],
}


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "a run"
    graph = synthetic.community(300, num_attributes=4, seed=0)
    ids = [f"<img src=x onerror='window.hacked = 1'>{i}" for i in range(300)]
    HCM(SMALL, device="cpu", run_dir=folder).fit(replace(graph, ids=pa.array(ids)))
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
