"""The ranked list as a piece of HTML that a notebook shows: the first rows, and the report's pictures of all scores.

Its style is its own and holds within one element, so that it changes nothing else of the notebook; it has no script.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.graph.store import Graph
from hcm_scale.report import digest, groups, page, reasons, sections
from hcm_scale.report.card import card, num_rings
from hcm_scale.report.evidence import Evidence, ranked_by
from hcm_scale.report.explain import score_names
from hcm_scale.report.wording import found_text
from hcm_scale.score.evidence import KINDS
from hcm_scale.score.table import kind_rank, read_scores

# ----------------------------------------------------------------------------
# Ranked tables as CSV: pieces of the table in, text out, one piece at a time in memory.
#
# Text is quoted and numbers are not; a column of categories is written as its words. Values are written as they are,
# so that they can be joined with the data they came from.


def stream_csv(sink: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Writes pieces of a table with this schema into an open file or socket."""
    plain = pa.schema([_plain(field) for field in schema])
    with pyarrow.csv.CSVWriter(sink, plain) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], schema).cast(plain))


def write_csv(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Writes a file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as sink:
            stream_csv(sink, batches, schema)
        files.sync_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    files.sync_folder(path.parent)


def _plain(field: pa.Field) -> pa.Field:
    """The same column without a dictionary."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


# ----------------------------------------------------------------------------
# The first rows of a ranked table on disk, and all of them piece by piece: the whole may be large.
#
# A table of a hundred million nodes is 15 GB, and more where ids are text.


_ROWS = 1 << 16  # of a piece


def read_first(path: Path, count: int) -> pa.Table:
    """The first rows, all columns."""
    with _open_rows(path) as file:
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        num_groups = min(len(ends), int(np.searchsorted(ends, count)) + 1)
        return file.read_row_groups(range(num_groups)).slice(0, count)


def pieces(scores: pa.Table | Path) -> Iterator[pa.RecordBatch]:
    """All rows, all columns, piece by piece."""
    if isinstance(scores, pa.Table):
        yield from scores.to_batches(max_chunksize=_ROWS)
    else:
        with _open_rows(scores) as file:
            yield from file.iter_batches(_ROWS)


def _open_rows(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, page_checksum_verification=True)


# ----------------------------------------------------------------------------
# The report: everything a person should see of a run, as `report.json` and as one self-contained `report.html`.
#
# `gather` turns the outcome of a run into one small JSON-able dict; `write_report` writes that dict, and the page
# made from it alone, so a page can be made again from its report.json. Size: a few megabytes whatever the graph (the
# first `table_rows` nodes, `top` explanations and those of their groups, thinned curves). Memory: the score columns
# and what `Evidence` holds. Where asked for, `scores.csv` beside them is the whole ranked table as text.


FORMAT = 6
JSON_FILE, HTML_FILE, CSV_FILE = "report.json", "report.html", "scores.csv"
_WHOLE = ("node", "p", "flagged", "evidence", "y", "kind")
_NEIGHBORS = 8  # listed per explained node
_PLAIN = {str, int, bool, type(None)}
_HEAD = 10  # nodes shown of each kind of evidence
_GROUP_CARDS = 20  # explained beyond the first ones: the rest of their groups
FOUND = ("num_flagged", "fdr", "stability")


def write_report(
    out: Path | str,
    *,
    scores: pa.Table | Path | str,
    graph: Graph,
    purified: Graph | None,
    edge_mean: NDArray[np.float32],
    edge_var: NDArray[np.float32],
    x: NDArray[np.float32] | None = None,
    top: int = 10,
    table_rows: int = 20_000,
    csv: bool = False,
    **told: Any,
) -> dict[str, Any]:
    """Writes report.json and report.html into the folder `out` and returns the report, as `gather` makes it of `told`.

    `graph` carries the user's own attributes and column names, `x` are the features that they became, by which
    distances are told. `csv` writes the whole table to scores.csv too.
    """
    scores = scores if isinstance(scores, pa.Table) else Path(scores)
    whole, first = _read(scores, max(top, table_rows, groups.MOST))
    evidence = Evidence.of(graph, purified, whole, edge_mean, edge_var, x)
    evidence = replace(evidence, scores=first)  # only its nodes are explained
    report = gather(evidence, whole, **told, top=top, table_rows=table_rows)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / JSON_FILE, report, sort_keys=False, indent=None)  # the order is the page's: its colours
    files.write_bytes(folder / HTML_FILE, page.render(report).encode())
    if csv:
        write_csv(folder / CSV_FILE, pieces(scores), first.schema)
    return report


def _read(scores: pa.Table | Path, count: int) -> tuple[pa.Table, pa.Table]:
    """The columns of a ranked table that the report goes through, and all columns of the first `count` rows."""
    if isinstance(scores, pa.Table):
        return scores, scores
    first = read_first(scores, count)
    ranks = [kind_rank(kind) for kind in KINDS]
    return read_scores(scores, {*_WHOLE, *ranks, *shown_scores(first)}), first


def gather(
    evidence: Evidence,
    table: pa.Table,
    *,
    run: Mapping[str, Any],
    found: Mapping[str, Any] | None = None,
    records: Sequence[Mapping[str, Any]] = (),
    labels: Mapping[str, Any] | None = None,
    features: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    stages: Sequence[Mapping[str, Any]] = (),
    top: int = 10,
    table_rows: int = 20_000,
) -> dict[str, Any]:
    """The report as a JSON-able dict; `table` has all rows, `evidence.scores` at least those that are shown.

    `run` says what ran: any of name, seed, version, date, hardware, command, num_samples. `records` are the lines of
    metrics.jsonl; `labels` has `counts` and `stored`, pairs per class; `features` may have `columns`, what attributes
    became by which rule; `notes` are sentences about the run as a whole; each of `stages` has name, seconds,
    peak_rss_bytes, skipped and detail. `found` may have num_flagged and fdr (how many nodes stand out) and stability
    (how far two encoders agree).
    """
    if top < 0:
        raise ValueError(f"top={top} must be at least 0")
    if table_rows < 1:
        raise ValueError(f"table_rows={table_rows} must be at least 1")
    graph, first = evidence.graph, evidence.scores
    y, kind = (table[name].to_numpy() if name in table.column_names else None for name in ("y", "kind"))
    values = {name: table[name].to_numpy() for name in shown_scores(first)}
    listed = sections.listed_scores(list(values), evidence.ranked_by, reasons.has_kinds(table))
    num_grouped = groups.num_first(table)
    found_groups = groups.groups(graph, first.slice(0, num_grouped))
    report = {
        "format": FORMAT,
        "run": dict(run),
        "graph": _graph_facts(evidence, y),
        "scores": list(values),
        "ranked_by": evidence.ranked_by,
        "found": {name: value for name, value in (found or {}).items() if name in FOUND and value is not None},
        "flagged": _flagged(table),
        "table": sections.ranking_values(first.slice(0, table_rows), listed),
        "kinds": _heads(graph, table),
        "groups": found_groups,
        "num_grouped": num_grouped,
        "distributions": {name: digest.distribution(value, y) for name, value in values.items()},
        "accuracy": None if y is None else digest.accuracy(y, values, kind),
        "edges": {
            "hops": digest.hop_distribution(evidence.edge_mean),
            "purified": digest.purification(graph, evidence.purified),
        },
        "training": digest.training(records),
        "labels": None if labels is None else {k: list(labels[k]) for k in ("counts", "stored") if labels.get(k)},
        "columns": list(graph.info.get("ingest", {}).get("told", [])),
        "attributes": list((features or {}).get("columns", [])),
        "notes": list(notes),
        "stages": [dict(stage) for stage in stages],
        "num_first": min(top, graph.num_nodes),
        "top": _top(evidence, min(top, graph.num_nodes), found_groups),
    }
    return json_safe(report)


def shown_scores(table: pa.Table) -> list[str]:
    """The scores that are drawn: the one that ranks and those of the kinds where they are kept apart, else all."""
    if not reasons.has_kinds(table):
        return score_names(table)
    return list(dict.fromkeys([ranked_by(table), *KINDS.values()]))


def _heads(graph: Graph, table: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """The first nodes by each kind of evidence."""
    found = reasons.first_by_kind(graph, table, _HEAD)
    return {kind: [row | {"id": sections.cut_id(row["id"])} for row in rows] for kind, rows in found.items()}


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
    """Of the flagged nodes: how many, the largest p, and how many by each kind; None where nobody judged."""
    if "flagged" not in table.column_names:
        return None
    chosen = table.select([name for name in ("p", "evidence") if name in table.column_names]).filter(table["flagged"])
    by_kind = dict.fromkeys(KINDS, 0)
    if reasons.has_kinds(table):
        by_kind |= {count["values"]: count["counts"] for count in pc.value_counts(chosen["evidence"]).to_pylist()}
    return {"num": chosen.num_rows, "largest_p": pc.max(chosen["p"]).as_py(), "by_kind": by_kind}


def _top(evidence: Evidence, count: int, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first nodes of the ranking and the rest of their groups, explained, each with its picture."""
    ranks = set(range(1, count + 1))
    for group in found:
        members = [member["rank"] for member in group["members"]]
        if members[0] <= count:
            ranks |= set(members)
    rings = num_rings(evidence)
    nodes = evidence.scores["node"].slice(0, max(ranks, default=0)).to_numpy()
    return [card(evidence, int(nodes[rank - 1]), rings, _NEIGHBORS) for rank in sorted(ranks)[: count + _GROUP_CARDS]]


def json_safe(value: Any) -> Any:
    """The same value in plain JSON types: arrays and tuples as lists, numbers that are none as null.

    >>> json_safe({"a": np.float32(0.5), "b": (float("nan"), np.int64(2)), "c": Path("x")})
    {'a': 0.5, 'b': [None, 2], 'c': 'x'}
    """
    if isinstance(value, float):  # first, as most values are
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return json_safe(value.tolist())
    if isinstance(value, list | tuple):
        plain = set(map(type, value)) <= _PLAIN  # as most columns of the table are
        return list(value) if plain else [json_safe(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


_PICTURED = 3  # charts


def notebook_html(
    graph: Graph, table: pa.Table, edge_mean: NDArray[np.float32], found: Mapping[str, Any], count: int
) -> str:
    """The first `count` rows of a ranked table, and how its scores and the predicted hops of edges are spread."""
    by = table.schema.metadata[b"rank_by"].decode()
    y, kind = (table[name].to_numpy() if name in table.column_names else None for name in ("y", "kind"))
    values = {by: table[by].to_numpy()}
    report = json_safe(
        {
            "ranked_by": by,
            "scores": [by],
            "table": sections.ranking_values(table.slice(0, count), [by]),
            "distributions": {by: digest.distribution(values[by], y)},
            "accuracy": None if y is None else digest.accuracy(y, values, kind),
            "edges": {"hops": digest.hop_distribution(edge_mean), "purified": None},
            "labels": None,
        }
    )
    charts = [*sections.score_charts(report), *sections.graph_charts(report)][:_PICTURED]
    return (
        page.templates()
        .get_template("notebook.html")
        .render(
            graph=graph,
            found=found_text({name: found[name] for name in FOUND if found.get(name) is not None}),
            **_rows(sections.ranking_section(report)),
            charts=charts,
        )
    )


def _rows(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a narrow table has room for, and its rows."""
    columns = [column for column in shown["columns"] if not column.get("minor") or column["kind"] == "score"]
    return {"columns": columns, "rows": list(zip(*(shown["values"][column["key"]] for column in columns), strict=True))}
