"""The rules of auto.py carried out: fitted on the sample, as parts (parts.py) that are applied to any rows.

Columns that are kept one by one are moved and stretched, or follow a curve through the values of the sample (normal
scores: exact where the sample is all rows, between two values of it in proportion, beyond its ends as at the ends).
What lies more than the sample's range beyond the sample is cut there, so that no row outside the sample can drown the
others. Groups are projected on components fitted on the sample. Memory: the output (4 bytes n q), one block, the
sample (at most 256 MiB dense) and twice that for curves.
"""

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.features import parts as principal
from hcm_scale.features.parts import Curve, Part, Rotated, Singles, group_values, row_blocks
from hcm_scale.graph.store import Attributes, SparseRows

# ----------------------------------------------------------------------------
# What attribute columns look like, on a sample of rows: the evidence that the rules of auto.py decide by.
#
# The sample is evenly spaced rows, at most `MAX_ROWS` of them, so it is a function of the shape alone and a hundred
# million rows cost what sixty thousand do. A column is looked at through its non-zero values and a count of zeros,
# one column at a time: sparse columns are not made dense, and zeros that are more than four in five are not sorted.
#
# A table reader marks gaps by a column `NAME is null` beside `NAME`, `NAME=value` or `NAME#bucket`. That ending is
# the one rule by which a gap is known here; what was filled in for gaps is no part of what is seen of a column.


MAX_ROWS = 1 << 16
MOSTLY_ZERO = 0.8  # a share of zeros beyond this
_MIN_ROWS, _MAX_VALUES = 1 << 12, 1 << 26  # a wide dense table is looked at in fewer rows
_SQUASHED = 5.0  # the deviation over what it were, were the column normal as its quartiles: lognormal 2


@dataclass(frozen=True)
class ColumnSurvey:
    """One column over the rows of the sample that have a value."""

    low: float
    high: float
    mean: float
    deviation: float
    zeros: float  # their share
    two_values: bool
    heavy: bool

    @property
    def constant(self) -> bool:
        return self.low == self.high


def sample(x: Attributes, most: int = MAX_ROWS) -> Attributes:
    """Evenly spaced rows of x, at most so many, all where there are few; a sparse sample of sparse rows.

    >>> sample(np.arange(6, dtype=np.float32)[:, None]).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    width = x.shape[1] if not isinstance(x, SparseRows) else len(x.indices) // max(1, x.shape[0])
    num_rows = min(most, sampled_rows(width))
    if x.shape[0] <= num_rows:
        return x
    rows = np.arange(num_rows) * x.shape[0] // num_rows
    return SparseRows.of(x.csr()[rows]) if isinstance(x, SparseRows) else x[rows]


def sampled_rows(width: int) -> int:
    """The most rows of a sample where a row holds so many values."""
    return min(MAX_ROWS, max(_MIN_ROWS, _MAX_VALUES // max(1, width)))


def by_column(x: Attributes) -> Any:
    """The rows of a sample turned for reading by column: a scipy CSC array, or a dense (d, rows)."""
    return x.csr().tocsc() if isinstance(x, SparseRows) else np.ascontiguousarray(x.T)


def values_of(turned: Any, column: int, gap: int = -1) -> tuple[NDArray[np.float64], int]:
    """The non-zero values of one column, and how many rows have a value at all; `gap` is the column of its gaps."""
    if sparse.issparse(turned):
        values, num_rows = turned.data[turned.indptr[column] : turned.indptr[column + 1]], turned.shape[0]
    else:
        values = turned[column] if gap < 0 else turned[column][turned[gap] == 0]
        num_rows = len(values)
    return values[values != 0].astype(np.float64), num_rows


def survey_columns(stored: NDArray[np.float64], num_rows: int) -> ColumnSurvey:
    """What a column looks like that holds the non-zero values `stored` in `num_rows` rows.

    >>> survey_columns(np.array([2.0, 2.0]), 4)
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
    """Whether a few values lie so far out that dividing by the deviation would press all others into one point."""
    if num_zeros > MOSTLY_ZERO * (len(stored) + num_zeros):
        return True
    values = np.concatenate([stored, np.zeros(num_zeros)])
    lower, upper = np.quantile(values, (0.25, 0.75))
    return bool(deviation > _SQUASHED * (upper - lower) / 1.349)


def gap_columns(columns: tuple[str, ...], num_columns: int) -> NDArray[np.int64]:
    """For every column the number of the column that flags its gaps, -1 where none does.

    >>> gap_columns(("age", "age is null", "land=DE", "land=FR", "land is null", "size"), 6).tolist()
    [1, -1, 4, 4, -1, -1]
    """
    flags = {name.removesuffix(GAP_SUFFIX): k for k, name in enumerate(columns) if name.endswith(GAP_SUFFIX)}
    out = np.full(num_columns, -1, np.int64)
    for k, name in enumerate(columns if flags else ()):
        bases = (name, *(name[:i] for i, letter in enumerate(name) if letter in "=#"))
        out[k] = next((flags[base] for base in bases if base in flags), -1)
    return out


