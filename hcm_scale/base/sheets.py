"""Tables as files for other programs, whole or absent: CSV, Parquet, and XLSX for spreadsheets.

Ids and texts may come from strangers, and a spreadsheet runs what begins with one of = + - @ or a tab or line break.
In CSV such text, unless it is a number or one sign alone, gets a ' before it; text that begins with ' and would be such
gets one more, so that `without_quotes` is exact. So it is behind each ; tab and line break in a text, where a cell
begins in countries that separate by them. Parquet and XLSX hold text as text. XLSX has ids as text, whatever their
type, and so whole numbers of over 15 digits, which a spreadsheet would round; dates are dates from 1900 on. Its first
row stays in sight and has filters. `read_sheet` reads what people fill in there, or have as their data.
"""

import contextlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hcm_scale.base import files

_RUNS, _NUMBER = "^'*[=+\\-@\t\r\n＝＋－＠](?s:.)", r"^[-+]?[.,]?\d[\d.,]*([eE][-+]?\d+)?%?$"
_INSIDE, _INSIDE_QUOTED = (f"([;\t\r\n]){quote}('*[=+\\-@＝＋－＠])" for quote in ("", "'"))
_IDS = ("id", "source", "target")
_XLSX: dict[str, Any] = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
_XLSX |= {"strings_to_numbers": False, "default_date_format": "yyyy-mm-dd hh:mm:ss", "remove_timezone": True}
_WIDTHS, _MEASURED, _FIRST_DATE = (8, 60), 200, datetime(1900, 3, 1)  # of columns; rows that tell; exact from then on
_MAX_BOOK_BYTES = 1 << 30  # that a workbook may unpack to
_MOST_ROWS, _MOST_COLUMNS, _MOST_CHARACTERS, _EXACT = 1 << 20, 1 << 14, 32_767, 10**15 - 1  # of a sheet, a cell


def quoted(table: pa.Table) -> tuple[pa.Table, int]:
    """The table with a ' before texts, and names of columns, that a spreadsheet would run; and before how many.

    >>> quoted(pa.table({"id": ["=1+1", "-5", "a"]}))[0]["id"].to_pylist()
    ["'=1+1", '-5', 'a']
    """
    columns, count = [], 0
    for column in (pa.chunked_array([table.column_names], pa.string()), *table.columns):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            runs = pc.match_substring_regex(column, _RUNS)
            runs = pc.and_not(runs, pc.match_substring_regex(column, _NUMBER))
            count += pc.sum(pc.or_(runs, pc.match_substring_regex(column, _INSIDE))).as_py() or 0
            column = pc.replace_substring_regex(column, _INSIDE, r"\1'\2")
            column = pc.if_else(runs, pc.utf8_replace_slice(column, 0, 0, "'"), column)
        columns.append(column)
    return pa.table(columns[1:], columns[0].to_pylist()), count


def without_quotes(texts: pa.Array) -> pa.Array:
    """The texts that `quoted` made these of.

    >>> without_quotes(pa.array(["'=1+1", "'a'"])).to_pylist()
    ['=1+1', "'a'"]
    """
    begins = pc.match_substring_regex(texts, f"^'{_RUNS[1:]}")
    inside = pc.if_else(begins, pc.utf8_slice_codeunits(texts, 1), texts)
    return pc.replace_substring_regex(inside, _INSIDE_QUOTED, r"\1\2")


class CsvWriter(contextlib.ExitStack):
    """Writes tables of one schema to a file or a stream, `num_quoted` of their cells with a ' before them."""

    num_quoted = 0

    def __init__(self, where: Any, schema: pa.Schema) -> None:
        super().__init__()
        self._sink = self.enter_context(pyarrow.csv.CSVWriter(where, quoted(schema.empty_table())[0].schema))

    def write_table(self, table: pa.Table) -> None:
        cells, count = quoted(table)
        self._sink.write_table(cells)
        self.num_quoted += count


class _XlsxWriter(contextlib.ExitStack):
    """Writes tables into sheets of a workbook, each of one schema; the first sheet is used unless others are named."""

    def __init__(self, path: Path, schema: pa.Schema, name: str | None = None) -> None:
        import xlsxwriter

        super().__init__()
        self._error = xlsxwriter.exceptions.XlsxFileError
        self._book = self.enter_context(xlsxwriter.Workbook(str(path), _XLSX))
        self.use(name, schema)

    def use(self, name: str | None, schema: pa.Schema) -> None:
        """Begins a sheet, into which the next tables are written."""
        self._sheet = self._book.add_worksheet(name)
        self._sheet.write_row(0, 0, schema.names)
        self._sheet.freeze_panes(1, 0)
        self._num_rows = 1

    def write_table(self, table: pa.Table) -> None:
        if self._num_rows + len(table) > _MOST_ROWS or table.num_columns > _MOST_COLUMNS:
            most = f"{_MOST_ROWS - 1:,} rows and {_MOST_COLUMNS:,} columns"
            raise ValueError(f"a sheet of .xlsx holds {most}; --top K writes fewer rows, .csv and .parquet hold all")
        columns = [_cells(name, table[name]).to_pylist() for name in table.column_names]
        for at, (name, cells) in enumerate(zip(table.column_names, columns, strict=True)):
            width = max(len(str(cell)) for cell in (name + "  ", *cells[:_MEASURED]))
            self._sheet.set_column(at, at, min(max(width, _WIDTHS[0]), _WIDTHS[1]))
        for self._num_rows, row in enumerate(zip(*columns, strict=True), self._num_rows):  # noqa: B020
            self._sheet.write_row(self._num_rows, 0, row)
        self._num_rows += 1
        self._sheet.autofilter(0, 0, self._num_rows - 1, max(0, len(columns) - 1))

    def __exit__(self, *raised: Any) -> bool | None:
        try:
            return super().__exit__(*raised)
        except self._error as error:  # a full disk, told by the library in its own way
            raise OSError(*getattr(error.args[0], "args", error.args)) from error


