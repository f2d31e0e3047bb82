"""Tables in memory, in the place of files: an Arrow table that streams as a table of files does.

`as_arrow` takes what has an Arrow form: pandas, Polars, Arrow itself, whatever has `__arrow_c_stream__`. Nothing is
written to disk: the table is read as often as files would be, its types checked in the same way.
"""

import contextlib
import functools
import glob
import gzip
import logging
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from hcm_scale.ingest.encode import (
    POINTS_OF_THOUSANDS,
    TEXT_FORMATS,
    TextFormat,
    TextFormatSearch,
    is_text,
    parse_texts,
)
from hcm_scale.ingest.policy import InputError, check_growth, reading, shown_names

# ----------------------------------------------------------------------------
# Text that is not UTF-8: where it begins to differ, and what to do. CP1252 and UTF-16 of spreadsheets are usual.


_LINE_BYTES = 1 << 20  # of a line that has no end


def check_text(path: Path, schema: pa.Schema) -> None:
    """Refuses a CSV file in which the reader has found bytes instead of text."""
    if any(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in schema.types):
        raise InputError(_told(path))


@contextlib.contextmanager
def naming_encoding(path: Path) -> Iterator[None]:
    """Turns what the CSV reader says of bytes that are no text into an error with their line; refuses UTF-16."""
    _check_width(path)
    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
            raise InputError(_told(path)) from error
        raise


def _check_width(path: Path) -> None:
    """Refuses UTF-16 and UTF-32, which begin with a mark or a letter and a zero: the reader may take them for text."""
    with pa.input_stream(str(path), compression="detect") as stream:
        start, more = stream.read(2), stream.read(2)
    if start in (b"\xff\xfe", b"\xfe\xff") or 0 in start:
        name = "UTF-16" if 0 not in start else "UTF-16BE" if start[0] == 0 else "UTF-16LE"
        name = "UTF-32" if b"\0\0" in (start, more) else name
        remedy = f"iconv -f {name} -t UTF-8 {path.name} > utf8-{path.name}"
        raise InputError(f"{path} is {name} text; legal is UTF-8, which `{remedy}` makes of it")


def _told(path: Path) -> str:
    opened = gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb")  # noqa: SIM115  closed by `with`
    with opened as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LINE_BYTES), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                around = line[max(0, error.start - 10) : error.start + 10].decode("cp1252", "replace").strip()
                where = f"line {number:,} has the byte 0x{line[error.start]:02X} in {around!r}, read as CP1252"
                remedy = f"iconv -f CP1252 -t UTF-8 {path.name} > utf8-{path.name}"
                return f"{path} is not UTF-8 text: {where}; legal is UTF-8, which `{remedy}` makes of CP1252"
    return f"{path} is not UTF-8 text; legal is UTF-8"


# ----------------------------------------------------------------------------
# A CSV file that ends inside of quotes: a quote that nobody closes makes one value of all rows after it.
#
# pyarrow takes the end of the file for the end of that value and says nothing. So the stream gets one line more, with
# far too many columns: a reader that does not complain of this line has read it as a part of a value. Files without
# quotes are passed on as they are.


_END, _MANY = "-- the end of the file --", 99_991


class Quotes:
    """The bytes of a CSV file, unpacked, as pyarrow reads them, and what became of the line after the last."""

    def __init__(self, path: Path, separator: str) -> None:
        self._stream = pa.input_stream(str(path), compression="detect")
        self._end = separator * _MANY + _END
        self._has_quotes = self._has_ended = self._is_closed = False

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        if data:
            self._has_quotes = self._has_quotes or b'"' in data
        elif self._has_quotes and not self._has_ended:
            self._has_ended = True
            return f"\n{self._end}\n".encode()
        return data

    def judge(self, row: InvalidRow) -> str:
        """What pyarrow is to do with a row that has not the columns of the first."""
        self._is_closed = self._is_closed or row.text == self._end
        return "skip" if row.text == self._end else "error"

    def check_closed(self, name: str, num_rows: int) -> None:
        """InputError where the file, which has been read to its end, has a quote that is not closed."""
        if self._has_ended and not self._is_closed:
            raise InputError(
                f"{name} ends inside of quotes: one that begins near line {num_rows + 1:,}, in the last column, is "
                'never closed; close it, or put the whole value into quotes and write "" for one in it'
            )

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        self._stream.close()


