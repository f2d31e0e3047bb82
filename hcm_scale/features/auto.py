"""Features of mean 0 and variance about 1 from any columns, by rule and without labels.

| rule       | a column, or a group of columns, that                                  | becomes                      |
|------------|------------------------------------------------------------------------|------------------------------|
| constant   | holds one value                                                        | nothing                      |
| gap flag   | is named `NAME is null`                                                | 0 or 1, centred, times 1/4   |
| two values | holds two                                                              | 0 or 1, centred              |
| sparse     | is over 80% zeros, 100 such (21 where storage is sparse)               | 10 to 256 components of      |
|            |                                                                        | deviation 1                  |
| embedding  | is an entry of a vector, `NAME[17]`, each NAME by itself; or has like  | 64 components, all scaled    |
|            | deviation, 32 such, 3/4 of the dense ones, half without a heavy tail   | by one number                |
| heavy tail | has values too far out for a deviation to say much                     | normal scores, deviation 1   |
| standard   | is none of these                                                       | mean 0, deviation 1          |

This is `attributes.scale=auto`. Under `none` every column is standard, under `normal` of heavy tail, constant ones 0;
under `log1p`, and under `none` with `attributes.pca`, all are one sparse group, of log(1 + value) or as they are.

Survey. Rules are decided, and parts (parts.py) fitted, on evenly spaced rows, at most `MAX_ROWS` of them: a function of
the shape alone, and a hundred million rows cost what sixty thousand do. Columns are read a chunk at a time, as non-zero
values and a count of zeros, so sparse ones are not made dense.

Gaps. A table reader flags gaps by a column `NAME is null` beside `NAME`, `NAME=value` or `NAME#bucket`. A column is
surveyed without its gaps, and its features at gaps are 0, the mean. A flag is not divided by its deviation, which would
make a rare one huge; nor, for the same reason, are normal scores of a deviation below 1/2, which a column that is
nearly all one value has. Where a flag says that the node's type has no such column, both are 0, as if usual.

Groups. Sparse values first become presence, where each column has one value beside 0, or log(1 + value), where none is
negative. Where storage is sparse the group takes in every column that holds a zero, and all others (the common words of
a bag of words) where a hundred are mostly zero or over a hundred would be left, so that the table is not made dense.

What the rows of an edge table say of their ends (`rows, as payer`) is never taken for an embedding.

Components. How many of a sparse group tell neighbours from strangers differs from graph to graph, and the edges show
it without labels: of 10, 20, 32, 64, 128 and 256 components the `signal` is the chance that two neighbours are more
alike, by cosine, than the ends of two different edges. 20 it is, unless another number is clearly better; then the
smallest that is about as good as the best. Graphs of many nodes have a bound on the size of their features. Up to 2^14
rows or columns 20 or fewer are exact, of more the first of what was tried.

Rows outside the sample follow its curves, in proportion between two of its values; values more than the sample's range
beyond it are clipped there. Memory: the output (4 bytes n q), one block, the sample (at most 256 MiB dense) and twice
that for curves.
"""

import itertools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from hcm_scale.base.names import AS_END, GAP_SUFFIX, NO_COLUMN, VECTOR
from hcm_scale.features.components import fit_components
from hcm_scale.features.components import needed_bytes as components_bytes
from hcm_scale.features.parts import Curve, Part, Rotated, Singles, group_values, row_blocks, values_per_row
from hcm_scale.features.purify import Ends, neighbor_signal
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

