"""Which case of a run is which of the runs before, and what has changed: new, grown, shrunk, split, joined or gone.

Two cases are the same where they share at least half of the members of the smaller one, and two members if both have
more than one; of several that do so the one that shares most is, each once. So a case keeps its id while members come
and go. `known` is the memory of a run, and the one file that the next needs: the ids of the members of every case of
two nodes or more, or flagged, of this run and of the thirty before; one that was not there today may come back.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.text import clip, counted
from hcm_scale.cases.store import ID_BITS, Cases, id_text
from hcm_scale.graph.store import Graph

KNOWN_FILE = "known.parquet"
_KNOWN = pa.schema([("case", pa.uint64()), ("member", pa.large_string()), ("age", pa.int32()), ("flagged", pa.bool_())])
_OLDEST = 30  # runs since a case was last seen
_MOST_TOLD, _LINE = 1000, 400  # ids of members in a list of changes; characters of a line
_MOST_ENTRIES, _MOST_BYTES = 1 << 24, 1 << 30  # of the file, which somebody else may have written
_CROWDED = 256  # cases of a run with the same member, beyond which it is a hub
_LEAST_PAIRS, _MOST_PAIRS = 1 << 20, 8  # of cases with the same member, in all, and an entry, beyond which others are


class Known(NamedTuple):
    """Cases by their ids: the case of every entry, by position, which rises, and the member's id, as text."""

    ids: NDArray[np.uint64]
    age: NDArray[np.int32]
    flagged: NDArray[np.bool_]
    case: NDArray[np.int64]
    member: pa.Array

    @staticmethod
    def of(graph: Graph, cases: Cases) -> "Known":
        """Those of a run that are worth remembering."""
        positions = np.flatnonzero((cases.table["members"] > 1) | (np.arange(len(cases)) < cases.num_flagged))
        chosen = np.isin(cases.number_of_member, positions)
        nodes = pa.array(cases.members[chosen])
        names = (nodes if graph.ids is None else graph.ids.take(nodes)).cast(pa.large_string())
        case = np.searchsorted(positions, cases.number_of_member[chosen])
        return Known(
            cases.table["id"][positions],
            np.zeros(len(positions), np.int32),
            positions < cases.num_flagged,
            case,
            pa.concat_arrays(names.chunks) if isinstance(names, pa.ChunkedArray) else names,
        )

    def table(self) -> pa.Table:
        columns = [self.ids[self.case], self.member, self.age[self.case], self.flagged[self.case]]
        return pa.table(columns, schema=_KNOWN)

    def members(self, at: int) -> list[str]:
        low, high = np.searchsorted(self.case, [at, at + 1])
        return self.member[low:high].to_pylist()


def read_known(folder: Path) -> Known:
    """What a run remembers; FolderError where its file is not one."""
    path = files.path_inside(folder, KNOWN_FILE)
    try:
        with files.open_regular(path) as stream, pq.ParquetFile(stream, read_dictionary=["member"]) as file:
            sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]
            if file.metadata.num_rows > _MOST_ENTRIES or sum(sizes) > _MOST_BYTES:
                raise ValueError(f"it has {file.metadata.num_rows:,} rows of {sum(sizes):,} bytes, more than any run's")
            if file.schema.to_arrow_schema().remove_metadata() != _KNOWN:
                raise ValueError("it has other columns")
            table = file.read()
        if any(column.null_count for column in table.columns):
            raise ValueError("it has gaps")
        lengths = [pc.binary_length(each.dictionary).take(each.indices) for each in table["member"].chunks]
        if sum(pc.sum(each).as_py() or 0 for each in lengths) > _MOST_BYTES:
            raise ValueError(f"its ids have over {_MOST_BYTES:,} bytes")
        table = table.cast(_KNOWN)
        table.validate(full=True)
        low, high = (end or 0 for end in pc.min_max(table["age"]).as_py().values())
        if (pc.max(table["case"]).as_py() or 0) >> ID_BITS or low < 0 or high > _OLDEST:
            raise ValueError(f"ids of cases are below 2^{ID_BITS}, and ages 0 to {_OLDEST}")
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise files.FolderError(f"{path} cannot be read as what a run remembers of its cases: {error}") from error
    ids, first, case = np.unique(table["case"].to_numpy(), return_index=True, return_inverse=True)
    age, flagged = table["age"].to_numpy()[first], table["flagged"].to_numpy()[first]
    order = np.argsort(case, kind="stable")
    return Known(ids, age, flagged, case[order], table["member"].combine_chunks().take(pa.array(order)))


