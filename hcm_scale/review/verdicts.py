"""Verdicts of people about nodes: one file beside a run, to which lines are added and nothing else is ever done.

    RUN/verdicts.jsonl    {"id":"a17","verdict":"bad","time":"2026-11-17T09:30:00.000Z","by":"anna"}

A verdict is `bad`, `good`, `unsure`, or `none`, which takes an earlier one back; ids are text, whatever they are in the
graph. A verdict on a case (`review/cases.py`) is a line for each of its nodes, with `case` and, if there is one,
`note`. Of several verdicts on an id the last line counts. The file is no part of a stage, so that a new run in the same
folder keeps it.

Other words change cases: `part`, case `id` is told as a part of `case`, or by itself where that is its own, and `out`
or `in`, node `id` is no member of `case`, or one again. A verdict that was given on a case does not count for a node
that was taken out of it, as long as it is.

Lines are added in one piece under a lock on the file and flushed to the disk: reviewers at the same time lose nothing,
and a kill or a full disk loses at most what was being written. What is left of such a line is marked by whoever writes
next, and readers leave it out and say so. Any other line that cannot be read is an error with its number; nothing is
rewritten. Reading takes about 100 bytes of memory a line.

`read_table` reads verdicts that others wrote: CSV, TSV, Parquet or a table in memory, whose columns are guessed.
"""

import getpass
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.console import missing_file_text
from hcm_scale.base.sheets import without_quotes
from hcm_scale.base.text import counted
from hcm_scale.base.threads import run_in_slices
from hcm_scale.graph import Graph
from hcm_scale.ingest.policy import InputError, shown_names
from hcm_scale.ingest.table_files import CSV_GAPS, TableFiles, TableSource, open_table

FILE, OF = "verdicts.jsonl", "of"
GOOD, BAD, UNSURE, NONE = range(4)
NAMES = ("good", "bad", "unsure", "none")  # by code
_CHANGES = PART, OUT, IN = "part", "out", "in"
_WORDS = {
    GOOD: "good 0 0.0 false no n g ok okay normal negative legit legitimate genuine clean fine benign",
    BAD: "bad 1 1.0 true yes y b fraud fraudulent anomaly anomalous positive spam banned suspicious odd",
    UNSURE: "unsure u ? -1 -1.0 unknown maybe unclear uncertain",
    NONE: "none undo",
}
_CODES = {word: code for code, words in _WORDS.items() for word in words.split()}
LEGAL = "bad, good, unsure (or 1 and 0, true and false, yes and no, fraud and ok), none to take one back, or nothing"
_TORN = b"#torn\n"  # ends what a kill left of a line
_TEXT = pa.large_string()
_ABOUT = [("time", pa.timestamp("ms", "UTC")), ("by", pa.string()), ("case", pa.string()), ("note", pa.string())]
_SCHEMA = pa.schema([("id", _TEXT), ("verdict", pa.string()), *_ABOUT])
_SLICE_BYTES, _LINES_AT_ONCE = 1 << 26, 1 << 16
_VERDICT_COLUMNS, _ID_COLUMNS = re.compile("verdicts?|labels?|y|(is_?)?(fraud|bad)|outcome|class", re.I), ("id", "node")
_MAX_BYTES = 4 << 30  # that a packed table may unpack to
_SHOWN = 5  # ids in a message
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,18}")
Codes = NDArray[np.int8]


