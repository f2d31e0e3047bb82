"""The report: everything a person should see of a run, as `report.json` and as one self-contained `report.html`.

`write_report` turns the outcome of a run into one small JSON-able dict and writes that dict, and the page made from it
alone, so a page can be made again from its report.json. Size: a few megabytes whatever the graph (the first
`table_rows` nodes, `top` explanations, the first cases). Memory: the score columns and what
`Evidence` holds.

`notebook_html` is the ranked list as a piece of HTML for a notebook: the first rows, and the report's pictures of all
scores. Its style holds within one element, so that it changes nothing else of the notebook; it has no script.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.sheets import CsvWriter
from hcm_scale.graph.store import Graph
from hcm_scale.report import digest, page, sections
from hcm_scale.report.card import card, num_rings
from hcm_scale.report.evidence import Evidence, highest_hop
from hcm_scale.report.reasons import first_by_kind
from hcm_scale.report.wording import found_text, kind_words, reasons_of
from hcm_scale.rows.evidence import open_row_evidence
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.table import RankedFile, kinds_of, plain_schema, ranked_by, read_scores

FORMAT = 14
JSON_FILE, HTML_FILE = "report.json", "report.html"
_WHOLE_COLUMNS = ("node", "p", "flagged", "evidence", "type", "y", "kind")  # read of all nodes, beside scores and ranks
_NUM_NEIGHBORS = 8  # listed per explained node
_NUM_BY_KIND = 10  # nodes shown of each kind of evidence
_LEAST_TOLD, _MOST_TOLD = 100, 300  # first nodes whose reasons stand in the table: as many as are flagged
_NUM_CHARTS = 3  # in a notebook
_FOUND = ("num_flagged", "fdr", "precision", "stability")
_JSON_TYPES = {str, int, bool, type(None)}


@dataclass(frozen=True, eq=False)
class ScoredGraph:
    """What is explained: a scores.parquet, the graph with the user's own attributes and column names, and predictions.

    `x` are the features made of the attributes, which distances are measured by.
    """

    scores: Path
    graph: Graph
    purified: Graph | None
    edge_mean: NDArray[np.float32]
    edge_var: NDArray[np.float32]
    x: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class AboutRun:
    """What a report says about a run besides its scores.

    `run` says what ran: any of name, seed, version, date, hardware, command, num_samples. `found` may have num_flagged
    and fdr (how many nodes stand out) and stability (how far two encoders agree). `labels` has `counts` and `stored`,
    pairs per class; `features` may have `columns`, what attributes became by which rule; `notes` are sentences about
    the run; `drift` is what `stages.drift.read_drift` returns; each of `stages` has name, seconds, peak_rss_bytes,
    skipped and detail.
    """

    run: Mapping[str, Any]
    found: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] | None = None
    features: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    drift: Mapping[str, Any] | None = None
    stages: Sequence[Mapping[str, Any]] = ()


def write_report(
    out: Path | str,
    scored: ScoredGraph,
    about: AboutRun,
    *,
    top: int = 10,
    table_rows: int = 20_000,
    strange_edges: Callable[[Evidence], dict[str, Any] | None] = lambda evidence: None,
    cases: Callable[[Evidence], dict[str, Any] | None] = lambda evidence: None,
) -> dict[str, Any]:
    """Writes report.json and report.html into the folder `out` and returns the report.

    `strange_edges` makes what the page shows of edges, `cases` what it shows of cases.
    """
    graph, labels = scored.graph, about.labels
    file, top = RankedFile(scored.scores), min(top, graph.num_nodes)
    first = file.slice(0, max(top, table_rows))
    ranks = (kind.rank_column for kind in kinds_of(first).values())
    table = read_scores(file.path, {*_WHOLE_COLUMNS, *ranks, *_shown_scores(first)})
    rows = open_row_evidence(file.path.parent, graph, ROW_KINDS)
    evidence = Evidence.of(graph, scored.purified, table, scored.edge_mean, scored.edge_var, scored.x, rows)
    of_cases = cases(replace(evidence, scores=file))  # whose members may stand anywhere
    evidence = replace(evidence, scores=first)  # only its nodes are explained
    findings = _findings(evidence, table, table_rows, about.found)
    hops = digest.hop_distribution(scored.edge_mean, evidence.highest_hop)
    report = {
        "format": FORMAT,
        "run": dict(about.run),
        "cases": of_cases,
        **findings,
        "edges": {"hops": hops, "purified": digest.purification(graph, scored.purified)},
        "strange_edges": strange_edges(evidence),
        "labels": None if labels is None else {k: list(labels[k]) for k in ("counts", "stored") if labels.get(k)},
        "columns": list(graph.info.get("ingest", {}).get("told", [])),
        "attributes": list((about.features or {}).get("columns", [])),
        "notes": list(about.notes),
        "drift": None if about.drift is None else dict(about.drift),
        "stages": [dict(stage) for stage in about.stages],
        "num_first": top,
        "top": _cards(evidence, top),
    }
    report = _json_safe(report)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / JSON_FILE, report, sort_keys=False, indent=None)  # the order decides colours on the page
    files.write_bytes(folder / HTML_FILE, page.render(report).encode())
    return report


def _findings(evidence: Evidence, table: pa.Table, num_rows: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the ranked table says: its first rows, those by each kind, and how scores are spread."""
    graph, first, shown = evidence.graph, evidence.scores, _shown_scores(evidence.scores)
    y, kind = (table[name].to_numpy() if name in table.column_names else None for name in ("y", "kind"))
    values = {name: table[name].to_numpy() for name in shown}
    by_kind, flagged = first_by_kind(graph, table, _NUM_BY_KIND), _flagged(table)
    num_told = max(_LEAST_TOLD, min(_MOST_TOLD, 0 if flagged is None else flagged["num"]))
    reasons = reasons_of(evidence, first["node"].slice(0, num_told).to_pylist())
    rows = sections.ranking_values(first.slice(0, num_rows), evidence.ranked_by)
    rows["reason"] = (reasons + [None] * num_rows)[: len(rows["rank"])]
    return {
        "graph": _graph_facts(evidence, y),
        "scores": shown,
        "ranked_by": evidence.ranked_by,
        "found": {name: value for name, value in facts.items() if name in _FOUND and value is not None},
        "flagged": flagged,
        "table": rows,
        "kind_words": kind_words(kinds_of(first)),
        "kinds": {k: [row | {"id": sections.cut_id(row["id"])} for row in some] for k, some in by_kind.items()},
        "distributions": {name: digest.distribution(value, y) for name, value in values.items()},
        "accuracy": None if y is None else digest.accuracy(y, values, kind),
    }


