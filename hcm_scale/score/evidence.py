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
neighbours, no triangles in the whole graph) gives the rank of the middle.

Each kind is also kept apart as places: 1 is the strangest node by this kind, equal ones share the middle place, rounded
towards 1, and so do all nodes of which the kind cannot tell. The place of a kind of neighbours counts nodes with
neighbours. A node's strongest kind is the one whose place is the smallest share of the nodes that the kind ranks, which
is the one that says most, -log(1 - rank); of a node without neighbours it is `attributes`.

Every kind is sorted once. Memory: 4 bytes a node and kind and 24 bytes a node beside the score.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


def middle_ranks(values: NDArray[np.float64], known: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Ranks of values between 0 and 1, equal ones sharing the middle of their places; 1/2 where not `known`.

    >>> middle_ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    size = len(values) if known is None else np.count_nonzero(known)
    return _ranks(double_places(values, known), int(size))


def _ranks(double: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    return 1.0 - (double - 1) / (2.0 * max(1, size))


def double_places(values: NDArray[np.float64], known: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """The best and the worst place that equal values hold, added; 1 is the largest. The middle where not `known`.

    >>> double_places(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [5, 8, 5, 2]
    """
    chosen = values if known is None else values[known]
    size = len(chosen)
    out = np.full(len(values), max(1, size) + 1)
    if size:
        _, group, counts = np.unique(chosen, return_inverse=True, return_counts=True)
        best = size + 1 - np.cumsum(counts)
        out[slice(None) if known is None else known] = (2 * best + counts - 1)[group]
    return out


def surprise(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(1 - rank), the evidence of a rank."""
    return -np.log1p(-ranks)


class Weighed(NamedTuple):
    """The score of every node, (n,), and its place by each kind, (kinds, n), in the order of the kinds given."""

    score: NDArray[np.float64]
    places: NDArray[np.signedinteger[Any]]


def weigh(numbers: Mapping[str, NDArray[np.float64]], has_neighbors: NDArray[np.bool_]) -> Weighed:
    """The score and the places of every node from the numbers of each kind, (n,) each.

    >>> weigh({"attributes": np.array([5.0, 9.0, 5.0])}, np.ones(3, bool)).places.tolist()
    [[2, 1, 2]]
    """
    num_nodes = len(has_neighbors)
    total = np.zeros(num_nodes)
    places = np.empty((len(numbers), num_nodes), np.int32 if num_nodes < 1 << 30 else np.int64)
    for row, (values, size) in enumerate(zip(numbers.values(), num_ranked(numbers, has_neighbors), strict=True)):
        double = double_places(values, has_neighbors if size < num_nodes else None)
        total += surprise(_ranks(double, size))
        places[row] = double // 2
    return Weighed(total, places)


def num_ranked(kinds: Iterable[str], has_neighbors: NDArray[np.bool_]) -> list[int]:
    """How many nodes each kind tells apart: all, or those with neighbours."""
    scored = int(np.count_nonzero(has_neighbors))
    return [scored if kind in OF_NEIGHBORS else len(has_neighbors) for kind in kinds]


def strongest(places: NDArray[np.signedinteger[Any]], has_neighbors: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Which of KINDS says most about every node, (n,), from the places by each, (kinds, n); of equals the first.

    >>> strongest(np.array([[1, 3], [2, 1], [3, 3], [3, 3], [3, 3]]), np.ones(2, bool)).tolist()
    [0, 1]
    """
    best, share = np.zeros(len(has_neighbors), np.int8), np.full(len(has_neighbors), np.inf)
    for kind, size in enumerate(num_ranked(KINDS, has_neighbors)):
        own = (places[kind] - 0.5) / max(1, size)
        nearer = own < share
        best[nearer], share[nearer] = kind, own[nearer]
    best[~has_neighbors] = list(KINDS).index("attributes")
    return best
