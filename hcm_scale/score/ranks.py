"""Ranks of numbers between 0 and 1, among themselves or among others, and how surprising a rank is.

Equal numbers share the middle of their places.
"""

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import Places
from hcm_scale.base.threads import in_slices


def ranks_of(double: Places, size: int) -> NDArray[np.float64]:
    """The ranks, between 0 and 1, of double places among so many.

    >>> ranks_of(np.array([5, 8, 5, 2]), 4).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    out = np.empty(len(double))

    def fill(part: slice) -> None:
        out[part] = 1.0 - (double[part] - 1) / (2.0 * max(1, size))

    in_slices(len(double), fill)
    return out


def places_among(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.int64]:
    """`double_places` that values would have among usual ones, as if each took the place of an equal one.

    >>> places_among(np.array([3.0, 2.0, 10.0]), np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 7, 1]
    """
    ordered, out = np.sort(usual), np.empty(len(values), np.int64)

    def fill(part: slice) -> None:
        below, up_to = (np.searchsorted(ordered, values[part], side) for side in ("left", "right"))
        out[part] = 2 * len(ordered) + 1 - below - up_to

    in_slices(len(values), fill)
    return out


def ranks_among(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.float64]:
    """`ranks_of` the places that values would have among usual ones, at most that of the first."""
    return ranks_of(np.maximum(places_among(values, usual), 2), len(usual))


def surprise(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(1 - rank), the surprise of a rank."""
    out = np.empty_like(ranks)

    def fill(part: slice) -> None:
        np.log1p(-ranks[part], out=out[part])
        np.negative(out[part], out=out[part])

    in_slices(len(ranks), fill)
    return out
