"""A node table: its ids numbered, its attribute columns surveyed and written, its labels checked.

Three passes over the files (ids; survey; write), each in the memory of one batch; `x.npy` is written through a map.
Nodes that edges alone name come after the table's rows and are encoded as rows of nulls.

In the place of a survey `check_encodings` takes the encodings of an earlier table, for tomorrow's table beside a model
that was trained on today's: the same columns, values and dates mean the same numbers. Columns are found by name. One
that is missing, and a text that the earlier table did not have, are gaps, named in the log; new columns are named and
not used.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.npy import create_npy
from hcm_scale.ingest.arrays import FeatureCounts
from hcm_scale.ingest.encode import (
    CategoryEncoding,
    CategorySurvey,
    EmptyEncoding,
    Encoding,
    NumberEncoding,
    NumberSurvey,
    Survey,
    TextRules,
    encoding_as_json,
    is_date,
    is_number,
    is_text,
    texts,
)
from hcm_scale.ingest.ids import GrowingIds, IdReader
from hcm_scale.ingest.policy import InputError, Offenders, Policy, not_finite
from hcm_scale.ingest.table_files import TableFiles

log = logging.getLogger(__name__)
_SHOWN = 5  # names in a line of the log
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class NodeRows:
    """The ids of a node table in order, and the row numbers that repeat an earlier id and are left out."""

    ids: GrowingIds
    left_out: Rows


def number_rows(files: TableFiles, id_column: str, kind: str, repeated: str) -> NodeRows:
    """The distinct ids, numbered in the order of the rows."""
    ids = GrowingIds(kind)
    table = files.rows_of("the node table")
    reader = IdReader(kind, table, files.place)
    again = Offenders("rows repeat an id", table, "graph.repeated=first keeps the first row of each")
    row, left_out = 0, [np.zeros(0, np.int64)]
    for batch in files.batches([id_column]):
        column = reader.read(batch[id_column], row).drop_null()  # a null is an error when the reader checks
        before = len(ids)
        numbers = ids.add(column)
        is_first = np.zeros(len(column), np.bool_)
        is_first[np.unique(numbers, return_index=True)[1]] = True
        late = ~is_first | (numbers < before)
        again.add(late, lambda i: f"{files.place(row + i)}: {column[i]}")  # noqa: B023
        left_out.append(np.flatnonzero(late) + row)
        row += len(batch)
    reader.check()
    if repeated == "error":
        again.check()
    return NodeRows(ids, np.concatenate(left_out))


def _batches(files: TableFiles, names: Sequence[str], left_out: Rows) -> Iterator[tuple[Rows, pa.RecordBatch]]:
    """Streams (row numbers, batch) without the rows left out."""
    row = 0
    for batch in files.batches(names):
        rows = np.arange(row, row + len(batch))
        first, last = np.searchsorted(left_out, (row, row + len(batch)))
        row += len(batch)
        if first < last:
            keep = np.ones(len(batch), np.bool_)
            keep[left_out[first:last] - rows[0]] = False
            rows, batch = rows[keep], batch.filter(pa.array(keep))
        yield rows, batch


def plan_columns(
    files: TableFiles, names: Sequence[str], left_out: Rows, added: int, policy: Policy, rules: TextRules
) -> list[Encoding]:
    """The encodings of the columns, from a survey of all rows but those left out."""
    bad = not_finite(files.rows_of("the node table"))
    surveys = [_survey(n, files, bad, rules) for n in names]
    for rows, batch in _batches(files, names, left_out) if names else ():
        for survey in surveys:
            survey.add(batch[survey.name], rows)
    if policy.nonfinite == "error":
        bad.check()
    return [survey.encoding(policy.nonfinite, added) for survey in surveys]


def _survey(name: str, files: TableFiles, bad: Offenders, rules: TextRules) -> Survey:
    kind = files.type_of(name)
    if is_number(kind) or is_date(kind):
        return NumberSurvey(name, bad, files.place, dates=is_date(kind))
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(value) or (value is not kind and (is_number(value) or is_date(value))):
        return CategorySurvey(name, rules)
    raise InputError(
        f"{files.origin} column {name!r} of type {kind} is no attribute; graph.exclude=[{name}] leaves it out"
    )


def write_features(
    folder: Path, files: TableFiles, encodings: list[Encoding], left_out: Rows, shape: tuple[int, int]
) -> FeatureCounts:
    """Writes x.npy for `shape` = (rows of the table that are kept, added nodes)."""
    names = tuple(name for encoding in encodings for name in encoding.names)
    if not names:
        return FeatureCounts(details=tuple(encoding_as_json(encoding) for encoding in encodings))
    x = create_npy(folder / "x.npy", np.float32, (sum(shape), len(names)))
    start = imputed = 0
    there = [encoding.name for encoding in encodings if encoding.name in files.schema.names]
    for _, batch in _batches(files, there, left_out):
        imputed += _encode(encodings, batch, x[start : start + len(batch)])
        start += len(batch)
    if shape[1]:
        row = np.zeros((1, len(names)), np.float32)
        blank = pa.RecordBatch.from_arrays([pa.nulls(1, files.type_of(name)) for name in there], there)
        imputed += shape[1] * _encode(encodings, blank, row)
        x[start:] = row
    x.flush()
    return FeatureCounts(
        names,
        len(names),
        imputed=imputed,
        nonfinite=sum(getattr(encoding, "nonfinite", 0) for encoding in encodings),
        details=tuple(encoding_as_json(encoding) for encoding in encodings),
    )


def _encode(encodings: list[Encoding], batch: pa.RecordBatch, out: NDArray[np.float32]) -> int:
    """Writes a batch; columns that it lacks are gaps. Returns the number of gaps."""
    at = num_gaps = 0
    for encoding in encodings:
        width = len(encoding.names)
        if width:
            column = batch[encoding.name] if encoding.name in batch.schema.names else pa.nulls(len(batch))
            encoding.encode(column, out[:, at : at + width])
            num_gaps += column.null_count
        at += width
    return num_gaps


def write_labels(folder: Path, files: TableFiles, label: str, left_out: Rows, shape: tuple[int, int]) -> int:
    """Writes y.npy from a column of 0/1 or booleans, 0 for added nodes; returns the number of ones."""
    y = np.zeros(sum(shape), np.uint8)
    where = files.rows_of(f"graph.label_column={label!r}")
    bad = Offenders("labels are not 0 or 1", where, one="label is not 0 or 1")
    start = 0
    for rows, batch in _batches(files, [label], left_out):
        column = batch[label]
        if not is_number(column.type):
            raise ValueError(
                f"graph.label_column={label!r} is of type {column.type}; legal are booleans and the numbers 0 and 1"
            )
        values = column.cast(pa.uint8() if pa.types.is_boolean(column.type) else pa.float64(), safe=False)
        numbers = values.fill_null(2).to_numpy(zero_copy_only=False)
        bad.add((numbers != 0) & (numbers != 1), lambda i: f"{files.place(int(rows[i]))}: {column[i]}")  # noqa: B023
        y[start : start + len(batch)] = numbers == 1
        start += len(batch)
    bad.check()
    np.save(folder / "y.npy", y, allow_pickle=False)
    return int(y.sum())


def text_casts(table: TableFiles, trained: Sequence[Encoding]) -> dict[str, pa.DataType]:
    """Columns that were categories and are stored as something else now, to be read as text."""
    names = [one.name for one in trained if isinstance(one, CategoryEncoding) and one.name in table.schema.names]
    return {name: pa.string() for name in names if not pa.types.is_dictionary(table.schema.field(name).type)}


def check_encodings(
    table: TableFiles, trained: Sequence[Encoding], unused: Sequence[str], left_out: Rows, policy: Policy
) -> list[Encoding]:
    """One pass over the table: refuses columns of another type and values that are not finite, names what is new.

    Returns the encodings with what was counted here.
    """
    there = [one for one in trained if one.name in table.schema.names]
    if not any(one.names for one in there):
        wanted = _some([one.name for one in trained if one.names])
        raise InputError(f"{table.origin} has none of the columns of the trained graph: {wanted}")
    missing = [one.name for one in trained if one not in there and not isinstance(one, EmptyEncoding)]
    if missing:
        what = "columns of the trained graph are missing here, and taken as gaps"
        log.warning("%d %s: %s", len(missing), what, _some(missing))
    new = [name for name in table.schema.names if name not in {*unused, *(one.name for one in trained)}]
    if new:
        log.warning("%d columns are not of the trained graph, and not used: %s", len(new), _some(new))
    bad = not_finite(table.rows_of("the node table"))
    numbers = [_number_survey(table, one, bad) for one in there if isinstance(one, NumberEncoding)]
    categories = {one: Counter[str]() for one in there if isinstance(one, CategoryEncoding) and not one.buckets}
    names = [*(one.name for one in numbers), *(one.name for one in categories)]
    for rows, batch in _batches(table, names, left_out) if names else ():
        for survey in numbers:
            survey.add(batch[survey.name], rows)
        for one, unknown in categories.items():
            values = texts(batch[one.name]).drop_null()
            is_known = pc.is_in(values, pa.array(one.categories, values.type))
            unknown.update(values.filter(pc.invert(is_known)).to_pylist())
    if policy.nonfinite == "error":
        bad.check()
    for one, unknown in categories.items():
        if unknown:
            log.warning(
                "column %r has %s rows with values that the trained graph did not have, taken as gaps: %s",
                *(one.name, f"{unknown.total():,}", _some([value for value, _ in unknown.most_common(_SHOWN + 1)])),
            )
    num_bad = {survey.name: survey.num_nonfinite for survey in numbers}
    return [
        replace(one, nonfinite=num_bad.get(one.name, 0)) if isinstance(one, NumberEncoding) else one for one in trained
    ]


def _number_survey(table: TableFiles, trained: NumberEncoding, bad: Offenders) -> NumberSurvey:
    kind = table.type_of(trained.name)
    dates = trained.method == "date"
    if not (pa.types.is_null(kind) or (is_date(kind) if dates else is_number(kind))):
        raise InputError(
            f"{table.origin} column {trained.name!r} is of type {kind}, and was a {trained.method} in the trained graph"
        )
    return NumberSurvey(trained.name, bad, table.place, dates=dates)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
