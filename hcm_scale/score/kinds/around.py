"""What a kind of evidence can ask about a node that is explained: its row, its neighbours, and lengths of their edges.

The length of an edge is its predicted hop (`hops_of_edges`) or the distance of the features at its ends
(`distances_of_edges`). Triangles at a node are pairs of its neighbours that are joined; a hub, whose neighbours have
over a million edges, is not asked for them: that costs a pass or two over its neighbours.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.features.purify import cosine_distance
from hcm_scale.graph.store import Graph

MAX_STEPS = 1 << 20  # over the edges of a node's neighbours, a third of a second
_MOST_NEIGHBORS = 1 << 10  # of a node that shows what is usual
_BLOCK_NODES, _BLOCK_PAIRS = 1 << 8, 1 << 16

Evidence = Any  # a `report.evidence.Evidence`, in a room above this one
Lengths = Callable[[Evidence, NDArray[Any], NDArray[np.int64]], NDArray[np.float64]]  # of ends (2, k) and edge numbers


def neighbors_of(graph: Graph, node: int) -> NDArray[Any]:
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]]


def hops_of_edges(evidence: Evidence, _: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(evidence.edge_mean[numbers], np.float64)


def distances_of_edges(evidence: Evidence, ends: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    assert evidence.features is not None
    blocks = [ends[:, first : first + _BLOCK_PAIRS] for first in range(0, len(numbers), _BLOCK_PAIRS)]
    return np.concatenate([np.zeros(0), *(cosine_distance(*evidence.features[block]) for block in blocks)])


class Around:
    """A node, its row of the ranked table, and its surroundings; `number` is the one of the kind that asks."""

    def __init__(self, evidence: Evidence, node: int, row: Mapping[str, Any]) -> None:
        self.evidence, self.node, self.row, self.number = evidence, node, row, 0.0
        self.neighbors, self.degree = neighbors_of(evidence.graph, node), int(row["degree"])

    @cached_property
    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Every edge among the neighbours: its ends as positions among them, (2, pairs), and its number.

        None of a directed graph, and of a hub.
        """
        graph, start, nodes = self.evidence.graph, self.evidence.edges.start, self.neighbors
        if graph.directed or (start[nodes + 1] - start[nodes]).sum() > MAX_STEPS:
            return None
        pairs = [np.zeros((3, 0), np.int64)]
        for first in range(0, len(nodes), _BLOCK_NODES):
            block = nodes[first : first + _BLOCK_NODES].astype(np.int64)
            sizes = start[block + 1] - start[block]
            numbers = np.concatenate([np.arange(start[node], start[node + 1]) for node in block])
            ends = graph.indices[numbers + np.repeat(graph.indptr[block + 1] - start[block + 1], sizes)]
            at = np.minimum(np.searchsorted(nodes, ends), len(nodes) - 1)
            some = np.stack([np.repeat(np.arange(first, first + len(block)), sizes), at, numbers])
            pairs.append(some[:, nodes[at] == ends])
        every = np.concatenate(pairs, axis=1)
        return every[:2], every[2]

    def lengths(self, lengths: Lengths) -> NDArray[np.float64]:
        """Lengths of the edges to its neighbours."""
        ends = np.stack([np.full_like(self.neighbors, self.node), self.neighbors])
        return lengths(self.evidence, ends, self.evidence.edges.of_node(self.node))

    def mean_length(self, name: str, lengths: Lengths) -> dict[str, Any]:
        """Mean length of its edges, the median of that over nodes of like degree and type, how many edges have one."""

        def median(nodes: NDArray[np.int64]) -> float:
            owner, ends = _spaced_edges(self.evidence.graph, nodes)
            found = lengths(self.evidence, ends, self.evidence.edges.find(*ends))
            has = np.isfinite(found)
            counts = np.bincount(owner[has], minlength=len(nodes))
            means = np.bincount(owner[has], found[has], len(nodes))[counts > 0] / counts[counts > 0]
            return float(np.median(means)) if len(means) else math.nan

        own = self.lengths(lengths)
        usual = self.evidence.usual(name, self.node, median)
        return {"value": _mean(own), "usual": usual, "count": int(np.isfinite(own).sum())}


def _spaced_edges(graph: Graph, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Edges of each of some nodes, evenly spaced where they are very many: whose each is, as a position, and its ends.

    >>> graph = Graph(np.array([0, 2, 3, 4]), np.array([1, 2, 0, 0]))
    >>> [part.tolist() for part in _spaced_edges(graph, np.array([2, 0]))]
    [[0, 1, 1], [[2, 0, 0], [0, 1, 2]]]
    """
    first, degree = graph.indptr[nodes], graph.indptr[nodes + 1] - graph.indptr[nodes]
    step = np.maximum(1, degree // _MOST_NEIGHBORS)
    counts = -(-degree // step)
    owner = np.repeat(np.arange(len(nodes)), counts)
    turn = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.stack([nodes[owner], graph.indices[first[owner] + turn * step[owner]]])


def _mean(lengths: NDArray[np.float64]) -> float | None:
    finite = lengths[np.isfinite(lengths)]
    return float(finite.mean()) if len(finite) else None