# ----------------------------------------------------------------------------
# `attributes=auto`: the rules by which attribute columns become features, from what a survey saw and without labels.
#
# | rule       | a column, or a group of columns, that                                  | becomes                      |
# |------------|------------------------------------------------------------------------|------------------------------|
# | constant   | holds one value                                                        | nothing                      |
# | gap flag   | is named `NAME is null`                                                | 0 or 1, centred, times 1/4   |
# | two values | holds two                                                              | 0 or 1, centred              |
# | sparse     | is over 80% zeros, 100 such (21 where storage is sparse)               | 20 components of deviation 1 |
# | embedding  | has a like deviation, 32 such, 3/4 of the dense ones, half of them     | 64 components, all scaled    |
# |            | without a heavy tail                                                   | by one number                |
# | heavy tail | has values too far out for a deviation to say much                     | normal scores, deviation 1   |
# | standard   | is none of these                                                       | mean 0, deviation 1          |
#
# So a feature has a variance of about 1, be it a column of its own or a component, and of a quarter at most where it
# is a flag: twenty components weigh as much as twenty columns. Sparse values are first made presence, where each
# column has one value beside 0, or log(1 + value), where none is negative. Where storage is sparse the group takes in
# every column that holds a zero, and all others (the common words of a bag of words) where a hundred are mostly zero
# or where over a hundred would be left, so that the table is not made dense. A column with gaps is seen without them,
# and its features at gaps are 0, the mean. A flag is not divided by its deviation, which would make a rare one huge;
# nor, for the same reason, are normal scores of a deviation below 1/2, which a column that is nearly all one value
# has.


COMPONENTS = {"sparse": 20, "embedding": 64}
OWN_DEVIATION = {"sparse": True, "embedding": False}  # each component is divided by its own, or all by one number
GAP_WEIGHT = 0.25
_MIN_SPARSE = {False: 100, True: 21}  # by whether storage is sparse: 20 columns have nothing to be reduced to
_MAX_SINGLE = 100  # columns of sparse storage that are kept one by one
_MIN_EMBEDDING, _LIKE, _LIKE_SHARE = 32, 10.0, 0.75
_MAX_LETTERS = 64  # of the names in a line of the log
_MAX_LINES = 24  # tables with more columns are told rule by rule

Rows = list[dict[str, Any]]

_DONE = {
    "constant": "left out",
    "gap flag": f"0 or 1, centred, times {GAP_WEIGHT}",
    "two values": "0 or 1, centred",
    "heavy tail": "normal scores, deviation 1",
    "standard": "mean 0, deviation 1",
}


@dataclass(frozen=True)
class Decision:
    """The rule of every column, and what is done with the values of the sparse group before it is reduced."""

    rules: tuple[str, ...]
    sparse_values: str = "as they are"

    def columns(self, *rules: str) -> list[int]:
        """The columns under any of these rules, rising."""
        return [k for k, rule in enumerate(self.rules) if rule in rules]

    def runs(self) -> list[list[Any]]:
        """The rules of all columns in order, as [rule, how many in a row], for the manifest."""
        return [[rule, len(list(group))] for rule, group in itertools.groupby(self.rules)]


def decide(seen: Sequence[ColumnSurvey], flags: Iterable[int], is_sparse: bool) -> Decision:
    """The rules for columns as seen; `flags` are the columns that flag gaps."""
    known_flags = set(flags)
    rules = [_alone(one, k in known_flags) for k, one in enumerate(seen)]
    for k in _sparse_group(seen, rules, is_sparse):
        rules[k] = "sparse"
    for k in _embedding(seen, rules):
        rules[k] = "embedding"
    group = [seen[k] for k, rule in enumerate(rules) if rule == "sparse"]
    if all(one.two_values and 0.0 in (one.low, one.high) for one in group):
        return Decision(tuple(rules), "presence")
    return Decision(tuple(rules), "log1p" if all(one.low >= 0 for one in group) else "as they are")


def _alone(seen: ColumnSurvey, is_flag: bool) -> str:
    if seen.constant:
        return "constant"
    if seen.two_values:
        return "gap flag" if is_flag else "two values"
    return "heavy tail" if seen.heavy else "standard"


