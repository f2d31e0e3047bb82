"""Why a node stands where it stands in the ranking, in numbers; `wording` says it in words.

For one node: its rank and percentile, the kinds of evidence that made it stand out (`reasons`), its neighbours ordered
by predicted hop (farthest first) with the spread over the parameter samples, the weight of the edge where edges have
one, and whether purification dropped it, and the attributes in which it differs most from its neighbourhood: (its value
- the neighbours' mean) / the standard deviation over the whole graph, under the user's own column names. A node without
neighbours is held against the mean of all nodes. The buckets of a hashed text, `NAME#17`, mean nothing to a reader:
they are told once, as the text in NAME. Costs the node's degree, plus a vector of one row of attributes.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.graph.store import KIND_NAMES, Graph
from hcm_scale.report.evidence import Evidence, contains, neighbors_of, row_mean
from hcm_scale.report.reasons import Reason, reasons

# ----------------------------------------------------------------------------
# Attributes that were dates: the graph holds days since the earliest, people read dates.
#
# The ingest's record tells which columns of a node table are dates and what day 0 of each is, as `2024-01-31` or, of
# a column with a time of day, `2024-01-31T08:00`. Times of day and durations stay numbers.


def first_days(graph: Graph) -> dict[str, str]:
    """Day 0 of every column that holds dates, by the column's name."""
    read = graph.info.get("ingest", {})
    types = {line["column"]: line["type"] for line in read.get("told", []) if line["table"] == "nodes"}
    found = {}
    for column in read.get("columns", []):
        kind = types.get(column["name"], "")
        if column["method"] == "date" and kind.startswith(("date", "timestamp")):
            minute = np.datetime64(round(column["origin"] * 1440), "m")
            found[column["name"]] = str(minute.astype("M8[D]") if kind.startswith("date") else minute)
    return found


def value_text(value: float, first_day: str | None) -> str:
    """A value of an attribute: four digits, or where it is days since a date the date that it means.

    >>> value_text(0.12345, None), value_text(1.4, "2024-01-31"), value_text(0.5, "2024-01-31T08:00")
    ('0.1235', '2024-02-01', '2024-01-31 20:00')
    """
    return f"{value:.4g}" if first_day is None else date_text(value, first_day)


def date_text(days: float, first_day: str) -> str:
    """The date so many days after another, with a time of day where that has one."""
    steps = days * 1440 if "T" in first_day else days
    return str(np.datetime64(first_day) + round(steps)).replace("T", " ")


@dataclass(frozen=True)
class EdgeWeight:
    """The weight of an edge under the user's own name, and the share of all edges that are lighter, in per cent."""

    name: str
    value: float
    percent: int


@dataclass(frozen=True)
class Neighbor:
    """One edge of the explained node.

    `hop` and `std` are None where the edge was not scored, `dropped` where nothing was purified. `types` are those of
    the user's edge table. `rank` is the neighbour's own, 0 where it is not told. `weight` is None where edges have
    none.
    """

    id: int | str
    node: int
    hop: float | None
    std: float | None
    dropped: bool | None
    types: tuple[str, ...] = ()
    rank: int = 0
    weight: EdgeWeight | None = None


