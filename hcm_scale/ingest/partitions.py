"""Columns that stand in the names of folders, as Spark, Hive and DuckDB write them: `day=2024-01-31/land=at/x.parquet`.

Of a table's files each gets the texts of its folders, below the folder or from the first wildcard on that the user
names. A column is of integers or dates where every text is one that would be written the same again, else text;
`__HIVE_DEFAULT_PARTITION__` is a gap.
"""

import contextlib
import glob
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from hcm_scale.ingest.errors import InputError

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
