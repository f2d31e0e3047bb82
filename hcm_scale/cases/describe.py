"""A case as a person reads it: who its members are and what each does, its money and dates, and a paragraph on it.

Roles follow from the rows of the case: one who is paid and pays passes on; who is only paid, or by three times as many
as it pays, collects, or is paid where it is by one alone; who only pays pays in, or out where it pays several. Without
rows the nodes that stand out are members, and those that a group grew by are contacts. Money inside is the sum of the
case's rows; money in and out is what members received from others, and paid to others, from the first to the last of
these rows.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.text import amount, clip, counted, p_text, sentence
from hcm_scale.cases.find import ALONE, GROUP, HAND, Case, Nodes
from hcm_scale.cases.store import Cases
from hcm_scale.report.evidence import Evidence, contains, neighbors_of
from hcm_scale.report.explain import explain
from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.kinds.row_phrases import amount_text, length_text, row_facts, span_texts

_TITLES = {GROUP: "dense group", ALONE: "by itself", HAND: "put together by hand"}
_TITLES |= {kind.name: kind.title for kind in ROW_KINDS}
_MOST_REASONS, _MOST_NAMED, _MOST_ROWS, _MOST_SHOWN = 3, 8, 200, 40
MOST_MEMBERS = 1000  # that are told of one by one
_ROLES = ("passes on", "collects", "is paid", "pays out", "pays in", "member", "contact")


def title_of(case: Case) -> str:
    return _TITLES[case.held_by].replace("its own", "their own")  # but by itself a case has several members


def roles_of(case: Case, rows: RowEvidence | None) -> list[str]:
    """The role of every member, in their order."""
    members = case.members
    if rows is None or not len(case.rows):
        return ["member"] * len(case.core) + ["contact"] * len(case.others)
    pairs = np.unique(np.stack([rows.rows.payer[case.rows], rows.rows.payee[case.rows]]), axis=1).tolist()
    by_end, roles = [Counter(ends) for ends in pairs], []
    for number, node in enumerate(members.tolist()):
        num_out, num_in = (count[node] for count in by_end)
        if num_out and 0 < num_in < 3 * num_out:
            roles.append("passes on")
        elif num_in:
            roles.append("collects" if num_in > 1 else "is paid")
        elif num_out:
            roles.append("pays out" if num_out > 1 else "pays in")
        else:
            roles.append("member" if number < len(case.core) else "contact")
    return roles


def links_of(evidence: Evidence, case: Case) -> list[tuple[int, int]]:
    """Pairs of members that are joined, by their places among the members, the smaller first."""
    members, pairs = case.members, set[tuple[int, int]]()
    position = {node: at for at, node in enumerate(members.tolist())}
    for node, at in position.items():
        others = neighbors_of(evidence.graph, node)
        if len(others) > len(members):
            others = members[contains(evidence.graph, node, members)]
        inside = (position[other] for other in others.tolist() if other in position)
        pairs |= {(min(at, other), max(at, other)) for other in inside}
    return sorted(pairs)


def describe(evidence: Evidence, cases: Cases, position: int) -> dict[str, Any]:
    """Everything that is told of a case, JSON-able."""
    case, kept, id_of = cases[position], evidence.rows, evidence.graph.external_id
    rows = kept if len(case.rows) else None
    ranks, roles = evidence.row_of_node[case.members], roles_of(case, kept)
    some = case.members[:MOST_MEMBERS]
    evidence.fetch(some)
    p = [evidence.row(node)["p"] for node in some.tolist()]
    members = zip(some.tolist(), roles, ranks.tolist(), p, strict=False)
    told: dict[str, Any] = {
        "case": int(cases.numbers[position]),
        "id": cases.id_of(position),
        "p": case.p,
        "flagged": position < cases.num_flagged,
        "held_by": case.held_by,
        "title": title_of(case),
        "num_edges": len(links_of(evidence, case)),
        "num_members": len(case.members),
        "num_core": len(case.core),
        "roles": {role: roles.count(role) for role in _ROLES if role in roles},
        "members": [
            {"id": id_of(node), "role": role, "rank": 1 + rank, "p": chance, "core": at < len(case.core)}
            for at, (node, role, rank, chance) in enumerate(members)
        ],
        "rows": [] if rows is None else [row_facts(evidence, int(row)) for row in case.rows[:_MOST_ROWS]],
        "num_rows": len(case.rows),
        "money": [] if rows is None else money_of(rows, case),
    }
    if cases.found is not None:
        told["parts"] = [(name, title_of(part)) for name, part in cases.parts_of(position)]
        told["taken_out"] = [id_of(node) for node in cases.taken_out(position).tolist()]
    if rows is not None and rows.rows.has_times:
        first, last = (float(rows.rows.time[row]) for row in (case.rows.min(), case.rows.max()))
        told |= {"first": first, "last": last, "steps": rows.steps, "when": span_texts([first, last], rows.steps)}
    best = case.core[np.argsort(ranks[: len(case.core)])][:_MOST_REASONS]
    reasons = {_reason(evidence, int(node), case.held_by): int(node) for node in best[::-1]}  # one of equal ones
    told["reasons"] = [(id_of(node), text) for text, node in reversed(reasons.items())]
    head, body = case_text(told, _expected_edges(evidence, case.members))
    return told | {"text": f"{head} {body}", "body": body}


def _reason(evidence: Evidence, node: int, kind: str) -> str:
    """What a kind says of a node, or else the strongest one, without its rank."""
    e = explain(evidence, node, num_neighbors=0)
    reason = next((reason for reason in e.reasons if reason.kind == kind), e.reasons[0] if e.reasons else None)
    return "" if reason is None else e.kinds[reason.kind].say(e, reason)


def _expected_edges(evidence: Evidence, members: Nodes) -> float:
    """Edges that degrees lead to expect between members."""
    indptr = evidence.graph.indptr
    degree = (indptr[members + 1] - indptr[members]).astype(np.float64)
    total = max(1.0, float(indptr[-1]))
    return float((degree.sum() ** 2 - (degree**2).sum()) / (2.0 * total))


def money_of(rows: RowEvidence, case: Case) -> list[dict[str, Any]]:
    """Sums inside, in and out by currency; without amounts none."""
    first, last = int(case.rows.min()), int(case.rows.max())
    touching = [rows.of_account(int(node)) for node in case.members]
    members = np.sort(case.members)
    sums: dict[str | None, dict[str, float]] = {}

    def add(name: str, some: NDArray[Any]) -> None:
        for code in np.unique(rows.rows.currency[some]).tolist():
            amounts = rows.amounts[some[rows.rows.currency[some] == code]]
            if np.isfinite(amounts).any():
                currency = rows.currencies[code] if code < len(rows.currencies) else None
                of_currency = sums.setdefault(currency, {"inside": 0.0, "into": 0.0, "out": 0.0})
                of_currency[name] += float(np.nansum(amounts))

    add("inside", case.rows)
    for at, name, ends in ((1, "into", rows.rows.payer), (0, "out", rows.rows.payee)):
        some = np.concatenate([each[at] for each in touching])
        some = some[(some >= first) & (some <= last)]
        add(name, some[~np.isin(ends[some], members)])
    return [{"currency": currency} | amounts for currency, amounts in sums.items()]


def case_text(told: Mapping[str, Any], expected: float) -> tuple[str, str]:
    """A paragraph on a case, to be read by itself: its first sentence, and the others."""
    members, num_members, core = told["members"], told["num_members"], told["num_core"]
    what = "accounts" if told["num_rows"] else "nodes"
    p = f"p {p_text(told['p'])}" + (", flagged" if told["flagged"] else "")
    if told["held_by"] == ALONE:
        head = f"Case {told['case']:,} ({told['id']}), {p}: {clip(members[0]['id'], 40)} by itself."
    else:
        head = f"Case {told['case']:,} ({told['id']}), {p}: {num_members:,} {what}, {told['title']}"
        some = "one of them stands out" if core == 1 else f"{core:,} of them stand out"
        some = f"by its payments {some}" if told["num_rows"] else some
        head += f"; {some}." if core < num_members else "."
    parts = []
    if len(told.get("parts", ())) > 1:
        parts.append(f"Its parts: {_few([f'{name} ({title})' for name, title in told['parts']])}.")
    if told.get("taken_out"):
        parts.append(f"Taken out by hand: {_few([clip(name, 40) for name in told['taken_out']])}.")
    if told["num_rows"]:
        parts.append(_rows_text(told))
    elif told["held_by"] == GROUP:
        usual = f"{expected:,.1f}" if expected >= 0.1 else f"{expected:.1g}"
        pairs = num_members * (num_members - 1) // 2
        parts.append(
            f"{told['num_edges']:,} of {pairs:,} pairs are joined, where their degrees lead to expect {usual}."
        )
    said = [(clip(name, 40), reason) for name, reason in told["reasons"] if reason]
    parts += [sentence(f"{reason}.") if len(members) == 1 else f"{name}: {reason}." for name, reason in said]
    if len(members) > 1:
        parts.append(_members_text(told))
    return head, " ".join(parts)


def _rows_text(told: Mapping[str, Any]) -> str:
    sums = " and ".join(_amount(one["inside"], one["currency"]) for one in told["money"] if one["inside"])
    text = (
        f"{counted(told['num_rows'], 'payment' if told['money'] else 'row')} between them{f' of {sums}' * bool(sums)}"
    )
    if "first" in told:
        text += f", {'from' if told['last'] > told['first'] else 'at' if told['steps'] else 'on'} {told['when'][0]}"
        if told["last"] > told["first"]:
            length = length_text(told["last"] - told["first"], told["steps"])
            text += f" to {told['when'][1]} ({length})"
    flows = []
    for key, words in (("into", "came in from others"), ("out", "went to others")):
        sums = " and ".join(_amount(one[key], one["currency"]) for one in told["money"] if one[key])
        flows += [f"{sums} {words}"] if sums else []
    return f"{text}. In that time {', and '.join(flows)}." if flows else f"{text}."


def _amount(value: float, currency: str | None) -> str:
    return f"{amount(value)} {clip(currency, 12)}" if currency else amount(value)


def _members_text(told: Mapping[str, Any]) -> str:
    said = []
    for role, count in told["roles"].items():
        names = [clip(member["id"], 40) for member in told["members"] if member["role"] == role]
        said.append(f"{role}: {_few(names, count)}")
    return sentence(f"{'; '.join(said)}.")


def _few(names: Sequence[str], count: int | None = None) -> str:
    named = names[:_MOST_NAMED]
    more = (len(names) if count is None else count) - len(named)
    return ", ".join(named) + f" and {more:,} more" * (more > 0) if named else f"{more:,}"


def case_page(told: Mapping[str, Any]) -> str:
    """A case as a page for a terminal: the paragraph, its members and its rows."""
    lines = [
        *textwrap.wrap(told["text"], 110),
        *textwrap.wrap(told.get("judged", ""), 110),
        "",
        f"{'role':<11}{'rank':>9}{'p':>11}   id",
    ]
    for member in told["members"][:_MOST_SHOWN]:
        p = "" if member["p"] is None else p_text(member["p"])
        lines.append(f"{member['role']:<11}{member['rank']:>9,}{p:>11}   {clip(member['id'], 60)}")
    lines += _more(told["num_members"], "members")
    if told["rows"]:
        lines += ["", "rows"]
    shown = told["rows"][:_MOST_SHOWN]
    times = span_texts([row["time"] for row in shown], told["steps"]) if "first" in told else [""] * len(shown)
    for row, when in zip(shown, times, strict=True):
        ends = f"{clip(row['payer'], 30)} -> {clip(row['payee'], 30)}"
        lines.append(f"  {when:<26}{amount_text(row):>18}   {ends}")
    return "\n".join(lines + _more(told["num_rows"], "rows"))


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - _MOST_SHOWN:,} {what} more"] if count > _MOST_SHOWN else []
