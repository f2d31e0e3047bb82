"""What the numbers of nodes are measured by: taken from the edges and nodes of one graph, and good for another.

`Scale.far` tells far edges by their predicted hop, `Strangeness` says which AHP and closure are usual, `ContextScale`
what is usual about attributes over edges: from which distance on two ends are unlike, how surprising every distance is,
and what neighbours predict. A run takes them from its own graph and keeps them beside its scores, 1 megabyte at most as
a rule; a run that scores tomorrow's graph with the same samples reads them there, so that a node in the same
surroundings has the same numbers on both days.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.base.order import ABOVE_ALL
from hcm_scale.base.threads import map_slices, run_in_slices
from hcm_scale.score.closure import Cut, far_cut
from hcm_scale.score.context import NUM_BINS, surprise_of_bins
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.residual import Prediction, fit

# ----------------------------------------------------------------------------
# Several numbers of a node added up as z-scores, by what is usual among the nodes of one graph.
#
# The sum is shifted to start at 0, where nodes that are not scored stay. `Usual` is taken from one graph and measures
# the nodes of another the same way. All threads take part: sums are of slices that do not depend on their number.


Values = NDArray[np.float64]


class ZScale(NamedTuple):
    """Mean and spread of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float


def zscale_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> ZScale:
    """What is usual among the scored nodes; each number is (n,)."""
    size = sum(map_slices(len(scored), lambda part: np.count_nonzero(scored[part])))
    if not size:
        return ZScale(np.zeros(len(values)), np.zeros(len(values)), 0.0)

    def moments(center: Values, power: int) -> Values:
        """The mean, over the scored nodes, of this power of how far each number is above its center."""

        def sums(part: slice) -> list[float]:
            return [((value[part][scored[part]] - c) ** power).sum() for value, c in zip(values, center, strict=True)]

        return np.sum(map_slices(len(scored), sums), axis=0) / size

    def least(part: slice) -> float:
        return float(_added(values, part, means, spreads)[scored[part]].min(initial=np.inf))

    means = moments(np.zeros(len(values)), 1)
    spreads = np.sqrt(moments(means, 2))
    return ZScale(means, spreads, min(map_slices(len(scored), least)))


def add_zscores(values: Sequence[Values], scored: NDArray[np.bool_], usual: ZScale) -> Values:
    """The z-scores of all numbers added up, (n,); 0 where a node is not scored. A number without spread adds nothing.

    >>> values, scored = [np.array([1.0, 3.0, 9.0]), np.array([2.0, 2.0, 0.0])], np.array([True, True, False])
    >>> add_zscores(values, scored, zscale_among(values, scored)).tolist()
    [0.0, 2.0, 0.0]
    """
    out = np.empty(len(scored))

    def fill(part: slice) -> None:
        total = _added(values, part, usual.means, usual.spreads) - usual.least
        out[part] = np.where(scored[part], total, 0.0)

    run_in_slices(len(out), fill)
    return out


def _added(values: Sequence[Values], part: slice, means: Values, spreads: Values) -> Values:
    total = np.zeros(len(values[0][part]))
    for value, mean, spread in zip(values, means, spreads, strict=True):
        if spread > 0:
            total += (value[part] - mean) / spread
    return total


class ContextScale(NamedTuple):
    """What is usual about attributes."""

    unlike: Cut
    surprise: NDArray[np.float64]  # of every bin of distances
    prediction: Prediction


class Strangeness(NamedTuple):
    """What `strange` is measured by: AHP and closure, and the AHP of each encoder where there are several."""

    both: ZScale
    views: ZScale | None = None


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


def scale_to_bytes(scale: Scale) -> bytes:
    """The scale as a safetensors file."""
    unlike, surprise, prediction = scale.context
    arrays = {"far": np.array(scale.far, np.float64), "unlike": np.array(unlike, np.float64), "surprise": surprise}
    arrays |= {name: np.hstack(usual) for name, usual in scale.strange._asdict().items() if usual is not None}
    return save(arrays | prediction._asdict())


def scale_from_bytes(data: bytes) -> Scale:
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


def _usual(numbers: NDArray[np.float64]) -> ZScale:
    means, spreads = numbers[:-1].reshape(2, -1)
    return ZScale(means, spreads, float(numbers[-1]))
