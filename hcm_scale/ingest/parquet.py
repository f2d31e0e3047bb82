"""One Parquet file as a stream of record batches of checked columns, in the memory of a few batches.

What the columns unpack to is known before: from the metadata, and where a dictionary holds long texts, from how often
each is meant.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hcm_scale.ingest.errors import InputError, check_growth, reading, shown_names

BATCH_ROWS = 1 << 16
_BATCH_BYTES = 1 << 26
_CHECKED: Any = {"pre_buffer": False, "page_checksum_verification": True}  # where a file has checksums
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def parquet_batches(
    path: Path, shown: str, names: Sequence[str], types: dict[str, pa.DataType], max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Streams the named columns, cast to `types`; `shown` is what the file is called in messages."""
    what, row = f"{shown} cannot be read as Parquet", 0
    with reading(what), pq.ParquetFile(path, buffer_size=1 << 20, **_CHECKED) as file:
        held = Counter(file.schema_arrow.names)
        for name in names:
            if held[name] != 1:
                raise InputError(
                    f"{shown} has {held[name]} columns {name!r}, legal is one, as in the first file (an attribute is "
                    f"left out of all by graph.exclude=[{name}]); it has {shown_names(list(held))}"
                )
        check_growth(shown, path.stat().st_size, _unpacked_bytes(file.metadata, names), max_bytes)
        rows = _batch_rows(path, file.metadata, names, max_bytes)
        for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
            arrays = [checked(batch.column(n), types.get(n), f"{shown} column {n!r}", row) for n in names]
            row += len(batch)
            yield pa.RecordBatch.from_arrays(arrays, list(names))


def _batch_rows(path: Path, metadata: pq.FileMetaData, names: Sequence[str], max_bytes: int) -> int:
    """Rows a batch: fewer where a dictionary holds texts so long that a usual batch of them would fill the memory.

    A text of a megabyte may be kept once and meant by every row. Of each row group the first rows are read as positions
    in the dictionary, and where its longest text could make too much of all rows, the others too, to know what they do.
    """
    longest, total = 1, 0
    for group in range(metadata.num_row_groups):
        for column in map(metadata.row_group(group).column, range(metadata.row_group(group).num_columns)):
            name = column.path_in_schema
            if name not in names or not column.has_dictionary_page or column.physical_type != "BYTE_ARRAY":
                continue
            with pq.ParquetFile(path, read_dictionary=[name], **_CHECKED) as file:
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                    if not pa.types.is_dictionary(batch.column(0).type):
                        break
                    lengths = pc.binary_length(batch.column(0).dictionary).cast(pa.int64())
                    longest = max(longest, pc.max(lengths).as_py() or 0)
                    if longest * metadata.num_rows <= max_bytes:
                        break
                    total += pc.sum(lengths.take(batch.column(0).indices)).as_py() or 0
    check_growth(path.name, path.stat().st_size, total, max_bytes)
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // longest))


def _unpacked_bytes(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """At least what the named columns take in memory: their encoded bytes, and a byte a value."""
    total, wanted = 0, set(names)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.split(".")[0] in wanted:
                width = _WIDTHS.get(column.physical_type, 1)
                total += max(column.total_uncompressed_size, width * max(column.num_values, group.num_rows))
    return total


def checked(column: pa.Array, kind: pa.DataType | None, where: str, first_row: int) -> pa.Array:
    """The column without dictionary encoding as `kind`; refused where it cannot be, or where a text is not UTF-8."""
    rows = f"{where}, rows {first_row:,} .. {first_row + len(column) - 1:,} (from 0)"
    with reading(f"{rows}, cannot be read as {kind or column.type}"):
        array = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        array = nan_as_gap(array) if kind is None else nan_as_gap(array).cast(kind)
        array.validate(full=True)
    return array


def nan_as_gap(column: pa.Array) -> pa.Array:
    """The column with nulls for NaN, which is how tools without nulls write a gap; infinities stay.

    >>> nan_as_gap(pa.array([1.0, float("nan")])).to_pylist()
    [1.0, None]
    """
    is_nan = pc.is_nan(column) if pa.types.is_floating(column.type) else None
    return pc.if_else(is_nan, None, column) if is_nan is not None and pc.any(is_nan).as_py() else column
