"""Group of unlike nodes: edges between nodes of unlike attributes close into triangles around the node.

It is closure (closure.py) with the distance of attributes over an edge in the place of its predicted hop.
"""

from typing import Any

from hcm_scale.score.kinds.around import Around, distances_of_edges
from hcm_scale.score.kinds.closure import closure_by, closure_reason, closure_sentence, is_cut
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import OF_LOGARITHMS, Column, Kind, Reason, Values


def _numbers(inputs: KindInputs) -> list[Values]:
    return [closure_by(inputs, inputs.distance, "unlike")]


def _reason(around: Around) -> dict[str, Any]:
    if around.evidence.features is None:
        return {}
    return closure_reason(around, CONTEXT_CLOSURE.column, distances_of_edges, around.evidence.usual_distance)


def _sentence(e: Any, r: Reason) -> str:
    if r.value is None:
        return "unlike nodes close triangles here"
    return closure_sentence(e, r, 2, "differ in attributes by {} on a scale from 0 to 2")


CONTEXT_CLOSURE = Kind(
    name="context_closure",
    columns={
        "context_closure": Column(
            "triangles of unlike nodes over what the degree explains (log)", title="Unlike triangles"
        )
    },
    title="group of unlike nodes",
    short="Unlike group",
    help="Its neighbours are joined to each other, although their attributes have little in common.",
    numbers=_numbers,
    zero_says_nothing=True,
    weight=lambda facts: facts.of_context,
    tail=OF_LOGARITHMS,
    stored={"unlike": is_cut},
    reason=_reason,
    sentence=_sentence,
)
