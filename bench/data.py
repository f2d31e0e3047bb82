"""The graphs that several themes measure on; each is made once in a process."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.graph.store import Graph
from hcm_scale.synthetic import families as synthetic

DEBIAN = "debian_files_arm64.npz"


@functools.lru_cache(maxsize=2)
def rmat(scale: int) -> Graph:
    """R-MAT, edge factor 8, 20 attributes; scale 20 is the graph of most claims: 1,048,576 nodes."""
    return synthetic.rmat(scale)


@functools.lru_cache(maxsize=1)
def grid(side: int) -> Graph:
    """A road-like grid of side x side nodes."""
    return synthetic.grid(side, side, num_attributes=1)


def folder() -> Path:
    """Where real graphs are looked for: the folder that HCM_DATA names, else `shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("HCM_DATA", beside))


@functools.lru_cache(maxsize=1)
def debian() -> Graph | None:
    """Files, directories and packages of Debian, 1.77 million nodes; None where the file is not at hand."""
    path = folder() / DEBIAN
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        return Graph(arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32))


def describe(graph: Graph) -> str:
    """How large it is, in words."""
    return f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges"


def adjacency(graph: Graph, dtype: type = np.float64) -> sparse.csr_array:
    """The graph as scipy sees it, all ones."""
    ones: NDArray[Any] = np.ones(len(graph.indices), dtype)
    return sparse.csr_array((ones, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes))
