"""The report in plain English, for the page and for a terminal, from single numbers to the whole explanation of a node.

In this order: numbers, dates and names; the glossary (`TERMS`, `OF_KNOWN` where anomalies are known, and `HELP` for
headings, keyed by column of the ranked table and by kind of evidence); names and meanings of scores; sentences about
the ranked list and its groups; the reasons of one node; its explanation as a page for a terminal.

A reason is one line: what it is, its numbers, and the node's rank by this kind of evidence. Two numbers that are held
against each other have as many digits as tell them apart, and "although" is said only of what is larger as written.
`tests/report/test_sentences.py` reads every sentence back. Attributes are cited under the user's own column names; text
that was hashed is cited only where no other column differs. Ids and column names come from the user's data, so on their
way to a terminal they lose control characters (an id must not move the cursor) and excess length.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.names import AS_END, GAP_SUFFIX, ONCE
from hcm_scale.base.threads import map_slices
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import NOTABLE_DEVIATIONS, Difference, EdgeExplanation, EdgeReason, Explanation, explain
from hcm_scale.report.reasons import KIND_TITLES, ORDINARY_TITLES, OwnReason, Reason, kind_title

_NOTABLE_SHARE = 0.25  # of a node's edges: fewer dropped ones are not worth a line
_NUM_CITED, _NUM_ENDS_CITED = 2, 3  # attributes in a line
_WEAK_SIGNAL = 0.52  # of attributes about edges (features/purify.py)
_LOW_STABILITY = 0.75  # of the worlds of bench/accuracy: with planted groups .91 to .99, with nothing odd .72 to .79
_ID_WIDTH, _NAME_WIDTH, _LINE_WIDTH = 40, 48, 100


# Numbers, dates and names.


def short(value: float) -> str:
    """A number in at most five characters or so, for an axis.

    >>> [short(v) for v in (0, 0.25, 3, 1500, 20_000_000, 2e-5)]
    ['0', '0.25', '3', '1.5k', '20M', '2e-05']
    """
    for bound, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{suffix}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share as a percentage, such as 25%."""
    return f"{100 * value:.3g}%"


def fixed(value: float | None) -> str:
    """Three decimals, a dash where there is no number."""
    return "–" if value is None else f"{value:.3f}"


def p_text(value: float) -> str:
    """A chance, with three decimals or as a power of ten, of which no tail is known beyond a millionth.

    >>> [p_text(p) for p in (0.25, 0.00021, 3e-9)]
    ['0.250', '2e-4', 'below 1e-6']
    """
    if value < 1e-6:
        return "below 1e-6"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-")


def seconds_text(seconds: float) -> str:
    """A duration as people say it.

    >>> [seconds_text(s) for s in (0.0042, 0.31, 12.34, 95, 7300)]
    ['4.2 ms', '0.31 s', '12.3 s', '1 min 35 s', '2 h 1 min']
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bytes_text(count: float) -> str:
    """An amount of memory.

    >>> [bytes_text(b) for b in (1536, 3.2e8, 5.4e9)]
    ['1.5 KiB', '305 MiB', '5.03 GiB']
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB"


def detail_text(detail: Any) -> str:
    """The numbers and words that a stage reports of itself.

    >>> detail_text({"num_edges": 1200, "edges_per_second": 5e6})
    '1,200 edges · 5M edges/s'
    """
    if not isinstance(detail, Mapping):
        return str(detail or "")
    return " · ".join(_fact(str(name), value) for name, value in detail.items() if isinstance(value, int | float | str))


def _fact(name: str, value: Any) -> str:
    words = name.removeprefix("num_").replace("_", " ")
    if isinstance(value, bool | str):
        return f"{words} {str(value).lower() if isinstance(value, bool) else value}"
    if name.endswith("_per_second"):
        return f"{short(value)} {words.removesuffix(' per second')}/s"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {bytes_text(value)}"
    if name.endswith("_seconds"):
        return f"{words.removesuffix(' seconds')} {seconds_text(value)}"
    if name.startswith("num_"):
        return f"{value:,} {words}"
    return f"{words} {value:,}" if isinstance(value, int) else f"{words} {value:.4g}"


def weight(value: float, percent: int) -> str:
    """The weight of an edge among all weights: `1,200.00 (heavier than 99 % of edges)`."""
    amount = f"{value:,.2f}" if 0.1 <= value < 1e12 else f"{value:.3g}"
    return f"{amount} (heavier than {percent} % of edges)"


