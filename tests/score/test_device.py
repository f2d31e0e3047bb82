"""CUDA against the CPU: float32 to 1e-4, the fused bfloat16 kernel to 1e-2 with the same ranking, averages to 1e-12."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from hcm_scale.score import device, nodes
from hcm_scale.score.edge_index import PairHead, Pairs, edge_index
from hcm_scale.score.edges import predict_edges
from hcm_scale.synthetic.families import community, rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
N, WIDTH, HIDDEN = 3000, 128, 256


def draw_samples(num_samples, num_classes=4, width=WIDTH, hidden=HIDDEN, device="cpu"):
    """Samples that scatter around one embedding and one head, with weights of the size that training gives."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    z, w0, w1 = noise(N, width), noise(width, hidden) / width**0.5, noise(hidden, num_classes) / hidden**0.5
    made = []
    for _ in range(num_samples):
        head = (w0 + 0.01 * noise(width, hidden), 0.1 * noise(hidden), w1, 0.1 * noise(num_classes))
        made.append(((z + 0.1 * noise(N, width)).to(device), PairHead(*(part.to(device) for part in head))))
    return made


def close(got, wanted, number, atol):
    for name in ("mean", "var"):
        np.testing.assert_allclose(getattr(got, name)[number], getattr(wanted, name)[number], atol=atol, rtol=0)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hop", ["expected", "argmax"])
def test_cuda_float32__agrees_with_the_cpu_to_1e_4(random_csr, directed, hop):
    index = edge_index(*random_csr(N, 20_000, directed=directed), directed=directed)
    number = index.edges(0, index.num_edges)[2]
    samples = draw_samples(5)
    cpu = predict_edges(index, samples, hop=hop)
    cuda = predict_edges(index, samples, hop=hop, device="cuda", chunk_edges=4096, precision="float32")
    if hop == "expected":
        close(cuda, cpu, number, 1e-4)
    else:  # a pair whose two best classes tie to the last bit may fall either way
        assert np.mean(np.abs(cuda.mean[number] - cpu.mean[number]) > 1e-4) < 1e-3
    assert np.array_equal(np.isnan(cuda.mean), np.isnan(cpu.mean))


def test_cuda_float32__ignores_tf32_switched_on_elsewhere(random_csr):
    index = edge_index(*random_csr(N, 20_000))
    samples = draw_samples(3)
    cpu = predict_edges(index, samples)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        close(predict_edges(index, samples, device="cuda", precision="float32"), cpu, slice(None), 1e-4)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_classes", [2, 4, 7, 16])
def test_fused__agrees_to_1e_2_and_ranks_the_same(random_csr, directed, num_classes):
    pytest.importorskip("triton")
    index = edge_index(*random_csr(N, 20_001, directed=directed), directed=directed)
    samples = draw_samples(6, num_classes)
    cpu = predict_edges(index, samples)
    cuda = predict_edges(index, samples, device="cuda", precision="bfloat16")
    close(cuda, cpu, slice(None), 1e-2)
    assert spearmanr(cuda.mean, cpu.mean).statistic > 0.9999
    of_both = [nodes.average_hops(index, [hops.mean], hops.var, 0.0)[0][0] for hops in (cuda, cpu)]
    assert spearmanr(*of_both).statistic > 0.9999


@pytest.mark.parametrize("tile", [32, 64, 128])
@pytest.mark.parametrize("slab", [64, 128])
def test_fused__does_not_depend_on_the_tile(random_csr, tile, slab):
    pytest.importorskip("triton")
    left, right = torch.randint(0, N, (2, 1003), dtype=torch.int32, device="cuda")
    pairs = Pairs(left, right, signed=False, expected=True)
    wanted, got = torch.zeros(2, 2, 1003, device="cuda")
    for count, (z, head) in enumerate(draw_samples(3, device="cuda"), 1):
        device.fused_step(z, head, pairs, count, wanted)
        device.fused_step(z, head, pairs, count, got, tile=tile, slab=slab, num_warps=4)
    torch.testing.assert_close(got, wanted, atol=2e-3, rtol=0)  # tiles round the second product differently


def test_fused__argmax_with_a_float32_product_is_nearly_the_cpu(random_csr):
    pytest.importorskip("triton")
    index = edge_index(*random_csr(N, 20_000))
    z, head = draw_samples(1)[0]
    cpu = predict_edges(index, [(z, head)], hop="argmax")
    left, right, _ = index.edges(0, index.num_edges)
    pairs = Pairs(torch.from_numpy(left).cuda(), torch.from_numpy(right).cuda(), signed=False, expected=False)
    moments = torch.zeros(2, len(left), device="cuda")
    on_device = PairHead(*(part.cuda() for part in head))
    device.fused_step(z.cuda(), on_device, pairs, 1, moments, product=torch.float32)
    assert np.mean(moments[0].cpu().numpy() != cpu.mean) < 0.01  # TF32 may tip a tie


def test_fused__finds_a_sample_that_diverged(random_csr):
    pytest.importorskip("triton")
    index = edge_index(*random_csr(N, 1000))
    z, head = draw_samples(1)[0]
    bad = (z, head._replace(bias0=head.bias0 * torch.inf))
    for hop in ("expected", "argmax"):
        with pytest.raises(ValueError, match="sample 1 predicts NaN or infinite"):
            predict_edges(index, [(z, head), bad], hop=hop, device="cuda", precision="bfloat16")


def test_fused__refuses_sizes_it_cannot_tile(random_csr):
    pytest.importorskip("triton")
    index = edge_index(*random_csr(N, 1000))
    for samples, message in [
        (draw_samples(1, width=24), "width=24 must be a power of two"),
        (draw_samples(1, num_classes=17), "17 hop classes"),
    ]:
        with pytest.raises(ValueError, match=message):
            predict_edges(index, samples, device="cuda", precision="bfloat16")


@pytest.mark.parametrize("make", [lambda: community(3_000), lambda: rmat(14)])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.2, 0.9])
def test_average_hops__on_a_gpu_agrees_with_the_cores(make, directed, trim, monkeypatch):
    pytest.importorskip("triton")
    graph, rng = make(), np.random.default_rng(0)
    edges = edge_index(graph.indptr, graph.indices, directed=directed)
    means = [rng.uniform(1, 4, edges.num_edges), rng.choice([1.0, 1.5, 3.25], edges.num_edges)]
    means = [mean.astype(np.float32) for mean in means]
    var = rng.uniform(0, 1, edges.num_edges).astype(np.float32)
    wanted = nodes.average_hops(edges, means, var, trim)
    split_hubs, noted = device._hubs_at_once, []
    monkeypatch.setattr(nodes, "MANY_ENTRIES", 0)
    monkeypatch.setattr(device, "_hubs_at_once", lambda degree: noted.append(len(degree)) or split_hubs(degree))
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
