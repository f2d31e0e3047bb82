"""Numbers that are written with a decimal comma, `6451,65` or `1.234,5`: text as it is read, doubles as it is meant."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^-?(\d{1,3}(\.\d{3})*|\d+),\d+$"


def are_numbers(column: pa.Array) -> bool:
    """Whether all values of a text column, gaps apart, are such numbers.

    >>> are_numbers(pa.array(["1,5", None, "-1.234,0"])), are_numbers(pa.array(["1,5", "2"]))
    (True, False)
    """
    return bool(pc.all(pc.match_substring_regex(column.cast(pa.large_string()), _NUMBER), min_count=0).as_py())


def with_numbers(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """The batch, those of the named columns that it has as doubles.

    >>> with_numbers(pa.record_batch({"a": ["-1.234,5", None]}), ["a"])["a"].to_pylist()
    [-1234.5, None]
    """
    columns = [_doubles(batch[name]) if name in names else batch[name] for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _doubles(column: pa.Array) -> pa.Array:
    whole = pc.replace_substring(column, ".", "")
    return pc.replace_substring(whole, ",", ".").cast(pa.float64())
