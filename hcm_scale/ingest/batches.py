"""Parquet and CSV files as a stream of record batches, in the memory of a few batches.

A table is a file, a folder or a glob; its files are read in the order of their names as one table whose types are those
of the first file. What tools leave beside data under names that start with . or _ (`_SUCCESS`, `_temporary/`,
`.ipynb_checkpoints/`) is no data, unless the user spells such a name. Parquet is decoded page by page (a row group may
be larger than memory), CSV block by block.
"""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
BATCH_ROWS = 1 << 16
_HIDDEN = (".", "_")
_CSV_BLOCK_BYTES = 1 << 22
_CSV_NULLS = ["", "NA", "N/A", "null", "NULL"]  # not NaN: that is a value, and a fault


@dataclass(frozen=True)
class TableFiles:
    """The files of one table; `casts` are column types that the caller knows better than the file."""

    paths: tuple[Path, ...]
    schema: pa.Schema
    casts: dict[str, pa.DataType] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0].name}{more}"

    def check_columns(self, option: str, names: Sequence[str]) -> None:
        """Refuses names that the table does not have."""
        for name in names:
            if name not in self.schema.names:
                raise ValueError(f"{option}={name!r} is not a column of {self.origin}; it has {self.schema.names}")

    def with_casts(self, casts: dict[str, pa.DataType]) -> "TableFiles":
        """The same files, some columns read as other types."""
        return replace(self, casts={**self.casts, **casts})

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Streams the named columns, in order."""
        for path in self.paths:
            yield from (
                _parquet(path, names, self.casts) if _is_parquet(path) else _csv(path, names, self._csv_types(names))
            )

    def _csv_types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Types for all blocks of all files: a number is a double, as the first block cannot know the others."""
        types = {name: self.schema.field(name).type for name in names}
        wide = {name: pa.float64() for name, kind in types.items() if pa.types.is_integer(kind)}
        text = {name: pa.string() for name, kind in types.items() if pa.types.is_null(kind)}
        return {**types, **wide, **text, **self.casts}


def find_table(option: str, where: str | Path) -> TableFiles:
    """The table at a file, folder or glob; `option` is its name in messages."""
    paths = _find(option, str(where))
    first = paths[0]
    if _is_parquet(first):
        schema = pq.read_schema(first)
    else:
        with _open_csv(first, None, {}) as reader:
            schema = reader.schema
    return TableFiles(paths, schema)


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
        raise ValueError(f"{option}={where!r} names no Parquet or CSV file; legal are a file, a folder or a glob")
    kinds = {next((s for s in PARQUET + CSV if p.name.endswith(s)), None) for p in found}
    if None in kinds or len({kind in PARQUET for kind in kinds}) > 1:
        raise ValueError(
            f"{option}={where!r} must name files of one kind, {PARQUET} or {CSV}; found {found[0].name} ..."
        )
    return tuple(found)


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _parquet(path: Path, names: Sequence[str], casts: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        for name in names:
            if name not in file.schema_arrow.names:
                raise ValueError(f"{path.name} has no column {name!r}; it has {file.schema_arrow.names}")
        for batch in file.iter_batches(BATCH_ROWS, columns=list(names), use_threads=False):
            arrays = [plain(batch.column(n), casts.get(n)) for n in names]
            yield pa.RecordBatch.from_arrays(arrays, list(names))


def plain(column: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """The column without dictionary encoding, cast to `kind` where one is given."""
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return decoded if kind is None else decoded.cast(kind)


def _csv(path: Path, names: Sequence[str], types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    try:
        with _open_csv(path, names, types) as reader:
            yield from reader
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise ValueError(
            f"{path.name}: {error}. Types come from the start of the first file; "
            "graph.id_type=text and graph.categorical=[...] read a column as text"
        ) from error


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