@dataclass(frozen=True)
class CaseChanges:
    """What people changed of cases: lines that count, by the case, or the case and the node, that each is about."""

    lines: dict[tuple[str, ...], dict[str, Any]]

    @cached_property
    def part_of(self) -> dict[str, str]:
        """The id that each case is told under that is a part of others."""
        return {key[0]: line["case"] for key, line in self.lines.items() if len(key) == 1 and line["case"] != key[0]}

    def told_under(self, case: str) -> str:
        return self.part_of.get(case, case)

    def parts(self, under: str) -> list[str]:
        """The cases that are told under an id, itself, or those of one that is no case by itself."""
        return [under] * (under not in self.part_of) + [case for case, own in self.part_of.items() if own == under]

    @cached_property
    def taken_out(self) -> list[tuple[str, str]]:
        """Cases, and nodes that are none of their members."""
        return [(key[0], key[1]) for key, line in self.lines.items() if line["verdict"] == OUT]

    @staticmethod
    def of(lines: pa.Table) -> "CaseChanges":
        counting: dict[tuple[str, ...], dict[str, Any]] = {}
        for line in lines.to_pylist():
            key = (line["id"],) if line["verdict"] == PART else (line["case"], line["id"])
            counting.pop(key, None)
            counting[key] = line
        return CaseChanges(counting)

    def since(self, known: "CaseChanges") -> list[dict[str, Any]]:
        """Lines about what another run has said nothing of."""
        return [line for key, line in self.lines.items() if key not in known.lines]

    def counting(self, lines: pa.Table) -> pa.Table:
        """Lines with verdicts, but those on cases that their nodes were taken out of."""
        pairs = pc.binary_join_element_wise(lines["case"].cast(_TEXT), lines["id"], pa.scalar("\n", _TEXT))
        out = pa.array(["\n".join(pair) for pair in self.taken_out], _TEXT)
        return lines.filter(pc.invert(pc.is_in(pairs, out))) if len(out) else lines


class Verdicts(NamedTuple):
    """The verdict that counts of every id, in the order of the file: the columns id, code, time, by, case and note.

    `code` is GOOD, BAD or UNSURE. `is_own` says of every row whether that was said of the id itself, and not only of a
    case that it is in. `notes` are what a person should be told about the file.
    """

    table: pa.Table
    is_own: NDArray[np.bool_]
    notes: list[str]
    changes: CaseChanges

    @property
    def codes(self) -> Codes:
        return self.table["code"].to_numpy()

    @property
    def cases(self) -> pa.Array:
        """The case that the verdict of every row is told with now, null for none."""
        case = self.table["case"].combine_chunks()
        at = pc.index_in(case, pa.array([*self.changes.part_of], pa.string()))
        return pc.coalesce(pa.array([*self.changes.part_of.values()], pa.string()).take(at), case)

    def by_id(self) -> dict[str, str]:
        return dict(zip(self.table["id"].to_pylist(), (NAMES[code] for code in self.codes.tolist()), strict=True))


# Adding lines.


class Line(NamedTuple):
    """A verdict on an id, one of NAMES, and the case that it was given on, if any, with a note; or a case's change."""

    name: Any
    verdict: str
    case: str = ""
    note: str = ""


def append(run_dir: Path, given: Iterable[tuple[Any, ...]], by: str | None = None) -> None:
    """Adds lines, a `Line` or (id, one of NAMES) each, of a person, by default the user of this process."""
    stamp, lines = _stamp(_user() if by is None else by, datetime.now(UTC)), []
    for line in itertools.starmap(Line, given):
        if line.verdict not in (*NAMES, *(_CHANGES if line.case else ())):
            raise ValueError(f"verdict {line.verdict!r} on {line.name!r} is not legal; legal are {', '.join(NAMES)}")
        lines.append(_line(line, stamp))
    _append(run_dir, lines)


def append_known(run_dir: Path, given: pa.Table, changes: Iterable[dict[str, Any]] = ()) -> None:
    """Adds lines of another run with their time and author: rows of a `Verdicts.table`, and lines that change cases."""
    codes = (row for batch in given.to_batches(_LINES_AT_ONCE) for row in batch.to_pylist())
    rows = itertools.chain(changes, (row | {"verdict": NAMES[row["code"]]} for row in codes))
    while some := [*itertools.islice(rows, _LINES_AT_ONCE)]:
        said = [Line(row["id"], row["verdict"], row["case"] or "", row["note"] or "") for row in some]
        stamps = [_stamp(row["by"] or "", row["time"]) for row in some]
        _append(run_dir, [_line(*one) for one in zip(said, stamps, strict=True)])


