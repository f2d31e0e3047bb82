"""Parquet and CSV files as a stream of record batches, in the memory of a few batches.

A table is a file, a folder or a glob (paths.py); its files are read in the order of their names as one table whose
types are those of the first file, with the columns that names of folders hold (partitions.py). Parquet is decoded page
by page (a row group may be larger than memory), CSV block by block. What a file unpacks to is known before from the
metadata of Parquet, and for a gzip, which has no such number that can be trusted, counted as it comes.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.encoding import check_text, naming_encoding
from hcm_scale.ingest.errors import InputError, check_growth, reading, shown_names
from hcm_scale.ingest.forms import POINTS_OF_THOUSANDS, TEXT_FORMS, Form, FormSearch, with_forms
from hcm_scale.ingest.parquet import nan_as_gap, parquet_batches
from hcm_scale.ingest.partitions import Part, find_parts, part_fields, with_part
from hcm_scale.ingest.paths import PARQUET, find_paths
from hcm_scale.ingest.quotes import Quotes

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
    forms: dict[str, Form] = field(default_factory=dict)  # columns of text that are read as numbers or dates
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

    def with_forms(self, names: Sequence[str]) -> "TableFiles":
        """The same files; those of the named columns whose values all have one form of forms.py are read by it."""
        searches = {name: FormSearch(likely) for name in names if (likely := self._likely_forms(name))}
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

    def _likely_forms(self, name: str) -> tuple[Form, ...]:
        """The forms that a column may have: of numbers in a CSV points of thousands; of text that is to stay none."""
        kind = self.schema.field(name).type
        if name in self.casts or name in (*self.parts, {})[0] or pa.types.is_dictionary(kind):
            return ()
        is_likely = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and self._has_semicolons)
        return TEXT_FORMS if is_text(kind) else POINTS_OF_THOUSANDS if self.is_csv and is_likely else ()

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
                batch = with_forms(batch, self.forms) if self.forms else batch
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
