"""The report in plain English, for the page and for a terminal, from single numbers to the whole explanation of a node.

In this order: the glossary (`terms`, and `HELP` for headings, keyed by column of the ranked table); names and meanings
of scores; sentences about the ranked list; the reasons of one node; its explanation as a page for a
terminal; the reasons of one edge. Words of a kind of evidence are its own (`score/kinds/`); words of a report's kinds
(`kind_words`) are plain JSON, so that a page needs nothing else.

A reason is one line: what it is, its numbers, and the node's rank by this kind of evidence. "Although" is said only of
what is larger as written. `tests/report/test_sentences.py` reads every sentence back. Attributes are cited under the
user's own column names; text that was hashed is cited only where no other column differs.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.names import AS_END
from hcm_scale.base.text import clip, p_text, percent, sentence, value_text, weight
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import Difference, EdgeExplanation, EdgeReason, Explanation, explain
from hcm_scale.score.kinds.all import KINDS, ROW_TITLES
from hcm_scale.score.kinds.kind import Column, Kind
from hcm_scale.score.kinds.phrases import (
    ID_WIDTH,
    NAME_WIDTH,
    category_text,
    column_text,
    compared_with,
    held_against,
    quantity,
    text_name,
)
from hcm_scale.score.kinds.row_phrases import amount_text, time_text

_NOTABLE_SHARE = 0.25  # of a node's edges: fewer dropped ones are not worth a line
_NUM_ENDS_CITED = 3  # attributes in a line
_WEAK_SIGNAL = 0.52  # of attributes about edges (features/purify.py)
TIED = 100  # first nodes of which equal scores are told
_LOW_STABILITY = 0.75  # of the worlds of bench/accuracy: with planted groups .91 to .99, with nothing odd .72 to .79
_LINE_WIDTH = 100


# The glossary. A term is explained without the others where that is possible.

HELP = {
    "rank": "1 is the node that stands out most.",
    "id": "The node under your own id.",
    "degree": "How many neighbours the node has.",
    "type": "The type of the node. Its ranks by kind and its p are those among nodes of this type.",
    "score": "All kinds of evidence added up; the list is sorted by it.",
    "evidence": "The kind of evidence that says most about this node.",
    "reason": "All that speaks for the node, causes first. A click on the row shows the whole of it.",
    "p": "The chance that a usual node shows as much evidence: the smaller, the more it stands out.",
    "flagged": "Whether the node stands out beyond what chance explains, at the chosen false-discovery rate.",
    "label": "What is known about the node beforehand. The ranking does not use it.",
    "flags": "What to bear in mind: isolated nodes have no neighbours.",
}
OF_KNOWN = {  # where anomalies are known
    "ROC-AUC": "The chance that a known anomaly stands above a normal node. 0.5 is guessing, 1 is perfect.",
    "Average precision": "How pure the head of the list is. Guessing gives the share of known anomalies among all "
    "nodes, 1 is perfect.",
}


def kind_words(kinds: Mapping[str, Kind]) -> dict[str, dict[str, str]]:
    """By name of a kind of evidence, what it is called in lists and over a column, and what it means."""
    return {kind.name: {"title": kind.title, "short": kind.short, "help": kind.help} for kind in kinds.values()}


def terms(words: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The glossary; `words` are those of kinds of evidence."""
    initials = {score_title(name): column.help for name, column in _columns().items() if len(name) <= 3 and column.help}
    return {
        "Node, edge, neighbour": "A node is one thing of your data, such as an account; an edge joins two of them and "
        "makes them neighbours.",
        "Hop": "One step along an edge. Neighbours are one hop apart, neighbours of neighbours two.",
        "Predicted hop": "How many hops apart two nodes look to the model, judging by their attributes and "
        "surroundings. Two neighbours ought to look about one hop apart; where they look farther, the edge between "
        "them is a surprise.",
        "Evidence": "What speaks for a node being odd. There are several kinds, each of which ranks all nodes by "
        "itself; the score adds them up, and a node that leads in one comes before one that is a little odd in all.",
        **{sentence(f"{about['title']} ({kind})"): about["help"] for kind, about in words.items()},
        "p": HELP["p"] + " It is estimated from how the bulk of the nodes is spread.",
        "Flagged, stands out": HELP["flagged"],
        "False-discovery rate": "The share of false alarms to put up with among the flagged nodes: at 10%, about one "
        "in ten of them may be there by chance (score.fdr).",
        "Case": "Nodes that stand out and belong together, as a dense group or by payments that are strange: one "
        "finding, whose p is that of the whole.",
        "Difference of attributes": "From 0, alike, to 2, opposite: one minus the cosine of what attributes became.",
        "Deviations": "How far a value lies from the neighbours' mean, in standard deviations over all nodes.",
        "Weight of an edge": "How much an edge is, such as the amount of all transfers between two accounts, where "
        "your data says so. Heavier neighbours count for more in what the model sees of a node; hops count edges "
        "alike.",
        "Dropped edge, purification": "Before learning, edges between the least similar nodes are left out, so that "
        "the model learns what is usual. Dropped edges are still scored.",
        "Parameter sample": "One of several versions of the model. Where they disagree, a prediction is uncertain: "
        "the ± behind it is their standard deviation.",
        **{name: sentence(text.partition(", ")[2]) for name, text in initials.items()},
    }


