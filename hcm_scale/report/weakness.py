"""A hint where the attributes say little about who is joined to whom: hops are predicted from them, and so are weak.

`likeness` is the chance that two neighbours have features more alike, by their cosine, than the ends of two different
edges, which are as often nodes of many edges: 1/2 where attributes are noise. On graphs whose attributes were replaced
by noise it was 0.49 to 0.50, on the embedded data set 0.69, on Cora 0.73, on Reddit 0.90, on DBLP 0.53. The loss of the
training does not tell as much: with a few hubs or a thin graph, distances show in the mean of noise over neighbours
(DBLP: 0.91 with its attributes, 0.93 with noise, of 1.39).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph
from hcm_scale.report.distances import cosine_distance

_LIMIT = 0.52
_FEWEST, _MOST = 512, 1 << 13  # edges: of fewer the chance is too uncertain, more are not looked at


def likeness(graph: Graph, features: NDArray[np.float32] | None) -> float | None:
    """The chance above, from evenly spaced edges; None where there are too few edges, or no features."""
    if features is None or graph.num_edges < _FEWEST:
        return None
    arcs = np.arange(0, graph.num_arcs, max(1, graph.num_arcs // _MOST))
    left, right = np.searchsorted(graph.indptr, arcs, side="right") - 1, graph.indices[arcs]
    joined = cosine_distance(features[left], features[right])
    apart = np.sort(cosine_distance(features[left], features[np.roll(right, len(right) // 2)]))
    farther = len(apart) - np.searchsorted(apart, joined, side="right")
    level = np.searchsorted(apart, joined, side="right") - np.searchsorted(apart, joined)
    return float((farther + 0.5 * level).mean() / len(apart))


def weak_text(
    graph: Graph,
    features: NDArray[np.float32] | None,
    records: Sequence[Mapping[str, Any]] = (),
    num_classes: int | None = None,
) -> str:
    """The hint, with the training's last loss where it is known; empty where there is nothing to hint at."""
    chance = likeness(graph, features)
    if chance is None or chance > _LIMIT:
        return ""
    losses = [record["loss"] for record in records if "loss" in record]
    loss = f" (loss {losses[-1]:.2f} of {math.log(num_classes):.2f})" if losses and num_classes else ""
    return (
        f"The attributes say little about distances in this graph{loss}: neighbours are no more alike than any two "
        "nodes. Evidence from hops and neighbours is weak here; the ranking leans on odd attributes and on triangles."
    )
