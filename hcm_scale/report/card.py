"""One explained node as a JSON-able dict: what a card of the page shows, in numbers, words and a picture."""

import math
from typing import Any

from hcm_scale.report import neighborhood, wording
from hcm_scale.report.distances import highest_hop
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import explain


def num_rings(evidence: Evidence) -> int:
    """How many hops the pictures reach, the same for all nodes of a graph."""
    return max(2, math.ceil(highest_hop(evidence.edge_mean)))


def card(evidence: Evidence, node: int, rings: int, limit: int) -> dict[str, Any]:
    """The explanation of a node, with at most `limit` neighbours listed."""
    e = explain(evidence, node)
    told = {"lead": wording.lead(e), "told": [told._asdict() for told in wording.reasons(e)]}
    return (
        e.as_dict(limit)
        | told
        | {"dropped": wording.dropped(e), "picture": neighborhood.layout(evidence.graph, e, rings)}
    )
