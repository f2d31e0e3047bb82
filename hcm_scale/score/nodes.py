"""Scores of nodes: the numbers of every kind of evidence, and what they add up to.

Numbers are made by the kinds themselves (`kinds/`) and added up by `evidence.py`. Neighbours are those of the original
graph; out-neighbours where it is directed. With `trim` = t only the nearest ceil((1 - t) * degree) of them count, at
least one, in averages of hops, so that a normal node is not blamed for an anomalous neighbour. A node without
neighbours has 0 in all that is said of neighbours, and a flag.

Functions here return new scores and never write to arrays of given ones. `reference` are the scores of another graph,
whose ranks then take the place of this one's. Nodes of several types are ranked by each kind among their own type.
Memory: a number per node and column, 4 bytes per node and kind, and one of a byte.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices, run_in_slices, run_in_threads
from hcm_scale.graph.store import NodeTypes
from hcm_scale.score import evidence
from hcm_scale.score.edge_index import MANY_ENTRIES, EdgeIndex, average_rows
from hcm_scale.score.evidence import KindNumbers, WeightedEvidence, kind_gains, weigh_evidence
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import Facts, Kind, Values
from hcm_scale.score.metrics import is_saturated, top_overlap
from hcm_scale.score.threshold import Verdict, judge

FLAG_NAMES = ("isolated", "no_out_neighbors")
ISOLATED, NO_OUT_NEIGHBORS = (1 << bit for bit in range(len(FLAG_NAMES)))
UNSCORED = ISOLATED | NO_OUT_NEIGHBORS
_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class NodeScores:
    """Scores of all nodes: `numbers` of the kinds by column, (n,) each; `flags` is a bit mask over FLAG_NAMES.

    `score` and `places`, (kinds, n), the rank of every node by each kind, are there once the evidence is added up;
    `weighed` spares a second sort of every kind. `trust` says how far attributes are witnesses of edges, `learnt`
    how far hops are. `types` are those of the nodes, `groups` says which types are compared together; None: all nodes
    are.
    """

    kinds: tuple[Kind, ...]
    numbers: Mapping[str, Values]
    degree: NDArray[np.int64]
    flags: NDArray[np.uint8]
    trust: float = 1.0
    learnt: float = 1.0
    types: NodeTypes | None = None
    groups: evidence.Groups | None = None
    score: Values | None = None
    places: NDArray[np.signedinteger[Any]] | None = None
    weighed: WeightedEvidence | None = None

    def of_groups(self) -> list[NDArray[np.int64]]:
        """The nodes of each group of types, where there are several groups."""
        if self.types is None or self.groups is None or not any(self.groups.values()):
            return []
        return evidence.nodes_by_group(self.types, self.groups)

    @property
    def has_neighbors(self) -> NDArray[np.bool_]:
        """Which nodes have neighbours to be scored by."""
        scored: NDArray[np.bool_] = (self.flags & UNSCORED) == 0
        return scored

    @property
    def faint(self) -> list[str]:
        """Names of the kinds that weigh too little to be the reason of a rank."""
        return [kind.name for kind in self.kinds if kind.is_faint(Facts(trust=self.trust, learnt=self.learnt))]

    def by(self, rank_by: str) -> Values:
        score = self.score if rank_by == "score" else self.numbers[rank_by]
        assert score is not None
        return score


def make_numbers(kinds: Iterable[Kind], inputs: KindInputs) -> dict[str, Values]:
    """Numbers of these kinds by column, (n,) each."""
    made: dict[str, Values] = {}
    first = inputs.first_without_attributes
    for kind in kinds:
        columns = dict(zip(kind.columns, kind.numbers(inputs), strict=True))
        for values in columns.values() if kind.needs_attributes and first else ():
            values[first:] = np.median(values[:first])
        made |= columns
    return made


def degrees_and_flags(edges: EdgeIndex) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Number of neighbours and flags of every node, (n,) each."""
    degree, flags = np.diff(edges.indptr), np.zeros(edges.num_nodes, np.uint8)
    flags[degree == 0] = NO_OUT_NEIGHBORS if edges.directed else ISOLATED
    return degree, flags


