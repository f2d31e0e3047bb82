"""From edges to nodes: how far a node's neighbours seem to be, and how unsure the samples are about it.

    AHP(v) = mean over v's neighbours of the edge's mean hop        IV(v) = mean over them of the edge's variance
    HAV(v) = AHP(v) / max AHP + IV(v) / max IV                      (a term whose maximum is 0 is 0)
    strange(v) = z-score of AHP(v) + z-score of closure(v)          (closure.py: far triangles around v)
    score(v) = the evidence of all kinds, added up                  (evidence.py)

Of several encoders the hops of each edge are averaged; `strange` alone adds up the z-scored AHP of each, and takes the
z-score of that.

Neighbours are those of the original graph; out-neighbours where it is directed. With `trim` = t only the nearest
ceil((1 - t) * degree) of them count, at least one, in both averages, so that a normal node is not blamed for an odd
neighbour. A node without neighbours scores 0 everywhere, the least anomalous value there is (a hop is at least 1), and
is flagged; its score is that of its attributes alone. z-scores are taken over the nodes that have neighbours and
shifted to start at 0 (standard.py); on a directed graph closures are 0. Memory: eleven numbers a node, five of
4 bytes and one of a byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.device import MANY_ENTRIES
from hcm_scale.base.names import RANKINGS
from hcm_scale.base.threads import map_slices, run_in_slices, run_in_threads
from hcm_scale.score import edge_index
from hcm_scale.score.calibration import ContextScale, Strangeness, add_zscores, zscale_among
from hcm_scale.score.closure import Cut, closure
from hcm_scale.score.context import context
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KINDS, KindNumbers, WeightedEvidence, surprise_gains, weigh_evidence
from hcm_scale.score.metrics import top_overlap
from hcm_scale.score.residual import residual
from hcm_scale.score.threshold import Verdict, judge

FLAG_NAMES = ("isolated", "no_out_neighbors", "sampled")
ISOLATED, NO_OUT_NEIGHBORS, SAMPLED = (1 << bit for bit in range(len(FLAG_NAMES)))
UNSCORED = ISOLATED | NO_OUT_NEIGHBORS

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


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


@dataclass(frozen=True, eq=False, kw_only=True)
class WeighedScores(NodeScores):
    """Scores whose evidence is added up, with what that left of every kind, which then takes no second sort."""

    weighed: WeightedEvidence


class AttributeScores(NamedTuple):
    """The numbers of every node, (n,) each, that come from attributes and edges alone, not from predicted hops."""

    context: NDArray[np.float64]
    context_closure: NDArray[np.float64]
    residual: NDArray[np.float64]


def score_nodes(
    edges: EdgeIndex,
    hops: EdgeHops,
    *,
    trim: float,
    like: NodeScores | None = None,
    known: Pair | None = None,
) -> NodeScores:
    """AHP, IV and HAV of every node; closure, which costs more, is 0 until `with_closure`, and so on.

    `known` are AHP and IV, where they have been averaged already. Here and below `like` are the scores of another
    graph, whose maxima and ranks take the place of this one's.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> scores = score_nodes(path, EdgeHops(np.array([1, 3], np.float32), np.zeros(2, np.float32)), trim=0.0)
    >>> scores.ahp.tolist()
    [1.0, 2.0, 3.0]
    """
    check_trim(trim)
    for name, values in hops._asdict().items():
        if values.shape != (edges.num_edges,):
            raise ValueError(f"the edges' {name} has shape {values.shape}; this graph has {edges.num_edges} edges")
    if known is None:
        (ahp,), iv = average_hops(edges, [hops.mean], hops.var, trim)
    else:
        ahp, iv = known
    degree = np.diff(edges.indptr)
    hav = _hav((ahp, iv), (ahp, iv) if like is None else (like.ahp, like.iv))
    nothing = np.zeros(len(ahp))  # shared by what is not known yet; no array of scores is ever written to
    nothings = nothing, nothing, nothing, nothing, nothing, nothing
    return NodeScores(ahp, iv, hav, *nothings, degree, _flags(edges, degree))


def average_hops(
    edges: EdgeIndex, means: Sequence[NDArray[np.float32]], var: NDArray[np.float32], trim: float, device: str = "cpu"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """AHP of every node by each mean, (means, n), and its IV by the first of them, (n,); of large graphs on a GPU."""
    if device != "cpu" and len(edges.indices) >= MANY_ENTRIES and not len(edges.limit):
        from hcm_scale.score.device import average_on_device  # Triton takes a second to import

        found = average_on_device(edges, means, var, 1.0 - trim, device)
        if found is not None:
            return found[:-1], found[-1]
    ahp, iv = np.empty((len(means), edges.num_nodes)), np.empty(edges.num_nodes)
    run_in_threads(edges.num_nodes, edge_index.average_rows, edges.for_kernels, 1.0 - trim, tuple(means), var, ahp, iv)
    return ahp, iv


def with_closure(scores: NodeScores, edges: EdgeIndex, mean: NDArray[np.float32], far: Cut) -> NodeScores:
    """The same scores with far closure; `mean` is the edges' mean hop."""
    return scores if edges.directed else replace(scores, closure=closure(edges, mean, far))


