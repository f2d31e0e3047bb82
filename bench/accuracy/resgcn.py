"""ResGCN (Pei et al. 2020): strange is what an autoencoder of the graph leaves to a residual read off the adjacency.

A two-layer network maps a node's row of A to its residual R_i. A GCN encodes the attributes, each layer's input damped
by the attention exp(-gamma R_l), R_l the residual carried along by a layer of its own, so that strange nodes speak
less. The code Z rebuilds the adjacency as Z Z^T and, through two layers, the attributes up to the residual:

    loss = alpha ||A - Z Z^T||^2 + (1 - alpha) ||X - X_hat - lambda R||^2,          score(i) = ||R_i||^2

||A - Z Z^T||^2 = ||A||^2 - 2 sum over arcs of z_u . z_v + ||Z^T Z||^2, so no n x n matrix is ever made. The adjacency
enters through a sparse product. Memory: arcs times the code's width, and the first weight, n x 128.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import gcn_scale

RESIDUAL_WIDTH, WIDTH, CODE_WIDTH = 128, 64, 32
ALPHA, GAMMA, LAMBDA = 0.5, 0.1, 0.1
EPOCHS, STEP_SIZE = 100, 0.005


class ResGCN(nn.Module):
    """Residual network, attended encoder and attribute decoder."""

    def __init__(self, num_nodes: int, num_features: int) -> None:
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_nodes, RESIDUAL_WIDTH)))
        self.second = nn.Linear(RESIDUAL_WIDTH, num_features)
        widths = (num_features, WIDTH, WIDTH, CODE_WIDTH)
        self.encoder = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.carry = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths[:-1]))
        self.decoder = nn.Sequential(nn.Linear(CODE_WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, num_features))

    def forward(self, x: Tensor, adjacency: Tensor, gcn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The code (n, 32), the rebuilt attributes (n, q) and the residuals (n, q)."""
        residual = self.second(torch.relu(torch.sparse.mm(adjacency, self.first)))
        hidden = torch.relu(torch.sparse.mm(gcn, self.encoder[0](x)))
        carried = residual
        for carry, layer in zip(self.carry, self.encoder[1:], strict=True):
            carried = torch.relu(carry(carried))
            hidden = torch.relu(torch.sparse.mm(gcn, layer(hidden * torch.exp(-GAMMA * carried))))
        return hidden, self.decoder(hidden), residual


def run(problem: Problem, device: str) -> Scores:
    """The squared length of every node's residual after training."""
    x = torch.from_numpy(problem.x.copy()).to(device)
    adjacency, gcn = sparse_matrices(problem, device)
    with torch.random.fork_rng():
        torch.manual_seed(key(problem.seed))
        model = ResGCN(*x.shape).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    for _ in range(EPOCHS):
        code, rebuilt, residual = model(x, adjacency, gcn)
        apart = (x - rebuilt - LAMBDA * residual).square().sum()
        loss = ALPHA * adjacency_loss(code, adjacency) + (1 - ALPHA) * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        residual = model(x, adjacency, gcn)[2]
    return {"ResGCN": residual.square().sum(1).double().cpu().numpy()}


def adjacency_loss(code: Tensor, adjacency: Tensor) -> Tensor:
    """||A - Z Z^T||^2 for a 0/1 adjacency, without the n x n product."""
    inner = (code * torch.sparse.mm(adjacency, code)).sum()
    return adjacency.values().sum() - 2 * inner + (code.T @ code).square().sum()


def sparse_matrices(problem: Problem, device: str) -> tuple[Tensor, Tensor]:
    """A and D^-1/2 (A + I) D^-1/2 as coalesced COO tensors."""
    n = problem.graph.num_nodes
    u, v = torch.from_numpy(problem.sources), torch.from_numpy(problem.graph.indices.astype("int64"))
    own = torch.arange(n)
    scale = torch.from_numpy(gcn_scale(problem.graph.indptr))
    adjacency = _coo(u, v, torch.ones(len(u)), n)
    gcn = _coo(torch.cat([u, own]), torch.cat([v, own]), torch.cat([scale[u] * scale[v], scale * scale]), n)
    return adjacency.to(device), gcn.to(device)


def _coo(u: Tensor, v: Tensor, values: Tensor, n: int) -> Tensor:
    return torch.sparse_coo_tensor(torch.stack([u, v]), values, (n, n), check_invariants=False).coalesce()
