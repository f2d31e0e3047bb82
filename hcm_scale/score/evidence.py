"""Kinds of evidence that a node is odd, and the one score that they add up to.

| kind            | a node stands out because                                                | the number     |
|-----------------|--------------------------------------------------------------------------|----------------|
| hop             | the model takes its neighbours to be far away                            | `ahp`          |
| closure         | far edges around it close into triangles: a group of strangers           | `closure`      |
| context         | its attributes are unlike those of its neighbours                        | `context`      |
| context_closure | edges between unlike nodes close into triangles around it                | `context_closure` |
| attributes      | its attributes are not what its neighbourhood predicts                   | `residual`     |

Each number becomes its rank among all nodes, from 0 to 1, equal ones sharing the middle, and

    score(v) = sum over the kinds of -log(1 - rank),

Fisher's way of adding up evidence: a kind says as much about its thousandth node as any other about its own, whatever
their tails, and a node that leads in one kind comes before one that is a little odd in all. A kind that cannot tell (no
neighbours, no triangles in the whole graph) gives the rank of the middle. Memory: 16 bytes a node beside the result.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

KINDS = {  # by name: the column of the number behind it
    "hop": "ahp",
    "closure": "closure",
    "context": "context",
    "context_closure": "context_closure",
    "attributes": "residual",
}
OF_NEIGHBORS = ("hop", "closure", "context", "context_closure")  # say nothing about a node without neighbours
_MIDDLE = 0.5


def middle_ranks(values: NDArray[np.float64], known: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Ranks of values between 0 and 1, equal ones sharing the middle of their places; 1/2 where not `known`.

    >>> middle_ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    out = np.full(len(values), _MIDDLE)
    chosen = values if known is None else values[known]
    if len(chosen):
        _, place, counts = np.unique(chosen, return_inverse=True, return_counts=True)
        middle = (np.cumsum(counts) - 0.5 * counts) / len(chosen)
        out[slice(None) if known is None else known] = middle[place]
    return out


def surprise(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(1 - rank), the evidence of a rank."""
    return -np.log1p(-ranks)


def combine(numbers: Mapping[str, NDArray[np.float64]], has_neighbors: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The score of every node from the numbers of each kind, (n,) each."""
    total = np.zeros(len(has_neighbors))
    for kind, values in numbers.items():
        total += surprise(middle_ranks(values, has_neighbors if kind in OF_NEIGHBORS else None))
    return total
