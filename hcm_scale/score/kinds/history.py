"""Unlike its own history: rows of the edge table whose amounts are far from what their payer and payee usually see.

How it is measured, and its false alarms: `rows/history.py`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.text import amount as amount_text
from hcm_scale.base.text import clip, counted
from hcm_scale.rows.evidence import MadeEvidence, RowEvidence
from hcm_scale.rows.history import (
    NEGATIVE,
    NUM_CUTS,
    TWICE,
    History,
    NewHistory,
    category_shares,
    history,
    new_categories,
    rank_table,
    sorts_among,
)
from hcm_scale.rows.rows import COLUMNS, NO_CATEGORY, Numbers, Rows
from hcm_scale.rows.stream import judge_history
from hcm_scale.score.kinds.around import Around
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import ROW_KIND, Column, Reason, Values
from hcm_scale.score.kinds.row_phrases import evidence_of, times_text

_NAME = "history"
_FAR_FROM_PAYEE = "it is far from what its payee usually receives"
_SORTS = {
    TWICE: "the same payer paid the same amount to the same payee within a day before",
    NEGATIVE: "its amount is negative, as few are",
}
_ODD = 4.0  # nats of a row's rank from which on it counts as odd


def history_of(made: MadeEvidence) -> History:
    return history(made.rows, made.before, made.given.get("history_cuts"))


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.rows is not None
    made = inputs.rows.once(history_of)
    inputs.measured(lambda: [made.cuts], "history_cuts")
    inputs.scale["history_ranks"] = rank_table(made.of_rows)  # of these rows, whatever odd ones are told by
    return [made.of_accounts]


def _are_cuts(array: Any) -> bool:
    return (
        array is not None
        and array.shape[0] == NUM_CUTS
        and bool((array[:, 0] >= 0.0).all() and (array[:, 1] > 0.0).all())
    )


def _are_ranks(array: Any) -> bool:
    return array is not None and array.ndim == 1 and len(array) > 0 and bool((np.diff(array, prepend=0.0) >= 0.0).all())


def _applies(inputs: KindInputs) -> bool:
    return inputs.rows is not None and bool(np.isfinite(inputs.rows.rows.amount).any())


def _reason(around: Around) -> dict[str, Any]:
    """How many of its rows are odd, and their median amount over the usual one of those it pays, or is paid."""
    rows = evidence_of(around)
    by_end = dict(zip(("paid", "received"), rows.of_account(around.node), strict=True))
    num_sorts, odd = np.zeros(3, np.int64), {}
    for end, own in by_end.items():
        is_odd, sort = rows.nats(_NAME)[own] >= _ODD, sorts_among(rows.rows, own)
        num_sorts += np.bincount(sort[is_odd], minlength=3)
        odd[end] = own[is_odd & (sort == 0)]
    details: dict[str, Any] = {end: len(its) for end, its in odd.items()}
    details |= {"twice": int(num_sorts[TWICE]), "negative": int(num_sorts[NEGATIVE])}
    own = by_end["paid"]
    values, _ = _categories_of(rows, around.node)
    if len(own) and values.max() - np.log(2.0) >= around.number - 1e-3 > 0.0:
        details |= {"category": _category_text(around.evidence, own, int(values.argmax()), "its")}
    most = max(odd, key=lambda end: len(odd[end]))
    codes = rows.rows.currency
    code = np.bincount(codes[odd[most]], minlength=1).argmax()  # amounts of one currency are compared
    chosen, others = (own[codes[own] == code] for own in (odd[most], np.setdiff1d(by_end[most], odd[most])))
    amount, usual = rows.amounts[chosen], rows.amounts[others][np.isfinite(rows.rows.amount[others])]
    if len(amount) and len(usual):
        details |= {"odd": float(np.median(amount)), "usual": float(np.median(usual))}
    return {"value": around.number, "count": sum(map(len, by_end.values())), "details": details}


def _sentence(_: Any, r: Reason) -> str:
    if "category" in r.details:
        return str(r.details["category"])
    paid, received, twice, negative = (r.details[name] for name in ("paid", "received", "twice", "negative"))
    if max(twice, negative) > paid + received:
        count = max(twice, negative)
        said = f"repeat{'s' * (count == 1)} an amount to the same payee within a day"
        said = f"{'is' if count == 1 else 'are'} negative" if negative > twice else said
        return f"{count:,} of its {counted(r.count, 'payment')} {said}"
    if not paid + received:
        return f"some of its {counted(r.count, 'payment')} are of amounts that it rarely has"
    what = f"{paid + received:,} of its {counted(r.count, 'payment')} {'is' if paid + received == 1 else 'are'}"
    end = "it receives" if received > paid else "it pays"
    if "odd" not in r.details:
        return f"{what} far from what those who pay and are paid usually see"
    ratio = r.details["odd"] / r.details["usual"]
    if 0.5 < ratio < 2.0:
        return f"{what} of amounts far from what those who pay and are paid usually see"
    return f"{what} of odd amounts, about {amount_text(r.details['odd'])}, {times_text(ratio)} what {end} otherwise"


def _rows_of(rows: RowEvidence, account: int) -> Any:
    """Those that are stranger than chance makes one of as many rows."""
    own = np.concatenate(rows.of_account(account))
    return own[rows.surprise_by(_NAME, own) > 1.0 + np.log(max(1, len(own)))]


def _shares_of(rows: RowEvidence, _: int) -> Values:
    return category_shares(rows.rows)


def _categories_of(rows: RowEvidence, account: int) -> tuple[Values, Values]:
    """What the categories of its payments say, and the share of each; as if it had paid none before these."""
    every, own = rows.rows, rows.rows.out.of(account)
    if not rows.categories:
        return np.zeros(len(own)), np.zeros(len(own))
    columns = np.zeros(len(own), np.int64), *(getattr(every, name)[own] for name in COLUMNS[1:])
    return new_categories(Rows(1, *columns), rows.once_of(-1, _shares_of), len(every))


def _category_text(evidence: Any, own: Numbers, at: int, whose: str = "its payer's") -> str:
    """How often a payer has had the category of one of its rows up to it, and did not have it before."""
    codes = evidence.rows.rows.category[own]
    code, codes = codes[at], codes[: at + 1][codes[: at + 1] != NO_CATEGORY]
    before = int(np.argmax(codes == code))
    count, num_since, name = int((codes == code).sum()), len(codes) - before, clip(evidence.rows.categories[code], 40)
    since = f"{count:,} of {num_since:,} payments" if num_since > 1 else "this payment"
    return f"{since} of the category {name}, which none of {whose} {before:,} before had"


class _Payer(NamedTuple):
    """What sentences about its payments need: its rows and their sorts, and its amounts in order, by currency."""

    rows: Numbers
    sort: NDArray[np.uint8]
    amounts: dict[int, Values]
    by_category: Values


def _payer_of(rows: RowEvidence, account: int) -> _Payer:
    own = rows.rows.out.of(account)
    paid = own[np.isfinite(rows.rows.amount[own])]
    codes = rows.rows.currency[paid]
    amounts = {int(code): np.sort(rows.amounts[paid[codes == code]]) for code in np.unique(codes)}
    return _Payer(own, sorts_among(rows.rows, own), amounts, _categories_of(rows, account)[1])


def _row_sentence(evidence: Any, row: int) -> str:
    rows: RowEvidence = evidence.rows
    payer = rows.once_of(int(rows.rows.payer[row]), _payer_of)
    at = int(np.searchsorted(payer.rows, row))
    if payer.by_category[at] > 0.0 and payer.by_category[at] >= rows.nats(_NAME)[row] - 1e-3:
        return _category_text(evidence, payer.rows, at)
    if sort := int(payer.sort[at]):
        return _SORTS[sort]
    amounts = payer.amounts.get(int(rows.rows.currency[row]), np.zeros(0))
    if len(amounts) < 2:
        return _FAR_FROM_PAYEE
    usual = _median_of_others(amounts, rows.amounts[row])
    return _compared_text(rows.amounts[row] / usual, usual, len(amounts) - 1)


def _median_of_others(ordered: Values, value: float) -> float:
    """The median of ascending values, of which one that is `value` is left out.

    >>> _median_of_others(np.array([1.0, 2.0, 4.0, 9.0]), 9.0), _median_of_others(np.array([1.0, 2.0, 4.0]), 1.0)
    (2.0, 3.0)
    """
    at, num_others = int(np.searchsorted(ordered, value)), len(ordered) - 1
    middle = np.array([(num_others - 1) // 2, num_others // 2])
    return float(ordered[middle + (middle >= at)].mean())


def _new_row_sentence(new: Any, told: NewHistory, row: int) -> str:
    if told.has_new_category is not None and told.has_new_category[row]:
        name = new.run.graph.info["rows"]["categories"][new.records["category"][row] :][:1]
        return f"its category{''.join(f', {clip(each, 40)},' for each in name)} is one that its payer hardly had before"
    if told.sort[row]:
        return _SORTS[told.sort[row]]
    if not told.num_usual[row]:
        return _FAR_FROM_PAYEE
    usual = float(np.exp(new.records["amount"][row] - told.over_usual[row]))
    return _compared_text(new.amounts[row] / usual, usual, int(told.num_usual[row]))


def _compared_text(ratio: float, usual: float, count: int) -> str:
    """What is said of a row whose payer usually pays another amount, by so many other rows."""
    what = f"{count:,} other payment{'s' * (count != 1)}"
    return f"it is {times_text(ratio)} what its payer usually pays, {amount_text(usual)} by {what}"


HISTORY = ROW_KIND(
    name=_NAME,
    columns={"history": Column("surprise of its odd amounts (nats)", title="Unlike its own history")},
    title="unlike its own history",
    short="History",
    help="Many of its payments have amounts far from what it, and those at the other end, usually see. It counts "
    "beyond the 95% of the nodes that have the least of it.",
    numbers=_numbers,
    applies=_applies,
    stored={"history_cuts": _are_cuts, "history_ranks": _are_ranks},
    reason=_reason,
    sentence=_sentence,
    of_rows=lambda made: made.once(history_of).surprises,
    row_title="unlike their history",
    row_sentence=_row_sentence,
    judge=judge_history,
    new_row_sentence=_new_row_sentence,
    rows_of=_rows_of,
    needs_both_ends=True,
)
