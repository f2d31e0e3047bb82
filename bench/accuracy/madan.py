"""MADAN (Gutierrez-Gomez et al. 2020): heat that starts at a strange node stays there.

Edges are weighted by exp(-d^2 / 2 s^2), d the distance of the ends' features scaled to [0, 1] and s their standard
deviation, so a node unlike its neighbours is almost cut off. With L the Laplacian of the weighted graph, the
concentration of node i at scale t is the norm of column i of exp(-t L / lambda_max), which is the root of entry (i, i)
of exp(-2 t L / lambda_max). The authors call a node strange at a scale where it lies two deviations above the mean, so
the score is the number of deviations above the mean, averaged over scales.

No eigenvectors: the entries (T_k)_ii of the Chebyshev polynomials of L serve every scale at once, and
T_2k = 2 T_k^2 - 1 gives two of them per product. Coefficients are Bessel functions. Cost: half the degree (about 100)
sparse products with n columns. Memory: three blocks of n x 512 doubles.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse, special
from scipy.sparse.linalg import eigsh

from bench.accuracy.amen import unit_range
from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores, arc_distances

SCALES = (1.0, 10.0, 100.0, 1000.0)
_COLUMNS = 512
_SMALLEST = 1e-9  # of a coefficient that is still used


def run(problem: Problem, device: str) -> Scores:
    """The mean over scales of each node's standardised concentration."""
    concentrated = concentration(laplacian(problem), SCALES, device)
    spread = concentrated.std(axis=1, keepdims=True)
    standard = (concentrated - concentrated.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return {"MADAN": standard.mean(axis=0)}


def laplacian(problem: Problem) -> sparse.csr_array:
    """The Laplacian of the graph, its edges weighted by how alike their ends are."""
    x = unit_range(problem.x)
    weights = np.exp(-0.5 * arc_distances(problem, x) ** 2 / (x.var() or 1.0))
    places = (problem.sources, problem.graph.indices)
    adjacency = sparse.csr_array((weights, places), shape=(len(x), len(x)))
    return sparse.csr_array(sparse.diags_array(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency)


def concentration(matrix: sparse.csr_array, scales: tuple[float, ...], device: str = "cpu") -> NDArray[np.float64]:
    """The norm of every column of exp(-t matrix / lambda_max), (len(scales), n), for a Laplacian `matrix`."""
    n = matrix.shape[0]
    degree = 2 + int(np.argmax(special.ive(np.arange(2, 10_000), max(scales)) < _SMALLEST))
    scaled = sparse.csr_array(matrix * (2.0 / largest_eigenvalue(matrix)) - sparse.eye_array(n))
    moments = chebyshev_diagonal(scaled, degree, device)
    order = np.arange(len(moments))
    signs = np.where(order == 0, 1.0, 2.0) * (-1.0) ** order
    coefficients = np.stack([signs * special.ive(order, t) for t in scales])
    return np.sqrt(np.maximum(coefficients @ moments, 0.0))


def largest_eigenvalue(matrix: sparse.csr_array) -> float:
    """lambda_max of a Laplacian by Lanczos from a fixed start; 1 where there are no edges, so that it may divide."""
    if not matrix.diagonal().any():
        return 1.0
    start = 1.0 + np.arange(matrix.shape[0]) / matrix.shape[0]
    return float(eigsh(matrix, k=1, which="LM", v0=start, return_eigenvectors=False)[0])


def chebyshev_diagonal(matrix: sparse.csr_array, degree: int, device: str = "cpu") -> NDArray[np.float64]:
    """Diagonals of T_0, T_1, ... of a symmetric matrix with spectrum in [-1, 1]: (degree + 1 or one more, n)."""
    n, half = matrix.shape[0], (degree + 1) // 2
    multiplier = _to_torch(matrix, device)
    out = np.empty((2 * half + 2, n))
    for first in range(0, n, _COLUMNS):
        last = min(first + _COLUMNS, n)
        previous = torch.zeros((n, last - first), dtype=torch.float64, device=device)
        previous[first:last] = torch.eye(last - first, dtype=torch.float64, device=device)
        current = torch.sparse.mm(multiplier, previous)
        rows = [torch.ones(last - first, dtype=torch.float64, device=device), (previous * current).sum(0)]
        for _ in range(half):
            rows.append(2 * (current * current).sum(0) - 1)
            previous, current = current, 2 * torch.sparse.mm(multiplier, current) - previous
            rows.append(2 * (previous * current).sum(0) - rows[1])
        out[:, first:last] = torch.stack(rows).cpu().numpy()
    return out


def _to_torch(matrix: sparse.csr_array, device: str) -> torch.Tensor:
    entries = matrix.tocoo()
    places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.from_numpy(entries.data.astype(np.float64))
    return torch.sparse_coo_tensor(places, values, matrix.shape, check_invariants=False).coalesce().to(device)
