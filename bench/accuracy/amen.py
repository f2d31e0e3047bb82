"""AMEN (Perozzi and Akoglu 2016): a node is strange when its egonet has no attribute that holds it together.

For C = v and its neighbours and an attribute f with values in [0, 1], with degrees k and m edges,

    inside(f)  = sum over i, j in C of (A_ij - k_i k_j / 2m) x_i x_j             shared within, beyond chance
    outside(f) = sum over edges (i, b) leaving C of (1 - min(1, k_i k_b / 2m)) x_i x_b        shared with others

`inside` is mapped to [0, 1] by its least and greatest possible value, -(sum of k)^2 / 2m and |C|^2; `outside` is
divided by itself plus the surprise of the edges within, as a conductance is. Normality is inside - outside under the
weights of the attributes, of norm 1 and not negative, that make it largest: with L1 the best attribute alone, with L2
the root of the summed squares of the positive ones. The score is minus the L1 normality, the authors' default. Sparse
attributes are taken as present or absent, dense features are scaled to [0, 1]. A group that is joined tightly and has
anything in common is normal by this measure, so planted cliques may well score as less strange than chance.

Cost: each ego visits the arcs of its neighbours, sum of degrees squared in all. Memory: the products of both ends of
every arc (sparse), and three rows of attributes a thread.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bench.accuracy.amen_kernels import Rows, egonet_normality
from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.graph import SparseRows

_ARCS = 1 << 15


def run(problem: Problem, device: str) -> Scores:
    """Minus the normality of every node's egonet."""
    return {"AMEN": -normality(problem, unit_attributes(problem))}


def unit_attributes(problem: Problem) -> sparse.csr_array:
    """Attributes between 0 and 1: presence where they are sparse, else the features by each column's range."""
    if isinstance(problem.graph.x, SparseRows):
        raw = problem.graph.x.csr()
        return sparse.csr_array((np.ones(len(raw.data)), raw.indices, raw.indptr), shape=raw.shape)
    return sparse.csr_array(unit_range(problem.x))


def unit_range(x: NDArray[Any]) -> NDArray[np.float64]:
    """Every column from 0 to 1; a constant column becomes 0.

    >>> unit_range(np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    """
    low, high = x.min(axis=0).astype(np.float64), x.max(axis=0).astype(np.float64)
    return (x - low) / np.where(high > low, high - low, 1.0)


def normality(problem: Problem, x: sparse.csr_array, root: bool = False) -> NDArray[np.float64]:
    """The normality of every node's egonet, (n,), from attributes in [0, 1]; `root` takes the L2 weights, else L1."""
    graph = problem.graph
    products = _rows(arc_products(x, problem.sources, graph.indices))
    out = np.empty(graph.num_nodes)
    egonet_normality(np.asarray(graph.indptr), np.asarray(graph.indices), products, _rows(x), x.shape[1], root, out)
    return out


def arc_products(x: sparse.csr_array, sources: NDArray[Any], targets: NDArray[Any]) -> sparse.csr_array:
    """Row e: the element-wise product of the attributes of arc e's two ends."""
    starts = range(0, len(sources), _ARCS)
    parts = [x[sources[s : s + _ARCS]].multiply(x[targets[s : s + _ARCS]]).tocsr() for s in starts]
    return sparse.vstack(parts, format="csr") if parts else sparse.csr_array((0, x.shape[1]))


def _rows(matrix: sparse.csr_array) -> Rows:
    return Rows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float64))