# Scores.

_SCORE = Column(
    "score (all kinds of evidence)",
    means="a node stands high where one kind of evidence finds it very strange, or where several find it strange",
)


def _columns() -> dict[str, Column]:
    return {"score": _SCORE} | {name: column for kind in KINDS.values() for name, column in kind.columns.items()}


def score_title(name: str) -> str:
    """A score as a heading: short names are initials, such as AHP."""
    title = _columns()[name].title if name in _columns() else ""
    return title or (name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize())


def score_help(name: str) -> str:
    """What a column of the ranked table means; empty where nothing needs to be said."""
    return HELP.get(name) or (_columns()[name].help if name in _columns() else "")


def long_name(score: str) -> str:
    """A score in words, such as `average hop prediction (AHP)`."""
    return _columns().get(score, Column(score.replace("_", " "))).axis


def meaning(ranked_by: str) -> str:
    """What a high rank means, by the score that ranks."""
    return _columns().get(ranked_by, Column("")).means


# The ranked list.


def found_text(facts: Mapping[str, Any], largest_p: float | None = None) -> str:
    """How many nodes stand out, up to which p, how sure the list is, how far two encoders agree, where that is known.

    >>> found_text({"num_flagged": 3, "fdr": 0.1, "stability": 0.84})
    '3 nodes stand out at a false-discovery rate of 10%. 84% of the first nodes stay so by either encoder alone.'
    """
    parts, (count, fdr, stability) = [], (facts.get(name) for name in ("num_flagged", "fdr", "stability"))
    if count is not None and fdr is not None:
        who, rate = f"{count:,} node{'s stand' if count > 1 else ' stands'}", f"false-discovery rate of {percent(fdr)}"
        up_to = "" if largest_p is None else f", up to p {p_text(largest_p)}"
        none = (
            f"No single node can be named at a {rate}; the list is in order all the same. Take its first rows as a "
            "reading list: odd nodes, if there are any, are near its head."
        )
        parts.append(f"{who} out at a {rate}{up_to}." if count else none)
    if sure := [each for each in facts.get("precision") or () if each[2] >= 0.5]:
        first, share, low, high = sure[-1]
        around = f"{100 * share:.0f}% ({100 * low:.0f} to {100 * high:.0f}%)"
        parts.append(f"Of the first {first:,} rows {around} are expected to be odd.")
    if stability is not None:
        parts.append(f"{100 * stability:.0f}% of the first nodes stay so by either encoder alone.")
    return " ".join(parts)


def unstable_text(stability: float | None) -> str:
    """A hint where few of the first nodes stay first by either encoder; empty elsewhere."""
    if stability is None or stability >= _LOW_STABILITY:
        return ""
    others = ", ".join(f"'{kind.title}'" for kind in KINDS.values() if not kind.needs_hops)
    return (
        f"Only {100 * stability:.0f}% of the first nodes stay so by either encoder alone: partly by chance. "
        "More steps may help (posterior.burn_in_steps=500), unless no node is odd; the training does not change "
        f"{others}."
    )