MAX_ROWS = 1 << 16
_MIN_ROWS, _MAX_VALUES = 1 << 12, 1 << 26  # a wide dense table is sampled in fewer rows
_FEW_ROWS = 1 << 10  # for an expected width
_MOSTLY_ZERO = 0.8  # a share of zeros beyond this
_SQUASHED = 5.0  # heavy tail: the deviation, over that of a normal column with the same quartiles; lognormal 2
_COMPONENTS = {"sparse": 20, "embedding": 64}
_CHOICES = (10, 20, 32, 64, 128, 256)  # components of a sparse group
_CLEARLY, _ABOUT = 0.005, 0.002  # differences of the signal
_MAX_FEATURES = 1 << 26  # values of all features, beyond 20 components
_GAP_WEIGHT = 0.25
_LEAST_DEVIATION = 0.5  # that normal scores are divided by
_MIN_SPARSE = {False: 100, True: 21}  # by whether storage is sparse: 20 columns have nothing to be reduced to
_MAX_SINGLE = 100  # columns of sparse storage that are kept one by one
_MIN_EMBEDDING, _LIKE, _LIKE_SHARE = 32, 10.0, 0.75
_SURVEYED_VALUES = 1 << 18  # that are surveyed at a time
_EXACT_SIDE = 1 << 14  # rows or columns up to which the usual number of components is exact
_MAX_LETTERS = 64  # of the names in a line of the log
_MAX_LINES = 24  # tables with more columns are reported rule by rule

_SINGLE = {  # rules of columns that are kept one by one: what is seen, what is done
    "gap flag": ("flags gaps", f"0 or 1, centred, times {_GAP_WEIGHT}"),
    "two values": ("two values", "0 or 1, centred"),
    "heavy tail": ("heavy tail", "normal scores, deviation 1"),
    "standard": ("no heavy tail", "mean 0, deviation 1"),
}


def fit_parts(
    x: Attributes, scale: str, pca: int | None, columns: tuple[str, ...], ends: Ends | None = None
) -> tuple[tuple[Part, ...], tuple[str, ...], dict[str, Any]]:
    """The parts that make features by the rules above, the features' names, and a record of what was decided.

    `ends` are those of some edges, which choose the number of components; None: 20.

    >>> from hcm_scale.features.parts import apply_parts
    >>> x = np.array([[0, 5], [1, 5]], np.float32)
    >>> parts, names, _ = fit_parts(x, "auto", None, ("flag", "same"))
    >>> apply_parts(parts, x).tolist(), names
    ([[-0.5], [0.5]], ('flag',))
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    drawn = sample(x)
    by_column = _by_column(drawn)
    survey, gaps = _survey(by_column, names)
    decision = _decide(survey, names, isinstance(x, SparseRows)) if scale == "auto" else _one_rule(scale, pca, survey)
    singles = _fit_singles(by_column, decision, survey, gaps)
    rotated: dict[str, Rotated] = {}
    signals: dict[int, float] = {}
    for rule in decision.groups:
        if rule == "sparse" and pca is None and ends is not None:
            rotated[rule], signals = _choose_components(drawn, decision, survey, x, ends)
        else:
            rotated[rule] = _fit_rotated(drawn, decision, survey, rule, pca or _COMPONENTS[_group_of(rule)])
        if pca is not None and (width := rotated[rule].width) < pca:
            log.info("attributes.pca=%d is cut to %d, the rank of its columns", pca, width)
    if pca is not None and not rotated:
        log.warning("attributes.pca=%s has no effect: no group of columns is reduced to components", pca)
    parts: tuple[Part, ...] = (*([singles] if singles.width else []), *rotated.values())
    widths = {rule: part.width for rule, part in rotated.items()}
    prefixes = {rule: f"{rule}_" if len(widths) > 1 else "" for rule in widths}
    components = [f"{prefixes[rule]}pc{k}" for rule, width in widths.items() for k in range(width)]
    record = {
        "sampled_rows": drawn.shape[0],
        "columns": _report(decision, survey, names, widths),
        "rules": [[rule, len(list(group))] for rule, group in itertools.groupby(decision.rules)],
        "left_out": [names[k] for k in decision.columns("constant")],
        "num_constant": int(survey.constant.sum()),
        "signal": {str(size): round(signal, 4) for size, signal in signals.items()},
        "explained_variance": {rule: part.components.explained for rule, part in rotated.items()},
    }
    return parts, (*(names[k] for k in singles.columns), *components), record


def expected_width(x: Attributes, scale: str, pca: int | None, columns: tuple[str, ...]) -> int:
    """About how many features `fit_parts` will make, judged by a few rows; of sparse groups as many as it may.

    >>> expected_width(np.array([[0, 5], [1, 5]], np.float32), "auto", None, ("flag", "same"))
    1
    """
    names, few = columns or tuple(f"a{k}" for k in range(x.shape[1])), _by_column(sample(x, _FEW_ROWS))
    survey, _ = _survey(few, names)
    decision = _decide(survey, names, isinstance(x, SparseRows)) if scale == "auto" else _one_rule(scale, pca, survey)
    most = _COMPONENTS | {"sparse": _most_components(x.shape[0])}
    groups = ((len(decision.columns(rule)), most[_group_of(rule)] if pca is None else pca) for rule in decision.groups)
    return max(1, len(decision.columns(*_SINGLE)) + sum(min(pair) for pair in groups))


def sample(x: Attributes, most: int = MAX_ROWS) -> Attributes:
    """Evenly spaced rows of x in float32, at most `most`, all where there are few; sparse rows stay sparse.

    >>> sample(np.arange(6, dtype=np.float32)[:, None]).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    num_rows = min(most, sampled_rows(values_per_row(x)))
    if x.shape[0] <= num_rows:
        return x if isinstance(x, SparseRows) else np.asarray(x, np.float32)
    rows = np.arange(num_rows) * x.shape[0] // num_rows
    return SparseRows.of(x.csr()[rows]) if isinstance(x, SparseRows) else np.asarray(x[rows], np.float32)


