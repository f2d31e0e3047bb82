"""Words about the ranked list as a whole, the same on the page and in a terminal: what ranks it, how many nodes stand
out, and what a group of nodes shares.
"""

from collections.abc import Mapping
from typing import Any

from hcm_scale.report.kinds import named
from hcm_scale.report.quantities import percent

LONG_NAMES = {
    "score": "score (all kinds of evidence)",
    "ahp": "average hop prediction (AHP)",
    "iv": "inference variance (IV)",
    "hav": "hops and their uncertainty (HAV)",
    "closure": "far triangles per neighbour (log)",
    "strange": "hops and far triangles",
    "context": "distance of attributes to the neighbours'",
    "context_closure": "triangles of unlike nodes per neighbour (log)",
    "residual": "distance of attributes to what the neighbourhood predicts",
}
_MEANS = {
    "score": "a node stands high where its neighbours seem far from it, where its attributes are unlike theirs or "
    "unexpected, or where it belongs to a group of such nodes",
    "ahp": "the higher a node stands, the farther its own neighbours seem to be from it",
    "hav": "the higher a node stands, the farther its own neighbours seem to be from it and the less sure that is",
    "strange": "the higher a node stands, the farther its own neighbours seem to be from it and the more of its far "
    "edges close into triangles",
}


def long_name(score: str) -> str:
    """A score in words.

    >>> long_name("ahp"), long_name("ahp_trend")
    ('average hop prediction (AHP)', 'ahp trend')
    """
    return LONG_NAMES.get(score, score.replace("_", " "))


def meaning(ranked_by: str) -> str:
    """What a high place says, by the score that ranks."""
    return _MEANS.get(ranked_by, "the higher a node stands, the larger this number is")


def found_text(found: Mapping[str, Any]) -> str:
    """How many nodes stand out, and how far two encoders agree, where that is known.

    >>> found_text({"num_flagged": 3, "fdr": 0.1, "stability": 0.84})
    '3 nodes stand out at a false-discovery rate of 10%. 84% of the first nodes stay so by either encoder alone.'
    >>> found_text({"num_flagged": 0, "fdr": 0.1})
    'No node stands out at a false-discovery rate of 10%.'
    """
    told = []
    count, fdr, stability = (found.get(name) for name in ("num_flagged", "fdr", "stability"))
    if count is not None and fdr is not None:
        who = "No node stands" if not count else "1 node stands" if count == 1 else f"{count:,} nodes stand"
        told.append(f"{who} out at a false-discovery rate of {percent(fdr)}.")
    if stability is not None:
        told.append(f"{100 * stability:.0f}% of the first nodes stay so by either encoder alone.")
    return " ".join(told)


def headline(report: Mapping[str, Any]) -> str:
    """The finding of a report in one line.

    >>> headline({"flagged": {"num": 3}, "graph": {"num_nodes": 2000}})
    '3 of 2,000 nodes stand out'
    >>> headline({"flagged": None, "graph": {"num_nodes": 2000}})
    '2,000 nodes, the oddest first'
    """
    flagged, total = report["flagged"], f"{report['graph']['num_nodes']:,}"
    if flagged is None:
        return f"{total} nodes, the oddest first"
    if not flagged["num"]:
        return f"None of {total} nodes stands out"
    return f"{flagged['num']:,} of {total} nodes {'stands' if flagged['num'] == 1 else 'stand'} out"


def flag_text(report: Mapping[str, Any]) -> str:
    """What standing out means in a report: the largest p among the flagged nodes, and the false-discovery rate.

    >>> flag_text({"flagged": {"num": 3, "largest_p": 0.0002}, "found": {"fdr": 0.1}})
    'Nodes stand out from p = 0.0002 down; about 10% of them may be there by chance.'
    """
    flagged, fdr, stability = report["flagged"], report["found"].get("fdr"), report["found"].get("stability")
    told = []
    if flagged and flagged["num"]:
        chance = "" if fdr is None else f"; about {percent(fdr)} of them may be there by chance"
        told.append(f"Nodes stand out from p = {flagged['largest_p']:.1g} down{chance}.")
    elif flagged:
        told.append("The list has a first node all the same; the most odd may be quite usual.")
    if stability is not None:
        told.append(f"{100 * stability:.0f}% of the first nodes stay so by either of two encoders, trained apart.")
    return " ".join(told)


def sentence(text: str) -> str:
    """The text with a capital at its beginning.

    >>> sentence("average hop prediction (AHP)")
    'Average hop prediction (AHP)'
    """
    return text[:1].upper() + text[1:]


def group_text(group: Mapping[str, Any]) -> str:
    """What the members of a group share.

    >>> some = {"members": [{}] * 12, "num_edges": 66, "evidence": "closure", "num_evidence": 12, "label": None}
    >>> group_text(some)
    'all joined to each other, group of strangers (closure)'
    >>> group_text(some | {"num_edges": 12, "num_evidence": 8})
    '12 of 66 pairs joined, group of strangers (closure) for 8 of them'
    """
    size = len(group["members"])
    pairs = size * (size - 1) // 2
    told = [
        "all joined to each other" if group["num_edges"] == pairs else f"{group['num_edges']} of {pairs} pairs joined"
    ]
    if group["evidence"]:
        for_some = "" if group["num_evidence"] == size else f" for {group['num_evidence']} of them"
        told.append(named(group["evidence"]) + for_some)
    return ", ".join(told + ([f"known as {group['label']}"] if group["label"] else []))
