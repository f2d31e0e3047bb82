"""The streamed mean and variance per edge against a two-pass float64 twin."""

import numba
import numpy as np
import pytest
import torch
from scipy.special import softmax

from hcm_scale.base.files import FolderError
from hcm_scale.score import device
from hcm_scale.score.edge_index import PairHead, edge_index
from hcm_scale.score.edges import EdgeHops, open_hops, predict_edges, save_hops

N, WIDTH, HIDDEN = 80, 16, 32


def draw_samples(num_samples, num_classes=4, seed=0, spread=0.3):
    """Samples that scatter around one embedding and one head, as a chain's do."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    z, w0, w1 = noise(N, WIDTH), noise(WIDTH, HIDDEN) / 3, noise(HIDDEN, num_classes) / 2
    return [
        (
            z + spread * noise(N, WIDTH),
            PairHead(w0 + spread * noise(WIDTH, HIDDEN), noise(HIDDEN), w1, spread * noise(num_classes)),
        )
        for _ in range(num_samples)
    ]


def two_pass(index, samples, hop="expected"):
    """The slow twin: every prediction in float64, then numpy's mean and variance."""
    left, right, _ = index.edges(0, index.num_edges)
    hops = []
    for z, head in samples:
        w0, b0, w1, b1 = (part.double().numpy() for part in head)
        apart = z.double().numpy()[left] - z.double().numpy()[right]
        logits = np.maximum((apart if index.directed else abs(apart)) @ w0 + b0, 0) @ w1 + b1
        p = np.exp(logits - logits.max(1, keepdims=True))
        classes = np.arange(1, p.shape[1] + 1)
        hops.append((p / p.sum(1, keepdims=True)) @ classes if hop == "expected" else logits.argmax(1) + 1.0)
    return np.mean(hops, 0), np.var(hops, 0)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hop", ["expected", "argmax"])
@pytest.mark.parametrize("num_samples", [1, 2, 30])
def test_predict_edges__equals_two_passes_in_float64(random_csr, directed, hop, num_samples):
    index = edge_index(*random_csr(N, 300, directed=directed), directed=directed)
    samples = draw_samples(num_samples)
    mean, var = predict_edges(index, samples, hop=hop, chunk_edges=50)
    slow_mean, slow_var = two_pass(index, samples, hop)
    assert mean.dtype == var.dtype == np.float32
    np.testing.assert_allclose(mean, slow_mean, atol=2e-6)
    np.testing.assert_allclose(var, slow_var, atol=2e-6)


def test_predict_edges__keeps_a_tiny_variance(random_csr):
    index = edge_index(*random_csr(N, 300))
    z, head = draw_samples(1)[0]
    head = head._replace(weight1=head.weight1 / 10)  # unsure of every edge
    samples = [(z, head._replace(bias1=head.bias1 + torch.tensor([1e-3 * t, 0, 0, 0]))) for t in range(20)]
    _, var = predict_edges(index, samples)
    slow = two_pass(index, samples)[1]
    chosen = slow > 1e-8  # below, float32 logits themselves are not that exact
    assert chosen.sum() > 100
    assert slow[chosen].max() < 1e-4
    np.testing.assert_allclose(var[chosen], slow[chosen], rtol=0.02)


def test_predict_edges__one_sample_has_no_variance(random_csr):
    index = edge_index(*random_csr(N, 300))
    assert not predict_edges(index, draw_samples(1)).var.any()


