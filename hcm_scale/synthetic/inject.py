"""Plants known anomalies in a graph, the usual way, so that a detector can be measured.

Structural: `num_cliques` groups of `clique_size` random nodes are each made fully connected. Attribute: each chosen
node draws `candidates` distinct other nodes and takes over the attributes of the farthest of them (Euclidean; the
first drawn of equals), read from the graph as it came, not from rows already changed. No node gets both. The result
carries y (1 = anomaly) and kind (1 structural, 2 attribute). Where edges have weights the new ones get the median, so
that their weights do not give them away; types of edges are dropped, as the new ones have none.

Memory: one copy of the indices, of the weights and of the attributes. Distances are taken block by block; sparse
attributes stay sparse.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.rng import key
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import ATTRIBUTE, STRUCTURAL, Attributes, Graph, SparseRows

_PURPOSE = 0x1217EC7  # separates these draws from others made from the same seed
_BLOCK_VALUES = 1 << 22


def inject(
    graph: Graph,
    *,
    num_cliques: int,
    clique_size: int = 15,
    candidates: int = 50,
    num_attribute_anomalies: int | None,
    seed: int = 0,
) -> Graph:
    """The graph with num_cliques * clique_size structural and, where it is None, as many attribute anomalies.

    A graph that already has labels is refused: its old anomalies would count as normal.

    >>> g = Graph(np.zeros(101, np.int64), np.zeros(0, np.int32), x=np.eye(100, dtype=np.float32))
    >>> injected = inject(g, num_cliques=2, clique_size=3, seed=0, num_attribute_anomalies=None)
    >>> injected.num_edges, np.bincount(injected.kind).tolist()
    (6, [88, 6, 6])
    """
    num_structural = num_cliques * clique_size
    num_attribute = num_structural if num_attribute_anomalies is None else num_attribute_anomalies
    candidates = min(candidates, graph.num_nodes - 1)
    options = {"num_cliques": num_cliques, "clique_size": clique_size, "candidates": candidates}
    options |= {"num_attribute_anomalies": num_attribute}
    _check(graph, options)
    rng = np.random.default_rng(key(seed, _PURPOSE))
    chosen = rng.choice(graph.num_nodes, num_structural + num_attribute, replace=False)
    members, victims = chosen[:num_structural].reshape(num_cliques, clique_size), chosen[num_structural:]
    joined = _join_cliques(graph, members)
    if num_attribute:
        assert graph.x is not None
        drawn = draw_others(victims, graph.num_nodes, candidates, rng)
        joined = replace(joined, x=_copy_rows(graph.x, victims, farthest(graph.x, victims, drawn)))
    kind = np.zeros(graph.num_nodes, np.uint8)
    kind[members], kind[victims] = STRUCTURAL, ATTRIBUTE
    record = {**options, "num_edges_added": joined.num_edges - graph.num_edges, "seed": seed}
    return replace(joined, y=(kind > 0).astype(np.uint8), kind=kind, info={**graph.info, "injected": record})


def _check(graph: Graph, options: dict[str, int]) -> None:
    n, num_cliques, num_attribute = graph.num_nodes, options["num_cliques"], options["num_attribute_anomalies"]
    total = "num_cliques * inject.clique_size + inject.num_attribute_anomalies"
    ranges = {"num_cliques": (0, n), "num_attribute_anomalies": (0, n if n > 1 else 0)}  # they come from other nodes
    ranges |= {"clique_size": (2, n)} if num_cliques else {}
    for option, (low, high) in {**ranges, total: (0, n)}.items():
        value = num_cliques * options["clique_size"] + num_attribute if option == total else options[option]
        if not low <= value <= high:
            raise ValueError(f"inject.{option}={value} is out of range; on {n} nodes it runs from {low} to {high}")
    if num_attribute and graph.x is None:
        raise ValueError(
            f"inject.num_attribute_anomalies={num_attribute} needs attributes, and this graph has none; use 0"
        )
    if graph.y is not None or graph.kind is not None:
        raise ValueError("this graph has labels, which ~inject keeps")


def draw_others(nodes: NDArray[np.int64], num_nodes: int, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws k distinct nodes other than nodes[i], for every i: (len(nodes), k). Floyd's algorithm, all rows at once."""
    drawn = np.empty((len(nodes), k), np.int64)
    for column, last in enumerate(range(num_nodes - 1 - k, num_nodes - 1)):
        draw = rng.integers(0, last + 1, len(nodes))
        taken = (drawn[:, :column] == draw[:, None]).any(axis=1)
        drawn[:, column] = np.where(taken, last, draw)
    return drawn + (drawn >= nodes[:, None])  # the node itself is skipped over


def farthest(x: Attributes, nodes: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of others[i], the one whose attributes are farthest from those of nodes[i]: (len(nodes),)."""
    far = np.empty(len(nodes), np.int64)
    width = x.shape[1] if not isinstance(x, SparseRows) else 1 + 2 * len(x.indices) // max(1, x.shape[0])
    step = max(1, _BLOCK_VALUES // (others.shape[1] * max(1, width)))
    rows = x.csr() if isinstance(x, SparseRows) else x
    for first in range(0, len(nodes), step):
        block = others[first : first + step]
        own = np.repeat(nodes[first : first + step], block.shape[1])
        distances = _squared_distances(rows, own, block.ravel()).reshape(block.shape)
        far[first : first + step] = block[np.arange(len(block)), distances.argmax(axis=1)]
    return far


def _squared_distances(rows: Any, u: NDArray[np.int64], v: NDArray[np.int64]) -> NDArray[np.float64]:
    """By differences: norms and products would cancel where values are large. `rows` is an array or a scipy CSR."""
    difference = rows[u].astype(np.float64) - rows[v]
    if isinstance(difference, np.ndarray):
        return np.einsum("ij,ij->i", difference, difference)
    return np.asarray(difference.multiply(difference).sum(axis=1)).ravel()


def _copy_rows(x: Attributes, to: NDArray[np.int64], source: NDArray[np.int64]) -> Attributes:
    """Attributes with row to[i] replaced by row source[i] of the original."""
    if isinstance(x, SparseRows):
        row_of = np.arange(x.shape[0])
        row_of[to] = source
        csr = x.csr()[row_of]
        return SparseRows(csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data, x.num_columns)
    out = np.array(x)
    out[to] = x[source]
    return out


def _join_cliques(graph: Graph, members: NDArray[np.int64]) -> Graph:
    """Every two nodes of a row of `members` joined, on a directed graph both ways; existing arcs stay as they are."""
    left, right = np.nonzero(~np.eye(members.shape[1], dtype=bool))
    rows, columns = members[:, left].ravel(), members[:, right].ravel()
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    places, present = find_arcs(graph.indptr, graph.indices, rows, columns)
    rows, columns, places = rows[~present], columns[~present], places[~present]
    added = np.bincount(rows, minlength=graph.num_nodes)
    weights = graph.weights
    if weights is not None:
        weights = np.insert(weights, places, np.median(weights) if len(weights) else 1)
    return replace(
        graph,
        indptr=graph.indptr + np.concatenate([[0], np.cumsum(added)]),
        indices=np.insert(graph.indices, places, columns),
        weights=weights,
        edge_types=None,
        path=None,
    )