def _line(line: Line, stamp: str) -> str:
    about = "".join(
        f',"{key}":{encode_basestring(text)}' for key, text in zip(("case", "note"), line[2:], strict=True) if text
    )
    return f'{{"id":{encode_basestring(str(line.name))},"verdict":"{line.verdict}",{stamp}{about}}}\n'


def _stamp(by: str, time: datetime | None) -> str:
    """The author and, where it is known, the time, as they end a line."""
    shown = time and time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (f'"time":"{shown}",' if shown else "") + f'"by":{encode_basestring(by)}'


def _append(run_dir: Path, lines: Sequence[str]) -> None:
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is not the folder of a run")
    path = files.path_inside(run_dir, FILE)
    with files.file_lock(path), files.open_regular(path, "r+b", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_nlink > 1:  # of `cp -l`: the other run would get these verdicts too
            raise files.FolderError(f"{path} is the same file as another (a hard link); put a copy of it in its place")
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LINES_AT_ONCE))
        left = stream.read().rpartition(b"\n")[2]
        end = b"" if not left else b"\n" if _is_whole(left) else _TORN
        data = memoryview(end + "".join(lines).encode())
        while data:  # one call, unless the system takes less
            data = data[stream.write(data) :]
        os.fsync(stream.fileno())
    files.sync_file(run_dir)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without names
        return ""


# Reading.


def latest(run_dir: Path) -> Verdicts:
    """The verdicts of a run that count; none where there is no file. FolderError names a line that is damaged."""
    path, notes = files.path_inside(run_dir, FILE), list[str]()
    lines = pa.concat_tables([_SCHEMA.empty_table(), *(_slices(path, notes) if path.exists() else ())])
    is_change = pc.is_in(lines["verdict"], pa.array(_CHANGES))
    changes = CaseChanges.of(lines.filter(is_change))
    if changes.lines:
        lines = changes.counting(lines.filter(pc.invert(is_change)))
    (ids, number, last), codes = last_rows(lines["id"]), pc.index_in(lines["verdict"], pa.array(NAMES)).to_numpy()
    counts = codes[last[number]]
    taken_back = np.full(len(ids), -1)
    taken_back[number[codes == NONE]] = np.flatnonzero(codes == NONE)
    other = (codes != counts) & (counts != NONE) & (np.arange(len(codes)) > taken_back[number])
    if other.any():
        shown = shown_ids(ids.take(pa.array(np.unique(number[other]))))
        notes.append(f"different verdicts on the same node, of which the last one counts: {shown}")
    said_of_id = lines["case"].is_null().to_numpy() & (codes == counts) & (np.arange(len(codes)) > taken_back[number])
    is_own = np.zeros(len(ids), np.bool_)
    is_own[number[said_of_id]] = True
    rows = np.sort(last[codes[last] != NONE])
    kept = lines.select(["id", *dict(_ABOUT)]).take(pa.array(rows))
    kept = kept.append_column("code", pa.array(codes[rows].astype(np.int8)))
    return Verdicts(kept, is_own[number[rows]], notes, changes)


def last_rows(ids: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.integer], NDArray[np.int64]]:
    """Every id once, for each row the number of its id among these, and the last row of each."""
    encoded = ids.combine_chunks().dictionary_encode()
    number, last = encoded.indices.to_numpy(), np.empty(len(encoded.dictionary), np.int64)
    last[number] = np.arange(len(number))
    return encoded.dictionary, number, last


def _slices(path: Path, notes: list[str]) -> Iterator[pa.Table]:
    """Lines of the file, some at a time; adds to `notes` what was left out."""
    number, num_torn = 1, 0
    with files.open_regular(path) as stream:
        while chunk := stream.read(_SLICE_BYTES):
            chunk += stream.readline()
            if not chunk.endswith(b"\n") and not _is_whole(chunk.rpartition(b"\n")[2]):
                chunk += _TORN
            if _TORN in chunk:
                chunk, count = re.subn(rb"(?m)^.*#torn$", b"", chunk)
                num_torn += count
            yield _parse(path, chunk, number)
            number += chunk.count(b"\n")
    if num_torn:
        notes.append(f"{FILE}: unfinished lines that a stopped program left ({num_torn}); all others are read")