# ----------------------------------------------------------------------------
# The files of a table: those at a path, below a folder, or that a glob names.
#
# What tools leave beside data under names that start with . or _ (`_SUCCESS`, `_temporary/`, `.ipynb_checkpoints/`)
# is no data, unless the user spells such a name. A file that links lead to as well is read once.


log = logging.getLogger(__name__)
PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_HIDDEN = (".", "_")


def files_at(where: str) -> list[Path]:
    """All files at a file, a folder or a glob, sorted; hidden ones only where `where` spells them."""
    path = Path(where)
    if path.is_file():
        return [path]
    found = _below(path) if path.is_dir() else map(Path, glob.glob(where, recursive=True))  # noqa: PTH207
    return sorted(p for p in found if p.is_file() and not is_hidden(p, path))


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder; OSError where a folder in it, unless hidden, may not be read."""

    def refuse(error: OSError) -> None:
        raise error

    for place, inside, names in os.walk(folder, onerror=refuse):
        inside[:] = [name for name in inside if not is_hidden(Path(place, name), folder)]
        yield from (Path(place, name) for name in names)


def is_hidden(path: PurePath, named: PurePath) -> bool:
    """Whether a part of the path starts with . or _ and no part of `named`, which may hold wildcards, says so.

    >>> is_hidden(Path("_in/_tmp/a.csv"), Path("_in")), is_hidden(Path("_in/_tmp/a.csv"), Path("_in/_t*/*"))
    (True, False)
    """
    spelled = [part for part in named.parts if part.startswith(_HIDDEN)]
    return any(
        part.startswith(_HIDDEN) and not any(part == said or fnmatchcase(part, said) for said in spelled)
        for part in path.parts
    )


def find_paths(option: str, where: str) -> tuple[Path, ...]:
    """The files of the table at a file, folder or glob, sorted; `option` is its name in messages."""
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
    return _without_links(where, found)


def _without_links(where: str, paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths, but for those that lead by links to a file that is among them already: its rows would count twice."""
    once = {resolved(path): path for path in sorted(paths, key=lambda path: (len(path.parts), path), reverse=True)}
    if len(once) < len(paths):
        _tell_links(where, len(paths) - len(once))
    return tuple(sorted(once.values()))


@functools.cache
def _tell_links(where: str, count: int) -> None:
    log.warning("%s: links lead to files that are there already (%s); each file is read once", where, f"{count:,}")


# ----------------------------------------------------------------------------
# Columns that stand in the names of folders, as Spark, Hive and DuckDB write them:
# `day=2024-01-31/land=at/x.parquet`.
#
# Of a table's files each gets the texts of its folders, below the folder or from the first wildcard on that the user
# names. A column is of integers or dates where every text is one that would be written the same again, else text;
# `__HIVE_DEFAULT_PARTITION__` is a gap.


Part = dict[str, str | None]
_NULL = "__HIVE_DEFAULT_PARTITION__"