def average_hops(
    edges: EdgeIndex, means: Sequence[NDArray[np.float32]], var: NDArray[np.float32], trim: float, device: str = "cpu"
) -> tuple[Values, Values]:
    """AHP of every node by each mean, (means, n), and its IV by the first of them, (n,); of large graphs on a GPU.

    >>> from hcm_scale.score.edge_index import edge_index
    >>> path = edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    >>> average_hops(path, [np.array([1, 3], np.float32)], np.zeros(2, np.float32), trim=0.0)[0].tolist()
    [[1.0, 2.0, 3.0]]
    """
    if device != "cpu" and len(edges.indices) >= MANY_ENTRIES:
        from hcm_scale.score.device import average_on_device  # imports Triton

        made = average_on_device(edges, means, var, 1.0 - trim, device)
        if made is not None:
            return made[:-1], made[-1]
    ahp, iv = np.empty((len(means), edges.num_nodes)), np.empty(edges.num_nodes)
    run_in_threads(edges.num_nodes, average_rows, edges.for_kernels, 1.0 - trim, tuple(means), var, ahp, iv)
    return ahp, iv


def with_score(scores: NodeScores, reference: NodeScores | None = None) -> NodeScores:
    """The scores with the rank of every node by each kind, and `score`."""
    weighed = _weigh(scores, reference)
    return replace(scores, score=weighed.score, places=weighed.places, weighed=weighed)


def verdict_of(scores: NodeScores, fdr: float, reference: NodeScores | None = None) -> Verdict:
    """p-values, and which nodes are flagged at this false-discovery rate (threshold.py)."""
    return judge((scores.weighed or _weigh(scores, reference)).sums, fdr)


def _weigh(scores: NodeScores, reference: NodeScores | None) -> WeightedEvidence:
    theirs = [] if reference is None else reference.of_groups()
    if not (groups := scores.of_groups()) or (reference is not None and not theirs):
        return weigh_evidence(*_both(scores, reference))
    weighed = []
    for nodes, others in zip(groups, theirs or groups, strict=True):
        if len(nodes):
            weighed.append((nodes, weigh_evidence(*_both(scores, reference, nodes, others))))
    return evidence.join_groups(len(scores.degree), weighed)


def _both(
    scores: NodeScores, reference: NodeScores | None, nodes: Any = _ALL, others: Any = _ALL
) -> tuple[KindNumbers, KindNumbers | None]:
    """The number of every kind of evidence, of all nodes or of some, and those of the reference by the same kinds."""

    def numbers(of: NodeScores, some: Any) -> KindNumbers:
        of_kind = {kind: of.numbers[kind.column][some] for kind in scores.kinds}
        return KindNumbers(of_kind, of.has_neighbors[some], Facts(mean_degree(of.degree[some]), of.trust, of.learnt))

    return numbers(scores, nodes), None if reference is None else numbers(reference, others)


def mean_degree(degree: NDArray[np.int64]) -> float:
    """Geometric mean of the degrees that are not 0; 1 where all are.

    >>> mean_degree(np.array([0, 2, 8]))
    4.0
    """

    def sums(chunk: slice) -> list[float]:
        linked = degree[chunk][degree[chunk] > 0]
        return [float(np.log(linked).sum()), len(linked)]

    total, count = np.reshape(map_slices(len(degree), sums), (-1, 2)).sum(axis=0)
    return float(np.exp(total / max(1.0, count)))


def stability(
    scores: NodeScores, inputs: KindInputs, rank_by: str, reference: NodeScores | None = None
) -> float | None:
    """Share of the first nodes that stay first whichever encoder alone predicts the hops; all else is unchanged.

    None where there is one encoder, or where too many nodes have nearly the same score to name the first.
    """
    by_encoder = {kind: views for kind in scores.kinds if len(views := kind.by_encoder(inputs)) > 1}
    if not by_encoder or is_saturated(scores.by(rank_by)):
        return None
    views_of = [dict(zip(by_encoder, views, strict=True)) for views in zip(*by_encoder.values(), strict=True)]
    if rank_by != "score":
        return top_overlap(next(iter(by_encoder.values())))
    if scores.of_groups():
        columns = [{kind.column: values for kind, values in views.items()} for views in views_of]
        changed = (replace(scores, numbers={**scores.numbers, **some}, weighed=None) for some in columns)
        return top_overlap(_weigh(each, reference).score for each in changed)
    own, usual = _both(scores, reference)
    before = {}
    for kind in by_encoder:
        weighed = None if reference is not None else scores.weighed
        double = None if weighed is None else weighed.double_places(scores.kinds.index(kind))
        before[kind] = kind_gains(kind, own, usual, double=double)[1]

    def score_by(views: Mapping[Kind, Values]) -> Values:
        out = scores.by(rank_by).copy()
        for kind, values in views.items():
            weight, (_, after) = kind.weight((usual or own).facts), kind_gains(kind, own, usual, values)

            def fill(chunk: slice, kind: Kind = kind, weight: float = weight, after: Any = after) -> None:
                out[chunk] += weight * (after(chunk).softened - before[kind](chunk).softened)

            run_in_slices(len(out), fill)
        return out

    return top_overlap(map(score_by, views_of))
