"""Neighbour sampling: edges drawn a second, against PyG's NeighborLoader with no and with two workers, on torch-sparse
and on pyg-lib, where they are.

Same graph (R-MAT), same seeds in the same batches of 1,024, fan-out 10, 10, no attributes. An edge is an entry drawn:
self loops, which only our blocks have, do not count. Ours also weighs every edge, and draws anew for all targets of a
layer, where PyG draws for the nodes that the last hop added.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench import data, pyg_loaders
from bench.harness import Case, Contender, Floor
from hcm_scale.base.spmm import gcn_scale
from hcm_scale.graph.store import Graph
from hcm_scale.sampling import NeighborSampler, prefetch

SCALE = {"smoke": 10, "quick": 20, "full": 20}
NUM_BATCHES = {"smoke": 4, "quick": 100, "full": 400}
PEER_BATCHES = {"smoke": 2, "quick": 8, "full": 40}  # enough of a much slower contender; rates are compared
BATCH, FAN_OUTS = 1024, (10, 10)


@dataclass(frozen=True)
class Problem:
    """A graph and the seeds of every batch."""

    graph: Graph
    batches: list[NDArray[np.int64]]


def prepare(size: str) -> Problem:
    """An R-MAT graph of edge factor 8 and batches of random seeds."""
    graph = data.rmat(SCALE[size])
    rng = np.random.default_rng(0)
    batch = min(BATCH, graph.num_nodes)
    return Problem(graph, [rng.choice(graph.num_nodes, batch, replace=False) for _ in range(NUM_BATCHES[size])])


def cases(size: str) -> Iterator[Case]:
    """One case; PyG is absent with a backend that is."""
    problem = prepare(size)
    mine = [ours(problem, workers) for workers in (1, 2)]
    peers, absent = pyg_loaders.contenders(
        "NeighborLoader", lambda workers, backend: pyg(problem, workers, PEER_BATCHES[size], backend)
    )
    floors = [Floor(mine[1].name, peer.name, 15) for peer in peers if "torch-sparse" in peer.name]
    title = f"fan-out 10, 10; R-MAT, {data.describe(problem.graph)}"
    yield Case(title, "edges/s", [*mine, *peers], floors, absent)


def ours(problem: Problem, workers: int) -> Contender:
    """Batches prepared by `workers` threads, handed over in order."""
    graph = problem.graph
    sample = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), FAN_OUTS, seed=0)

    def run() -> list[Any]:
        steps = enumerate(problem.batches)
        return list(prefetch(steps, lambda step: sample(step[1], step[0]), depth=2 * workers, workers=workers))

    def verify(result: list[Any]) -> None:
        for nodes, blocks in result[:2]:
            for block in blocks:
                rows = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
                loops = block.indptr[:-1].numpy()
                drawn = np.delete(nodes[rows], loops), np.delete(nodes[block.indices.numpy()], loops)
                check_draw(graph, *drawn, nodes[: block.num_targets])

    def num_edges(result: list[Any]) -> float:
        return float(sum(len(block.indices) - block.num_targets for _, blocks in result for block in blocks))

    return Contender(f"hcm_scale, {workers} threads", run, num_edges, verify)


def pyg(problem: Problem, workers: int, num_batches: int, backend: str) -> Contender:
    """PyG's NeighborLoader."""
    graph, seeds = problem.graph, torch.from_numpy(np.concatenate(problem.batches[:num_batches]))
    options: dict[str, Any] = {
        "num_neighbors": list(FAN_OUTS),
        "batch_size": len(problem.batches[0]),
        "input_nodes": seeds,
    }
    with pyg_loaders.sampling_by(backend):
        loader = pyg_loaders.make("NeighborLoader", graph, workers=workers, **options)

    def run() -> list[Any]:
        with pyg_loaders.sampling_by(backend):
            return list(loader)

    def verify(result: list[Any]) -> None:
        drawn, nodes = result[0].edge_index.numpy(), result[0].n_id.numpy()
        check_draw(graph, nodes[drawn[1]], nodes[drawn[0]], np.unique(nodes[drawn[1]]))

    def num_edges(result: list[Any]) -> float:
        return float(sum(batch.edge_index.shape[1] for batch in result))

    return Contender(f"PyG NeighborLoader on {backend}, {workers} workers", run, num_edges, verify)


def check_draw(graph: Graph, u: NDArray[np.int64], v: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
    """Every (u, v) is an edge, none comes twice, and every target has as many as it can, at most the fan-out."""
    keys = u * graph.num_nodes + v
    assert len(np.unique(keys)) == len(keys)
    for a, b in zip(u[:1000].tolist(), v[:1000].tolist(), strict=True):
        row = graph.indices[graph.indptr[a] : graph.indptr[a + 1]]
        assert row[np.searchsorted(row, b)] == b
    drawn = np.bincount(u, minlength=graph.num_nodes)[targets]
    assert (drawn == np.minimum(graph.degrees[targets], FAN_OUTS[0])).all()
