"""A CSV file that ends inside of quotes: a quote that nobody closes makes one value of all rows after it.

pyarrow takes the end of the file for the end of that value and says nothing. So the stream gets one line more, with far
too many columns: a reader that does not complain of this line has read it as a part of a value. Files without quotes
are passed on as they are.
"""

from pathlib import Path

import pyarrow as pa
from pyarrow.csv import InvalidRow

from hcm_scale.ingest.errors import InputError

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