def value_text(value: float, first_day: str | None) -> str:
    """The value of an attribute: four digits, or the date that it means where it counts days since a first one.

    >>> value_text(0.12345, None), value_text(1.4, "2024-01-31"), value_text(0.5, "2024-01-31T08:00")
    ('0.1235', '2024-02-01', '2024-01-31 20:00')
    """
    if first_day is None:
        return f"{value + 0.0:.4g}"
    steps = value * 1440 if "T" in first_day else value
    return str(np.datetime64(first_day) + round(steps)).replace("T", " ")


def clip(value: object, width: int) -> str:
    r"""One printable line of at most `width` characters.

    >>> clip("a\x1b[2Jb", 20), clip("abcdefgh", 5)
    ('a�[2Jb', 'abcd…')
    """
    line = "".join(c if c.isprintable() else "�" for c in str(value))
    return line if len(line) <= width else line[: width - 1] + "…"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


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
    "flags": "What to bear in mind: isolated nodes have no neighbours, sampled ones have more than were looked at.",
    "hop": "Its direct neighbours look several hops away to the model.",
    "closure": "Its neighbours are joined to each other, and all of them look far apart: a group of strangers. Closure "
    "counts the triangles of such edges, over its neighbours and a quarter of the triangles that degrees explain.",
    "context": "Its attributes are unlike those of its neighbours.",
    "context_closure": "Its neighbours are joined to each other, although their attributes have little in common.",
    "attributes": "Its attributes are not what its surroundings lead one to expect.",
    "cohesion": "Its neighbours are joined to each other, or in a graph of two sides to the same others, far more than "
    "their numbers of neighbours explain. It counts beyond the 95% of the nodes that have the least of it.",
    "ahp": "AHP, average hop prediction: how far away its neighbours look, on average.",
    "iv": "IV, inference variance: how much that answer changes from one sample of the model to the next.",
    "hav": "HAV, hops and variance: AHP and IV added up, each on its own scale.",
    "strange": "AHP and far triangles added up, each on its own scale.",
    "residual": "How far its attributes lie from what its neighbourhood predicts.",
    "alike": "How much closer the node is to what is expected than others are, by all kinds but tight groups.",
}

TERMS = {
    "Node, edge, neighbour": "A node is one thing of your data, such as an account; an edge joins two of them and "
    "makes them neighbours.",
    "Hop": "One step along an edge. Neighbours are one hop apart, neighbours of neighbours two.",
    "Predicted hop": "How many hops apart two nodes look to the model, judging by their attributes and surroundings. "
    "Two neighbours ought to look about one hop apart; where they look farther, the edge between them is a surprise.",
    "Evidence": "What speaks for a node being odd. There are six kinds, each of which ranks all nodes by itself; the "
    "score adds them up, and a node that leads in one comes before one that is a little odd in all.",
    **{sentence(kind_title(kind)): HELP[kind] for kind in KIND_TITLES},
    "Suspiciously ordinary (alike)": HELP["alike"] + " It has a list of its own and no part in the score.",
    "p": HELP["p"] + " It is estimated from how the bulk of the nodes is spread.",
    "Flagged, stands out": HELP["flagged"],
    "False-discovery rate": "The share of false alarms to put up with among the flagged nodes: at 10%, about one in "
    "ten of them may be there by chance (score.fdr).",
    "Group": "Nodes that stand out and are joined to each other. Look at a group as one finding.",
    "Difference of attributes": "From 0, alike, to 2, opposite: one minus the cosine of what the attributes became.",
    "Deviations": "How far a value lies from the neighbours' mean, in standard deviations over all nodes.",
    "Weight of an edge": "How much an edge is, such as the amount of all transfers between two accounts, where your "
    "data says so. Heavier neighbours count for more in what the model sees of a node; hops count edges alike.",
    "Dropped edge, purification": "Before learning, edges between the least similar nodes are left out, so that the "
    "model learns what is usual. Dropped edges are still scored.",
    "Parameter sample": "One of several versions of the model. Where they disagree, a prediction is uncertain: the ± "
    "behind it is their standard deviation.",
    "AHP": "Average hop prediction: " + HELP["ahp"].partition(": ")[2],
    "IV": "Inference variance: " + HELP["iv"].partition(": ")[2],
    "HAV": "Hops and variance: " + HELP["hav"].partition(": ")[2],
}
OF_KNOWN = {  # where anomalies are known
    "ROC-AUC": "The chance that a known anomaly stands above a normal node. 0.5 is guessing, 1 is perfect.",
    "Average precision": "How pure the head of the list is. Guessing gives the share of known anomalies among all "
    "nodes, 1 is perfect.",
}


