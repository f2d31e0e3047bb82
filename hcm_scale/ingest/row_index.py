"""Columns that number the rows of a table and say nothing: the index that pandas writes beside the data.

In Parquet it is `__index_level_0__`, in CSV a column without a name (`Unnamed: 0` once it was read and written again)
of whole numbers that grow from row to row.
"""

import re

import numpy as np
import pyarrow as pa

from hcm_scale.ingest.batches import TableFiles

_PARQUET, _CSV = re.compile(r"__index_level_\d+__"), re.compile(r"|Unnamed: \d+")


def index_columns(table: TableFiles) -> list[str]:
    """The columns of a table that are an index of pandas."""
    return [name for name in table.schema.names if _PARQUET.fullmatch(name) or _is_unnamed_index(table, name)]


def _is_unnamed_index(table: TableFiles, name: str) -> bool:
    if not (_CSV.fullmatch(name) and pa.types.is_integer(table.schema.field(name).type)):
        return False
    column = table.first_batch([name]).column(0)
    return not column.null_count and bool((np.diff(column.to_numpy(zero_copy_only=False)) > 0).all())
