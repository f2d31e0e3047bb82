"""A list taught by verdicts: the label-free order, moved as far as a few verdicts carry it.

    logit P(v is bad) = a + b s(v) + w . z(v)

s is the surprise of v's rank by score. z are columns that may say otherwise, each about 1 in size:

    evidence      surprise of v's rank by every kind of evidence and by degree, in the upper and in the lower tail
    attributes    v's features, how far each is from the middle, their mean over v's neighbours, the difference of both
    neighbours    logarithm of the number of v's neighbours that are known to be bad

A priori b is 1 and w is 0, give or take; the verdicts have to overcome that. How far w may go is not known beforehand:
hypotheses from "the label-free order is right" (w = 0) to "attributes decide" are each fitted by maximum a posteriori
and averaged by their evidence, the first of them with a head start, which is the larger the fewer verdicts there are
below 25. 500 nodes drawn at random stand for all that nobody looked at: they count as good, with half the weight of the
verdicts together. So verdicts on the head of the list alone, or a list of known cases alone, can teach as well.

The label-free order stays where it is likelier than not, or where at least three verdicts of either kind are not
predicted by the others (cross-validation over five folds). Verdicts that mean nothing predict each other as well as
that one time in six, so that a tenth of the lesson is taken then, and all of it only from four and a half deviations
on. A lesson that is less sure, or rests on one or two bad nodes, may still say where to look: where most of
what was looked at is good, its first nodes, one in twenty, come before the others, which keep their order; it costs a
list that was right .05 of its ROC-AUC at most. Nodes with a verdict get the score that they would have without it, from
the fold that left them out, so that the list is not better at them than at others.

All is linear in the end: scoring a node costs as much as looking at it. Memory: 16 bytes a node and a slice of columns.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.order import Places, double_places
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.text import counted
from hcm_scale.base.threads import run_in_slices
from hcm_scale.score.metrics import roc_auc

LEAST_VERDICTS = 5  # fewer teach nothing
_MOST_VERDICTS = 4096  # more are drawn from
_MOST_FEATURES = 64
_BACKGROUND, _BACKGROUND_WEIGHT = 500, 0.5  # nodes, and their weight beside that of the verdicts
_HYPOTHESES = ((0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.3, 0.5), (0.3, 1.5), (0.3, 4.0))  # spread of evidence, attributes
_HEAD_START, _START_OF_FEW, _ENOUGH = 1.0, 3.0, 25  # of the first, in nats; more, falling to 0 at so many verdicts
_SLOPE_SPREAD, _NEIGHBOR_SPREAD, _LEVEL, _LEVEL_SPREAD = 0.5, 1.0, -3.0, 10.0
_FOLDS, _LEAST_OF_KIND = 5, 3
_LEAST_Z, _UNSURE_Z, _SURE_Z, _UNSURE = 1.0, 2.5, 4.5, 0.1  # deviations above chance; what counts up to the second
_LEADS, _RARE = 0.05, 0.25  # share of the nodes that an unsure lesson puts first, where bad verdicts are fewer
_SAMPLE_ROWS = 1 << 14  # that show the spread of a column
_SLICE_ROWS = 1 << 12  # 100 columns of them take no new pages of memory, which many threads would wait for
_MOST = 4.0  # spreads that an attribute counts for
_SAID, _SAID_EACH = 0.15, 3  # least weight that is put into words, and how many of evidence and of attributes
_DRAWN, _FOLDED = 0x400, 0x401  # uses of the seed

Values = NDArray[np.float64]
Nodes = NDArray[np.int64]


class Inputs(NamedTuple):
    """What a lesson is learned from, and applied to, in node order.

    `ranks` are those by every kind of evidence, 1 for the most unusual, and `titles` what these are called. They
    are ranks among `num_compared` nodes, (n,), those of the same types; None: among all.
    `features` may be a memory map; `names` are theirs, empty for components. `indptr` and `indices` give neighbours.
    """

    score: Values
    ranks: Mapping[str, Places]
    degree: NDArray[np.int64]
    features: NDArray[np.float32]
    names: Sequence[str]
    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]
    num_compared: Nodes | None = None
    titles: Sequence[str] = ()


class Lesson(NamedTuple):
    """The taught score of every node, (n,), whether verdicts changed the order, what they taught, and the model."""

    taught: Values
    changed: bool
    sentences: list[str]
    model: dict[str, Values]


def learn(inputs: Inputs, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int = 0) -> Lesson:
    """What verdicts on some nodes, (k,), teach about all of them."""
    if len(nodes) < LEAST_VERDICTS:
        why = f"{len(nodes)} verdicts are too few to learn from: the order stays. Give {LEAST_VERDICTS} or more."
        return _unchanged(inputs, why)
    rng = np.random.default_rng(key(seed, _DRAWN))
    chosen = rng.permutation(len(nodes))[:_MOST_VERDICTS]
    num_nodes = len(inputs.score)  # of a hundred million not all are drawn from
    some = np.arange(num_nodes) if num_nodes <= 1 << 16 else np.unique(rng.integers(0, num_nodes, 1 << 15))
    background = rng.permutation(np.setdiff1d(some, nodes))[:_BACKGROUND]
    columns = _Columns.of(inputs, nodes[is_bad])
    rows = _Rows.of(columns, nodes[chosen], is_bad[chosen], background)
    likely, weights = _average(rows, np.ones(len(rows.label), bool))
    if likely[0] > 0.5:
        few = f" {_ENOUGH} or more verdicts would tell more surely." if len(nodes) < _ENOUGH else ""
        return _unchanged(inputs, f"No other order explains the verdicts clearly better: it stays.{few}")
    held_out, before = _out_of_fold(rows, seed), rows.columns[: len(chosen), 1]
    share, leads, why = _reach(is_bad[chosen], held_out, before)
    if not share and not leads:
        return _unchanged(inputs, why)
    label_free = np.eye(len(weights))[1]
    by_share = np.stack([share * weights + (1 - share) * label_free, weights][: 1 + leads])
    scores = columns.scores(by_share)
    scores[:, nodes[chosen]] = np.stack([share * held_out + (1 - share) * before, held_out][: 1 + leads])
    first = f"{counted(len(nodes), 'verdict')}, {int(is_bad.sum()):,} of them bad, changed the order.{why}"
    model = {"weights": by_share, "center": columns.center, "spread": columns.spread}
    return Lesson(_led(scores), True, [first, *_sentences(columns, weights)], model)


def _reach(is_bad: NDArray[np.bool_], held_out: Values, before: Values) -> tuple[float, bool, str]:
    """The share of the lesson that moves the list, whether its first nodes come first, and what is to be said of it.

    By the verdicts, (k,), what the others say of each, and its label-free score.
    """
    num_bad, num_good = int(is_bad.sum()), int((~is_bad).sum())
    leads = num_bad < _RARE * len(is_bad)
    first = f" The nodes most like these, {100 * _LEADS:g} % of all, come first." if leads else ""
    chance = " That may be chance: the order moves by {:.0f} % of the lesson."
    if not num_bad or not num_good:
        return 1.0, False, ""
    if num_good < _LEAST_OF_KIND:
        return _UNSURE, False, chance.format(100 * _UNSURE)
    if num_bad < _LEAST_OF_KIND:
        return 0.0, leads, first or "Fewer than three of them are bad: the order stays."
    auc, old = roc_auc(is_bad, held_out), roc_auc(is_bad, before)
    error = float(np.sqrt((1 / num_bad + 1 / num_good) / 12))
    sure = (auc - 0.5) / error
    if sure < _LEAST_Z:
        why = "What some of the verdicts teach does not hold for the others, as if they were given by chance"
        return 0.0, False, f"{why} (ROC-AUC {auc:.2f} give or take {error:.2f}): the order stays."
    share = _UNSURE + (1 - _UNSURE) * float(np.clip((sure - _UNSURE_Z) / (_SURE_Z - _UNSURE_Z), 0.0, 1.0)) ** 2
    said = f" Verdicts left out are predicted with a ROC-AUC of {auc:.2f}; by the label-free score {old:.2f}."
    if share == 1.0:
        return 1.0, False, said
    return share, leads, said + chance.format(100 * share) + first


def _led(scores: Values) -> Values:
    """One score of every node, (n,), of those by the rows of weights, (1 or 2, n): the first by a second row lead."""
    taught = scores[0]
    if len(scores) > 1:
        last = max(0, len(taught) - int(_LEADS * len(taught)) - 1)
        least = np.partition(scores[1], last)[last]
        first = scores[1] > least
        taught[first] = taught.max() + scores[1, first] - least
    return taught


def apply_lesson(model: Mapping[str, Values], inputs: Inputs, bad: Nodes) -> Values:
    """The taught score of every node of another graph, (n,), in which some nodes are known to be bad."""
    if not len(model["weights"]):
        return inputs.score
    weights, center, spread = np.atleast_2d(model["weights"]), model["center"], model["spread"]
    columns = _Columns.of(inputs, bad, (center, spread))
    is_legal = weights.shape in {(1, columns.width), (2, columns.width)}
    if not is_legal or {center.shape, spread.shape} != {(3, columns.features.shape[1])}:
        raise ValueError(f"the lesson is of {weights.shape[-1]} columns, the run has {columns.width}")
    return _led(columns.scores(weights))


def _unchanged(inputs: Inputs, why: str) -> Lesson:
    none = np.zeros(0)
    return Lesson(inputs.score, False, [why], {"weights": none, "center": none, "spread": none})


class _Columns(NamedTuple):
    """The columns of all nodes, made for some at a time; `center` and `spread` are of the attributes, (3, f)."""

    inputs: Inputs
    double: list[Places]  # double ranks: by score, by every kind of evidence, by degree
    features: NDArray[np.float32]
    bad: NDArray[np.bool_]
    center: Values
    spread: Values

    @staticmethod
    def of(inputs: Inputs, bad: Nodes, scale: tuple[Values, Values] | None = None) -> "_Columns":
        by_number = [double_places(values.astype(np.float64, copy=False)) for values in (inputs.score, inputs.degree)]
        double = [by_number[0], *(2 * ranks for ranks in inputs.ranks.values()), by_number[1]]
        is_bad = np.zeros(len(inputs.score), bool)
        is_bad[bad] = True
        features = np.asarray(inputs.features)[:, :_MOST_FEATURES]
        made = _Columns(inputs, double, features, is_bad, np.zeros((3, 0)), np.zeros((3, 0)))
        center, spread = scale or made._scale()
        return made._replace(center=center, spread=spread)

    def _scale(self) -> tuple[Values, Values]:
        """Middle and spread of features, of their means over neighbours, and of the differences."""
        rows = np.unique(np.linspace(0, len(self.bad) - 1, min(len(self.bad), _SAMPLE_ROWS)).astype(np.int64))
        attributes = np.stack(self._attributes(rows)).astype(np.float64)
        low, center, high = np.quantile(attributes, [0.16, 0.5, 0.84], axis=1)
        deviation = attributes.std(axis=1)
        spread = np.where(high - low > 0.1 * deviation, (high - low) / 2, deviation)
        return center, np.where(spread > 0, spread, 1.0)

    def _attributes(self, rows: Nodes) -> list[NDArray[np.float32]]:
        own = np.asarray(self.features[rows])
        around = np.empty_like(own)
        neighbor_means(rows, self.inputs.indptr, self.inputs.indices, self.features, around)
        return [own, around, np.abs(own - around)]

    @property
    def width(self) -> int:
        return 1 + 2 * len(self.double[1:]) + 1 + 4 * self.features.shape[1] + 1

    def rows(self, nodes: Nodes) -> Values:
        """Level, score, evidence in both tails, attributes, known bad neighbours of some nodes, (k, width)."""
        among = np.full((len(nodes), len(self.double)), len(self.bad))
        if self.inputs.num_compared is not None:
            among[:, 1:-1] = self.inputs.num_compared[nodes, None]  # score and degree are of one list
        quantiles = 1.0 - (np.stack([double[nodes] for double in self.double], axis=1) - 1) / (2.0 * among)
        quantiles = np.clip(quantiles, 0.5 / among, 1.0 - 0.5 / among)
        upper, lower = -np.log1p(-quantiles) - 1.0, -np.log(quantiles) - 1.0
        columns = [np.ones((len(nodes), 1)), upper, lower[:, 1:]]
        scaled = [
            np.clip((values - center) / spread, -_MOST, _MOST)
            for values, center, spread in zip(self._attributes(nodes), self.center, self.spread, strict=True)
        ]
        num_bad = np.empty(len(nodes))
        count_marked(nodes, self.inputs.indptr, self.inputs.indices, self.bad, num_bad)
        return np.concatenate([*columns, *scaled, np.abs(scaled[0]) - 0.8, np.log1p(num_bad)[:, None]], axis=1)

    def spreads(self, evidence: float, attributes: float) -> Values:
        """How far the weights of a hypothesis may go, (width,)."""
        tails, width = 2 * len(self.double[1:]), 4 * self.features.shape[1]
        of_attributes = np.full(width, attributes / np.sqrt(max(1, width)))
        neighbors = _NEIGHBOR_SPREAD if evidence else 0.0
        return np.concatenate([[_LEVEL_SPREAD, _SLOPE_SPREAD], np.full(tails, evidence), of_attributes, [neighbors]])

    def scores(self, weights: Values) -> Values:
        """Of all nodes by every row of weights, (rows, n)."""
        out = np.empty((len(weights), len(self.bad)))

        def fill(rows: slice) -> None:
            out[:, rows] = weights @ self.rows(np.arange(rows.start, rows.stop)).T

        run_in_slices(len(self.bad), fill, _SLICE_ROWS)
        return out


@kernel
def neighbor_means(rows, indptr, indices, features, out):
    for row in range(len(rows)):
        mean_rows((0, 1), indptr, indices, features, rows[row], out[row : row + 1])


@kernel
def count_marked(rows, indptr, indices, marked, out):
    for row in range(len(rows)):
        count = 0
        for at in range(indptr[rows[row]], indptr[rows[row] + 1]):
            count += marked[indices[at]]
        out[row] = count


class _Rows(NamedTuple):
    """Columns, labels and weights of the verdicts, which come first, and of the background."""

    columns: Values
    label: Values
    weight: Values
    num_verdicts: int
    hypotheses: list[Values]

    @staticmethod
    def of(columns: _Columns, nodes: Nodes, is_bad: NDArray[np.bool_], background: Nodes) -> "_Rows":
        made = columns.rows(np.concatenate([nodes, background]))
        label = np.concatenate([is_bad, np.zeros(len(background))]).astype(np.float64)
        weight = np.ones(len(label))
        weight[len(nodes) :] = min(1.0, _BACKGROUND_WEIGHT * len(nodes) / max(1, len(background)))
        return _Rows(made, label, weight, len(nodes), [columns.spreads(*each) for each in _HYPOTHESES])


def _average(rows: _Rows, kept: NDArray[np.bool_]) -> tuple[Values, Values]:
    """How likely each hypothesis is given some of the rows, and their weights averaged by that, (width,)."""
    fits = [_fit(rows.columns[kept], rows.label[kept], rows.weight[kept], each) for each in rows.hypotheses]
    evidence = np.array([each[1] for each in fits])
    evidence[0] += _HEAD_START + _START_OF_FEW * max(0.0, 1.0 - rows.num_verdicts / _ENOUGH)
    likely = scipy.special.softmax(evidence)
    return likely, sum(share * weights for share, (weights, _) in zip(likely, fits, strict=True))


def _fit(columns: Values, label: Values, weight: Values, spread: Values) -> tuple[Values, float]:
    """Weights of the greatest posterior, (width,), and the logarithm of the hypothesis' evidence, by Laplace."""
    free = np.flatnonzero(spread)
    scaled, prior = columns[:, free] * spread[free], np.zeros(len(free))
    prior[:2] = _LEVEL / _LEVEL_SPREAD, 1.0 / _SLOPE_SPREAD
    coefficients, curvature, loss = fit_logistic(scaled, label, weight, prior)
    weights = np.zeros(len(spread))
    weights[free] = coefficients * spread[free]
    return weights, -loss - 0.5 * np.linalg.slogdet(curvature)[1]