@dataclass(frozen=True)
class Difference:
    """One attribute: the node's value, its neighbours' mean, and their distance in whole-graph standard deviations.

    Of a hashed text (`is_text`) it is the bucket that differs most, and `column` is the name of the text. Of a date the
    values are days since `first_day`.
    """

    column: str
    value: float
    neighbors: float
    deviations: float
    is_text: bool = False
    first_day: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Everything there is to say about one node; neighbours farthest first, differences largest first.

    `flags_end` is the largest p of a flagged node of the graph, None where none is; `fdr` the rate at which they are.
    """

    id: int | str
    node: int
    rank: int
    num_nodes: int
    scores: dict[str, float | None]
    label: str | None
    neighbors: tuple[Neighbor, ...]
    differences: tuple[Difference, ...]
    reasons: tuple[Reason, ...] = ()
    ranked_by: str = ""
    p: float | None = None
    flagged: bool | None = None
    flags_end: float | None = None
    fdr: float | None = None

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
            "reasons": list(body["reasons"]),
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
        reasons=reasons(evidence, node, row),
        ranked_by=evidence.ranked_by,
        p=row.get("p"),
        flagged=row.get("flagged"),
        flags_end=evidence.flags_end,
        fdr=evidence.fdr,
    )


def score_names(table: pa.Table) -> list[str]:
    """The columns of a ranked table that hold scores: its floating-point ones but `p`, in their order."""
    return [field.name for field in table.schema if pa.types.is_floating(field.type) and field.name != "p"]


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
    types, ranks = _edge_types(graph, node), (evidence.row_of_node[row] + 1).tolist()
    weights = _weights(evidence, node)
    return tuple(
        Neighbor(
            id=graph.external_id(int(row[i])),
            node=int(row[i]),
            hop=finite(hop[i]),
            std=finite(std[i]),
            dropped=dropped[i],
            types=types[i],
            rank=ranks[i],
            weight=weights[i],
        )
        for i in order.tolist()
    )


def _weights(evidence: Evidence, node: int) -> list[EdgeWeight] | list[None]:
    """The weights of the edges of a node, in the order of its row."""
    graph, steps = evidence.graph, evidence.weight_percentiles
    if graph.weights is None or steps is None:
        return [None] * len(neighbors_of(graph, node))
    name = str(graph.info.get("weights", "weight"))
    row = graph.weights[graph.indptr[node] : graph.indptr[node + 1]]
    lighter = np.maximum(np.searchsorted(steps, row) - 1, 0)
    return [EdgeWeight(name, *found) for found in zip(row.tolist(), lighter.tolist(), strict=True)]


def _edge_types(graph: Graph, node: int) -> list[tuple[str, ...]]:
    """The types of the edges of a node, in the order of its row."""
    names = graph.info.get("edge_types")
    if graph.edge_types is None or not isinstance(names, list):
        return [()] * len(neighbors_of(graph, node))
    row = graph.edge_types[graph.indptr[node] : graph.indptr[node + 1]].tolist()
    return [tuple(str(name) for i, name in enumerate(names) if bits >> i & 1) for bits in row]


def _differences(evidence: Evidence, node: int, limit: int) -> tuple[Difference, ...]:
    x, row = evidence.graph.x, neighbors_of(evidence.graph, node)
    if x is None:
        return ()
    own, theirs = row_mean(x, np.array([node])), row_mean(x, row) if len(row) else evidence.mean
    deviations = _divide(own - theirs, evidence.spread)
    found: dict[str, Difference] = {}
    first = first_days(evidence.graph)
    for c in np.argsort(-np.abs(deviations), kind="stable").tolist():
        if deviations[c] == 0.0 or len(found) == limit:
            break
        name, is_text = source_of(evidence.column_name(c), evidence.graph.columns)
        numbers = float(own[c]), float(theirs[c]), float(deviations[c])
        found.setdefault(name, Difference(name, *numbers, is_text, first.get(name)))
    return tuple(found.values())


def source_of(column: str, columns: tuple[str, ...]) -> tuple[str, bool]:
    """The name to tell a column by, and whether it is a bucket of a hashed text; those come in numbers from 0.

    >>> source_of("name#17", ("age", "name#0", "name#1")), source_of("box#3", ("box#3",))
    (('name', True), ('box#3', False))
    """
    name, mark, bucket = column.rpartition("#")
    is_bucket = bool(mark) and bucket.isdecimal() and f"{name}#0" in columns and f"{name}#1" in columns
    return (name, True) if is_bucket else (column, False)


def _divide(values: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quotients by column; a column without spread cannot set a node apart, nor can a value that is not a number."""
    quotient = np.divide(values, spread, out=np.zeros_like(values), where=spread > 0)
    return np.where(np.isfinite(quotient), quotient, 0.0)
