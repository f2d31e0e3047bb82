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
from hcm_scale.score.calibration import ContextScale
from hcm_scale.score.closure import Cut, closure
from hcm_scale.score.context import context
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KINDS, Numbers, weigh
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


def score_nodes(edges: EdgeIndex, hops: EdgeHops, *, trim: float, like: NodeScores | None = None) -> NodeScores:
    """AHP, IV and HAV of every node; closure, which costs more, is 0 until `with_closure`, and so on.

    Here and below `like` are the scores of another graph, whose maxima, means, spreads and ranks take the place of this
    one's.

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
    return _node_scores(ahp, iv, degree, _flags(edges, degree), like)


def with_closure(
    scores: NodeScores, edges: EdgeIndex, mean: NDArray[np.float32], far: Cut, like: NodeScores | None = None
) -> NodeScores:
    """The same scores with far closure, and the strangeness that it makes; `mean` is the edges' mean hop."""
    if edges.directed:
        return scores
    found = closure(edges, mean, far)
    usual = None if like is None else ([like.ahp, like.closure], like.has_neighbors)
    strange = _add_standardized([scores.ahp, found], scores.has_neighbors, usual)
    return replace(scores, closure=found, strange=strange)


def with_context(
    scores: NodeScores,
    edges: EdgeIndex,
    x: NDArray[np.float32],
    distance: NDArray[np.float32],
    scale: ContextScale,
    like: NodeScores | None = None,
) -> NodeScores:
    """The same scores with the evidence of attributes: features x, (n, q), and their distance over every edge, (m,)."""
    found = replace(
        scores,
        context=context(edges, distance, scale.surprise),
        context_closure=scores.context_closure if edges.directed else closure(edges, distance, scale.unlike),
        residual=residual(edges.indptr, edges.indices, x, scale.prediction),
    )
    return with_score(found, like)


def with_score(scores: NodeScores, like: NodeScores | None = None) -> NodeScores:
    """The same numbers, the place of every node by each kind, and the score that they add up to."""
    own, usual = _numbers(scores), None if like is None else _numbers(like)
    return replace(scores, **weigh(*own, usual)._asdict())


def verdict_of(scores: NodeScores, fdr: float, like: NodeScores | None = None) -> Verdict:
    """Which nodes stand out at this false-discovery rate (threshold.py)."""
    return judge(*_numbers(scores), fdr, None if like is None else _numbers(like))


def _numbers(scores: NodeScores) -> Numbers:
    """The number of every kind of evidence."""
    return Numbers({kind: getattr(scores, column) for kind, column in KINDS.items()}, scores.has_neighbors)


def _node_scores(
    ahp: NDArray[np.float64],
    iv: NDArray[np.float64],
    degree: NDArray[np.int64],
    flags: NDArray[np.uint8],
    like: NodeScores | None = None,
) -> NodeScores:
    usual = None if like is None else ([like.ahp], like.has_neighbors)
    strange = _add_standardized([ahp], (flags & UNSCORED) == 0, usual)
    hav = _over_max(ahp, ahp if like is None else like.ahp) + _over_max(iv, iv if like is None else like.iv)
    nothing = np.zeros(len(ahp))  # shared by what is not known yet; no array of scores is ever written to
    return NodeScores(ahp, iv, hav, nothing, strange, nothing, nothing, nothing, nothing, degree, flags)


def check_trim(trim: float) -> None:
    """Refuses a share of farthest neighbours that is none, or leaves none."""
    if not 0.0 <= trim < 1.0:
        raise ValueError(f"trim={trim} must be at least 0 and below 1: the share of farthest neighbours to leave out")


def check_rank_by(rank_by: str) -> None:
    """Refuses a score that does not rank."""
    if rank_by not in RANKINGS:
        raise ValueError(f"rank_by={rank_by!r} must be one of {', '.join(RANKINGS)}")


def _over_max(values: NDArray[np.float64], usual: NDArray[np.float64]) -> NDArray[np.float64]:
    top = usual.max(initial=0.0)
    return values / top if top > 0 else np.zeros_like(values)


def _flags(edges: EdgeIndex, degree: NDArray[np.int64]) -> NDArray[np.uint8]:
    flags = np.zeros(edges.num_nodes, np.uint8)
    flags[degree == 0] = NO_OUT_NEIGHBORS if edges.directed else ISOLATED
    if len(edges.limit):
        flags[edges.limit < kernels.MAX_HASH] |= SAMPLED
    return flags


def combine_views(views: Sequence[NodeScores], like: Sequence[NodeScores] = ()) -> NodeScores:
    """One ranking from several encoders of the same graph: z-scored AHP (and IV) added up.

    z-scores are taken over the nodes that have neighbours, and the sum is shifted to start at 0, where nodes without
    neighbours stay. Degrees are the first view's, a flag of any view is kept.
    """
    if not views or len({len(view.ahp) for view in views}) != 1:
        sizes = [len(view.ahp) for view in views]
        raise ValueError(f"views of {sizes} nodes cannot be combined: at least one, all of the same graph, are needed")
    flags = np.bitwise_or.reduce([view.flags for view in views])
    scored = (flags & UNSCORED) == 0
    usual = combine_views(like) if like else None
    added = []
    for name in ("ahp", "iv"):
        among = ([getattr(view, name) for view in like], usual.has_neighbors) if usual is not None else None
        added.append(_add_standardized([getattr(view, name) for view in views], scored, among))
    return _node_scores(added[0], added[1], views[0].degree, flags, usual)


def _add_standardized(
    values: list[NDArray[np.float64]],
    scored: NDArray[Any],
    usual: tuple[list[NDArray[np.float64]], NDArray[Any]] | None = None,
) -> NDArray[np.float64]:
    """The z-scores of several numbers added up, less the least sum; `usual` are the numbers that say what is usual."""
    among, known = usual or (values, scored)
    total, usual_total = np.zeros(len(scored)), np.zeros(len(known))
    for value, like in zip(values, among, strict=True):
        of = like[known]
        spread = of.std() if len(of) else 0.0
        if spread > 0:
            total[scored] += (value[scored] - of.mean()) / spread
            usual_total[known] += (of - of.mean()) / spread
    total[scored] -= usual_total[known].min() if known.any() else 0.0
    return total