# Scores.

_TITLES = {"residual": "Odd attributes", "context_closure": "Unlike triangles", "cohesion": "Tight group"}
_LONG_NAMES = {
    "score": "score (all kinds of evidence)",
    "ahp": "average hop prediction (AHP)",
    "iv": "inference variance (IV)",
    "hav": "hops and their uncertainty (HAV)",
    "closure": "far triangles over what the degree explains (log)",
    "strange": "hops and far triangles",
    "context": "distance of attributes to the neighbours'",
    "context_closure": "triangles of unlike nodes over what the degree explains (log)",
    "residual": "distance of attributes to what the neighbourhood predicts",
    "cohesion": "triangles, or squares, over those expected (log)",
}
_MEANS = {
    "score": "a node stands high where its neighbours seem far from it, where its attributes are unlike theirs or "
    "unexpected, or where it belongs to a tight group",
    "ahp": "the higher a node stands, the farther its own neighbours seem to be from it",
    "hav": "the higher a node stands, the farther its own neighbours seem to be from it and the less sure that is",
    "strange": "the higher a node stands, the farther its own neighbours seem to be from it and the more of its far "
    "edges close into triangles",
}


def score_title(name: str) -> str:
    """A score as a heading: short names are initials, such as AHP."""
    return _TITLES.get(name) or (name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize())


def long_name(score: str) -> str:
    """A score in words, such as `average hop prediction (AHP)`."""
    return _LONG_NAMES.get(score, score.replace("_", " "))


def meaning(ranked_by: str) -> str:
    """What a high place means, by the score that ranks."""
    return _MEANS.get(ranked_by, "the higher a node stands, the larger this number is")


# The ranked list and its groups.


def found_text(found: Mapping[str, Any], largest_p: float | None = None) -> str:
    """How many nodes stand out, up to which p, and how far two encoders agree, where that is known.

    >>> found_text({"num_flagged": 3, "fdr": 0.1, "stability": 0.84})
    '3 nodes stand out at a false-discovery rate of 10%. 84% of the first nodes stay so by either encoder alone.'
    """
    parts, (count, fdr, stability) = [], (found.get(name) for name in ("num_flagged", "fdr", "stability"))
    if count is not None and fdr is not None:
        who, rate = f"{count:,} node{'s stand' if count > 1 else ' stands'}", f"false-discovery rate of {percent(fdr)}"
        up_to = "" if largest_p is None else f", up to p {p_text(largest_p)}"
        none = (
            f"No single node can be named at a {rate}; the list is in order all the same. Take its first rows as a "
            "reading list: odd nodes, if there are any, are near its head."
        )
        parts.append(f"{who} out at a {rate}{up_to}." if count else none)
    if stability is not None:
        parts.append(f"{100 * stability:.0f}% of the first nodes stay so by either encoder alone.")
    return " ".join(parts)


def unstable_text(stability: float | None) -> str:
    """A hint where few of the first nodes stay first by either encoder; empty elsewhere."""
    if stability is None or stability >= _LOW_STABILITY:
        return ""
    return (
        f"Only {100 * stability:.0f}% of the first nodes stay so by either encoder alone: partly by chance. "
        "More steps may help (posterior.burn_in_steps=500), unless no node is odd; odd attributes and tight groups do "
        "not depend on the training."
    )


