"""Ranked tables as CSV: pieces of the table in, text out, one piece at a time in memory.

Text is quoted and numbers are not; a column of categories is written as its words. Values are written as they are, so
that they can be joined with the data they came from.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from hcm_scale.base import files


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
