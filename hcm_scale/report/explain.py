"""Why a node stands where it does in the ranking, in numbers; `wording` puts it into words.

An `Explanation` has the node's rank and percentile, the kinds of evidence that made it stand out (`reasons`), its
neighbours by predicted hop, farthest first, with the spread over the parameter samples, the type and weight of the edge
where edges have them, and whether purification dropped it, and the attributes in which it differs most from its
neighbourhood: (its value - the neighbours' mean) / the standard deviation over the whole graph, under the user's own
column names. A node without neighbours is compared with the mean of all nodes; of several types of nodes only its own
counts, for neighbours, mean, deviation and what is usual. The buckets of a hashed text, `NAME#17`, and the places of a
vector, `NAME[17]`, mean nothing to a reader and count as one attribute, NAME. Dates are stored as days since the
earliest, so their columns carry the date of day 0; large whole numbers less the least, which the name then says. What
was made of the rows of an edge table is shown as it was before it was stored (ingest/edge_columns.py): amounts without
logarithm, a share as so many of so many rows. Costs the node's degree and one row of attributes.

A value is extreme where it lies more than four times as far from the median over nodes of like degree (`usual`) as
their 5 % or 95 % quantile on its side: 6.6 deviations of a normal column, 2.9 of the logarithm of a lognormal one. The
largest value is never the quantile, so that no outlier hides itself; one equal to the median makes nothing extreme.
Extreme attributes come first, whatever the neighbours have: members of a ring share them.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.names import AS_END, GAP_SUFFIX, NO_COLUMN, ROWS, VECTOR
from hcm_scale.features.auto import gap_columns
from hcm_scale.graph.store import KIND_NAMES, Attributes, Graph, SparseRows
from hcm_scale.report.evidence import Evidence, contains, is_among, row_mean
from hcm_scale.report.reasons import reasons
from hcm_scale.score.kinds.all import KINDS, ROW_KINDS
from hcm_scale.score.kinds.around import neighbors_of
from hcm_scale.score.kinds.kind import Kind, Reason
from hcm_scale.score.kinds.phrases import NOTABLE_DEVIATIONS
from hcm_scale.score.kinds.row_phrases import row_facts
from hcm_scale.score.table import score_names

_NUM_DIFFERENCES = 6
_NOTABLE_SHARE = 0.05  # of the edges
_EXTREME = 4.0
_WHERE_KNOWN = ("type", "num_alike", "own")  # fields that are left out of JSON where there is nothing


@dataclass(frozen=True)
class EdgeWeight:
    """The weight of an edge under the user's own name, and the share of all edges that are lighter, in per cent."""

    name: str
    value: float
    percent: int


@dataclass(frozen=True)
class Neighbor:
    """One edge of the explained node.

    `hop` and `std` are None where the edge was not scored, `dropped` where nothing was purified, `weight` where edges
    have none. `types` are those of the user's edge table. `rank` is the neighbour's own, 0 where unknown.
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

    For a hashed text (`is_text`) these are of the bucket that differs most, and `column` is the name of the text.
    For a date the values are days since `first_day`: `2024-01-31`, or `2024-01-31T08:00` of a column with a time of
    day. `usual` is the median over nodes of like degree, None where they are too few. A share of rows has `counts`:
    how many they are, and of how many. `neighbors` is None where none of them has a value. `never` names those of
    value, neighbors and usual without a row at its end.
    """

    column: str
    value: float
    neighbors: float | None
    deviations: float
    is_text: bool = False
    first_day: str | None = None
    usual: float | None = None
    extreme: bool = False
    counts: tuple[int, int] | None = None
    never: tuple[str, ...] = ()

    @property
    def notable(self) -> bool:
        near = self.value == self.usual or (
            self.counts and self.usual is not None and _is_nearly(self.counts, self.usual)
        )
        return self.extreme or (abs(self.deviations) >= NOTABLE_DEVIATIONS and not near and not self.is_text)


