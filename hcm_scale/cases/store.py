"""Cases on disk: the folder of the stage `cases`, and the one object that all others read cases by.

    cases.npy      (k,) of CASE    ids that last, surprises, how many members, core members and rows, what holds it
    members.npy    (sum of members,) int64     nodes by case, the core of each first
    rows.npy       (sum of rows,) int64        rows of the edge table by case
    known.parquet  ids of cases of this run and of runs before, with the ids of their members, for the next run
    manifest.json  how many are flagged, and what has changed since the run before

A case's id is made of the ids of its core when it is first seen, ten letters and digits; a later run that is told of
this one (`since=`, or `trained=`) gives it to the case that shares most with it (`changes.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from hcm_scale.base import files
from hcm_scale.base.npy import open_array, save_npy
from hcm_scale.cases.find import ALONE, GROUP, HAND, Case, Nodes
from hcm_scale.graph.store import Graph
from hcm_scale.score.kinds.all import ROW_KINDS

KIND, FORMAT = "hcm_scale cases", 3
CASE = np.dtype(
    [("id", "<u8"), ("surprise", "<f8"), ("members", "<i4"), ("core", "<i4"), ("rows", "<i4"), ("held", "u1")]
)
HELD_BY = (ALONE, GROUP, *(kind.name for kind in ROW_KINDS), HAND)
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # none is taken for another
ID_BITS = 50


@dataclass
class _Change:  # of a case, as it stands in the manifest
    id: str
    members: list[str] = field(default_factory=list)
    entered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    split_from: list[str] = field(default_factory=list)
    joined_by: list[str] = field(default_factory=list)
    back_after: int = 0


@dataclass
class _Changes:
    since: str
    new: list[_Change]
    grown: list[_Change]
    shrunk: list[_Change]
    changed: list[_Change]
    gone: list[_Change]
    num_same: int


_TYPES = {"num_flagged": int, "changes": _Changes | None}


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases of a run, the most surprising first; `changes` since an earlier run, where there was one.

    Where people have put some together or taken members out, `found` are the cases as they are stored, and `place` the
    position here of each. The number of a case, from 1 on, is its place in `found`, or that of the first of its parts.
    """

    table: NDArray[Any]  # of CASE
    members: Nodes
    rows: Nodes
    num_flagged: int
    changes: Mapping[str, Any] | None = field(default=None)
    found: "Cases | None" = None
    place: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Case]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Case:
        """The case of this position, from 0 on."""
        about = self.table[number]
        inside = self.members[self.member_ends[number] : self.member_ends[number + 1]]
        rows = self.rows[self.row_ends[number] : self.row_ends[number + 1]]
        core = int(about["core"])
        return Case(inside[:core], inside[core:], rows, HELD_BY[about["held"]], float(about["surprise"]))

    @cached_property
    def member_ends(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.table["members"], dtype=np.int64)])

    @cached_property
    def row_ends(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.table["rows"], dtype=np.int64)])

    @cached_property
    def number_of_member(self) -> NDArray[np.int64]:
        """The position of the case of every entry of `members`."""
        return np.repeat(np.arange(len(self)), self.table["members"])

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The number of every case."""
        return 1 + (np.arange(len(self)) if self.place is None else np.unique(self.place, return_index=True)[1])

    def id_of(self, number: int) -> str:
        return id_text(int(self.table["id"][number]))

    def name_of(self, number: int) -> str:
        """Such as `case 7 (XZJ57D393S)`."""
        return f"case {self.numbers[number]:,} ({self.id_of(number)})"

    def parts_of(self, number: int) -> list[tuple[str, Case]]:
        """The cases that a case is made of, as they were found, with the id of each: itself, or those put together."""
        found = self.found or self
        at = [number] if self.place is None else np.flatnonzero(self.place == number).tolist()
        return [(found.id_of(part), found[part]) for part in at]

    def taken_out(self, number: int) -> Nodes:
        """Nodes that were found to be members and that people have taken out."""
        parts = [case.members for _, case in self.parts_of(number)]
        return np.setdiff1d(np.concatenate(parts), self[number].members)

    def positions(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The position of the case of each id, -1 where there is none."""
        own = (self.found or self).table["id"]
        if not len(own):
            return np.full(len(ids), -1)
        order, wanted = np.argsort(own), np.array([_number(text) for text in ids], np.uint64)
        at = order[np.minimum(np.searchsorted(own, wanted, sorter=order), len(own) - 1)]
        return np.where(own[at] == wanted, at if self.place is None else self.place[at], -1)

    def position(self, name: str) -> int:
        """The position of a case by its number, from 1 on, or by its id; ValueError if there is none."""
        text, count = name.strip().upper(), len(self.found or self)
        if text.isdecimal() and len(text) < ID_BITS // 5:
            at = int(text) - 1 if 1 <= int(text) <= count else -1
            at = at if at < 0 or self.place is None else int(self.place[at])
        else:
            at = int(self.positions([text])[0])
        if at < 0:
            raise ValueError(f"case {name!r} is not there; cases have numbers from 1 to {count:,}, and ids")
        return at

    def of_node(self, node: int) -> NDArray[np.int64]:
        """The positions of the cases that a node is a member of."""
        return self.number_of_member[np.flatnonzero(self.members == node)]

    def save(self, folder: Path) -> None:
        for name, array in (("cases", self.table), ("members", self.members), ("rows", self.rows)):
            save_npy(folder / f"{name}.npy", array)
        body = {"num_flagged": self.num_flagged, "changes": self.changes}
        files.write_manifest(folder, KIND, FORMAT, body)


