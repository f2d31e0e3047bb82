"""What an explanation rests on, gathered once so that each node after it costs its own degree and no more.

`Evidence.of` joins the graph, the purified graph, the scores, the per-edge predictions and, where there are any, the
features, and makes what needs a pass over the data: the row of every node in the ranked table (8 bytes a node), the
numbering of the edges (8 bytes a node), mean and spread of every attribute over the whole graph (16 bytes a column),
what is usual for an edge, and the percentiles of weights where edges have any (a copy while it lasts). Nothing else is
copied: graphs, features and predictions may stay memory maps. Sparse attributes are never made dense.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.threads import in_slices, share
from hcm_scale.graph.store import Attributes, Graph, SparseRows
from hcm_scale.report.distances import usual_distance, usual_hop
from hcm_scale.score.numbering import EdgeIndex, edge_index

_ROWS = 1 << 16  # nodes a pass looks at together
_ENTRIES = 1 << 22  # stored values of a sparse matrix a pass looks at together


@dataclass(frozen=True, eq=False)
class Evidence:
    """A scored graph, ready to be asked about any of its nodes."""

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
    usual_hop: float | None
    usual_distance: float | None
    num_scored: int  # nodes with neighbours
    weight_percentiles: NDArray[np.float32] | None  # 0 .. 100, of all edges
    flags_end: float | None  # the largest p of a flagged node

    @staticmethod
    def of(
        graph: Graph,
        purified: Graph | None,
        scores: pa.Table,
        edge_mean: NDArray[np.float32],
        edge_var: NDArray[np.float32],
        features: NDArray[np.float32] | None = None,
    ) -> "Evidence":
        """Checks that the parts belong together and makes the indices."""
        _check_sizes(graph, purified, scores, edge_mean, edge_var)
        nodes, row_of_node = scores["node"].to_numpy(), np.empty(graph.num_nodes, np.int64)
        in_slices(len(nodes), lambda part: row_of_node.put(nodes[part], np.arange(part.start, part.stop)))
        mean, spread = (np.zeros(0), np.zeros(0)) if graph.x is None else column_moments(graph.x)
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
            usual_hop(edge_mean),
            usual_distance(graph, features),
            count_scored(graph),
            None if graph.weights is None or not graph.num_arcs else percentiles(graph.weights),
            flags_end(scores),
        )

    @property
    def fdr(self) -> float | None:
        """The false-discovery rate at which nodes are flagged; None where nobody judged."""
        rate = (self.scores.schema.metadata or {}).get(b"fdr")
        return None if rate is None else float(rate)

    @property
    def ranked_by(self) -> str:
        """The score that ranks."""
        return ranked_by(self.scores)

    def column_name(self, column: int) -> str:
        """The user's own name of an attribute, or its number where there is none."""
        names = self.graph.columns
        return names[column] if column < len(names) else f"attribute {column}"


def ranked_by(scores: pa.Table) -> str:
    """The score that ranks a table."""
    name: str = (scores.schema.metadata or {}).get(b"rank_by", b"ahp").decode()
    return name


def flags_end(scores: pa.Table) -> float | None:
    """The largest p of a flagged node; None where no node is flagged, or nobody judged."""
    if not {"p", "flagged"} <= {*scores.column_names}:
        return None
    largest: float | None = pc.max(scores["p"].filter(scores["flagged"])).as_py()
    return largest


def _check_sizes(
    graph: Graph, purified: Graph | None, scores: pa.Table, edge_mean: NDArray[Any], edge_var: NDArray[Any]
) -> None:
    if scores.num_rows != graph.num_nodes:
        raise ValueError(f"scores has {scores.num_rows} rows; the graph has {graph.num_nodes} nodes")
    if purified is not None and purified.num_nodes != graph.num_nodes:
        raise ValueError(f"purified has {purified.num_nodes} nodes; the graph has {graph.num_nodes}")
    for name, array in (("edge_mean", edge_mean), ("edge_var", edge_var)):
        if array.shape != (graph.num_edges,):
            raise ValueError(f"{name} has shape {array.shape}; the graph has {graph.num_edges} edges")


