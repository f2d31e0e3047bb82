"""Why a node stands where it stands in the ranking, in numbers; `wording` says it in words.

For one node: its rank and percentile, its neighbours ordered by predicted hop (farthest first) with the spread over the
parameter samples and whether purification dropped the edge, and the attributes in which it differs most from its
neighbourhood: (its value - the neighbours' mean) / the standard deviation over the whole graph, under the user's own
column names. Costs the node's degree, plus a vector of one row of attributes.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.graph.store import KIND_NAMES
from hcm_scale.report.evidence import Evidence, contains, neighbors_of, row_mean


@dataclass(frozen=True)
class Neighbor:
    """One edge of the explained node.

    `hop` and `std` are None where the edge was not scored, `dropped` where nothing was purified.
    """

    id: int | str
    node: int
    hop: float | None
    std: float | None
    dropped: bool | None


@dataclass(frozen=True)
class Difference:
    """One attribute: the node's value, its neighbours' mean, and their distance in whole-graph standard deviations."""

    column: str
    value: float
    neighbors: float
    deviations: float


@dataclass(frozen=True)
class Explanation:
    """Everything there is to say about one node; neighbours farthest first, differences largest first."""

    id: int | str
    node: int
    rank: int
    num_nodes: int
    scores: dict[str, float | None]
    label: str | None
    neighbors: tuple[Neighbor, ...]
    differences: tuple[Difference, ...]

    @property
    def degree(self) -> int:
        return len(self.neighbors)

    @property
    def percentile(self) -> float:
        """The share of all nodes that rank below this one, in per cent."""
        return 100.0 * (self.num_nodes - self.rank) / self.num_nodes

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """JSON-able, with at most `limit` neighbours; `degree` tells how many there are."""
        body = asdict(self) | {"degree": self.degree, "percentile": self.percentile}
        return body | {
            "neighbors": [asdict(n) for n in self.neighbors[:limit]],
            "differences": list(body["differences"]),
        }


def explain(evidence: Evidence, node: int, num_differences: int = 6) -> Explanation:
    """Explains one node (its number, not its external id)."""
    if not 0 <= node < evidence.graph.num_nodes:
        raise ValueError(f"node={node} is not in this graph; nodes run from 0 to {evidence.graph.num_nodes - 1}")
    row = evidence.scores.slice(int(evidence.row_of_node[node]), 1).to_pylist()[0]
    return Explanation(
        id=evidence.graph.external_id(node),
        node=node,
        rank=int(row["rank"]),
        num_nodes=evidence.graph.num_nodes,
        scores={name: finite(row[name]) for name in score_names(evidence.scores)},
        label=label_of(row.get("y"), row.get("kind")),
        neighbors=_neighbors(evidence, node),
        differences=_differences(evidence, node, num_differences),
    )


def score_names(table: pa.Table) -> list[str]:
    """The columns of a ranked table that hold scores: all of its floating-point ones, in their order."""
    return [field.name for field in table.schema if pa.types.is_floating(field.type)]


def finite(value: float | None) -> float | None:
    """The number, or None where it is missing, infinite or not a number.

    >>> finite(1.5), finite(float("nan")), finite(None)
    (1.5, None, None)
    """
    return float(value) if value is not None and math.isfinite(value) else None


def label_of(y: int | None, kind: int | None) -> str | None:
    """The known truth about a node in a word or two, None where it is unknown.

    >>> label_of(1, 2), label_of(1, None), label_of(0, 0), label_of(None, None)
    ('attribute anomaly', 'anomaly', 'normal', None)
    """
    if y is None:
        return None
    if not y:
        return "normal"
    return f"{KIND_NAMES[kind]} anomaly" if kind and kind < len(KIND_NAMES) else "anomaly"


def _neighbors(evidence: Evidence, node: int) -> tuple[Neighbor, ...]:
    graph, purified = evidence.graph, evidence.purified
    row = neighbors_of(graph, node)
    edges = evidence.edges.of_node(node)
    hop = np.asarray(evidence.edge_mean[edges], np.float64)
    std = np.sqrt(np.asarray(evidence.edge_var[edges], np.float64))
    dropped: list[bool | None] = [None] * len(row)
    if purified is not None:
        dropped = (~contains(purified, node, row)).tolist()
    order = np.argsort(-np.where(np.isfinite(hop), hop, -np.inf), kind="stable")
    return tuple(
        Neighbor(graph.external_id(int(row[i])), int(row[i]), finite(hop[i]), finite(std[i]), dropped[i])
        for i in order.tolist()
    )


def _differences(evidence: Evidence, node: int, limit: int) -> tuple[Difference, ...]:
    x, row = evidence.graph.x, neighbors_of(evidence.graph, node)
    if x is None or len(row) == 0:
        return ()
    own, theirs = row_mean(x, np.array([node])), row_mean(x, row)
    deviations = _divide(own - theirs, evidence.spread)
    largest = np.argsort(-np.abs(deviations), kind="stable")[:limit]
    return tuple(
        Difference(evidence.column_name(c), float(own[c]), float(theirs[c]), float(deviations[c]))
        for c in largest.tolist()
        if deviations[c] != 0.0
    )


def _divide(values: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quotients by column; a column without spread cannot set a node apart, nor can a value that is not a number."""
    quotient = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0)
    return np.where(np.isfinite(quotient), quotient, 0.0)
