"""The model against dense matrices: the same numbers, whatever the order of summing, the chunks and the device."""

import itertools
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor

from hcm_scale import model as model_module
from hcm_scale.base import spmm, threads
from hcm_scale.model import Block, HopModel, MiniBatch, aggregate, embed_graph


def block_of(matrix: np.ndarray, dtype: torch.dtype = torch.float32) -> Block:
    csr = sparse.csr_array(matrix)
    data = torch.tensor(csr.data, dtype=dtype).numpy()
    return Block.of(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), data, matrix.shape[1])


def batch_of(x: Tensor, blocks: tuple[Block, ...], left: Tensor, right: Tensor) -> MiniBatch:
    return MiniBatch(torch.arange(len(x)), blocks[-1].num_targets if blocks else 0, x, blocks, left, right, left, 0, 0)


def random_matrix(targets: int, sources: int, seed: int, density: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((targets, sources)) < density, rng.standard_normal((targets, sources)), 0.0)


def dense_gcn(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    n = len(indptr) - 1
    a = np.eye(n)
    for u in range(n):
        a[u, indices[indptr[u] : indptr[u + 1]]] = 1
    scale = 1 / np.sqrt(np.diff(indptr) + 1)
    return scale[:, None] * a * scale[None, :]


def dense_encode(model: HopModel, x: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    h = x.astype(np.float64)
    for depth, (layer, matrix) in enumerate(zip(model.encoder, matrices, strict=True)):
        h = matrix @ h @ layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()
        if depth < len(model.encoder) - 1 or model.last_relu:
            h = np.maximum(h, 0)
    return h


def dense_predict(model: HopModel, z: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    apart = z[left] - z[right]
    first, second = (
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()) for layer in model.head
    )
    hidden = np.maximum((apart if model.directed else np.abs(apart)) @ first[0] + first[1], 0)
    return hidden @ second[0] + second[1]


def with_biases(model: HopModel) -> HopModel:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.copy_(torch.randn(value.shape, generator=generator))
    return model


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_aggregate__equals_the_dense_product_and_its_gradient(targets, sources, width, seed):
    matrix = random_matrix(targets, sources, seed)
    block = block_of(matrix, torch.float64)
    h = torch.tensor(random_matrix(sources, width, seed + 1, 1.0), requires_grad=True)
    out = aggregate(block, h)
    torch.testing.assert_close(out, torch.tensor(matrix) @ h)
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad(out, h, upstream)
    torch.testing.assert_close(gradient, torch.tensor(matrix).T @ upstream)


def test_aggregate__passes_gradcheck_with_and_without_a_stored_transpose():
    block = block_of(random_matrix(6, 11, 0), torch.float64)
    turned = block_of(random_matrix(6, 11, 0).T, torch.float64)
    stored = replace(block, t_indptr=turned.indptr, t_indices=turned.indices, t_weights=turned.weights)
    h = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: aggregate(block, h), h)
    assert torch.autograd.gradcheck(lambda h: aggregate(stored, h), h)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_aggregate__does_not_depend_on_the_threads(num_threads, monkeypatch):
    monkeypatch.setattr(model_module, "_THREAD_PRODUCTS", 1)  # so that even a small product is cut
    before = torch.get_num_threads()
    for density in (0.0, 0.3):
        matrix = random_matrix(23, 50, 0, density)
        matrix[4] = 1.0  # one row heavier than all others
        block = block_of(matrix)
        h = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
        expected = aggregate(block, h)
        torch.set_num_threads(num_threads)
        try:
            assert torch.equal(aggregate(block, h), expected)
        finally:
            torch.set_num_threads(before)
        torch.testing.assert_close(expected, torch.tensor(matrix, dtype=torch.float32) @ h)


def test_bag_sums__equal_the_kernel():
    block = block_of(random_matrix(30, 50, 0))
    h = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    found = model_module._bag_sums(block.indptr, block.indices, block.weights, h)  # the form that a GPU runs
    torch.testing.assert_close(found, aggregate(block, h))


@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("num_attributes", [3, 40])  # narrower and wider than a layer: both orders of summing
def test_forward__equals_dense_matrices(num_layers, directed, propagated, num_attributes):
    sizes = [30 - 5 * i for i in range(num_layers + 1)]
    matrices = [random_matrix(sizes[i + 1], sizes[i], i) for i in range(num_layers)]
    x = np.random.default_rng(7).standard_normal((sizes[0], num_attributes))
    model = with_biases(HopModel(num_attributes, 4, width=8, num_layers=num_layers, directed=directed))
    pairs = np.random.default_rng(8).integers(0, sizes[-1], (2, 12))
    blocks = [block_of(matrix) for matrix in matrices]
    inputs, used = (matrices[0] @ x, blocks[1:]) if propagated else (x, blocks)
    batch = batch_of(torch.tensor(inputs, dtype=torch.float32), tuple(used), *map(torch.tensor, pairs))
    expected = dense_predict(model, dense_encode(model, x, matrices), *pairs)
    np.testing.assert_allclose(model(batch).detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_forward__gradients_equal_those_of_dense_matrices():
    matrices = [random_matrix(12, 20, 0), random_matrix(7, 12, 1)]
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    model = with_biases(HopModel(3, 4, width=8))
    left, right, hop = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5, 6, 0]), torch.tensor([0, 1, 2, 3])
    batch = batch_of(x, tuple(block_of(matrix) for matrix in matrices), left, right)
    loss = torch.nn.functional.cross_entropy(model(batch), hop)
    found = torch.autograd.grad(loss, list(model.parameters()))

    dense = [torch.tensor(matrix, dtype=torch.float32) for matrix in matrices]
    z = dense[1] @ model.encoder[0](dense[0] @ x).relu() @ model.encoder[1].weight + model.encoder[1].bias
    logits = model.head[1](model.head[0]((z[left] - z[right]).abs()).relu())
    expected = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, hop), list(model.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_forward__undirected_is_symmetric_and_directed_is_not():
    blocks = (block_of(random_matrix(7, 12, 1)),)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    left, right = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    for directed in (False, True):
        model = with_biases(HopModel(3, 4, width=8, num_layers=1, directed=directed))
        there, back = model(batch_of(x, blocks, left, right)), model(batch_of(x, blocks, right, left))
        assert torch.equal(there, back) is not directed


def test_forward__refuses_a_wrong_number_of_blocks():
    with pytest.raises(ValueError, match="0 blocks for 2 layers"):
        HopModel(3).encode(torch.zeros(4, 3), ())


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_parameter_shapes__are_those_of_the_model(num_layers):
    sizes = {"num_attributes": 3, "num_classes": 4, "width": 8, "num_layers": num_layers, "head_width": 6}
    made = {name: tuple(value.shape) for name, value in HopModel(**sizes).state_dict().items()}
    assert model_module.parameter_shapes(**sizes) == made


def test_model__weights_are_a_function_of_sizes_and_seed():
    torch.manual_seed(1)
    first = HopModel(20, seed=3).state_dict()
    torch.manual_seed(2)
    second, other = HopModel(20, seed=3).state_dict(), HopModel(20, seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["encoder.0.weight"], other["encoder.0.weight"])
    bound = (6 / (20 + 64)) ** 0.5
    assert 0.95 * bound < float(first["encoder.0.weight"].abs().max()) <= bound
    assert sorted(first) == sorted(
        f"{part}.{i}.{name}" for part in ("encoder", "head") for i in (0, 1) for name in ("weight", "bias")
    )


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("num_attributes", [3, 40])
def test_embed_graph__equals_dense_and_ignores_chunk_rows(random_csr, num_layers, propagated, num_attributes):
    indptr, indices = random_csr(50, 120)
    gcn = dense_gcn(indptr, indices)
    x = np.random.default_rng(0).standard_normal((50, num_attributes)).astype(np.float32)
    model = with_biases(HopModel(num_attributes, width=8, num_layers=num_layers, last_relu=num_layers == 3))
    given_x = (gcn @ x).astype(np.float32) if propagated else x
    given_x.flags.writeable = False
    whole = embed_graph(model, indptr, indices, given_x, propagated=propagated)
    np.testing.assert_allclose(whole.numpy(), dense_encode(model, x, [gcn] * num_layers), rtol=1e-4, atol=1e-5)
    for chunk_rows in (1, 7, 50):
        chunked = embed_graph(model, indptr, indices, given_x, propagated=propagated, chunk_rows=chunk_rows)
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_embed_graph__equals_the_model_on_exact_blocks(random_csr):
    indptr, indices = random_csr(40, 100)
    gcn = dense_gcn(indptr, indices)
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    model = with_biases(HopModel(5, width=8, num_layers=2))
    block = block_of(gcn)
    with torch.no_grad():
        full_batch = model.encode(torch.tensor(x), (block, block))
    torch.testing.assert_close(embed_graph(model, indptr, indices, x, propagated=False), full_batch)


@pytest.mark.parametrize("weighted", [False, True])
def test_device_sums__equal_the_hosts(random_csr, weighted):
    indptr, indices = random_csr(40, 100)
    edges = np.random.default_rng(1).lognormal(0, 2, len(indices)).astype(np.float32) if weighted else None
    weights = spmm.gcn_weights(indptr, edges)
    h = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    host = model_module._HostSums(indptr, indices, weights)
    device = model_module._DeviceSums(indptr, indices, weights, torch.device("cpu"))
    layer = torch.arange(15.0).reshape(5, 3) / 15, torch.ones(3)
    for rows in (slice(0, 40), slice(7, 19)):
        torch.testing.assert_close(device.rows(torch.from_numpy(h), rows), host.rows(h, rows))
        made = [torch.empty(rows.stop - rows.start, 3) for _ in range(2)]
        device.multiplied(torch.from_numpy(h), rows, *layer, made[0])
        torch.testing.assert_close(host.multiplied(h, rows, *layer, made[1]), made[0])


def test_embed_graph__refuses_wrong_shapes(random_csr):
    indptr, indices = random_csr(10, 20)
    x = np.zeros((10, 5), np.float32)
    with pytest.raises(ValueError, match=r"shape \(9, 5\)"):
        embed_graph(HopModel(5), indptr, indices, x[:9], propagated=False)


def made(multiply, x, weight, bias, gradient):
    """The product and its three gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = multiply(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


@pytest.mark.parametrize("num_rows", [0, 1, 500, 2_049, 20_000])
@pytest.mark.parametrize("widths", [(20, 64), (64, 64), (64, 4), (1, 1), (300, 128)])
def test_affine__is_torchs_and_does_not_depend_on_the_threads(num_rows, widths):
    rng = torch.Generator().manual_seed(0)
    shapes = (num_rows, widths[0]), widths, widths[1:], (num_rows, widths[1])
    parts = [torch.randn(shape, generator=rng) for shape in shapes]
    found = []
    for num_threads in (1, 2, 3):
        with threads.torch_threads(num_threads):
            found.append(made(model_module.affine, *parts))
            assert torch.get_num_threads() == num_threads
    expected = made(lambda x, weight, bias: bias + x @ weight, *(part.double() for part in parts))
    for name, one, two, three, exact in zip(("x W + b", "x", "W", "b"), *found, expected, strict=True):
        assert torch.equal(one, two), name
        assert torch.equal(one, three), name
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-4 * max(1, num_rows) ** 0.5)


def test_affine__leaves_other_threads_alone():
    with threads.torch_threads(2):
        model_module.affine(torch.ones(20_000, 64), torch.ones(64, 64))
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == [2]


ON_ONE_CORE = """
import os, threading
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
import torch
from hcm_scale.model import affine
torch.set_num_threads(4)
affine(torch.ones(20_000, 64), torch.ones(64, 64))
print(sum(thread.name.startswith("model") for thread in threading.enumerate()))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
def test_threads__are_as_many_as_the_cores_that_the_process_may_use():
    done = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.gpu
def test_embed_graph__on_the_device_equals_the_host(random_csr):
    indptr, indices = random_csr(200, 900)
    x = np.random.default_rng(0).standard_normal((200, 5)).astype(np.float32)
    edges = np.random.default_rng(1).lognormal(0, 2, len(indices)).astype(np.float32)
    for propagated, weights in itertools.product((False, True), (None, edges)):
        model, how = with_biases(HopModel(5, width=8, num_layers=3)), {"propagated": propagated, "weights": weights}
        host = embed_graph(model, indptr, indices, x, **how)
        device = embed_graph(model, indptr, indices, x, chunk_rows=64, device="cuda", **how)
        torch.testing.assert_close(device.cpu(), host, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_aggregate__on_the_device_equals_the_host():
    block = block_of(random_matrix(60, 110, 0))
    moved = replace(block, indptr=block.indptr.cuda(), indices=block.indices.cuda(), weights=block.weights.cuda())
    h = torch.randn(110, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    on_device = h.detach().cuda().requires_grad_()
    (expected,) = torch.autograd.grad(aggregate(block, h).square().sum(), h)
    (found,) = torch.autograd.grad(aggregate(moved, on_device).square().sum(), on_device)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
