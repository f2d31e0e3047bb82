"""The kernels for GPUs where there is none: Triton's interpreter runs them, against plain torch and the cores.

Triton decides at its import whether it interprets: one test of the gate starts a process for all others of this file.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.hops import choose_sources, label_hops
from hcm_scale.hops.layout import degree_layout
from hcm_scale.model import HopModel, aggregate, embed_graph
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.graph import draw_rows, graph_to
from hcm_scale.score import device, nodes, triangles
from hcm_scale.score.edge_index import PairHead, Pairs, edge_index
from hcm_scale.score.kinds import closure
from hcm_scale.synthetic.families import community, rmat

interpreted = pytest.mark.interpreted
CPU = torch.device("cpu")
PACKAGE = Path(gpu.__file__).parents[2]


@pytest.mark.gate
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_for_gpus__run_by_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "interpreted", __file__]
    ended = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


@interpreted
@pytest.mark.parametrize("free_columns", [20, 7])
def test_propagated__is_made_on_the_device_in_as_many_columns_as_there_is_room_for(monkeypatch, free_columns):
    from hcm_scale.base import spmm_device

    graph = community(40)
    x = np.asarray(graph.x)
    monkeypatch.setattr(spmm_device, "free_bytes", lambda _: spmm_device._ROOM * 4 * 40 * (free_columns + 0.5))
    there = [torch.from_numpy(np.array(part)) for part in (graph.indptr, graph.indices, gcn_scale(graph.indptr))]
    out = torch.zeros(40, 32)
    assert spmm_device.propagate_into(out, *there, x)
    wanted = propagate(graph.indptr, graph.indices, x)
    np.testing.assert_allclose(out[:, :20], wanted, atol=1e-6)  # the interpreter rounds products, which a GPU does not
    assert not out[:, 20:].any()
    monkeypatch.setattr(spmm_device, "free_bytes", lambda _: 0)
    assert not spmm_device.propagate_into(out, *there, x)


@interpreted
@pytest.mark.parametrize("keep", [0.8, 0.1])
def test_average_on_device__agrees_with_the_cores(monkeypatch, keep):
    monkeypatch.setattr(device, "_LANES", (2, 4, 8))
    monkeypatch.setattr(device, "_HUB_ENTRIES", 30)
    graph, rng = rmat(4, edge_factor=20), np.random.default_rng(0)
    edges = edge_index(graph.indptr, graph.indices)
    assert (np.diff(edges.indptr) > 8).sum() > 3, "too few rows are longer than the lanes"
    means = [rng.uniform(1, 4, edges.num_edges), rng.choice([1, 1.5, 3.25], edges.num_edges)]
    means = [mean.astype(np.float32) for mean in means]
    var = rng.uniform(0, 1, edges.num_edges).astype(np.float32)
    *ahp, iv = device.average_on_device(edges, means, var, keep, "cpu")
    wanted = nodes.average_hops(edges, means, var, 1 - keep)
    np.testing.assert_array_equal(ahp, wanted[0])
    np.testing.assert_allclose(iv, wanted[1], rtol=1e-12)


@interpreted
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("has_room", [True, False])
def test_edge_ends__are_listed_in_order_by_the_device_and_by_the_cores(monkeypatch, directed, has_room):
    monkeypatch.setattr(device, "_PASS_EDGES", 7)
    monkeypatch.setattr(device, "free_bytes", lambda _: float("inf") if has_room else 0)
    graph = rmat(5, edge_factor=2)
    assert (np.diff(graph.indptr) == 0).any()
    edges = edge_index(graph.indptr, graph.indices, directed=directed)
    for found, wanted in zip(device.edge_ends(edges, CPU), edges.edges(0, edges.num_edges), strict=False):
        assert found.dtype == torch.int32
        np.testing.assert_array_equal(found, wanted)


@interpreted
@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("signed", [True, False])
def test_fused_step__agrees_with_plain_torch(expected, signed):
    torch.manual_seed(0)
    left, right = torch.randint(0, 30, (2, 50), dtype=torch.int32)
    pairs = Pairs(left, right, signed=signed, expected=expected)
    found, wanted = torch.zeros(2, 2, 50)
    for count in (1, 2):
        head = PairHead.of(HopModel(20, 3, width=16, head_width=16, seed=count).state_dict())
        z = torch.randn(30, 16)
        device.fused_step(z, head, pairs, count, found, product=torch.float32)
        device.plain_step(z, head, pairs, count, wanted, chunk=64, precision="float32")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@interpreted
@pytest.mark.parametrize(("passes_through", "columns"), [(False, 16), (True, 7)])
def test_embed_all__agrees_with_the_cores(monkeypatch, passes_through, columns):
    from hcm_scale.stages import embedding

    monkeypatch.setattr(embedding, "DEVICE_CHUNK_ROWS", 24)
    graph = rmat(6)
    x = propagate(graph.indptr, graph.indices, np.asarray(graph.x))
    model = HopModel(x.shape[1], 4, width=16, seed=1)
    held = graph_to(CPU, graph.indptr, graph.indices[: 0 if passes_through else None], x, 32)
    found = embedding.embed_all(model, held, torch.empty(64, 16), torch.empty(64, columns), graph.indices)
    wanted = embed_graph(model, graph.indptr, graph.indices, x, propagated=True)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@interpreted
def test_hidden_on_device__is_of_fewer_columns_where_memory_is_short(monkeypatch):
    from hcm_scale.stages import embedding

    found = []
    for free in (4 * 100 * 64 * 3, 4 * 100 * 63 * 3, 4 * 100 * 31 * 3, 0):
        monkeypatch.setattr(embedding, "free_bytes", lambda _, free=free: free)
        found.append(embedding.hidden_on_device(100, 64, CPU).shape[1])
    assert found == [64, 32, 16, 16]


@interpreted
@pytest.mark.parametrize("limit", [3, 2**31 - 1])
def test_sum_hidden__equals_explicit_rows_forward_and_backward(limit):
    graph = rmat(5, num_attributes=5)
    held = graph_to(CPU, graph.indptr, graph.indices, graph.x, 16)
    ends = torch.randint(0, graph.num_nodes, (9,), dtype=torch.int32)
    batch = gpu.EndsBatch(held, ends, ends[:4].long(), torch.tensor([7_654_321_987_654_321]), limit, 0, 0)
    weight, bias = torch.randn(5, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    sums, spread = batch.sum_hidden(weight, bias)
    starts, entries, weights = draw_rows(held, ends.long(), limit, int(batch.key))
    hidden = torch.relu(held.x[entries, :5] @ weight + bias) * weights[:, None]
    wanted = torch.zeros(9, 16).index_add(0, torch.repeat_interleave(starts.diff()), hidden)
    found = aggregate(spread, sums)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    back = torch.randn_like(found)
    gradients = [torch.autograd.grad(made, (weight, bias), back) for made in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@interpreted
def test_draw_into__equals_plain_draw():
    pairs = torch.arange(700, dtype=torch.int32)
    held = gpu.DevicePairs(pairs, pairs + 1_000, torch.tensor([0, 200, 500, 700]))
    ends, hop = torch.full((256,), -1, dtype=torch.int32), torch.full((128,), -1)
    gpu.draw_into(held, torch.tensor([31, 131, 2**50 + 17]), ends, hop)
    u, v, klass = gpu.draw(held, 31, 131, 2**50 + 17)
    assert torch.equal(ends[:100], u)
    assert torch.equal(ends[128:228], v)
    assert torch.equal(hop[:100], klass)
    assert (hop[100:] == -100).all()


@interpreted
def test_hops_on_device__are_those_of_the_cores(monkeypatch):
    """Hubs, isolated nodes, several groups of nodes, two words, a last block that is not full."""
    from hcm_scale.hops import device as searches

    small = {
        "WORDS": 2,
        "COLUMNS": 128,
        "CHUNK": 8,
        "GROUP": 4,
        "_SHAPES": ((20, 1, 8, 1), (4, 4, 4, 1), (0, 16, 2, 1)),
    }
    for name, value in small.items():
        monkeypatch.setattr(searches, name, value)
    graph = rmat(8, edge_factor=2, num_attributes=1)
    found = searches.layout_on_device(graph.indptr, graph.indices, "cpu")
    cores = degree_layout(graph.indptr, graph.indices)
    for array, wanted in zip(found, (cores.out_indptr, cores.out_indices, cores.names, cores.node_of), strict=True):
        np.testing.assert_array_equal(array, wanted)
    sources = choose_sources(graph.indptr, num_sources=135, seed=1)
    options = {"classes": 3, "pairs_per_class": 3, "seed": 3, "sources_per_block": 50}
    reference = list(label_hops(graph.indptr, graph.indices, sources, **options))
    used = []
    monkeypatch.setattr(searches, "fits_device", lambda *_: used.append(1) or True)
    blocks = list(label_hops(graph.indptr, graph.indices, sources, device="cpu:0", **options))
    assert used
    for block, wanted in zip(blocks, reference, strict=True):
        for name in ("first", "last", "u", "v", "hop", "counts"):
            np.testing.assert_array_equal(getattr(block, name), getattr(wanted, name))


def triangle_graphs():
    """Adjacency matrices: skewed, a clique with nodes that have no edge, a star, no edges, no nodes."""
    skewed = rmat(5, num_attributes=1)
    clique, star = np.zeros((40, 40), np.int8), np.zeros((40, 40), np.int8)
    clique[5:25, 5:25] = 1 - np.eye(20, dtype=np.int8)
    star[0, 1:] = star[1:, 0] = 1
    arcs = sparse.csr_array((np.ones(skewed.num_arcs, np.int8), skewed.indices, skewed.indptr), shape=(32, 32))
    return [arcs.toarray(), clique, star, np.zeros((3, 3), np.int8), np.zeros((0, 0), np.int8)]


@interpreted
@pytest.mark.parametrize(
    ("which", "share", "kind"),
    [
        (0, None, np.int32),
        (0, 0.6, np.int64),
        (1, 0.6, np.int32),
        (2, 0.0, np.int32),
        (3, None, np.int64),
        (4, 0.6, np.int32),
    ],
)
def test_triangles_on_device__equal_the_dense_count(monkeypatch, which, share, kind):
    """Every shape of tiles, tasks that are a part of a node's edges, nodes beyond the hubs."""
    from hcm_scale.score import triangles_device

    small = {"_SHAPES": ((3, 4, 4), (1 << 62, 2, 8)), "_LENGTHS": (0, 4, 8, 1 << 30), "_SLICE": 8, "_TILE": 64}
    for name, value in (small | {"_HUBS": 16, "_COPIES": 3}).items():
        monkeypatch.setattr(triangles_device, name, value)
    adjacency = triangle_graphs()[which]
    arcs = sparse.csr_array(adjacency)
    edges = edge_index(arcs.indptr.astype(np.int64), arcs.indices.astype(kind))
    used = None if share is None else np.random.default_rng(0).random(edges.num_edges) < share
    counted = np.triu(adjacency).astype(np.int64)
    counted[np.nonzero(counted)] = True if used is None else used
    counted += counted.T
    found = triangles_device.triangles_on_device(edges, used, "cpu")
    np.testing.assert_array_equal(found, np.diag(counted @ counted @ counted) // 2)


@interpreted
def test_closure_and_cohesion__of_many_steps_are_counted_on_the_device(monkeypatch):
    from hcm_scale.score import triangles_device

    graph, asked = rmat(5, num_attributes=1), []
    edges = edge_index(graph.indptr, graph.indices)
    mean = np.random.default_rng(0).random(edges.num_edges).astype(np.float32)
    cut, count = closure.far_cut(mean, 0.4), triangles_device.triangles_on_device

    def both(device):
        counted, expected, _ = triangles.count_and_expect(edges, device=device)
        return counted, closure.closure(edges, mean, cut, expected, device)

    def record(*arguments):
        asked.append(count(*arguments))
        return asked[-1]

    monkeypatch.setattr(triangles_device, "triangles_on_device", record)
    wanted = both("cpu:0")
    assert not asked, "few steps are left to the cores"
    monkeypatch.setattr(triangles, "_MANY_STEPS", 0)
    monkeypatch.setattr(triangles, "_FEW_STEPS", 0)
    np.testing.assert_array_equal(both("cpu:0"), wanted)
    assert len(asked) == 2
    monkeypatch.setattr(triangles_device, "free_bytes", lambda _: 0)
    np.testing.assert_array_equal(both("cpu:0"), wanted)
    assert asked[2:] == [None, None], "there was no room"
