"""PyGOD's detectors at its default settings, on the harness's features or on the attributes as they are in the file.

They get the whole graph as one batch (`bench.pygod_batches`).

Most of them hold the adjacency as a dense n x n matrix; running out of memory or time is an outcome. Sparse raw
attributes are made dense. Where PyGOD is not installed the import fails and the row says absent. Of PyGOD 1.1 three are
left out: SCAN and DMGD do not look at attributes, and GADNR does not start with torch-geometric 2.8.
"""

import tempfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy.methods import RAW
from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from bench.pygod_batches import whole_graphs
from hcm_scale.base.rng import key
from hcm_scale.graph import SparseRows

_HOST_ONLY = ("ONE",)  # never leaves the host, whatever device it is given
_HOST_BATCH = ("CONAD",)  # changes a copy of the batch there every epoch


def run(problem: Problem, device: str, name: str, raw: bool) -> Scores:
    """The scores of detector `name`, from raw attributes or from the features."""
    import pygod.detector

    device = "cpu" if name in _HOST_ONLY else device
    with (
        torch.random.fork_rng(),
        tempfile.TemporaryDirectory() as cache,
        whole_graphs("cpu" if name in _HOST_BATCH else device),
    ):
        torch.manual_seed(key(problem.seed))
        # GUIDE keeps its motif counts by the shape of a graph alone: a folder of its own, or seeds would share them.
        options = {"cache_dir": cache} if name == "GUIDE" else {}
        detector: Any = getattr(pygod.detector, name)(gpu=0 if device == "cuda" else -1, **options)
        detector.fit(as_data(problem, raw))
    return {f"{name}{RAW}" if raw else name: detector.decision_score_.detach().cpu().numpy().astype(np.float64)}


def as_data(problem: Problem, raw: bool) -> Any:
    """The problem as PyG has it."""
    from torch_geometric.data import Data

    x = raw_attributes(problem) if raw else problem.x.copy()
    arcs = np.stack([problem.sources, problem.graph.indices.astype(np.int64)])
    return Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(arcs))


def raw_attributes(problem: Problem) -> NDArray[np.float32]:
    """The attributes of the graph, dense, f32 (n, d)."""
    x = problem.graph.x
    assert x is not None
    return x.csr().toarray() if isinstance(x, SparseRows) else np.array(x, np.float32)