def as_cases(graph: Graph, found: list[Case], num_flagged: int) -> Cases:
    """Cases as they are stored, with ids of their own."""
    table = np.zeros(len(found), CASE)
    sizes = [(len(case.core) + len(case.others), len(case.core), len(case.rows), case.held_by) for case in found]
    table["surprise"] = [case.surprise for case in found]
    for at, name in enumerate(("members", "core", "rows")):
        table[name] = [size[at] for size in sizes]
    table["held"] = [HELD_BY.index(size[-1]) for size in sizes]
    table["id"] = first_ids(graph, [case.core for case in found])
    none = np.zeros(0, np.int64)
    members = np.concatenate([none, *(part for case in found for part in (case.core, case.others))])
    return Cases(table, members, np.concatenate([none, *(case.rows for case in found)]), num_flagged)


def open_cases(folder: Path, graph: Graph) -> Cases:
    """The cases of a folder; FolderError where they are not of this graph, or damaged."""
    about = files.read_manifest(folder, KIND, FORMAT, types=_TYPES)
    num_rows = 0 if graph.rows is None else len(graph.rows.time)
    table = open_array(folder / "cases.npy", CASE, (None,))
    members, rows = (
        open_array(folder / f"{name}.npy", np.int64, (None,), "", (_within(most), f"legal are 0 to {most - 1}"))
        for name, most in (("members", graph.num_nodes), ("rows", num_rows))
    )
    counts = [table[name].astype(np.int64) for name in ("members", "core", "rows")]
    is_legal = (table["core"] >= 1) & (table["core"] <= table["members"]) & (table["rows"] >= 0)
    is_legal &= np.isfinite(table["surprise"]) & (table["held"] < len(HELD_BY)) & (table["id"] < 1 << ID_BITS)
    is_legal &= (table["members"] <= graph.num_nodes) & (table["rows"] <= num_rows)
    sums = int(counts[0].sum()), int(counts[2].sum()), 0 <= about["num_flagged"] <= len(table)
    if not is_legal.all() or sums != (len(members), len(rows), True):
        raise files.FolderError(f"{folder / 'cases.npy'} does not fit to the files beside it")
    return Cases(table, members, rows, about["num_flagged"], about["changes"])


def _within(most: int) -> Any:
    return lambda block: (block >= 0) & (block < most)


def first_ids(graph: Graph, cores: list[Nodes]) -> NDArray[np.uint64]:
    """Ids of cases by the ids of their cores, in whatever order, all different.

    >>> first_ids(Graph(np.zeros(4, np.int64), np.zeros(0, np.int32)), [np.array([0, 2]), np.array([1])]).tolist()
    [1106922247555986, 1025786990632841]
    """
    if not cores:
        return np.zeros(0, np.uint64)
    nodes, sizes = np.concatenate(cores), [len(core) for core in cores]
    names = nodes if graph.ids is None else graph.ids.take(pa.array(nodes)).to_pylist()
    digests = np.fromiter((xxh3_64_intdigest(str(name).encode()) for name in names), np.uint64, len(nodes))
    sums = np.add.reduceat(digests, np.cumsum([0, *sizes[:-1]]))
    out = (sums * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - ID_BITS)
    first, taken = np.unique(out, return_index=True)[1], set[int]()
    if len(first) < len(out):
        for at, number in enumerate(out.tolist()):
            while number in taken:
                number = (number + 1) % (1 << ID_BITS)
            taken.add(number)
            out[at] = number
    return out


def _number(text: str) -> int:
    """The number that an id stands for; one that no case has where it is none."""
    digits = [_LETTERS.find(letter) for letter in text]
    if len(digits) != ID_BITS // 5 or min(digits) < 0:
        return (1 << 64) - 1
    return sum(digit << 5 * place for place, digit in enumerate(reversed(digits)))


def id_text(number: int) -> str:
    """The id of a case as people write it.

    >>> id_text(0), id_text((1 << 50) - 1)
    ('0000000000', 'ZZZZZZZZZZ')
    """
    return "".join(_LETTERS[number >> 5 * place & 31] for place in reversed(range(ID_BITS // 5)))