def write_known(folder: Path, today: Known, before: Known | None) -> None:
    """Writes what the next run is told: today's cases, and earlier ones that are not among them."""
    tables = [today.table()]
    if before is not None:
        older = before._replace(age=before.age + 1)
        gone = (older.age <= _OLDEST) & ~np.isin(older.ids, today.ids)
        tables.append(older.table().filter(pa.array(gone[older.case])))
    pq.write_table(pa.concat_tables(tables), folder / KNOWN_FILE, compression="zstd")


def shared_members(before: Known, after: Known) -> "scipy.sparse.csr_array":
    """How many members each case of one run shares with each of another, (cases before, cases after).

    0 where hubs are all that they share: a member of very many cases would make as many pairs as their square.
    """
    names = pc.unique(before.member)
    width = len(names)

    def has(known: Known) -> "scipy.sparse.csr_array":
        at = pc.index_in(known.member, names).fill_null(-1).to_numpy()
        is_known = at >= 0
        ones = np.ones(np.count_nonzero(is_known), np.int64)
        return scipy.sparse.csr_array((ones, (known.case[is_known], at[is_known])), shape=(len(known.ids), width))

    both = has(before), has(after)
    counts = [one.sum(axis=0) for one in both]
    is_hub = np.maximum(*counts) > _CROWDED
    pairs, most = np.where(is_hub, 0, counts[0] * counts[1]), _MOST_PAIRS * (len(before.case) + len(after.case))
    order = np.argsort(pairs, kind="stable")
    is_hub[order[np.cumsum(pairs[order]) > max(_LEAST_PAIRS, most)]] = True
    shared = (both[0][:, ~is_hub] @ both[1][:, ~is_hub].T).tocoo()
    hubs = both[0][:, is_hub][shared.row].multiply(both[1][:, is_hub][shared.col]).sum(axis=1)
    return scipy.sparse.csr_array((shared.data + hubs, (shared.row, shared.col)), shape=shared.shape)


class Matches(NamedTuple):
    """Positions of cases of two runs that are the same, and pairs of others that overlap as much, (before, after)."""

    same: dict[int, int]
    overlap: list[tuple[int, int]]


def match(before: Known, after: Known) -> Matches:
    """The case before of each case that is there now, and others that were split from it or joined to it."""
    shared = shared_members(before, after).tocoo()
    sizes = np.bincount(before.case, minlength=len(before.ids)), np.bincount(after.case, minlength=len(after.ids))
    smaller = np.minimum(sizes[0][shared.row], sizes[1][shared.col])
    is_same = (2 * shared.data >= smaller) & (
        shared.data >= np.minimum(2, np.maximum(sizes[0][shared.row], sizes[1][shared.col]))
    )
    old, new, count = shared.row[is_same], shared.col[is_same], shared.data[is_same]
    same, overlap, taken = dict[int, int](), list[tuple[int, int]](), set[int]()
    for at in np.lexsort((new, before.ids[old], before.age[old], -count)).tolist():
        if int(new[at]) in same or int(old[at]) in taken:
            overlap.append((int(old[at]), int(new[at])))
            continue
        same[int(new[at])] = int(old[at])
        taken.add(int(old[at]))
    return Matches(same, overlap)


