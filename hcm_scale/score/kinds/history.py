"""Unlike its own history: rows of the edge table whose amounts are far from what their payer and payee usually see.

How it is measured, and its false alarms: `rows/history.py`.
"""

from typing import Any

import numpy as np

from hcm_scale.rows.history import rank_table
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import OF_ROWS, SURE_WITNESS, Column, Kind, Reason, Values
from hcm_scale.score.kinds.row_phrases import evidence_of, times_text

FAR_FROM_PAYEE = "it is far from what its payee usually receives"
_ODD = 4.0  # nats of a row's rank from which on it counts as odd


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    made = inputs.rows.history
    inputs.measured(lambda: [made.cuts], "history_cuts")
    inputs.scale["history_ranks"] = rank_table(made.of_rows)  # of these rows, whatever odd ones are told by
    return [made.of_accounts]


def _are_cuts(array: Any) -> bool:
    return array is not None and array.shape[0] == 3 and bool((array[:, 0] >= 0.0).all() and (array[:, 1] > 0.0).all())


def _are_ranks(array: Any) -> bool:
    return array is not None and array.ndim == 1 and len(array) > 0 and bool((np.diff(array, prepend=0.0) >= 0.0).all())


def _applies(inputs: KindInputs) -> bool:
    return inputs.rows is not None and bool(np.isfinite(inputs.rows.rows.amount).any())


def _reason(around: Around) -> dict[str, Any]:
    """How many of its rows are odd, and their median amount over the usual one of those it pays, or is paid."""
    rows = evidence_of(around)
    out, into = rows.of_account(around.node)
    odd_out, odd_into = (own[rows.surprises[own, 0] >= _ODD] for own in (out, into))
    details: dict[str, Any] = {"paid": len(odd_out), "received": len(odd_into)}
    own, odd = (out, odd_out) if len(odd_out) >= len(odd_into) else (into, odd_into)
    amount = rows.amounts[odd][np.isfinite(rows.rows.amount[odd])]
    others = np.setdiff1d(own, odd)
    usual = rows.amounts[others][np.isfinite(rows.rows.amount[others])]
    if len(amount) and len(usual):
        details |= {"odd": float(np.median(amount)), "usual": float(np.median(usual))}
    return {"value": around.number, "count": len(out) + len(into), "details": details}


def _sentence(_: Any, r: Reason) -> str:
    paid, received = r.details["paid"], r.details["received"]
    if not paid + received:
        return f"some of its {r.count:,} payments are of amounts that it rarely has"
    what = f"{paid + received:,} of its {r.count:,} payments {'is' if paid + received == 1 else 'are'}"
    end = "it receives" if received > paid else "it pays"
    if "odd" not in r.details:
        return f"{what} far from what those who pay and are paid usually see"
    ratio = r.details["odd"] / r.details["usual"]
    if 0.5 < ratio < 2.0:
        return f"{what} of amounts far from what those who pay and are paid usually see"
    return f"{what} of odd amounts, about {r.details['odd']:,.2f}, {times_text(ratio)} what {end} otherwise"


def _row_sentence(evidence: Any, row: int) -> str:
    rows, payer = evidence.rows, int(evidence.rows.rows.payer[row])
    others = rows.amounts[rows.rows.out.of(payer)]
    others = others[np.isfinite(others) & (others > 0.0)]
    if len(others) < 2:
        return FAR_FROM_PAYEE
    usual = float(np.median(others))
    return compared_text(rows.amounts[row] / usual, usual, len(others) - 1)


def compared_text(ratio: float, usual: float, count: int) -> str:
    """What is said of a row whose payer usually pays another amount, by so many other rows."""
    what = f"{count:,} other payment{'s' * (count != 1)}"
    return f"it is {times_text(ratio)} what its payer usually pays, {usual:,.2f} by {what}"


HISTORY = Kind(
    name="history",
    columns={"history": Column("surprise of its odd amounts (nats)", title="Unlike its own history")},
    title="unlike its own history",
    short="History",
    help="Many of its payments have amounts far from what it, and those at the other end, usually see. It counts "
    "beyond the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=_applies,
    ranks_all_nodes=True,
    zero_says_nothing=True,
    tail=OF_ROWS,
    stored={"history_cuts": _are_cuts, "history_ranks": _are_ranks},
    tail_only=SURE_WITNESS,
    reason=_reason,
    sentence=_sentence,
    row_title="unlike their history",
    row_sentence=_row_sentence,
)
