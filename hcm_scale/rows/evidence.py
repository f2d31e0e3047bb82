"""What kinds of evidence say of rows and accounts: made once, kept beside the scores, opened by whoever asks.

    row_surprises.npy  (m, kinds) float32   nats of every row
    row_links.npy      (m, links) int32     rows that belong to it: what brought what it passes on, the next of a chain
    bursts.npy         (n, 2 spans) int32   the first and the last row of something of an account, such as its burst

Columns are those of `ROW_KINDS` in its order, which alone lists the kinds (score/kinds/all.py); -1 is for no row. Rows
are those of the graph's folder, in their order. The surprise of a row by its history is that of its rank among all
rows, or of its sort (history.py); the others are those of its account or chain (burst.py, flow.py, chain.py).

`RowEvidence.surprise` is the one by which rows are ranked: what a kind says beyond where it is common, in units of how
fast its bulk grows from the 75 % quantile to the 95 % quantile, one nat at least. Common is what lies below the latter,
and below three units: a kind that says something of many rows has to say more. Where several kinds speak, the root of
the sum of squares counts (`combined`), so that a row with two reasons comes before one with either of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.npy import FINITE, open_array, save_npy
from hcm_scale.base.threads import run_in_slices
from hcm_scale.graph.store import Graph
from hcm_scale.rows.rows import DAY, NO_CATEGORY, Numbers, Rows, Values, beyond, log_amounts

FILES = ("row_surprises.npy", "row_links.npy", "bursts.npy")
_LOW, _COMMON = 0.75, 0.95  # quantiles of a kind's surprises of rows: up to the second it says nothing
_LEAST = 3.0  # nats, up to which it does so in any case
_NEARLY = 2.0  # units below what is common, from which on it adds to another kind that says something
_SAMPLE = 1 << 20  # rows that show the quantiles
Kinds = Sequence[Any]  # of `score.kinds.kind.Kind`, in a room above
Made = TypeVar("Made")


def combined(beyond: Values) -> Values:
    """Surprise of rows by what every kind says beyond what is common, (m, kinds); 0 where none says more than that.

    >>> combined(np.array([[4.0, -3.0], [4.0, 4.0], [-1.0, -1.0]])).round(1).tolist()
    [4.0, 6.5, 0.0]
    """
    most = beyond.max(axis=1)
    together = np.sqrt((np.maximum(beyond + _NEARLY, 0.0) ** 2).sum(axis=1)) - _NEARLY
    return np.where(most > 0.0, np.maximum(most, together), 0.0)


@dataclass(frozen=True, eq=False)
class MadeEvidence:
    """What the kinds make of the rows of one table, each when it is first asked for.

    `before` are rows of the same accounts in an earlier table, which histories know; `given` is what that was measured
    by.
    """

    rows: Rows
    before: Rows | None = None
    given: Mapping[str, Values] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict, init=False)

    def once(self, make: "Callable[[MadeEvidence], Made]") -> Made:
        """What `make` returns of this."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def surprises(self, kinds: Kinds) -> NDArray[np.float32]:
        """Nats of every row by every kind, (m, kinds)."""
        return np.stack([kind.of_rows(self) for kind in kinds], axis=1).astype(np.float32)

    def save(self, folder: Path, kinds: Kinds) -> None:
        links = [make(self) for kind in kinds for make in kind.row_links.values()]
        spans = [make(self) for kind in kinds for make in kind.row_spans.values()]
        arrays = np.stack(links, axis=1).astype(np.int32), np.concatenate(spans, axis=1).astype(np.int32)
        for name, array in zip(FILES, (self.surprises(kinds), *arrays), strict=True):
            save_npy(folder / name, array)


