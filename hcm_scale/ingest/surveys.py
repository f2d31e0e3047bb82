"""One pass over a table, column by column, from which its encodings follow (encode.py).

Memory: one batch, at most `max_categories` values a text column, and 512 KiB a column to count distinct values: the
smallest 65,536 hashes are kept, which is exact up to that many, and beyond it their density tells the number to about
half a per cent.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.ingest.encode import (
    CategoryEncoding,
    EmptyEncoding,
    Encoding,
    NumberEncoding,
    floats,
    hash_of,
    is_finite,
    null_mask,
    texts,
)
from hcm_scale.ingest.looks import WRITTEN, Looks
from hcm_scale.ingest.policy import Offenders

log = logging.getLogger(__name__)

_NEAR_UNIQUE = 0.5  # more distinct values than this share of the rows that have one
_KEPT_HASHES = 1 << 16


@dataclass(frozen=True)
class TextRules:
    """How many values may have a column each, how many buckets more of them share, which columns always stay."""

    max_categories: int
    hash_buckets: int
    kept: frozenset[str] = frozenset()


class NumberSurvey:
    """Counts nulls and values that are not finite, and adds up the rest; of dates it finds the earliest."""

    def __init__(self, name: str, bad: Offenders, place: Callable[[int], str] = "row {:,}".format, dates: bool = False):
        self.name, self._bad, self._place, self._dates = name, bad, place, dates
        self._nulls = self._nonfinite = self._rows = 0
        self._sum, self._low = 0.0, np.inf
        self._distinct = Distinct()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch; `rows` are its row numbers in the table, which messages tell as `place` does."""
        values, nulls = floats(column), null_mask(column)
        bad = ~is_finite(values) & ~nulls
        self._bad.add(bad, lambda i: f"{self._place(int(rows[i]))} column {self.name!r} = {values[i]}")
        good = values[~nulls & ~bad]
        self._nulls += int(nulls.sum())
        self._nonfinite += int(bad.sum())
        self._rows += len(values)
        self._sum += float(good.sum())
        self._low = min(self._low, float(good.min(initial=np.inf)))
        self._distinct.add(_mixed(good))

    @property
    def num_nonfinite(self) -> int:
        """Values that are there and not finite."""
        return self._nonfinite

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """What to do with the column; `added_rows` more nulls will come."""
        present = self._rows - self._nulls - self._nonfinite
        if not present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        origin = self._low if self._dates else 0.0
        mean = self._sum / present - origin
        filler, method = mean if nonfinite == "mean" else 0.0, "date" if self._dates else "number"
        seen = self._distinct.count(), self._nulls
        return NumberEncoding(self.name, mean, filler, self._nulls + added_rows, self._nonfinite, origin, method, *seen)


class CategorySurvey:
    """Counts the values of a text column while they are few, their buckets, and how many distinct ones there are."""

    def __init__(self, name: str, rules: TextRules):
        self.name, self._rules = name, rules
        self._nulls = self._present = 0
        self._values: Counter[str] = Counter()
        self._buckets = np.zeros(rules.hash_buckets, np.int64)
        self._distinct, self._looks = Distinct(), Looks()

    def add(self, column: pa.Array, rows: NDArray[np.int64]) -> None:
        """Takes a batch."""
        values = texts(column)
        self._nulls += values.null_count
        self._present += len(values) - values.null_count
        counted = pc.value_counts(values.drop_null())
        names, counts = counted.field("values").to_pylist(), counted.field("counts").to_numpy()
        if len(self._values) <= self._rules.max_categories:
            self._values.update(dict(zip(names, counts.tolist(), strict=True)))
        hashes = np.array([hash_of(name) for name in names], np.uint64)
        np.add.at(self._buckets, (hashes % np.uint64(len(self._buckets))).astype(np.int64), counts)
        self._distinct.add(hashes)
        self._looks.add(counted.field("values"), counts)

    def encoding(self, nonfinite: str, added_rows: int) -> Encoding:
        """What to do with the column; `added_rows` more nulls will come."""
        if not self._present:
            return EmptyEncoding(self.name, gaps=self._nulls)
        few = len(self._values) <= self._rules.max_categories
        if not few and self.name not in self._rules.kept and self._distinct.count() > _NEAR_UNIQUE * self._present:
            return self._left_out()
        categories, nulls = tuple(sorted(self._values)) if few else (), self._nulls + added_rows
        counts = [self._values[name] for name in categories] if few else self._buckets.tolist()
        shares = tuple(count / self._present for count in counts)
        buckets, distinct = (0, len(categories)) if few else (len(self._buckets), self._distinct.count())
        seen = distinct, self._nulls, self._looks.settled(), self._looks.mostly()
        return CategoryEncoding(self.name, categories, buckets, shares, nulls, *seen)

    def _left_out(self) -> Encoding:
        distinct = self._distinct.count()
        about, looks = "" if distinct <= _KEPT_HASHES else "about ", self._looks.settled()
        mostly = self._looks.mostly()
        hint = f"if these are {looks}, write them as {WRITTEN[looks]}; " if looks else mostly and f"{mostly}; "
        log.warning(
            "column %r is left out: it has %s%s distinct values in %s rows, too many to tell rows alike by; "
            "%sgraph.categorical=[%s] keeps it, hashed, graph.exclude=[%s] says that it is to go",
            *(self.name, about, f"{distinct:,}", f"{self._present:,}", hint, self.name, self.name),
        )
        return EmptyEncoding(self.name, distinct, self._nulls, looks, mostly)


class Distinct:
    """How many distinct hashes were added, exact up to 65,536: the smallest are kept, and their density counts all.

    >>> seen = Distinct()
    >>> seen.add(np.array([5, 9, 5], np.uint64))
    >>> seen.count()
    2
    """

    def __init__(self) -> None:
        self._smallest = np.zeros(0, np.uint64)
        self._waiting: list[NDArray[np.uint64]] = []

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Takes some more hashes, uniform over 64 bits."""
        if len(self._smallest) > _KEPT_HASHES:
            hashes = hashes[hashes < self._smallest[-1]]
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) > _KEPT_HASHES:
            self._settle()

    def count(self) -> int:
        """The number of distinct hashes so far."""
        self._settle()
        if len(self._smallest) <= _KEPT_HASHES:
            return len(self._smallest)
        return round(_KEPT_HASHES * 2.0**64 / float(self._smallest[-1]))

    def _settle(self) -> None:
        """Sorts in what waits; np.sort is many times faster than np.unique."""
        merged = np.sort(np.concatenate([self._smallest, *self._waiting]))
        is_first = np.ones(len(merged), np.bool_)
        is_first[1:] = merged[1:] != merged[:-1]
        self._smallest, self._waiting = merged[is_first][: _KEPT_HASHES + 1], []


def _mixed(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """64 bits of each number, uniform: what SplitMix64 ends with."""
    bits = (values + 0.0).view(np.uint64)  # -0 is 0
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


Survey = NumberSurvey | CategorySurvey
