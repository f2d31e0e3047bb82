"""Tables as streams of record batches: Parquet and CSV files, and Arrow tables in memory.

`open_table` returns a `TableFiles` for a file, a folder, a glob or an Arrow table. Files are read in the order of
their names as one table, with the types of the first file and the columns that names of folders hold
(`day=2024-01-31/x.parquet`). Each pass is in the memory of a few batches: Parquet is decoded page by page (a row group
may be larger than memory), CSV block by block. What a file unpacks to is checked before, from the metadata of Parquet,
and for gzip, whose own number cannot be trusted, counted as it comes. What cannot be read is an `InputError` with the
file and the place in it.

Node tables of several types, `users.csv,shops.csv`, are one table: a column that a file lacks is null there, and where
a file has no column `type`, it is the name of the file.

`as_arrow` makes an Arrow table of pandas, Polars and whatever has `__arrow_c_stream__`.
"""

import contextlib
import csv
import functools
import glob
import gzip
import itertools
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyarrow.csv import InvalidRow

from hcm_scale.base.files import resolved
from hcm_scale.base.sheets import read_sheet
from hcm_scale.ingest.encode import (
    NUMBER_FORMATS,
    POINTS_OF_THOUSANDS,
    MostlySearch,
    TextFormat,
    TextFormatSearch,
    is_date,
    is_number,
    is_text,
    text_formats,
)
from hcm_scale.ingest.policy import MAX_BYTES, InputError, check_growth, reading, shown_names
from hcm_scale.ingest.time_formats import TimeFormat

log = logging.getLogger(__name__)
TableSource: TypeAlias = str | Path | pa.Table
PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
EXCEL = (".xlsx",)
CSV_GAPS = ("", "NA", "N/A", "n/a", "#N/A", "#NV", "null", "NULL", "-", "--")  # NaN too among numbers
TYPE = "type"  # the column that says which of several node tables a row is of
_NAMES = {
    **{"graph.path": "the edge table", "graph.nodes": "the node table"},
    **{"verdicts": "the table of verdicts", "table": "the table of new edges"},
}
_INDEX = re.compile(r"__index_level_\d+__")  # of pandas, in Parquet
_UNNAMED = re.compile(r"|Unnamed: \d+")  # in CSV, once it was read and written again
_SHOWN = 5  # repeated names in a message
_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 1 << 26
_CSV_BLOCK_BYTES, _MAX_CSV_BLOCK_BYTES = 1 << 22, 1 << 27
_CSV_COLUMN_BYTES = 1 << 14  # about a thousand rows: a batch costs some work a column
_FolderValues: TypeAlias = dict[str, str | None]
_Types: TypeAlias = Mapping[str, pa.DataType | None]  # of the columns to read; None: as they are stored


