"""How strange every edge is among all edges, given the degrees of its ends: its numbers, surprise, p and flag.

| kind   | an edge stands out because                                 | number                                         |
|--------|------------------------------------------------------------|------------------------------------------------|
| hop    | the model predicts its ends to be far apart                | mean predicted hop                             |
| around | what is around the one is unlike what is around the other  | 1 - cosine of the mean features there          |
| unlike | the attributes of its ends differ                          | 1 - cosine of the features                     |
| shared | its ends share fewer neighbours than chance gives them     | log(1 + expected) - log(1 + shared neighbours) |

Around an end are itself and its neighbours without the other end, so that an edge does not speak for itself as it does
in the embeddings that hops are predicted from. In a random graph with these degrees the ends of an edge share
rate (d(u) - 1) (d(v) - 1) neighbours (triangles.py).

Ends of many neighbours seem near, and averages over many are alike. So the first three numbers are compared among
edges of like degrees: the smaller and the larger one have as many binary digits, and both ends are of the same types. A
number becomes its distance to the median of such edges, in units of the distance from there to their 90 % quantile;
classes of under 200 edges take both from the nearest larger one. Its surprise among all edges,
-log P(an edge has as much), is that of `evidence.py`, with the same tail beyond the bulk. The surprises are added up,
`around` twice and `unlike` by half; where attributes are no witnesses of edges (`trust` 0), neither of these counts,
and hops by a third. In a graph without triangles, as one of two sides is, shared neighbours do not count. p and flags
follow from the sums as in `threshold.py`: p falls with the sum, so flagged edges are the first.

What is usual is read off 524,288 evenly spaced edges at most, so that a single edge is judged without a pass over
the others. Measured: docs/lab/detector.md. Memory: 4 bytes a feature of every node for the means, 25 bytes an edge, and
as many while they are sorted.

Two nodes that no edge joins are judged as if one did (`compare`): what is around an end is all of its neighbours, and
its degree is one more. Nodes that came later, n, n + 1, ..., have no features, so that `unlike` says nothing of them;
around them are the nodes that they are joined to, given as indptr and indices of a CSR (`NewNodes`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.order import first_not_below, largest_positions, order
from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import run_in_slices, run_in_threads
from hcm_scale.score.edge_index import EdgeIndex
from hcm_scale.score.evidence import FEW, Gains, Sums, ranks_among, surprise_gains
from hcm_scale.score.threshold import Verdict, judge
from hcm_scale.score.triangles import holds, random_rate, undirected

KINDS = ("hop", "around", "unlike", "shared")
_SAMPLE = 1 << 19  # edges that show what is usual
_RANKS = 1 << 14  # numbers that tell ranks
_SLICE = 1 << 14  # edges whose surprises a thread computes at a time
_MIDDLE, _ABOVE = 0.5, 0.9

Values = NDArray[np.float64]
Nodes = NDArray[Any]
NewNodes = tuple[NDArray[np.int64], NDArray[np.int64]]


class EdgeNumbers(NamedTuple):
    """Numbers of some edges, (k,) each; `hop` and its variance over samples are NaN where an edge was not scored."""

    left: Nodes
    right: Nodes
    hop: NDArray[np.float32]
    var: NDArray[np.float32]
    around: NDArray[np.float32]
    unlike: NDArray[np.float32]
    shared: NDArray[np.int32]
    expected: NDArray[np.float64]  # neighbours shared by chance
    others: NDArray[np.int64]  # (2, k): neighbours of each end beside the other

    def of_kinds(self) -> Values:
        """A row of numbers for each kind."""
        lacking = np.log1p(self.expected) - np.log1p(self.shared)
        return np.stack([self.hop, self.around, self.unlike, lacking]).astype(np.float64)

    def display_values(self) -> Values:
        """A row for each kind, in the units that a reader is told."""
        return np.stack([self.hop, self.around, self.unlike, self.shared]).astype(np.float64)


@dataclass(frozen=True, eq=False)
class EdgeData:
    """A scored graph: its edges, mean and variance of their hops, features of the nodes, and the group of each node.

    Nodes of a group are of types that are compared together; None: all are. Features of `new_nodes` are zeros.
    """

    edges: EdgeIndex
    hop: NDArray[np.float32]
    var: NDArray[np.float32]
    features: NDArray[np.float32]
    group: NDArray[np.uint8] | None = None
    trust: float = 1.0
    new_nodes: NewNodes | None = None

    def with_new_nodes(self, new_nodes: NewNodes) -> "EdgeData":
        """The same with nodes that came later; copies the features and, in `joined`, the entries of the graph."""
        count = len(new_nodes[0]) - 1
        features = np.concatenate([self.features, np.zeros((count, self.features.shape[1]), np.float32)])
        group = None if self.group is None else np.append(self.group, np.full(count, 255, np.uint8))
        return replace(self, features=features, group=group, new_nodes=new_nodes)

    @cached_property
    def joined(self) -> EdgeIndex:
        """The edges without directions, in which neighbours are counted, and the rows of later nodes below them."""
        whole = undirected(self.edges) if self.edges.directed else self.edges
        if self.new_nodes is None:
            return whole
        rows, entries = self.new_nodes
        indices = np.append(whole.indices, entries.astype(whole.indices.dtype))
        return replace(whole, indptr=np.append(whole.indptr, whole.indptr[-1] + rows[1:]), indices=indices)

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """Neighbours of every node, by edges of either direction."""
        return np.diff(self.joined.indptr)

    @cached_property
    def means(self) -> NDArray[np.float32]:
        """Mean features of every node's neighbours, (n, q)."""
        out = np.empty(self.features.shape, np.float32)
        run_in_threads(len(out), mean_rows, self.joined.indptr, self.joined.indices, self.features, 0, out)
        return out

    @cached_property
    def rate(self) -> float:
        """What the neighbours that ends share by chance grow with."""
        return random_rate(replace(self.joined, indptr=self.joined.indptr[: self.edges.num_nodes + 1]))

    def ends(self, number: NDArray[np.int64]) -> tuple[Nodes, Nodes]:
        """Both ends of some edges, given by their numbers."""
        left = np.searchsorted(self.edges.start, number, side="right") - 1
        return left, self.edges.indices[self.edges.indptr[left + 1] - self.edges.start[left + 1] + number]

    def numbers(self, number: NDArray[np.int64]) -> EdgeNumbers:
        """The numbers of some edges, given by their own numbers; fastest where these rise."""
        return self.compare(*self.ends(number), self.hop[number], self.var[number], are_edges=True)

    def compare(
        self, left: Nodes, right: Nodes, hop: NDArray[np.float32], var: NDArray[np.float32], are_edges: bool = False
    ) -> EdgeNumbers:
        """The numbers of pairs of nodes with these hops, as if edges joined them; `are_edges` where all do."""
        around, unlike = np.empty((2, len(left)), np.float32)
        shared, others = np.empty(len(left), np.int32), np.empty((2, len(left)), np.int64)
        graph, of_nodes = (self.joined.indptr, self.joined.indices), (self.features, self.means)
        out = around, unlike, shared, others
        if len(left) <= _SLICE:  # of a thread among others
            compare_ends((0, len(left)), graph, of_nodes, (left, right), are_edges, out)
        else:
            run_in_threads(len(left), compare_ends, graph, of_nodes, (left, right), are_edges, out)
        if self.new_nodes is not None:
            is_later = np.stack([left, right]) >= self.edges.num_nodes
            unlike[is_later.any(axis=0)] = np.nan
            around[(is_later & (others == 0)).any(axis=0)] = np.nan
        expected = np.minimum(self.rate * others[0] * others[1], others.min(axis=0))
        return EdgeNumbers(left, right, hop, var, around, unlike, shared, expected, others)

    def classes(self, numbers: EdgeNumbers) -> NDArray[np.int64]:
        """Edges of one class have like degrees, and ends of the same groups."""
        ends = np.stack([numbers.left, numbers.right])
        digits = np.sort(np.frexp(1 + numbers.others)[1], axis=0).astype(np.int64)
        groups = np.zeros_like(digits) if self.group is None else np.sort(self.group[ends], axis=0).astype(np.int64)
        return ((groups[0] << 8 | groups[1]) << 8 | digits[0]) << 8 | digits[1]