@pytest.mark.parametrize("chunk_edges", [1, 17, 256, 100_000])
def test_predict_edges__does_not_depend_on_the_chunk(random_csr, chunk_edges):
    index = edge_index(*random_csr(N, 300))
    samples = draw_samples(5)
    for got, wanted in zip(
        predict_edges(index, samples, chunk_edges=chunk_edges), predict_edges(index, samples), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_predict_edges__does_not_depend_on_the_order_of_samples(random_csr):
    index = edge_index(*random_csr(N, 300))
    samples = draw_samples(30)
    for got, wanted in zip(
        predict_edges(index, samples[::-1]), predict_edges(index, samples[7:] + samples[:7]), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_predict_edges__does_not_depend_on_threads(random_csr):
    index = edge_index(*random_csr(N, 300))
    samples, threads = draw_samples(4), torch.get_num_threads()
    many = predict_edges(index, samples)
    try:
        numba.set_num_threads(1)
        torch.set_num_threads(1)
        one = predict_edges(index, samples)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        torch.set_num_threads(threads)
    np.testing.assert_allclose(one.mean, many.mean, atol=1e-6)
    np.testing.assert_allclose(one.var, many.var, atol=1e-6)


def test_predict_edges__state_on_disk_is_the_same(random_csr, tmp_path):
    index = edge_index(*random_csr(N, 300))
    samples = draw_samples(3)
    on_disk, in_memory = predict_edges(index, samples, folder=tmp_path), predict_edges(index, samples)
    for stored, held in zip(on_disk, in_memory, strict=True):
        assert isinstance(stored.base, np.memmap)
        assert np.array_equal(stored, held)
    assert not any(tmp_path.iterdir())


def test_saved_hops__are_rounded_and_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    mean = np.concatenate([[1, 2, 4, 16, np.nan, 1, 15], rng.uniform(1, 16, 5000)]).astype(np.float32)
    var = np.concatenate([[0, 1, 0.25, 992, np.nan, 1e-6, 0], rng.uniform(0, 1, 5000) ** 4]).astype(np.float32)
    save_hops(EdgeHops(mean, var), tmp_path)
    found = EdgeHops(*map(np.array, open_hops(tmp_path, len(mean))))
    np.testing.assert_allclose(found.mean, mean, rtol=2**-14)
    np.testing.assert_allclose(found.var, var, rtol=2**-11, atol=2**-25)
    np.testing.assert_array_equal(found.mean[:7], mean[:7])
    save_hops(found, tmp_path)
    for again, once in zip(open_hops(tmp_path, None), found, strict=True):
        np.testing.assert_array_equal(again, once)
        for which in (7, slice(0, None, 3), np.array([4, 7, 7])):
            np.testing.assert_array_equal(again[which], once[which])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 4 * len(mean) + 2 * 128
    coded, negative = np.full(len(mean), 40_000, np.uint16), -np.ones(len(var), np.float16)
    for name, values in (("edges_mean.npy", mean), ("edges_mean.npy", coded), ("edges_var.npy", negative)):
        np.save(tmp_path / name, values)
        with pytest.raises(FolderError, match=rf"{name} holds .*legal"):
            open_hops(tmp_path, len(mean))
        save_hops(EdgeHops(mean, var), tmp_path)


def test_predict_edges__samples_may_share_one_buffer(random_csr):
    index = edge_index(*random_csr(N, 300))
    samples = draw_samples(4)

    def reusing():
        buffer = torch.empty(N, WIDTH)
        for z, head in samples:
            yield buffer.copy_(z), head

    assert np.array_equal(predict_edges(index, reusing()).mean, predict_edges(index, samples).mean)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hop", ["expected", "argmax"])
def test_sweep_device__plain_torch_agrees(random_csr, directed, hop):
    index = edge_index(*random_csr(N, 600, directed=directed), directed=directed)
    samples = draw_samples(6)
    mean, m2 = np.zeros((2, index.num_edges), np.float32)
    options = {"expected": hop == "expected", "chunk": 41, "device": torch.device("cpu"), "precision": "float32"}
    assert device.predict_on_device(index, iter(samples), mean, m2, **options) == 6
    wanted = predict_edges(index, samples, hop=hop)
    np.testing.assert_allclose(mean, wanted.mean, atol=1e-5)
    np.testing.assert_allclose(m2 / 6, wanted.var, atol=1e-5)


@pytest.mark.parametrize("directed", [False, True])
def test_sweep_device__edges_that_pass_through_have_the_numbers_of_those_that_stay(random_csr, directed, monkeypatch):
    index = edge_index(*random_csr(N, 600, directed=directed), directed=directed)
    options = {"expected": True, "chunk": 37, "device": torch.device("cpu"), "precision": "float32"}
    found, passed = [], []
    for free in (np.inf, 0):
        monkeypatch.setattr(device, "free_bytes", lambda _, free=free: free)
        monkeypatch.setattr(device, "_RANGE_EDGES", 37)
        moments = np.full((2, index.num_edges), np.nan, np.float32)
        assert device.predict_on_device(index, draw_samples(4), *moments, **options, on_edges=passed.append) == 4
        found.append(moments)
    np.testing.assert_allclose(*found, atol=1e-5)
    assert passed[:4] == [index.num_edges] * 4
    assert len(passed[4:]) == 4 * -(-index.num_edges // 37)
    assert sum(passed[4:]) == 4 * index.num_edges


def test_predict_edges__a_graph_without_edges(tmp_path):
    index = edge_index(np.zeros(N + 1, np.int64), np.empty(0, np.int32))
    assert predict_edges(index, draw_samples(2), folder=tmp_path).mean.shape == (0,)


def sample_of_logits(logits):
    """A graph of disjoint edges, and a sample that predicts these logits, which are at least 0, for them."""
    num_edges, num_classes = logits.shape
    indices = np.arange(2 * num_edges).reshape(-1, 2)[:, ::-1].ravel().astype(np.int32)
    z = torch.zeros(2 * num_edges, num_classes)
    z[::2] = torch.from_numpy(logits)
    nothing = torch.zeros(num_classes)
    head = PairHead(torch.eye(num_classes), nothing, torch.eye(num_classes), nothing)
    return edge_index(np.arange(2 * num_edges + 1), indices), (z, head)


@pytest.mark.parametrize("largest", [1e-3, 1.0, 30.0, 1e3, 1e30])
def test_expected_hop__is_that_of_numpy_at_any_size_of_logits(largest):
    logits = (np.random.default_rng(0).random((200, 4)) * largest).astype(np.float32)
    index, sample = sample_of_logits(logits)
    mean, var = predict_edges(index, [sample] * 3)
    exact = softmax((logits - logits.max(axis=1, keepdims=True)).astype(np.float64), axis=1) @ np.arange(1.0, 5.0)
    np.testing.assert_allclose(mean, exact, rtol=1.2e-7)
    assert var.max() < 1e-12


def test_likeliest_hop__of_equal_logits_is_the_first():
    index, sample = sample_of_logits(np.array([[2, 2, 1], [0, 3, 3]], np.float32))
    assert predict_edges(index, [sample], hop="argmax").mean.tolist() == [1, 2]


@pytest.mark.parametrize("hop", ["expected", "argmax"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predict_edges__refuses_one_logit_that_is_not_finite(value, hop):
    logits = np.ones((3, 4), np.float32)
    logits[1, 2] = value
    index, sample = sample_of_logits(logits)
    with pytest.raises(ValueError, match="sample 0 predicts NaN or infinite"):
        predict_edges(index, [sample], hop=hop)


@pytest.mark.parametrize("hop", ["expected", "argmax"])
def test_predict_edges__refuses_a_sample_that_diverged(random_csr, hop):
    index = edge_index(*random_csr(N, 300))
    z, head = draw_samples(1)[0]
    bad = (z, head._replace(bias0=head.bias0 * torch.inf))
    with pytest.raises(ValueError, match="sample 1 predicts NaN or infinite"):
        predict_edges(index, [(z, head), bad], hop=hop)
    mean, m2 = np.zeros((2, index.num_edges), np.float32)
    options = {"expected": hop == "expected", "chunk": 64, "device": torch.device("cpu"), "precision": "float32"}
    with pytest.raises(ValueError, match="sample 1 predicts NaN or infinite"):
        device.predict_on_device(index, [(z, head), bad], mean, m2, **options)
