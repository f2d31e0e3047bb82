"""Scores of nodes from predicted hops of edges and from attributes.

    AHP(v) = mean over v's neighbours of the edge's mean hop        average hop prediction
    IV(v)  = mean over v's neighbours of the edge's variance        inference variance
    HAV(v) = AHP(v) / max AHP + IV(v) / max IV                      (a term whose maximum is 0 is 0)
    strange(v) = z-score of AHP(v) + z-score of closure(v)          (closure.py: far triangles around v)
    score(v) = evidence of all kinds, added up                      (evidence.py)
    alike(v) = the lower tails of all kinds, added up               (evidence.py)

Of several encoders the hops of each edge are averaged; only `strange` adds up the z-scored AHP of each and takes the
z-score of the sum. z-scores are taken over the nodes that have neighbours and shifted to start at 0 (calibration.py).

Neighbours are those of the original graph; out-neighbours where it is directed, and closures are 0 there. With
`trim` = t only the nearest ceil((1 - t) * degree) of them count, at least one, in both averages, so that a normal node
is not blamed for an anomalous neighbour. A node without neighbours has 0 everywhere, the least anomalous value (a hop
is at least 1), and a flag; its score is that of its attributes alone.

Functions here return new scores and never write to arrays of given ones. `like` are the scores of another graph, whose
maxima and ranks then take the place of this one's. Nodes of several types are ranked by each kind among their own type
(evidence.py). Memory: thirteen numbers per node, six of 4 bytes and one of a byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.device import MANY_ENTRIES
from hcm_scale.base.threads import map_slices, run_in_slices, run_in_threads
from hcm_scale.features.purify import attribute_trust
from hcm_scale.graph.store import NodeTypes
from hcm_scale.score import evidence
from hcm_scale.score.calibration import ContextScale, Strangeness, add_zscores, zscale_among
from hcm_scale.score.closure import Cut, both_ways, closure, cohesion, far_cut
from hcm_scale.score.context import context, surprise_of_bins
from hcm_scale.score.edge_index import MAX_HASH, EdgeIndex, average_rows
from hcm_scale.score.edges import EdgeHops
from hcm_scale.score.evidence import KINDS, KindNumbers, OwnKind, WeightedEvidence, surprise_gains, weigh_evidence
from hcm_scale.score.metrics import top_overlap
from hcm_scale.score.residual import fit, residual
from hcm_scale.score.threshold import Verdict, judge

FLAG_NAMES = ("isolated", "no_out_neighbors", "sampled")
ISOLATED, NO_OUT_NEIGHBORS, SAMPLED = (1 << bit for bit in range(len(FLAG_NAMES)))
UNSCORED = ISOLATED | NO_OUT_NEIGHBORS
_ALL = slice(None)

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NodeScores:
    """Scores of all nodes, (n,) each; `flags` is a bit mask over FLAG_NAMES.

    `places` is (kinds, n): the place of every node by each kind of evidence; it and `alike`, how suspiciously ordinary
    a node is, are None until the evidence is added up. `trust` says how far attributes are witnesses of edges. `types`
    are those of the nodes, `groups` says which types are compared together; None: all nodes are.
    """

    ahp: Values
    iv: Values
    hav: Values
    closure: Values
    strange: Values
    context: Values
    context_closure: Values
    residual: Values
    cohesion: Values
    score: Values
    degree: NDArray[np.int64]
    flags: NDArray[np.uint8]
    places: NDArray[np.signedinteger[Any]] | None = None
    alike: Values | None = None
    trust: float = 1.0
    types: NodeTypes | None = None
    groups: evidence.Groups | None = None
    own: Mapping[str, OwnKind] = field(default_factory=dict)  # kinds of evidence of plug-ins, by name

    def of_groups(self) -> list[NDArray[np.int64]]:
        """The nodes of each group of types, where there are several groups."""
        if self.types is None or self.groups is None or not any(self.groups.values()):
            return []
        return evidence.nodes_by_group(self.types, self.groups)

    @property
    def has_neighbors(self) -> NDArray[np.bool_]:
        """Which nodes have neighbours to be scored by."""
        found: NDArray[np.bool_] = (self.flags & UNSCORED) == 0
        return found

    def by(self, rank_by: str) -> Values:
        score: Values = getattr(self, rank_by)
        return score


@dataclass(frozen=True, eq=False, kw_only=True)
class WeighedScores(NodeScores):
    """Scores with the added-up evidence, which spares a second sort of every kind."""

    weighed: WeightedEvidence


class AttributeScores(NamedTuple):
    """Numbers of every node, (n,) each, that come from attributes and edges, not from predicted hops, and `trust`.

    `expected` are the triangles that degrees explain (`cohesion`), which the closure of predicted hops needs too.
    """

    context: Values
    context_closure: Values
    residual: Values
    cohesion: Values
    trust: float = 1.0
    own: Mapping[str, OwnKind] = MappingProxyType({})
    expected: Values = np.zeros(0)


def score_nodes(
    edges: EdgeIndex,
    hops: EdgeHops,
    *,
    trim: float,
    like: NodeScores | None = None,
    known: tuple[Values, Values] | None = None,
) -> NodeScores:
    """AHP, IV and HAV of every node; other numbers are 0 until `with_closure`, `with_strange`, `with_attributes`.

    `known` are AHP and IV, where they have been averaged already.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> scores = score_nodes(path, EdgeHops(np.array([1, 3], np.float32), np.zeros(2, np.float32)), trim=0.0)
    >>> scores.ahp.tolist()
    [1.0, 2.0, 3.0]
    """
    for name, values in hops._asdict().items():
        if values.shape != (edges.num_edges,):
            raise ValueError(f"the edges' {name} has shape {values.shape}; this graph has {edges.num_edges} edges")
    if known is None:
        (ahp,), iv = average_hops(edges, [hops.mean], hops.var, trim)
    else:
        ahp, iv = known
    degree, zeros = np.diff(edges.indptr), np.zeros(len(ahp))
    hav = _hav((ahp, iv), (ahp, iv) if like is None else (like.ahp, like.iv))
    flags = np.zeros(edges.num_nodes, np.uint8)
    flags[degree == 0] = NO_OUT_NEIGHBORS if edges.directed else ISOLATED
    if len(edges.limit):
        flags[edges.limit < MAX_HASH] |= SAMPLED
    return NodeScores(ahp, iv, hav, zeros, zeros, zeros, zeros, zeros, zeros, zeros, degree, flags)


def _hav(values: tuple[Values, Values], usual: tuple[Values, Values]) -> Values:
    """Two numbers of every node, each over its usual maximum, added up."""
    found = map_slices(len(usual[0]), lambda part: [each[part].max() for each in usual])
    maxima, out = np.reshape(found, (-1, 2)).max(axis=0, initial=0.0), np.zeros(len(values[0]))

    def add(part: slice) -> None:
        for value, maximum in zip(values, maxima, strict=True):
            if maximum > 0:
                out[part] += value[part] / maximum

    run_in_slices(len(out), add)
    return out


def average_hops(
    edges: EdgeIndex, means: Sequence[NDArray[np.float32]], var: NDArray[np.float32], trim: float, device: str = "cpu"
) -> tuple[Values, Values]:
    """AHP of every node by each mean, (means, n), and its IV by the first of them, (n,); of large graphs on a GPU."""
    if device != "cpu" and len(edges.indices) >= MANY_ENTRIES and not len(edges.limit):
        from hcm_scale.score.device import average_on_device  # imports Triton

        found = average_on_device(edges, means, var, 1.0 - trim, device)
        if found is not None:
            return found[:-1], found[-1]
    ahp, iv = np.empty((len(means), edges.num_nodes)), np.empty(edges.num_nodes)
    run_in_threads(edges.num_nodes, average_rows, edges.for_kernels, 1.0 - trim, tuple(means), var, ahp, iv)
    return ahp, iv


def with_closure(
    scores: NodeScores, edges: EdgeIndex, mean: NDArray[np.float32], far: Cut, expected: Values, device: str = "cpu"
) -> NodeScores:
    """The scores with far closure; `mean` is the edges' mean hop, `expected` are triangles (`cohesion`)."""
    return scores if edges.directed else replace(scores, closure=closure(edges, mean, far, expected, device))


