"""A node table: its ids numbered, its attribute columns surveyed and written, its labels checked.

Three passes over the files (ids; survey; write), each in the memory of one batch; `x.npy` is written through a map.
Nodes that edges alone name come after the table's rows and are encoded as rows of nulls, flagged as nodes of a type
that has no such columns: they lack nothing, and nothing is said of their attributes.

In the place of a survey the encodings of an earlier table may be given, for tomorrow's table beside a model that was
trained on today's: the same columns, values and dates mean the same numbers. Columns are found by name. One that is
missing, and a text that the earlier table did not have, are gaps, named in the log; new columns are named and not used.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base.console import event
from hcm_scale.base.names import GAP_SUFFIX, NO_COLUMN
from hcm_scale.graph.store import NodeTypes
from hcm_scale.ingest import encode
from hcm_scale.ingest.arrays import FeatureCounts, write_types
from hcm_scale.ingest.encode import Encoding, is_date, is_number, is_text
from hcm_scale.ingest.ids import GrowingIds, IdReader
from hcm_scale.ingest.policy import Columns, InputError, Offenders, Policy, known_cases, not_finite
from hcm_scale.ingest.table_files import TableFiles

log = logging.getLogger(__name__)
_SHOWN = 5  # names in a line of the log
_ALL_HASHES = 1 << 22  # kept to count distinct values, of all columns together
_GROUP_COLUMNS = 64
Rows = NDArray[np.int64]
Column = TypeVar("Column")


class NodeTable:
    """The files of a node table and how to read them; once its rows are numbered, their ids, which edges may add to."""

    ids: GrowingIds
    num_rows = 0  # that are kept

    def __init__(self, files: TableFiles, columns: Columns, policy: Policy, trained: Sequence[Encoding] | None) -> None:
        """`trained` are the encodings of an earlier table: what was text there is read as text."""
        was_text = [
            one.name for one in trained or () if isinstance(one, encode.CategoryEncoding) and one.name in files.kinds
        ]
        is_dictionary = pa.types.is_dictionary
        files = files.with_casts({name: pa.string() for name in was_text if not is_dictionary(files.kinds[name])})
        self.files = files.with_text_formats(_attribute_names(files, columns), columns.dates, columns.numbers)
        self.columns, self.trained = columns, trained
        self.names = _attribute_names(self.files, columns)
        self.left_out: Rows = np.zeros(0, np.int64)  # row numbers that repeat an earlier id
        self._policy, self._where = policy, files.rows_of("the node table")
        self.new_values: dict[str, int] = {}  # rows with a text that the earlier table did not have, by column

    @property
    def num_added(self) -> int:
        """Nodes that edges alone name."""
        return len(self.ids) - self.num_rows

    def number_rows(self, id_kind: str) -> GrowingIds:
        """The distinct ids, numbered in the order of the rows."""
        self.ids = GrowingIds(id_kind)
        reader = IdReader(id_kind, self._where, self.files.describe_row)
        again = Offenders("rows repeat an id", self._where, "graph.repeated=first keeps the first row of each")
        row, left_out = 0, [self.left_out]
        for batch in self.files.batches([self.columns.id]):
            column = reader.read(batch.column(0), row).drop_null()  # a null is an error when the reader checks
            before = len(self.ids)
            numbers = self.ids.add(column)
            late = np.ones(len(column), np.bool_)
            late[np.unique(numbers, return_index=True)[1]] = False
            late |= numbers < before
            again.add(late, lambda i: f"{self.files.describe_row(row + i)}: {column[i]}")  # noqa: B023
            left_out.append(np.flatnonzero(late) + row)
            row += len(batch)
        reader.check()
        if self._policy.repeated == "error":
            again.check()
        self.num_rows, self.left_out = len(self.ids), np.concatenate(left_out)
        return self.ids

    def _batches(self, names: Sequence[str]) -> Iterator[tuple[Rows, pa.RecordBatch]]:
        """Streams (row numbers, batch) without the rows left out."""
        row = 0
        for batch in self.files.batches(names) if names else ():
            rows = np.arange(row, row + len(batch))
            first, last = np.searchsorted(self.left_out, (row, row + len(batch)))
            row += len(batch)
            if first < last:
                keep = ~np.isin(rows, self.left_out[first:last])
                rows, batch = rows[keep], batch.filter(pa.array(keep))
            yield rows, batch

    def _groups(self, columns: Sequence[Column]) -> list[Sequence[Column]]:
        """Columns that are read together: of Parquet a few at a time, each of which takes a page and more."""
        step = len(columns) if self.files.is_csv else _GROUP_COLUMNS
        return [columns[first : first + step] for first in range(0, len(columns), step)]

    def encodings(self) -> list[Encoding]:
        """The encodings of the attributes, from a survey of all rows but those left out; or those of the earlier table.

        Raises for values that are not finite, unless the policy replaces them.
        """
        if self.trained is not None:
            return self._checked_encodings(self.trained)
        bad = not_finite(self._where)
        surveys = [self._survey(name, bad) for name in self.names]
        self._read(surveys, bad)
        return [survey.encoding(self._policy.nonfinite, self.num_added) for survey in surveys]

    def _read(self, surveys: Sequence[encode.Survey | encode.UnknownSurvey], bad: Offenders) -> None:
        for group in self._groups(surveys):
            for rows, batch in self._batches([survey.name for survey in group]):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for survey in group:
                    survey.add(columns[survey.name], rows)
        if self._policy.nonfinite == "error":
            bad.check()

    def _survey(self, name: str, bad: Offenders) -> encode.Survey:
        kind = self.files.type_of(name)
        if encode.is_vector(kind):
            return encode.VectorSurvey(name, bad, self.files.describe_row)
        if is_number(kind) or is_date(kind):
            most = max(1, _ALL_HASHES // max(1, len(self.names)))
            return encode.NumberSurvey(name, bad, self.files.describe_row, is_date(kind), min(encode.NUM_HASHES, most))
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if is_text(value) or (value is not kind and (is_number(value) or is_date(value))):
            return encode.CategorySurvey(name, self.columns)
        raise InputError(
            f"{self.files.origin} column {name!r} of type {kind} is no attribute; graph.exclude=[{name}] leaves it out"
        )

    def _checked_encodings(self, trained: Sequence[Encoding]) -> list[Encoding]:
        """The trained encodings with what was counted here; refuses columns of another type, names what is new."""
        there = [one for one in trained if one.name in self.files.kinds]
        if not any(one.names for one in there):
            wanted = _some([one.name for one in trained if one.names])
            raise InputError(f"{self.files.origin} has none of the columns of the trained graph: {wanted}")
        lacking = [one for one in trained if one.name not in self.files.kinds]
        if missing := [one.name for one in lacking if not isinstance(one, encode.EmptyEncoding)]:
            what = "columns of the trained graph are missing here, and taken as gaps"
            extra = event("missing_columns", columns=missing)
            log.warning("%d %s: %s", len(missing), what, _some(missing), extra=extra)
        expected = _unused(self.files, self.columns) | {*(one.name for one in trained)}
        if new := [name for name in self.files.kinds if name not in expected]:
            what, extra = "columns are not of the trained graph, and not used", event("new_columns", columns=new)
            log.warning("%d %s: %s", len(new), what, _some(new), extra=extra)
        bad = not_finite(self._where)
        measured = (encode.NumberEncoding, encode.VectorEncoding)
        numbers = [self._trained_survey(one, bad) for one in there if isinstance(one, measured)]
        few = [one for one in there if isinstance(one, encode.CategoryEncoding) and not one.buckets]
        unknown = [encode.UnknownSurvey(one) for one in few]
        self._read([*numbers, *unknown], bad)
        for survey in numbers:
            survey.encoding(self._policy.nonfinite, 0)  # raises for vectors of another length
        for seen in unknown:
            if counts := seen.counts:
                self.new_values[seen.name] = counts.total()
                warn_of_new(seen.name, counts.total(), [value for value, _ in counts.most_common(_SHOWN + 1)])
        num_bad = {one.name: one.num_nonfinite for one in numbers if isinstance(one, encode.NumberSurvey)}
        return [
            replace(one, nonfinite=num_bad.get(one.name, 0)) if isinstance(one, encode.NumberEncoding) else one
            for one in trained
        ]

    def _trained_survey(self, trained: encode.NumberEncoding | encode.VectorEncoding, bad: Offenders) -> encode.Survey:
        kind, was, dates = self.files.type_of(trained.name), trained.method, trained.method == "date"
        is_legal = {"vector": encode.is_vector, "date": is_date}.get(was, is_number)
        is_other = pa.types.is_boolean(kind) and trained.distinct > 2  # 0 and 1 may well be written as true and false
        if is_other or not (pa.types.is_null(kind) or is_legal(kind)):
            what = f"is of type {kind}, and was a {was} in the trained graph"
            what += "; graph.dates=day-first or month-first says how it is written" if dates and is_text(kind) else ""
            raise InputError(f"{self.files.origin} column {trained.name!r} {what}")
        if isinstance(trained, encode.VectorEncoding):
            return encode.VectorSurvey(trained.name, bad, self.files.describe_row, len(trained.mean))
        return encode.NumberSurvey(trained.name, bad, self.files.describe_row, dates=dates)

    def write_features(self, x: NDArray[np.float32], encodings: Sequence[Encoding]) -> FeatureCounts:
        """Writes the first columns of `x`: the rows that are kept, then a row of nulls for each added node."""
        details = tuple(map(encode.encoding_as_json, encodings))
        names = tuple(name for encoding in encodings for name in encoding.names)
        if not names:
            return FeatureCounts(details=details)
        x = x[:, : len(names)]
        first = imputed = 0
        for group in self._groups(encodings):
            own = x[: self.num_rows, first : first + sum(len(one.names) for one in group)]
            start, first = 0, first + own.shape[1]
            for _, batch in self._batches([one.name for one in group if one.name in self.files.kinds]):
                imputed += _encode(group, batch, own[start : start + len(batch)])
                start += len(batch)
            if not start:  # the table has none of these
                imputed += _encode(group, pa.RecordBatch.from_arrays([], []), own)
        if self.num_added:
            row = np.zeros((1, len(names)), np.float32)
            imputed += self.num_added * _encode(encodings, pa.RecordBatch.from_arrays([], []), row)
            row[:, [name.endswith(GAP_SUFFIX) for name in names]] = NO_COLUMN
            x[self.num_rows :] = row
        nonfinite = sum(one.nonfinite for one in encodings if isinstance(one, encode.NumberEncoding))
        return FeatureCounts(names, len(names), imputed, nonfinite, details)

    def write_types(self, folder: Path, features: FeatureCounts) -> NodeTypes | None:
        """Writes the types of nodes, if a column has several; added nodes have none. Returns them."""
        if not (name := self.columns.node_type):
            return None
        texts = [batch.column(0).cast(pa.large_string()).dictionary_encode() for _, batch in self._batches([name])]
        added = pa.nulls(self.num_added, pa.large_string()).dictionary_encode()
        types = NodeTypes.of(pa.chunked_array([*texts, added]), f"graph.node_type_column={name!r}")
        if types is not None:
            write_types(folder, types, features.columns)
        return types

    def write_labels(self, folder: Path) -> int | None:
        """Writes y.npy, if there are labels, 0 or 1 or booleans; 0 for added nodes. Returns the number of ones."""
        if not (label := self.columns.label):
            return None
        y = np.zeros(len(self.ids), np.uint8)
        where = self.files.rows_of(f"graph.label_column={label!r}")
        bad = Offenders("labels are not 0 or 1", where, one="label is not 0 or 1")
        start = 0
        for rows, batch in self._batches([label]):
            column = batch.column(0)
            if not is_number(column.type):
                raise ValueError(
                    f"graph.label_column={label!r} is of type {column.type}; legal are booleans and the numbers 0 and 1"
                )
            values = column.cast(pa.uint8() if pa.types.is_boolean(column.type) else pa.float64(), safe=False)
            numbers = values.fill_null(2).to_numpy(zero_copy_only=False)
            is_bad = (numbers != 0) & (numbers != 1)
            bad.add(is_bad, lambda i: f"{self.files.describe_row(int(rows[i]))}: {column[i]}")  # noqa: B023
            y[start : start + len(batch)] = numbers == 1
            start += len(batch)
        bad.check()
        np.save(folder / "y.npy", y, allow_pickle=False)
        return int(y.sum())


def unnamed_index(files: TableFiles, columns: Columns) -> list[str]:
    """The columns that pandas wrote to number the rows, and that the user does not name."""
    return [name for name in files.index_columns if name not in columns.named]


def _unused(files: TableFiles, columns: Columns) -> set[str | None]:
    node_type = None if columns.node_type in (columns.attributes or ()) else columns.node_type
    return {columns.id, columns.label, node_type, *columns.exclude, *unnamed_index(files, columns)}


def _attribute_names(files: TableFiles, columns: Columns) -> tuple[str, ...]:
    chosen = columns.attributes if columns.attributes is not None else tuple(files.kinds)
    unused = _unused(files, columns)
    return tuple(name for name in chosen if name not in unused and not known_cases(name, columns))


def _encode(encodings: Sequence[Encoding], batch: pa.RecordBatch, out: NDArray[np.float32]) -> int:
    """Writes the rows of `out`; columns that the batch lacks are gaps. Returns the number of gaps."""
    at = num_gaps = 0
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for encoding in encodings:
        if not isinstance(encoding, encode.EmptyEncoding):
            column = columns[encoding.name] if encoding.name in columns else pa.nulls(len(out))
            width = len(encoding.names)
            encoding.encode(column, out[:, at : at + width])
            num_gaps += column.null_count
            at += width
    return num_gaps


def warn_of_new(column: str, num_rows: int, values: Sequence[str]) -> None:
    """Warns of values that an earlier table did not have."""
    what = "rows with values that the trained graph did not have, taken as gaps"
    extra = event("new_values", column=column, num_rows=num_rows)
    log.warning("column %r has %s %s: %s", column, f"{num_rows:,}", what, _some(values), extra=extra)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
