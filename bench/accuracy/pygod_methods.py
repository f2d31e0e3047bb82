"""PyGOD's detectors at its default settings, on the harness's features or on the attributes as they are in the file.

PyGOD's deep detectors draw their batches from a neighbour loader, which needs torch-sparse or pyg-lib, also where the
batch is the whole graph, as it is by default. Here `WholeGraph` stands in its place for the time of a fit: every node
and every edge in one batch, in the graph's own order. That is what the loader would yield, less the sampling; the
attributes, edges and dense adjacency go to the device once instead of once an epoch.

Most of them hold the adjacency as a dense n x n matrix; running out of memory or time is an outcome. Sparse raw
attributes are made dense. Where PyGOD is not installed the import fails and the row says absent. Of PyGOD 1.1 three are
left out: SCAN and DMGD do not look at attributes, and GADNR does not start with torch-geometric 2.8.
"""

import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy.methods import RAW
from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.base.rng import key
from hcm_scale.graph import SparseRows

_HOST_ONLY = ("ONE",)  # never leaves the host, whatever device it is given
_HOST_BATCH = ("CONAD",)  # changes a copy of the batch there every epoch


class WholeGraph:
    """One batch of all nodes, as PyGOD reads it: `n_id` and `batch_size` beside what the graph has."""

    def __init__(self, data: Any, device: str) -> None:
        self.batch = data.clone()
        for name in ("x", "edge_index", "s"):
            if name in self.batch:
                self.batch[name] = self.batch[name].to(device)
        self.batch.batch_size = data.num_nodes
        self.batch.n_id = torch.arange(data.num_nodes)  # on the host: it also indexes the scores there

    def __iter__(self) -> Iterator[Any]:
        yield self.batch


def run(problem: Problem, device: str, name: str, raw: bool) -> Scores:
    """The scores of detector `name`, from raw attributes or from the features."""
    import pygod.detector

    device = "cpu" if name in _HOST_ONLY else device
    batch_device = "cpu" if name in _HOST_BATCH else device

    def loader(data: Any, num_neighbors: Any, batch_size: int) -> WholeGraph:
        assert batch_size == data.num_nodes, "at its default settings PyGOD asks for the whole graph"
        return WholeGraph(data, batch_device)

    with (
        torch.random.fork_rng(),
        tempfile.TemporaryDirectory() as cache,
        mock.patch.object(pygod.detector.base, "NeighborLoader", loader),
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