def with_strange(
    scores: NodeScores, views: Sequence[Values] = (), usual: Strangeness | None = None
) -> tuple[NodeScores, Strangeness]:
    """The scores with `strange`, and its z-scales; `usual` are those of another graph.

    `views` are the AHP of each encoder, (n,) each, where there are several.
    """
    scored = scores.has_neighbors
    of_views = usual.views if usual is not None else zscale_among(views, scored) if views else None
    hop = scores.ahp if of_views is None else add_zscores(views, scored, of_views)
    both = [hop, scores.closure]
    scale = usual or Strangeness(zscale_among(both, scored), of_views)
    return replace(scores, strange=add_zscores(both, scored, scale.both)), scale


def attribute_scores(
    edges: EdgeIndex,
    x: NDArray[np.float32],
    distance: NDArray[np.float32],
    far_share: float,
    usual: ContextScale | None = None,
    device: str = "cpu",
) -> tuple[AttributeScores, ContextScale]:
    """Evidence of features x, (n, q), of their distance over every edge, (m,), and of triangles; and its scale.

    `usual` is the scale of another graph, which then takes the place of this one's. A CUDA device counts triangles that
    are very many.
    """
    if usual is None:
        prediction = fit(edges.indptr, edges.indices, x)
        unlike, surprise, spread, rate = far_cut(distance, far_share), surprise_of_bins(distance), None, None
        trust = attribute_trust(edges.indptr, edges.indices, x)
    else:
        unlike, surprise, prediction, spread, rate, trust = usual
    of_context, spread = context(edges, distance, surprise, spread)
    of_attributes = residual(edges.indptr, edges.indices, x, prediction)
    of_cohesion, expected, rate = cohesion(both_ways(edges) if edges.directed else edges, rate, device)
    of_closure = np.zeros(edges.num_nodes) if edges.directed else closure(edges, distance, unlike, expected, device)
    found = AttributeScores(of_context, of_closure, of_attributes, of_cohesion, trust, expected=expected)
    return found, ContextScale(unlike, surprise, prediction, spread, rate, trust)


