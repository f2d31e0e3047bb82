"""From edges to nodes: how far a node's neighbours seem to be, and how unsure the samples are about it.

    AHP(v) = mean over v's neighbours of the edge's mean hop        IV(v) = mean over them of the edge's variance
    HAV(v) = AHP(v) / max AHP + IV(v) / max IV                      (a term whose maximum is 0 is 0)
    strange(v) = z-score of AHP(v) + z-score of closure(v)          (closure.py: far triangles around v)
    score(v) = the evidence of all kinds, added up by rank          (evidence.py)

Neighbours are those of the original graph; out-neighbours where it is directed. With `trim` = t only the nearest
ceil((1 - t) * degree) of them count, at least one, in both averages, so that a normal node is not blamed for an odd
neighbour. A node without neighbours scores 0 everywhere, the least anomalous value there is (a hop is at least 1), and
is flagged; its score is that of its attributes alone. z-scores are taken over the nodes that have neighbours and
shifted to start at 0; on a directed graph closures are 0. Memory: eleven numbers a node, and five
of 4 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.names import RANKINGS
from hcm_scale.base.threads import in_threads
from hcm_scale.score import kernels
from hcm_scale.score.closure import closure
from hcm_scale.score.context import context
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KINDS, weigh
from hcm_scale.score.numbering import EdgeIndex
from hcm_scale.score.residual import residual
from hcm_scale.score.threshold import Verdict, judge

FLAG_NAMES = ("isolated", "no_out_neighbors", "sampled")
ISOLATED, NO_OUT_NEIGHBORS, SAMPLED = (1 << bit for bit in range(len(FLAG_NAMES)))
UNSCORED = ISOLATED | NO_OUT_NEIGHBORS


@dataclass(frozen=True, eq=False)
class NodeScores:
    """Scores of all nodes, (n,) each; `flags` is a bit mask over FLAG_NAMES.

    `places` is (kinds, n): the place of every node by each kind of evidence, None until they are added up.
    """

    ahp: NDArray[np.float64]
    iv: NDArray[np.float64]
    hav: NDArray[np.float64]
    closure: NDArray[np.float64]
    strange: NDArray[np.float64]
    context: NDArray[np.float64]
    context_closure: NDArray[np.float64]
    residual: NDArray[np.float64]
    score: NDArray[np.float64]
    degree: NDArray[np.int64]
    flags: NDArray[np.uint8]
    places: NDArray[np.signedinteger[Any]] | None = None

    @property
    def has_neighbors(self) -> NDArray[np.bool_]:
        """Which nodes have neighbours to be scored by."""
        found: NDArray[np.bool_] = (self.flags & UNSCORED) == 0
        return found

    def by(self, rank_by: str) -> NDArray[np.float64]:
        """The score of this name."""
        check_rank_by(rank_by)
        score: NDArray[np.float64] = getattr(self, rank_by)
        return score


def score_nodes(edges: EdgeIndex, hops: EdgeHops, *, trim: float) -> NodeScores:
    """AHP, IV and HAV of every node; closure, which costs more, is 0 until `with_closure`, and so on.

    >>> from hcm_scale.score.numbering import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> scores = score_nodes(path, EdgeHops(np.array([1, 3], np.float32), np.zeros(2, np.float32)), trim=0.0)
    >>> scores.ahp.tolist()
    [1.0, 2.0, 3.0]
    """
    check_trim(trim)
    for name, values in hops._asdict().items():
        if values.shape != (edges.num_edges,):
            raise ValueError(f"the edges' {name} has shape {values.shape}; this graph has {edges.num_edges} edges")
    ahp, iv = np.empty(edges.num_nodes), np.empty(edges.num_nodes)
    in_threads(edges.num_nodes, kernels.average_rows, edges.for_kernels, 1.0 - trim, *hops, ahp, iv)
    degree = np.diff(edges.indptr)
    return _node_scores(ahp, iv, degree, _flags(edges, degree))


def with_closure(scores: NodeScores, edges: EdgeIndex, mean: NDArray[np.float32], *, far_share: float) -> NodeScores:
    """The same scores with far closure, and the strangeness that it makes; `mean` is the edges' mean hop."""
    if edges.directed:
        return scores
    found = closure(edges, mean, share=far_share)
    strange = _add_standardized([scores.ahp, found], scores.has_neighbors)
    return replace(scores, closure=found, strange=strange)