def _shown_scores(table: pa.Table) -> list[str]:
    """The scores that are drawn: the one that ranks and those of the kinds."""
    return list(dict.fromkeys([ranked_by(table), *(kind.column for kind in kinds_of(table).values())]))


def _graph_facts(evidence: Evidence, y: NDArray[Any] | None) -> dict[str, Any]:
    graph = evidence.graph
    return {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_attributes": graph.num_attributes,
        "directed": graph.directed,
        "num_isolated": graph.num_nodes - evidence.num_scored,
        "max_degree": digest.max_degree(graph),
        "num_anomalies": None if y is None else int(np.count_nonzero(y)),
    }


def _flagged(table: pa.Table) -> dict[str, Any] | None:
    """The number of flagged nodes, their largest p, and how many stand out by each kind; None if not judged."""
    if not {"p", "flagged"} <= {*table.column_names}:
        return None
    chosen = table.select(["p", "evidence"]).filter(table["flagged"])
    by_kind = dict.fromkeys(kinds_of(table), 0)
    by_kind |= {count["values"]: count["counts"] for count in pc.value_counts(chosen["evidence"]).to_pylist()}
    return {"num": chosen.num_rows, "largest_p": pc.max(chosen["p"]).as_py(), "by_kind": by_kind}


def _cards(evidence: Evidence, count: int) -> list[dict[str, Any]]:
    """The first nodes of the ranking, explained, each with its picture."""
    rings, nodes = num_rings(evidence), evidence.scores["node"].slice(0, count).to_pylist()
    return [card(evidence, node, rings, _NUM_NEIGHBORS) for node in nodes]


def stream_csv(sink: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Writes batches of a table into an open file or socket; no text in it is run by a spreadsheet (base/sheets.py)."""
    plain = plain_schema(schema)
    with CsvWriter(sink, plain) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], schema).cast(plain))


def notebook_html(
    graph: Graph, table: pa.Table, edge_mean: NDArray[np.float32], found: Mapping[str, Any], count: int
) -> str:
    """The first `count` rows of a ranked table, and how its scores and the predicted hops of edges are spread."""
    by = ranked_by(table)
    y, kind = (table[name].to_numpy() if name in table.column_names else None for name in ("y", "kind"))
    values = {by: table[by].to_numpy()}
    report = _json_safe(
        {
            "ranked_by": by,
            "scores": [by],
            "kind_words": kind_words(kinds_of(table)),
            "table": sections.ranking_values(table.slice(0, count), by),
            "distributions": {by: digest.distribution(values[by], y)},
            "accuracy": None if y is None else digest.accuracy(y, values, kind),
            "edges": {"hops": digest.hop_distribution(edge_mean, highest_hop(edge_mean)), "purified": None},
            "labels": None,
        }
    )
    shown = sections.ranking_section(report)
    columns = [column for column in shown["columns"] if not column.get("minor") or column["kind"] == "score"]
    template = page.templates().get_template("notebook.html")
    return template.render(
        graph=graph,
        found=found_text({name: found[name] for name in _FOUND if found.get(name) is not None}),
        columns=columns,
        rows=list(zip(*(shown["values"][column["key"]] for column in columns), strict=True)),
        charts=[*sections.score_charts(report), *sections.graph_charts(report)][:_NUM_CHARTS],
    )


def _json_safe(value: Any) -> Any:
    """The value in plain JSON types: seven digits, arrays and tuples as lists, numbers that JSON lacks as null.

    >>> _json_safe({"a": np.float32(0.5), 3: (float("nan"), np.int64(2)), "c": Path("x")})
    {'a': 0.5, '3': [None, 2], 'c': 'x'}
    """
    if isinstance(value, float):  # first, as most values are
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _json_safe(value.tolist())
    if isinstance(value, list | tuple):
        types = set(map(type, value))  # most columns of the table are of one
        if types == {float} and all(map(math.isfinite, value)):
            return [float(f"{item:.7g}") for item in value]
        return list(value) if types <= _JSON_TYPES else [_json_safe(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
