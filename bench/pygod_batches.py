"""PyGOD's detectors on the whole graph at once, without a neighbour loader.

PyGOD's deep detectors draw their batches from a neighbour loader, which needs torch-sparse or pyg-lib, also where the
batch is the whole graph, as it is by default. Here `WholeGraph` stands in its place for the time of a fit: every node
and every edge in one batch, in the graph's own order. That is what the loader would yield, less the sampling; the
attributes, edges and dense adjacency go to the device once instead of once an epoch.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


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


@contextlib.contextmanager
def whole_graphs(device: str) -> Iterator[None]:
    """PyGOD's detectors get `WholeGraph` for a loader."""
    import pygod.detector

    def loader(data: Any, num_neighbors: Any, batch_size: int) -> WholeGraph:
        assert batch_size == data.num_nodes, "at its default settings PyGOD asks for the whole graph"
        return WholeGraph(data, device)

    with mock.patch.object(pygod.detector.base, "NeighborLoader", loader):
        yield