def with_context(
    scores: NodeScores, edges: EdgeIndex, x: NDArray[np.float32], distance: NDArray[np.float32], *, far_share: float
) -> NodeScores:
    """The same scores with the evidence of attributes: features x, (n, q), and their distance over every edge, (m,)."""
    found = replace(
        scores,
        context=context(edges, distance),
        context_closure=scores.context_closure if edges.directed else closure(edges, distance, share=far_share),
        residual=residual(edges.indptr, edges.indices, x),
    )
    return with_score(found)


def with_score(scores: NodeScores) -> NodeScores:
    """The same numbers, the place of every node by each kind, and the score that they add up to."""
    return replace(scores, **weigh(_numbers(scores), scores.has_neighbors)._asdict())


def verdict_of(scores: NodeScores, fdr: float) -> Verdict:
    """Which nodes stand out at this false-discovery rate (threshold.py)."""
    return judge(_numbers(scores), scores.has_neighbors, fdr)


def _numbers(scores: NodeScores) -> dict[str, NDArray[np.float64]]:
    """The number of every kind of evidence."""
    return {kind: getattr(scores, column) for kind, column in KINDS.items()}


def _node_scores(
    ahp: NDArray[np.float64], iv: NDArray[np.float64], degree: NDArray[np.int64], flags: NDArray[np.uint8]
) -> NodeScores:
    strange = _add_standardized([ahp], (flags & UNSCORED) == 0)
    nothing = np.zeros(len(ahp))  # shared by what is not known yet; no array of scores is ever written to
    return NodeScores(ahp, iv, _hav(ahp, iv), nothing, strange, nothing, nothing, nothing, nothing, degree, flags)


def check_trim(trim: float) -> None:
    """Refuses a share of farthest neighbours that is none, or leaves none."""
    if not 0.0 <= trim < 1.0:
        raise ValueError(f"trim={trim} must be at least 0 and below 1: the share of farthest neighbours to leave out")


def check_rank_by(rank_by: str) -> None:
    """Refuses a score that does not rank."""
    if rank_by not in RANKINGS:
        raise ValueError(f"rank_by={rank_by!r} must be one of {', '.join(RANKINGS)}")


def _hav(ahp: NDArray[np.float64], iv: NDArray[np.float64]) -> NDArray[np.float64]:
    return _over_max(ahp) + _over_max(iv)


def _over_max(values: NDArray[np.float64]) -> NDArray[np.float64]:
    top = values.max(initial=0.0)
    return values / top if top > 0 else np.zeros_like(values)


def _flags(edges: EdgeIndex, degree: NDArray[np.int64]) -> NDArray[np.uint8]:
    flags = np.zeros(edges.num_nodes, np.uint8)
    flags[degree == 0] = NO_OUT_NEIGHBORS if edges.directed else ISOLATED
    if len(edges.limit):
        flags[edges.limit < kernels.MAX_HASH] |= SAMPLED
    return flags


def combine_views(views: Sequence[NodeScores]) -> NodeScores:
    """One ranking from several encoders of the same graph: z-scored AHP (and IV) added up.

    z-scores are taken over the nodes that have neighbours, and the sum is shifted to start at 0, where nodes without
    neighbours stay. Degrees are the first view's, a flag of any view is kept.
    """
    if not views or len({len(view.ahp) for view in views}) != 1:
        sizes = [len(view.ahp) for view in views]
        raise ValueError(f"views of {sizes} nodes cannot be combined: at least one, all of the same graph, are needed")
    flags = np.bitwise_or.reduce([view.flags for view in views])
    scored = (flags & UNSCORED) == 0
    ahp = _add_standardized([view.ahp for view in views], scored)
    iv = _add_standardized([view.iv for view in views], scored)
    return _node_scores(ahp, iv, views[0].degree, flags)


def _add_standardized(values: list[NDArray[np.float64]], scored: NDArray[Any]) -> NDArray[np.float64]:
    total = np.zeros(len(scored))
    for value in values:
        spread = value[scored].std() if scored.any() else 0.0
        if spread > 0:
            total[scored] += (value[scored] - value[scored].mean()) / spread
    total[scored] -= total[scored].min(initial=np.inf) if scored.any() else 0.0
    return total
