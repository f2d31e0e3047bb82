"""Weights of edges: what they do to a ranking where they tell something, and where they tell nothing.

Anomalies are planted in a graph of communities. `tell`: to its edges, which are made heavy, twice as many light ones
between random nodes are added. `say nothing`: weights are random, with a heavy tail. Each is scored without weights and
by three rules that make strengths of them (`features/purify.py` has the first). ROC-AUC of the scores, and of AHP
alone, which rests on Â most; means over the seeds.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bench.harness import Table, at_least
from hcm_scale.config import Config
from hcm_scale.features import purify
from hcm_scale.graph import Graph
from hcm_scale.graph.build import join_directions
from hcm_scale.graph.lookup import first_entries
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.metrics import roc_auc
from hcm_scale.synthetic import families
from hcm_scale.synthetic.inject import inject

Rule = Callable[[NDArray[np.float32], float], NDArray[np.float32]]
RULES: dict[str, Rule | None] = {
    "no weights": None,
    "log2(1 + w / median)": purify.strengths,
    "w / median": lambda w, median: (w / np.float32(median)).astype(np.float32),
    "1/2 + w / (w + median)": lambda w, median: (0.5 + w / (w + np.float32(median))).astype(np.float32),
}
NODES, SEEDS = {"smoke": 500, "quick": 2_000, "full": 20_000}, {"smoke": 1, "quick": 3, "full": 5}
_LOST = 0.02  # of the ROC-AUC, at most, by weights that say nothing


def cases(size: str) -> Iterator[Table]:
    """One table, a row for what weights tell and a rule."""
    rows = []
    for told, world in {"tell": told_apart, "say nothing": at_random}.items():
        graphs = [world(NODES[size], seed) for seed in range(SEEDS[size])]
        for name, rule in RULES.items():
            found = [measure(graph, rule, seed, short=size == "smoke") for seed, graph in enumerate(graphs)]
            means = {column: round(float(np.mean([one[column] for one in found])), 3) for column in found[0]}
            rows.append({"weights": told, "rule": name, **means})
    plain, ours = (row["roc_auc"] for row in rows[len(RULES) :][:2])
    yield Table("weights of edges", rows, [at_least("weights that say nothing", ours, plain - _LOST, "ROC-AUC")])


def spread_to_entries(
    indptr: NDArray[np.int64], indices: NDArray[Any], values: NDArray[Any], directed: bool = False
) -> NDArray[Any]:
    """A number above 0 of every edge at all of its entries."""
    if directed:
        return values
    out = np.zeros(len(indices), values.dtype)
    out[first_entries(indptr, indices, directed)] = values
    join_directions(indptr, indices, False, indptr[:-1].copy(), out)
    return out


def at_random(num_nodes: int, seed: int) -> Graph:
    """Random weights, the largest a thousand times the median."""
    graph = planted(num_nodes, seed, homophily=0.5)
    weights = np.random.default_rng(seed).lognormal(4, 2, graph.num_edges)
    return replace(graph, weights=spread_to_entries(graph.indptr, graph.indices, weights.astype(np.float32)))


def told_apart(num_nodes: int, seed: int) -> Graph:
    """Edges that weigh some thirty times as much as twice as many between random nodes."""
    graph, rng = planted(num_nodes, seed, homophily=0.95), np.random.default_rng(seed)
    rows = np.repeat(np.arange(num_nodes), graph.degrees)
    first = first_entries(graph.indptr, graph.indices, directed=False)
    chance = rng.integers(0, num_nodes, (2, 2 * graph.num_edges))
    chance = chance[:, chance[0] != chance[1]]
    ends = np.concatenate([[rows[first], graph.indices[first]], chance], axis=1)
    weights = rng.lognormal(4, 1, ends.shape[1])
    weights[: graph.num_edges] *= 30
    matrix = sparse.coo_array((weights, tuple(ends)), shape=(num_nodes, num_nodes)).tocsr()
    both = (matrix + matrix.T).tocsr()
    both.sort_indices()
    csr = both.indptr.astype(np.int64), both.indices.astype(np.int32)
    return replace(graph, indptr=csr[0], indices=csr[1], weights=both.data.astype(np.float32))


def planted(num_nodes: int, seed: int, homophily: float) -> Graph:
    """Communities with anomalies of both kinds, three in a hundred nodes."""
    shape: dict[str, Any] = {"num_communities": num_nodes // 100, "edges_per_node": 6, "homophily": homophily}
    few = max(1, num_nodes // 670)
    planted = {"num_cliques": few, "clique_size": 10, "num_attribute_anomalies": 10 * few}
    return inject(families.community(num_nodes, **shape, seed=seed), **planted, seed=seed)


def measure(graph: Graph, rule: Rule | None, seed: int, *, short: bool) -> dict[str, Any]:
    """A run of the default configuration by a rule, None without weights; a `short` one shows only that it runs."""
    assert graph.y is not None
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as folder:
        config = Config(run_dir=str(Path(folder) / "run"), seed=seed)
        config.world.device = "cpu"
        if short:
            config.hops.classes, config.posterior.burn_in_steps, config.posterior.num_samples = 3, 5, 2
        with mock.patch.object(purify, "strengths", rule or purify.strengths):
            pipeline.run(config, until="score", graph=graph if rule else replace(graph, weights=None))
        table = FinishedRun(Path(config.run_dir)).table.sort_by("node")
    named = {"roc_auc": "score", "roc_auc_of_ahp": "ahp"}
    return {name: roc_auc(graph.y, table[column].to_numpy()) for name, column in named.items()}
