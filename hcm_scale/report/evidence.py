"""What explanations of nodes are computed from, gathered once so that each node after it costs only its own degree.

`Evidence.of` joins the graph, the purified graph, the scores, the predicted hop of every edge and, where given, the
features, and makes what needs a pass over the data: the row of every node in the ranked table and the numbering of the
edges (8 bytes a node each), mean and spread of every attribute over the graph (16 bytes a column), medians over edges,
and percentiles of the weights where edges have any (a copy while it lasts). Nothing else is copied: graphs, features
and predictions may stay memory maps, and sparse attributes are never made dense. Medians are taken over evenly spaced
edges, at most a million hops and a few ten thousand pairs of features, so that they are cheap and always the same.

What is usual for a node is the median over nodes of like degree, lest a merchant with thousands of partners is held
against accounts with eight. Their degrees have as many binary digits as its own: 1, 2 to 3, 4 to 7, 8 to 15 and so on.
One or two thousand of them, evenly spaced, are enough; where there are fewer than 8, nobody knows what is usual.

Where nodes are of several types, `of_type` has what is usual among the nodes of one: medians over those of like degree
and like type, and means and spreads over evenly spaced nodes of the type, gathered once.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices, positions_where, run_in_slices
from hcm_scale.features.purify import cosine_distance, spaced_edges
from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.store import Attributes, Graph, NodeTypes, SparseRows
from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.score.edge_index import EdgeIndex, edge_index
from hcm_scale.score.evidence import nodes_by_group
from hcm_scale.score.kinds.around import neighbors_of
from hcm_scale.score.kinds.kind import Kind
from hcm_scale.score.table import compared_types, kinds_of, ranked_by
from hcm_scale.score.triangles import shared_rates

_HOP_SAMPLE = 1 << 20  # edges behind the median hop
_PAIR_SAMPLE = 1 << 14  # edges behind the median distance of features
_NODE_SAMPLE = 1 << 12  # nodes of a type behind the means and spreads of their attributes
_BLOCK_ROWS = 1 << 16  # nodes per block of a pass over attributes
_BLOCK_ENTRIES = 1 << 22  # stored values per block of a pass over sparse attributes
_LEAST_LIKE, _ENOUGH_LIKE = 8, 1 << 10  # nodes of like degree behind a usual value


@dataclass(frozen=True, eq=False)
class Evidence:
    """A scored graph and what explanations of its nodes need; `scores` is a ranked table or a RankedFile."""

    graph: Graph
    purified: Graph | None
    scores: pa.Table
    edge_mean: NDArray[np.float32]
    edge_var: NDArray[np.float32]
    row_of_node: NDArray[np.int64]
    edges: EdgeIndex
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    features: NDArray[np.float32] | None
    usual_hop: float | None  # median over edges; None where none was scored
    usual_distance: float | None  # median cosine distance of features over edges
    num_scored: int  # nodes with neighbours
    weight_percentiles: NDArray[np.float32] | None  # 0 .. 100, of all edges
    flags_end: float | None  # the largest p of a flagged node; None where no node is flagged
    num_ranked: int  # all nodes, or those of the type
    types: tuple[NDArray[np.int64], ...] = ()  # the nodes of each group of types that is compared by itself, rising
    like: NDArray[np.int64] | None = None  # the nodes that `of_type` is about
    rows: RowEvidence | None = None  # of the edge table, where the graph keeps them
    _of_types: dict[int, dict[str, Any]] = field(default_factory=dict)
    _usual: dict[tuple[str, int], Any] = field(default_factory=dict)  # by name, and binary digits of the degree
    _fetched: dict[int, dict[str, Any]] = field(default_factory=dict)  # rows of the table, by node
    _lock: Any = field(default_factory=threading.Lock)  # of the above: nodes are explained in several threads

    @staticmethod
    def of(
        graph: Graph,
        purified: Graph | None,
        scores: pa.Table,
        edge_mean: NDArray[np.float32],
        edge_var: NDArray[np.float32],
        features: NDArray[np.float32] | None = None,
        rows: RowEvidence | None = None,
    ) -> "Evidence":
        """The evidence of parts that belong together, as whoever opened them has checked."""
        nodes, row_of_node = scores["node"].to_numpy(), np.empty(graph.num_nodes, np.int64)
        run_in_slices(len(nodes), lambda chunk: row_of_node.put(nodes[chunk], np.arange(chunk.start, chunk.stop)))
        mean, spread = (np.zeros(0), np.zeros(0)) if graph.x is None else _column_moments(graph.x)
        percentiles = flags_end = None
        if graph.weights is not None and graph.num_arcs:
            percentiles = np.percentile(graph.weights, np.arange(101), method="lower").astype(np.float32, copy=False)
        if {"p", "flagged"} <= {*scores.column_names}:
            flags_end = pc.max(scores["p"].filter(scores["flagged"])).as_py()
        degrees = map_slices(graph.num_nodes, lambda chunk: np.count_nonzero(degrees_of(graph, chunk)))
        return Evidence(
            graph,
            purified,
            scores,
            edge_mean,
            edge_var,
            row_of_node,
            edge_index(graph.indptr, graph.indices, directed=graph.directed),
            mean,
            spread,
            features,
            _median_hop(edge_mean),
            _median_distance(graph, features),
            int(sum(degrees)),
            percentiles,
            flags_end,
            graph.num_nodes,
            tuple(np.sort(nodes[group]) for group in _rows_by_group(scores)),
            rows=rows,
        )

    def of_type(self, node: int) -> "Evidence":
        """The same with what is usual among nodes of this node's type; itself where nodes are of one type."""
        number = next((i for i, nodes in enumerate(self.types) if is_among(node, nodes)), None)
        if number is None:
            return self
        if number not in self._of_types:
            self._of_types[number] = _usual_among(self.graph, self.types[number])
        return replace(self, **self._of_types[number])

    def fetch(self, nodes: NDArray[np.int64]) -> None:
        """Reads the rows of some nodes at once, which is much less than one by one where the table is a file."""
        nodes = np.array([node for node in np.unique(nodes).tolist() if node not in self._fetched], np.int64)
        rows = self.scores.take(self.row_of_node[nodes], self.scores.column_names) if len(nodes) else None
        self._fetched.update(zip(nodes.tolist(), [] if rows is None else rows.to_pylist(), strict=True))

    def row(self, node: int) -> dict[str, Any]:
        """The row of a node in the ranked table."""
        return self._fetched.get(node) or dict(self.scores.slice(int(self.row_of_node[node]), 1).to_pylist()[0])

    def usual(self, name: str, node: int, of_nodes: Callable[[NDArray[np.int64]], Any]) -> Any:
        """What of_nodes(nodes of like degree and type) returns, computed once for all of these; None if too few."""
        digits = int(self.graph.indptr[node + 1] - self.graph.indptr[node]).bit_length()
        of_all = self._once("digits", lambda: _degree_digits(self.graph))
        nodes = self._once("nodes", partial(self._of_degree, digits, of_all), digits)
        return self._once(name, lambda: of_nodes(nodes) if len(nodes) >= _LEAST_LIKE else None, digits)

    def _of_degree(self, digits: int, of_all: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Enough of the nodes whose degree has so many binary digits, evenly spaced; `of_all` are those of all."""
        if self.like is None:
            nodes = positions_where(len(of_all), lambda chunk: of_all[chunk] == digits)
        else:
            nodes = self.like[of_all[self.like] == digits]
        return nodes[:: max(1, len(nodes) // _ENOUGH_LIKE)].copy()  # a view would hold all

    def _once(self, name: str, make: Callable[[], Any], digits: int = 0) -> Any:
        with self._lock:
            if (name, digits) not in self._usual:
                self._usual[name, digits] = make()
            return self._usual[name, digits]

    @property
    def fdr(self) -> float | None:
        """The false-discovery rate at which nodes are flagged; None where they were not judged."""
        rate = (self.scores.schema.metadata or {}).get(b"fdr")
        return None if rate is None else float(rate)

    @property
    def two_sides(self) -> tuple[NDArray[np.int8], NDArray[np.float64]] | None:
        """The side of every node and the rates at which two nodes share neighbours; None where there are no sides."""
        side = self._once("side", lambda: two_sides(self.graph))
        if side is None:
            return None
        return side, self._once("shared_rates", lambda: shared_rates(self.graph.degrees, side))

    @property
    def highest_hop(self) -> float:
        """The largest predicted hop of an edge; 0 where no edge was scored."""
        highest: float = self._once("highest_hop", lambda: highest_hop(self.edge_mean))
        return highest

    @property
    def ranked_by(self) -> str:
        return ranked_by(self.scores)

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of evidence that rank the nodes, by name."""
        kinds: dict[str, Kind] = self._once("kinds", lambda: kinds_of(self.scores))
        return kinds


def degrees_of(graph: Graph, chunk: slice) -> NDArray[np.int64]:
    return np.diff(graph.indptr[chunk.start : chunk.stop + 1])


def _degree_digits(graph: Graph) -> NDArray[np.uint8]:
    """How many binary digits the degree of every node has."""
    out = np.empty(graph.num_nodes, np.uint8)
    run_in_slices(len(out), lambda chunk: np.copyto(out[chunk], np.frexp(degrees_of(graph, chunk))[1], "unsafe"))
    return out


def _rows_by_group(scores: Any) -> list[NDArray[np.int64]]:
    """The rows of each group of types that is compared by itself; none where all nodes are compared."""
    groups = compared_types(scores)
    types = NodeTypes.of(scores["type"]) if groups and any(groups.values()) else None
    return [] if types is None or groups is None else nodes_by_group(types, groups)


def _usual_among(graph: Graph, nodes: NDArray[np.int64]) -> dict[str, Any]:
    """The fields of Evidence that differ from type to type."""
    num_scored = int(np.count_nonzero(graph.indptr[nodes + 1] - graph.indptr[nodes]))
    usual = {"num_ranked": len(nodes), "like": nodes, "num_scored": num_scored, "_usual": {}}
    if graph.x is not None:
        few = nodes[:: max(1, len(nodes) // _NODE_SAMPLE)]
        x = SparseRows.of(graph.x.csr()[few]) if isinstance(graph.x, SparseRows) else graph.x[few]
        usual["mean"], usual["spread"] = _column_moments(x)
    return usual


def is_among(node: Any, nodes: NDArray[np.int64]) -> Any:
    """Whether a node, or each of several, is one of these, which rise."""
    return nodes[np.minimum(np.searchsorted(nodes, node), len(nodes) - 1)] == node if len(nodes) else node != node


def contains(graph: Graph, node: int, others: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of `others` are neighbours of `node`, by binary search."""
    row = neighbors_of(graph, node)
    if len(row) == 0:
        return np.zeros(len(others), bool)
    at = np.minimum(np.searchsorted(row, others), len(row) - 1)
    return np.asarray(row[at] == others)


def highest_hop(edge_mean: NDArray[np.float32]) -> float:
    """The largest predicted hop of an edge; 0 where no edge was scored."""
    highest = map_slices(len(edge_mean), lambda chunk: float(np.fmax.reduce(edge_mean[chunk], initial=0.0)))
    return max(highest, default=0.0)


def _median_hop(edge_mean: NDArray[np.float32]) -> float | None:
    chosen = np.arange(0, len(edge_mean), max(1, len(edge_mean) // _HOP_SAMPLE))
    hops = np.empty(len(chosen), np.float32)  # each of which may be on a page of its own
    run_in_slices(len(hops), lambda chunk: np.copyto(hops[chunk], edge_mean[chosen[chunk]]), size=1 << 14)
    hops = hops[np.isfinite(hops)]
    return float(np.median(hops)) if len(hops) else None


def _median_distance(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    if features is None or graph.num_arcs == 0:
        return None
    left, right = spaced_edges(graph, _PAIR_SAMPLE)
    return float(np.median(cosine_distance(features[left], features[right])))


def _column_moments(x: Attributes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every attribute over all nodes, in two passes of float64.

    >>> [moment.tolist() for moment in _column_moments(np.array([[0, 5], [2, 5]], np.float32))]
    [[1.0, 5.0], [1.0, 0.0]]
    """
    num_rows, num_columns = x.shape
    if num_rows == 0:
        return np.zeros(num_columns), np.zeros(num_columns)
    if isinstance(x, SparseRows):
        mean = _sparse_sums(x, np.zeros(num_columns), power=1)[0] / num_rows
        squares, stored = _sparse_sums(x, mean, power=2)
        return mean, np.sqrt((squares + (num_rows - stored) * mean**2) / num_rows)
    sums = map_slices(num_rows, lambda chunk: x[chunk].sum(axis=0, dtype=np.float64), _BLOCK_ROWS)
    mean = np.sum(sums, axis=0) / num_rows
    sums = map_slices(num_rows, lambda chunk: ((x[chunk] - mean) ** 2).sum(axis=0), _BLOCK_ROWS)
    return mean, np.sqrt(np.sum(sums, axis=0) / num_rows)


def _sparse_sums(x: SparseRows, center: NDArray[np.float64], power: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Per column: the sum of (value - center) ** power over the stored values, and how many are stored."""
    sums, stored = np.zeros(x.num_columns), np.zeros(x.num_columns, np.int64)
    for first in range(0, len(x.data), _BLOCK_ENTRIES):
        columns = x.indices[first : first + _BLOCK_ENTRIES]
        values = x.data[first : first + _BLOCK_ENTRIES] - center[columns]
        sums += np.bincount(columns, weights=values**power, minlength=x.num_columns)
        stored += np.bincount(columns, minlength=x.num_columns)
    return sums, stored


def row_mean(x: Attributes, rows: NDArray[Any]) -> NDArray[np.float64]:
    """The mean attributes of some rows, (d,), a block of rows at a time."""
    total = np.zeros(x.shape[1])
    for first in range(0, len(rows), _BLOCK_ROWS):
        block = rows[first : first + _BLOCK_ROWS]
        if isinstance(x, SparseRows):
            entries = np.concatenate([np.arange(x.indptr[row], x.indptr[row + 1]) for row in block])
            total += np.bincount(x.indices[entries], weights=x.data[entries], minlength=x.num_columns)
        else:
            total += x[block].sum(axis=0, dtype=np.float64)
    return total / max(len(rows), 1)