def _sparse_group(seen: Sequence[ColumnSurvey], rules: Sequence[str], is_sparse: bool) -> list[int]:
    varied = [k for k, rule in enumerate(rules) if rule not in ("constant", "gap flag")]
    mostly_zero = [k for k in varied if seen[k].zeros > MOSTLY_ZERO]
    with_zeros = [k for k in varied if seen[k].zeros]
    if is_sparse and (len(mostly_zero) >= _MIN_SPARSE[False] or len(varied) - len(with_zeros) > _MAX_SINGLE):
        return varied
    return (with_zeros if is_sparse else mostly_zero) if len(mostly_zero) >= _MIN_SPARSE[is_sparse] else []


def _embedding(seen: Sequence[ColumnSurvey], rules: Sequence[str]) -> list[int]:
    dense = [k for k, rule in enumerate(rules) if rule in ("standard", "heavy tail") and seen[k].zeros < MOSTLY_ZERO]
    if len(dense) < _MIN_EMBEDDING:
        return []
    median = sorted(seen[k].deviation for k in dense)[len(dense) // 2]
    like = [k for k in dense if seen[k].deviation <= _LIKE * median]
    light = [k for k in like if not seen[k].heavy]
    return like if len(like) >= max(_MIN_EMBEDDING, _LIKE_SHARE * len(dense)) and 2 * len(light) >= len(like) else []


def lines(decision: Decision, seen: Sequence[ColumnSurvey], names: Sequence[str], widths: dict[str, int]) -> Rows:
    """The decision as rows of a table: which columns, how many, what was seen, what was done.

    A row a column where there are few, else a row a rule; `widths` are the components of each group.
    """
    groups = []
    for rule in dict.fromkeys(decision.rules):
        together = len(names) > _MAX_LINES or rule in COMPONENTS
        groups += [decision.columns(rule)] if together else [[k] for k in decision.columns(rule)]
    rows = []
    for columns in sorted(groups):
        rule = decision.rules[columns[0]]
        what = {"columns": _named(columns, names), "count": len(columns), "rule": rule}
        rows.append(what | {"seen": _seen(rule, [seen[k] for k in columns]), "done": _done(rule, decision, widths)})
    return rows


def table(rows: Rows) -> str:
    """Rows of `lines` as text; long names are cut."""
    cells = [(_cut(row["columns"]), row["seen"], row["done"]) for row in rows]
    wide = [max(len(cell[k]) for cell in cells) for k in range(2)]
    return "\n".join(f"  {columns:<{wide[0]}}  {seen:<{wide[1]}}  {done}" for columns, seen, done in cells)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else f"{text[: _MAX_LETTERS - 3]}..."


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


def _seen(rule: str, group: Sequence[ColumnSurvey]) -> str:
    low, high = min(one.low for one in group), max(one.high for one in group)
    span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    if rule == "sparse":
        return f"{100 * sum(one.zeros for one in group) / len(group):.1f}% zeros, {span}"
    words = {"constant": "constant", "heavy tail": "heavy tail", "two values": "two values", "gap flag": "flags gaps"}
    return f"{words.get(rule, 'no heavy tail')}, {span}"


def _done(rule: str, decision: Decision, widths: dict[str, int]) -> str:
    if rule not in COMPONENTS:
        return _DONE[rule]
    scaled = "each of deviation 1" if OWN_DEVIATION[rule] else "divided by one number"
    values = f"{decision.sparse_values}, " if rule == "sparse" else ""
    return f"{values}{widths[rule]} components, {scaled}"


log = logging.getLogger(__name__)

_FEW_ROWS = 1 << 10
_LEAST_DEVIATION = 0.5  # that normal scores are divided by
_SINGLE = ("gap flag", "two values", "heavy tail", "standard")


def fit_automatic(
    x: Attributes, pca: int | None, columns: tuple[str, ...]
) -> tuple[tuple[Part, ...], tuple[str, ...], dict[str, Any]]:
    """The parts that make features by the rules of auto.py, the features' names, and a record of what was decided.

    >>> from hcm_scale.features.parts import apply_parts
    >>> x = np.array([[0, 5], [1, 5]], np.float32)
    >>> parts, names, _ = fit_automatic(x, None, ("flag", "same"))
    >>> apply_parts(parts, x).tolist(), names
    ([[-0.5], [0.5]], ('flag',))
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    drawn = sample(x)
    turned = by_column(drawn)
    seen, gaps, decision = _decide(turned, names, isinstance(x, SparseRows))
    singles = _fit_singles(turned, decision, seen, gaps)
    rotated = {rule: _fit_rotated(drawn, decision, seen, rule, pca) for rule in COMPONENTS if rule in decision.rules}
    if pca is not None and not rotated:
        log.warning("attributes.pca=%s has no effect: no group of columns is reduced to components", pca)
    parts: tuple[Part, ...] = (*([singles] if singles.width else []), *rotated.values())
    widths = {rule: part.width for rule, part in rotated.items()}
    record: dict[str, Any] = {"sampled_rows": drawn.shape[0], "columns": lines(decision, seen, names, widths)}
    record |= {"rules": decision.runs(), "left_out": [names[k] for k in decision.columns("constant")]}
    record["explained_variance"] = {rule: part.explained for rule, part in rotated.items()}
    return parts, (*(names[k] for k in singles.columns), *_component_names(widths)), record


def expected_width(x: Attributes, pca: int | None, columns: tuple[str, ...]) -> int:
    """About how many features `automatic` will make, judged by a few rows.

    >>> expected_width(np.array([[0, 5], [1, 5]], np.float32), None, ("flag", "same"))
    1
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    _, _, decision = _decide(by_column(sample(x, _FEW_ROWS)), names, isinstance(x, SparseRows))
    groups = ((len(decision.columns(rule)), COMPONENTS[rule] if pca is None else pca) for rule in COMPONENTS)
    return max(1, len(decision.columns(*_SINGLE)) + sum(min(pair) for pair in groups))


def _decide(
    turned: Any, names: tuple[str, ...], is_sparse: bool
) -> tuple[list[ColumnSurvey], NDArray[np.int64], Decision]:
    """What every column of a sample looks like, which column flags its gaps, and the rules that follow."""
    gaps = gap_columns(names, len(names))
    seen = [survey_columns(*values_of(turned, k, int(gap))) for k, gap in enumerate(gaps)]
    flags = [k for k, name in enumerate(names) if name.endswith(GAP_SUFFIX)]
    return seen, gaps, decide(seen, flags, is_sparse)


def _component_names(widths: dict[str, int]) -> list[str]:
    prefixes = {rule: f"{rule}_" if len(widths) > 1 else "" for rule in widths}
    return [f"{prefixes[rule]}pc{k}" for rule, width in widths.items() for k in range(width)]


def _fit_singles(turned: Any, decision: Decision, seen: list[ColumnSurvey], gaps: NDArray[np.int64]) -> Singles:
    chosen = decision.columns(*_SINGLE)
    place_of = {column: place for place, column in enumerate(chosen)}
    low, high, mean = (np.array([getattr(seen[k], name) for k in chosen]) for name in ("low", "high", "mean"))
    factor = np.array([_factor(decision.rules[k], seen[k]) for k in chosen])
    heavy = decision.columns("heavy tail")
    curves = {place_of[k]: score_curve(*values_of(turned, k, int(gaps[k]))) for k in heavy}
    flagged: dict[int, list[int]] = {}
    for column, place in place_of.items():
        if int(gaps[column]) in place_of:
            flagged.setdefault(place_of[int(gaps[column])], []).append(place)
    span = high - low
    return Singles(np.array(chosen, np.int64), low - span, high + span, mean, factor, curves, flagged)


def _factor(rule: str, seen: ColumnSurvey) -> float:
    if rule == "standard":
        return 1.0 / seen.deviation
    return (GAP_WEIGHT if rule == "gap flag" else 1.0) / (seen.high - seen.low)


def score_curve(stored: NDArray[np.float64], num_rows: int) -> Curve:
    """The normal score of every distinct value of a column that holds `stored` beside zeros, of mean 0 and deviation 1.

    Equal values share the mean of their ranks; the value of rank r among n has the (r - 1/2) / n quantile. A deviation
    below _LEAST_DEVIATION, of a column that is nearly all one value, is not stretched to 1.
    """
    values, counts = np.unique(np.concatenate([stored, np.zeros(num_rows - len(stored))]), return_counts=True)
    scores = special.ndtri((np.cumsum(counts) - 0.5 * counts) / num_rows)
    scores -= np.average(scores, weights=counts)
    deviation = np.sqrt(np.average(scores**2, weights=counts))
    return values.astype(np.float32), (scores / max(deviation, _LEAST_DEVIATION)).astype(np.float32)


def _fit_rotated(
    drawn: Attributes, decision: Decision, seen: list[ColumnSurvey], rule: str, pca: int | None
) -> Rotated:
    chosen = np.array(decision.columns(rule), np.int64)
    how = decision.sparse_values if rule == "sparse" else "as they are"
    ends = np.array([seen[k].high if seen[k].high else seen[k].low for k in chosen])
    values = group_values(how, ends)
    asked = COMPONENTS[rule] if pca is None else pca
    found = principal.fit_components(lambda: (values(block[:, chosen]) for _, block in row_blocks(drawn)), asked)
    if pca is not None and found.loadings.shape[1] < pca:
        log.info("attributes.pca=%d is cut to %d, the rank of its columns", pca, found.loadings.shape[1])
    variances = found.variances * ((drawn.shape[0] - 1) / drawn.shape[0])
    divisor = np.sqrt(variances if OWN_DEVIATION[rule] else np.full(len(variances), variances.mean()))
    return Rotated(chosen, how, ends, found, 1.0 / np.where(divisor > 0, divisor, 1.0))