def find_parts(option: str, where: str, paths: Sequence[Path]) -> list[Part]:
    """The columns and values in the folder names of each path; all paths must have the same columns."""
    said = Path(where)
    fixed = len(said.parts)
    if not said.exists():
        fixed = next((i for i, name in enumerate(said.parts) if glob.has_magic(name)), fixed)
    parts = [_part(path.parts[fixed:-1]) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(
                f"{option}={where!r}: {paths[0]} lies in folders of columns {list(parts[0])}, {path} in folders of "
                f"{list(part)}; legal are the same for all files"
            )
    return parts


def _part(folders: Sequence[str]) -> Part:
    """The columns in folder names.

    >>> _part(["data", "day=2024-01-31", "what=a%2Fb"])
    {'day': '2024-01-31', 'what': 'a/b'}
    """
    pairs = [folder.split("=", 1) for folder in folders if not folder.startswith("=") and "=" in folder]
    return {unquote(name): None if value == _NULL else unquote(value) for name, value in pairs}


def part_fields(parts: Sequence[Part]) -> list[pa.Field]:
    """The columns of all files, with their types.

    >>> part_fields([{"a": "1", "b": "007"}, {"a": None, "b": "1"}])
    [pyarrow.Field<a: int64>, pyarrow.Field<b: string>]
    """
    return [pa.field(name, _kind([part[name] for part in parts])) for name in parts[0]]


def _kind(values: list[str | None]) -> pa.DataType:
    texts = pa.array(sorted({value for value in values if value is not None}), pa.string())
    for kind in (pa.int64(), pa.date32()):
        with contextlib.suppress(pa.ArrowInvalid):
            if len(texts) and texts.cast(kind).cast(pa.string()).equals(texts):
                return kind
    return pa.string()


def with_part(
    batch: pa.RecordBatch, names: Sequence[str], part: Part, fields: dict[str, pa.DataType]
) -> pa.RecordBatch:
    """The named columns, those of the folder names put beside those of the file."""
    columns = [
        pa.repeat(pa.scalar(part[name], pa.string()), len(batch)).cast(fields[name]) if name in part else batch[name]
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, list(names))


# ----------------------------------------------------------------------------
# One Parquet file as a stream of record batches of checked columns, in the memory of a few batches.
#
# What the columns unpack to is known before: from the metadata, and where a dictionary holds long texts, from how
# often each is meant.


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


# ----------------------------------------------------------------------------
# Parquet and CSV files as a stream of record batches, in the memory of a few batches.
#
# A table is a file, a folder or a glob (paths.py); its files are read in the order of their names as one table whose
# types are those of the first file, with the columns that names of folders hold (partitions.py). Parquet is decoded
# page by page (a row group may be larger than memory), CSV block by block. What a file unpacks to is known before
# from the metadata of Parquet, and for a gzip, which has no such number that can be trusted, counted as it comes.


_SEPARATORS = (",", ";", "\t", "|")  # of equally many the first
_HEADER_BYTES, _SHOWN_BYTES = 1 << 16, 40
_CSV_BLOCK_BYTES = 1 << 22
_CSV_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "#NV", "null", "NULL", "-", "--"]  # NaN too among numbers


