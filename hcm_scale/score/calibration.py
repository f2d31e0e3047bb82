"""What the numbers of nodes are measured by: taken from the edges and nodes of one graph, and good for another.

`Scale.far` tells far edges by their predicted hop, `ContextScale` says what is usual about attributes over edges: from
which distance on two ends are unlike, how surprising every distance is, and what neighbours predict. A run takes them
from its own graph and keeps them beside its scores, 1 megabyte at most as a rule; a run that scores tomorrow's graph
with the same samples reads them there, so that a node in the same surroundings has the same numbers on both days.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.score.closure import Cut, far_cut
from hcm_scale.score.context import surprise_of_bins
from hcm_scale.score.numbering import EdgeIndex
from hcm_scale.score.residual import Prediction, fit


class ContextScale(NamedTuple):
    """What is usual about attributes."""

    unlike: Cut
    surprise: NDArray[np.float64]  # of every bin of distances
    prediction: Prediction


class Scale(NamedTuple):
    """What is usual about hops, and about attributes where they are evidence."""

    far: Cut
    context: ContextScale | None = None


def context_scale(
    edges: EdgeIndex, x: NDArray[np.float32], distance: NDArray[np.float32], far_share: float
) -> ContextScale:
    """The scale of a graph with features x, (n, q), and their distance over every edge, (m,)."""
    prediction = fit(edges.indptr, edges.indices, x)
    return ContextScale(far_cut(distance, far_share), surprise_of_bins(distance), prediction)


def to_bytes(scale: Scale) -> bytes:
    """The scale as a safetensors file."""
    arrays = {"far": np.array(scale.far, np.float64)}
    if scale.context is not None:
        unlike, surprise, prediction = scale.context
        arrays |= {"unlike": np.array(unlike, np.float64), "surprise": surprise, **prediction._asdict()}
    return save(arrays)


def from_bytes(data: bytes) -> Scale:
    """The inverse of `to_bytes`."""
    arrays = load(data)
    cuts = [Cut(int(arrays[name][0]), float(arrays[name][1])) for name in ("far", "unlike") if name in arrays]
    if len(cuts) == 1:
        return Scale(cuts[0])
    prediction = Prediction(arrays["centre"], arrays["weights"])
    return Scale(cuts[0], ContextScale(cuts[1], arrays["surprise"], prediction))
