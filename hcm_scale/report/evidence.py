"""A hint where the attributes say little about who is joined to whom: hops are predicted from them, and so are weak.

`likeness` is the chance that two neighbours have features more alike, by their cosine, than the ends of two different
edges, which are as often nodes of many edges: 1/2 where attributes are noise. On graphs whose attributes were replaced
by noise it was 0.49 to 0.50, on the embedded data set 0.69, on Cora 0.73, on Reddit 0.90, on DBLP 0.53. The loss of the
training does not tell as much: with a few hubs or a thin graph, distances show in the mean of noise over neighbours
(DBLP: 0.91 with its attributes, 0.93 with noise, of 1.39).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.threads import run_in_slices, share_parts
from hcm_scale.graph.store import Attributes, Graph, SparseRows
from hcm_scale.score.edge_index import EdgeIndex, edge_index

# ----------------------------------------------------------------------------
# How far the ends of an edge are from each other in their features, and what is usual over the edges of a graph.
#
# What is usual is a median over at most a few ten thousand edges, evenly spaced in their order, so that it costs the
# same on any graph and is the same every time.


_HOPS = 1 << 20  # edges looked at for a usual hop
_PAIRS = 1 << 14  # for a usual distance
_SEEN = 1 << 14  # of those edges, by a thread at a time


def cosine_distance(own: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """1 - cosine of rows with each other, or of one row with many; 1 where a row is zero.

    >>> cosine_distance(np.array([1.0, 0.0]), np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.0, 1.0, 1.0]
    """
    own, others = np.asarray(own, np.float64), np.asarray(others, np.float64)
    lengths = np.linalg.norm(own, axis=-1) * np.linalg.norm(others, axis=-1)
    products = (own * others).sum(axis=-1)
    return 1.0 - np.divide(products, lengths, out=np.zeros(np.shape(lengths)), where=lengths > 0)


def usual_hop(edge_mean: NDArray[np.float32]) -> float | None:
    """The median predicted hop of an edge; None where no edge was scored."""
    chosen = edge_mean[:: max(1, len(edge_mean) // _HOPS)]
    seen = np.empty(len(chosen), edge_mean.dtype)
    run_in_slices(len(seen), lambda part: np.copyto(seen[part], chosen[part]), _SEEN)  # each is on a page of its own
    seen = seen[np.isfinite(seen)]
    return float(np.median(seen)) if len(seen) else None


def highest_hop(edge_mean: NDArray[np.float32]) -> float:
    """The largest predicted hop of an edge; 0 where no edge was scored."""
    found = [0.0]
    run_in_slices(len(edge_mean), lambda part: found.append(float(np.fmax.reduce(edge_mean[part], initial=0.0))))
    return max(found)


def usual_distance(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """The median distance of features over an edge; None without features or edges."""
    if features is None or graph.num_arcs == 0:
        return None
    arcs = np.arange(0, graph.num_arcs, max(1, graph.num_arcs // _PAIRS))
    left = np.searchsorted(graph.indptr, arcs, side="right") - 1
    return float(np.median(cosine_distance(features[left], features[graph.indices[arcs]])))


# ----------------------------------------------------------------------------
# What an explanation rests on, gathered once so that each node after it costs its own degree and no more.
#
# `Evidence.of` joins the graph, the purified graph, the scores, the per-edge predictions and, where there are any,
# the features, and makes what needs a pass over the data: the row of every node in the ranked table (8 bytes a node),
# the numbering of the edges (8 bytes a node), mean and spread of every attribute over the whole graph (16 bytes a
# column), what is usual for an edge, and the percentiles of weights where edges have any (a copy while it lasts).
# Nothing else is copied: graphs, features and predictions may stay memory maps. Sparse attributes are never made
# dense.


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
        run_in_slices(len(nodes), lambda part: row_of_node.put(nodes[part], np.arange(part.start, part.stop)))
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
            largest_flagged_p(scores),
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


def largest_flagged_p(scores: pa.Table) -> float | None:
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
    run_in_slices(graph.num_nodes, lambda part: found.append(int(np.count_nonzero(degrees_of(graph, part) > 0))))
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

    share_parts(numba.get_num_threads(), range(len(blocks)), add)
    mean = np.sum(sums, axis=0) / num_rows
    share_parts(numba.get_num_threads(), range(len(blocks)), add_squares)
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


_LIMIT = 0.52
_FEWEST, _MOST = 512, 1 << 13  # edges: of fewer the chance is too uncertain, more are not looked at


def attribute_signal(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """The chance above, from evenly spaced edges; None where there are too few edges, or no features."""
    if features is None or graph.num_edges < _FEWEST:
        return None
    arcs = np.arange(0, graph.num_arcs, max(1, graph.num_arcs // _MOST))
    left, right = np.searchsorted(graph.indptr, arcs, side="right") - 1, graph.indices[arcs]
    joined = cosine_distance(features[left], features[right])
    apart = np.sort(cosine_distance(features[left], features[np.roll(right, len(right) // 2)]))
    farther = len(apart) - np.searchsorted(apart, joined, side="right")
    level = np.searchsorted(apart, joined, side="right") - np.searchsorted(apart, joined)
    return float((farther + 0.5 * level).mean() / len(apart))


def weak_attributes_text(
    graph: Graph,
    features: NDArray[np.float32] | None,
    records: Sequence[Mapping[str, Any]] = (),
    num_classes: int | None = None,
) -> str:
    """The hint, with the training's last loss where it is known; empty where there is nothing to hint at."""
    chance = attribute_signal(graph, features)
    if chance is None or chance > _LIMIT:
        return ""
    losses = [record["loss"] for record in records if "loss" in record]
    loss = f" (loss {losses[-1]:.2f} of {math.log(num_classes):.2f})" if losses and num_classes else ""
    return (
        f"The attributes say little about distances in this graph{loss}: neighbours are no more alike than any two "
        "nodes. Evidence from hops and neighbours is weak here; the ranking leans on odd attributes and on triangles."
    )
