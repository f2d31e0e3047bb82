"""How far the samples of a run are from a posterior: split R-hat and effective sample size of predicted hops.

A graph of communities with planted anomalies is trained on, with many samples, from two seeds. Under each sample the
hops of a thousand edges are predicted, and the first 4, 16, ... samples of the chains are compared: the halves of one
chain, the chains of two seeds, and those of the two encoders, which are trained on different graphs and have no
posterior in common. R-hat and effective sample size are those of Gelman et al. (Bayesian Data Analysis, 3rd ed., 11.4
and 11.5), medians over the edges; 1.01 is where R-hat is taken for converged. `rank_correlation` is Spearman's, of the
mean hops by the first samples of one chain and by all samples of both seeds.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from bench.harness import Table
from hcm_scale.config import Config, with_options
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.stages.convergence import Chains
from hcm_scale.synthetic import families
from hcm_scale.synthetic.inject import inject

NUM_NODES = {"smoke": 300, "quick": 5_000, "full": 50_000}
NUM_SAMPLES = {"smoke": 8, "quick": 64, "full": 256}
CONVERGED = 1.01  # the R-hat up to which chains are taken for converged
_TINY = 1e-300


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


def cases(size: str) -> Iterator[Table]:
    num_samples = NUM_SAMPLES[size]
    graph = families.community(NUM_NODES[size], num_attributes=20, seed=1)
    graph = inject(graph, num_cliques=4, clique_size=8, num_attribute_anomalies=None, seed=1)
    by_seed = []
    for seed in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            options = {"posterior.num_samples": num_samples, "seed": seed, "world.device": "cpu"}
            pipeline.run(with_options(Config(run_dir=folder), options), until="score", graph=graph)
            by_seed.append(FinishedRun(Path(folder)).chains()[0])
    rows = []
    for name in by_seed[0]:
        every = np.concatenate([found[name] for found in by_seed]).mean(axis=0)
        for count in [4**k for k in range(1, 9) if 4**k <= num_samples]:
            first = by_seed[0][name][:count].mean(axis=0)
            chains = {
                f"{name}, halves of a chain": split(by_seed[0][name][None, :count]),
                f"{name}, two seeds": np.stack([found[name][:count] for found in by_seed]),
            }
            if name == "original":
                chains["both encoders, one seed"] = np.stack([chain[:count] for chain in by_seed[0].values()])
            for what, value in chains.items():
                ratio, effective = r_hat(value), effective_samples(value)
                rows.append(
                    {
                        "chains": what,
                        "samples_a_chain": count,
                        "median_r_hat": round(float(np.median(ratio)), 3),
                        "share_above_1.01": round(float((ratio > CONVERGED).mean()), 3),
                        "effective_samples": round(float(np.median(effective)), 1),
                        "of": value.shape[0] * value.shape[1],
                        "rank_correlation": round(float(spearmanr(first, every).statistic), 3),
                    }
                )
    yield Table(f"{graph.num_nodes:,} nodes, {every.size:,} of {graph.num_edges:,} edges", rows)