def with_strange(
    scores: NodeScores, views: Sequence[NDArray[np.float64]] = (), usual: Strangeness | None = None
) -> tuple[NodeScores, Strangeness]:
    """The same scores with their strangeness, and what it is measured by; `usual` is that of another graph.

    `views` are the AHP of each encoder, (n,) each, where there are several.
    """
    scored = scores.has_neighbors
    of_views = usual.views if usual is not None else zscale_among(views, scored) if views else None
    hop = scores.ahp if of_views is None else add_zscores(views, scored, of_views)
    both = [hop, scores.closure]
    measure = usual or Strangeness(zscale_among(both, scored), of_views)
    return replace(scores, strange=add_zscores(both, scored, measure.both)), measure


def attribute_scores(
    edges: EdgeIndex, x: NDArray[np.float32], distance: NDArray[np.float32], scale: ContextScale
) -> AttributeScores:
    """The evidence of features x, (n, q), and of their distance over every edge, (m,)."""
    return AttributeScores(
        context=context(edges, distance, scale.surprise),
        context_closure=np.zeros(edges.num_nodes) if edges.directed else closure(edges, distance, scale.unlike),
        residual=residual(edges.indptr, edges.indices, x, scale.prediction),
    )


def with_attributes(scores: NodeScores, found: AttributeScores, like: NodeScores | None = None) -> NodeScores:
    """The same scores with the evidence of attributes, the place of every node by each kind, and the score."""
    scores = replace(scores, **found._asdict())
    weighed = weigh_evidence(*_numbers(scores), None if like is None else _numbers(like))
    added = {"score": weighed.score, "places": weighed.places, "weighed": weighed}
    return WeighedScores(**(vars(scores) | added))


def verdict_of(scores: NodeScores, fdr: float, like: NodeScores | None = None) -> Verdict:
    """Which nodes stand out at this false-discovery rate (threshold.py)."""
    if isinstance(scores, WeighedScores):
        return judge(scores.weighed.sums, fdr)
    return judge(weigh_evidence(*_numbers(scores), None if like is None else _numbers(like)).sums, fdr)


def stability(scores: NodeScores, views: Sequence[NDArray[np.float64]], rank_by: str) -> float | None:
    """The share of the first nodes that stay first whichever encoder alone tells the hops; None where there is one.

    `views` are the AHP of each encoder; all other evidence stays what it is.
    """
    if len(views) < 2:
        return None
    if rank_by != "score":
        return top_overlap(views)
    known = _numbers(scores).known("hop")
    weighed = scores.weighed if isinstance(scores, WeighedScores) else None
    double = None if weighed is None else weighed.double_places(list(KINDS).index("hop"))
    own = surprise_gains("hop", scores.ahp, known, double)

    def with_hops_of(view: NDArray[np.float64]) -> NDArray[np.float64]:
        told, out = surprise_gains("hop", view, known), np.empty(len(view))

        def fill(part: slice) -> None:
            out[part] = scores.score[part] - own.of(part)[1] + told.of(part)[1]

        run_in_slices(len(out), fill)
        return out

    return top_overlap(map(with_hops_of, views))


def _numbers(scores: NodeScores) -> KindNumbers:
    """The number of every kind of evidence."""
    return KindNumbers({kind: getattr(scores, column) for kind, column in KINDS.items()}, scores.has_neighbors)


def check_trim(trim: float) -> None:
    """Refuses a share of farthest neighbours that is none, or leaves none."""
    if not 0.0 <= trim < 1.0:
        raise ValueError(f"trim={trim} must be at least 0 and below 1: the share of farthest neighbours to leave out")


def check_rank_by(rank_by: str) -> None:
    """Refuses a score that does not rank."""
    if rank_by not in RANKINGS:
        raise ValueError(f"rank_by={rank_by!r} must be one of {', '.join(RANKINGS)}")


def _hav(values: Pair, usual: Pair) -> NDArray[np.float64]:
    """Two numbers of every node, each over its usual maximum, added up."""
    found = map_slices(len(usual[0]), lambda part: [each[part].max() for each in usual])
    tops = np.reshape(found, (-1, 2)).max(axis=0, initial=0.0)
    out = np.zeros(len(values[0]))

    def add(part: slice) -> None:
        for value, top in zip(values, tops, strict=True):
            if top > 0:
                out[part] += value[part] / top

    run_in_slices(len(out), add)
    return out


def _flags(edges: EdgeIndex, degree: NDArray[np.int64]) -> NDArray[np.uint8]:
    flags = np.zeros(edges.num_nodes, np.uint8)
    flags[degree == 0] = NO_OUT_NEIGHBORS if edges.directed else ISOLATED
    if len(edges.limit):
        flags[edges.limit < edge_index.MAX_HASH] |= SAMPLED
    return flags
