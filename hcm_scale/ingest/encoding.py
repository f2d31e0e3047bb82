"""Text that is not UTF-8: where it begins to differ, and what to do. CP1252 and UTF-16 of spreadsheets are usual."""

import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from hcm_scale.ingest.errors import InputError

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
