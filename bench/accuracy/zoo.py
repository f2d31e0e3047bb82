"""The zoo: six kinds of odd nodes, each weak and strong, planted by seed into any graph.

| kind   | what is planted                                                          | strong            | weak       |
|--------|--------------------------------------------------------------------------|-------------------|------------|
| clique | groups of strangers, everyone joined to everyone                         | of 15             | of 8       |
| far    | the attributes of the farthest of some others are copied over            | of 50             | of 10      |
| swap   | two nodes of different communities exchange attributes                   | all columns       | half       |
| rewire | edges lead to random nodes instead                                       | all edges         | half       |
| ring   | twelve near-copies of one node's attributes, joined in a ring            | four neighbours   | two        |
| hub    | a node is joined to random others as well                                | 8 x mean degree   | 2 x        |

Defaults are chosen here, so that nobody looks at the labels of real graphs. A graph's own known anomalies are no part
of the measurement: `plant` gives the nodes that are. About one node in fifty is planted.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.utils.extmath import randomized_svd

from hcm_scale.base.rng import key
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.synthetic.inject import draw_others, farthest

_PURPOSE = 0x200
_RING = 12
_COMMUNITIES = 8
Rng = np.random.Generator
Nodes = NDArray[np.int64]


class Planted(NamedTuple):
    """The graph with `y` (1 = planted), and which nodes take part in the measurement."""

    graph: Graph
    judged: NDArray[np.bool_]


def plant(graph: Graph, kind: str, *, strong: bool, seed: int) -> Planted:
    """Plants one kind of odd nodes into a graph; all but clique, rewire and hub need attributes."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; it is one of {', '.join(KINDS)}")
    rng = np.random.default_rng(key(seed, _PURPOSE, list(KINDS).index(kind), strong))
    judged = np.ones(graph.num_nodes, bool) if graph.y is None else graph.y == 0
    usual = np.flatnonzero(judged & (graph.degrees > 1))
    count = int(np.clip(graph.num_nodes // 50, _RING, 300))
    chosen = rng.permutation(usual)[:count]
    changed, odd = KINDS[kind](graph, chosen, strong, rng)
    y = np.zeros(graph.num_nodes, np.uint8)
    y[odd] = 1
    return Planted(replace(changed, y=y, kind=None, path=None), judged)


def _clique(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    size = min(15 if strong else 8, len(nodes))
    groups = nodes[: len(nodes) // size * size].reshape(-1, size)
    left, right = np.triu_indices(size, 1)
    return _joined(graph, groups[:, left].ravel(), groups[:, right].ravel()), groups.ravel()


def _far(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    others = draw_others(nodes, graph.num_nodes, 50 if strong else 10, rng)
    rows = _rows(graph)
    return with_rows(graph, nodes, rows[farthest(graph.x, nodes, others)]), nodes


def _swap(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    group = communities(graph)
    left, right = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :][: len(nodes) // 2]
    for _ in range(20):  # partners are drawn again while they are of one community
        same = np.flatnonzero(group[left] == group[right])
        right[same] = right[rng.permutation(same)]
    own, other = np.concatenate([left, right]), np.concatenate([right, left])
    taken = np.ones(graph.num_attributes) if strong else (rng.random(graph.num_attributes) < 0.5).astype(float)
    return with_rows(graph, own, _mixed(_rows(graph), own, other, taken)), own


def _rewire(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    left, right = edges(graph)
    mine = np.isin(left, nodes) | np.isin(right, nodes)
    mine &= rng.random(len(left)) < (1.0 if strong else 0.5)
    kept_end = np.where(np.isin(left, nodes), left, right)[mine]
    return from_edges(graph, (left[~mine], right[~mine]), (kept_end, _anyone(graph, len(kept_end), rng))), nodes


def _ring(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    groups = nodes[: len(nodes) // _RING * _RING].reshape(-1, _RING)
    steps = (1, 2) if strong else (1,)
    pairs = [(groups, np.roll(groups, -step, axis=1)) for step in steps]
    joined = _joined(graph, *(np.concatenate([pair[i].ravel() for pair in pairs]) for i in range(2)))
    models = np.repeat(_anyone(graph, len(groups), rng), _RING)
    return with_rows(joined, groups.ravel(), noisy(graph, models, rng)), groups.ravel()


def _hub(graph: Graph, nodes: Nodes, strong: bool, rng: Rng) -> tuple[Graph, Nodes]:
    hubs = nodes[: max(5, len(nodes) // 4)]
    num_new = int((8 if strong else 2) * max(1.0, graph.num_arcs / graph.num_nodes))
    return _joined(graph, np.repeat(hubs, num_new), _anyone(graph, len(hubs) * num_new, rng)), hubs


KINDS = {"clique": _clique, "far": _far, "swap": _swap, "rewire": _rewire, "ring": _ring, "hub": _hub}


def communities(graph: Graph) -> NDArray[np.int64]:
    """A group for every node: k-means over the leading singular vectors of the normalised adjacency."""
    scale = 1.0 / np.sqrt(np.maximum(graph.degrees, 1))
    vectors, _, _ = randomized_svd(
        sparse.csr_matrix(scale[:, None] * adjacency(graph) * scale), _COMMUNITIES, n_iter=10, random_state=0
    )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return KMeans(_COMMUNITIES, n_init=1, random_state=0).fit_predict(vectors / np.maximum(lengths, 1e-12))


def adjacency(graph: Graph) -> sparse.csr_array:
    """The matrix of ones, (n, n)."""
    return sparse.csr_array((np.ones(graph.num_arcs), graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2)


def _anyone(graph: Graph, count: int, rng: Rng) -> Nodes:
    return rng.integers(0, graph.num_nodes, count)


def edges(graph: Graph) -> tuple[Nodes, Nodes]:
    """Both ends of every edge, once; of every arc if the graph is directed."""
    left = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    once = graph.directed | (left < graph.indices)
    return left[once], graph.indices[once].astype(np.int64)


def _joined(graph: Graph, left: Nodes, right: Nodes) -> Graph:
    return from_edges(graph, edges(graph), (left, right))


def from_edges(graph: Graph, *pairs: tuple[Nodes, Nodes]) -> Graph:
    """The graph with just these edges; loops and repeats fall away."""
    left, right = (np.concatenate([pair[i] for pair in pairs]) for i in range(2))
    left, right = (end[left != right] for end in (left, right))
    ends = (left, right) if graph.directed else (np.concatenate([left, right]), np.concatenate([right, left]))
    csr = sparse.coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(graph.num_nodes,) * 2).tocsr()
    csr.sort_indices()
    return replace(graph, indptr=csr.indptr.astype(np.int64), indices=csr.indices.astype(np.int32), path=None)


def _rows(graph: Graph) -> Any:
    assert graph.x is not None
    return graph.x.csr() if isinstance(graph.x, SparseRows) else np.asarray(graph.x)


def with_rows(graph: Graph, nodes: Nodes, fresh: Any) -> Graph:
    """Attributes with these rows in the place of the nodes' own."""
    rows = _rows(graph)
    place = np.arange(graph.num_nodes)
    place[nodes] = graph.num_nodes + np.arange(len(nodes))
    if sparse.issparse(rows):
        return replace(graph, x=SparseRows.of(sparse.vstack([rows, fresh], format="csr")[place]), path=None)
    return replace(graph, x=np.concatenate([rows, fresh]).astype(np.float32)[place], path=None)


def _mixed(rows: Any, own: Nodes, other: Nodes, taken: NDArray[np.float64]) -> Any:
    """The rows of `other` in the taken columns, of `own` in the rest."""
    if sparse.issparse(rows):
        return rows[other] @ sparse.diags_array(taken) + rows[own] @ sparse.diags_array(1.0 - taken)
    return np.where(taken > 0, rows[other], rows[own])


def noisy(graph: Graph, models: Nodes, rng: Rng) -> Any:
    """Copies of rows: a tenth of the present attributes lost, or dense values moved by a twentieth of a deviation."""
    rows = _rows(graph)
    copies = rows[models]
    if sparse.issparse(copies):
        copies.data = copies.data * (rng.random(len(copies.data)) > 0.1)
        return copies
    return copies + 0.05 * rows.std(axis=0) * rng.standard_normal(copies.shape)
