"""What the numbers of nodes are measured by: taken from the edges and nodes of one graph, and good for another.

`Scale.far` tells far edges by their predicted hop, `Strangeness` says which AHP and closure are usual, `ContextScale`
what is usual about attributes over edges: from which distance on two ends are unlike, how surprising every distance is,
and what neighbours predict. A run takes them from its own graph and keeps them beside its scores, 1 megabyte at most as
a rule; a run that scores tomorrow's graph with the same samples reads them there, so that a node in the same
surroundings has the same numbers on both days.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.base.largest_kernels import ABOVE_ALL
from hcm_scale.score.closure import Cut, far_cut
from hcm_scale.score.context import surprise_of_bins
from hcm_scale.score.context_kernels import NUM_BINS
from hcm_scale.score.numbering import EdgeIndex
from hcm_scale.score.residual import Prediction, fit
from hcm_scale.score.standard import Usual


class ContextScale(NamedTuple):
    """What is usual about attributes."""

    unlike: Cut
    surprise: NDArray[np.float64]  # of every bin of distances
    prediction: Prediction


class Strangeness(NamedTuple):
    """What `strange` is measured by: AHP and closure, and the AHP of each encoder where there are several."""

    both: Usual
    views: Usual | None = None


class Scale(NamedTuple):
    """What is usual about hops, and about attributes."""

    far: Cut
    strange: Strangeness
    context: ContextScale


def context_scale(
    edges: EdgeIndex, x: NDArray[np.float32], distance: NDArray[np.float32], far_share: float
) -> ContextScale:
    """The scale of a graph with features x, (n, q), and their distance over every edge, (m,)."""
    prediction = fit(edges.indptr, edges.indices, x)
    return ContextScale(far_cut(distance, far_share), surprise_of_bins(distance), prediction)


def to_bytes(scale: Scale) -> bytes:
    """The scale as a safetensors file."""
    unlike, surprise, prediction = scale.context
    arrays = {"far": np.array(scale.far, np.float64), "unlike": np.array(unlike, np.float64), "surprise": surprise}
    arrays |= {name: np.hstack(usual) for name, usual in scale.strange._asdict().items() if usual is not None}
    return save(arrays | prediction._asdict())


def from_bytes(data: bytes) -> Scale:
    """The inverse of `to_bytes`."""
    arrays = load(data)
    if any(array.dtype != np.float64 for array in arrays.values()) or arrays["surprise"].shape != (NUM_BINS,):
        raise ValueError(f"it is not a scale: numbers must be float64, and {NUM_BINS} of them surprises")
    far, unlike = (Cut(int(arrays[name][0]), float(arrays[name][1])) for name in ("far", "unlike"))
    if not all(0 <= cut.key <= ABOVE_ALL and 0.0 <= cut.tied <= 1.0 for cut in (far, unlike)):
        raise ValueError(f"it is not a scale: edges are far from {far} on, and unlike from {unlike} on")
    strange = Strangeness(_usual(arrays["both"]), _usual(arrays["views"]) if "views" in arrays else None)
    prediction = Prediction(arrays["centre"], arrays["weights"])
    return Scale(far, strange, ContextScale(unlike, arrays["surprise"], prediction))


def _usual(numbers: NDArray[np.float64]) -> Usual:
    means, spreads = numbers[:-1].reshape(2, -1)
    return Usual(means, spreads, float(numbers[-1]))
