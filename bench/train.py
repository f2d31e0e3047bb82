"""Training: pairs a second, against PyG's LinkNeighborLoader and GCNConv with no and with two workers, on
torch-sparse and on pyg-lib, where they are.

Same graph (R-MAT), same pairs in the same batches of 1,024, fan-out 10, 10, two layers of 128 units, 20 attributes, the
same head, one step of pSGLD here and of Adam there. Ours runs twice: with the first propagation done once and exactly
(its cost is not timed: it is paid once a graph), and with both hops sampled, as PyG does. Hops are drawn at random:
what is learned does not matter here, what is computed does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import data, pyg_loaders
from bench.defaults import PLAN, SAMPLER
from bench.harness import Case, Contender, Floor
from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.graph.store import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.loop import Chain, run_chain
from hcm_scale.sampling import NeighborSampler, make_batch, prefetch
from hcm_scale.sampling.pairs import PairBatch

SCALE = {"smoke": 10, "quick": 20, "full": 20}
NUM_BATCHES = {"smoke": 4, "quick": 60, "full": 400}
PEER_BATCHES = {"smoke": 2, "quick": 8, "full": 40}  # enough of a much slower contender; rates are compared
BATCH, FAN_OUT, WIDTH, HEAD, CLASSES = 1024, 10, 128, 256, 4


@dataclass(frozen=True)
class Problem:
    """A graph with attributes and the pairs of every batch."""

    graph: Graph
    batches: list[PairBatch]

    @property
    def x(self) -> NDArray[np.float32]:
        assert isinstance(self.graph.x, np.ndarray)
        return self.graph.x


def prepare(size: str) -> Problem:
    """An R-MAT graph of edge factor 8 and 20 attributes, and batches of random pairs."""
    graph = data.rmat(SCALE[size])
    rng = np.random.default_rng(0)
    ends = rng.integers(0, graph.num_nodes, (NUM_BATCHES[size], 2, BATCH))
    hops = rng.integers(0, CLASSES, (NUM_BATCHES[size], BATCH))
    return Problem(graph, [PairBatch(0, i, u, v, hops[i]) for i, (u, v) in enumerate(ends)])


def cases(size: str) -> Iterator[Case]:
    """One case; PyG is absent with a backend that is."""
    problem = prepare(size)
    mine = [ours(problem, exact=True), ours(problem, exact=False)]
    peers, absent = pyg_loaders.contenders(
        "LinkNeighborLoader", lambda workers, backend: pyg(problem, workers, PEER_BATCHES[size], backend)
    )
    floors = [Floor(mine[0].name, peer.name, 10) for peer in peers if "torch-sparse" in peer.name]
    title = f"{BATCH:,} pairs a batch, fan-out {FAN_OUT}, {FAN_OUT}; R-MAT, {data.describe(problem.graph)}"
    yield Case(title, "pairs/s", [*mine, *peers], floors, absent)


def new_model(problem: Problem) -> HopModel:
    """Ours, of the widths that the peer has too."""
    return HopModel(problem.x.shape[1], CLASSES, width=WIDTH, head_width=HEAD)


def ours(problem: Problem, *, exact: bool) -> Contender:
    """The chain over batches that one thread prepares ahead."""
    graph = problem.graph
    x = propagate(graph.indptr, graph.indices, problem.x) if exact else problem.x
    fan_outs = [FAN_OUT] * (1 if exact else 2)
    sample = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), fan_outs, seed=0)
    plan = replace(PLAN, burn_in_steps=len(problem.batches))

    def run() -> list[float]:
        chain = Chain.start(new_model(problem))
        batches = prefetch(problem.batches, lambda pairs: make_batch(pairs, x, sample, input_gradients=exact), depth=2)
        steps = run_chain(chain, batches, plan, num_pairs=10**6, **SAMPLER)
        return torch.stack([step.loss for step in steps]).tolist()

    name = "hcm_scale, exact first hop" if exact else "hcm_scale, both hops sampled"
    return Contender(name, run, BATCH * len(problem.batches), checker(len(problem.batches)))


def checker(num_batches: int) -> Callable[[Any], None]:
    """Every batch gave a finite loss near that of guessing, which is all that random hops allow."""

    def verify(losses: list[float]) -> None:
        assert len(losses) == num_batches
        assert np.isfinite(losses).all()
        assert abs(np.mean(losses) - np.log(CLASSES)) < 1

    return verify


def pyg(problem: Problem, workers: int, num_batches: int, backend: str) -> Contender:
    """The usual loop over PyG's loader."""
    batches = problem.batches[:num_batches]
    ends = [np.concatenate([getattr(batch, end) for batch in batches]) for end in ("u", "v")]
    with pyg_loaders.sampling_by(backend):
        loader = pyg_loaders.make(
            "LinkNeighborLoader",
            problem.graph,
            x=torch.tensor(problem.x),
            workers=workers,
            num_neighbors=[FAN_OUT, FAN_OUT],
            edge_label_index=torch.from_numpy(np.stack(ends)),
            edge_label=torch.from_numpy(np.concatenate([batch.hop for batch in batches])),
            batch_size=BATCH,
        )

    def run() -> list[float]:
        with pyg_loaders.sampling_by(backend):
            return train(loader)

    def train(loader: Any) -> list[float]:
        model = peer_model(problem.x.shape[1])
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for batch in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), batch.edge_label)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    name = f"PyG LinkNeighborLoader on {backend}, {workers} workers"
    return Contender(name, run, BATCH * num_batches, checker(num_batches))


def peer_model(num_attributes: int) -> nn.Module:
    """Two GCNConv layers and the same head."""
    from torch_geometric.nn import GCNConv

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(num_attributes, WIDTH), GCNConv(WIDTH, WIDTH)
            self.head = nn.Sequential(nn.Linear(WIDTH, HEAD), nn.ReLU(), nn.Linear(HEAD, CLASSES))

        def forward(self, batch: Any) -> Tensor:
            z = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
            left, right = batch.edge_label_index
            logits: Tensor = self.head((z[left] - z[right]).abs())
            return logits

    return Peer()