def sampled_rows(width: int) -> int:
    """Rows of a sample at most, where a row holds `width` values."""
    return min(MAX_ROWS, max(_MIN_ROWS, _MAX_VALUES // max(1, width)))


def _by_column(x: Attributes) -> Any:
    """A sample laid out for reading by column: a scipy CSC array without stored zeros, or a dense (d, rows)."""
    if not isinstance(x, SparseRows):
        return np.ascontiguousarray(x.T)
    by_column = x.csr().tocsc()
    by_column.eliminate_zeros()
    return by_column


@dataclass(frozen=True, eq=False)
class Survey:
    """Every column over the rows of the sample that have a value, (d,) each."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    zeros: NDArray[np.float64]  # share of zeros
    two_values: NDArray[np.bool_]
    heavy: NDArray[np.bool_]

    @property
    def constant(self) -> NDArray[np.bool_]:
        return self.low == self.high


@dataclass(frozen=True)
class Decision:
    """The rule of every column, and what is done with the values of the sparse group before it is reduced."""

    rules: tuple[str, ...]
    sparse_values: str = "as they are"

    @property
    def groups(self) -> list[str]:
        """The rules of columns that are reduced together, the sparse ones first."""
        groups = {rule for rule in {*self.rules} if _group_of(rule) in _COMPONENTS}
        return sorted(groups, key=lambda rule: (rule != "sparse", rule))

    def columns(self, *rules: str) -> list[int]:
        return [k for k, rule in enumerate(self.rules) if rule in rules]


def _survey(by_column: Any, names: tuple[str, ...]) -> tuple[Survey, NDArray[np.int64]]:
    """A survey of every column of a sample, and which column flags its gaps."""
    gaps, is_flag = gap_columns(names, len(names)), np.array([name.endswith(GAP_SUFFIX) for name in names])
    surveyed: list[tuple[NDArray[Any], ...]] = []
    if not isinstance(by_column, np.ndarray):
        starts, num_rows = by_column.indptr.astype(np.int64), by_column.shape[0]
        borders = np.searchsorted(starts, np.arange(0, starts[-1], _SURVEYED_VALUES))
        for first, last in itertools.pairwise(np.unique([0, *borders, len(names)]).tolist()):
            values = by_column.data[starts[first] : starts[last]].astype(np.float64)
            counts = np.diff(starts[first : last + 1])
            surveyed.append(survey_columns(values, counts, np.full(len(counts), num_rows)))
    else:
        step = max(1, _SURVEYED_VALUES // max(1, by_column.shape[1]))
        for first in range(0, len(names), step):
            block, own = by_column[first : first + step], slice(first, first + step)
            has_value = np.where(is_flag[own, None], block != NO_COLUMN, True)
            gapped = np.flatnonzero(gaps[own] >= 0)
            has_value[gapped] &= by_column[gaps[own][gapped]] == 0
            stored = has_value & (block != 0)
            values = block[stored].astype(np.float64)
            surveyed.append(survey_columns(values, stored.sum(axis=1), has_value.sum(axis=1)))
    return Survey(*map(np.concatenate, zip(*surveyed, strict=True))), gaps


def survey_columns(
    stored: NDArray[np.float64], counts: NDArray[np.int64], num_rows: NDArray[np.int64]
) -> tuple[NDArray[Any], ...]:
    """The fields of a `Survey` of columns that hold so many non-zero values, `stored` one after the other, and rows.

    >>> [field.tolist() for field in survey_columns(np.array([2.0, 2.0]), np.array([2]), np.array([4]))]
    [[0.0], [2.0], [1.0], [1.0], [0.5], [True], [False]]
    """
    starts, has_values = np.cumsum(counts) - counts, counts > 0
    num_zeros, divisor = num_rows - counts, np.maximum(1, num_rows)

    def reduce(combine: np.ufunc, values: NDArray[Any], start: Any) -> NDArray[Any]:
        out = np.full(len(counts), start)
        if len(values):
            out[has_values] = combine.reduceat(values, starts[has_values])
        return out

    at_zero = np.where((num_zeros > 0) | (num_rows == 0), 0.0, np.nan)
    low = np.fmin(reduce(np.minimum, stored, np.inf), at_zero)
    high = np.fmax(reduce(np.maximum, stored, -np.inf), at_zero)
    mean = reduce(np.add, stored, 0.0) / divisor
    squares = reduce(np.add, (stored - np.repeat(mean, counts)) ** 2, 0.0) + num_zeros * mean**2
    at_ends = (stored == np.repeat(low, counts)) | (stored == np.repeat(high, counts))
    two_values = (low < high) & reduce(np.logical_and, at_ends, True) & ((num_zeros == 0) | (low == 0) | (high == 0))
    deviation = np.sqrt(squares / divisor)
    heavy = (low < high) & (num_zeros > _MOSTLY_ZERO * num_rows)
    others = np.flatnonzero((low < high) & ~heavy)
    if len(others):
        spread = _quartile_distance(stored, starts[others], counts[others], num_rows[others])
        heavy[others] = deviation[others] > _SQUASHED * spread / 1.349  # all but a few would be squashed into one point
    return low, high, mean, deviation, num_zeros / divisor, two_values, heavy


def _quartile_distance(
    stored: NDArray[np.float64], starts: NDArray[np.int64], counts: NDArray[np.int64], num_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """From the lower to the upper quartile of columns that hold non-zero values from `starts` on, and zeros."""
    out = np.empty(len(counts))
    for size in np.unique(num_rows):
        which = np.flatnonzero(num_rows == size)
        values = np.zeros((len(which), size))
        for row, k in zip(values, which, strict=True):
            row[: counts[k]] = stored[starts[k] : starts[k] + counts[k]]
        lower, upper = np.quantile(values, (0.25, 0.75), axis=1)
        out[which] = upper - lower
    return out


def _values_of(by_column: Any, column: int, gap: int) -> tuple[NDArray[np.float64], int]:
    """The non-zero values of one column, and how many rows have a value at all; `gap` is the column of its gaps."""
    if not isinstance(by_column, np.ndarray):
        return by_column.data[slice(*by_column.indptr[column : column + 2])].astype(np.float64), by_column.shape[0]
    values = by_column[column] if gap < 0 else by_column[column][by_column[gap] == 0]
    return values[values != 0].astype(np.float64), len(values)


def gap_columns(columns: tuple[str, ...], num_columns: int) -> NDArray[np.int64]:
    """For every column the number of the column that flags its gaps, -1 where none does.

    >>> gap_columns(("age", "age is null", "land=DE", "land=FR", "land is null", "size"), 6).tolist()
    [1, -1, 4, 4, -1, -1]
    """
    flags = {name.removesuffix(GAP_SUFFIX): k for k, name in enumerate(columns) if name.endswith(GAP_SUFFIX)}
    out = np.full(num_columns, -1, np.int64)
    for k, name in enumerate(columns if flags else ()):
        bases = (name, *(name[:i] for i, letter in enumerate(name) if letter in "=#["))
        out[k] = next((flags[base] for base in bases if base in flags), -1)
    return out


def _group_of(rule: str) -> str:
    """The rule of a group without the name of its vector."""
    return rule.partition(" of ")[0]


def _one_rule(scale: str, pca: int | None, survey: Survey) -> Decision:
    """The same rule for every column."""
    is_group = scale == "log1p" or (scale == "none" and pca is not None)
    rule = "sparse" if is_group else {"none": "standard", "normal": "heavy tail"}[scale]
    return Decision((rule,) * len(survey.low), "log1p" if scale == "log1p" else "as they are")


def _decide(survey: Survey, names: Sequence[str], is_sparse: bool) -> Decision:
    """The rule of every column by what it holds."""
    rules = np.where(survey.heavy, "heavy tail", "standard").astype(object)
    rules[survey.two_values] = "two values"
    rules[survey.two_values & np.array([name.endswith(GAP_SUFFIX) for name in names])] = "gap flag"
    rules[survey.constant] = "constant"
    all_names = {*names}
    for k, name in enumerate(names):
        if (vector := re.match(VECTOR, name)) and f"{vector[1]}[1]" in all_names:
            rules[k] = f"embedding of {vector[1]}"
    group = _sparse_group(survey, rules, is_sparse)
    rules[group] = "sparse"
    rules[_embedding_group(survey, rules, np.array([AS_END in name for name in names]))] = "embedding"
    if (survey.two_values & ((survey.low == 0) | (survey.high == 0)))[group].all():
        return Decision(tuple(rules), "presence")
    return Decision(tuple(rules), "log1p" if (survey.low[group] >= 0).all() else "as they are")


def _sparse_group(survey: Survey, rules: NDArray[Any], is_sparse: bool) -> NDArray[np.int64]:
    varied = np.flatnonzero(np.isin(rules, ("two values", "heavy tail", "standard")))
    mostly_zero, with_zeros = varied[survey.zeros[varied] > _MOSTLY_ZERO], varied[survey.zeros[varied] > 0]
    if is_sparse and (len(mostly_zero) >= _MIN_SPARSE[False] or len(varied) - len(with_zeros) > _MAX_SINGLE):
        return varied
    return (with_zeros if is_sparse else mostly_zero) if len(mostly_zero) >= _MIN_SPARSE[is_sparse] else varied[:0]


def _embedding_group(survey: Survey, rules: NDArray[Any], of_edges: NDArray[np.bool_]) -> NDArray[np.int64]:
    is_dense = np.isin(rules, ("standard", "heavy tail")) & (survey.zeros < _MOSTLY_ZERO) & ~of_edges
    dense = np.flatnonzero(is_dense)
    if len(dense) < _MIN_EMBEDDING:
        return dense[:0]
    median = np.sort(survey.deviation[dense])[len(dense) // 2]
    alike = dense[survey.deviation[dense] <= _LIKE * median]
    num_light = int((~survey.heavy[alike]).sum())
    is_group = len(alike) >= max(_MIN_EMBEDDING, _LIKE_SHARE * len(dense)) and 2 * num_light >= len(alike)
    return alike if is_group else dense[:0]


def _fit_singles(by_column: Any, decision: Decision, survey: Survey, gaps: NDArray[np.int64]) -> Singles:
    """The part that keeps columns one by one: those under the rules of _SINGLE."""
    chosen = np.array(decision.columns(*_SINGLE), np.int64)
    position = {int(column): k for k, column in enumerate(chosen)}
    low, high = survey.low[chosen], survey.high[chosen]
    rules = np.array(decision.rules, object)[chosen]
    span = np.where(rules == "standard", survey.deviation[chosen], high - low)
    weight = np.where(rules == "gap flag", _GAP_WEIGHT, 1.0)
    factor = np.divide(weight, span, out=np.zeros(len(chosen)), where=span > 0)
    heavy = decision.columns("heavy tail")
    curves = {position[k]: _score_curve(*_values_of(by_column, k, int(gaps[k]))) for k in heavy}
    flagged: dict[int, list[int]] = {}
    for column, k in position.items():
        if int(gaps[column]) in position:
            flagged.setdefault(position[int(gaps[column])], []).append(k)
    flags = {int(flag) for flag in gaps} - {-1}
    lacking = {k for k in flags if isinstance(by_column, np.ndarray) and (by_column[k] == NO_COLUMN).any()}
    for column, k in position.items():
        flag = column if column in flags else int(gaps[column])
        if flag in lacking:
            flagged.setdefault(~flag, []).append(k)
    return Singles(chosen, 2 * low - high, 2 * high - low, survey.mean[chosen], factor, curves, flagged)


def _score_curve(stored: NDArray[np.float64], num_rows: int) -> Curve:
    """Normal scores of the distinct values of a column that holds `stored` beside zeros, of mean 0 and deviation 1.

    The value of rank r among n gets the (r - 1/2) / n quantile; equal values share the mean of their ranks.
    """
    values, counts = np.unique(np.concatenate([stored, np.zeros(num_rows - len(stored))]), return_counts=True)
    scores = scipy.special.ndtri((np.cumsum(counts) - 0.5 * counts) / counts.sum())
    scores -= np.average(scores, weights=counts)
    deviation = np.sqrt(np.average(scores**2, weights=counts))
    return values.astype(np.float32), (scores / max(deviation, _LEAST_DEVIATION)).astype(np.float32)


def _fit_rotated(drawn: Attributes, decision: Decision, survey: Survey, rule: str, num_components: int) -> Rotated:
    """The part that projects the columns under one rule: sparse components are divided each by its own deviation."""
    chosen = np.array(decision.columns(rule), np.int64)
    taken_as = decision.sparse_values if rule == "sparse" else "as they are"
    ends = np.where(survey.high != 0, survey.high, survey.low)[chosen]
    values = group_values(taken_as, ends)
    fitted = fit_components(lambda: (values(block[:, chosen]) for block in row_blocks(drawn)), num_components)
    variances = fitted.variances * ((drawn.shape[0] - 1) / drawn.shape[0])
    divisor = np.sqrt(variances if rule == "sparse" else np.full(len(variances), variances.mean()))
    return Rotated(chosen, taken_as, ends, fitted, 1.0 / np.where(divisor > 0, divisor, 1.0))


def _choose_components(
    drawn: Attributes, decision: Decision, survey: Survey, x: Attributes, ends: Ends
) -> tuple[Rotated, dict[int, float]]:
    """The sparse group with as many components as the edges choose, and the signal of every number tried."""
    usual = _COMPONENTS["sparse"]
    part = _fit_rotated(drawn, decision, survey, "sparse", _most_components(x.shape[0]))
    nodes, numbers = np.unique(np.concatenate(ends), return_inverse=True)  # few nodes are ends of many edges
    left, right = np.split(_features_of(part, x, nodes)[numbers], 2)
    sizes = [size for size in _CHOICES if size <= part.width]
    signals = {size: neighbor_signal(left[:, :size], right[:, :size]) for size in sizes}
    size = _choose_size(signals, min(usual, part.width))
    if size <= usual < part.width and min(drawn.shape[0], len(part.columns)) <= _EXACT_SIDE:
        part = _fit_rotated(drawn, decision, survey, "sparse", usual)
    fitted = part.components
    fewer = replace(fitted, loadings=fitted.loadings[:, :size], variances=fitted.variances[:size])
    return replace(part, components=fewer, factor=part.factor[:size]), signals


def _most_components(num_rows: int) -> int:
    return max(_COMPONENTS["sparse"], min(_CHOICES[-1], _MAX_FEATURES // num_rows))


def _choose_size(signals: dict[int, float], usual: int) -> int:
    """The number of components with a signal about as large as the largest; `usual` unless that is clearly larger.

    >>> _choose_size({10: 0.543, 20: 0.542, 32: 0.541}, 20), _choose_size({20: 0.52, 64: 0.599, 128: 0.6}, 20)
    (20, 64)
    """
    largest = max(signals.values(), default=0.0)
    if largest <= signals.get(usual, largest) + _CLEARLY:
        return usual
    return next(size for size, signal in signals.items() if signal >= largest - _ABOUT)


def _features_of(part: Rotated, x: Attributes, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
    rows = SparseRows.of(x.csr()[nodes]) if isinstance(x, SparseRows) else x[nodes]
    return np.concatenate([part.apply(block).astype(np.float32) for block in row_blocks(rows)])


def _report(decision: Decision, survey: Survey, names: Sequence[str], widths: dict[str, int]) -> list[dict[str, Any]]:
    """The decision as rows of a table: which columns, how many, what was seen, what was done.

    A row per column where there are few, else a row per rule; `widths` are the components of each group.
    """
    groups = []
    for rule in dict.fromkeys(decision.rules):
        together = len(names) > _MAX_LINES or rule in decision.groups
        groups += [decision.columns(rule)] if together else [[k] for k in decision.columns(rule)]
    rows = []
    for columns in sorted(groups):
        rule, low, high = decision.rules[columns[0]], survey.low[columns].min(), survey.high[columns].max()
        what, done = _SINGLE.get(rule, ("constant", "left out"))
        if rule == "sparse":
            what = f"{100 * survey.zeros[columns].mean():.1f}% zeros"
            done = f"{decision.sparse_values}, {widths[rule]} components, each of deviation 1"
        elif rule in widths:
            what, done = "no heavy tail", f"{widths[rule]} components, divided by one number"
        shown = f"{what}, {low:.4g}" if low == high else f"{what}, {low:.4g} to {high:.4g}"
        rows.append(
            {"columns": _named(columns, names), "count": len(columns), "rule": rule, "seen": shown, "done": done}
        )
    return rows


def _named(columns: Sequence[int], names: Sequence[str]) -> str:
    """Columns by name, many of them by the first and the last or by the first three.

    >>> _named([0, 1, 2, 3], "abcd"), _named([0, 1, 3, 4], "abcde"), _named([2], "abc")
    ('4 columns a .. d', '4 columns a; b; d; ...', 'c')
    """
    if len(columns) == 1:
        return names[columns[0]]
    if columns[-1] - columns[0] + 1 == len(columns):
        return f"{len(columns):,} columns {names[columns[0]]} .. {names[columns[-1]]}"
    return f"{len(columns):,} columns {'; '.join(names[k] for k in columns[:3])}{'; ...' if len(columns) > 3 else ''}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of a record's "columns" as text; long names are cut."""
    names = (row["columns"] for row in rows)
    short = [name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 3]}..." for name in names]
    width, seen_width = max(map(len, short)), max(len(row["seen"]) for row in rows)
    return "\n".join(
        f"  {name:<{width}}  {row['seen']:<{seen_width}}  {row['done']}" for name, row in zip(short, rows, strict=True)
    )


def needed_bytes(num_rows: int, num_columns: int, num_features: int, *, num_values: int, is_sparse: bool) -> int:
    """Of `fit_parts`: a sample of the rows, twice if it is not all of them, and components where there are any."""
    num_drawn = min(num_rows, sampled_rows(num_values // max(1, num_rows)))
    drawn = num_values * num_drawn // max(1, num_rows)
    held = (16 if is_sparse else 4) * drawn * (2 if num_drawn < num_rows else 1)
    if num_features >= num_columns:
        return held
    return held + components_bytes(num_drawn, num_columns, num_features, num_values=drawn, is_sparse=is_sparse)
