"""AHP and IV of all nodes on a GPU, against the cores: ties, hubs, nodes without neighbours, directed graphs."""

import importlib.util

import numpy as np
import pytest
import torch

from hcm_scale.score import device, nodes
from hcm_scale.score.edge_index import edge_index
from hcm_scale.synthetic.families import community, rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.mark.parametrize("make", [lambda: community(3_000), lambda: rmat(14)])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.9])
def test_average_hops__on_a_gpu_agrees_with_the_cores(make, directed, trim, monkeypatch):
    graph, rng = make(), np.random.default_rng(0)
    edges = edge_index(graph.indptr, graph.indices, directed=directed)
    means = [rng.uniform(1, 4, edges.num_edges), rng.choice([1.0, 1.5, 3.25], edges.num_edges)]
    means = [mean.astype(np.float32) for mean in means]
    var = rng.uniform(0, 1, edges.num_edges).astype(np.float32)
    wanted = nodes.average_hops(edges, means, var, trim)
    take_hubs, noted = device._average_hubs, []
    monkeypatch.setattr(nodes, "MANY_ENTRIES", 0)
    monkeypatch.setattr(device, "_average_hubs", lambda hubs, *_: noted.append(len(hubs)) or take_hubs(hubs, *_))
    found = nodes.average_hops(edges, means, var, trim, "cuda")
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)
    assert noted == [np.count_nonzero(np.diff(graph.indptr) > 1024)], "the cores averaged"


def test_average_hops__leaves_small_graphs_to_the_cores():
    graph = community(300)
    edges = edge_index(graph.indptr, graph.indices)
    means = [np.random.default_rng(0).uniform(1, 4, edges.num_edges).astype(np.float32)]
    var = np.random.default_rng(1).uniform(0, 1, edges.num_edges).astype(np.float32)
    assert (
        nodes.average_hops(edges, means, var, 0.2, "cuda")[0] == nodes.average_hops(edges, means, var, 0.2)[0]
    ).all()
