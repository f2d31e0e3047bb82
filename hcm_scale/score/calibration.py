"""Calibration: what the numbers of nodes are measured against, taken from one graph and valid for another.

A z-scale holds means and spreads of numbers. A scale is what kinds of evidence measure by (`KindInputs.measured`), an
array a name: a run takes it from its own graph and stores it beside its scores, usually at most 1 megabyte, and a run
that scores tomorrow's graph with the same samples reads it. Sums run over slices, not over threads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.base.threads import map_slices, run_in_slices

Values = NDArray[np.float64]


class ZScale(NamedTuple):
    """Mean and standard deviation of each number, (k,), and the least sum of z-scores."""

    means: Values
    spreads: Values
    least: float

    def packed(self) -> Values:
        """As one array, (2 k + 1,)."""
        return np.hstack(self)

    @staticmethod
    def unpacked(array: Values) -> "ZScale":
        means, spreads = array[:-1].reshape(2, -1)
        return ZScale(means, spreads, float(array[-1]))

    @staticmethod
    def is_legal(array: Any) -> bool:
        """Whether it is a packed one."""
        return array is not None and array.ndim == 1 and len(array) % 2 == 1


def zscale_among(values: Sequence[Values], scored: NDArray[np.bool_]) -> ZScale:
    """Means, standard deviations and least sum of z-scores among the scored nodes; each number is (n,)."""
    size = sum(map_slices(len(scored), lambda chunk: np.count_nonzero(scored[chunk])))
    if not size:
        return ZScale(np.zeros(len(values)), np.zeros(len(values)), 0.0)

    def moments(center: Values, power: int) -> Values:
        """Mean, over the scored nodes, of this power of each number minus its center."""

        def sums(chunk: slice) -> list[float]:
            return [((value[chunk][scored[chunk]] - c) ** power).sum() for value, c in zip(values, center, strict=True)]

        return np.sum(map_slices(len(scored), sums), axis=0) / size

    def least(chunk: slice) -> float:
        return float(_sum_zscores(values, chunk, means, spreads)[scored[chunk]].min(initial=np.inf))

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

    def fill(chunk: slice) -> None:
        total = _sum_zscores(values, chunk, scale.means, scale.spreads) - scale.least
        out[chunk] = np.where(scored[chunk], total, 0.0)

    run_in_slices(len(out), fill)
    return out


def _sum_zscores(values: Sequence[Values], chunk: slice, means: Values, spreads: Values) -> Values:
    total = np.zeros(len(values[0][chunk]))
    for value, mean, spread in zip(values, means, spreads, strict=True):
        if spread > 0:
            total += (value[chunk] - mean) / spread
    return total


def scale_from_bytes(data: bytes, legal: Mapping[str, Callable[[Any], bool]]) -> dict[str, Values]:
    """The arrays of a scale that was saved; ValueError where one is not `legal`, which is asked about each name."""
    arrays: dict[str, Values] = load(data)
    for name in {*arrays, *legal}:
        array = arrays.get(name)
        is_float = array is None or array.dtype == np.float64
        if not is_float or not legal.get(name, lambda _: True)(array):
            raise ValueError(f"it is not a scale: its {name} is {array!r:.100}")
    return arrays


scale_to_bytes = save
