"""How far the chains of default runs are from a posterior, on the graphs of the accuracy tables, by two seeds.

Each graph is run twice at default settings; predicted hops of a thousand edges under each sample are compared between
the two seeds, by encoder, and between the encoders of one seed (`bench/convergence.py` says what the numbers are).
Chains that ended after different numbers of samples are compared by their last ones. `rank_correlation` is
Spearman's, of the mean hops of the edges by one seed and by the other, over both encoders. Anomalies are planted by
the same seed in both.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from bench.accuracy.problem import DATA, prepare
from bench.convergence import CONVERGED, effective_samples, r_hat
from bench.data import folder
from bench.harness import Table
from hcm_scale.config import Config, with_options
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.stages.convergence import Chains

GRAPHS = ("BlogCatalog", "Flickr", "Amazon", "Enron", "inj_cora", "dblp", "Reddit")
SIZES = {"smoke": ("Planted",), "quick": GRAPHS, "full": GRAPHS}


def cases(size: str) -> Iterator[Table]:
    rows = []
    for name in SIZES[size]:
        file = DATA[name].file
        if file is not None and not (folder() / file).is_file():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            prepare(name, 0, folder(), Path(scratch))
            graph = Graph.open(Path(scratch) / "graph")
            rows.append({"graph": name} | _row([_chains(graph, seed) for seed in (0, 1)]))
            print(rows[-1], flush=True)
    yield Table("default settings, two seeds", rows)


def _chains(graph: Graph, seed: int) -> dict[str, Chains]:
    with tempfile.TemporaryDirectory() as run_dir:
        options = {"seed": seed, "world.device": "cpu"}
        pipeline.run(with_options(Config(run_dir=run_dir), options), until="score", graph=graph)
        return FinishedRun(Path(run_dir)).chains()[0]


def _row(by_seed: list[dict[str, Chains]]) -> dict[str, Any]:
    first, second = by_seed
    found: dict[str, Any] = {"samples": " / ".join(str(len(chain)) for seed in by_seed for chain in seed.values())}
    compared = {name: [first[name], second[name]] for name in first} | {"encoders": list(first.values())}
    for name, chains in compared.items():
        shortest = min(map(len, chains))
        value = np.stack([chain[-shortest:] for chain in chains])
        ratio = r_hat(value)
        found[f"{name}_r_hat"] = round(float(np.median(ratio)), 2)
        found[f"{name}_share_above_{CONVERGED}"] = round(float((ratio > CONVERGED).mean()), 2)
        effective = float(np.median(effective_samples(value)))
        found[f"{name}_effective"] = f"{effective:.1f} of {value.shape[0] * shortest}"
    means = [np.mean([chain.mean(axis=0) for chain in seed.values()], axis=0) for seed in by_seed]
    return found | {"rank_correlation": round(float(spearmanr(*means).statistic), 3)}
