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

A graph that is scored by a model of another takes its ranks among the nodes of that one (`weigh(..., like)`): the same
node in the same surroundings then has the same score, whatever else changed. A number beyond all of theirs has the
evidence of their first node and a little more, which grows as the logarithm of how far beyond it is. Places are always
those among the nodes that are scored.

Every kind is sorted once: places and their halves tell all that its order does. Memory: 4 bytes a node and kind and 25
bytes a node beside the score.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.order import Known, Places, double_places, num_known, place_type
from hcm_scale.base.threads import in_slices

KINDS = {  # by name: the column of the number behind it
    "hop": "ahp",
    "closure": "closure",
    "context": "context",
    "context_closure": "context_closure",
    "attributes": "residual",
}
OF_NEIGHBORS = ("hop", "closure", "context", "context_closure")  # say nothing about a node without neighbours


def middle_ranks(values: NDArray[np.float64], known: Known = None) -> NDArray[np.float64]:
    """Ranks of values between 0 and 1, equal ones sharing the middle of their places; 1/2 where not `known`.

    >>> middle_ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    return ranks_of(double_places(values, known), num_known(values, known))


def ranks_of(double: Places, size: int) -> NDArray[np.float64]:
    """The ranks, between 0 and 1, of double places among so many."""
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
    """`middle_ranks` that values would have among usual ones, at most that of the first."""
    return ranks_of(np.maximum(places_among(values, usual), 2), len(usual))


def surprise_among(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.float64]:
    """The evidence of values by their rank among usual ones, and beyond the largest of those a little more."""
    if not len(usual):
        return np.full(len(values), np.log(2.0))
    out = surprise(ranks_among(values, usual))
    top = usual.max()
    beyond, spread = values > top, top - np.median(usual)
    out[beyond] += np.log1p((values[beyond] - top) / (spread or 1.0))
    return out


def surprise(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(1 - rank), the evidence of a rank."""
    out = np.empty_like(ranks)

    def fill(part: slice) -> None:
        np.log1p(-ranks[part], out=out[part])
        np.negative(out[part], out=out[part])

    in_slices(len(ranks), fill)
    return out


class Weighed(NamedTuple):
    """The score of every node, (n,), and its place by each kind, (kinds, n), in the order of the kinds given.

    Bit k of `halves`, (n,), is what rounding took off the place by kind k, a half or nothing.
    """

    score: NDArray[np.float64]
    places: Places
    halves: NDArray[np.uint8]

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

    `like` are the numbers of another graph, among which the score ranks.

    >>> weigh({"attributes": np.array([5.0, 9.0, 5.0])}, np.ones(3, bool)).places.tolist()
    [[2, 1, 2]]
    """
    num_nodes = len(has_neighbors)
    total, halves = np.zeros(num_nodes), np.zeros(num_nodes, np.uint8)
    places = np.empty((len(numbers), num_nodes), place_type(num_nodes))
    for row, (kind, size) in enumerate(zip(numbers, num_ranked(numbers, has_neighbors), strict=True)):
        values, known = numbers[kind], None if size == num_nodes else has_neighbors
        double = double_places(values, known, out=places[row])
        if like is None:
            _add_surprise(double, size, total)
        else:
            usual, in_usual = like.of_kind[kind], like.known(kind)
            gained = surprise_among(values, usual if in_usual is None else usual[in_usual])
            total += gained if known is None else np.where(known, gained, np.log(2.0))
        _halve(double, halves, row)
    return Weighed(total, places, halves)


def _add_surprise(double: Places, size: int, total: NDArray[np.float64]) -> None:
    def add(part: slice) -> None:
        total[part] += surprise(ranks_of(double[part], size))

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