def degrees_of(graph: Graph, part: slice) -> NDArray[np.int64]:
    """The degrees of a slice of the nodes."""
    return np.diff(graph.indptr[part.start : part.stop + 1])


def count_scored(graph: Graph) -> int:
    """How many nodes have neighbours."""
    found: list[int] = []
    in_slices(graph.num_nodes, lambda part: found.append(int(np.count_nonzero(degrees_of(graph, part) > 0))))
    return sum(found)


def neighbors_of(graph: Graph, node: int) -> NDArray[Any]:
    """The sorted row of one node."""
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]]


def contains(graph: Graph, node: int, others: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of `others` are neighbours of `node`, by binary search."""
    row = neighbors_of(graph, node)
    if len(row) == 0:
        return np.zeros(len(others), bool)
    place = np.minimum(np.searchsorted(row, others), len(row) - 1)
    return np.asarray(row[place] == others)


def percentiles(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """The weights that 0, 1, ... 100 per cent of the entries do not exceed."""
    return np.asarray(np.percentile(weights, np.arange(101), method="lower"), np.float32)


def column_moments(x: Attributes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every attribute over all nodes, in two passes of float64.

    >>> [moment.tolist() for moment in column_moments(np.array([[0, 5], [2, 5]], np.float32))]
    [[1.0, 5.0], [1.0, 0.0]]
    """
    num_rows, num_columns = x.shape
    if num_rows == 0:
        return np.zeros(num_columns), np.zeros(num_columns)
    if isinstance(x, SparseRows):
        mean = _sparse_sums(x, np.zeros(num_columns), power=1)[0] / num_rows
        squares, stored = _sparse_sums(x, mean, power=2)
        return mean, np.sqrt((squares + (num_rows - stored) * mean**2) / num_rows)
    blocks = [slice(first, first + _ROWS) for first in range(0, num_rows, _ROWS)]
    sums = np.empty((len(blocks), num_columns))

    def add(_: int, number: int) -> None:
        sums[number] = x[blocks[number]].sum(axis=0, dtype=np.float64)

    def add_squares(_: int, number: int) -> None:
        sums[number] = ((x[blocks[number]] - mean) ** 2).sum(axis=0)

    share(numba.get_num_threads(), range(len(blocks)), add)
    mean = np.sum(sums, axis=0) / num_rows
    share(numba.get_num_threads(), range(len(blocks)), add_squares)
    return mean, np.sqrt(np.sum(sums, axis=0) / num_rows)


def _sparse_sums(x: SparseRows, center: NDArray[np.float64], power: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Per column: the sum of (value - center) ** power over the stored values, and how many are stored."""
    sums, stored = np.zeros(x.num_columns), np.zeros(x.num_columns, np.int64)
    for first in range(0, len(x.data), _ENTRIES):
        columns = x.indices[first : first + _ENTRIES]
        values = x.data[first : first + _ENTRIES] - center[columns]
        sums += np.bincount(columns, weights=values**power, minlength=x.num_columns)
        stored += np.bincount(columns, minlength=x.num_columns)
    return sums, stored


def row_mean(x: Attributes, rows: NDArray[Any]) -> NDArray[np.float64]:
    """The mean attributes of some rows, (d,), a block of rows at a time."""
    total = np.zeros(x.shape[1])
    for first in range(0, len(rows), _ROWS):
        block = rows[first : first + _ROWS]
        if isinstance(x, SparseRows):
            entries = np.concatenate([np.arange(x.indptr[row], x.indptr[row + 1]) for row in block])
            total += np.bincount(x.indices[entries], weights=x.data[entries], minlength=x.num_columns)
        else:
            total += x[block].sum(axis=0, dtype=np.float64)
    return total / max(len(rows), 1)