def with_lasting_ids(graph: Graph, cases: Cases, before: Known, since: str) -> Cases:
    """The cases with the ids that they have had before, and what has changed since."""
    today = Known.of(graph, cases)
    matches = match(before, today)
    ids, position = cases.table["id"].copy(), {int(each): at for at, each in enumerate(cases.table["id"].tolist())}
    taken = {int(each) for each in before.ids}
    for new, old in matches.same.items():
        ids[position[int(today.ids[new])]] = before.ids[old]
    renamed = {position[int(today.ids[new])] for new in matches.same}
    for at in range(len(ids)):  # a new case never has the id of one that was known
        while at not in renamed and int(ids[at]) in taken:
            ids[at] = (int(ids[at]) + 1) % (1 << ID_BITS)
        taken.add(int(ids[at]))
    table = cases.table.copy()
    table["id"] = ids
    named = Cases(table, cases.members, cases.rows, cases.num_flagged)
    told = changes(before, today._replace(ids=Known.of(graph, named).ids), matches)
    return Cases(table, cases.members, cases.rows, cases.num_flagged, {"since": since} | told)


def changes(before: Known, after: Known, matches: Matches) -> dict[str, Any]:
    """What has changed of cases that are flagged in either run, by what happened to them."""
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in ("new", "grown", "shrunk", "changed", "gone")}
    num_same = 0
    split, joined = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for earlier, new in matches.overlap:
        which = joined if new in matches.same else split
        which[new].append(id_text(int(before.ids[earlier])))
    for at in range(len(after.ids)):
        old = matches.same.get(at)
        if not (after.flagged[at] or (old is not None and before.flagged[old] and before.age[old] == 0)):
            continue
        about: dict[str, Any] = {"id": id_text(int(after.ids[at]))}
        about |= {"split_from": split[at]} if at in split else {}
        about |= {"joined_by": joined[at]} if at in joined else {}
        if old is None or (after.flagged[at] and not before.flagged[old]):
            told["new"].append(about | {"members": after.members(at)[:_MOST_TOLD]})
            continue
        own, others = {*after.members(at)}, {*before.members(old)}
        entered, left = sorted(own - others), sorted(others - own)
        about |= {"entered": entered[:_MOST_TOLD], "left": left[:_MOST_TOLD]}
        about |= {"back_after": int(before.age[old])} if before.age[old] else {}
        if not entered and not left and not before.age[old]:
            num_same += 1
        else:
            how = "grown" if len(entered) > len(left) else "shrunk" if len(left) > len(entered) else "changed"
            told[how].append(about)
    seen = {*matches.same.values(), *(old for old, _ in matches.overlap)}
    for old in np.flatnonzero(before.flagged & (before.age == 0)).tolist():
        if old not in seen:
            told["gone"].append({"id": id_text(int(before.ids[old])), "members": before.members(old)[:_MOST_TOLD]})
    return told | {"num_same": num_same}


def changes_line(told: Mapping[str, Any]) -> str:
    """How many cases are new, grown and so on, in one line.

    >>> changes_line({"new": [1], "grown": [1, 2], "shrunk": [], "changed": [], "gone": [], "num_same": 3})
    '1 new, 2 grown, 3 as before'
    """
    counts = [(len(told[name]), name) for name in ("new", "grown", "shrunk", "changed", "gone")]
    said = [f"{count:,} {name}" for count, name in [*counts, (told["num_same"], "as before")] if count]
    return ", ".join(said) or "none was flagged, and none is"


def changes_text(told: Mapping[str, Any], cases: Cases) -> list[str]:
    """A line for every case that is not as it was, with the number of those that are among today's cases."""
    lines = []
    for name in ("new", "grown", "shrunk", "changed", "gone"):
        positions = cases.positions([one["id"] for one in told[name]]).tolist()
        for one, at in zip(told[name], positions, strict=True):
            which = f"case {cases.numbers[at]:,} ({one['id']})" if at >= 0 else f"case {one['id']}"
            parts = [f"{name}: {_few(one['members'])}" if "members" in one else name]
            parts += [
                f"{word} {_few(one[key])}" for key, word in (("entered", "with"), ("left", "without")) if one.get(key)
            ]
            parts += [f"back after {counted(one['back_after'], 'run')}"] if one.get("back_after") else []
            parts += [
                f"{key.replace('_', ' ')} {', '.join(one[key])}" for key in ("split_from", "joined_by") if key in one
            ]
            lines.append(clip(f"{which} {', '.join(parts)}", _LINE))
    return lines


def _few(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