def _parse(path: Path, chunk: bytes, first: int) -> pa.Table:
    try:
        return _read_lines(chunk)
    except ValueError as error:
        why = str(error)
    for number, line in enumerate(chunk.split(b"\n"), first):
        if not _is_whole(line):
            shown = line[:80].decode(errors="replace")
            legal = f'legal is {{"id":"...","verdict":"..."}}, with one of {", ".join(NAMES)}'
            raise files.FolderError(
                f"{path}: line {number:,} is damaged: {shown!r}; {legal}. Mend or remove that line; nothing was changed"
            )
    raise files.FolderError(f"{path} is damaged at or after line {first:,}: {why}")


def _read_lines(text: bytes) -> pa.Table:
    if not text.strip():
        return _SCHEMA.empty_table()
    if not text.lstrip().startswith(b"{"):  # rows of null alone end the process in pyarrow 26
        raise ValueError("a line is no object")
    options = pajson.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    whole = pajson.ReadOptions(block_size=len(text) + 1)  # no line is longer than a block
    lines = pajson.read_json(io.BytesIO(text), whole, options)
    lines.validate(full=True)
    words, is_change = lines["verdict"], pc.is_in(lines["verdict"], pa.array(_CHANGES))
    if lines["id"].null_count or not pc.all(pc.or_(is_change, pc.is_in(words, pa.array(NAMES)))).as_py():
        raise ValueError("a line has no id, or no verdict")
    if pc.any(pc.and_(is_change, pc.is_null(lines["case"]))).as_py():
        raise ValueError("a line that changes a case names none")
    return lines


def _is_whole(line: bytes) -> bool:
    try:
        return _read_lines(line) is not None
    except ValueError:
        return False


# Verdicts that others wrote.


def numbered(graph: Graph) -> str:
    """What a sheet says of the graph whose numbers its ids are: in another graph they are those of other nodes."""
    return f"graph {graph.fingerprint[:12]}"


def read_table(source: TableSource, id_names: Sequence[str] = (), of: Graph | None = None) -> tuple[pa.Table, str]:
    """The columns id and code of a table, rows without a verdict left out, and what was guessed, in words.

    The verdict is the column of that name or one like it, else the one whose first values are verdicts; the id is the
    column `id`, one of `id_names`, or the first of the others. InputError names a row that cannot be read.
    """
    if not isinstance(source, pa.Table) and not Path(source).exists():
        raise InputError(missing_file_text(str(source)))
    table = open_table("verdicts", source, _MAX_BYTES)
    names = [name for name in table.schema.names if name not in table.index_columns]
    about = {*table.first_batch([OF]).column(0).drop_null().to_pylist()} if OF in names else set()
    if of is not None and of.ids is None and about - {numbered(of)}:
        why = "its ids are numbers of nodes of another graph than that of the run, which was made again since"
        raise InputError(f"{table.origin}: {why}; hcm-scale review writes a new list")
    verdict = _verdict_column(table, names)
    others = [name for name in names if name != verdict]
    named = [name for name in others if name.lower() in (*_ID_COLUMNS, *map(str.lower, id_names))]
    if not others:
        raise InputError(f"{table.origin} has the columns {shown_names(names)}; legal are an id and a verdict")
    key = (named or others)[0]
    table, are_numbers = replace(table, gap_words=("",)), pa.types.is_integer(table.type_of(key))
    for name in (key, verdict):  # floats of Parquet and pandas are whole numbers beside gaps
        is_float = pa.types.is_floating(table.type_of(name)) and not table.is_csv
        table = table.with_casts({name: pa.int64() if is_float else pa.large_string()})
    chunks, row = [pa.schema([("id", pa.large_string()), ("code", pa.int8())]).empty_table()], 0
    for batch in table.batches([key, verdict]):
        ids, words = (batch[name].cast(pa.large_string()) for name in (key, verdict))
        ids = pc.utf8_trim_whitespace(ids) if are_numbers else ids  # spaces before a number are no part of it
        chunks.append(_read_batch(table, ids, words, row))
        row += len(batch)
    given = pa.concat_tables(chunks)
    num_rows = f"{counted(len(given), 'verdict')} of {counted(row, 'row')}"
    return given, f"{num_rows} in {table.origin}: id in column {key}, verdict in {verdict}"