def with_attributes(scores: NodeScores, found: AttributeScores, like: NodeScores | None = None) -> NodeScores:
    """The scores with the evidence of attributes, the place of every node by each kind, and `score`."""
    scores = replace(scores, **{name: part for name, part in found._asdict().items() if name != "expected"})
    weighed = _weigh(scores, like)
    found_by_all = {name: getattr(weighed, name) for name in ("score", "places", "alike")}
    return WeighedScores(**vars(scores) | found_by_all | {"weighed": weighed})


def verdict_of(scores: NodeScores, fdr: float, like: NodeScores | None = None) -> Verdict:
    """p-values, and which nodes are flagged at this false-discovery rate (threshold.py)."""
    weighed = scores.weighed if isinstance(scores, WeighedScores) else _weigh(scores, like)
    return judge(weighed.sums, fdr)


def _weigh(scores: NodeScores, like: NodeScores | None) -> WeightedEvidence:
    theirs = [] if like is None else like.of_groups()
    if not (groups := scores.of_groups()) or (like is not None and not theirs):
        return weigh_evidence(_numbers(scores), None if like is None else _numbers(like))
    usual = (None if like is None else _numbers(like, nodes) for nodes in theirs or groups)
    both = zip(groups, usual, strict=True)
    parts = [(nodes, weigh_evidence(_numbers(scores, nodes), other)) for nodes, other in both if len(nodes)]
    return evidence.join_groups(len(scores.degree), parts)


def _numbers(scores: NodeScores, nodes: Any = _ALL) -> KindNumbers:
    """The number of every kind of evidence, of all nodes or of some."""
    of_kind = {kind: getattr(scores, column)[nodes] for kind, column in KINDS.items()}
    of_kind |= {kind: own.values[nodes] for kind, own in scores.own.items()}
    return KindNumbers(of_kind, scores.has_neighbors[nodes], mean_degree(scores.degree[nodes]), scores.trust)


def mean_degree(degree: NDArray[np.int64]) -> float:
    """Geometric mean of the degrees that are not 0; 1 where all are.

    >>> mean_degree(np.array([0, 2, 8]))
    4.0
    """

    def sums(part: slice) -> list[float]:
        linked = degree[part][degree[part] > 0]
        return [float(np.log(linked).sum()), len(linked)]

    total, count = np.reshape(map_slices(len(degree), sums), (-1, 2)).sum(axis=0)
    return float(np.exp(total / max(1.0, count)))


def stability(scores: NodeScores, views: Sequence[Values], rank_by: str) -> float | None:
    """Share of the first nodes that stay first whichever encoder alone predicts the hops; None where there is one.

    `views` are the AHP of each encoder; all other evidence is unchanged.
    """
    if len(views) < 2:
        return None
    if rank_by != "score":
        return top_overlap(views)
    if scores.of_groups():
        return top_overlap(_weigh(replace(scores, ahp=view), None).score for view in views)
    numbers, double = _numbers(scores), None
    known, weight = numbers.known("hop"), numbers.weight("hop")
    if isinstance(scores, WeighedScores):
        double = scores.weighed.double_places(list(KINDS).index("hop"))
    own = surprise_gains("hop", scores.ahp, known, double)._replace(lower=None)  # the lower tail is no part of scores

    def score_by(view: Values) -> Values:
        other, out = surprise_gains("hop", view, known)._replace(lower=None), np.empty(len(view))

        def fill(part: slice) -> None:
            out[part] = scores.score[part] + weight * (other.of(part)[1] - own.of(part)[1])

        run_in_slices(len(out), fill)
        return out

    return top_overlap(map(score_by, views))