def weak_attributes_text(signal: float | None, kinds: Mapping[str, Kind], shares: Mapping[str, float]) -> str:
    """A hint where the signal of attributes is weak, and what the first scores are made of; empty elsewhere."""
    if signal is None or signal > _WEAK_SIGNAL:
        return ""
    by_size = sorted(shares.items(), key=lambda part: -part[1])
    weak = sum(share for kind, share in shares.items() if not kinds[kind].ranks_all_nodes)
    made_of = ", ".join(f"{kinds[kind].title} {100 * share:.0f}%" for kind, share in by_size if share >= 0.005)
    rests = f": it makes {100 * weak:.0f}% of the scores of the first 1% of the nodes ({made_of})" if made_of else ""
    caution = f" What is said of far or unlike neighbours is weak evidence here{rests}."
    caution = "" if made_of and weak < 0.01 else caution
    return (
        "The attributes say little about who is joined to whom: two neighbours are more alike than nodes of different "
        f"edges in {100 * signal:.0f}% of cases, where 50% is chance.{caution} Columns that say what a node is, such "
        "as its branch or country, would help."
    )


def lonely_text(num_lonely: int, num_nodes: int) -> str:
    """A hint where most nodes have no edge; empty elsewhere.

    >>> lonely_text(74, 100)
    '74% of the nodes have no edge: attributes alone tell of these, and they are compared with each other.'
    """
    if 2 * num_lonely <= num_nodes:
        return ""
    share = f"{100 * num_lonely / num_nodes:.0f}%"
    return f"{share} of the nodes have no edge: attributes alone tell of these, and they are compared with each other."


def ties_text(scores: NDArray[np.float64]) -> str:
    """A hint where some of these scores, the first of a ranked list, are equal; empty elsewhere.

    >>> ties_text(np.array([3.0, 2.0, 2.0, 1.0]))
    'Ranks 2 to 3 have equal scores: among each other they stand in the order of the graph, which says nothing.'
    """
    starts = np.flatnonzero(np.diff(scores, prepend=np.inf))
    ends = np.append(starts[1:], len(scores))
    ties = [f"{first + 1:,} to {end:,}" for first, end in zip(starts, ends, strict=True) if end - first > 1]
    what = "have equal scores: among each other they stand in the order of the graph, which says nothing."
    return f"Ranks {', '.join(ties[:3])}{' and others' * (len(ties) > 3)} {what}" if ties else ""


def headline(report: Mapping[str, Any]) -> str:
    """The finding of a report in one line: how many of its nodes stand out."""
    flagged, total = report["flagged"], f"{report['graph']['num_nodes']:,}"
    if flagged is None:
        return f"{total} nodes, the oddest first"
    if not flagged["num"]:
        return f"None of {total} nodes can be named with confidence"
    return f"{flagged['num']:,} of {total} nodes {'stands' if flagged['num'] == 1 else 'stand'} out"


# The reasons of one node.


class ReasonText(NamedTuple):
    """A reason in words; without a title where it is not notable, since a title claims something."""

    kind: str
    title: str
    text: str

    @property
    def line(self) -> str:
        return sentence(f"{self.title}: {self.text}" if self.title else self.text)


def reason_texts(e: Explanation) -> list[ReasonText]:
    """Why the node is ranked where it is, in the order of its reasons."""
    texts, extreme = [], any(d.extreme for d in e.differences)
    for r in e.reasons:
        kind, rank = e.kinds[r.kind], f" (rank {r.rank:,} of {r.num_ranked:,} by {r.kind})"
        claims = r.notable or (extreme and kind.shows_differences)
        texts.append(ReasonText(r.kind, kind.title if claims else "", kind.say(e, r) + rank))
    return texts


def opening_text(e: Explanation) -> str:
    """Sentences before the reasons: that there are no neighbours, that no reason is notable; else empty."""
    alone = "" if e.degree else "No edge leads from it to another node."
    nothing = "No kind of evidence ranks it among the first 5%. What comes nearest:"
    return " ".join(filter(None, [alone, nothing if e.reasons and not any(r.notable for r in e.reasons) else ""]))


def all_reasons(e: Explanation) -> str:
    """All reasons of a node as sentences, for a table."""
    return " ".join(filter(None, [opening_text(e), *(f"{r.line}." for r in reason_texts(e))]))