def fit_logistic(columns: Values, label: Values, weight: Values, prior: Values) -> tuple[Values, Values, float]:
    """Coefficients of the greatest posterior, (c,), the curvature there, (c, c), and the loss, -log of the posterior.

    A priori coefficients are normal around `prior`, in units of its spread. Newton's method; a step that does not lead
    down is halved, without which a few verdicts of one kind make it swing for ever.
    """

    def loss(at: Values) -> float:
        logits = columns @ at
        return float(weight @ (np.logaddexp(0.0, logits) - label * logits) + 0.5 * np.sum((at - prior) ** 2))

    best, least = prior.copy(), loss(prior)
    for _ in range(50):
        chance = scipy.special.expit(columns @ best)
        curvature = (columns * (weight * chance * (1 - chance))[:, None]).T @ columns + np.eye(len(prior))
        step = np.linalg.solve(curvature, columns.T @ (weight * (chance - label)) + best - prior)
        while np.abs(step).max() > 1e-6 and (new := loss(best - step)) > least:
            step /= 2
        if np.abs(step).max() <= 1e-6:
            break
        best, least = best - step, new
    return best, curvature, least


def _out_of_fold(rows: _Rows, seed: int) -> Values:
    """The score of every verdict's node as learned from the other folds, (k,); either kind is spread over the folds."""
    rng, num_verdicts = np.random.default_rng(key(seed, _FOLDED)), rows.num_verdicts
    fold, out = np.empty(num_verdicts, np.int64), np.empty(num_verdicts)
    for kind in (0.0, 1.0):
        of_kind = np.flatnonzero(rows.label[:num_verdicts] == kind)
        fold[of_kind] = rng.permutation(len(of_kind)) % _FOLDS
    for each in np.unique(fold):
        held = np.flatnonzero(fold == each)
        kept = np.ones(len(rows.label), bool)
        kept[held] = False
        out[held] = rows.columns[held] @ _average(rows, kept)[1]
    return out


