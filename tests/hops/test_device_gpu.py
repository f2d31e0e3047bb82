"""Hop labels on a GPU: what the cores give, to the bit."""

import numpy as np
import pytest
import torch

from hcm_scale.base.triton_jit import AVAILABLE
from hcm_scale.config import Config
from hcm_scale.hops import choose_sources, label_hops
from hcm_scale.hops.device import layout_on_device
from hcm_scale.hops.layout import degree_layout
from hcm_scale.run.stages import label_options
from hcm_scale.stages.label import label
from hcm_scale.synthetic.families import rmat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def graph():
    return rmat(20, num_attributes=1)


def test_layout_on_device__is_that_of_the_cores(graph):
    found, cores = layout_on_device(graph.indptr, graph.indices, "cuda"), degree_layout(graph.indptr, graph.indices)
    for array, wanted in zip(found, (cores.out_indptr, cores.out_indices, cores.names, cores.node_of), strict=True):
        np.testing.assert_array_equal(array.cpu(), wanted)


@pytest.mark.parametrize(("num_sources", "classes", "pairs"), [(4096, 4, 256), (100, 3, 7), (1300, 6, 1)])
def test_label_hops__of_a_million_nodes_is_the_same_on_the_device(graph, num_sources, classes, pairs):
    sources = choose_sources(graph.indptr, num_sources=num_sources, seed=0)
    options = {"classes": classes, "pairs_per_class": pairs, "seed": 1, "sources_per_block": 1000}
    cores = label_hops(graph.indptr, graph.indices, sources, **options)
    torch.cuda.reset_peak_memory_stats()
    device = label_hops(graph.indptr, graph.indices, sources, device="cuda", **options)
    for block, wanted in zip(device, cores, strict=True):
        for name in ("first", "last", "u", "v", "hop", "counts"):
            np.testing.assert_array_equal(getattr(block, name), getattr(wanted, name))
    assert torch.cuda.max_memory_allocated() > 3 * 64 * 500_000, "the searches ran on the cores"


def test_label_stage__writes_the_same_bytes(graph, tmp_path):
    for device in ("cpu", "cuda"):
        label(graph, tmp_path / device, device=device, **label_options(Config()))
    cores, found = ({path.name: path.read_bytes() for path in (tmp_path / d).iterdir()} for d in ("cpu", "cuda"))
    assert found == cores
