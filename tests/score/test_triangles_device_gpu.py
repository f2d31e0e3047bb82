"""Triangles counted on a GPU: those of the cores and of SciPy's product."""

import numpy as np
import pytest
import torch
from scipy import sparse

from hcm_scale.base.triton_jit import AVAILABLE
from hcm_scale.score import triangles
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.kinds import closure
from hcm_scale.score.triangles_device import triangles_on_device
from hcm_scale.synthetic.families import rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed"),
]


def slow_triangles(edges, used):
    u, v, _ = edges.edges(0, edges.num_edges)
    upper = sparse.csr_array((np.ones(used.sum(), np.int64), (u[used], v[used])), shape=(edges.num_nodes,) * 2)
    joined = upper + upper.T
    return (joined @ joined * joined).sum(axis=1) // 2


def edges_of(matrix, kind=np.int32):
    arcs = sparse.csr_array(matrix)
    return edge_index(arcs.indptr.astype(np.int64), arcs.indices.astype(kind))


@pytest.mark.parametrize("share", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("scale", [6, 9, 12, 14])
def test_triangles_on_device__equal_the_sparse_product(scale, kind, share):
    graph = rmat(scale, edge_factor=16, seed=scale, num_attributes=1)
    edges = edge_index(graph.indptr, graph.indices.astype(kind))
    used = np.random.default_rng(0).random(edges.num_edges) < share
    np.testing.assert_array_equal(triangles_on_device(edges, used, "cuda"), slow_triangles(edges, used))


@pytest.mark.parametrize("num_members", [0, 2, 3, 70, 1500])
def test_triangles_on_device__of_a_clique_among_nodes_without_edges(num_members):
    matrix = np.zeros((num_members + 9, num_members + 9), np.int8)
    matrix[:num_members, :num_members] = 1 - np.eye(num_members, dtype=np.int8)
    found = triangles_on_device(edges_of(matrix), None, "cuda")
    of_member = (num_members - 1) * (num_members - 2) // 2
    np.testing.assert_array_equal(found, [of_member] * num_members + [0] * 9)


def test_triangles_on_device__of_a_star_are_none():
    matrix = np.zeros((5000, 5000), np.int8)
    matrix[0, 1:] = matrix[1:, 0] = 1
    assert not triangles_on_device(edges_of(matrix), None, "cuda").any()


def test_closure_and_cohesion__of_a_million_nodes_are_the_same_on_the_device(monkeypatch):
    graph = rmat(20, edge_factor=16, num_attributes=1)
    edges = edge_index(graph.indptr, graph.indices)
    mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
    cut = closure.far_cut(mean, 0.4)
    for bound in ("_MANY_STEPS", "_FEW_STEPS"):
        monkeypatch.setattr(triangles, bound, 0)
    made = {}
    for device in ("cpu", "cuda"):
        torch.cuda.reset_peak_memory_stats()
        counted, expected, _ = triangles.count_and_expect(edges, device=device)
        made[device] = counted, closure.closure(edges, mean, cut, expected, device)
    np.testing.assert_array_equal(made["cuda"], made["cpu"])
    assert torch.cuda.max_memory_allocated() > 17 * edges.num_edges, "the cores counted"
