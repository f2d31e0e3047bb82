"""The sum over neighbours of the whole graph, Â H with H (n, 128): entries of Â a second.

Ours computes the weights of Â as it goes, from one scale a node. The peers are given Â ready made, self loops included:
torch's CSR, torch-sparse and scipy.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from bench import data
from bench.harness import Case, Contender
from bench.pyg_loaders import quiet
from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.graph.store import Graph

SCALE = {"smoke": 9, "quick": 18, "full": 20}
WIDTH = 128


def cases(size: str) -> Iterator[Case]:
    """One product, four ways."""
    graph = data.rmat(SCALE[size])
    h = np.random.default_rng(0).standard_normal((graph.num_nodes, WIDTH), np.float32)
    weights = gcn_matrix(graph)

    def contender(name: str, run: Callable[[], Any]) -> Contender:
        return Contender(name, run, weights.nnz, lambda out: check(weights, h, np.asarray(out)))

    contenders = [
        contender("hcm_scale", lambda: propagate(graph.indptr, graph.indices, h)),
        contender("torch CSR", torch_csr(weights, h)),
        contender("scipy CSR", lambda: weights @ h),
    ]
    absent = []
    try:
        contenders.append(contender("torch-sparse", torch_sparse(weights, h)))
    except ImportError as error:
        absent = [f"torch-sparse ({error})"]
    title = f"Â H, width {WIDTH}; R-MAT, {data.describe(graph)}"
    yield Case(title, "entries/s", contenders, absent=absent)


def gcn_matrix(graph: Graph) -> sparse.csr_array:
    """Â with its weights written down."""
    scale = sparse.diags_array(gcn_scale(graph.indptr))
    loops = sparse.eye_array(graph.num_nodes, dtype=np.float32)
    matrix = sparse.csr_array(scale @ (data.adjacency(graph, np.float32) + loops) @ scale)
    matrix.sort_indices()
    return matrix


def torch_csr(weights: sparse.csr_array, h: NDArray[np.float32]) -> Callable[[], Any]:
    """torch.sparse."""
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (weights.indptr, weights.indices))
    with quiet():  # that sparse CSR is in beta
        matrix = torch.sparse_csr_tensor(indptr, indices, torch.from_numpy(weights.data), size=weights.shape)
    right = torch.from_numpy(h)
    return lambda: matrix @ right


def torch_sparse(weights: sparse.csr_array, h: NDArray[np.float32]) -> Callable[[], Any]:
    """PyG's own product."""
    with quiet():
        from torch_sparse import SparseTensor
    parts = {"rowptr": weights.indptr, "col": weights.indices}
    tensors = {name: torch.from_numpy(part.astype(np.int64)) for name, part in parts.items()}
    matrix = SparseTensor(**tensors, value=torch.from_numpy(weights.data), sparse_sizes=weights.shape)
    right = torch.from_numpy(h)
    return lambda: matrix.matmul(right)


def check(weights: sparse.csr_array, h: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """A few rows in float64."""
    for row in np.linspace(0, len(h) - 1, 50).astype(int).tolist():
        entries = slice(weights.indptr[row], weights.indptr[row + 1])
        exact = weights.data[entries].astype(np.float64) @ h[weights.indices[entries]].astype(np.float64)
        np.testing.assert_allclose(out[row], exact, rtol=1e-3, atol=1e-4)