def reasons_of(evidence: Evidence, nodes: Sequence[int]) -> list[str]:
    """All reasons of some nodes as sentences; one after another, as threads would wait for each other's Python."""
    return [all_reasons(explain(evidence, node, num_neighbors=0)) for node in nodes]


def dropped_text(e: Explanation) -> str:
    """How many of its edges purification dropped; empty where they are few."""
    count = e.num_dropped
    if count < max(1.0, _NOTABLE_SHARE * e.degree):
        return ""
    some = f"{'all' if count == e.degree else f'{count:,}'} of its {e.degree:,} edges"
    some = "its only edge" if e.degree == 1 else some
    were, whose = ("was", "its") if count == 1 else ("were", "their")
    return f"Before learning {some} {were} dropped, because {whose} ends are so unlike."


# The page for a terminal.


def explanation_text(e: Explanation, limit: int = 20) -> str:
    """Where the node stands, its reasons, at most `limit` of its neighbours, its attributes."""
    return "\n".join([*_heading(e), *_neighbor_lines(e, limit), *_row_lines(e), *_difference_lines(e)])


def own_title(e: Explanation | EdgeExplanation, whose: str = "its", who: str = "") -> str:
    """How many payments an account has, and what it paid and received in all; empty where no rows are kept."""
    if not e.own or not e.own["num_rows"]:
        return ""
    sums = {word: " and ".join(map(amount_text, e.own[word])) for word in ("paid", "received")}
    told = ", ".join(f"{word} {amount}" for word, amount in sums.items() if amount)
    count, shown = e.own["num_rows"], len(e.own["rows"])
    strange = sum(row["evidence"] is not None for row in e.own["rows"])
    noun = "payment" if e.own["paid"] or e.own["received"] else "row"
    every = f"{whose} {count:,} {noun}s" if count > 1 else f"{whose} only {noun}"
    first = every if shown == count else f"the {shown} strangest of {every}"
    if shown < count and strange < shown:
        first = f"{strange} strange and {shown - strange} more" if strange else f"{shown}, none of them strange,"
        first += f" of {every}"
    return f"{first}{f'; in all {who}{told}' * bool(told)}"


def own_rows(e: Explanation | EdgeExplanation) -> list[tuple[str, str, str, int | str, str]]:
    """The strangest payments of an account: when, how much, to or from, whom, and what is strange."""
    rows = []
    for row in e.own["rows"] if e.own else ():
        when = "" if row["steps"] is None else time_text(row["time"], row["steps"])
        ends, kind = (row["payee"], row["payer"]), row["evidence"]
        way, other = ("to", ends[0]) if ends[1] == e.id else ("from", ends[1])
        rows.append((when, amount_text(row), way, other, ROW_TITLES[kind] if kind else ""))
    return rows


def _row_lines(e: Explanation | EdgeExplanation, *words: str) -> list[str]:
    rows = own_rows(e)
    lines = [
        f"  {when:<22}{amount:>16}   {way:<4} {clip(other, ID_WIDTH):<24} {what}".rstrip()
        for when, amount, way, other, what in rows
    ]
    first = strangest_text(e)
    return ["", own_title(e, *words), *lines, *textwrap.wrap(first, _LINE_WIDTH)] if rows else []


def strangest_text(e: Explanation | EdgeExplanation) -> str:
    """Why the strangest row of an account, or of two, is strange by itself; empty where none is."""
    row = e.own["rows"][0] if e.own and e.own["rows"] else {}
    if "reason" not in row:
        return ""
    return f"The strangest is number {row['rank']:,} of all rows by itself, p {p_text(row['p'])}: {row['reason']}."


def _heading(e: Explanation) -> list[str]:
    scores = {name: "-" if value is None else f"{value:.3g}" for name, value in e.scores.items()}
    shown = "".join(f"{score_title(name)} {text}   " for name, text in scores.items() if e.ranked_by in ("", name))
    lines = [
        f"{clip(e.id, 80)}   rank {e.rank:,} of {e.num_nodes:,} (above {e.percentile:.2f} % of all nodes)",
        f"{shown}degree {e.degree:,}"
        + (f"   type {clip(e.type, ID_WIDTH)}" if e.type else "")
        + (f"   known to be: {e.label}" if e.label else ""),
        *_flag_lines(e),
        "",
        *filter(None, [opening_text(e)]),
    ]
    for reason in reason_texts(e):
        lines += textwrap.wrap(reason.line, _LINE_WIDTH, subsequent_indent="  ")
    return [*lines, *filter(None, [dropped_text(e)])]


