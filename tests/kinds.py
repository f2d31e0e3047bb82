"""Numbers of kinds of evidence by name, and scores of graphs, for tests."""

from collections.abc import Mapping

import numpy as np

from hcm_scale.graph import Graph
from hcm_scale.score import nodes
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.evidence import KindNumbers
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.kinds.inputs import KindInputs, NodeHops
from hcm_scale.score.kinds.kind import Facts

COLUMNS = [column for kind in KINDS.values() for column in kind.columns]


def kind_numbers(of_kind: Mapping[str, np.ndarray], has: np.ndarray, *facts: float) -> KindNumbers:
    kinds = KINDS | {kind.name: kind for kind in ROW_KINDS}
    return KindNumbers({kinds[name]: values for name, values in of_kind.items()}, has, Facts(*facts))


def inputs_of(edges: EdgeIndex, x: np.ndarray | None = None, far_share: float = 0.4, **parts) -> KindInputs:
    """Inputs of kinds; `distance` may be given."""
    distance = parts.pop("distance", None)
    features = np.zeros((edges.num_nodes, 1), np.float32) if x is None else x
    inputs = KindInputs(
        Graph(edges.indptr, edges.indices, directed=edges.directed), edges, features, far_share, **parts
    )
    if distance is not None:
        inputs.__dict__["distance"] = distance
    return inputs


def hops_of(edges: EdgeIndex, mean: np.ndarray, var: np.ndarray | None = None, trim: float = 0.0) -> NodeHops:
    (ahp,), iv = nodes.average_hops(edges, [mean], np.zeros_like(mean) if var is None else var, trim)
    return NodeHops(mean, ahp, iv)


def scores_of(inputs: KindInputs, edges: EdgeIndex | None = None, kinds=None) -> nodes.NodeScores:
    """Scores of all nodes by all kinds, added up."""
    kinds = tuple(kinds or KINDS.values())
    of_nodes = nodes.degrees_and_flags(edges or inputs.edges)
    return nodes.with_score(nodes.NodeScores(kinds, nodes.make_numbers(kinds, inputs), *of_nodes, trust=inputs.trust))


def plain_scores(numbers: Mapping[str, np.ndarray], flags: np.ndarray | None = None) -> nodes.NodeScores:
    """Scores with these numbers by column, 0 in others; not added up."""
    size = len(next(iter(numbers.values())))
    flags = np.zeros(size, np.uint8) if flags is None else np.asarray(flags, np.uint8)
    every = dict.fromkeys(COLUMNS, np.zeros(size)) | dict(numbers)
    return nodes.NodeScores(tuple(KINDS.values()), every, np.full(size, 10), flags)
