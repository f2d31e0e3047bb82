"""Passed on: amounts that leave a node soon after they came, nearly whole.

How it is measured, and its false alarms: `rows/flow.py`.
"""

from typing import Any

import numpy as np

from hcm_scale.rows.evidence import MadeEvidence, RowEvidence
from hcm_scale.rows.flow import Flow, flows
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.burst import has_times
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import ROW_KIND, Column, Reason, Values
from hcm_scale.score.kinds.row_phrases import amount_text, at_once_text, evidence_of, length_text, row_facts


def _flow_of(made: MadeEvidence) -> Flow:
    return flows(made.rows)


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    return [inputs.rows.once(_flow_of).of_accounts]


def has_flows(inputs: KindInputs) -> bool:
    """Whether there are rows of amounts at more than one time."""
    return has_times(inputs) and inputs.rows is not None and bool(np.isfinite(inputs.rows.rows.amount).any())


def _reason(around: Around) -> dict[str, Any]:
    """How many amounts it received and passed on, how long that took at most, and the share that stayed."""
    rows = evidence_of(around)
    out, into = rows.of_account(around.node)
    came = rows.links["came_by"][out]
    left, came = out[came >= 0], came[came >= 0]
    if not len(left):
        return {"value": around.number}
    kept = 1.0 - rows.amounts[left] / rows.amounts[came]
    delay = float((rows.rows.time[left] - rows.rows.time[came]).max())
    details = {"received": len(into), "delay": delay, "steps": rows.steps}
    details |= {"least": float(kept.min()), "most": float(kept.max())}
    return {"value": around.number, "count": len(left), "details": details}


def _rows_of(rows: RowEvidence, account: int) -> Any:
    left, came_by = rows.rows.out.of(account), rows.links["came_by"]
    left = left[came_by[left] >= 0]
    return np.concatenate([left, came_by[left]])


def _sentence(_: Any, r: Reason) -> str:
    d = r.details
    if not d:
        return "amounts leave it soon after they came, nearly whole"
    least, most = (f"{max(0.0, 100 * d[end]):.2g}" for end in ("least", "most"))
    less = "whole" if most == "0" else f"{f'{least} to ' * (least != most)}{most} % smaller"
    many = "1 amount" if d["received"] == 1 else f"{d['received']:,} amounts"
    within = f"within {length_text(d['delay'], d['steps'])}" if d["delay"] else "at once"
    return f"of {many} received {r.count:,} left {within}, {less}"


def _row_sentence(evidence: Any, row: int) -> str:
    rows, came = evidence.rows, int(evidence.rows.links["came_by"][row])
    if came < 0:
        return "its payee passes what it receives on within hours or days, nearly whole"
    time, before = (float(rows.rows.time[each]) for each in (row, came))
    when = f"{length_text(time - before, rows.steps)} before" if time > before else at_once_text(time, rows.steps)
    share = 100.0 * rows.amounts[row] / rows.amounts[came]
    return f"it passes on {share:.3g} % of {amount_text(row_facts(evidence, came))} that came {when}"


PASSED_ON = ROW_KIND(
    name="passed_on",
    columns={"passed_on": Column("surprise of what it passes on (nats)", title="Passed on")},
    title="passed on",
    short="Passed on",
    help="What it receives leaves it within hours or days, nearly whole, more often than amounts of its size agree by "
    "chance. It counts beyond the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=has_flows,
    reason=_reason,
    sentence=_sentence,
    of_rows=lambda made: made.once(_flow_of).of_rows,
    row_links={"came_by": lambda made: made.once(_flow_of).came_by},
    row_title="passed on",
    row_sentence=_row_sentence,
    rows_of=_rows_of,
)
