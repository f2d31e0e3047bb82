"""Radar, ANOMALOUS, DOMINANT and GAE as PyGOD has them, at its default settings, on the harness's features.

PyGOD holds the adjacency as a dense n x n matrix in the first three. Where PyGOD (or the neighbour loader's backend,
which its deep detectors ask for even on a whole graph) is not installed, the import fails and the row says absent.
"""

from typing import Any

import numpy as np
import torch

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.base.rng import key


def radar(problem: Problem, device: str) -> Scores:
    """Residual analysis (Li et al. 2017)."""
    return _fit("Radar", problem, device)


def anomalous(problem: Problem, device: str) -> Scores:
    """CUR decomposition and residual analysis (Peng et al. 2018)."""
    return _fit("ANOMALOUS", problem, device)


def dominant(problem: Problem, device: str) -> Scores:
    """Graph autoencoder of attributes and adjacency (Ding et al. 2019)."""
    _need_neighbor_loader()
    return _fit("DOMINANT", problem, device)


def gae(problem: Problem, device: str) -> Scores:
    """Graph autoencoder of the attributes (Kipf and Welling 2016)."""
    _need_neighbor_loader()
    return _fit("GAE", problem, device)


def _fit(name: str, problem: Problem, device: str) -> Scores:
    import pygod.detector
    from torch_geometric.data import Data

    arcs = np.stack([problem.sources, problem.graph.indices.astype(np.int64)])
    data = Data(x=torch.from_numpy(problem.x.copy()), edge_index=torch.from_numpy(arcs))
    with torch.random.fork_rng():
        torch.manual_seed(key(problem.seed))
        detector: Any = getattr(pygod.detector, name)(gpu=0 if device == "cuda" else -1)
        detector.fit(data)
    return {name: detector.decision_score_.numpy().astype(np.float64)}


def _need_neighbor_loader() -> None:
    """PyG says that its backend is missing only in the middle of a fit; say it here, as an absent import."""
    from torch_geometric import typing

    if not (typing.WITH_TORCH_SPARSE or typing.WITH_PYG_LIB):
        raise ModuleNotFoundError("PyGOD's deep detectors need torch-sparse or pyg-lib, and neither is installed")
