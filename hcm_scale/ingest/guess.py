"""Which column is what, where nobody said so: the two ends of an edge, and the id of a node.

Ends are the columns `source` and `target` where there are such, else the first two. The id is the column `id`, else one
named as an end is, else the first column of distinct values, text or whole numbers, among which the first ends are.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.ingest.batches import TableFiles
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.memory import open_table

log = logging.getLogger(__name__)
COLUMNS = ("source_column", "target_column", "id_column")
_FIRST = 1_000  # ends that are looked for


def guess_columns(tables: tuple[Any, Any], known: dict[str, str], max_bytes: int, prefix: str = "") -> dict[str, str]:
    """The options that name columns of (edges, nodes or None): `known`, and for the others a guess.

    A table is a path or an Arrow table. `prefix` stands before the names of options in messages.
    """
    edges = open_table("graph.path", tables[0], max_bytes)
    ends = guess_ends(edges, known.get("source_column"), known.get("target_column"))
    found = known | {"source_column": ends[0], "target_column": ends[1]}
    if tables[1] is not None and "id_column" not in known:
        for name, end in zip(("source_column", "target_column"), ends, strict=True):
            edges.check_columns(prefix + name, [end])
        found["id_column"] = guess_id(open_table("graph.nodes", tables[1], max_bytes), edges, ends)
    return found


def tell(guessed: dict[str, str]) -> None:
    """Says in the log what was guessed, by option."""
    if guessed:
        named = ", ".join(f"graph.{name}={value}" for name, value in guessed.items())
        log.info("guessed from the tables: %s (say so where it is another column)", named)


def guess_ends(edges: TableFiles, source: str | None, target: str | None) -> tuple[str, str]:
    """The columns of an edge table that hold the two ends; those that are known stay."""
    names = edges.schema.names
    if source is None and target is None and {"source", "target"} <= set(names):
        return "source", "target"
    left = iter(name for name in names if name not in (source, target))
    try:
        return source or next(left), target or next(left)
    except StopIteration:
        raise InputError(
            f"{edges.origin} has the columns {names}; legal are two or more, the ends of an edge"
        ) from None


def guess_id(nodes: TableFiles, edges: TableFiles, ends: tuple[str, str]) -> str:
    """The column of a node table that holds what edges call their ends; InputError where none does."""
    names = nodes.schema.names
    for name in ("id", *ends):
        if name in names:
            return name
    kind = _kind(edges, ends[0])
    if kind is not None:
        wanted = next(_typed(edges, ends[0]), pa.array([], kind)).slice(0, _FIRST).unique().drop_null()
        for name in names:
            if _kind(nodes, name) == kind and _holds(nodes, name, wanted):
                return name
    raise InputError(
        f"id_column is not given, and no column of {nodes.origin} holds the ids in {ends[0]!r} of {edges.origin}; "
        f"it has {names}"
    )


def _holds(nodes: TableFiles, name: str, wanted: pa.Array) -> bool:
    """Whether a column has every wanted value, and none twice."""
    column = pa.chunked_array(_typed(nodes, name), wanted.type)
    return bool(pc.all(pc.is_in(wanted, column)).as_py()) and pc.count_distinct(column).as_py() == len(column)


def _typed(table: TableFiles, name: str) -> Iterator[pa.Array]:
    """A column in batches of the type that its ids have."""
    return (batch.column(0) for batch in table.with_casts({name: _kind(table, name)}).batches([name]))


def _kind(table: TableFiles, name: str) -> pa.DataType | None:
    """The type that ids in this column have; None where it can hold none."""
    stored = table.schema.field(name).type
    kind = stored.value_type if pa.types.is_dictionary(stored) else stored
    if is_text(kind) and not pa.types.is_null(kind):
        return pa.large_string()
    return pa.int64() if pa.types.is_integer(kind) else None
