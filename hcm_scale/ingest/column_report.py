"""What became of every column of a user's tables, a line each: how it is used, or why it is not.

The lines are kept in the graph's manifest (`info.ingest.told`), written to the log and shown in the report. Of columns
that are used they have the number of distinct values and of gaps; others are not read, so nothing is known of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hcm_scale.base.console import shorten
from hcm_scale.ingest.encode import CategoryEncoding, EmptyEncoding, Encoding, is_date, is_number, is_text
from hcm_scale.ingest.text_formats import FORMAT_EXAMPLES, MAY_BE_THOUSANDS

_SHOWN = 60
_FEWEST_IDS, _ID_SHARE = 100, 0.95  # distinct whole numbers, and their share of the rows, that may well be ids
ColumnCounts = tuple[str, int | None, int | None]  # use, distinct values, gaps
_WEIGHT = "weight of edges, added up over the rows of two nodes: a heavier neighbour counts for more"
_HEADER = ("table", "column", "type", "distinct", "gaps", "use")


@dataclass(frozen=True)
class ColumnLine:
    """One column of a table of the user's; None: not counted, since the column is not read."""

    table: str
    column: str
    type: str
    use: str
    distinct: int | None = None
    gaps: int | None = None


def edge_column_lines(
    schema: pa.Schema,
    ends: Mapping[str, tuple[int, int]],
    typed: Mapping[str, tuple[int, int]],
    directed: bool,
    weight: str | None = None,
) -> list[ColumnLine]:
    """The columns of an edge table; of those that name nodes, source first, and types: distinct values and gaps.

    `weight` is the column of weights, if there is one.
    """
    uses = dict.fromkeys(typed, "the type of each edge, told in explanations; it decides no score")
    uses |= dict.fromkeys(ends, "an end of each edge; which end is not kept: graph.directed=true keeps it")
    if directed:
        uses |= dict(zip(ends, ("where each edge starts", "where each edge ends"), strict=False))
    told: dict[str, ColumnCounts] = {name: (uses[name], *counts) for name, counts in {**typed, **ends}.items()}
    if weight is not None:
        told[weight] = _WEIGHT, None, 0
    return [
        ColumnLine("edges", field.name, str(field.type), *told.get(field.name, (_unused_of_edges(field), None, None)))
        for field in schema
    ]


def _unused_of_edges(field: pa.Field) -> str:
    if is_date(field.type):
        return "not used: edges have no time here; select the rows of the time that you mean"
    if is_text(field.type):
        return "not used: edges have no attributes here; graph.type_column takes one with few values as their type"
    if is_number(field.type):
        return f"not used: graph.weight_column={field.name} takes it as the weight of edges"
    return "not used: edges have no attributes here; sums over a node's edges can be node columns"


def node_column_lines(
    schema: pa.Schema,
    known: Mapping[str, ColumnCounts],
    encodings: Sequence[Encoding],
    excluded: Sequence[str],
    *,
    num_rows: int,
    trained: bool = False,
) -> list[ColumnLine]:
    """The columns of a node table of `num_rows`; `known` are no attributes, `excluded` is what graph.exclude names.

    Encodings of a trained graph (`trained`) have counts of that graph, which are not told here.
    """
    told: dict[str, ColumnCounts] = dict.fromkeys(excluded, ("not used: graph.exclude names it", None, None))
    for code in encodings:
        if code.name in schema.names:
            counts = (None, None) if trained else (code.distinct, code.gaps)
            told[code.name] = _use(code, schema.field(code.name).type, None if trained else num_rows), *counts
    told.update(known)
    why = "the trained graph has no such column" if trained else "graph.include does not name it"
    rest: ColumnCounts = (f"not used: {why}", None, None)
    return [ColumnLine("nodes", field.name, str(field.type), *told.get(field.name, rest)) for field in schema]


def with_file_notes(
    lines: Sequence[ColumnLine], index: Sequence[str], notes: Mapping[str, str], later: Mapping[str, tuple[str, str]]
) -> list[ColumnLine]:
    """The lines of a table, with what its files say of columns.

    `index` are those that pandas wrote to number the rows, `notes` say how columns are written; `later` has type and
    file of those that the first file has not.
    """
    told = []
    for line in lines:
        if line.column in index:
            use = "not used: the index that pandas wrote beside the columns"
            line = replace(line, column=line.column or "(no name)", use=use)
        if note := notes.get(line.column):
            use = line.use if note == MAY_BE_THOUSANDS else line.use.replace("a number, as it is", "a number")
            line = replace(line, use=f"{use}; {note}")
        told.append(line)
    for name, (kind, file) in later.items():
        told.append(ColumnLine(lines[0].table, name, kind, f"not used: only in {file}, not in the first file"))
    return told


def _use(encoding: Encoding, kind: pa.DataType, num_rows: int | None) -> str:
    """What an attribute column became, in words; of how many rows, if they are those that were counted."""
    flag = ", and a flag where there is a gap" if encoding.nulls else ""
    if isinstance(encoding, EmptyEncoding):
        if not encoding.distinct:
            return "not used: it has no value"
        what = _written(encoding, num_rows) or "nearly every row has a value of its own (a name, free text)"
        return f"not used: {what}; graph.categorical=[{encoding.name}] takes it, hashed"
    if isinstance(encoding, CategoryEncoding):
        hint = f"; {written}" if (written := _written(encoding, num_rows)) else ""
        if encoding.buckets:
            return f"{encoding.buckets} 0/1 columns, by a hash of the text{flag}{hint}"
        return f"a 0/1 column for each value{flag}{hint if encoding.mostly else ''}"
    if encoding.method == "date":
        first = np.datetime64(round(encoding.origin * 1440), "m").astype("M8[D]" if pa.types.is_date(kind) else "M8[m]")
        since = "less the shortest" if pa.types.is_time(kind) or pa.types.is_duration(kind) else f"since {first}"
        return f"a number: days {since}{flag}"
    hint = ""
    if num_rows and pa.types.is_integer(kind) and encoding.distinct >= max(_FEWEST_IDS, _ID_SHARE * num_rows):
        hint = f"; if it is an id, graph.exclude=[{encoding.name}] leaves it out"
    return f"a number, as it is{flag}{hint}"


def _written(encoding: CategoryEncoding | EmptyEncoding, num_rows: int | None) -> str:
    """What the text looks like that numbers and dates are not read as; what was counted only if these rows were."""
    if looks := encoding.looks:
        return f"text that looks like {looks}, which are read where they are written as {FORMAT_EXAMPLES[looks]}"
    remedy = f"write numbers as {FORMAT_EXAMPLES['numbers']}, gaps as nothing"
    return f"{encoding.mostly}: {remedy}" if encoding.mostly and num_rows else ""


def lines_as_json(lines: Sequence[ColumnLine]) -> list[dict[str, Any]]:
    """The lines for the manifest."""
    return [asdict(line) for line in lines]


def lines_as_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The lines of a manifest as an aligned table; of very many columns the first.

    >>> print(lines_as_text([asdict(ColumnLine("nodes", "age", "int64", "a number, as it is", 80, 2))]))
    table  column  type   distinct  gaps  use
    nodes  age     int64  80        2     a number, as it is
    """
    rows = [_HEADER, *(tuple(_cell(line[name]) for name in _HEADER) for line in lines[:_SHOWN])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    shown = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    more = [f"and {len(lines) - _SHOWN:,} more columns, told in graph/manifest.json"] if len(lines) > _SHOWN else []
    return "\n".join([*shown, *more]) if lines else ""


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else shorten(str(value))
