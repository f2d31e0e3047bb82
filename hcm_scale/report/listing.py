"""Words about the ranked list as a whole, the same on the page and in a terminal: what ranks it, how many nodes stand
out, and what a group of nodes shares.
"""

from collections.abc import Mapping
from typing import Any

from hcm_scale.report.kinds import named
from hcm_scale.report.quantities import percent

LONG_NAMES = {
    "score": "evidence of all kinds",
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
    "score": "the higher a node stands, the more it stands out, by the hops predicted to its neighbours, by its "
    "attributes beside theirs, or by a group that it is joined to",
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
    '3 nodes stand out at a false-discovery rate of 10%. Two encoders agree on 84% of their first nodes.'
    >>> found_text({"num_flagged": 0, "fdr": 0.1})
    'No node stands out at a false-discovery rate of 10%.'
    """
    told = []
    count, fdr, stability = (found.get(name) for name in ("num_flagged", "fdr", "stability"))
    if count is not None and fdr is not None:
        who = "No node stands" if not count else "1 node stands" if count == 1 else f"{count:,} nodes stand"
        told.append(f"{who} out at a false-discovery rate of {percent(fdr)}.")
    if stability is not None:
        told.append(f"Two encoders agree on {100 * stability:.0f}% of their first nodes.")
    return " ".join(told)


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
