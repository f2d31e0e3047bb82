"""What kinds of evidence make their numbers of: edges and features, predicted hops, and what follows from them.

Distances over edges, triangles and the trust in attributes are made when a kind first asks for them. What numbers are
measured by (`measured`) is taken from the graph at hand and kept in `scale`, which a run stores; with the scale of a
`reference`, the graph that the model was trained on, it is taken from there, so that a node in the same surroundings
has the same numbers on both days. Memory: 4 bytes an edge for distances and 16 a node for triangles, until `release`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import run_in_slices
from hcm_scale.features.purify import attribute_trust, edge_similarity
from hcm_scale.graph.store import Graph
from hcm_scale.rows.evidence import MadeEvidence, rows_before, rows_of
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.kinds.kind import Values
from hcm_scale.score.triangles import Rate, Triangles, count_and_expect, undirected

STORED: dict[str, Callable[[Any], bool]] = {  # of all kinds: which are legal
    "trust": lambda array: array is not None and array.shape == (1,) and 0.0 <= array[0] <= 1.0,
    "rate": lambda array: array is not None and array.shape == (2,) and 0.0 <= array[0] < np.inf,
}


class NodeHops(NamedTuple):
    """Mean predicted hop of every edge, (m,); AHP and IV of every node, (n,); AHP by each encoder, if several."""

    mean: NDArray[np.float32]
    ahp: Values
    iv: Values
    views: Sequence[Values] = ()


@dataclass(eq=False)
class KindInputs:
    """Inputs of one graph; `hops` are None while they are being predicted.

    `first_without_attributes` is the first of the nodes, the last ones, that edges alone name: they are given what is
    usual, nothing is said of their attributes, and nothing by them of their neighbours'.
    """

    graph: Graph
    edges: EdgeIndex
    features: NDArray[np.float32]
    far_share: float
    device: str = "cpu"
    reference: Mapping[str, Values] | None = None
    hops: NodeHops | None = None
    first_without_attributes: int | None = None
    scale: dict[str, Values] = field(default_factory=dict)
    earlier: Graph | None = None  # of the reference

    def measured(self, make: Callable[[], Sequence[Any]], *names: str) -> list[Values]:
        """What `make` returns of this graph, or what these names have in the reference's scale; an array each."""
        if names[0] not in self.scale:
            values = make() if self.reference is None else [self.reference[name] for name in names]
            self.scale |= {n: np.atleast_1d(np.asarray(v, np.float64)) for n, v in zip(names, values, strict=True)}
        return [self.scale[name] for name in names]

    @property
    def trust(self) -> float:
        """How far attributes are witnesses of edges, 0 to 1."""
        of_graph = self.edges.indptr, self.edges.indices, self.features
        return float(self.measured(lambda: [attribute_trust(*of_graph)], "trust")[0][0])

    @cached_property
    def distance(self) -> NDArray[np.float32]:
        """1 - cosine of the features at the ends of every edge, (m,)."""
        indptr, indices, directed = self.edges.indptr, self.edges.indices, self.edges.directed
        distance = edge_similarity(indptr, indices, self.features, "cosine", directed=directed)
        run_in_slices(len(distance), lambda part: np.subtract(1.0, distance[part], out=distance[part]))
        first = self.first_without_attributes
        if first is not None and first < self.edges.num_nodes:
            starts = np.repeat(np.arange(self.edges.num_nodes), np.diff(indptr))
            has_value = np.maximum(starts, indices)[directed | (indices > starts)] < first
            distance[~has_value] = np.median(distance[has_value]) if has_value.any() else 1.0
        return distance

    @cached_property
    def rows(self) -> MadeEvidence | None:
        """What is said of the rows of the edge table, where the graph keeps any."""
        rows = rows_of(self.graph)
        before = None if self.earlier is None else rows_before(self.graph, self.earlier)
        return None if rows is None else MadeEvidence(rows, before, self.reference or {})

    @cached_property
    def triangles(self) -> Triangles:
        """Triangles at every node, without directions, and those expected."""
        given = None if self.reference is None else self.reference["rate"]
        rate = None if given is None else Rate(float(given[0]), bool(given[1]))
        edges = undirected(self.edges) if self.edges.directed else self.edges
        triangles = count_and_expect(edges, rate, self.device)
        self.scale["rate"] = np.array(triangles.rate, np.float64)
        return triangles

    def release(self) -> None:
        """Frees what takes much memory and only kinds that need no hops ask for."""
        self.__dict__.pop("distance", None)
        if "triangles" in self.__dict__:
            self.__dict__["triangles"] = self.triangles._replace(counted=np.zeros(0, np.int64))