def _verdict_column(table: TableFiles, names: Sequence[str]) -> str:
    named = [name for name in names if _VERDICT_COLUMNS.fullmatch(name)]
    if "verdict" in named or len(named) == 1:
        return "verdict" if "verdict" in named else named[0]
    able = []
    for name in named or names:
        values = table.first_batch([name]).column(0).cast(pa.large_string()).drop_null().unique().to_pylist()
        able += [name] if values and all(_code_of(value) >= 0 for value in values) else []
    if len(able) == 1:
        return able[0]
    raise InputError(
        f"{table.origin} has the columns {shown_names(names)}, of which {shown_names(able) if able else 'none'} may "
        f"hold verdicts; legal is one column named verdict, with {LEGAL}"
    )


def _code_of(word: str) -> int:
    """The code of a word that people write for a verdict, -1 for any other.

    >>> [_code_of(word) for word in ("Fraud", " ok", "0", "perhaps")]
    [1, 0, 0, -1]
    """
    return _CODES.get(word.strip().lower(), -1)


def _read_batch(table: TableFiles, ids: pa.Array, verdicts: pa.Array, first: int) -> pa.Table:
    """The rows of a batch, whose first row has this number in the table, that have a verdict."""
    words = verdicts.dictionary_encode()
    given = [word.strip() for word in words.dictionary.to_pylist()]
    codes = np.array([-2 if word in CSV_GAPS else _code_of(word) for word in given] + [-2], np.int8)
    code = codes[words.indices.fill_null(len(codes) - 1).to_numpy()]
    ids = without_quotes(ids) if table.is_csv else ids  # as `hcm-scale review` writes them
    nameless = pc.equal(ids, "").fill_null(True).to_numpy(zero_copy_only=False)
    no_verdict = f"{{!r:.60}} is no verdict; legal are {LEGAL}"
    for is_wrong, what in ((code == -1, no_verdict), (nameless & (code >= 0), "a verdict without an id")):
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            where = f"{table.rows_of(table.origin)}, {table.describe_row(first + row)}"
            raise InputError(f"{where}: {what.format(verdicts[row].as_py())}")
    return pa.table({"id": ids, "code": code}).filter(pa.array(code >= 0))


def find_nodes(graph: Graph, ids: pa.Array) -> NDArray[np.int64]:
    """The node of every id, given as text, -1 where the graph has none; ids differ."""
    own, wanted = graph.ids, ids
    if own is None or pa.types.is_integer(own.type):
        wanted = pa.array([_number(text) for text in ids.to_pylist()], pa.int64())
    if own is None:
        numbers = wanted.fill_null(-1).to_numpy()
        return np.where((numbers >= 0) & (numbers < graph.num_nodes), numbers, -1)
    out = np.full(len(ids), -1)

    def look_up(rows: slice) -> None:
        some = own.slice(rows.start, rows.stop - rows.start).cast(wanted.type)
        wanted_at = pc.index_in(some, wanted).fill_null(-1).to_numpy()
        (held,) = np.nonzero(wanted_at >= 0)
        out[wanted_at[held]] = rows.start + held

    run_in_slices(graph.num_nodes, look_up, max(1 << 20, len(ids)))
    return out


def _number(text: str) -> int | None:
    """The 64-bit number that is written so and not otherwise, if it is one.

    >>> [_number(text) for text in ("12", "012", "1e3", "-5", "9" * 30)]
    [12, None, None, -5, None]
    """
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else 1 << 63
    return number if -(1 << 63) <= number < 1 << 63 else None


def shown_ids(ids: pa.Array) -> str:
    """The first ids, for a message."""
    shown = ", ".join(map(str, ids.slice(0, _SHOWN).to_pylist()))
    return f"{shown} and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else shown
