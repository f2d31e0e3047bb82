"""Ruzicka's similarity, of the ranks that numbers of any sign have after a softplus."""

import numpy as np


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum of the smaller over sum of the larger of both ends' features, (k, q) each, to (k,)."""
    a, b = np.logaddexp(0.0, a), np.logaddexp(0.0, b)
    return np.minimum(a, b).sum(axis=1) / np.maximum(a, b).sum(axis=1)