def _flag_lines(e: Explanation) -> list[str]:
    """The node's p, whether it is flagged, and where flags end; none where nodes were not judged."""
    if e.p is None or e.flagged is None or e.fdr is None:
        return []
    end = "no node is flagged" if e.flags_end is None else f"flags end at p {p_text(e.flags_end)}"
    state = "flagged" if e.flagged else "not flagged"
    return [f"p {p_text(e.p)}, {state}: at a false-discovery rate of {percent(e.fdr)} {end}"]


def _neighbor_lines(e: Explanation, limit: int) -> list[str]:
    """A table of id, hop, whether the edge was dropped, and the types and weights of edges where there are any."""
    shown = e.neighbors[:limit]
    if not shown:
        return []
    types = [", ".join(n.types) for n in shown]
    type_width = max(len("type"), *map(len, types)) if any(types) else 0
    weight_name = clip(shown[0].weight.name, ID_WIDTH) if shown[0].weight else ""
    rows = [("neighbour", "predicted hop", "edge", "type", weight_name)]
    for n, names in zip(shown, types, strict=True):
        hop = "  not scored " if n.hop is None else f"{n.hop:5.2f} ± {n.std or 0.0:<5.2f}"
        edge = {None: "", True: "dropped", False: "kept"}[n.dropped]
        amount = weight(n.weight.value, n.weight.percent) if n.weight else ""
        rows.append((clip(n.id, ID_WIDTH), hop, edge, names, amount))
    width = max(10, *(len(row[0]) for row in rows[1:]))
    lines = [""]
    for name, hop, edge, names, amount in rows:
        cells = [f"{name:<{width}}", hop, f"{edge:<8}", *([f"{names:<{type_width}}"] if type_width else []), amount]
        lines.append("   ".join(cells).rstrip())
    hidden = e.degree - len(shown)
    return [*lines, f"and {hidden:,} nearer"] if hidden else lines


def difference_values(d: Difference) -> tuple[str, str]:
    """The value of an attribute, and its mean around it; `never` of an end that they never are at."""
    if d.is_text:
        return "", ""
    both = (("value", d.value), ("neighbors", d.neighbors))
    own, theirs = (
        "" if value is None else "never" if whose in d.never else value_text(value, d.first_day)
        for whose, value in both
    )
    return own, theirs


def _difference_lines(e: Explanation) -> list[str]:
    """A table of attributes: their names, the node's value, the neighbours' mean, the deviations."""
    if not e.differences:
        return []
    rows = [("attribute", "its value", compared_with(e) if e.type or not e.degree else "neighbours", "deviations")]
    for d in e.differences:
        own, theirs = difference_values(d)
        name = clip(text_name(d).replace("`", "") if d.is_text else d.column, ID_WIDTH)
        rows.append((name, own, theirs, f"{round(d.deviations, 1) + 0.0:>+10.1f}"))
    width = max(10, *(len(row[0]) for row in rows))
    wide = max(12, *(len(text) for row in rows for text in row[1:3]))
    return ["", *(f"{name:<{width}}   {own:>{wide}}   {theirs:>{wide}}   {last}" for name, own, theirs, last in rows)]


# The reasons of one edge.

EDGE_TITLES = {
    "hop": "seem far apart",
    "around": "unlike surroundings",
    "unlike": "unlike each other",
    "shared": "few shared neighbours",
}


