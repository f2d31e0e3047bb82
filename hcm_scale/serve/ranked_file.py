"""A scores.parquet asked about without being held: rows are found and read one piece of a row group at a time.

`find` answers one page of the list: the rows that a `Filter` lets through, in the order of any column. A first pass
reads only the columns that it needs and keeps the best rows so far; a second reads the rows of the page. A node whose
id is what was typed, and not only begins so, comes first. The file is sorted by rank, so a page by rank without a
filter is one place in it. `RankedFile` also has as much of the face of a
pa.Table as `Evidence` asks for, so that nodes are explained over it.

Memory: a piece of 65,536 rows, and 16 bytes for every row up to the end of the page asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

_PIECE = 1 << 16


@dataclass(frozen=True)
class Filter:
    """What to let through: a kind of evidence, flagged nodes only, ids that begin with a text; the empty ones all."""

    kind: str = ""
    flagged: bool = False
    prefix: str = ""

    @property
    def columns(self) -> list[str]:
        wanted = (("evidence", self.kind), ("flagged", self.flagged), ("id", self.prefix))
        return [name for name, value in wanted if value]

    def mask(self, piece: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows of a piece pass."""
        passes = np.ones(piece.num_rows, bool)
        if self.kind:
            passes &= _is_word(piece["evidence"], self.kind)
        if self.flagged:
            passes &= _numpy(piece["flagged"])
        if self.prefix:
            passes &= _numpy(pc.starts_with(piece["id"].cast(pa.string()), self.prefix))
        return passes

    def keys(self, piece: pa.RecordBatch, rows: NDArray[Any], sort: str, down: bool) -> NDArray[np.float64]:
        """Numbers by which these rows of a piece are sorted; that of an id which is the whole text comes first."""
        keys = _keys(piece[sort].take(pa.array(rows)), down)
        if self.prefix:
            keys[_numpy(pc.equal(piece["id"].take(pa.array(rows)).cast(pa.string()), self.prefix))] = -np.inf
        return keys


class RankedFile:
    """The ranked table of a run, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._file() as file:
            self.schema: pa.Schema = file.schema_arrow
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        self.column_names: list[str] = self.schema.names
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.num_rows = int(self.starts[-1])

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        with self._file() as file:
            return file.read(columns=[name])[name]

    def slice(self, first: int, count: int) -> pa.Table:
        """Some rows, all columns."""
        return self.take(np.arange(first, min(first + count, self.num_rows)), self.column_names)

    def pieces(self, columns: list[str], groups: list[int] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(first row, rows) of every piece, in order, of all row groups or of some."""
        with self._file() as file:
            for group in range(len(self.starts) - 1) if groups is None else groups:
                first = int(self.starts[group])
                for piece in file.iter_batches(_PIECE, row_groups=[group], columns=columns):
                    yield first, piece
                    first += piece.num_rows

    def take(self, rows: NDArray[np.int64], columns: list[str]) -> pa.Table:
        """Rows by number, in the order given; pieces after the last one of a row group are not read."""
        found, order = [], np.sort(rows)
        for group in np.unique(np.searchsorted(self.starts, rows, side="right") - 1).tolist():
            last = order[order < self.starts[group + 1]].max()
            for first, piece in self.pieces(columns, [group]):
                inside = order[(order >= first) & (order < first + piece.num_rows)] - first
                if len(inside):
                    found.append(piece.take(pa.array(inside)))
                if first + piece.num_rows > last:
                    break
        places = np.argsort(np.argsort(rows, kind="stable"), kind="stable")
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(found, schema).take(pa.array(places))

    def find(self, wanted: Filter, sort: str, down: bool, first: int, count: int) -> tuple[NDArray[np.int64], int]:
        """Row numbers of one page, and how many rows pass in all; ties, and missing values at the end, by rank."""
        if sort == "rank" and not wanted.columns:
            rows = np.arange(first, min(first + count, self.num_rows))
            return (self.num_rows - 1 - rows if down else rows), self.num_rows
        total, limit, bound = 0, first + count, np.inf  # no row whose key is the bound or more is on the page
        best, keys = np.zeros(0, np.int64), np.zeros(0)
        for start, piece in self.pieces(list(dict.fromkeys([*wanted.columns, sort]))):
            passing = np.flatnonzero(wanted.mask(piece))
            total += len(passing)
            own = wanted.keys(piece, passing, sort, down)
            best = np.concatenate([best, passing[own < bound] + start])
            keys = np.concatenate([keys, own[own < bound]])
            if len(best) > 2 * limit:
                best, keys = _smallest(best, keys, limit)
                bound = keys[-1]
        return _smallest(best, keys, limit)[0][first:], total

    def passing(self, wanted: Filter) -> Iterator[pa.RecordBatch]:
        """All rows that pass, all columns, piece by piece in order of rank."""
        for _, piece in self.pieces(self.column_names):
            yield piece.filter(pa.array(wanted.mask(piece)))

    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.path, memory_map=True, page_checksum_verification=True)  # touches what it reads


def _smallest(rows: NDArray[np.int64], keys: NDArray[Any], count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The `count` rows of the smallest keys, in order."""
    order = np.lexsort((rows, keys))[:count]
    return rows[order], keys[order]


def _keys(column: pa.Array, down: bool) -> NDArray[np.float64]:
    """Numbers that sort as the column does; what is missing comes last."""
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), -values if down else values, np.finfo(np.float64).max)


def _is_word(column: pa.DictionaryArray, word: str) -> NDArray[np.bool_]:
    """Which rows of a column of categories are this one."""
    words = column.dictionary.to_pylist()
    return _numpy(column.indices) == (words.index(word) if word in words else -1)


def _numpy(column: pa.Array) -> NDArray[Any]:
    return column.to_numpy(zero_copy_only=False)
