"""A node table read by the encodings of an earlier one: the same columns, values and dates mean the same numbers.

For tomorrow's table beside a model that was trained on today's. Columns are found by name. One that is missing, and a
text that the earlier table did not have, count as gaps and are named in the log; one that is new is named and not used.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.ingest.batches import TableFiles
from hcm_scale.ingest.encode import CategoryEncoding, EmptyEncoding, Encoding, NumberEncoding, is_date, is_number, texts
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.node_table import Rows, kept_batches
from hcm_scale.ingest.policy import Offenders, Policy, not_finite
from hcm_scale.ingest.surveys import NumberSurvey

log = logging.getLogger(__name__)

_SHOWN = 5  # names in a line of the log


def text_casts(table: TableFiles, known: Sequence[Encoding]) -> dict[str, pa.DataType]:
    """Columns that were categories and are stored as something else now, to be read as text."""
    names = [one.name for one in known if isinstance(one, CategoryEncoding) and one.name in table.schema.names]
    return {name: pa.string() for name in names if not pa.types.is_dictionary(table.schema.field(name).type)}


def check_table(
    table: TableFiles, known: Sequence[Encoding], unused: Sequence[str], left_out: Rows, policy: Policy
) -> list[Encoding]:
    """One pass over the table: refuses columns of another type and values that are not finite, names what is new.

    Returns the encodings with what was counted here.
    """
    there = [one for one in known if one.name in table.schema.names]
    if not any(one.names for one in there):
        wanted = _some([one.name for one in known if one.names])
        raise InputError(f"{table.origin} has none of the columns of the trained graph: {wanted}")
    _tell("columns of the trained graph are missing here, and taken as gaps", known, there)
    new = [name for name in table.schema.names if name not in {*unused, *(one.name for one in known)}]
    if new:
        log.warning("%d columns are not of the trained graph, and not used: %s", len(new), _some(new))
    bad = not_finite(table.rows_of("the node table"))
    numbers = [_number(table, one, bad) for one in there if isinstance(one, NumberEncoding)]
    categories = {one: Counter[str]() for one in there if isinstance(one, CategoryEncoding) and not one.buckets}
    names = [*(one.name for one in numbers), *(one.name for one in categories)]
    for rows, batch in kept_batches(table, names, left_out) if names else ():
        for survey in numbers:
            survey.add(batch[survey.name], rows)
        for one, strange in categories.items():
            values = texts(batch[one.name]).drop_null()
            is_known = pc.is_in(values, pa.array(one.categories, values.type))
            strange.update(values.filter(pc.invert(is_known)).to_pylist())
    if policy.nonfinite == "error":
        bad.check()
    _tell_strange(categories)
    counted_bad = {survey.name: survey.num_nonfinite for survey in numbers}
    return [
        replace(one, nonfinite=counted_bad.get(one.name, 0)) if isinstance(one, NumberEncoding) else one
        for one in known
    ]


def _tell_strange(categories: Mapping[CategoryEncoding, Counter[str]]) -> None:
    for one, strange in categories.items():
        if strange:
            log.warning(
                "column %r has %s rows with values that the trained graph did not have, taken as gaps: %s",
                *(one.name, f"{strange.total():,}", _some([value for value, _ in strange.most_common(_SHOWN + 1)])),
            )


def _number(table: TableFiles, known: NumberEncoding, bad: Offenders) -> NumberSurvey:
    kind = table.casts.get(known.name, table.schema.field(known.name).type)
    dates = known.method == "date"
    if not (pa.types.is_null(kind) or (is_date(kind) if dates else is_number(kind))):
        raise InputError(
            f"{table.origin} column {known.name!r} is of type {kind}, and was a {known.method} in the trained graph"
        )
    return NumberSurvey(known.name, bad, table.place, dates=dates)


def _tell(what: str, known: Sequence[Encoding], there: Sequence[Encoding]) -> None:
    missing = [one.name for one in known if one not in there and not isinstance(one, EmptyEncoding)]
    if missing:
        log.warning("%d %s: %s", len(missing), what, _some(missing))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
