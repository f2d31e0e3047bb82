"""Rows of the edge table, such as payments, that belong together because they made accounts stand out.

An account that stands out holds the rows that its evidence is made of: those of its burst, the amounts that it passed
on, or its chain, by whichever of these surprises most, and its payments that are unlike its history, where both ends
stand out and there are no other such rows, or they are at about the same time. One that collected in a burst also holds
the payments by which the sum left it within a week: its larger ones, a twentieth of the sum each, where they take half
of it. Accounts that hold a row together are one finding. So surprising rows join accounts, not edges: two that also pay
each other ordinarily are not joined by that, and a shop joins nothing. Rows by which an account would bring more than a
hundred others hold nothing: the account is a finding by itself.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.rows.rows import DAY
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.kinds.burst import BURST

Nodes = NDArray[np.int64]
MOST_OTHERS = 100  # accounts that one account brings
_LEAST_SENT = 0.05  # of the sum of a burst, that a payment takes on
_RARE = 10.0  # accounts of the table that say as much by chance


class Held(NamedTuple):
    """Accounts that hold rows together, these rows, and the kind that says most of one of the accounts."""

    core: Nodes
    rows: Nodes
    kind: str


def held_rows(
    rows: RowEvidence, nodes: Nodes, numbers: NDArray[np.float64], stands_out: NDArray[np.bool_]
) -> list[Held]:
    """The findings among accounts that stand out, which rise.

    `numbers` are those of `ROW_KINDS` of each, (accounts, kinds); `stands_out` says it of all accounts.
    """
    least = math.log(len(stands_out) / _RARE)
    owner, held = [], []
    for number, account in enumerate(nodes.tolist()):
        own = _held_by(rows, account, numbers[number], least, stands_out)
        owner.append(np.full(len(own), number))
        held.append(own)
    every, of_row = np.unique(np.concatenate([*held, np.zeros(0, np.int64)]), return_inverse=True)
    if not len(every):
        return []
    of_node, size = np.concatenate(owner), len(nodes) + len(every)
    joins = scipy.sparse.csr_array((np.ones(len(of_node), bool), (of_node, len(nodes) + of_row)), shape=(size, size))
    num_found, found = scipy.sparse.csgraph.connected_components(joins, directed=False)
    strongest = np.where(numbers.max(axis=1) > 0.0, numbers.argmax(axis=1), 0)
    out = [Held(nodes[:0], every[:0], "")] * 0
    accounts, of_rows = (np.argsort(labels, kind="stable") for labels in (found[: len(nodes)], found[len(nodes) :]))
    starts = [np.searchsorted(labels[order], np.arange(num_found + 1))
              for labels, order in ((found[: len(nodes)], accounts), (found[len(nodes) :], of_rows))]  # fmt: skip
    for which in range(num_found):
        core = accounts[starts[0][which] : starts[0][which + 1]]
        inside = of_rows[starts[1][which] : starts[1][which + 1]]
        if len(inside):
            kind = strongest[core[numbers[core].max(axis=1).argmax()]]
            out.append(Held(nodes[core], every[inside], ROW_KINDS[kind].name))
    return out


def _held_by(
    rows: RowEvidence, account: int, numbers: NDArray[np.float64], least: float, stands_out: NDArray[np.bool_]
) -> Nodes:
    """The rows that an account holds."""
    held, unlike = [np.zeros(0, np.int64)], np.zeros(0, np.int64)
    for kind, number in zip(ROW_KINDS, numbers, strict=True):
        if kind.needs_both_ends:
            own = kind.rows_of(rows, account)
            unlike = own[stands_out[rows.other_ends(own, account)]]
        elif number == numbers.max() and number > least:
            own = kind.rows_of(rows, account)
            own = np.append(own, _sent_on(rows, account, own)) if kind is BURST else own
            ends = np.concatenate([rows.rows.payer[own], rows.rows.payee[own]])
            held.append(own if len(np.unique(ends)) <= MOST_OTHERS else own[:0])
    main = np.unique(np.concatenate(held))
    if len(main) and rows.rows.has_times:
        time = rows.rows.time
        apart = max(time[main[-1]] - time[main[0]], DAY)
        unlike = unlike[(time[unlike] >= time[main[0]] - apart) & (time[unlike] <= time[main[-1]] + apart)]
    return np.union1d(main, unlike)


def _sent_on(rows: RowEvidence, account: int, burst: Nodes) -> Nodes:
    """The rows by which an account sent on what it received in a burst, by currency."""
    out, sent = rows.rows.out.of(account), [burst[:0]]
    came = burst[(rows.rows.payee[burst] == account) & np.isfinite(rows.rows.amount[burst])]
    for code in np.unique(rows.rows.currency[came]):
        of_code = came[rows.rows.currency[came] == code]
        total, end = rows.amounts[of_code].sum(), rows.rows.time[of_code.max()] + 7 * DAY
        left = out[(out > of_code.min()) & (rows.rows.time[out] <= end) & (rows.rows.currency[out] == code)]
        left = left[rows.amounts[left] >= _LEAST_SENT * total]
        left = left[np.cumsum(rows.amounts[left]) <= 1.1 * total]
        sent += [left] if rows.amounts[left].sum() >= 0.5 * total else []
    return np.concatenate(sent)
