"""Kinds of evidence that a node is odd, and the one score that they add up to.

| kind            | a node stands out because                                                | the number     |
|-----------------|--------------------------------------------------------------------------|----------------|
| hop             | the model takes its neighbours to be far away                            | `ahp`          |
| closure         | far edges around it close into triangles: a group of strangers           | `closure`      |
| context         | its attributes are unlike those of its neighbours                        | `context`      |
| context_closure | edges between unlike nodes close into triangles around it                | `context_closure` |
| attributes      | its attributes are not what its neighbourhood predicts                   | `residual`     |

Each number becomes a surprise, -log P(a usual node has as much): by its rank among all nodes, -log(1 - rank), or by
the tail that the bulk of them shows (tail.py) where that is more, so that the members of a large group are not held
against each other. Then

    score(v) = sum over the kinds of v's surprise, above the least of all nodes,

Fisher's way of adding up evidence: a node that leads in one kind comes before one that is a little odd in all. Beyond
log(n), the most that a rank can say, a surprise goes on as its logarithm, so that no heavy tail decides alone. A kind
that cannot tell about a node (no neighbours) gives it what its middle node has; one that cannot tell any two apart
gives nothing.

Each kind is also kept apart as places: 1 is the strangest node by this kind, equal ones share the middle place, rounded
towards 1, and so do all nodes of which the kind cannot tell. The place of a kind of neighbours counts nodes with
neighbours. A node's strongest kind is the one whose place is the smallest share of the nodes that the kind ranks; of a
node without neighbours it is `attributes`.

A graph that is scored by a model of another gains as if its nodes were among those of that one (`weigh(..., like)`):
the same node in the same surroundings then has the same score, whatever else changed. Places are always those among
the nodes that are scored.

The plain sums of surprises are what p is read off (threshold.py). Every kind is sorted once: places and their halves
tell all that its order does. Memory: 4 bytes a node and kind and 33 bytes a node beside the score.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import Known, Places, double_places, place_type
from hcm_scale.base.threads import in_slices
from hcm_scale.score.tail import Gains, gains_of

KINDS = {  # by name: the column of the number behind it
    "hop": "ahp",
    "closure": "closure",
    "context": "context",
    "context_closure": "context_closure",
    "attributes": "residual",
}
OF_NEIGHBORS = ("hop", "closure", "context", "context_closure")  # say nothing about a node without neighbours


class Sums(NamedTuple):
    """The surprises of every node, added up, (n,), of how many kinds that tell, and those of usual nodes elsewhere."""

    total: NDArray[np.float64]
    num_telling: int
    usual: NDArray[np.float64] | None  # None where the nodes themselves are the usual ones


class Weighed(NamedTuple):
    """The score of every node, (n,), and its place by each kind, (kinds, n), in the order of the kinds given.

    Bit k of `halves`, (n,), is what rounding took off the place by kind k, a half or nothing.
    """

    score: NDArray[np.float64]
    places: Places
    halves: NDArray[np.uint8]
    sums: Sums

    def double_places(self, row: int) -> Places:
        """Twice the places by the kind of this row, not rounded."""
        out = np.empty_like(self.places[row])

        def fill(part: slice) -> None:
            np.add(2 * self.places[row, part], self.halves[part] >> row & 1, out=out[part])

        in_slices(len(out), fill)
        return out


class Numbers(NamedTuple):
    """The numbers of each kind, (n,) each, and which nodes have neighbours: what all evidence is made of."""

    of_kind: Mapping[str, NDArray[np.float64]]
    has_neighbors: NDArray[np.bool_]

    def known(self, kind: str) -> Known:
        """Which nodes the kind can tell about; None where it can about all."""
        return None if kind not in OF_NEIGHBORS or self.has_neighbors.all() else self.has_neighbors


def weigh(
    numbers: Mapping[str, NDArray[np.float64]], has_neighbors: NDArray[np.bool_], like: Numbers | None = None
) -> Weighed:
    """The score and the places of every node from the numbers of each kind, (n,) each.

    `like` are the numbers of another graph, whose nodes are the usual ones.

    >>> weigh({"attributes": np.array([5.0, 9.0, 5.0])}, np.ones(3, bool)).places.tolist()
    [[2, 1, 2]]
    """
    own, num_nodes, num_telling = Numbers(numbers, has_neighbors), len(has_neighbors), 0
    score, total, halves = np.zeros(num_nodes), np.zeros(num_nodes), np.zeros(num_nodes, np.uint8)
    usual_total = np.zeros(0 if like is None else len(like.has_neighbors))
    places = np.empty((len(numbers), num_nodes), place_type(num_nodes))
    for row, (kind, values) in enumerate(numbers.items()):
        known = own.known(kind)
        double = double_places(values, known, out=places[row])
        if like is None:
            gains = gains_of(kind, values, known, double)
            _add(gains, score, total)
        else:
            gains = gains_of(kind, like.of_kind[kind], like.known(kind))
            _add(gains, None, usual_total)
            gained, added = gains.among(values, known)
            total += gained
            score += added
        num_telling += gains.tells
        _halve(double, halves, row)
    return Weighed(score, places, halves, Sums(total, max(1, num_telling), None if like is None else usual_total))


def _add(gains: Gains, score: NDArray[np.float64] | None, total: NDArray[np.float64]) -> None:
    def add(part: slice) -> None:
        gained, added = gains.of(part)
        total[part] += gained
        if score is not None:
            score[part] += added

    in_slices(len(total), add)


def _halve(double: Places, halves: NDArray[np.uint8], row: int) -> None:
    def halve(part: slice) -> None:
        halves[part] |= (double[part] & 1).astype(np.uint8) << row
        double[part] >>= 1

    in_slices(len(double), halve)


def num_ranked(kinds: Iterable[str], has_neighbors: NDArray[np.bool_]) -> list[int]:
    """How many nodes each kind tells apart: all, or those with neighbours."""
    scored = int(np.count_nonzero(has_neighbors))
    return [scored if kind in OF_NEIGHBORS else len(has_neighbors) for kind in kinds]


def strongest(places: Places, has_neighbors: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Which of KINDS says most about every node, (n,), from the places by each, (kinds, n); of equals the first.

    >>> strongest(np.array([[1, 3], [2, 1], [3, 3], [3, 3], [3, 3]]), np.ones(2, bool)).tolist()
    [0, 1]
    """
    best = np.empty(len(has_neighbors), np.int8)
    sizes = np.maximum(num_ranked(KINDS, has_neighbors), 1)

    def fill(part: slice) -> None:
        strongest = np.argmin((places[:, part] - 0.5) / sizes[:, None], axis=0)
        best[part] = np.where(has_neighbors[part], strongest, list(KINDS).index("attributes"))

    in_slices(len(best), fill)
    return best
