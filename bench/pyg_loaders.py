"""PyG's loaders on torch-sparse, as its documentation builds them; ImportError where torch-sparse is missing."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcm_scale.graph.store import Graph


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


def make(name: str, graph: Graph, *, x: Tensor | None = None, workers: int, **options: Any) -> Any:
    """The loader of this name, workers kept between epochs."""
    with quiet():
        import torch_geometric.loader as loaders
        import torch_sparse  # noqa: F401  the loader says only when used that it needs it
        from torch_geometric.data import Data

        data = Data(x=x, edge_index=edge_index(graph), num_nodes=graph.num_nodes)
        kept = {"num_workers": workers, "persistent_workers": workers > 0}
        return getattr(loaders, name)(data, **kept, **options)
