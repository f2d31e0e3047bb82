"""The weight of an edge as the model takes it: strength = log2(1 + weight / median), so that a typical edge has 1.

Weights have units of their own and heavy tails: of amounts the largest may be a million times the median, and would
leave nothing of a node's other neighbours. Of strengths it has 20. A typical edge counts as much as the node itself
does in Â, and a light one as much less as it is lighter. The median is that of the graph that was trained on; another
graph is measured by it (`trained=`), so that an amount counts the same tomorrow.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import map_new

_BLOCK = 1 << 20
_LEAST = np.finfo(np.float32).tiny


def median_weight(weights: NDArray[np.float32]) -> float:
    """The median of the entries, which is that of the edges; 1 where there are none."""
    return float(np.median(weights)) if len(weights) else 1.0


def strengths(weights: NDArray[np.float32], median: float) -> NDArray[np.float32]:
    """Of each weight; above 0 and finite whatever the weights are.

    >>> strengths(np.array([5.0, 15.0, 5115.0], np.float32), median=5.0).tolist()
    [1.0, 2.0, 10.0]
    """
    return np.maximum(np.log1p(weights / np.float64(median)) / np.log(2.0), _LEAST).astype(np.float32)


def write_strengths(path: Path, weights: NDArray[np.float32], median: float) -> NDArray[np.float32]:
    """The same into a .npy file, block by block, mapped."""
    out = map_new(path, np.float32, weights.shape)
    for first in range(0, len(weights), _BLOCK):
        out[first : first + _BLOCK] = strengths(weights[first : first + _BLOCK], median)
    out.flush()
    return out
