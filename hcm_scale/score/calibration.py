"""Calibration: what the numbers of nodes are measured against, taken from one graph and valid for another.

`Scale.far` tells far edges by their predicted hop, `Scale.strange` holds mean and spread of AHP and closure, and
`Scale.context` describes attributes over edges: from which distance on two ends are unlike, how surprising every
distance is, and what neighbours predict. A run takes them from its own graph and stores them beside its scores, usually
at most 1 megabyte; a run that scores tomorrow's graph with the same samples reads them, so that a node in the same
surroundings has the same numbers on both days. Sums run over slices that do not depend on the number of threads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.base.order import ABOVE_ALL
from hcm_scale.base.threads import map_slices, run_in_slices
from hcm_scale.score.closure import Cut, Rate
from hcm_scale.score.context import NUM_BINS
from hcm_scale.score.residual import Prediction

Values = NDArray[np.float64]


class ZScale(NamedTuple):
    """Mean and standard deviation of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float


class Strangeness(NamedTuple):
    """z-scales of `strange`: of AHP and closure, and of the AHP of each encoder where there are several."""

    both: ZScale
    views: ZScale | None = None


class ContextScale(NamedTuple):
    """Distance from which ends of an edge are unlike, surprise of every bin of distances, and the prediction.

    `spread` is the variance between nodes of their context, `rate` that of the expected triangles, or squares, `trust`
    how far attributes are witnesses of edges.
    """

    unlike: Cut
    surprise: Values
    prediction: Prediction
    spread: float
    rate: Rate
    trust: float = 1.0


class Scale(NamedTuple):
    """Calibration of one graph: of hops, and of attributes."""

    far: Cut
    strange: Strangeness
    context: ContextScale


def zscale_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> ZScale:
    """Means, standard deviations and least sum of z-scores among the scored nodes; each number is (n,)."""
    size = sum(map_slices(len(scored), lambda part: np.count_nonzero(scored[part])))
    if not size:
        return ZScale(np.zeros(len(values)), np.zeros(len(values)), 0.0)

    def moments(center: Values, power: int) -> Values:
        """Mean, over the scored nodes, of this power of each number minus its center."""

        def sums(part: slice) -> list[float]:
            return [((value[part][scored[part]] - c) ** power).sum() for value, c in zip(values, center, strict=True)]

        return np.sum(map_slices(len(scored), sums), axis=0) / size

    def least(part: slice) -> float:
        return float(_sum_zscores(values, part, means, spreads)[scored[part]].min(initial=np.inf))

    means = moments(np.zeros(len(values)), 1)
    spreads = np.sqrt(moments(means, 2))
    return ZScale(means, spreads, min(map_slices(len(scored), least)))


def add_zscores(values: Sequence[Values], scored: NDArray[np.bool_], scale: ZScale) -> Values:
    """Sum of the z-scores of all numbers, (n,), minus the least; 0 where a node is not scored.

    A number without spread adds nothing.

    >>> values, scored = [np.array([1.0, 3.0, 9.0]), np.array([2.0, 2.0, 0.0])], np.array([True, True, False])
    >>> add_zscores(values, scored, zscale_among(values, scored)).tolist()
    [0.0, 2.0, 0.0]
    """
    out = np.empty(len(scored))

    def fill(part: slice) -> None:
        total = _sum_zscores(values, part, scale.means, scale.spreads) - scale.least
        out[part] = np.where(scored[part], total, 0.0)

    run_in_slices(len(out), fill)
    return out


def _sum_zscores(values: Sequence[Values], part: slice, means: Values, spreads: Values) -> Values:
    total = np.zeros(len(values[0][part]))
    for value, mean, spread in zip(values, means, spreads, strict=True):
        if spread > 0:
            total += (value[part] - mean) / spread
    return total


def scale_to_bytes(scale: Scale) -> bytes:
    unlike, surprise, prediction, spread, rate, trust = scale.context
    arrays = {"far": np.array(scale.far, np.float64), "unlike": np.array(unlike, np.float64), "surprise": surprise}
    arrays["numbers"] = np.array([spread, rate.value, trust, *([1.0] if rate.of_squares else [])], np.float64)
    arrays |= {name: np.hstack(part) for name, part in scale.strange._asdict().items() if part is not None}
    return save(arrays | prediction._asdict())


def scale_from_bytes(data: bytes) -> Scale:
    """Inverse of `scale_to_bytes`; ValueError if the file holds something else."""
    arrays = load(data)
    if any(array.dtype != np.float64 for array in arrays.values()) or arrays["surprise"].shape != (NUM_BINS,):
        raise ValueError(f"it is not a scale: numbers must be float64, and {NUM_BINS} of them surprises")
    far, unlike = (Cut(int(arrays[name][0]), float(arrays[name][1])) for name in ("far", "unlike"))
    if not all(0 <= cut.key <= ABOVE_ALL and 0.0 <= cut.tied <= 1.0 for cut in (far, unlike)):
        raise ValueError(f"it is not a scale: edges are far from {far} on, and unlike from {unlike} on")

    def zscale(numbers: Values) -> ZScale:
        means, spreads = numbers[:-1].reshape(2, -1)
        return ZScale(means, spreads, float(numbers[-1]))

    strange = Strangeness(zscale(arrays["both"]), zscale(arrays["views"]) if "views" in arrays else None)
    prediction = Prediction(arrays["centre"], arrays["weights"])
    spread, rate, trust, *of_squares = map(float, arrays["numbers"])
    if not (0.0 <= spread < np.inf and 0.0 <= rate < np.inf and 0.0 <= trust <= 1.0):
        raise ValueError(f"it is not a scale: its spread is {spread}, its rate of triangles {rate}, its trust {trust}")
    context = ContextScale(unlike, arrays["surprise"], prediction, spread, Rate(rate, bool(of_squares)), trust)
    return Scale(far, strange, context)