@dataclass(frozen=True)
class TableFiles:
    """The files of one table; `casts` are column types that the caller knows better than the file."""

    paths: tuple[Path, ...]  # none of a table in memory
    schema: pa.Schema
    max_bytes: int
    where: str  # the file, folder or glob that the user named; the name of a table in memory
    table: pa.Table | None = None
    casts: dict[str, pa.DataType] = field(default_factory=dict)
    folder_values: tuple[_FolderValues, ...] = ()  # of each path: the columns in the names of its folders
    formats: dict[str, TextFormat] = field(default_factory=dict)  # columns of text that are read as numbers or dates
    times: dict[str, TimeFormat] = field(default_factory=dict)  # columns that are read as times, perhaps with others
    notes: dict[str, str] = field(default_factory=dict)  # of columns, for the report: how their values are written
    starts: list[int] = field(default_factory=list, compare=False)  # the first row of each path, as far as it is read
    gap_words: tuple[str, ...] = CSV_GAPS  # of CSV: what stands for nothing, unless in quotes

    @cached_property
    def kinds(self) -> dict[str, pa.DataType]:
        """The stored types of the columns by name; `schema.names` is made anew whenever it is asked for."""
        return dict(zip(self.schema.names, self.schema.types, strict=True))

    @property
    def origin(self) -> str:
        """The table in messages: its file, or what names its files and how many they are."""
        if len(self.paths) < 2:
            return self.name_of(self.paths[0]) if self.paths else self.where
        named = Path(self.where).name if Path(self.where).is_dir() else ""
        return f"{named or self.where} ({len(self.paths):,} files)"

    def name_of(self, path: Path) -> str:
        """One of the files in messages: of a folder or a glob with the folders that it lies in."""
        if Path(self.where).is_dir():
            return str(path.relative_to(Path(self.where).parent))
        return path.name if len(self.paths) == 1 else str(path)

    def describe_row(self, row: int) -> str:
        """A row that was read, as a person finds it: a line of a CSV file, where the header is line 1, else its number.

        A CSV with line breaks inside of values, or with empty lines, has it further down.
        """
        at = max(0, bisect_right(self.starts, row) - 1)
        row -= self.starts[at] if self.starts else 0
        text = f"line {row + 2:,}" if self.is_csv else f"row {row:,}"
        return f"{text} of {self.name_of(self.paths[at])}" if self.starts and len(self.paths) > 1 else text

    def rows_of(self, table: str) -> str:
        """What stands before places in messages: `table`, and from where rows that have no lines are counted."""
        return table if self.is_csv else f"{table} (rows from 0)"

    @property
    def is_csv(self) -> bool:
        return bool(self.paths) and not self.paths[0].name.endswith(PARQUET + EXCEL)

    @cached_property
    def _has_semicolons(self) -> bool:
        return self.is_csv and _separator(self.paths[0]) == ";"

    @cached_property
    def index_columns(self) -> list[str]:
        """The columns that are an index of pandas: in CSV without a name, and whole numbers that grow."""
        whole = [name for name in self.kinds if _UNNAMED.fullmatch(name) and pa.types.is_integer(self.kinds[name])]
        first = [self.first_batch([name]).column(0).to_numpy(zero_copy_only=False) for name in whole]  # nulls are NaN
        grow = [name for name, values in zip(whole, first, strict=True) if (np.diff(values) > 0).all()]
        return [name for name in self.kinds if _INDEX.fullmatch(name) or name in grow]

    def check_columns(self, option: str, names: Sequence[str | None]) -> None:
        for name in names:
            if name is not None and name not in self.kinds:
                legal = shown_names(self.schema.names)
                raise InputError(f"{option}={name!r} is not a column of {self.origin}; it has {legal}")

    def check_filled(self) -> None:
        """InputError where the table has no rows; of CSV the first column is read as text, whatever it is."""
        names = self.schema.names[:1]
        (self.with_casts(dict.fromkeys(names, pa.string())) if self.is_csv else self).first_batch(names)

    def type_of(self, name: str) -> pa.DataType:
        return self.times[name].kind if name in self.times else self.casts.get(name, self.kinds[name])

    def with_times(self, times: Mapping[str, TimeFormat]) -> "TableFiles":
        return replace(self, times={**self.times, **times})

    def with_casts(self, casts: dict[str, pa.DataType]) -> "TableFiles":
        return replace(self, casts={**self.casts, **casts})

    def with_text_formats(self, names: Sequence[str], dates: str, numbers: Sequence[str] = ()) -> "TableFiles":
        """The same files; those of the named columns whose values all have one text format are read by it.

        Of `numbers` those that look like numbers decide, and the others are gaps.
        """
        searches = {name: TextFormatSearch(likely) for name in names if (likely := self._likely_formats(name, dates))}
        needs = [name for name in numbers if name in names and (self.is_csv or is_text(self.type_of(name)))]
        searches |= {name: TextFormatSearch(NUMBER_FORMATS, has_gaps=True) for name in needs}
        text = self.with_casts(dict.fromkeys(searches, pa.large_string()))
        if searches:  # most columns have none: the first rows of all columns tell which to read on
            first = text.first_batch(list(searches))
            searches = {name: search for name, search in searches.items() if search.add(first[name])}
        batches = text.batches(list(searches)) if searches else iter(())
        while searches and (batch := next(batches, None)) is not None:
            searches = {name: search for name, search in searches.items() if search.add(batch[name])}
        chosen = {name: search.chosen(self._has_semicolons) for name, search in searches.items()}
        formats = {name: form for name, (form, _) in chosen.items() if form}
        for name in needs:
            if name not in formats:
                raise InputError(f"graph.numbers=[{name}]: its values in {self.origin} are not written in one way")
        schema = pa.schema([e.with_type(formats[e.name].kind) if e.name in formats else e for e in self.schema])
        notes = {name: note for name, (_, note) in chosen.items() if note}
        return replace(self, schema=schema, formats=formats, notes=self.notes | notes)

    def with_most(self, names: Sequence[str], dates: str) -> "TableFiles":
        """The same files; of the named columns of text those whose values mostly have one format are read by it."""
        names = [name for name in names if is_text(self.type_of(name)) and self._likely_formats(name, dates)]
        searches = {name: MostlySearch(text_formats(dates)) for name in names}
        batches = self.with_casts(dict.fromkeys(names, pa.large_string())).batches(names) if names else iter(())
        for batch in batches:
            for name, search in searches.items():
                search.add(batch[name])
        schema, formats = self.schema, dict(self.formats)
        for name, search in searches.items():
            form, told = search.chosen()
            if form is not None:
                formats[name] = form
                schema = schema.set(schema.get_field_index(name), pa.field(name, form.kind))
                log.warning("column %r: %s; such values are gaps", name, told)
        notes = {name: formats[name].note for name in names if name in formats and formats[name].note}
        return replace(self, schema=schema, formats=formats, notes=self.notes | notes)

    def with_gaps(self, needed: Sequence[str | None]) -> "TableFiles":
        """The same files; a column of the first that a later one lacks is null there, unless it is `needed`.

        Where a later file has another type, that of the first holds, or that of decimals, and the report says so.
        """
        values, notes, schema = list(self.folder_values), dict[str, str](), self.schema
        for i, path in enumerate(self.paths[1:], 1):
            later, where = _schema_of(path), self.name_of(path)
            held = {*later.names, *values[i]}
            for name in (name for name in self.schema.names if name not in held):
                if name in needed:
                    legal = f"legal is one, as in the first file; it has {shown_names(later.names)}"
                    raise InputError(f"{where} has 0 columns {name!r}, {legal}")
                values[i] = values[i] | {name: None}
                notes.setdefault(name, f"{where} has no such column: gaps there")
            for name in (name for name in later.names if name in schema.names and name not in needed):
                kind, first = later.field(name).type, schema.field(name).type
                if pa.types.is_integer(first) and pa.types.is_floating(kind):
                    schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
                elif pa.null() not in (kind, first) and _family(kind) != _family(first):
                    notes.setdefault(name, f"{kind} in {where}, read as {first}")
        return replace(self, schema=schema, folder_values=tuple(values), notes=self.notes | notes)

    def _likely_formats(self, name: str, dates: str) -> tuple[TextFormat, ...]:
        """The text formats that a column may have: of numbers in a CSV points of thousands."""
        kind = self.kinds[name]
        in_folders = bool(self.folder_values) and all(name in values for values in self.folder_values)
        if name in self.casts or in_folders or pa.types.is_dictionary(kind):
            return ()
        is_likely = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and self._has_semicolons)
        return text_formats(dates) if is_text(kind) else POINTS_OF_THOUSANDS if self.is_csv and is_likely else ()

    def batches(self, names: Sequence[str], block_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        """Streams the named columns, in order; of CSV `block_bytes` of text at a time, 0: as it suits many columns."""
        block_bytes = block_bytes or min(max(_CSV_BLOCK_BYTES, len(names) * _CSV_COLUMN_BYTES), _MAX_CSV_BLOCK_BYTES)
        read = functools.partial(_csv_batches, block_bytes, self.gap_words) if self.is_csv else _parquet_batches
        read = _excel_batches if self.paths and self.paths[0].name.endswith(EXCEL) else read
        needed = list(dict.fromkeys(c for n in names for c in (self.times[n].stored if n in self.times else (n,))))
        row = 0
        self.starts.clear()
        if self.table is not None:
            batches = self.table.select(needed).to_batches(_BATCH_ROWS)
            for batch in _checked_batches(batches, self.where, {name: self._stored_type(name) for name in needed}):
                yield self._finished(batch, names, {})
        for path, values in zip(self.paths, self.folder_values or [{}] * len(self.paths), strict=True):
            stored = [n for n in needed if n not in values] or [n for n in self.schema.names if n not in values][:1]
            self.starts.append(row)
            types = {name: self._stored_type(name) for name in stored}
            for batch in read(path, self.name_of(path), types, self.max_bytes):
                row += len(batch)
                yield self._finished(batch, names, values)

    def _finished(self, batch: pa.RecordBatch, names: Sequence[str], values: _FolderValues) -> pa.RecordBatch:
        """The named columns: those of folders filled in, those in a text format or of several columns parsed."""
        if not (values or self.formats or self.times):
            return batch

        def column(name: str) -> pa.Array:
            if name in values:
                kind = self.casts.get(name, self.kinds[name])
                one = pa.nulls(1, kind) if values[name] is None else pa.array([values[name]], pa.string()).cast(kind)
                return pa.repeat(one[0], len(batch))
            return self.formats[name].read(batch[name]) if name in self.formats else batch[name]

        def finished(name: str) -> pa.Array:
            if name not in self.times:
                return column(name)
            return self.times[name].read({stored: column(stored) for stored in self.times[name].stored})

        return pa.RecordBatch.from_arrays([finished(name) for name in names], list(names))

    def first_batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """The first rows of the named columns; InputError where the table has none."""
        for batch in self.batches(names, _CSV_BLOCK_BYTES):
            if len(batch):
                return batch
        raise InputError(f"{self.origin} holds no rows")

    def _stored_type(self, name: str) -> pa.DataType | None:
        """The type to read a column as: that of the first file; None, whatever it is, where this has nulls alone.

        A number of a CSV is a double, as the first block cannot know the others.
        """
        kind = pa.large_string() if name in self.formats else self.casts.get(name, self.kinds[name])
        if name in self.formats or name in self.casts:
            return kind
        if self.is_csv:
            return pa.float64() if pa.types.is_integer(kind) else pa.string() if pa.types.is_null(kind) else kind
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return None if pa.types.is_null(kind) else kind


def open_table(option: str, where: TableSource, max_bytes: int = MAX_BYTES) -> TableFiles:
    """The table that an option names: in memory, or at a file, folder or glob."""
    if isinstance(where, pa.Table):
        check_distinct(where.schema.names, _NAMES[option])
        return TableFiles((), where.schema, max_bytes, _NAMES[option], where)
    if len(names := table_parts(option, str(where))) > 1:
        return _joined([open_table(option, name, max_bytes) for name in names], str(where))
    paths = _find_paths(option, str(where))
    schema = _schema_of(paths[0])
    if paths[0].name.endswith(CSV) and pa.binary() in schema.types:  # what the CSV reader makes of other than UTF-8
        raise InputError(_not_utf8(paths[0]))
    check_distinct(schema.names, paths[0].name)
    values = [
        {name: value for name, value in of_path.items() if name not in schema.names}
        for of_path in _folder_values(option, str(where), paths)
    ]
    for name in values[0]:
        schema = schema.append(pa.field(name, _type_of_texts([of_path[name] for of_path in values])))
    return TableFiles(paths, schema, max_bytes, str(where), folder_values=tuple(values))


def table_parts(option: str, where: str) -> list[str]:
    """The tables that an option names: of nodes one a type, with commas between them."""
    is_one = option != "graph.nodes" or Path(where).exists() or "://" in where
    return [where] if is_one else [name.strip() for name in where.split(",")]


def _joined(tables: Sequence[TableFiles], where: str) -> TableFiles:
    """One table of node tables of several types."""
    if len({table.is_csv for table in tables}) > 1:
        raise InputError(f"graph.nodes={where!r} must name files of one kind, Parquet or CSV")
    fields, values = dict[str, pa.Field](), []
    for column in (column for table in tables for column in (*table.schema, pa.field(TYPE, pa.string()))):
        fields.setdefault(column.name, column)
    for table in tables:
        named = Path(table.where) if Path(table.where).exists() else table.paths[0].parent
        lacks: _FolderValues = {name: None for name in fields if name not in table.kinds}
        lacks |= {TYPE: named.name.split(".")[0]} if TYPE in lacks else {}
        values += [lacks | own for own in table.folder_values]
    paths = tuple(path for table in tables for path in table.paths)
    schema, limit = pa.schema([*fields.values()]), tables[0].max_bytes
    return TableFiles(paths, schema, limit, where, casts={TYPE: pa.string()}, folder_values=tuple(values))


def check_distinct(names: Iterable[Any], what: str) -> None:
    """Refuses names of columns that are there more than once; `what` has them."""
    repeated = [f"{count} columns named {name!r}" for name, count in Counter(names).items() if count > 1]
    if repeated:
        shown = ", ".join(repeated[:_SHOWN]) + (f" and {len(repeated) - _SHOWN:,} more" if repeated[_SHOWN:] else "")
        raise InputError(f"{what} has {shown}; legal is one of a name: rename or drop the others")


def columns_of_later_files(table: TableFiles) -> dict[str, tuple[str, str]]:
    """Type and file of each column that the first file has not, which is not read; of several files the first."""
    others: dict[str, tuple[str, str]] = {}
    for path in table.paths[1:]:
        for column in (column for column in _schema_of(path) if column.name not in table.kinds):
            others.setdefault(column.name, (str(column.type), table.name_of(path)))
    return others


def _schema_of(path: Path) -> pa.Schema:
    if path.name.endswith(EXCEL):
        return _sheet(path, path.stat().st_mtime_ns).schema
    with reading(f"{path} cannot be read as {'Parquet' if _is_parquet(path) else 'CSV'}"), _naming_encoding(path):
        schema = pq.read_schema(path) if _is_parquet(path) else _open_csv(path, {})[0].schema
        _ = schema.names  # decoded here, where an error about names that are no text is given the file
        return pa.schema([field.with_type(_without_views(field.type)) for field in schema], schema.metadata)


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


# Paths. Names that start with . or _ (`_SUCCESS`, `_temporary/`, `.ipynb_checkpoints/`) are no data, unless the user
# spells such a name. A file that links lead to as well is read once.


def files_at(where: str) -> list[Path]:
    """All files at a file, a folder or a glob, sorted; hidden ones only where `where` spells them."""
    path = Path(where)
    if path.is_file():
        return [path]
    paths = _files_below(path) if path.is_dir() else map(Path, glob.glob(where, recursive=True))  # noqa: PTH207
    return sorted(p for p in paths if p.is_file() and not is_hidden(p, path))


def _files_below(folder: Path) -> Iterator[Path]:
    """The files below a folder; OSError where a folder in it, unless hidden, may not be read."""
    for path in folder.iterdir():
        if not path.is_dir():
            yield path
        elif not is_hidden(path, folder) and not path.is_symlink():
            yield from _files_below(path)


def is_hidden(path: PurePath, named: PurePath) -> bool:
    """Whether a name in the path starts with . or _ and none in `named`, which may hold wildcards, says so.

    >>> is_hidden(Path("_in/_tmp/a.csv"), Path("_in")), is_hidden(Path("_in/_tmp/a.csv"), Path("_in/_t*/*"))
    (True, False)
    """
    spelled = [name for name in named.parts if name.startswith((".", "_"))]
    return any(
        name.startswith((".", "_")) and not any(name == given or fnmatchcase(name, given) for given in spelled)
        for name in path.parts
    )


def _find_paths(option: str, where: str) -> tuple[Path, ...]:
    """The files of the table at a file, folder or glob, sorted; `option` is its name in messages."""
    paths = files_at(where)
    if Path(where).is_dir():
        refuse_lake(option, where, lambda pattern: any(Path(where).glob(pattern)))
        paths = [p for p in paths if p.name.endswith(PARQUET + CSV + EXCEL)]
    if not paths:
        raise InputError(f"{option}={where!r} names no Parquet or CSV file; legal are a file, a folder or a glob")
    if not any(all(path.name.endswith(endings) for path in paths) for endings in (PARQUET, CSV, EXCEL)):
        raise InputError(
            f"{option}={where!r} must name files of one kind, which end in {', '.join(PARQUET + CSV + EXCEL)}; "
            f"found {paths[0].name}"
        )
    once = {resolved(path): path for path in sorted(paths, key=lambda path: (len(path.parts), path), reverse=True)}
    if len(once) < len(paths):  # rows of a file that links lead to as well would count twice
        _warn_of_links(where, len(paths) - len(once))
    return tuple(sorted(once.values()))


_LAKES = {"_delta_log/*.json": "Delta", ".hoodie/*": "Hudi", "metadata/*.metadata.json": "Iceberg"}  # by what they hold


def refuse_lake(option: str, where: str, has: Callable[[str], bool]) -> None:
    """Refuses the folder of a table with a log of its own, without which rows that are gone would be read again."""
    if kind := next((kind for pattern, kind in _LAKES.items() if has(pattern)), None):
        why = f"is the folder of a {kind} table, which keeps files of rows that were changed or deleted since"
        remedy = "read it by its own package, which gives a table of Arrow or pandas, or writes plain Parquet"
        raise InputError(f"{option}={where!r} {why}: {remedy} (docs/data.md)")


@functools.cache  # a table is opened several times
def _warn_of_links(where: str, count: int) -> None:
    log.warning("%s: links lead to files that are there already (%s); each file is read once", where, f"{count:,}")


# Columns in the names of folders, as Spark, Hive and DuckDB write them: `day=2024-01-31/what=a%2Fb/x.parquet`.

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def _folder_values(option: str, where: str, paths: Sequence[Path]) -> list[_FolderValues]:
    """The columns in the folder names of each path, below the folder or from the first wildcard of `where` on."""
    named, values = Path(where).parts, []
    wildcards = [i for i, name in enumerate(named) if glob.has_magic(name) and not Path(where).exists()]
    for path in paths:
        folders = path.parts[wildcards[0] if wildcards else len(named) : -1]
        pairs = [folder.split("=", 1) for folder in folders if not folder.startswith("=") and "=" in folder]
        values.append({unquote(n): None if value == _NULL_FOLDER else unquote(value) for n, value in pairs})
        if values[-1].keys() != values[0].keys():
            raise InputError(
                f"{option}={where!r}: {paths[0]} lies in folders of columns {list(values[0])}, {path} in folders of "
                f"{list(values[-1])}; legal are the same for all files"
            )
    return values


def _type_of_texts(values: list[str | None]) -> pa.DataType:
    """Integers or dates where every text is one that would be written the same again, else text.

    >>> _type_of_texts(["1", None]), _type_of_texts(["007", "1"])
    (DataType(int64), DataType(string))
    """
    texts = pa.array(sorted({value for value in values if value is not None}), pa.string())
    for kind in (pa.int64(), pa.date32()):
        with contextlib.suppress(pa.ArrowInvalid):
            if len(texts) and texts.cast(kind).cast(pa.string()).equals(texts):
                return kind
    return pa.string()


# Parquet. What the columns unpack to is known before: from the metadata, and where a dictionary holds long texts, from
# how often each is meant.

_CHECKED: Any = {"pre_buffer": False, "page_checksum_verification": True}  # where a file has checksums
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def _parquet_batches(path: Path, shown: str, types: _Types, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Streams the columns of `types`, cast to them; `shown` is what the file is called in messages."""
    buffer_bytes = max(1 << 14, min(1 << 20, _BATCH_BYTES // max(1, len(types))))  # each column has one
    options = _CHECKED | {"buffer_size": buffer_bytes}
    with reading(f"{shown} cannot be read as Parquet"), pq.ParquetFile(path, **options) as file:
        held = Counter(file.schema_arrow.names)
        for name in types:
            if held[name] != 1:
                raise InputError(
                    f"{shown} has {held[name]} columns {name!r}, legal is one, as in the first file (an attribute is "
                    f"left out of all by graph.exclude=[{name}]); it has {shown_names(list(held))}"
                )
        least_bytes = sum(  # encoded, and at least a byte a value
            max(chunk.total_uncompressed_size, _WIDTHS.get(chunk.physical_type, 1) * max(chunk.num_values, num_rows))
            for _, num_rows, chunk in _column_chunks(file.metadata)
            if chunk.path_in_schema.split(".")[0] in types
        )
        check_growth(shown, path.stat().st_size, least_bytes, max_bytes)
        rows = _batch_rows(path, file.metadata, types, max_bytes)
        yield from _checked_batches(file.iter_batches(rows, columns=list(types), use_threads=False), shown, types)


def _batch_rows(path: Path, metadata: pq.FileMetaData, types: _Types, max_bytes: int) -> int:
    """Rows a batch: fewer where a dictionary holds texts so long that a usual batch of them would fill the memory.

    A text of a megabyte may be kept once and meant by every row. Of each row group the first rows are read as positions
    in the dictionary, and where its longest text could make too much of all rows, the others too, to know what they do.
    """
    longest, total = 1, 0
    texts = [
        (group, column.path_in_schema)
        for group, _, column in _column_chunks(metadata)
        if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY" and column.path_in_schema in types
    ]
    usual = max(1, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(1, len(types)))))
    if not texts:
        return usual
    with pq.ParquetFile(path, read_dictionary=[*{name for _, name in texts}], metadata=metadata, **_CHECKED) as file:
        for group, name in texts:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[name], use_threads=False):
                if not pa.types.is_dictionary(batch.column(0).type):
                    break
                lengths = pc.binary_length(batch.column(0).dictionary).cast(pa.int64())
                longest = max(longest, pc.max(lengths).as_py() or 0)
                if longest * metadata.num_rows <= max_bytes:
                    break
                total += pc.sum(lengths.take(batch.column(0).indices)).as_py() or 0
    check_growth(path.name, path.stat().st_size, total, max_bytes)
    return max(1, min(usual, _BATCH_BYTES // longest))


def _column_chunks(metadata: pq.FileMetaData) -> Iterator[tuple[int, int, pq.ColumnChunkMetaData]]:
    """Streams (row group, its rows, column chunk)."""
    for number, group in enumerate(map(metadata.row_group, range(metadata.num_row_groups))):
        yield from ((number, group.num_rows, group.column(i)) for i in range(group.num_columns))


@functools.lru_cache(2)
def _sheet(path: Path, changed: int) -> pa.Table:
    try:
        return read_sheet(path)
    except ValueError as error:
        raise InputError(str(error)) from error


def _excel_batches(path: Path, shown: str, types: _Types, max_bytes: int) -> Iterator[pa.RecordBatch]:
    sheet = _sheet(path, path.stat().st_mtime_ns)
    if missing := [name for name in types if name not in sheet.column_names]:
        raise InputError(f"{shown} has no column {missing[0]!r}, which the first file has")
    yield from _checked_batches(sheet.select([*types]).to_batches(_BATCH_ROWS), shown, types)


def _checked_batches(batches: Iterable[pa.RecordBatch], shown: str, types: _Types) -> Iterator[pa.RecordBatch]:
    """Streams the columns of `types`, cast to them, without dictionaries; InputError where a text is not UTF-8."""
    row = 0
    for batch in batches:
        arrays, last = [], row + len(batch) - 1
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))  # the order may be that of the file
        for name, kind in types.items():
            array = columns[name]
            where = f"{shown} column {name!r}, rows {row:,} .. {last:,} (from 0)"
            with reading(f"{where}, cannot be read as {kind or array.type}"):
                if kind is not None and is_date(kind) and is_number(array.type):  # of which unit nobody knows
                    raise InputError(
                        f"{where}, is of type {array.type}, and {kind} in the first file; legal is one type"
                    )
                array = _nan_as_gap(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
                array = array if kind in (None, array.type) else array.cast(kind)
                array.validate(full=True)
            arrays.append(array)
        row += len(batch)
        yield pa.RecordBatch.from_arrays(arrays, list(types))


def _family(kind: pa.DataType) -> tuple[Any, ...]:
    """What two types have in common whose values mean the same."""
    return is_number(kind), is_date(kind), is_text(kind), getattr(kind, "tz", None)


def _nan_as_gap(column: pa.Array) -> pa.Array:
    """The column with nulls for NaN, which is how tools without nulls write a gap; infinities stay."""
    if not pa.types.is_floating(column.type) or not pc.any(is_nan := pc.is_nan(column)).as_py():
        return column
    return pc.if_else(is_nan, None, column)


# CSV. Text must be UTF-8; CP1252 and UTF-16 of spreadsheets are usual, and messages say how to convert them.

_SEPARATORS = (",", ";", "\t", "|")  # of equally many the first
_HEADER_BYTES, _SHOWN_BYTES = 1 << 16, 40
_LINE_BYTES = 1 << 20  # of a line that has no end


class _QuoteCheckedFile:
    """The bytes of a CSV file, unpacked, for pyarrow to read; finds a quote that is never closed.

    Such a quote makes one value of all rows after it, of which pyarrow says nothing. So a file with quotes gets one
    line more, with far too many columns: a reader that does not complain of it has read it as a part of a value.
    """

    def __init__(self, path: Path, separator: str) -> None:
        self._stream = pa.input_stream(str(path), compression="detect")
        self._end = separator * 99_991 + "-- the end of the file --"
        self._has_quotes = self._has_ended = self._is_closed = False
        self.close = self._stream.close

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._has_quotes = self._has_quotes or b'"' in data
        if data or self._has_ended or not self._has_quotes:
            return data
        self._has_ended = True
        return f"\n{self._end}\n".encode()

    def handle_invalid_row(self, row: InvalidRow) -> str:
        self._is_closed = self._is_closed or row.text == self._end
        return "skip" if row.text == self._end else "error"

    def check_quotes_closed(self, name: str, num_rows: int) -> None:
        """InputError where the file, which has been read to its end, has a quote that is not closed."""
        if self._has_ended and not self._is_closed:
            raise InputError(
                f"{name} ends inside of quotes: one that begins near line {num_rows + 1:,}, in the last column, is "
                'never closed; close it, or put the whole value into quotes and write "" for one in it'
            )


def _csv_batches(
    block_bytes: int, gap_words: Sequence[str], path: Path, shown: str, types: _Types, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Streams the columns of `types`, `block_bytes` of text at a time; `shown` is the file in messages."""
    advice = "graph.id_type=text and graph.categorical=[...] read a column as text"
    what = f"{shown} cannot be read with the types of the start of the first file ({advice})"
    packed, row = path.name.endswith(".gz"), 0
    with reading(what), _naming_encoding(path):
        reader, file = _open_csv(path, types, block_bytes, gap_words)
        with reader:
            for number, batch in enumerate(reader):
                if packed:  # a batch is a block of text
                    check_growth(shown, path.stat().st_size, number * block_bytes, max_bytes)
                row += len(batch)
                yield pa.RecordBatch.from_arrays([_nan_as_gap(column) for column in batch.columns], batch.schema.names)
        file.check_quotes_closed(shown, row)


def _open_csv(
    path: Path, types: _Types, block_bytes: int = _CSV_BLOCK_BYTES, gap_words: Sequence[str] = CSV_GAPS
) -> tuple[pacsv.CSVStreamingReader, _QuoteCheckedFile]:
    """A reader of the columns of `types`, of all where it is empty, and the file that it reads."""
    delimiter = _separator(path)
    file = _QuoteCheckedFile(path, delimiter)
    names = _numbered_names(path, delimiter)
    reader = pacsv.open_csv(
        file,
        read_options=pacsv.ReadOptions(
            block_size=block_bytes, use_threads=False, column_names=names or None, skip_rows=bool(names)
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=file.handle_invalid_row
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            strings_can_be_null=True,
            null_values=gap_words,
            quoted_strings_can_be_null=False,
        ),
    )
    return reader, file


def _numbered_names(path: Path, separator: str) -> list[str]:
    """The names of columns where some are there more than once, which get numbers as pandas gives them; else none."""
    header, second = _first_lines(path)
    lines = [header.decode("utf-8-sig", "replace").rstrip("\r")] if second else []  # else it may be cut
    names = next(csv.reader(lines, delimiter=separator), [])
    counts, numbered = Counter(names), list[str]()
    for name in names if len(counts) < len(names) else ():
        others = (f"{name}.{number}" for number in itertools.count(1))
        free = next((other for other in others if other not in (*counts, *numbered)), "")
        numbered.append(free if name in numbered else name)
    for name in (name for name, count in counts.items() if count > 1):
        _warn_of_names(path.name, name, tuple(n for n, own in zip(numbered, names, strict=True) if own == name)[1:])
    return numbered


@functools.cache  # a table is opened several times
def _warn_of_names(shown: str, name: str, others: tuple[str, ...]) -> None:
    log.warning("%s has %d columns named %r; after the first they are %s", shown, 1 + len(others), name, others)


def _first_lines(path: Path) -> list[bytes]:
    """The first two, of what is not far more than a header."""
    with pa.input_stream(str(path), compression="detect") as stream:
        return [*stream.read(_HEADER_BYTES).split(b"\n"), b""][:2]


def _separator(path: Path) -> str:
    """What stands between the columns: a tab in .tsv, else whichever of , ; tab and | the first line has most of.

    It is a space where the first line has none of these, and as many spaces as the second.
    """
    header, second = _first_lines(path)
    if header.startswith(b"sep="):
        line = header[:_SHOWN_BYTES].decode(errors="replace").strip()
        raise InputError(
            f"{path} begins with {line!r}, which is for Excel; remove this line: the first names the columns"
        )
    if not any(sign.encode() in header for sign in _SEPARATORS) and 0 < header.count(b" ") == second.count(b" "):
        return " "
    is_tsv = path.name.endswith((".tsv", ".tsv.gz"))
    return "\t" if is_tsv else max(_SEPARATORS, key=lambda sign: header.count(sign.encode()))


@contextlib.contextmanager
def _naming_encoding(path: Path) -> Iterator[None]:
    """Turns the CSV reader's error for bytes that are no text into one with their line.

    Refuses UTF-16 and UTF-32, which begin with a mark or a letter and a zero: the reader may take them for text.
    """
    with pa.input_stream(str(path), compression="detect") as stream:
        start, more = stream.read(2), stream.read(2)
    if start in (b"\xff\xfe", b"\xfe\xff") or 0 in start:
        name = "UTF-16" if 0 not in start else "UTF-16BE" if start[0] == 0 else "UTF-16LE"
        name = "UTF-32" if b"\0\0" in (start, more) else name
        raise InputError(f"{path} is {name} text; legal is UTF-8, which {_conversion(name, path)} makes of it")
    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
            raise InputError(_not_utf8(path)) from error
        raise


def _not_utf8(path: Path) -> str:
    """Message saying where a file stops being UTF-8, and how to convert it."""
    with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LINE_BYTES), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                around = line[max(0, error.start - 10) : error.start + 10].decode("cp1252", "replace").strip()
                where = f"line {number:,} has the byte 0x{line[error.start]:02X} in {around!r}, read as CP1252"
                remedy = f"{_conversion('CP1252', path)} makes of CP1252"
                return f"{path} is not UTF-8 text: {where}; legal is UTF-8, which {remedy}"
    return f"{path} is not UTF-8 text; legal is UTF-8"


def _conversion(encoding: str, path: Path) -> str:
    return f"`iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}`"


# Tables in memory.


def is_table(data: Any) -> bool:
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


def join_tables(tables: Mapping[Any, Any]) -> pa.Table:
    """One node table of those of several types, by type; a column that a table lacks is null there."""
    by_type = {str(name): as_arrow(table, f"the table of {name!r}") for name, table in tables.items()}
    typed = (t if TYPE in t.column_names else t.append_column(TYPE, pa.repeat(n, len(t))) for n, t in by_type.items())
    with reading("the node tables have columns of one name and several kinds"):
        return pa.concat_tables(typed, promote_options="permissive")


def index_of(data: Any) -> Any:
    """The index of a pandas table or Series; None where there is none, or only the plain one, 0 .. n - 1."""
    index: Any = getattr(data, "index", None)
    if not hasattr(index, "names"):
        return None
    is_plain = index.dtype.kind in "iu" and np.array_equal(index.to_numpy(), np.arange(len(index)))
    return None if is_plain else index


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Text as Polars and Parquet may hand it over, views of text, in the form that all of Arrow's functions know."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _is_pandas(data: Any) -> bool:
    return hasattr(data, "reset_index") and hasattr(data, "dtypes")
