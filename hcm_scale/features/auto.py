"""`attributes=auto`: the rules by which attribute columns become features, from what a survey saw and without labels.

| rule       | a column, or a group of columns, that                                  | becomes                      |
|------------|------------------------------------------------------------------------|------------------------------|
| constant   | holds one value                                                        | nothing                      |
| gap flag   | is named `NAME is null`                                                | 0 or 1, centred, times 1/4   |
| two values | holds two                                                              | 0 or 1, centred              |
| sparse     | is over 80% zeros, 100 such (21 where storage is sparse)               | 20 components of deviation 1 |
| embedding  | has a like deviation, 32 such, 3/4 of the dense ones, half of them     | 64 components, all scaled    |
|            | without a heavy tail                                                   | by one number                |
| heavy tail | has values too far out for a deviation to say much                     | normal scores, deviation 1   |
| standard   | is none of these                                                       | mean 0, deviation 1          |

So a feature has a variance of about 1, be it a column of its own or a component, and of a quarter at most where it is a
flag: twenty components weigh as much as twenty columns. Sparse values are first made presence, where each column has
one value beside 0, or log(1 + value), where none is negative. Where storage is sparse the group takes in every column
that holds a zero, and all others (the common words of a bag of words) where a hundred are mostly zero or where over a
hundred would be left, so that the table is not made dense. A column with gaps is seen without them, and its features at
gaps are 0, the mean. A flag is not divided by its deviation, which would make a rare one huge; nor, for the same
reason, are normal scores of a deviation below 1/2, which a column that is nearly all one value has.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hcm_scale.features.survey import MOSTLY_ZERO, Seen

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


def decide(seen: Sequence[Seen], flags: Iterable[int], is_sparse: bool) -> Decision:
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


def _alone(seen: Seen, is_flag: bool) -> str:
    if seen.constant:
        return "constant"
    if seen.two_values:
        return "gap flag" if is_flag else "two values"
    return "heavy tail" if seen.heavy else "standard"


def _sparse_group(seen: Sequence[Seen], rules: Sequence[str], is_sparse: bool) -> list[int]:
    varied = [k for k, rule in enumerate(rules) if rule not in ("constant", "gap flag")]
    mostly_zero = [k for k in varied if seen[k].zeros > MOSTLY_ZERO]
    with_zeros = [k for k in varied if seen[k].zeros]
    if is_sparse and (len(mostly_zero) >= _MIN_SPARSE[False] or len(varied) - len(with_zeros) > _MAX_SINGLE):
        return varied
    return (with_zeros if is_sparse else mostly_zero) if len(mostly_zero) >= _MIN_SPARSE[is_sparse] else []


def _embedding(seen: Sequence[Seen], rules: Sequence[str]) -> list[int]:
    dense = [k for k, rule in enumerate(rules) if rule in ("standard", "heavy tail") and seen[k].zeros < MOSTLY_ZERO]
    if len(dense) < _MIN_EMBEDDING:
        return []
    median = sorted(seen[k].deviation for k in dense)[len(dense) // 2]
    like = [k for k in dense if seen[k].deviation <= _LIKE * median]
    light = [k for k in like if not seen[k].heavy]
    return like if len(like) >= max(_MIN_EMBEDDING, _LIKE_SHARE * len(dense)) and 2 * len(light) >= len(like) else []


def lines(decision: Decision, seen: Sequence[Seen], names: Sequence[str], widths: dict[str, int]) -> Rows:
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


def _seen(rule: str, group: Sequence[Seen]) -> str:
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