class OwnRows(NamedTuple):
    """An account's strangest rows, of equal ones the earlier first; sums that it paid and received, by currency."""

    rows: Numbers
    num_rows: int
    paid: dict[str | None, float]
    received: dict[str | None, float]


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """The rows of a graph, and what is kept about them.

    `steps` are the seconds of one where times count steps, else 0; `currencies` are names.
    `names` are those of the kinds, as their surprises are ordered; `links` (m,) and `spans` (n, 2) have names too.
    """

    rows: Rows
    names: tuple[str, ...]
    surprises: NDArray[np.float32]
    links: Mapping[str, NDArray[np.int32]]
    spans: Mapping[str, NDArray[np.int32]]
    amounts: Values  # as they stand in the table
    number: Numbers  # of each row in the table
    steps: float = 0.0
    currencies: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    _of_accounts: dict[Any, Any] = field(default_factory=dict, init=False)

    def once_of(self, account: int, make: "Callable[[RowEvidence, int], Made]") -> Made:
        """What `make` returns of an account: sentences about its rows share it."""
        if (account, make) not in self._of_accounts:
            self._of_accounts[account, make] = make(self, account)
        made: Made = self._of_accounts[account, make]
        return made

    @cached_property
    def has_amounts(self) -> bool:
        return bool(np.isfinite(self.amounts).any())

    @cached_property
    def bars(self) -> tuple[Values, Values]:
        """Up to how many units of its own every kind says nothing of a row, and those units, (kinds,) each."""
        some = self.surprises[:: max(1, len(self.surprises) // _SAMPLE)]
        low, high = np.quantile(some, [_LOW, _COMMON], axis=0) if len(some) else np.zeros((2, len(self.names)))
        scale = np.maximum(1.0, (high - low) / np.log((1.0 - _LOW) / (1.0 - _COMMON)))
        return np.maximum(high / scale, _LEAST), scale

    @cached_property
    def _ranked_by(self) -> tuple[Values, NDArray[np.int8]]:
        """Surprise of every row, and the kind that says most of it, (m,)."""
        (bar, scale), surprise, kind = self.bars, np.empty(len(self.rows)), np.empty(len(self.rows), np.int8)

        def fill(part: slice) -> None:
            beyond = self.surprises[part] / scale - bar
            surprise[part], kind[part] = combined(beyond), beyond.argmax(axis=1)

        run_in_slices(len(kind), fill)
        return surprise, kind

    @property
    def surprise(self) -> Values:
        """What rows are ranked by, (m,), 0 where no kind says more than is common."""
        return self._ranked_by[0]

    def chances(self, surprise: Values) -> Values:
        """P of rows by their surprise: as many times the chance by the kind that says most as there are kinds."""
        return np.minimum(1.0, len(self.names) * np.exp(-_LEAST - surprise))

    @cached_property
    def strongest(self) -> NDArray[np.int8]:
        """The kind that says most of every row, by its number, (m,); -1 where none says more than is common."""
        surprise, kind = self._ranked_by
        return np.where(surprise > 0.0, kind, -1).astype(np.int8)

    def of_account(self, account: int) -> tuple[Numbers, Numbers]:
        """The rows that an account pays, and those by which it is paid."""
        into = self.rows.into.of(account)
        return self.rows.out.of(account), into[self.rows.payer[into] != account]

    def own_rows(self, account: int, most: int = 20, other: int | None = None) -> "OwnRows":
        """The strangest rows of an account, at most so many, and what it paid and received; with `other` alone."""
        by_end = [
            own if other is None else own[self.other_ends(own, account) == other] for own in self.of_account(account)
        ]
        own = np.sort(np.concatenate(by_end))
        paid, received = (self._sums(rows) for rows in by_end)
        return OwnRows(own[np.argsort(-self.surprise[own], kind="stable")[:most]], len(own), paid, received)

    def _sums(self, rows: Numbers) -> dict[str | None, float]:
        """Sums of the amounts of some rows, by currency in the order of their numbers; None where it has no name."""
        rows = rows[np.isfinite(self.amounts[rows])]
        codes = np.minimum(self.rows.currency[rows], len(self.currencies))
        names = [*self.currencies, None]
        return {names[code]: float(self.amounts[rows[codes == code]].sum()) for code in np.unique(codes).tolist()}

    def nats(self, kind: str) -> NDArray[np.float32]:
        """What one kind says of every row, (m,)."""
        return self.surprises[:, self.names.index(kind)]

    def surprise_by(self, kind: str, rows: Numbers) -> Values:
        """What one kind says of some rows, in its units; 0 where it says no more than is common."""
        bar, scale = (values[self.names.index(kind)] for values in self.bars)
        beyond = self.nats(kind)[rows] / scale - bar
        return np.where(beyond > 0.0, _LEAST + beyond, 0.0)

    def other_ends(self, rows: Numbers, account: int) -> Numbers:
        """The other end of each of an account's rows."""
        return np.where(self.rows.payer[rows] == account, self.rows.payee[rows], self.rows.payer[rows])


def rows_of(graph: Graph) -> Rows | None:
    """The rows that a graph's folder keeps; None where it keeps none."""
    if graph.rows is None or not len(graph.rows.time):
        return None
    payer, payee, time, amount, currency, _, category = graph.rows
    category = np.full(len(time), NO_CATEGORY, np.uint8) if category is None else category
    return Rows(graph.num_nodes, payer, payee, time, log_amounts(amount), currency, category)


def rows_before(graph: Graph, earlier: Graph) -> Rows | None:
    """The rows that an earlier graph keeps between accounts of this one, by their ids; None where there are none.

    Rows that this table holds too, as where it has grown or its window slid, are left out: no row is its own history.
    """
    rows, today = rows_of(earlier), rows_of(graph)
    if rows is None or today is None:
        return None
    own, others = (pa.array(np.arange(g.num_nodes)) if g.ids is None else g.ids for g in (graph, earlier))
    if own.type != others.type:
        return None
    node = pc.index_in(others, own).fill_null(-1).to_numpy(zero_copy_only=False)
    payer, payee = node[rows.payer], node[rows.payee]

    def renumbered(what: str, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The numbers of this graph for those of the earlier one, by name; 255 where it has none."""
        names, former = (each.info["rows"].get(what) or [] for each in (graph, earlier))
        code = np.full(256, 255, np.uint8)
        code[: len(former)] = [names.index(name) if name in names else 255 for name in former]
        return code[codes] if names or former else codes

    currency, category = renumbered("currencies", rows.currency), renumbered("categories", rows.category)
    is_kept = (payer >= 0) & (payee >= 0) & ((currency != 255) | (rows.currency == 255))
    columns = (payer, payee, rows.time, rows.amount, currency, category)
    before = Rows(graph.num_nodes, *(column[is_kept] for column in columns))
    return before.where(beyond(before, today))


def step_seconds(about: Mapping[str, Any]) -> float:
    """Seconds of a step, of what a graph says of its rows; 0 where their times are dates."""
    return float(about.get("seconds") or DAY) if about["steps"] else 0.0


def open_row_evidence(folder: Path, graph: Graph, kinds: Kinds) -> RowEvidence | None:
    """What `MadeEvidence.save` wrote about the rows of a graph; None where it has none, FolderError for other files."""
    if (rows := rows_of(graph)) is None or graph.rows is None:
        return None
    size, about = len(rows), graph.info["rows"]
    links = [name for kind in kinds for name in kind.row_links]
    spans = [name for kind in kinds for name in kind.row_spans]
    is_row = (lambda block: (block >= -1) & (block < size), f"rows are 0 to {size - 1}, and -1 for none")
    shapes = (size, len(kinds)), (size, len(links)), (rows.num_accounts, 2 * len(spans))
    expected = zip(FILES, (np.float32, np.int32, np.int32), shapes, (FINITE, is_row, is_row), strict=True)
    surprises, linked, ends = (
        open_array(folder / name, dtype, shape, "", rule) for name, dtype, shape, rule in expected
    )
    return RowEvidence(
        rows,
        tuple(kind.name for kind in kinds),
        surprises,
        {name: linked[:, k] for k, name in enumerate(links)},
        {name: ends[:, 2 * k : 2 * k + 2] for k, name in enumerate(spans)},
        *(graph.rows.amount, graph.rows.number, step_seconds(about)),
        tuple(about["currencies"]),
        tuple(about.get("categories") or ()),
    )
