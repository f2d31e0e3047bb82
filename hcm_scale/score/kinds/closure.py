"""Group of strangers: edges that the model takes to be far close into triangles around the node.

A mean over neighbours hides a planted clique: fifteen anomalous neighbours among seventy move it little. But the far
edges of a clique close into triangles with each other, which unrelated far edges hardly do. So the `share` of edges
with the largest predicted hop is marked as far, and each node has

    closure(v) = log(1 + far triangles at v / (degree of v + expected(v) / 4)),

where expected(v) are triangles of a random graph (triangles.py). Most nodes have next to none, but a hub of a skewed
graph has many, and share^3 of them are far by chance: counted per neighbour alone they would grow with its degree
without end. Learned hops matter: the same count over edges with far attributes finds nothing (docs/lab/accuracy.md).
Undirected graphs only; elsewhere all nodes are 0.

    strange(v) = z-score of AHP(v) + z-score of closure(v),

of several encoders with the z-score of the sum of the z-scored AHP of each. z-scores are taken over the nodes that have
neighbours and shifted to start at 0 (calibration.py).
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import order
from hcm_scale.base.threads import run_in_slices, run_in_threads
from hcm_scale.score.calibration import ZScale, add_zscores, zscale_among
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.kinds.around import Around, hops_of_edges
from hcm_scale.score.kinds.cohesion import expected_triangles
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import OF_LOGARITHMS, Column, Kind, Reason, Values
from hcm_scale.score.kinds.phrases import held_against, joined_pairs
from hcm_scale.score.triangles import marked_triangles

_EXPECTED_WEIGHT = 0.25  # of an expected triangle beside a neighbour: docs/lab/detector.md


class Cut(NamedTuple):
    """Hop from which edges are far, as a key of `base.order`, and the share that is far of the edges equal to it.

    It is taken from one graph and applies to others.
    """

    key: int
    tied: float


def far_cut(mean: NDArray[np.float32], share: float) -> Cut:
    """Threshold exceeded by floor(share * m) edges, those with the largest mean hop (NaN is not scored)."""
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share={share} must be above 0 and at most 1: the share of edges taken as far")
    wanted = min(math.floor(Fraction(str(float(share))) * len(mean)), order.num_finite(mean))
    if wanted == 0:
        return Cut(order.ABOVE_ALL, 0.0)
    key, rank, num_equal = order.find_rank(mean, wanted)
    return Cut(key, rank / num_equal)


def mark_far(mean: NDArray[np.float32], cut: Cut) -> NDArray[np.bool_]:
    """Whether each edge is beyond the cut; of edges equal to it the cut's share, the later ones.

    >>> mean = np.array([1.0, 3.0, 2.0, 2.0], np.float32)
    >>> mark_far(mean, far_cut(mean, 0.5)).tolist()
    [False, True, False, True]
    """
    far = np.zeros(len(mean), bool)
    ties = order.count_lower(mean, cut.key >> 16)[:, cut.key & 0xFFFF]
    after = ties[::-1].cumsum()[::-1] - ties  # ties in the ranges behind each one
    ties = np.clip(round(cut.tied * int(ties.sum())) - after, 0, ties)
    run_in_threads(len(ties), order.mark_largest, mean.view(np.uint32), np.uint32(cut.key), ties, far)
    return far


def is_cut(array: Any) -> bool:
    """Whether an array is a cut as it is stored."""
    return array is not None and array.shape == (2,) and 0 <= array[0] <= order.ABOVE_ALL and 0.0 <= array[1] <= 1.0


def closure(edges: EdgeIndex, length: NDArray[np.float32], cut: Cut, expected: Values, device: str = "cpu") -> Values:
    """log(1 + triangles of edges beyond the cut in units of `_unit`) of every node, (n,); 0 without neighbours.

    `expected` are the triangles that degrees lead to. Very many triangles are counted on the device.
    """
    if edges.directed:
        return np.zeros(edges.num_nodes)
    triangles = marked_triangles(edges, mark_far(length, cut), device)
    out = np.empty(len(triangles))

    def fill(part: slice) -> None:
        degree = np.diff(edges.indptr[part.start : part.stop + 1])
        np.log1p(triangles[part] / np.maximum(_unit(degree, expected[part]), 1.0), out=out[part])

    run_in_slices(len(out), fill)
    return out


def _unit(degree: Any, expected: Any) -> Any:
    """Far triangles of which the closure of a node with so many neighbours and expected triangles is log 2."""
    return degree + _EXPECTED_WEIGHT * expected


def closure_by(inputs: KindInputs, length: NDArray[np.float32], name: str) -> Values:
    """The closure by these lengths of edges, of which a share is far; the cut is stored under this name."""
    (cut,) = inputs.measured(lambda: [far_cut(length, inputs.far_share)], name)
    expected = np.zeros(0) if inputs.edges.directed else inputs.triangles.expected
    return closure(inputs.edges, length, Cut(int(cut[0]), float(cut[1])), expected, inputs.device)


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.hops is not None
    of_hops = closure_by(inputs, inputs.hops.mean, "far")
    return [of_hops, strange(inputs, of_hops)]


def strange(inputs: KindInputs, of_hops: Values) -> Values:
    """z-scored AHP and closure, added up, (n,)."""
    assert inputs.hops is not None
    scored, views, ahp = np.diff(inputs.edges.indptr) > 0, inputs.hops.views, inputs.hops.ahp
    if views:
        (of_views,) = inputs.measured(lambda: [zscale_among(views, scored).packed()], "views")
        ahp = add_zscores(views, scored, ZScale.unpacked(of_views))
    (scale,) = inputs.measured(lambda: [zscale_among([ahp, of_hops], scored).packed()], "both")
    return add_zscores([ahp, of_hops], scored, ZScale.unpacked(scale))


def closure_reason(
    around: Around, column: str, lengths: Callable[..., NDArray[np.float64]], usual: float | None
) -> dict[str, Any]:
    """The neighbours with which a node closes its far triangles, as many as its number says; `usual` is of all edges.

    The farthest triangles, by their nearest edge, are those: `count` neighbours, of which `pairs` are joined, and
    `far_pairs` close a far triangle, `value` apart on average.
    """
    if around.pairs is None:
        return {}
    ends, numbers = around.pairs
    own, across = around.lengths(lengths), lengths(around.evidence, around.neighbors[ends], numbers)
    unit = _unit(around.degree, expected_triangles(len(numbers), around.row))
    num_triangles = round(math.expm1(around.row[column]) * unit)
    farthest = np.argsort(-np.minimum(own[ends].min(axis=0), across), kind="stable")[:num_triangles]
    if not len(farthest):
        return {"usual": usual}
    chosen = np.zeros(len(own), bool)
    chosen[ends[:, farthest]] = True
    count, num_joined = (int(np.count_nonzero(some)) for some in (chosen, chosen[ends].all(axis=0)))
    numbers_of = {"value": float(across[farthest].mean()), "usual": usual, "count": count, "pairs": num_joined}
    return numbers_of | {"far_pairs": len(farthest)}


def closure_sentence(e: Any, r: Reason, digits: int, says: str) -> str:
    """How many pairs of neighbours are joined, and how far apart these are, which `says` has a gap for."""
    assert r.value is not None
    own, usual, larger = held_against(r.value, r.usual, digits, "two neighbours")
    far = "they" if r.count == 2 else "these pairs" if r.far_pairs == r.pairs else f"{r.far_pairs:,} of these pairs"
    joined = f"{joined_pairs(r.pairs, r.count, e.degree)}, {'although' if larger else 'and'} {far}"
    return f"{joined} {says.format(own)}{', on average' * (r.far_pairs > 1)}{usual}"


def _reason(around: Around) -> dict[str, Any]:
    return closure_reason(around, CLOSURE.column, hops_of_edges, around.evidence.usual_hop)


def _sentence(e: Any, r: Reason) -> str:
    if r.value is None:
        return "edges that look far to the model close triangles around it"
    return closure_sentence(e, r, 1, "look {} hops apart to the model")


CLOSURE = Kind(
    name="closure",
    columns={
        "closure": Column("far triangles over what the degree explains (log)"),
        "strange": Column(
            "hops and far triangles",
            "AHP and far triangles added up, each on its own scale.",
            means="the higher a node stands, the farther its own neighbours seem to be from it and the more of its far "
            "edges close into triangles",
        ),
    },
    title="group of strangers",
    short="Strangers",
    help="Its neighbours are joined to each other, and all of them look far apart: a group of strangers. Closure "
    "counts the triangles of such edges, over its neighbours and a quarter of the triangles that degrees explain.",
    numbers=_numbers,
    needs_hops=True,
    zero_says_nothing=True,
    weight=lambda facts: facts.trust * facts.of_hops,  # hops come from attributes
    tail=OF_LOGARITHMS,
    stored={"far": is_cut, "both": ZScale.is_legal, "views": lambda array: array is None or ZScale.is_legal(array)},
    reason=_reason,
    sentence=_sentence,
)
