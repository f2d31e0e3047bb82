"""Burst: many rows of the edge table within an hour to two weeks, where the node usually has few.

How it is measured, and its false alarms: `rows/burst.py`.
"""

from typing import Any

import numpy as np

from hcm_scale.rows.burst import Burst, bursts
from hcm_scale.rows.evidence import MadeEvidence, RowEvidence
from hcm_scale.rows.stream import Burst as NewBurst
from hcm_scale.rows.stream import judge_bursts
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.history import history_of
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import ROW_KIND, Column, Reason, Values
from hcm_scale.score.kinds.row_phrases import at_once_text, evidence_of, length_text, span_texts, time_text


def _burst_of(made: MadeEvidence) -> Burst:
    return bursts(made.rows, made.once(history_of).is_regular)


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    made = inputs.rows.once(_burst_of)
    inputs.scale["burst_shapes"] = made.shapes  # by which later rows are judged
    return [made.of_accounts]


def _are_shapes(array: Any) -> bool:
    return array is not None and array.ndim == 2 and len(array) == 2 and bool((array > 0.0).all())


def has_times(inputs: KindInputs) -> bool:
    """Whether there are rows at more than one time."""
    return inputs.rows is not None and inputs.rows.rows.has_times


def _reason(around: Around) -> dict[str, Any]:
    """How many rows the burst has, with how many partners, when and for how long, and how many are usual."""
    rows, node = evidence_of(around), around.node
    first, last = (int(row) for row in rows.spans["burst"][node])
    if first < 0 or last < first:
        return {"value": around.number}
    pays = bool(rows.rows.payer[first] == node)
    own, ends = (rows.rows.payer, rows.rows.payee) if pays else (rows.rows.payee, rows.rows.payer)
    every = np.flatnonzero(own == node)
    inside = every[(every >= first) & (every <= last)]
    begin, end = float(rows.rows.time[first]), float(rows.rows.time[last])
    span = float(rows.rows.time[-1] - rows.rows.time[0])
    usual = (len(every) - len(inside)) * (end - begin) / max(span, 1.0)
    details = {"pays": pays, "partners": len(np.unique(ends[inside])), "begin": begin, "end": end, "steps": rows.steps}
    noun: dict[str, Any] = {} if rows.has_amounts else {"noun": "row"}
    return {"value": around.number, "usual": usual, "count": len(inside), "details": details | noun}


def _rows_of(rows: RowEvidence, account: int) -> Any:
    first, last = rows.spans["burst"][account]
    if first < 0:
        return np.zeros(0, np.int64)
    own = (rows.rows.out if rows.rows.payer[first] == account else rows.rows.into).of(account)
    return own[(own >= first) & (own <= last)]


def _sentence(_: Any, r: Reason) -> str:
    d = r.details
    if not d:
        return "it has far more payments at some time than it usually has"
    partners = f"{'to' if d['pays'] else 'from'} {d['partners']:,} account{'s' * (d['partners'] != 1)}"
    when = f"{'at' if d['steps'] else 'on'} {time_text(d['begin'], d['steps'], clock=False)}"
    if d["end"] > d["begin"]:
        first = span_texts([d["begin"], d["end"]], d["steps"])[0]
        when = f"within {length_text(d['end'] - d['begin'], d['steps'])} from {first} on"
    usual = f"{r.usual:,.1f}" if r.usual is not None and r.usual >= 0.1 else "hardly any"
    what = f"{r.count:,} {d.get('noun', 'payment')}s {'out' if d['pays'] else 'in'}"
    return f"{what} {partners} {when}, where {usual} are usual"


def _row_sentence(evidence: Any, row: int) -> str:
    kept = evidence.rows
    rows = kept.rows
    for own, by, whose in ((rows.payee, rows.into, "to its payee"), (rows.payer, rows.out, "by its payer")):
        account = int(own[row])
        first, last = kept.spans["burst"][account]
        if 0 <= first <= row <= last and own[first] == account:
            count = np.searchsorted(by.of(account), last, "right") - np.searchsorted(by.of(account), first)
            seconds = float(rows.time[last] - rows.time[first])
            return _among_text(kept, int(count), whose, float(rows.time[row]), seconds)
    return "it is one of unusually many payments within a short time"


def _new_row_sentence(new: Any, told: NewBurst, row: int) -> str:
    whose = "to its payee" if told.is_in[row] else "by its payer"
    time = float(new.records["time"][row])
    return _among_text(new.run.evidence.rows, int(told.num_rows[row]), whose, time, float(told.seconds[row]))


def _among_text(rows: RowEvidence, count: int, whose: str, time: float, seconds: float) -> str:
    """What is said of a row that is one of many; `whose` they are."""
    when = f"within {length_text(seconds, rows.steps)}" if seconds else at_once_text(time, rows.steps)
    return f"it is one of {count:,} {'payments' if rows.has_amounts else 'rows'} {whose} {when}"


BURST = ROW_KIND(
    name="burst",
    columns={"burst": Column("surprise of its busiest time (nats)", title="Burst")},
    title="burst",
    short="Burst",
    help="Within an hour, a day, a week or two it has far more payments than usual, for it and for everybody at that "
    "time. It counts beyond the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=has_times,
    stored={"burst_shapes": _are_shapes},
    reason=_reason,
    sentence=_sentence,
    of_rows=lambda made: made.once(_burst_of).of_rows,
    row_spans={"burst": lambda made: made.once(_burst_of).ends},
    row_title="part of a burst",
    row_sentence=_row_sentence,
    judge=judge_bursts,
    new_row_sentence=_new_row_sentence,
    rows_of=_rows_of,
)
