"""Tables in memory, in the place of files: an Arrow table that streams as a table of files does.

`as_arrow` takes what has an Arrow form: pandas, Polars, Arrow itself, whatever has `__arrow_c_stream__`. Nothing is
written to disk: the table is read as often as files would be, its types checked in the same way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hcm_scale.ingest.batches import TableFiles, find_table
from hcm_scale.ingest.errors import InputError, reading
from hcm_scale.ingest.forms import with_forms
from hcm_scale.ingest.parquet import BATCH_ROWS, checked

Where: TypeAlias = str | Path | pa.Table
_SHOWN = 5  # repeated names in a message
_NAMES = {"graph.path": "the edge table", "graph.nodes": "the node table"}


@dataclass(frozen=True)
class ArrowTable(TableFiles):
    """One table in memory; `name` stands for the file in messages."""

    table: pa.Table = field(default_factory=lambda: pa.table({}))
    name: str = "the table"

    @property
    def origin(self) -> str:
        return self.name

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Streams the named columns, in order."""
        types, row = self._types(names) | dict.fromkeys(self.forms, pa.large_string()), 0
        for batch in self.table.select(list(names)).to_batches(BATCH_ROWS):
            arrays = [checked(batch[name], types.get(name), f"{self.name} column {name!r}", row) for name in names]
            row += len(batch)
            yield with_forms(pa.RecordBatch.from_arrays(arrays, list(names)), self.forms)


def open_table(option: str, where: Where, max_bytes: int) -> TableFiles:
    """The table that an option names: in memory, or at a file, folder or glob."""
    if not isinstance(where, pa.Table):
        return find_table(option, where, max_bytes)
    check_distinct(where.schema.names, _NAMES[option])
    return ArrowTable((), where.schema, max_bytes, table=where, name=_NAMES[option])


def check_distinct(names: Iterable[Any], what: str) -> None:
    """Refuses names of columns that are there more than once; `what` has them."""
    repeated = [f"{count} columns named {name!r}" for name, count in Counter(names).items() if count > 1]
    if repeated:
        told = ", ".join(repeated[:_SHOWN]) + (f" and {len(repeated) - _SHOWN:,} more" if repeated[_SHOWN:] else "")
        raise InputError(f"{what} has {told}; legal is one of a name: rename or drop the others")


def is_table(data: Any) -> bool:
    """Whether `as_arrow` takes it."""
    return isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__") or _is_pandas(data)


def as_arrow(data: Any, what: str) -> pa.Table:
    """The table as Arrow; a pandas index that has a name is a column, one without is none."""
    with reading(f"{what} cannot be read as an Arrow table"):
        if isinstance(data, pa.Table):
            return data
        if not _is_pandas(data):
            table = pa.table(data)
            return table.cast(pa.schema([field.with_type(_without_views(field.type)) for field in table.schema]))
        has_names = all(name is not None for name in data.index.names)
        check_distinct(getattr(data, "columns", ()), what)  # a Series has none
        return pa.Table.from_pandas(data.reset_index() if has_names else data, preserve_index=False)


def index_of(data: Any) -> Any:
    """The index of a pandas table or Series; None where there is none, or only the plain one, 0 .. n - 1."""
    index: Any = getattr(data, "index", None)
    if not hasattr(index, "names"):
        return None
    is_plain = index.dtype.kind in "iu" and np.array_equal(index.to_numpy(), np.arange(len(index)))
    return None if is_plain else index


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Text as Polars hands it over, views of text, in the form that all of Arrow's functions know."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _is_pandas(data: Any) -> bool:
    return hasattr(data, "reset_index") and hasattr(data, "dtypes")
