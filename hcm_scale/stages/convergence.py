"""Chains of a run: predicted hops of some edges under every parameter sample of each encoder.

A thousand edges of the graph are drawn, the same for all encoders, and predicted from their exact neighbourhoods (of
hubs: 256 neighbours). The encoders are trained on different graphs and have no posterior in common. Memory and time:
those of a few batches of training a sample, by one thread, so that the numbers are the same at any number.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base.rng import key
from hcm_scale.base.spmm import Propagated, gcn_scale
from hcm_scale.base.threads import torch_threads
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.sampling.neighbors import NeighborSampler, make_batch
from hcm_scale.sampling.pairs import PairBatch
from hcm_scale.stages.edges import View

NUM_EDGES = 1_000
_HUB_CAP = 256
_CHUNK_EDGES = 128  # predicted at a time
Chains = NDArray[np.float64]  # (chains, samples, edges)


def drawn_edges(graph: Graph, count: int = NUM_EDGES) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The two ends of edges of a graph that are the same at every call, (edges,) each."""
    count = min(count, graph.num_arcs)
    entries = np.sort(np.random.default_rng(0).choice(graph.num_arcs, count, replace=False, shuffle=False))
    return np.searchsorted(graph.indptr, entries, side="right") - 1, graph.indices[entries].astype(np.int64)


@torch.no_grad()
def hops_by_sample(view: View, u: NDArray[np.int64], v: NDArray[np.int64], *, propagated: bool) -> Chains:
    """Predicted hops of the pairs under each sample of an encoder, (samples, pairs); x is Â X where `propagated`."""
    structure, x, samples = view
    net = HopModel(**samples.model)
    fan_outs = (None,) * (net.num_layers - propagated)
    degrees = gcn_scale(structure.indptr, structure.weights)
    options: Any = {"seed": 0, "hub_cap": _HUB_CAP, "weights": structure.weights}
    sampler = NeighborSampler(structure.indptr, structure.indices, degrees, fan_outs, **options)
    hops = np.arange(1.0, samples.model["num_classes"] + 1)
    predicted = np.empty((len(samples), len(u)))
    if isinstance(x, Propagated) and len(fan_outs) == 1:  # most chunks ask for the same hubs, whose rows are long sums
        x = x.keeping(sampler(np.unique(np.concatenate([u, v])), key(0, 0))[0])
    with torch_threads(1):
        for first in range(0, len(u), _CHUNK_EDGES):
            chunk = slice(first, first + _CHUNK_EDGES)
            batch = make_batch(PairBatch(0, 0, u[chunk], v[chunk], np.zeros_like(u[chunk])), x, sampler)
            for number, sample in enumerate(samples):
                net.load_state_dict(sample, strict=net.is_gcn)  # others may have buffers
                predicted[number, chunk] = (net(batch).double().softmax(1).numpy() * hops).sum(1)
    return predicted