@dataclass(frozen=True)
class TableFiles:
    """The files of one table; `casts` are column types that the caller knows better than the file."""

    paths: tuple[Path, ...]
    schema: pa.Schema
    max_bytes: int
    casts: dict[str, pa.DataType] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()  # of each path: the columns in the names of its folders
    where: str = ""  # the file, folder or glob that the user named
    forms: dict[str, TextFormat] = field(default_factory=dict)  # columns of text that are read as numbers or dates
    notes: dict[str, str] = field(default_factory=dict)  # what the lines of columns say of how they are written
    starts: list[int] = field(default_factory=list, compare=False)  # the first row of each path, as far as it is read

    @property
    def origin(self) -> str:
        """The table in messages: its file, or what names its files and how many they are."""
        if len(self.paths) == 1:
            return self.name_of(self.paths[0])
        named = Path(self.where).name if Path(self.where).is_dir() else ""
        return f"{named or self.where} ({len(self.paths):,} files)"

    def name_of(self, path: Path) -> str:
        """One of the files in messages: of a folder or a glob with the folders that it lies in."""
        if Path(self.where).is_dir():
            return str(path.relative_to(Path(self.where).parent))
        return path.name if len(self.paths) == 1 else str(path)

    def place(self, row: int) -> str:
        """A row that was read, as a person finds it: a line of a CSV file, where the header is line 1, else its number.

        A CSV with line breaks inside of values, or with empty lines, has it further down.
        """
        at = max(0, bisect_right(self.starts, row) - 1)
        start, path = (self.starts[at], self.paths[at]) if self.starts else (0, None)
        told = f"line {row - start + 2:,}" if self.is_csv else f"row {row - start:,}"
        return f"{told} of {self.name_of(path)}" if path is not None and len(self.paths) > 1 else told

    def rows_of(self, table: str) -> str:
        """What stands before places in messages: `table`, and from where rows that have no lines are counted."""
        return table if self.is_csv else f"{table} (rows from 0)"

    @property
    def is_csv(self) -> bool:
        return bool(self.paths) and not _is_parquet(self.paths[0])

    def check_columns(self, option: str, names: Sequence[str]) -> None:
        """Refuses names that the table does not have."""
        for name in names:
            if name not in self.schema.names:
                raise InputError(
                    f"{option}={name!r} is not a column of {self.origin}; it has {shown_names(self.schema.names)}"
                )

    def with_casts(self, casts: dict[str, pa.DataType]) -> "TableFiles":
        """The same files, some columns read as other types."""
        return replace(self, casts={**self.casts, **casts})

    def with_text_formats(self, names: Sequence[str]) -> "TableFiles":
        """The same files; those of the named columns whose values all have one form of forms.py are read by it."""
        searches = {name: TextFormatSearch(likely) for name in names if (likely := self._likely_forms(name))}
        text = self.with_casts(dict.fromkeys(searches, pa.large_string()))
        if searches:
            first = text.first_batch(list(searches))
            searches = {name: search for name, search in searches.items() if search.add(first[name])}
        for batch in text.batches(list(searches)) if searches else ():
            searches = {name: search for name, search in searches.items() if search.add(batch[name])}
            if not searches:
                break
        chosen = {name: search.chosen(self._has_semicolons) for name, search in searches.items()}
        forms, schema = {name: form for name, (form, _) in chosen.items() if form}, self.schema
        for name, form in forms.items():
            schema = schema.set(schema.get_field_index(name), pa.field(name, form.kind))
        return replace(self, schema=schema, forms=forms, notes={name: told for name, (_, told) in chosen.items()})

    def _likely_forms(self, name: str) -> tuple[TextFormat, ...]:
        """The forms that a column may have: of numbers in a CSV points of thousands; of text that is to stay none."""
        kind = self.schema.field(name).type
        if name in self.casts or name in (*self.parts, {})[0] or pa.types.is_dictionary(kind):
            return ()
        is_likely = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and self._has_semicolons)
        return TEXT_FORMATS if is_text(kind) else POINTS_OF_THOUSANDS if self.is_csv and is_likely else ()

    @cached_property
    def _has_semicolons(self) -> bool:
        return self.is_csv and separator(self.paths[0]) == ";"

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Streams the named columns, in order."""
        is_parquet = _is_parquet(self.paths[0])
        read, types = parquet_batches if is_parquet else _csv, self._types if is_parquet else self._csv_types
        known = {name: self.casts.get(name, self.schema.field(name).type) for name in names}
        row = 0
        self.starts.clear()
        for path, part in zip(self.paths, self.parts or [{}] * len(self.paths), strict=True):
            stored = [name for name in names if name not in part] or self.schema.names[:1]
            self.starts.append(row)
            wanted = types(stored) | dict.fromkeys(self.forms, pa.large_string())
            for batch in read(path, self.name_of(path), stored, wanted, self.max_bytes):
                row += len(batch)
                batch = parse_texts(batch, self.forms) if self.forms else batch
                yield with_part(batch, names, part, known) if part else batch

    def check_filled(self) -> None:
        """InputError where the table has no rows; of CSV the first column is read as text, whatever it is."""
        names = self.schema.names[:1]
        (self.with_casts(dict.fromkeys(names, pa.string())) if self.is_csv else self).first_batch(names)

    def first_batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """The first rows of the named columns; InputError where the table has none."""
        for batch in self.batches(names):
            if len(batch):
                return batch
        raise InputError(f"{self.origin} holds no rows")

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
    paths = find_paths(option, str(where))
    first = paths[0]
    schema = schema_of(first)
    names = schema.names
    if not _is_parquet(first):
        check_text(first, schema)
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{first.name} has {count} columns named {name!r}; legal is one of a name")
    parts = [{n: v for n, v in part.items() if n not in names} for part in find_parts(option, str(where), paths)]
    for entry in part_fields(parts):
        schema = schema.append(entry)
    return TableFiles(paths, schema, max_bytes, parts=tuple(parts), where=str(where))


def schema_of(path: Path) -> pa.Schema:
    """The columns of a file; of CSV with types as its first block has them."""
    with reading(f"{path} cannot be read as {'Parquet' if _is_parquet(path) else 'CSV'}"), naming_encoding(path):
        schema = pq.read_schema(path) if _is_parquet(path) else _open_csv(path, None, {})[0].schema
        _ = schema.names  # decoded here, where names that are no text are told with the file
        return schema


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _csv(
    path: Path, name: str, names: Sequence[str], types: dict[str, pa.DataType], max_bytes: int
) -> Iterator[pa.RecordBatch]:
    advice = "graph.id_type=text and graph.categorical=[...] read a column as text"
    what = f"{name} cannot be read with the types of the start of the first file ({advice})"
    packed, row = path.name.endswith(".gz"), 0
    with reading(what), naming_encoding(path):
        reader, quotes = _open_csv(path, names, types)
        with reader:
            for number, batch in enumerate(reader):
                if packed:  # a batch is a block of text
                    check_growth(name, path.stat().st_size, number * _CSV_BLOCK_BYTES, max_bytes)
                row += len(batch)
                yield pa.RecordBatch.from_arrays([nan_as_gap(column) for column in batch.columns], batch.schema.names)
        quotes.check_closed(name, row)


def _open_csv(
    path: Path, names: Sequence[str] | None, types: dict[str, pa.DataType]
) -> tuple[pacsv.CSVStreamingReader, Quotes]:
    sign = separator(path)
    quotes = Quotes(path, sign)
    reader = pacsv.open_csv(
        quotes,
        read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        parse_options=pacsv.ParseOptions(delimiter=sign, newlines_in_values=True, invalid_row_handler=quotes.judge),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(names or ()),
            strings_can_be_null=True,
            null_values=_CSV_NULLS,
            quoted_strings_can_be_null=False,
        ),
    )
    return reader, quotes


def separator(path: Path) -> str:
    """What stands between the columns: a tab in .tsv, else whichever of , ; tab and | the first line has most of.

    It is a space where the first line has none of these, and as many spaces as the second.
    """
    with pa.input_stream(str(path), compression="detect") as stream:
        header, second = [*stream.read(_HEADER_BYTES).split(b"\n"), b""][:2]
    if header.startswith(b"sep="):
        line = header[:_SHOWN_BYTES].decode(errors="replace").strip()
        raise InputError(f"{path} begins with {line!r}, a word to Excel; remove this line: the first names the columns")
    if not any(sign.encode() in header for sign in _SEPARATORS) and 0 < header.count(b" ") == second.count(b" "):
        return " "
    is_tsv = path.name.endswith((".tsv", ".tsv.gz"))
    return "\t" if is_tsv else max(_SEPARATORS, key=lambda sign: header.count(sign.encode()))


# ----------------------------------------------------------------------------
# Columns of a table that its first file has not: they are not read, and told of.


def columns_of_later_files(table: TableFiles) -> dict[str, tuple[str, str]]:
    """Type and file of each column that a later file alone has, by name; of several files the first."""
    found: dict[str, tuple[str, str]] = {}
    for path in table.paths[1:]:
        for column in schema_of(path):
            if column.name not in table.schema.names:
                found.setdefault(column.name, (str(column.type), table.name_of(path)))
    return found


TableSource: TypeAlias = str | Path | pa.Table
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
            yield parse_texts(pa.RecordBatch.from_arrays(arrays, list(names)), self.forms)


def open_table(option: str, where: TableSource, max_bytes: int) -> TableFiles:
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