def _sentences(columns: _Columns, weights: Values) -> list[str]:
    slope, num_tails = weights[1], len(columns.double) - 1
    amount = "less than" if slope < 0.7 else "more than" if slope > 1.3 else "about as much as"
    said = [f"The label-free score counts {amount} before."]
    titles = [*(columns.inputs.titles or columns.inputs.ranks), "degree"]
    tails = weights[2 : 2 + 2 * num_tails].reshape(2, num_tails)
    by_size = np.argsort(-np.abs(tails).max(axis=0), kind="stable")[:_SAID_EACH]
    for at in by_size[np.abs(tails).max(axis=0)[by_size] >= _SAID]:
        upper, lower = tails[:, at]
        if at == len(titles) - 1:  # no evidence of the score
            few = "Few" if lower > abs(upper) else "Many"
            said.append(f"{few} neighbours: {'worse' if max(upper, lower) > 0 else 'better'}.")
            continue
        manner = "more than before" if upper > 0 else "less than before"
        manner = "the other way round: bad nodes have little of it" if lower > abs(upper) else manner
        said.append(f"Evidence of '{titles[at]}' counts {manner}.")
    width = columns.features.shape[1]
    names = columns.inputs.names or [f"component {i + 1}" for i in range(width)]
    of_attributes = weights[2 + 2 * num_tails : -1]  # own, of the neighbours, difference, distance from the middle
    forms = ("{0}", "{0} of the neighbours", "difference between {0} and that of the neighbours", "{0} far from usual")
    for at in np.argsort(-np.abs(of_attributes), kind="stable")[:_SAID_EACH]:
        if abs(of_attributes[at]) >= _SAID / 2:
            direction = "Larger" if of_attributes[at] > 0 else "Smaller"
            said.append(f"{direction} {forms[at // width].format(names[at % width])}: worse.")
    if weights[-1] >= _SAID:
        said.append("Neighbours of nodes that are known to be bad come earlier.")
    return said