def weak_attributes_text(signal: float | None, shares_of: Callable[[], Mapping[str, float]]) -> str:
    """A hint where the signal of attributes is weak, and what the first scores are made of; empty elsewhere."""
    if signal is None or signal > _WEAK_SIGNAL:
        return ""
    shares = shares_of()
    weak = sum(share for kind, share in shares.items() if kind not in ("attributes", "cohesion"))
    told = ", ".join(f"{KIND_TITLES[kind]} {100 * share:.0f}%" for kind, share in shares.items())
    rests = f": {100 * weak:.0f}% of the scores of the first 1% of the nodes, which are made of {told}" if told else ""
    return (
        "The attributes say little about who is joined to whom: two neighbours are more alike than nodes of different "
        f"edges in {100 * signal:.0f}% of cases, where 50% is chance. What is said of far or unlike neighbours is weak "
        f"evidence here{rests}."
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


def ordinary_text(found: Mapping[str, Any]) -> str:
    """How ordinary one of `ordinary_nodes` is, and by which kinds.

    >>> ordinary_text({"share": 0.0005, "kinds": ["attributes", "hop"]})
    'closer to what is expected than all but 0.05% of the nodes: attributes as its surroundings predict, neighbours \
seem near'
    """
    kinds = ", ".join(ORDINARY_TITLES[kind] for kind in found["kinds"])
    return f"closer to what is expected than all but {percent(found['share'])} of the nodes{': ' * bool(kinds)}{kinds}"


def group_text(group: Mapping[str, Any]) -> str:
    """What the members of a group share, such as the strongest kind of evidence about most of them.

    >>> some = {"members": [{}] * 12, "num_edges": 66, "evidence": "closure", "num_evidence": 12, "label": None}
    >>> group_text(some)
    'all joined to each other, group of strangers (closure)'
    >>> group_text(some | {"num_edges": 12, "num_evidence": 8})
    '12 of 66 pairs joined, group of strangers (closure) for 8 of them'
    >>> group_text(some | {"num_edges": 36, "sides": [4, 9], "evidence": None})
    'each of 4 joined to each of 9'
    """
    size = len(group["members"])
    left, right = group.get("sides", (0, 0))
    pairs = left * right or size * (size - 1) // 2
    every = f"each of {left} joined to each of {right}" if left else "all joined to each other"
    across = f" of {left} with {right}" if left else ""
    parts = [every if group["num_edges"] == pairs else f"{group['num_edges']} of {pairs} pairs{across} joined"]
    if group["evidence"] and group["num_evidence"] > 1:
        for_some = "" if group["num_evidence"] == size else f" for {group['num_evidence']} of them"
        parts.append(kind_title(group["evidence"]) + for_some)
    return ", ".join(parts + ([f"known as {group['label']}"] if group["label"] else []))


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
    found, extreme = [], any(d.extreme for d in e.differences)
    for r in e.reasons:
        rank = "" if r.rank is None else f" (rank {r.rank:,} of {r.num_ranked:,} by {r.kind})"
        claims = r.rank is None or r.notable or (extreme and r.kind == "attributes")
        say = {"attributes": _attributes, "cohesion": _cohesion}.get(r.kind, _lengths)
        text = _own(r) if isinstance(r, OwnReason) else say(e, r)
        found.append(ReasonText(r.kind, KIND_TITLES[r.kind] if claims else "", text + rank))
    return found


def opening_text(e: Explanation) -> str:
    """Sentences before the reasons: that there are no neighbours, that no reason is notable; else empty."""
    alone = "" if e.degree else "No edge leads from it to another node."
    ranked = e.reasons and e.reasons[0].rank is not None
    nothing = "No kind of evidence ranks it among the first 5%. What comes nearest:"
    return " ".join(filter(None, [alone, nothing if ranked and not any(r.notable for r in e.reasons) else ""]))


def all_reasons(e: Explanation) -> str:
    """All reasons of a node as sentences, for a table."""
    return " ".join(filter(None, [opening_text(e), *(f"{r.line}." for r in reason_texts(e))]))


def reasons_of(evidence: Evidence, nodes: Sequence[int]) -> list[str]:
    """All reasons of some nodes as sentences, found in threads."""
    return map_slices(
        len(nodes), lambda part: all_reasons(explain(evidence, nodes[part.start], num_neighbors=0)), size=1
    )


def dropped_text(e: Explanation) -> str:
    """How many of its edges purification dropped; empty where they are few."""
    count = e.num_dropped
    if count < max(1.0, _NOTABLE_SHARE * e.degree):
        return ""
    some = f"{'all' if count == e.degree else f'{count:,}'} of its {e.degree:,} edges"
    some = "its only edge" if e.degree == 1 else some
    were, whose = ("was", "its") if count == 1 else ("were", "their")
    return f"Before learning {some} {were} dropped, because {whose} ends are so unlike."


def like_text(e: Explanation) -> str:
    """The nodes of like degree and type (`Evidence.usual`)."""
    if e.degree < 2:
        return _nodes(e, "nodes with 1 neighbour" if e.degree else "nodes without neighbours")
    low = 1 << e.degree.bit_length() - 1
    return _nodes(e, f"nodes with {low:,} to {2 * low - 1:,} neighbours")


def _against(value: float, usual: float | None, digits: int, whom: str) -> tuple[str, str, bool]:
    """A value, what is usual for whom, and whether the value is larger, as far as digits tell: up to two more."""
    if usual is None:
        return f"{value:.{digits}f}", "; too few nodes have as many neighbours to say what is usual", False
    for more in range(3):
        own, other = f"{value:.{digits + more}f}", f"{usual:.{digits + more}f}"
        if own != other:
            return own, f", where {other} is usual for {whom}", value > usual
    return own, f", as is usual for {whom}", False


_LENGTHS = {  # digits, what is said of a length, and what where there is none
    "hop": (1, "{} {} hops away to the model", "none of its edges was scored"),
    "closure": (1, "{} {} hops apart to the model", "edges that look far to the model close triangles around it"),
    "context": (2, "its attributes differ from those around it by {1} on a scale from 0 to 2", "its attributes differ"),
    "context_closure": (
        2,
        "differ in attributes by {1} on a scale from 0 to 2",
        "unlike nodes close triangles here",
    ),
}


def _lengths(e: Explanation, r: Reason) -> str:
    """Predicted hops or distances of attributes, of the node to its neighbours or between pairs of these."""
    digits, says, none = _LENGTHS[r.kind]
    if r.value is None:
        return none
    of_pairs, who = r.kind.endswith("closure"), ""
    own, usual, larger = _against(r.value, r.usual, digits, "two neighbours" if of_pairs else like_text(e))
    if of_pairs:
        far = "they" if r.count == 2 else "these pairs" if r.far_pairs == r.pairs else f"{r.far_pairs:,} of these pairs"
        who = f"{_joined(r.pairs, r.count, e.degree)}, {'although' if larger else 'and'} {far} "
    elif r.kind == "hop":
        who = f"{_some(r.count, e.degree)} "
    average = ", on average" if (r.far_pairs if of_pairs else r.count) > 1 else ""
    return who + says.format("looks" if r.count == 1 else "look", own) + average + usual


def _some(count: int, degree: int) -> str:
    """So many of its neighbours."""
    own = f"its {degree:,} neighbours" if degree > 1 else "its only neighbour"
    return own if count == degree else f"{count:,} of {own}"


def _joined(num_joined: int, count: int, degree: int) -> str:
    """How many pairs are joined among so many of its neighbours."""
    some, pairs = _some(count, degree), count * (count - 1) // 2
    if count == 2:
        return f"{some} are joined to each other"
    joined = f"all {pairs:,} pairs" if num_joined == pairs else f"{num_joined:,} of the {pairs:,} pairs"
    return f"{joined} among {some} {'is' if num_joined == 1 else 'are'} joined"


def _own(r: OwnReason) -> str:
    """The sentence of a plug-in, and its number of the node."""
    words = r.words.rstrip(".:")
    return f"{words[:1].lower()}{words[1:]}: {r.value:.4g}" if words else f"its number is {r.value:.4g}"


def _cohesion(e: Explanation, r: Reason) -> str:
    if r.value is None or r.usual is None:
        return "more of its neighbours are joined to each other, or to the same others, than their degrees explain"
    usual = f"{r.usual:,.1f}" if r.usual >= 0.1 else f"{r.usual:.1g}"
    if r.pairs:  # of two sides
        least = "all" if r.value == r.count else f"{r.value:,.0f} {'or more ' if r.pairs > 1 else ''}of"
        whom = f"each of {r.pairs:,} others" if r.pairs > 1 else "another"
        return f"it shares {least} its {r.count:,} neighbours with {whom}, where degrees lead to expect {usual}"
    return f"{_joined(int(r.value), r.count, r.count)}, where their degrees lead to expect {usual} such pairs"


def _attributes(e: Explanation, r: Reason) -> str:
    """The columns that are extreme or differ most; hashed text only where no column differs."""
    plain = [d for d in e.differences if not d.is_text]
    cited, opening = [d for d in plain if d.notable][:_NUM_CITED], ""
    if not cited and not (cited := [d for d in e.differences if d.is_text][:1]):
        cited, opening = plain[:1], f"no column alone is {NOTABLE_DEVIATIONS:g} deviations off; the farthest is "
    told = "; ".join(_difference(e, d) for d in cited)
    usual = f"; usual is the median of {like_text(e)}" if "is usual" in told else ""
    return f"{opening}{told}{usual}" if cited else "no single column shows it"


def compared_with(e: Explanation) -> str:
    """What attributes are compared with: `its neighbours`, `all nodes`, or those of the node's type."""
    return f"its {_nodes(e, 'neighbours')}" if _num_alike(e) else f"all {_nodes(e, 'nodes')}"


def _num_alike(e: Explanation) -> int:
    return e.degree if e.num_alike is None else e.num_alike


def _nodes(e: Explanation, what: str) -> str:
    """Nodes, or neighbours, of the types that it is compared with, where that is not all."""
    return what if e.type is None or e.num_alike is None else f"{clip(e.type, _ID_WIDTH)} {what}"


def _difference(e: Explanation, d: Difference) -> str:
    """One attribute, as a value, a category, a gap or a text."""
    where = "around it" if e.degree else "over all nodes"
    where = where if e.num_alike is None else f"of {compared_with(e)}"
    column = f"`{clip(d.column, _NAME_WIDTH)}`"
    if d.is_text:
        return f"{_text_name(d)} unlike that {where}"
    name, is_category, category = d.column.partition("=")
    gap = d.column.removesuffix(GAP_SUFFIX)
    if d.value in (0.0, 1.0) and 0.0 <= d.neighbors <= 1.0 and (is_category or gap != d.column):
        what = f"`{clip(category, _NAME_WIDTH)}`" if gap == d.column else "missing"
        share = percent(d.neighbors if d.value else 1.0 - d.neighbors)
        name = clip(name if gap == d.column else gap, _NAME_WIDTH)
        return f"`{name}` is {'' if d.value else 'not '}{what}, which is so of {share} {where}"
    if d.counts is not None:
        usual = "" if d.usual is None else f", where {percent(d.usual)} is usual"
        of = "partners" if d.column.startswith(ONCE + AS_END) else "rows"
        return f"{column}: {d.counts[0]:,} of its {d.counts[1]:,} {of}{usual}"
    own, mean, usual = (_quantity(value, d.first_day) for value in (d.value, d.neighbors, d.usual or 0.0))
    if d.usual is None:
        return f"{column} = {own} where the mean {where} is {mean}"
    return f"{column} = {own} where {usual} is usual{f' and {mean} the mean {where}' * (_num_alike(e) > 0)}"


def _text_name(d: Difference) -> str:
    """A column of hashed text, or of vectors."""
    is_vector = d.column.endswith("[]")
    return f"{'vector' if is_vector else 'text in'} `{clip(d.column.removesuffix('[]'), _NAME_WIDTH)}`"


def _quantity(value: float, first_day: str | None = None) -> str:
    """The value of an attribute with a few digits, or as a date."""
    if first_day is not None:
        return value_text(value, first_day)
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value + 0.0:.3g}"  # -0.0 + 0.0 is 0.0


