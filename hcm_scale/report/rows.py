"""The first rows of a ranked table on disk, and all of them piece by piece: the whole may be large.

A table of a hundred million nodes is 15 GB, and more where ids are text.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS = 1 << 16  # of a piece


def read_first(path: Path, count: int) -> pa.Table:
    """The first rows, all columns."""
    with _open(path) as file:
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        num_groups = min(len(ends), int(np.searchsorted(ends, count)) + 1)
        return file.read_row_groups(range(num_groups)).slice(0, count)


def pieces(scores: pa.Table | Path) -> Iterator[pa.RecordBatch]:
    """All rows, all columns, piece by piece."""
    if isinstance(scores, pa.Table):
        yield from scores.to_batches(max_chunksize=_ROWS)
    else:
        with _open(scores) as file:
            yield from file.iter_batches(_ROWS)


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, page_checksum_verification=True)