class EdgeScale(NamedTuple):
    """What edges are measured by.

    By kind and class, the last of all edges: median and deviation of its numbers, and the median as a reader is told it
    (`usual`, NaN of few edges), (kinds, classes + 1). `gains` are those of the sample, `ordered` evenly spaced ones of
    its numbers in order, which tell ranks in the bulk and fit the cache. `sample` are its surprises by kind, `sums`
    their sums.
    """

    classes: NDArray[np.int64]
    middle: Values
    spread: Values
    usual: Values
    gains: tuple[Gains, ...]
    ordered: tuple[Values, ...]
    weights: tuple[float, ...]
    sample: Values = np.zeros((len(KINDS), 0))
    sums: Sums = Sums(np.zeros(0), np.zeros(0, bool), 1)

    def columns_of(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The column of each class."""
        column = np.minimum(np.searchsorted(self.classes, classes), max(0, len(self.classes) - 1))
        has_column = self.classes[column] == classes if len(self.classes) else np.zeros(len(classes), bool)
        return np.where(has_column, column, len(self.classes))

    def surprises(self, numbers: EdgeNumbers, classes: NDArray[np.int64]) -> Values:
        """Weighted surprise of edges by each kind, (kinds, k)."""
        column = self.columns_of(classes)
        values = (numbers.of_kinds() - self.middle[:, column]) / self.spread[:, column]
        out = np.zeros_like(values)
        for row, (gains, ordered, weight) in enumerate(zip(self.gains, self.ordered, self.weights, strict=True)):
            has_value = np.isfinite(values[row])
            some = values[row][has_value]
            out[row][has_value] = weight * gains.plain(-np.log1p(-ranks_among(some, ordered)), some)
        return out

    def judge(self, surprise: Values, rate: float) -> Verdict:
        """Chances and flags of edges by the sums of their surprises."""
        every = np.ones(len(surprise), bool)
        return judge(Sums(surprise, every, self.sums.largest_weight, usual=self.sums), rate)


def edge_scale(data: EdgeData) -> EdgeScale:
    """What edges are measured by, from evenly spaced ones."""
    num_edges = data.edges.num_edges
    numbers = data.numbers(np.arange(0, num_edges, max(1, -(-num_edges // _SAMPLE))))
    classes, inverse, counts = np.unique(data.classes(numbers), return_inverse=True, return_counts=True)
    by_class = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    of_kinds, displayed = numbers.of_kinds(), numbers.display_values()
    middle, spread = np.zeros((len(KINDS), len(classes) + 1)), np.ones((len(KINDS), len(classes) + 1))
    usual = np.full_like(middle, np.nan)
    for row, kind in enumerate(KINDS):
        if kind != "shared":
            middle[row], spread[row] = _middle_and_spread(of_kinds[row])
        for column, near in enumerate(_nearest_large(classes, counts)):
            edges = by_class[near] if near >= 0 else by_class[column][:0]
            if near == column:
                usual[row, column], _ = _middle_and_spread(displayed[row, edges])
            if kind != "shared" and len(edges):
                middle[row, column], spread[row, column] = _middle_and_spread(of_kinds[row, edges])
    has_triangles = float(numbers.shared.any())  # a graph of two sides has none: chance alone would count
    weights = (1.0 + 2.0 * data.trust) / 3.0, 2.0 * data.trust, 0.5 * data.trust, has_triangles
    gains, ordered = [], []
    for row in range(len(KINDS)):
        values = (of_kinds[row] - middle[row, inverse]) / spread[row, inverse]
        gains.append(surprise_gains(values[np.isfinite(values)]))
        ordered.append(_thinned(gains[-1].values))
    scale = EdgeScale(classes, middle, spread, usual, tuple(gains), tuple(ordered), weights)
    sample = scale.surprises(numbers, classes[inverse])
    largest = max((weight for of, weight in zip(gains, weights, strict=True) if of.varies), default=0.0)
    sums = _thinned(sample.sum(axis=0))
    return scale._replace(sample=sample, sums=Sums(sums, np.ones(len(sums), bool), float(largest) or 1.0))


def _nearest_large(classes: NDArray[np.int64], counts: NDArray[np.int64]) -> list[int]:
    """For every class the number of the one nearest in degrees that has edges enough, of the same groups; -1: none."""
    digits, groups = np.stack([classes >> 8 & 255, classes & 255]), classes >> 16
    large, out = np.flatnonzero(counts >= FEW), []
    for number in range(len(classes)):
        alike = large[groups[large] == groups[number]]
        apart = np.abs(digits[:, alike] - digits[:, [number]]).sum(axis=0)
        out.append(int(alike[apart.argmin()]) if len(alike) else -1)
    return out


def _thinned(values: Values) -> Values:
    """Evenly spaced ones of the values in order: every k-th, from the middle of the first k on."""
    step = max(1, len(values) // _RANKS)
    return np.sort(values)[step // 2 :: step]


def _middle_and_spread(values: Values) -> tuple[float, float]:
    """Median, and distance from there to the 90 % quantile, 1 where there is none; NaN does not count."""
    finite = values[np.isfinite(values)]
    middle, above = np.quantile(finite, [_MIDDLE, _ABOVE]) if len(finite) else (0.0, 1.0)
    return float(middle), float(above - middle) or 1.0


class RankedEdges(NamedTuple):
    """All edges: their surprise, p and flag, by edge number, (m,) each."""

    surprise: Values
    verdict: Verdict

    def first(self, top: int | None = None) -> NDArray[np.int64]:
        """Edge numbers, the strangest first; all, or the first `top`."""
        if top == 0:
            return np.zeros(0, np.int64)
        return order(-self.surprise) if top is None else largest_positions(self.surprise, top)


def rank_edges(data: EdgeData, scale: EdgeScale, rate: float) -> RankedEdges:
    """Surprise, p and flag of every edge."""
    total = np.empty(data.edges.num_edges)

    def fill(edges: slice) -> None:
        numbers = data.numbers(np.arange(edges.start, edges.stop))
        total[edges] = scale.surprises(numbers, data.classes(numbers)).sum(axis=0)

    run_in_slices(len(total), fill, size=_SLICE)
    return RankedEdges(total, scale.judge(total, rate))


@kernel(allocates=False)
def compare_ends(span, graph, of_nodes, ends, are_edges, out):
    """Compares left[i] with right[i]: 1 - cosine of what is around them, 1 - cosine of their features, neighbours that
    they share, and that each has beside the other. `means` are those of the features of all neighbours of a node.
    """
    indptr, indices = graph
    features, means = of_nodes
    left, right = ends
    around, unlike, shared, others = out
    for i in range(span[0], span[1]):
        u, v = np.int64(left[i]), np.int64(right[i])
        of_u, of_v = indptr[u + 1] - indptr[u], indptr[v + 1] - indptr[v]
        has_v = np.int64(are_edges or holds(indices, indptr[u], indptr[u + 1], v))
        has_u = np.int64(are_edges or holds(indices, indptr[v], indptr[v + 1], u))
        others[0, i], others[1, i] = of_u - has_v, of_v - has_u
        product, own, other = 0.0, 0.0, 0.0
        product_around, own_around, other_around = 0.0, 0.0, 0.0
        for k in range(features.shape[1]):
            a, b = np.float64(features[u, k]), np.float64(features[v, k])
            product += a * b
            own += a * a
            other += b * b
            a, b = of_u * np.float64(means[u, k]) - has_v * b + a, of_v * np.float64(means[v, k]) - has_u * a + b
            product_around += a * b
            own_around += a * a
            other_around += b * b
        unlike[i] = 1.0 - (product / np.sqrt(own * other) if own * other > 0.0 else 0.0)
        of_both = own_around * other_around
        around[i] = 1.0 - (product_around / np.sqrt(of_both) if of_both > 0.0 else 0.0)
        if of_u > of_v:
            u, v = v, u
        shared[i] = _num_shared(indptr, indices, u, v)


@kernel(inline="always")
def _num_shared(indptr, indices, u, v):
    """Neighbours of u that v has too: each is looked for in the row of v, from where the last one was found."""
    low, end, count = indptr[v], indptr[v + 1], 0
    for e in range(indptr[u], indptr[u + 1]):
        low = first_not_below(indices, low, end, indices[e])
        if low < end and indices[low] == indices[e]:
            count += 1
            low += 1
    return count