# The page for a terminal.


def explanation_text(e: Explanation, limit: int = 20) -> str:
    """Where the node stands, its reasons, at most `limit` of its neighbours, its attributes."""
    return "\n".join([*_heading(e), *_neighbor_lines(e, limit), *_difference_lines(e)])


def _heading(e: Explanation) -> list[str]:
    scores = {name: "-" if value is None else f"{value:.3g}" for name, value in e.scores.items()}
    shown = "".join(f"{score_title(name)} {text}   " for name, text in scores.items() if e.ranked_by in ("", name))
    lines = [
        f"{clip(e.id, 80)}   rank {e.rank:,} of {e.num_nodes:,} (above {e.percentile:.2f} % of all nodes)",
        f"{shown}degree {e.degree:,}"
        + (f"   type {clip(e.type, _ID_WIDTH)}" if e.type else "")
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
    weight_name = clip(shown[0].weight.name, _ID_WIDTH) if shown[0].weight else ""
    rows = [("neighbour", "predicted hop", "edge", "type", weight_name)]
    for n, names in zip(shown, types, strict=True):
        hop = "  not scored " if n.hop is None else f"{n.hop:5.2f} ± {n.std or 0.0:<5.2f}"
        edge = {None: "", True: "dropped", False: "kept"}[n.dropped]
        amount = weight(n.weight.value, n.weight.percent) if n.weight else ""
        rows.append((clip(n.id, _ID_WIDTH), hop, edge, names, amount))
    width = max(10, *(len(row[0]) for row in rows[1:]))
    lines = [""]
    for name, hop, edge, names, amount in rows:
        cells = [f"{name:<{width}}", hop, f"{edge:<8}", *([f"{names:<{type_width}}"] if type_width else []), amount]
        lines.append("   ".join(cells).rstrip())
    hidden = e.degree - len(shown)
    return [*lines, f"and {hidden:,} nearer"] if hidden else lines


def _difference_lines(e: Explanation) -> list[str]:
    """A table of attributes: their names, the node's value, the neighbours' mean, the deviations."""
    if not e.differences:
        return []
    rows = [("attribute", "its value", compared_with(e) if e.type else "neighbours", "deviations")]
    for d in e.differences:
        own, theirs = ("" if d.is_text else value_text(value, d.first_day) for value in (d.value, d.neighbors))
        name = clip(_text_name(d).replace("`", "") if d.is_text else d.column, _ID_WIDTH)
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
    first, second = (clip(end, _ID_WIDTH) for end in e.ends)
    state = {None: "", True: ", flagged", False: ", not flagged"}[e.flagged]
    rate = "" if e.flagged is None else f" at a false-discovery rate of {percent(e.fdr)}"
    lines = [
        f"{first} and {second}   {percent(e.share)} of the {e.num_edges:,} edges are as strange",
        f"p {p_text(e.p)}{state}{rate}   degrees {e.degrees[0]:,} and {e.degrees[1]:,}",
        "",
    ]
    told = [r for r in e.reasons if r.notable]
    if not told:
        lines.append("No kind of evidence has it among the first 5% of the edges. What comes nearest:")
    for reason in told or e.reasons[:1]:
        title = f"{EDGE_TITLES[reason.kind]}: " if told else ""
        lines += textwrap.wrap(sentence(f"{title}{edge_reason(e, reason)}."), _LINE_WIDTH, subsequent_indent="  ")
    if e.dropped:
        lines.append("Before learning it was dropped, because its ends are so unlike.")
    if e.differences:
        cited = "; ".join(_end_difference(e, d) for d in e.differences[:_NUM_ENDS_CITED])
        lines += textwrap.wrap(f"Attributes that differ most: {cited}.", _LINE_WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def edge_sentence(e: EdgeExplanation) -> str:
    """What speaks for an edge, in one sentence: for the line of a table."""
    told = [r for r in e.reasons if r.notable] or [r for r in e.reasons[:1] if r.value is not None]
    parts = [edge_reason(e, reason, "edges of such ends") for reason in told]
    parts += [_end_difference(e, d) for d in e.differences[:1]]
    whom = " for edges of such ends"
    first, found, rest = sentence("; ".join(parts)).partition(whom)
    return f"{first}{found}{rest.replace(whom, '')}." if parts else ""  # once is enough


def edge_reason(e: EdgeExplanation, r: EdgeReason, like: str = "") -> str:
    """What one kind of evidence says of an edge, and what is usual for edges of like degrees, which `like` names."""
    if r.value is None:
        return "the model was not asked about this edge"
    ends = dict.fromkeys(_with_neighbors(degree) for degree in sorted(e.degrees))
    like = like or f"edges between nodes {' and '.join(ends)}"
    if r.kind == "shared":
        usual = "" if r.usual in (None, r.value) else f", where {r.usual:g} is usual for {like}"
        return f"its ends share {f'{r.value:,.0f}' if r.value else 'no'} neighbour{'s' * (r.value != 1)}{usual}"
    own, usual, _ = _against(r.value, r.usual, 1 if r.kind == "hop" else 2, like)
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
    first, second = (clip(end, _ID_WIDTH) for end in e.ends)
    if d.is_text:
        return f"their texts in `{clip(d.column, _NAME_WIDTH)}` differ"
    name, is_category, category = d.column.partition("=")
    gap = d.column.removesuffix(GAP_SUFFIX)
    if {d.value, d.neighbors} == {0.0, 1.0} and (is_category or gap != d.column):
        who = first if d.value else second
        what = "missing" if gap != d.column else f"`{clip(category, _NAME_WIDTH)}`"
        return f"`{clip(gap if gap != d.column else name, _NAME_WIDTH)}` is {what} of {who} alone"
    own, other = (_quantity(value, d.first_day) for value in (d.value, d.neighbors))
    return f"`{clip(d.column, _NAME_WIDTH)}` is {own} of {first} and {other} of {second}"
