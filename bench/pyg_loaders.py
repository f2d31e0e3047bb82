"""PyG's loaders on torch-sparse and on pyg-lib, as its documentation builds them.

PyG takes pyg-lib where both are installed, so torch-sparse is measured with pyg-lib hidden. A backend that is missing
is an ImportError, and benchmarks name it as absent.
"""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from bench.harness import Contender
from hcm_scale.graph.store import Graph

BACKENDS = {"torch-sparse": "torch_sparse", "pyg-lib": "pyg_lib"}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of other people's code, such as that pyg-lib, which is on no package index, is faster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def edge_index(graph: Graph) -> Tensor:
    """(2, arcs): from neighbour to node, the way PyG's messages flow."""
    nodes = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), nodes]))


@contextlib.contextmanager
def sampling_by(backend: str) -> Iterator[None]:
    """PyG's loaders draw through this backend, one of BACKENDS; ImportError where it is missing."""
    import torch_geometric.typing

    with quiet():
        importlib.import_module(BACKENDS[backend])  # the loader says only when used that it needs one
    with mock.patch.object(torch_geometric.typing, "WITH_PYG_LIB", backend == "pyg-lib"):
        yield


def contenders(loader: str, contender: Callable[[int, str], Contender]) -> tuple[list[Contender], list[str]]:
    """contender(workers, backend) for no and two workers of every backend that is here; and the names of the others."""
    found, absent = [], []
    for backend in BACKENDS:
        try:
            found += [contender(workers, backend) for workers in (0, 2)]
        except ImportError as error:
            absent.append(f"PyG {loader} on {backend} ({error})")
    return found, absent


def make(name: str, graph: Graph, *, x: Tensor | None = None, workers: int, **options: Any) -> Any:
    """The loader of this name, workers kept between epochs; made and used within `sampling_by`."""
    with quiet():
        import torch_geometric.loader as loaders
        from torch_geometric.data import Data

        data = Data(x=x, edge_index=edge_index(graph), num_nodes=graph.num_nodes)
        kept = {"num_workers": workers, "persistent_workers": workers > 0}
        return getattr(loaders, name)(data, **kept, **options)
