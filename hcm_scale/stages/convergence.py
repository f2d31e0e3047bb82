"""How far the chains of a run are from a posterior: split R-hat and effective sample size of predicted hops of edges.

A thousand edges of the graph are drawn, the same for all encoders, and predicted under every sample of each, from their
exact neighbourhoods (of hubs: 256 neighbours). R-hat and effective sample size are those of Gelman et al. (Bayesian
Data Analysis, 3rd ed., 11.4 and 11.5), of the two halves of each chain, and of the chains of all encoders. These are
trained on different graphs and have no posterior in common: their R-hat says how far they disagree about edges. Memory
and time: those of a few batches of training a sample, by one thread, so that the numbers are the same at any number.
"""

from collections.abc import Mapping
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

CONVERGED = 1.01  # the R-hat up to which chains are taken for converged
NUM_EDGES = 1_000
_HUB_CAP = 256
_CHUNK_EDGES = 128  # predicted at a time
_FEW = 20  # samples of a chain, whose halves have no spread to speak of
_TINY = 1e-300
Chains = NDArray[np.float64]  # (chains, samples, edges)


def split(chains: Chains) -> Chains:
    """Both halves of every chain as chains; of an odd number of samples the middle one is left out."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def r_hat(chains: Chains) -> NDArray[np.float64]:
    """Potential scale reduction of each edge, (edges,); 1 where the chains agree.

    >>> float(r_hat(np.array([[[0.0], [1.0]], [[0.0], [1.0]]]))[0])  # two equal chains of two samples
    0.7071067811865476
    """
    within, total = _variances(chains)
    return np.where(total > 0, np.sqrt(total / np.maximum(within, _TINY)), 1.0)


def effective_samples(chains: Chains) -> NDArray[np.float64]:
    """How many independent samples tell as much of the mean of each edge, (edges,), at most as many as there are."""
    num_chains, num_samples, num_edges = chains.shape
    _, total = _variances(chains)
    correlation = np.ones((num_samples + 1, num_edges))
    correlation[num_samples] = -np.inf
    for lag in range(1, num_samples):
        moved = ((chains[:, lag:] - chains[:, :-lag]) ** 2).mean(axis=(0, 1))
        correlation[lag] = 1 - moved / np.maximum(2 * total, _TINY)
    pairs = correlation[1 : num_samples - num_samples % 2] + correlation[2 : num_samples + 1 - num_samples % 2]
    goes_on = np.cumprod(pairs[::2] >= 0, axis=0)  # up to the first two neighbours whose sum is negative
    time = 1 + 2 * (np.where(goes_on, pairs[::2], 0)).sum(axis=0)
    return np.minimum(num_chains * num_samples / time, num_chains * num_samples)


def _variances(chains: Chains) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each edge the variance within chains, and that of the whole as it is over-estimated by chains that differ."""
    num_samples = chains.shape[1]
    within = chains.var(axis=1, ddof=1).mean(axis=0)
    between = chains.mean(axis=1).var(axis=0, ddof=1)
    return within, (num_samples - 1) / num_samples * within + between


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
    how: Any = {"seed": 0, "hub_cap": _HUB_CAP, "weights": structure.weights}
    sampler = NeighborSampler(structure.indptr, structure.indices, degrees, fan_outs, **how)
    hops = np.arange(1.0, samples.model["num_classes"] + 1)
    found = np.empty((len(samples), len(u)))
    if isinstance(x, Propagated) and len(fan_outs) == 1:  # most chunks ask for the same hubs, whose rows are long sums
        x = x.keeping(sampler(np.unique(np.concatenate([u, v])), key(0, 0))[0])
    with torch_threads(1):
        for first in range(0, len(u), _CHUNK_EDGES):
            part = slice(first, first + _CHUNK_EDGES)
            batch = make_batch(PairBatch(0, 0, u[part], v[part], np.zeros_like(u[part])), x, sampler)
            for number, sample in enumerate(samples):
                net.load_state_dict(sample, strict=net.is_gcn)  # others may have buffers
                found[number, part] = (net(batch).double().softmax(1).numpy() * hops).sum(1)
    return found


def diagnose(chains: Mapping[str, Chains]) -> dict[str, Any] | None:
    """Numbers of the (samples, edges) chain of each encoder, and of all together, and `text`; None without edges."""
    if not chains or not all(chain.size for chain in chains.values()):
        return None
    sizes = {name: len(chain) for name, chain in chains.items()}
    measured = {name: split(chain[None]) for name, chain in chains.items() if len(chain) >= 4}
    if len(chains) > 1 and min(sizes.values()) >= 2:
        measured["all encoders"] = np.stack([chain[-min(sizes.values()) :] for chain in chains.values()])
    rows = [{"chains": name, **_numbers(value)} for name, value in measured.items()]
    found = {"num_edges": next(iter(chains.values())).shape[1], "num_samples": sizes, "chains": rows}
    return found | {"text": _text(found)}


def _numbers(chains: Chains) -> dict[str, float]:
    """Medians over the edges."""
    ratio, effective = r_hat(chains), effective_samples(chains)
    return {
        "num_samples": chains.shape[0] * chains.shape[1],
        "r_hat": round(float(np.median(ratio)), 3),
        "share_above": round(float((ratio > CONVERGED).mean()), 3),
        "effective_samples": round(float(np.median(effective)), 1),
    }


def _text(found: Mapping[str, Any]) -> str:
    """What the numbers are, and what they mean for this run."""
    parts = [
        f"{row['chains']} R-hat {row['r_hat']:.2f} ({100 * row['share_above']:.0f}% of the edges above {CONVERGED}), "
        f"{row['num_samples']} samples worth {row['effective_samples']:.1f}"
        for row in found["chains"]
    ]
    halves = [row["share_above"] for row in found["chains"] if row["chains"] in found["num_samples"]]
    relative = "read iv and hop_variance relative to each other, not as variances of a posterior"
    if min(found["num_samples"].values()) < _FEW:
        meaning = f"So few samples cannot show that a chain has converged: {relative}; the ranking rests on means"
    elif max(halves) <= 0.05:
        meaning = "Each chain has converged by the usual rule: hop_variance is that of its posterior"
    else:
        meaning = f"The chains have not converged by the usual rule: {relative}; posterior.thin_steps makes longer ones"
    return f"Predicted hops of {found['num_edges']:,} edges: {'; '.join(parts) or 'too few samples'}. {meaning}."
