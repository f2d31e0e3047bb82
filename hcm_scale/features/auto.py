"""`attributes.scale=auto`: features of mean 0 and variance about 1 from any columns, by rule and without labels.

| rule       | a column, or a group of columns, that                                  | becomes                      |
|------------|------------------------------------------------------------------------|------------------------------|
| constant   | holds one value                                                        | nothing                      |
| gap flag   | is named `NAME is null`                                                | 0 or 1, centred, times 1/4   |
| two values | holds two                                                              | 0 or 1, centred              |
| sparse     | is over 80% zeros, 100 such (21 where storage is sparse)               | 10 to 256 components of      |
|            |                                                                        | deviation 1                  |
| embedding  | is a place in a vector, `NAME[17]`, each NAME by itself; or has a like | 64 components, all scaled    |
|            | deviation, 32 such, 3/4 of the dense ones, half without a heavy tail   | by one number                |
| heavy tail | has values too far out for a deviation to say much                     | normal scores, deviation 1   |
| standard   | is none of these                                                       | mean 0, deviation 1          |

Survey. Rules are decided, and parts (parts.py) fitted, on evenly spaced rows, at most `MAX_ROWS` of them: a function of
the shape alone, and a hundred million rows cost what sixty thousand do. Columns are read one at a time, as non-zero
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
smallest that is about as good as the best. Graphs of many nodes have a bound on the size of their features.

Rows outside the sample follow its curves, in proportion between two of its values; values more than the sample's range
beyond it are clipped there. Memory: the output (4 bytes n q), one block, the sample (at most 256 MiB dense) and twice
that for curves.
"""

import itertools
import logging
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.names import AS_END, GAP_SUFFIX, NO_COLUMN, VECTOR
from hcm_scale.features.parts import (
    Curve,
    Part,
    Rotated,
    Singles,
    fit_components,
    group_values,
    rank_quantiles,
    row_blocks,
    values_per_row,
)
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
_MAX_LETTERS = 64  # of the names in a line of the log
_MAX_LINES = 24  # tables with more columns are reported rule by rule

_SINGLE = {  # rules of columns that are kept one by one: what is seen, what is done
    "gap flag": ("flags gaps", f"0 or 1, centred, times {_GAP_WEIGHT}"),
    "two values": ("two values", "0 or 1, centred"),
    "heavy tail": ("heavy tail", "normal scores, deviation 1"),
    "standard": ("no heavy tail", "mean 0, deviation 1"),
}


def fit_automatic(
    x: Attributes, pca: int | None, columns: tuple[str, ...], ends: Ends | None = None
) -> tuple[tuple[Part, ...], tuple[str, ...], dict[str, Any]]:
    """The parts that make features by the rules above, the features' names, and a record of what was decided.

    `ends` are those of some edges, which choose the number of components; None: 20.

    >>> from hcm_scale.features.parts import apply_parts
    >>> x = np.array([[0, 5], [1, 5]], np.float32)
    >>> parts, names, _ = fit_automatic(x, None, ("flag", "same"))
    >>> apply_parts(parts, x).tolist(), names
    ([[-0.5], [0.5]], ('flag',))
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    drawn = sample(x)
    by_column = _by_column(drawn)
    seen, gaps, decision = _survey(by_column, names, isinstance(x, SparseRows))
    singles = _fit_singles(by_column, decision, seen, gaps)
    asked = {rule: pca or _COMPONENTS[_group_of(rule)] for rule in decision.groups}
    rotated = {rule: _fit_rotated(drawn, decision, seen, rule, size) for rule, size in asked.items()}
    for part in rotated.values():
        if pca is not None and part.width < pca:
            log.info("attributes.pca=%d is cut to %d, the rank of its columns", pca, part.width)
    signals: dict[int, float] = {}
    if "sparse" in rotated and pca is None and ends is not None:
        rotated["sparse"], signals = _choose_components(drawn, decision, seen, rotated["sparse"], x, ends)
    if pca is not None and not rotated:
        log.warning("attributes.pca=%s has no effect: no group of columns is reduced to components", pca)
    parts: tuple[Part, ...] = (*([singles] if singles.width else []), *rotated.values())
    widths = {rule: part.width for rule, part in rotated.items()}
    prefixes = {rule: f"{rule}_" if len(widths) > 1 else "" for rule in widths}
    components = [f"{prefixes[rule]}pc{k}" for rule, width in widths.items() for k in range(width)]
    record = {
        "sampled_rows": drawn.shape[0],
        "columns": _report(decision, seen, names, widths),
        "rules": [[rule, len(list(group))] for rule, group in itertools.groupby(decision.rules)],
        "left_out": [names[k] for k in decision.columns("constant")],
        "signal": {str(size): round(signal, 4) for size, signal in signals.items()},
        "explained_variance": {rule: part.components.explained for rule, part in rotated.items()},
    }
    return parts, (*(names[k] for k in singles.columns), *components), record


def expected_width(x: Attributes, pca: int | None, columns: tuple[str, ...]) -> int:
    """About how many features `fit_automatic` will make, judged by a few rows; of sparse groups as many as it may.

    >>> expected_width(np.array([[0, 5], [1, 5]], np.float32), None, ("flag", "same"))
    1
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    _, _, decision = _survey(_by_column(sample(x, _FEW_ROWS)), names, isinstance(x, SparseRows))
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
    """A sample laid out for reading by column: a scipy CSC array, or a dense (d, rows)."""
    return x.csr().tocsc() if isinstance(x, SparseRows) else np.ascontiguousarray(x.T)