@dataclass(frozen=True)
class Explanation:
    """The explanation of one node; neighbours farthest first, extreme differences first, then the largest.

    `flags_end` is the largest p of a flagged node, None where none is; `fdr` the false-discovery rate of the flags.
    `type` is that of the node, None where all are of one; `num_alike` are its neighbours of that type. Beside those in
    `neighbors` it has `num_unlisted` nearer ones, and purification dropped `num_dropped` of all these edges.
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
    type: str | None = None
    num_alike: int | None = None
    num_unlisted: int = 0
    num_dropped: int = 0
    own: dict[str, Any] | None = None  # its payments: how many, sums paid and received by currency, the strangest
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)  # that the reasons are of, by name

    @property
    def degree(self) -> int:
        return len(self.neighbors) + self.num_unlisted

    @property
    def percentile(self) -> float:
        """The share of all nodes that rank below this one, in per cent."""
        return 100.0 * (self.num_nodes - self.rank) / self.num_nodes

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """A JSON-able dict with at most `limit` neighbours; `degree` counts all."""
        body = asdict(replace(self, neighbors=self.neighbors[:limit], kinds={}))
        del body["num_unlisted"], body["num_dropped"], body["kinds"]
        body = {name: value for name, value in body.items() if value is not None or name not in _WHERE_KNOWN}
        for difference in body["differences"]:
            if difference["counts"] is None:
                del difference["counts"]
        for reason in body["reasons"]:
            if not reason["details"]:
                del reason["details"]
        lists = {name: list(body[name]) for name in ("neighbors", "differences", "reasons")}
        return body | lists | {"degree": self.degree, "percentile": self.percentile}


@dataclass(frozen=True)
class EdgeReason:
    """One kind of evidence about an edge: its number, what is usual for edges of like degrees, and the share of edges
    that have as much of it, given the degrees of their ends.
    """

    kind: str
    value: float | None
    usual: float | None
    share: float

    @property
    def notable(self) -> bool:
        return self.share <= _NOTABLE_SHARE


@dataclass(frozen=True)
class EdgeExplanation:
    """Why an edge is where it is: the reasons, the strongest first, and the attributes that differ most.

    The share of all edges that are as strange is `share`, the degrees of its ends are `degrees`, the deviation of the
    predicted hop over the parameter samples is `std`. `flagged` is None where it would take a pass over all edges.
    """

    ends: tuple[int | str, int | str]
    degrees: tuple[int, int]
    num_edges: int
    share: float
    p: float
    flagged: bool | None
    fdr: float
    std: float | None
    reasons: tuple[EdgeReason, ...]
    differences: tuple[Difference, ...]
    dropped: bool | None = None
    own: dict[str, Any] | None = None  # the rows between the two, as of an account, seen from the first

    @property
    def id(self) -> int | str:
        return self.ends[0]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return asdict(self)


def end_differences(evidence: Evidence, left: int, right: int) -> tuple[Difference, ...]:
    """The attributes in which two nodes differ most: `value` of the first, `neighbors` of the second."""
    differences = _differences(evidence.of_type(left), left, np.array([right]), _NUM_DIFFERENCES)
    return tuple(difference for difference in differences if difference.deviations)


def explain(
    evidence: Evidence, node: int, num_differences: int = _NUM_DIFFERENCES, *, num_neighbors: int | None = None
) -> Explanation:
    """The explanation of one node, given by its number, not its external id; None lists all of its neighbours."""
    if not 0 <= node < evidence.graph.num_nodes:
        raise ValueError(f"node={node} is not in this graph; nodes run from 0 to {evidence.graph.num_nodes - 1}")
    evidence = evidence.of_type(node)
    row = evidence.row(node)
    around = neighbors_of(evidence.graph, node)
    alike = around if evidence.like is None else around[is_among(around, evidence.like)]
    differences = _differences(evidence, node, alike, num_differences)
    listed, purified = _neighbors(evidence, node, num_neighbors), evidence.purified
    return Explanation(
        id=evidence.graph.external_id(node),
        node=node,
        rank=int(row["rank"]),
        num_nodes=evidence.graph.num_nodes,
        scores={name: finite(row[name]) for name in score_names(evidence.scores)},
        label=label_of(row.get("y"), row.get("kind")),
        neighbors=listed,
        differences=differences,
        reasons=reasons(evidence, node, row, any(d.notable for d in differences), any(d.extreme for d in differences)),
        own=None if num_neighbors == 0 else own_rows(evidence, node),
        ranked_by=evidence.ranked_by,
        p=row.get("p"),
        flagged=row.get("flagged"),
        flags_end=evidence.flags_end,
        fdr=evidence.fdr,
        type=row.get("type"),
        num_alike=None if evidence.like is None else len(alike),
        num_unlisted=len(around) - len(listed),
        num_dropped=0 if purified is None else len(around) - len(neighbors_of(purified, node)),
        kinds=evidence.kinds,
    )


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
    known = f"{KIND_NAMES[kind]} anomaly" if kind and kind < len(KIND_NAMES) else "anomaly"
    return known if y else "normal"


def _neighbors(evidence: Evidence, node: int, most: int | None) -> tuple[Neighbor, ...]:
    """The farthest neighbours, at most so many."""
    graph, purified = evidence.graph, evidence.purified
    if most == 0:
        return ()
    edges = evidence.edges.of_node(node)
    hop = np.asarray(evidence.edge_mean[edges], np.float64)
    chosen = np.argsort(-np.where(np.isfinite(hop), hop, -np.inf), kind="stable")[:most]
    row, hop, entries = neighbors_of(graph, node)[chosen], hop[chosen], graph.indptr[node] + chosen
    std = np.sqrt(np.asarray(evidence.edge_var[edges[chosen]], np.float64))
    dropped = [None] * len(row) if purified is None else (~contains(purified, node, row)).tolist()
    types, weights = _edge_types(graph, entries), _edge_weights(evidence, entries)
    return tuple(
        Neighbor(
            id=graph.external_id(int(row[i])),
            node=int(row[i]),
            hop=finite(hop[i]),
            std=finite(std[i]),
            dropped=dropped[i],
            types=types[i],
            rank=int(evidence.row_of_node[row[i]]) + 1,
            weight=weights[i],
        )
        for i in range(len(row))
    )


def _edge_weights(evidence: Evidence, entries: NDArray[np.int64]) -> list[EdgeWeight] | list[None]:
    """The weights of the edges at these entries of the graph."""
    graph, percentiles = evidence.graph, evidence.weight_percentiles
    if graph.weights is None or percentiles is None:
        return [None] * len(entries)
    name = str(graph.info.get("weights", "weight"))
    row = graph.weights[entries]
    lighter = np.maximum(np.searchsorted(percentiles, row) - 1, 0)
    return [EdgeWeight(name, *both) for both in zip(row.tolist(), lighter.tolist(), strict=True)]


def _edge_types(graph: Graph, entries: NDArray[np.int64]) -> list[tuple[str, ...]]:
    """The types of the edges at these entries of the graph; stored as one bit per type."""
    names = graph.info.get("edge_types")
    if graph.edge_types is None or not isinstance(names, list):
        return [()] * len(entries)
    return [tuple(str(n) for i, n in enumerate(names) if bits >> i & 1) for bits in graph.edge_types[entries].tolist()]


def own_rows(evidence: Evidence, node: int, other: int | None = None) -> dict[str, Any] | None:
    """The rows of an account: how many, what it paid and received by currency, and the strangest, with their kind."""
    kept = evidence.rows
    if kept is None:
        return None
    own, names = kept.own_rows(node, other=other), [kind.name for kind in ROW_KINDS]
    told = [row_facts(evidence, row) | {"surprise": float(kept.surprise[row])} for row in own.rows.tolist()]
    for facts, row in zip(told, own.rows.tolist(), strict=True):
        facts["evidence"] = names[kept.strongest[row]] if kept.strongest[row] >= 0 else None
        facts["steps"] = kept.steps if kept.rows.has_times else None
    if told and told[0]["evidence"]:  # what the strangest says is told in words
        row, surprise = int(own.rows[0]), kept.surprise[own.rows[:1]]
        about = {"rank": 1 + int(np.count_nonzero(kept.surprise > surprise)), "p": float(kept.chances(surprise)[0])}
        told[0] |= about | {"reason": ROW_KINDS[kept.strongest[row]].row_sentence(evidence, row)}
    sums = [{"currency": name, "amount": amount} for name, amount in own.paid.items()]
    into = [{"currency": name, "amount": amount} for name, amount in own.received.items()]
    return {"num_rows": own.num_rows, "paid": sums, "received": into, "rows": told}


def _differences(evidence: Evidence, node: int, row: NDArray[Any], limit: int) -> tuple[Difference, ...]:
    """At most `limit` attributes, against the nodes of `row`; those without spread or a number cannot differ."""
    graph = evidence.graph
    if graph.x is None:
        return ()
    own = row_mean(graph.x, np.array([node]))
    theirs = _mean_around(graph.x, graph.columns, row) if len(row) else evidence.mean
    against = np.where(np.isnan(theirs), evidence.mean, theirs)  # where none around it has a value
    deviations = np.divide(own - against, evidence.spread, out=np.zeros_like(own), where=evidence.spread > 0)
    deviations[~np.isfinite(deviations)] = 0.0
    quantiles = evidence.usual("attributes", node, partial(_column_quantiles, graph.x))
    low, usual, high = np.full((3, len(own)), np.nan) if quantiles is None else quantiles
    usual_range = np.where(own > usual, high - usual, usual - low)
    extreme = (usual_range > 0.0) & (np.abs(own - usual) > _EXTREME * usual_range)
    names = graph.columns
    flag = _flags_of(names, len(own))
    absent = np.flatnonzero((flag >= 0) & (own[np.maximum(flag, 0)] != 0.0)).tolist()
    absent += [c for c, name in enumerate(names) if name.endswith(GAP_SUFFIX) and NO_COLUMN in (own[c], theirs[c])]
    rows_of = {name.removeprefix(ROWS): c for c, name in enumerate(names) if name.startswith(ROWS)}
    for c, name in enumerate(names):  # of an end that it never was there is nothing but that
        rows_at = rows_of.get(name.rpartition(AS_END)[2], c) if AS_END in name else c
        absent += [c] if rows_at != c and own[rows_at] == 0.0 else []
    deviations[absent], extreme[absent] = 0.0, False
    differences: dict[str, Difference] = {}
    first_days, stored = _first_days(graph), graph.info.get("ingest", {}).get("columns", [])
    readings = {
        name: reading | {"prior": one["prior"]} for one in stored for name, reading in one.get("readings", {}).items()
    }
    origins = {one["name"]: one["origin"] for one in stored if one["method"] == "number" and one.get("origin")}

    def counts_of(c: int) -> tuple[int, int] | None:
        reading = readings.get(names[c], {}) if c < len(names) else {}
        rows = [names.index(column) for column in reading.get("rows", ())]
        return _row_counts(float(own[c]), reading, own[rows]) if rows else None

    for c in np.flatnonzero(extreme).tolist():
        extreme[c] = (counts := counts_of(c)) is None or not _is_nearly(counts, float(usual[c]))
    sources = _sources(names) or [(f"attribute {c}", False) for c in range(len(own))]
    of_text = np.array([is_text for _, is_text in sources], bool)  # some bucket of any text is far off: one place, last
    order = np.lexsort((-np.abs(deviations), of_text, ~extreme))
    for c in order[(deviations[order] != 0.0) | extreme[order]].tolist():
        if len(differences) >= limit - (of_text.any() and not of_text[c]):
            continue
        name, is_text = sources[c]
        reading = readings.get(name, {})
        value, mean, middle = (_amount(float(row[c]), reading) for row in (own, theirs, usual))
        counts = counts_of(c)
        value = counts[0] / counts[1] if counts and counts[1] else value
        numbers = value, finite(mean), float(deviations[c]), is_text, first_days.get(name), finite(middle)
        shown = f"{name} less {origins[name]:,.0f}" if name in origins else name
        at = rows_of.get(name.rpartition(AS_END)[2])
        both = (("value", own), ("neighbors", theirs), ("usual", usual)) if at is not None and AS_END in name else ()
        never = tuple(whose for whose, values in both if values[at] == 0.0)
        differences.setdefault(name, Difference(shown, *numbers, bool(extreme[c]) and not is_text, counts, never))
    return tuple(differences.values())


def _column_quantiles(x: Attributes, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The 5 %, 50 % and 95 % quantiles of every attribute over some nodes, (3, d), the outer two rounded inwards."""
    last = len(nodes) - 1
    if isinstance(x, SparseRows):
        rows, quantiles = x.csr()[nodes].tocsc(), np.zeros((3, x.num_columns))
        frequent = np.flatnonzero(np.diff(rows.indptr) * 20 >= last)  # those of all others are 0
        quantiles[:, frequent] = _column_quantiles(rows[:, frequent].toarray(), np.arange(len(nodes)))
        return quantiles
    ordered = np.sort(x[nodes], axis=0)
    return np.stack([ordered[-(-last // 20)], np.median(ordered, axis=0), ordered[last - -(-last // 20)]])


def _amount(value: float, reading: dict[str, Any]) -> float:
    """The value of an attribute whose logarithm is stored."""
    return math.copysign(reading["unit"] * math.expm1(abs(value)), value) if "unit" in reading else value


def _row_counts(value: float, reading: dict[str, Any], rows: NDArray[np.float64]) -> tuple[int, int]:
    """How many rows a share is, and of how many, whose logarithms are `rows`."""
    num_rows = round(float(np.expm1(rows).sum()))
    return round(value * (num_rows + reading["prior"]) - reading["prior"] * reading["usual"]), num_rows


def _is_nearly(counts: tuple[int, int], share: float) -> bool:
    """Whether so many of so many rows are within one row of a share: 0 of 10 rows are nearly 0.1 %."""
    return abs(counts[0] - share * counts[1]) < 1.0


_flags_of = lru_cache(8)(gap_columns)


def _mean_around(x: Attributes, names: tuple[str, ...], row: NDArray[Any]) -> NDArray[np.float64]:
    """The mean attributes of nodes, of each over those that have a value; NaN where none has one."""
    mean = row_mean(x, row)
    flag = _flags_of(names, len(mean))
    if isinstance(x, SparseRows):  # tables with gaps are dense
        return mean
    for number in np.unique(flag[flag >= 0]):
        flags, some = x[row, number], flag == number
        if flags.any():
            mean[some] = row_mean(x, row[flags == 0.0])[some] if (flags == 0.0).any() else np.nan
            own = flags[flags != NO_COLUMN]
            mean[number] = own.mean() if len(own) else NO_COLUMN
    return mean


@lru_cache(8)
def _sources(columns: tuple[str, ...]) -> list[tuple[str, bool]]:
    """The name to show each column by, and whether it is a bucket of a hashed text or a place in a vector, from 0 on.

    >>> _sources(("age", "name#0", "name#1", "box#3"))
    [('age', False), ('name', True), ('name', True), ('box#3', False)]
    """
    known = set(columns)

    def source_of(column: str) -> tuple[str, bool]:
        vector = re.match(VECTOR, column)
        if vector and f"{vector[1]}[1]" in known:
            return f"{vector[1]}[]", True
        name, mark, bucket = column.rpartition("#")
        is_bucket = bool(mark) and bucket.isdecimal() and {f"{name}#0", f"{name}#1"} <= known
        return (name, True) if is_bucket else (column, False)

    return [source_of(column) for column in columns]


def _first_days(graph: Graph) -> dict[str, str]:
    """Day 0 of every column of dates, by its name, as the ingest recorded it; times of day and durations are none."""
    record = graph.info.get("ingest", {})
    types = {line["column"]: line["type"] for line in record.get("told", []) if line["table"] == "nodes"}
    days = {}
    for column in record.get("columns", []):
        kind = types.get(column["name"], "")
        if column["method"] == "date" and kind.startswith(("date", "timestamp")):
            minute = np.datetime64(round(column["origin"] * 1440), "m")
            days[column["name"]] = str(minute.astype("M8[D]") if kind.startswith("date") else minute)
    return days
