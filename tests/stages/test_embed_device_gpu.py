"""A whole graph embedded and scored on a GPU: what the CPU gives, in the memory of one layer."""

import numpy as np
import pytest
import torch

from hcm_scale.base.device import free_bytes
from hcm_scale.base.spmm import propagate
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.sampling.device import kernels
from hcm_scale.sampling.device.graph import graph_bytes, graph_to
from hcm_scale.score import device as device_module
from hcm_scale.score.edge_index import PairHead, edge_index
from hcm_scale.score.edges import predict_edges
from hcm_scale.stages import embedding
from hcm_scale.synthetic.families import community, rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not kernels.AVAILABLE, reason="Triton is not installed"),
]
DEVICE = torch.device("cuda")
MIB = 1 << 20


@pytest.mark.parametrize("make", [lambda: community(3_000), lambda: rmat(11, num_attributes=7)])
@pytest.mark.parametrize("last_relu", [False, True])
def test_embed_all__agrees_with_the_cpu(make, last_relu):
    graph = make()
    x = propagate(graph.indptr, graph.indices, np.asarray(graph.x))
    model = HopModel(x.shape[1], 4, width=64, last_relu=last_relu, seed=1)
    wanted = embed_graph(model, graph.indptr, graph.indices, x, propagated=True)
    model.to(DEVICE)
    held = graph_to(DEVICE, graph.indptr, graph.indices, x)
    for columns in (64, 24):
        out, hidden = (torch.empty(graph.num_nodes, size, device=DEVICE) for size in (64, columns))
        found = embedding.embed_all(model, held, out, hidden)
        torch.testing.assert_close(found.cpu(), wanted, atol=1e-4, rtol=1e-4)


def test_embed_all__neighbours_that_pass_through_give_the_same_bits(monkeypatch):
    graph = community(3_000)
    x = propagate(graph.indptr, graph.indices, np.asarray(graph.x))
    model = HopModel(x.shape[1], 4, width=64, seed=1).to(DEVICE)
    monkeypatch.setattr(embedding, "DEVICE_CHUNK_ROWS", 700)
    found = []
    for free in (np.inf, 0):
        monkeypatch.setattr(embedding, "free_bytes", lambda _, free=free: free)
        assert embedding.fits_device(graph, 20, 64, "cuda") == (free > 0)
        held = embedding.graph_on_device(graph, x, 64, "cuda")
        assert len(held.indices) == (len(graph.indices) if free else 0)
        out, hidden = torch.empty(2, graph.num_nodes, 64, device=DEVICE)
        found.append(embedding.embed_all(model, held, out, hidden, graph.indices))
    assert torch.equal(*found)


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_predict_edges__that_pass_through_give_the_same_numbers(monkeypatch, precision):
    graph = community(3_000)
    index = edge_index(graph.indptr, graph.indices)
    model = HopModel(20, 4, width=64, seed=1)
    samples = [(torch.randn(3_000, 64, device=DEVICE), PairHead.of(model.state_dict())) for _ in range(3)]
    monkeypatch.setattr(device_module, "_RANGE_EDGES", 1_000)
    found = []
    for free in (np.inf, 0):
        monkeypatch.setattr(device_module, "free_bytes", lambda _, free=free: free)
        found.append(predict_edges(index, samples, device=DEVICE, precision=precision))
    for kept, passed in zip(*found, strict=True):
        np.testing.assert_allclose(passed, kept, atol=0 if precision == "auto" else 1e-5)


def test_embed_samples__of_a_second_view_find_room_where_those_of_the_first_were(monkeypatch):
    monkeypatch.setattr(embedding, "_WORK_BYTES", 128 * MIB)
    views = [community(3_000_000, edges_per_node=5), community(3_000_000)]
    model = HopModel(20, 4, width=64, seed=1)
    n, indices = views[1].num_nodes, views[1].indices
    needed = graph_bytes(n, indices, 20) + 4 * 64 * (n + embedding.DEVICE_CHUNK_ROWS) + 4 * 16 * n + 160 * MIB
    others = torch.empty(int(free_bytes(DEVICE)) - needed, dtype=torch.uint8, device=DEVICE)
    for view in views:
        options = {"propagated": True, "device": "cuda"}
        found = embedding.embed_samples(
            {"num_attributes": 20}, [model.state_dict()], view, np.asarray(view.x), **options
        )
        assert [len(z) for z, _ in found] == [n]
    del others


def test_device_serves__leaves_other_models_to_plain_torch():
    graph = community(100)
    two, three = HopModel(20, width=48).to(DEVICE), HopModel(20, width=64, num_layers=3).to(DEVICE)
    assert embedding.device_serves(two, graph, DEVICE, propagated=True)
    assert not embedding.device_serves(two, graph, "cpu", propagated=True)
    assert not embedding.device_serves(two, graph, DEVICE, propagated=False)
    assert not embedding.device_serves(three, graph, DEVICE, propagated=True)


@pytest.mark.parametrize("num_nodes", [100_000, 1_000_000, 3_000_000])
def test_scoring__holds_the_graph_one_layer_columns_of_another_and_seventeen_bytes_an_edge(num_nodes):
    graph, width = community(num_nodes), 64
    x = np.asarray(graph.x)
    model = HopModel(x.shape[1], 4, width=width, seed=1).to(DEVICE)
    index = edge_index(graph.indptr, graph.indices)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = graph_to(DEVICE, graph.indptr, graph.indices, x)
    room, hidden = (torch.empty(num_nodes, size, device=DEVICE) for size in (width, 16))
    samples = ((embedding.embed_all(model, held, room, hidden), PairHead.of(model.state_dict())) for _ in range(2))
    predict_edges(index, samples, device=DEVICE, precision="auto")
    taken = torch.cuda.max_memory_allocated() - before
    layer, chunk = 4 * width * num_nodes, 4 * width * min(embedding.DEVICE_CHUNK_ROWS, num_nodes)
    foreseen = graph_bytes(num_nodes, graph.indices, 20) + layer + 64 * num_nodes + 17 * graph.num_edges + chunk
    assert foreseen - layer < taken < 1.05 * foreseen + 64 * MIB