@dataclass(frozen=True)
class ColumnSurvey:
    """One column over the rows of the sample that have a value."""

    low: float
    high: float
    mean: float
    deviation: float
    zeros: float  # share of zeros
    two_values: bool
    heavy: bool

    @property
    def constant(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class Decision:
    """The rule of every column, and what is done with the values of the sparse group before it is reduced."""

    rules: tuple[str, ...]
    sparse_values: str = "as they are"

    @property
    def groups(self) -> list[str]:
        """The rules of columns that are reduced together, the sparse ones first."""
        return sorted({rule for rule in self.rules if _group_of(rule) in _COMPONENTS}, key=lambda r: (r != "sparse", r))

    def columns(self, *rules: str) -> list[int]:
        return [k for k, rule in enumerate(self.rules) if rule in rules]


def _survey(
    by_column: Any, names: tuple[str, ...], is_sparse: bool
) -> tuple[list[ColumnSurvey], NDArray[np.int64], Decision]:
    """A survey of every column of a sample, which column flags its gaps, and the rules that follow."""
    gaps = _gap_columns(names, len(names))
    flags = [k for k, name in enumerate(names) if name.endswith(GAP_SUFFIX)]
    seen = [survey_column(*_values_of(by_column, k, int(gap), k in flags)) for k, gap in enumerate(gaps)]
    return seen, gaps, _decide(seen, flags, is_sparse, names)


def _values_of(by_column: Any, column: int, gap: int = -1, is_flag: bool = False) -> tuple[NDArray[np.float64], int]:
    """The non-zero values of one column, and how many rows have a value at all; `gap` is the column of its gaps."""
    if sparse.issparse(by_column):
        values, num_rows = by_column.data[by_column.indptr[column] : by_column.indptr[column + 1]], by_column.shape[0]
    else:
        values = by_column[column] if gap < 0 else by_column[column][by_column[gap] == 0]
        values = values[values != NO_COLUMN] if is_flag else values
        num_rows = len(values)
    return values[values != 0].astype(np.float64), num_rows


def survey_column(stored: NDArray[np.float64], num_rows: int) -> ColumnSurvey:
    """The survey of a column that holds the non-zero values `stored` in `num_rows` rows.

    >>> survey_column(np.array([2.0, 2.0]), 4)
    ColumnSurvey(low=0.0, high=2.0, mean=1.0, deviation=1.0, zeros=0.5, two_values=True, heavy=False)
    """
    num_zeros = num_rows - len(stored)
    ends = [*([stored.min(), stored.max()] if len(stored) else []), *([0.0] if num_zeros or not num_rows else [])]
    low, high, mean = float(min(ends)), float(max(ends)), float(stored.sum()) / max(1, num_rows)
    squares = float(((stored - mean) ** 2).sum()) + num_zeros * mean**2
    at_ends = low < high and bool(((stored == low) | (stored == high)).all())
    two_values = at_ends and (not num_zeros or 0.0 in (low, high))
    deviation, zeros = math.sqrt(squares / max(1, num_rows)), num_zeros / max(1, num_rows)
    return ColumnSurvey(
        low, high, mean, deviation, zeros, two_values, low < high and _is_heavy(stored, num_zeros, deviation)
    )


def _is_heavy(stored: NDArray[np.float64], num_zeros: int, deviation: float) -> bool:
    """Whether a few values lie so far out that dividing by the deviation would squash all others into one point."""
    if num_zeros > _MOSTLY_ZERO * (len(stored) + num_zeros):
        return True
    values = np.concatenate([stored, np.zeros(num_zeros)])
    lower, upper = np.quantile(values, (0.25, 0.75))
    return bool(deviation > _SQUASHED * (upper - lower) / 1.349)


def _gap_columns(columns: tuple[str, ...], num_columns: int) -> NDArray[np.int64]:
    """For every column the number of the column that flags its gaps, -1 where none does.

    >>> _gap_columns(("age", "age is null", "land=DE", "land=FR", "land is null", "size"), 6).tolist()
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


def _decide(seen: Sequence[ColumnSurvey], flags: Iterable[int], is_sparse: bool, names: Sequence[str] = ()) -> Decision:
    """The rule of every column; `flags` are the columns that flag gaps."""
    known_flags, known_names = set(flags), set(names)
    rules = [_single_rule(one, k in known_flags) for k, one in enumerate(seen)]
    for k, name in enumerate(names):
        if (place := re.match(VECTOR, name)) and f"{place[1]}[1]" in known_names:
            rules[k] = f"embedding of {place[1]}"
    for k in _sparse_group(seen, rules, is_sparse):
        rules[k] = "sparse"
    alone = {k for k, name in enumerate(names) if AS_END in name}
    for k in _embedding_group(seen, ["of edges" if k in alone else rule for k, rule in enumerate(rules)]):
        rules[k] = "embedding"
    group = [seen[k] for k, rule in enumerate(rules) if rule == "sparse"]
    if all(one.two_values and 0.0 in (one.low, one.high) for one in group):
        return Decision(tuple(rules), "presence")
    return Decision(tuple(rules), "log1p" if all(one.low >= 0 for one in group) else "as they are")


def _single_rule(seen: ColumnSurvey, is_flag: bool) -> str:
    if seen.constant:
        return "constant"
    if seen.two_values:
        return "gap flag" if is_flag else "two values"
    return "heavy tail" if seen.heavy else "standard"


def _sparse_group(seen: Sequence[ColumnSurvey], rules: Sequence[str], is_sparse: bool) -> list[int]:
    varied = [k for k, rule in enumerate(rules) if rule in ("two values", "heavy tail", "standard")]
    mostly_zero = [k for k in varied if seen[k].zeros > _MOSTLY_ZERO]
    with_zeros = [k for k in varied if seen[k].zeros]
    if is_sparse and (len(mostly_zero) >= _MIN_SPARSE[False] or len(varied) - len(with_zeros) > _MAX_SINGLE):
        return varied
    return (with_zeros if is_sparse else mostly_zero) if len(mostly_zero) >= _MIN_SPARSE[is_sparse] else []


def _embedding_group(seen: Sequence[ColumnSurvey], rules: Sequence[str]) -> list[int]:
    dense = [k for k, rule in enumerate(rules) if rule in ("standard", "heavy tail") and seen[k].zeros < _MOSTLY_ZERO]
    if len(dense) < _MIN_EMBEDDING:
        return []
    median = sorted(seen[k].deviation for k in dense)[len(dense) // 2]
    like = [k for k in dense if seen[k].deviation <= _LIKE * median]
    light = [k for k in like if not seen[k].heavy]
    return like if len(like) >= max(_MIN_EMBEDDING, _LIKE_SHARE * len(dense)) and 2 * len(light) >= len(like) else []


def _fit_singles(by_column: Any, decision: Decision, seen: list[ColumnSurvey], gaps: NDArray[np.int64]) -> Singles:
    """The part that keeps columns one by one: those under the rules of _SINGLE."""
    chosen = decision.columns(*_SINGLE)
    place_of = {column: place for place, column in enumerate(chosen)}
    low, high, mean = (np.array([getattr(seen[k], name) for k in chosen]) for name in ("low", "high", "mean"))
    factor = np.array([_factor(decision.rules[k], seen[k]) for k in chosen])
    heavy = decision.columns("heavy tail")
    curves = {place_of[k]: _score_curve(*_values_of(by_column, k, int(gaps[k]))) for k in heavy}
    flagged: dict[int, list[int]] = {}
    for column, place in place_of.items():
        if int(gaps[column]) in place_of:
            flagged.setdefault(place_of[int(gaps[column])], []).append(place)
    flags = {int(flag) for flag in gaps} - {-1}
    lacking = {k for k in flags if not sparse.issparse(by_column) and (by_column[k] == NO_COLUMN).any()}
    for column, place in place_of.items():
        flag = column if column in flags else int(gaps[column])
        if flag in lacking:
            flagged.setdefault(~flag, []).append(place)
    span = high - low
    return Singles(np.array(chosen, np.int64), low - span, high + span, mean, factor, curves, flagged)


def _factor(rule: str, seen: ColumnSurvey) -> float:
    if rule == "standard":
        return 1.0 / seen.deviation
    return (_GAP_WEIGHT if rule == "gap flag" else 1.0) / (seen.high - seen.low)


def _score_curve(stored: NDArray[np.float64], num_rows: int) -> Curve:
    """Normal scores of the distinct values of a column that holds `stored` beside zeros, of mean 0 and deviation 1."""
    values, counts = np.unique(np.concatenate([stored, np.zeros(num_rows - len(stored))]), return_counts=True)
    scores = rank_quantiles(counts)
    scores -= np.average(scores, weights=counts)
    deviation = np.sqrt(np.average(scores**2, weights=counts))
    return values.astype(np.float32), (scores / max(deviation, _LEAST_DEVIATION)).astype(np.float32)


def _fit_rotated(
    drawn: Attributes, decision: Decision, seen: list[ColumnSurvey], rule: str, num_components: int
) -> Rotated:
    """The part that projects the columns under one rule: sparse components are divided each by its own deviation."""
    chosen = np.array(decision.columns(rule), np.int64)
    how = decision.sparse_values if rule == "sparse" else "as they are"
    ends = np.array([seen[k].high if seen[k].high else seen[k].low for k in chosen])
    values = group_values(how, ends)
    found = fit_components(lambda: (values(block[:, chosen]) for _, block in row_blocks(drawn)), num_components)
    variances = found.variances * ((drawn.shape[0] - 1) / drawn.shape[0])
    divisor = np.sqrt(variances if rule == "sparse" else np.full(len(variances), variances.mean()))
    return Rotated(chosen, how, ends, found, 1.0 / np.where(divisor > 0, divisor, 1.0))


def _choose_components(
    drawn: Attributes, decision: Decision, seen: list[ColumnSurvey], usual: Rotated, x: Attributes, ends: Ends
) -> tuple[Rotated, dict[int, float]]:
    """The sparse group with as many components as the edges choose, and the signal of every number tried."""
    part = _fit_rotated(drawn, decision, seen, "sparse", _most_components(x.shape[0]))
    left, right = (_features_of(part, x, nodes) for nodes in ends)
    sizes = [size for size in _CHOICES if size <= part.width]
    signals = {size: neighbor_signal(left[:, :size], right[:, :size]) for size in sizes}
    size = _choose_size(signals, min(_COMPONENTS["sparse"], part.width))
    if size <= usual.width:
        part = usual
    found = part.components
    fewer = replace(found, loadings=found.loadings[:, :size], variances=found.variances[:size])
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
    return np.concatenate([part.apply(block).astype(np.float32) for _, block in row_blocks(rows)])


def _report(
    decision: Decision, seen: Sequence[ColumnSurvey], names: Sequence[str], widths: dict[str, int]
) -> list[dict[str, Any]]:
    """The decision as rows of a table: which columns, how many, what was seen, what was done.

    A row per column where there are few, else a row per rule; `widths` are the components of each group.
    """
    groups = []
    for rule in dict.fromkeys(decision.rules):
        together = len(names) > _MAX_LINES or rule in decision.groups
        groups += [decision.columns(rule)] if together else [[k] for k in decision.columns(rule)]
    rows = []
    for columns in sorted(groups):
        rule, group = decision.rules[columns[0]], [seen[k] for k in columns]
        low, high = min(one.low for one in group), max(one.high for one in group)
        what, done = _SINGLE.get(rule, ("constant", "left out"))
        if rule == "sparse":
            what = f"{100 * sum(one.zeros for one in group) / len(group):.1f}% zeros"
            done = f"{decision.sparse_values}, {widths[rule]} components, each of deviation 1"
        elif rule in decision.groups:
            what, done = "no heavy tail", f"{widths[rule]} components, divided by one number"
        shown = f"{what}, {low:.4g}" if low == high else f"{what}, {low:.4g} to {high:.4g}"
        rows.append(
            {"columns": _named(columns, names), "count": len(columns), "rule": rule, "seen": shown, "done": done}
        )
    return rows


def _named(columns: Sequence[int], names: Sequence[str]) -> str:
    """Columns by name, many of them by the first and the last or by the first three.

    >>> _named([0, 1, 2, 3], "abcd"), _named([0, 1, 3, 4], "abcde"), _named([2], "abc")
    ('4 columns a..d', '4 columns a, b, d, ...', 'c')
    """
    if len(columns) == 1:
        return names[columns[0]]
    if columns[-1] - columns[0] + 1 == len(columns):
        return f"{len(columns):,} columns {names[columns[0]]}..{names[columns[-1]]}"
    return f"{len(columns):,} columns {', '.join(names[k] for k in columns[:3])}{', ...' if len(columns) > 3 else ''}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of a record's "columns" as text; long names are cut."""
    names = (row["columns"] for row in rows)
    short = [name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 3]}..." for name in names]
    width, seen_width = max(map(len, short)), max(len(row["seen"]) for row in rows)
    return "\n".join(
        f"  {name:<{width}}  {row['seen']:<{seen_width}}  {row['done']}" for name, row in zip(short, rows, strict=True)
    )