def edge_text(e: EdgeExplanation) -> str:
    """Where an edge stands among all edges, and why: sentences for a terminal."""
    first, second = (clip(end, ID_WIDTH) for end in e.ends)
    state = {None: "", True: ", flagged", False: ", not flagged"}[e.flagged]
    rate = "" if e.flagged is None else f" at a false-discovery rate of {percent(e.fdr)}"
    among = f"{percent(e.share)} of the {e.num_edges:,} edges are at least as strange"
    among = f"the strangest of {e.num_edges:,} edges" if e.share * e.num_edges < 1.5 else among
    rows, pair = _row_lines(e, "their", f"{first} "), f"{first} and {second}"
    if strangest_text(e):  # a pair may be usual where a payment between the two is not
        rows, pair = [], "\n".join([pair, *rows, "", "the pair of them"])
    lines = [
        f"{pair}   {among}",
        f"p {p_text(e.p)}{state}{rate}   degrees {e.degrees[0]:,} and {e.degrees[1]:,}",
        "",
    ]
    notable = [r for r in e.reasons if r.notable]
    if not notable:
        lines.append("No kind of evidence has it among the first 5% of the edges. What comes nearest:")
    for reason in notable or e.reasons[:1]:
        title = f"{EDGE_TITLES[reason.kind]}: " if notable else ""
        lines += textwrap.wrap(sentence(f"{title}{edge_reason(e, reason)}."), _LINE_WIDTH, subsequent_indent="  ")
    if e.dropped:
        lines.append("Before learning it was dropped, because its ends are so unlike.")
    if e.differences:
        cited = "; ".join(_end_difference(e, d) for d in e.differences[:_NUM_ENDS_CITED])
        lines += textwrap.wrap(f"Attributes that differ most: {cited}.", _LINE_WIDTH, subsequent_indent="  ")
    return "\n".join([*lines, *rows])


def edge_sentence(e: EdgeExplanation) -> str:
    """What speaks for an edge, in one sentence: for the line of a table."""
    notable = [r for r in e.reasons if r.notable] or [r for r in e.reasons[:1] if r.value is not None]
    parts = [edge_reason(e, reason, "edges of such ends") for reason in notable]
    parts += [_end_difference(e, d) for d in e.differences[:1]]
    whom = " for edges of such ends"
    first, once, rest = sentence("; ".join(parts)).partition(whom)
    return f"{first}{once}{rest.replace(whom, '')}." if parts else ""  # once is enough


def edge_reason(e: EdgeExplanation, r: EdgeReason, whom: str = "") -> str:
    """What one kind of evidence says of an edge, and what is usual for edges of like degrees, which `like` names."""
    if r.value is None:
        return "the model was not asked about this edge"
    ends = dict.fromkeys(_with_neighbors(degree) for degree in sorted(e.degrees))
    whom = whom or f"edges between nodes {' and '.join(ends)}"
    if r.kind == "shared":
        usual = "" if r.usual in (None, r.value) else f", where {r.usual:g} is usual for {whom}"
        return f"its ends share {f'{r.value:,.0f}' if r.value else 'no'} neighbour{'s' * (r.value != 1)}{usual}"
    own, usual, _ = held_against(r.value, r.usual, 1 if r.kind == "hop" else 2, whom)
    if r.kind == "hop":
        spread = "" if e.std is None else f" (± {e.std:.2f})"
        return f"to the model its ends look {own} hops apart{spread}, and they are one{usual}"
    if r.kind == "around":
        return f"without this edge, what is around its ends differs by {own} on a scale from 0 to 2{usual}"
    return f"attributes of its ends differ by {own} on a scale from 0 to 2{usual}"


def _with_neighbors(degree: int) -> str:
    low = 1 << max(0, degree.bit_length() - 1)
    return "of 1 neighbour" if low == 1 else f"of {low:,} to {2 * low - 1:,} neighbours"


def _end_difference(e: EdgeExplanation, d: Difference) -> str:
    """One attribute of both ends."""
    first, second = (clip(end, ID_WIDTH) for end in e.ends)
    if d.is_text:
        return f"their texts in `{clip(d.column, NAME_WIDTH)}` differ"
    if {d.value, d.neighbors} == {0.0, 1.0} and (category := category_text(d.column)):
        return f"{category[0]} is {category[1]} for {first if d.value else second} alone"
    own, other = ("missing" if value is None else quantity(value, d.first_day) for value in (d.value, d.neighbors))
    if {"value", "neighbors"} & {*d.never}:
        own, first, second = (other, second, first) if "value" in d.never else (own, first, second)
        role = clip(d.column.rpartition(AS_END)[2], NAME_WIDTH)
        return f"{column_text(d.column)} is {own} for {first}, and {second} is never `{role}`"
    return f"{column_text(d.column)} is {own} for {first} and {other} for {second}"