def _cells(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Truth values, numbers and dates as such, where a sheet holds them exactly; anything else as text."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        zone = getattr(column.type, "tz", None)
        with contextlib.suppress(OverflowError):  # of years that no calendar has
            pc.min_max(column.cast(pa.timestamp("s", zone), safe=False)).as_py()
            times = column.cast(pa.timestamp("us", zone), safe=False)
            first = pc.min(times).as_py()
            if first is None or first.replace(tzinfo=None) >= _FIRST_DATE:
                return times
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_finite(column), column, None)
    is_number = pa.types.is_integer(column.type)  # of which abs and comparisons of Arrow do not know all of 64 bits
    is_exact = is_number and all(abs(end or 0) <= _EXACT for end in pc.min_max(column).as_py().values())
    if name not in _IDS and (is_exact or pa.types.is_boolean(column.type)):
        return column
    return pc.utf8_slice_codeunits(column.cast(pa.string()), 0, _MOST_CHARACTERS)


def check_flat(schema: pa.Schema, out: Path) -> None:
    """Raises ValueError where a column holds lists, records or times of no known zone, which only Parquet holds."""
    for entry in schema if out.suffix != ".parquet" else ():
        try:
            fits = not pa.types.is_nested(entry.type)
            if getattr(entry.type, "tz", None):
                pc.local_timestamp(pa.array([0], entry.type))
        except pa.ArrowInvalid:
            fits = False
        if not fits:
            what = f"column {entry.name!r} of type {entry.type} does not fit into {out.suffix[1:].upper()}"
            raise ValueError(f"{out}: {what}; name a .parquet")


@contextlib.contextmanager
def table_writer(out: Path, schema: pa.Schema, raw: bool = False, name: str | None = None) -> Iterator[Any]:
    """Yields a writer to `out`, by its ending, of which `write_table` takes the next rows; `raw`: CSV as text is.

    `name` is that of the first sheet of an .xlsx.

    ValueError where a column or the number of rows does not fit the format.
    """
    check_flat(schema, out)
    writers = {".parquet": pq.ParquetWriter, ".xlsx": partial(_XlsxWriter, name=name)}
    made = writers.get(out.suffix, pyarrow.csv.CSVWriter if raw else CsvWriter)
    with files.replacing_file(out) as fresh, made(fresh, schema) as writer:
        yield writer


def read_sheet(path: Path) -> pa.Table:
    """The first sheet of a workbook, its first row the names; of formulas what they gave. ValueError if it is none."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise ValueError(f"{path} needs openpyxl: pip install 'hcm-scale[excel]'; .csv needs nothing") from error
    try:
        with zipfile.ZipFile(path) as packed:
            num_bytes = sum(entry.file_size for entry in packed.infolist())
        if num_bytes <= _MAX_BOOK_BYTES:
            book = load_workbook(path, read_only=True, data_only=True)
            book.worksheets[0].reset_dimensions()  # what it says of its size may be wrong
            rows, num_cells = [], 0
            for number, row in enumerate(book.worksheets[0].values):
                num_cells += len(row)
                if number >= _MOST_ROWS or num_cells > max(num_bytes, 16 * _MOST_ROWS):
                    raise ValueError(f"a sheet has {_MOST_ROWS:,} rows at most, and cells that hold something")
                rows += [row] if any(cell is not None for cell in row) else []
            book.close()
    except Exception as error:  # whatever its parts raise
        raise ValueError(f"{path} cannot be read as a workbook: {error or type(error).__name__}") from error
    if num_bytes > _MAX_BOOK_BYTES:
        raise ValueError(f"{path} unpacks to {num_bytes:,} bytes; {_MAX_BOOK_BYTES:,} are legal: save it as .csv")
    columns = [column for column in zip_longest(*rows) if any(cell is not None for cell in column)]
    names = ["" if column[0] is None else _text(column[0]) for column in columns]
    return pa.table([_typed(column[1:]) for column in columns], names)


def _typed(cells: Sequence[Any]) -> pa.Array:
    types = {type(cell) for cell in cells if cell is not None}
    if types <= {int, float}:
        return pa.array(cells, pa.float64() if float in types else pa.int64() if types else pa.null())
    if len(types) == 1 and types <= {bool, datetime}:
        return pa.array(cells, pa.bool_() if bool in types else pa.timestamp("ms"))
    return pa.array([None if cell is None else _text(cell) for cell in cells], pa.string())


def _text(cell: Any) -> str:
    """A cell as text; a workbook writes characters that XML cannot hold as _x000D_."""
    return re.sub("_x((?![dD][89a-fA-F])[0-9a-fA-F]{4})_", lambda code: chr(int(code[1], 16)), str(cell))
