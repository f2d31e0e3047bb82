"""One page of the ranked list: the rows of a scores.parquet that pass a `Filter`, in the order of any column.

`find_rows` reads only the columns that it filters and sorts by, batch by batch, and keeps the best rows so far; the
caller then reads the rows of the page. A node whose id equals the typed text comes before ids that only begin with it.
The file is sorted by rank, so a page by rank without a filter needs no pass. Memory: a batch of the file, and 16 bytes
for every row up to the end of the page asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.score.table import RankedFile


@dataclass(frozen=True)
class Filter:
    """Rows to keep: those of a kind of evidence, flagged ones, ids with a prefix, a type; an empty value keeps all.

    Of nodes by id, as text, `only` are kept, and those `but` are not.
    """

    kind: str = ""
    flagged: bool = False
    prefix: str = ""
    type: str = ""
    only: pa.ChunkedArray | None = None
    but: pa.ChunkedArray | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that the filter reads."""
        by_id = self.prefix or self.only is not None or self.but is not None
        used = (("evidence", self.kind), ("type", self.type), ("flagged", self.flagged), ("id", by_id))
        return [name for name, value in used if value]

    def mask(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows of a batch pass."""
        passes = np.ones(batch.num_rows, bool)
        for name, wanted in (("evidence", self.kind), ("type", self.type)):
            if wanted:
                words = batch[name].dictionary.to_pylist()
                passes &= _numpy(batch[name].indices) == (words.index(wanted) if wanted in words else -1)
        if self.flagged:
            passes &= _numpy(batch["flagged"])
        if self.prefix:
            passes &= _numpy(pc.starts_with(batch["id"].cast(pa.string()), self.prefix))
        for ids, kept in ((self.only, True), (self.but, False)):
            if ids is not None:
                passes &= _numpy(pc.is_in(batch["id"].cast(ids.type), ids)) == kept
        return passes


def find_rows(
    file: RankedFile, wanted: Filter, sort: str | NDArray[Any], down: bool, first: int, count: int
) -> tuple[NDArray[np.int64], int]:
    """Row numbers of one page, and how many rows pass in all; ties in order of rank, missing values last.

    `sort` is a column of the file, or a number for every row.
    """
    column = sort if isinstance(sort, str) else "rank"
    if isinstance(sort, str) and sort == "rank" and not wanted.columns:
        rows = np.arange(first, min(first + count, file.num_rows))
        return (file.num_rows - 1 - rows if down else rows), file.num_rows
    total, limit, bound = 0, first + count, np.inf  # rows whose key is `bound` or more are not on the page
    best, keys = np.zeros(0, np.int64), np.zeros(0)
    for start, batch in file.batches(list(dict.fromkeys([*wanted.columns, column]))):
        passing = np.flatnonzero(wanted.mask(batch))
        total += len(passing)
        rows = batch.take(pa.array(passing))
        values = _numpy(rows[sort].cast(pa.float64())) if isinstance(sort, str) else sort[start + passing]
        own = _sort_keys(values, rows, wanted.prefix, down)
        best = np.concatenate([best, passing[own < bound] + start])
        keys = np.concatenate([keys, own[own < bound]])
        if len(best) > 2 * limit:
            best, keys = _smallest(best, keys, limit)
            bound = keys[-1]
    return _smallest(best, keys, limit)[0][first:], total


def passing_rows(file: RankedFile, wanted: Filter) -> Iterator[pa.RecordBatch]:
    """All rows that pass, all columns, batch by batch in order of rank."""
    for _, batch in file.batches():
        yield batch.filter(pa.array(wanted.mask(batch)))


def _sort_keys(values: NDArray[Any], rows: pa.RecordBatch, prefix: str, down: bool) -> NDArray[np.float64]:
    """Numbers that sort as the values do: -inf for the id that was typed, the largest float for missing values."""
    keys = np.where(np.isfinite(values), -values if down else values, np.finfo(np.float64).max)
    if prefix:
        keys[_numpy(pc.equal(rows["id"].cast(pa.string()), prefix))] = -np.inf
    return keys


def _smallest(rows: NDArray[np.int64], keys: NDArray[Any], count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    order = np.lexsort((rows, keys))[:count]
    return rows[order], keys[order]


def _numpy(column: pa.Array) -> NDArray[Any]:
    return column.to_numpy(zero_copy_only=False)
