"""Parquet and CSV files as a stream of record batches, in the memory of a few batches.

A table is a file, a folder or a glob; its files are read in the order of their names as one table whose types are those
of the first file. What tools leave beside data under names that start with . or _ (`_SUCCESS`, `_temporary/`,
`.ipynb_checkpoints/`) is no data, unless the user spells such a name. Parquet is decoded page by page (a row group may
be larger than memory), CSV block by block. What a file unpacks to is known before from the metadata of Parquet, and for
a gzip, which has no such number that can be trusted, counted as it comes.
"""

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hcm_scale.ingest.errors import InputError, check_growth, reading

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
BATCH_ROWS = 1 << 16
_BATCH_BYTES = 1 << 26
_HIDDEN = (".", "_")
_CSV_BLOCK_BYTES = 1 << 22
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_CSV_NULLS = ["", "NA", "N/A", "null", "NULL"]  # not NaN: that is a value, and a fault


@dataclass(frozen=True)
class TableFiles:
    """The files of one table; `casts` are column types that the caller knows better than the file."""

    paths: tuple[Path, ...]
    schema: pa.Schema
    max_bytes: int
    casts: dict[str, pa.DataType] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0].name}{more}"

    def check_columns(self, option: str, names: Sequence[str]) -> None:
        """Refuses names that the table does not have."""
        for name in names:
            if name not in self.schema.names:
                raise InputError(f"{option}={name!r} is not a column of {self.origin}; it has {self.schema.names}")

    def with_casts(self, casts: dict[str, pa.DataType]) -> "TableFiles":
        """The same files, some columns read as other types."""
        return replace(self, casts={**self.casts, **casts})

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Streams the named columns, in order."""
        types = self._types(names) if _is_parquet(self.paths[0]) else self._csv_types(names)
        read = _parquet if _is_parquet(self.paths[0]) else _csv
        for path in self.paths:
            yield from read(path, names, types, self.max_bytes)

    def _types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """The types of the first file for all; a column of nulls there may become any."""
        stored = {name: _decoded(self.schema.field(name).type) for name in names}
        return {**{name: kind for name, kind in stored.items() if not pa.types.is_null(kind)}, **self.casts}

    def _csv_types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Types for all blocks of all files: a number is a double, as the first block cannot know the others."""
        types = {name: self.schema.field(name).type for name in names}
        wide = {name: pa.float64() for name, kind in types.items() if pa.types.is_integer(kind)}
        text = {name: pa.string() for name, kind in types.items() if pa.types.is_null(kind)}
        return {**types, **wide, **text, **self.casts}


def find_table(option: str, where: str | Path, max_bytes: int) -> TableFiles:
    """The table at a file, folder or glob; `option` is its name in messages."""
    paths = _find(option, str(where))
    first = paths[0]
    with reading(f"{first} cannot be read as {'Parquet' if _is_parquet(first) else 'CSV'}"):
        schema = pq.read_schema(first) if _is_parquet(first) else _open_csv(first, None, {}).schema
        names = schema.names
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{first.name} has {count} columns named {name!r}; legal is one of a name")
    return TableFiles(paths, schema, max_bytes)


def files_at(where: str) -> list[Path]:
    """All files at a file, a folder or a glob, sorted; hidden ones only where `where` spells them."""
    path = Path(where)
    if path.is_file():
        return [path]
    found = path.rglob("*") if path.is_dir() else map(Path, glob.glob(where, recursive=True))  # noqa: PTH207
    return sorted(p for p in found if p.is_file() and not _is_hidden(p, path))


def _is_hidden(path: Path, named: Path) -> bool:
    """Whether a part of the path starts with . or _ and no part of `named`, which may hold wildcards, says so.

    >>> _is_hidden(Path("_in/_tmp/a.csv"), Path("_in")), _is_hidden(Path("_in/_tmp/a.csv"), Path("_in/_t*/*"))
    (True, False)
    """
    spelled = [part for part in named.parts if part.startswith(_HIDDEN)]
    return any(
        part.startswith(_HIDDEN) and not any(part == said or fnmatchcase(part, said) for said in spelled)
        for part in path.parts
    )


def _find(option: str, where: str) -> tuple[Path, ...]:
    found = files_at(where)
    if Path(where).is_dir():
        found = [p for p in found if p.name.endswith(PARQUET + CSV)]
    if not found:
        raise InputError(f"{option}={where!r} names no Parquet or CSV file; legal are a file, a folder or a glob")
    kinds = {next((s for s in PARQUET + CSV if p.name.endswith(s)), None) for p in found}
    if None in kinds or len({kind in PARQUET for kind in kinds}) > 1:
        raise InputError(
            f"{option}={where!r} must name files of one kind, {PARQUET} or {CSV}; found {found[0].name} ..."
        )
    return tuple(found)


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _parquet(
    path: Path, names: Sequence[str], types: dict[str, pa.DataType], max_bytes: int
) -> Iterator[pa.RecordBatch]:
    what, row = f"{path.name} cannot be read as Parquet", 0
    with reading(what), pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        held = Counter(file.schema_arrow.names)
        for name in names:
            if held[name] != 1:
                raise InputError(f"{path.name} has {held[name]} columns {name!r}, legal is one; it has {list(held)}")
        check_growth(path.name, path.stat().st_size, _unpacked_bytes(file.metadata, names), max_bytes)
        rows = _batch_rows(path, file.metadata, names, max_bytes)
        for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
            arrays = [_checked(batch.column(n), types.get(n), f"{path.name} column {n!r}", row) for n in names]
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
            with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
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


def _checked(column: pa.Array, kind: pa.DataType | None, where: str, first_row: int) -> pa.Array:
    """The column without dictionary encoding as `kind`; refused where it cannot be, or where a text is not UTF-8."""
    rows = f"{where}, rows {first_row:,} .. {first_row + len(column) - 1:,}"
    with reading(f"{rows}, cannot be read as {kind or column.type}"):
        array = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        array = array if kind is None else array.cast(kind)
        array.validate(full=True)
    return array


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _csv(path: Path, names: Sequence[str], types: dict[str, pa.DataType], max_bytes: int) -> Iterator[pa.RecordBatch]:
    advice = "graph.id_type=text and graph.categorical=[...] read a column as text"
    what = f"{path.name} cannot be read with the types of the start of the first file ({advice})"
    packed = path.name.endswith(".gz")
    with reading(what), _open_csv(path, names, types) as reader:
        for number, batch in enumerate(reader):
            if packed:  # a batch is a block of text
                check_growth(path.name, path.stat().st_size, number * _CSV_BLOCK_BYTES, max_bytes)
            yield batch


def _open_csv(path: Path, names: Sequence[str] | None, types: dict[str, pa.DataType]) -> pacsv.CSVStreamingReader:
    tabs = path.name.endswith((".tsv", ".tsv.gz"))
    return pacsv.open_csv(
        path,
        read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        parse_options=pacsv.ParseOptions(delimiter="\t" if tabs else ","),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(names or ()),
            strings_can_be_null=True,
            null_values=_CSV_NULLS,
            quoted_strings_can_be_null=False,
        ),
    )
