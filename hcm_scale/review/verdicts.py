"""Verdicts of people about nodes: one file beside a run, to which lines are added and nothing else is ever done.

    RUN/verdicts.jsonl    {"id":"a17","verdict":"bad","time":"2026-11-17T09:30:00.000Z","by":"anna"}
                          {"id":"b4","drawn":"random","chance":0.0005,"of":20000,"time":...,"by":...}

A verdict is `bad`, `good`, `unsure`, or `none`, which takes an earlier one back; ids are text, whatever they are in the
graph. A line of a draw says that a node was shown for a verdict, why, with which chance, and of how many nodes: the
verdict that follows has this chance. The file is no part of a stage, so that a new run in the same folder keeps it.

Lines are added in one piece under a lock on the file and flushed to the disk: reviewers at the same time lose nothing,
and a kill loses at most the line being written. What a kill left of such a line is marked by whoever writes next, and
readers leave it out and say so. Any other line that cannot be read is an error with its number; nothing is rewritten.
Of several verdicts on an id the last line counts. Reading takes about 100 bytes of memory a line, and a minute for ten
million of them.

`read_table` reads verdicts that others wrote: CSV, TSV, Parquet or a table in memory, whose columns are guessed.
"""

import getpass
import io
import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
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
from hcm_scale.graph import Graph
from hcm_scale.ingest.policy import InputError, shown_names
from hcm_scale.ingest.table_files import TableFiles, TableSource, open_table

FILE = "verdicts.jsonl"
GOOD, BAD, UNSURE, NONE = range(4)
NAMES = ("good", "bad", "unsure", "none")  # by code
_WORDS = {
    GOOD: "good 0 0.0 false no n g ok okay normal negative legit legitimate genuine clean fine benign",
    BAD: "bad 1 1.0 true yes y b fraud fraudulent anomaly anomalous positive spam banned suspicious odd",
    UNSURE: "unsure u ? -1 -1.0 unknown maybe unclear uncertain",
    NONE: "none undo",
}
_CODES = {word: code for code, words in _WORDS.items() for word in words.split()}
LEGAL = "bad, good, unsure (or 1 and 0, true and false, yes and no, fraud and ok), none to take one back, or nothing"
_TORN = b"#torn\n"  # ends what a kill left of a line
_SCHEMA = pa.schema(
    [
        *(("id", pa.large_string()), ("verdict", pa.string()), ("drawn", pa.string()), ("chance", pa.float64())),
        *(("time", pa.timestamp("ms", "UTC")), ("by", pa.string())),
    ]
)
_SLICE_BYTES, _LINES_AT_ONCE = 1 << 26, 1 << 16
_VERDICT_COLUMNS, _ID_COLUMNS = re.compile("verdicts?|labels?|y|(is_?)?(fraud|bad)|outcome|class", re.I), ("id", "node")
_MAX_BYTES = 4 << 30  # that a packed table may unpack to
_SHOWN = 5  # ids in a message
Codes = NDArray[np.int8]


class Verdicts(NamedTuple):
    """The verdict that counts of every id, in the order of the file: the columns id, code, chance, time and by.

    `code` is GOOD, BAD or UNSURE; `chance` that of a random draw, NaN where the node was chosen in another way. `notes`
    are what a person should be told about the file.
    """

    table: pa.Table
    notes: list[str]

    @property
    def codes(self) -> Codes:
        return self.table["code"].to_numpy()

    def by_id(self) -> dict[str, str]:
        """The verdict by id, in words."""
        return dict(zip(self.table["id"].to_pylist(), (NAMES[code] for code in self.codes.tolist()), strict=True))


# Adding lines.


def append(run_dir: Path, given: Iterable[tuple[Any, str]], by: str | None = None) -> None:
    """Adds verdicts, (id, one of NAMES) each, of a person, by default the user of this process."""
    given, stamp = list(given), _stamp(by)
    for external_id, verdict in given:
        if verdict not in NAMES:
            raise ValueError(f"verdict {verdict!r} on {external_id!r} is not legal; legal are {', '.join(NAMES)}")
    _append(run_dir, (f'{{"id":{_quoted(name)},"verdict":"{verdict}",{stamp}}}' for name, verdict in given))


def append_draws(run_dir: Path, drawn: Iterable[tuple[Any, str, float]], of: int, by: str | None = None) -> None:
    """Adds draws, (id, why, chance) each, from a list of so many nodes; a chance of NaN is none."""
    lines, stamp = [], _stamp(by)
    for name, why, chance in drawn:
        known = "" if np.isnan(chance) else f',"chance":{float(chance)!r}'
        lines.append(f'{{"id":{_quoted(name)},"drawn":"{why}"{known},"of":{of},{stamp}}}')
    _append(run_dir, lines)


def append_known(run_dir: Path, known: pa.Table) -> None:
    """Adds verdicts of another run with their time and author: rows of a `Verdicts.table`."""
    rows = (row for batch in known.to_batches(_LINES_AT_ONCE) for row in batch.to_pylist())
    verdict = '{{"id":{},"verdict":"{}",{}}}'.format
    _append(run_dir, (verdict(_quoted(row["id"]), NAMES[row["code"]], _stamp(row["by"], row["time"])) for row in rows))


def _quoted(text: Any) -> str:
    return encode_basestring(str(text))


def _stamp(by: str | None, time: datetime | None = None) -> str:
    """The time, by default now, and the author, as they end a line."""
    shown = (time or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f'"time":"{shown}","by":{_quoted(_user() if by is None else by)}'


def _append(run_dir: Path, lines: Iterable[str]) -> None:
    """Adds lines and flushes them to the disk."""
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is not the folder of a run")
    path = run_dir / FILE
    with files.file_lock(path), open(path, "r+b", buffering=0) as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n" if _is_whole(_last_line(path)) else _TORN)
        part: list[str] = []
        for line in lines:
            part.append(line)
            if len(part) == _LINES_AT_ONCE:
                _write(stream, part)
                part = []
        _write(stream, part)
        os.fsync(stream.fileno())
    files.sync_file(run_dir)


def _write(stream: io.FileIO, lines: Sequence[str]) -> None:
    data = memoryview("".join(f"{line}\n" for line in lines).encode())
    while data:  # one call, unless the system takes less
        data = data[stream.write(data) :]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without names
        return ""


# Reading.


def latest(run_dir: Path) -> Verdicts:
    """The verdicts of a run that count; none where there is no file. FolderError names a line that is damaged."""
    path, notes = run_dir / FILE, list[str]()
    lines = pa.concat_tables([_SCHEMA.empty_table(), *(_slices(path, notes) if path.is_file() else ())])
    encoded = lines["id"].combine_chunks().dictionary_encode()
    number, of_row = encoded.indices.to_numpy(), _codes_of(lines["verdict"])
    (given,), (drawn,) = np.nonzero(of_row >= 0), np.nonzero(of_row < 0)
    last = np.full(len(encoded.dictionary), -1)  # row of the verdict that counts, by number of the id
    last[number[given]] = given
    chance = np.full(len(last), np.nan)
    before = drawn[drawn < last[number[drawn]]]
    chance[number[before]] = lines["chance"].to_numpy()[before]
    counts = of_row[last[number[given]]]
    other = np.unique(number[given[(of_row[given] != counts) & (of_row[given] != NONE) & (counts != NONE)]])
    if len(other):
        shown = shown_ids(encoded.dictionary.take(pa.array(other)))
        notes.append(f"different verdicts on the same node, of which the last one counts: {shown}")
    rows = np.sort(last[last >= 0])
    rows = rows[of_row[rows] != NONE]
    kept = lines.select(["id", "time", "by"]).take(pa.array(rows))
    kept = kept.append_column("code", pa.array(of_row[rows])).append_column("chance", pa.array(chance[number[rows]]))
    return Verdicts(kept, notes)


def _codes_of(verdicts: pa.ChunkedArray) -> Codes:
    """The code of each of NAMES, -1 for nulls."""
    found = pc.index_in(verdicts, pa.array(NAMES)).fill_null(-1)
    return found.cast(pa.int8()).to_numpy()


def _slices(path: Path, notes: list[str]) -> Iterator[pa.Table]:
    """Lines of the file, some at a time; adds to `notes` what was left out."""
    size, start, number, num_torn = path.stat().st_size, 0, 1, 0
    if not size:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[size - 1] != ord("\n") and not _is_whole(_last_line(path)):
            size, num_torn = data.rfind(b"\n") + 1, 1
        while start < size:
            stop = size if size - start <= _SLICE_BYTES else data.rfind(b"\n", start, start + _SLICE_BYTES) + 1
            part = data[start : stop if stop > start else size]
            if _TORN in part:
                lines = part.splitlines(keepends=True)
                whole = [b"\n" if line.endswith(_TORN) else line for line in lines]
                num_torn += sum(line.endswith(_TORN) for line in lines)
                yield _parse(path, b"".join(whole), number)
            else:
                yield _parse(path, part, number)
            start, number = start + len(part), number + part.count(b"\n")
    if num_torn:
        notes.append(f"{path}: unfinished lines that a stopped program left ({num_torn}); all others are read")


def _parse(path: Path, part: bytes, first: int) -> pa.Table:
    """The lines of a part of the file, which begins with line number `first`."""
    options = pajson.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    try:
        table = pajson.read_json(io.BytesIO(part), parse_options=options)
        table.validate(full=True)
        known = pc.or_(pc.is_in(table["verdict"], pa.array(NAMES)), pc.is_valid(table["drawn"]))
        if not table["id"].null_count and pc.all(known, min_count=0).as_py():
            return table
        why = "a line has no id, or no verdict"
    except pa.ArrowException as error:
        why = str(error)
    for number, line in enumerate(part.splitlines(), first):
        if line.strip() and not _is_whole(line):
            shown = line[:80].decode(errors="replace")
            legal = f'legal is {{"id":"...","verdict":"..."}}, with one of {", ".join(NAMES)}'
            raise files.FolderError(
                f"{path}: line {number:,} is damaged: {shown!r}; {legal}. Mend or remove that line; nothing was changed"
            )
    raise files.FolderError(f"{path} is damaged at or after line {first:,}: {why}")


def _is_whole(line: bytes) -> bool:
    """Whether a line holds a verdict or a draw."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    texts = ("id", "verdict", "drawn", "time", "by")
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and all(isinstance(value.get(name), str | None) for name in texts)
        and (value.get("verdict") in NAMES or (value.get("verdict") is None and value.get("drawn") is not None))
        and isinstance(value.get("chance"), int | float | None)
    )


def _last_line(path: Path) -> bytes:
    """What follows the last line break, at most a megabyte of it."""
    with open(path, "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - (1 << 20)))
        return stream.read().rpartition(b"\n")[2]


# Verdicts that others wrote.


def read_table(source: TableSource, id_names: Sequence[str] = ()) -> tuple[pa.Table, str]:
    """The columns id and code of a table, rows without a verdict left out, and what was guessed, in words.

    The verdict is the column of that name or one like it, else the one whose first values are verdicts; the id is the
    column `id`, one of `id_names`, or the first of the others. InputError names a row that cannot be read.
    """
    if not isinstance(source, pa.Table) and not Path(source).exists():
        raise InputError(missing_file_text(str(source)))
    table = open_table("verdicts", source, _MAX_BYTES)
    names = [name for name in table.schema.names if name not in table.index_columns]
    verdict = _verdict_column(table, names)
    others = [name for name in names if name != verdict]
    named = [name for name in others if name.lower() in (*_ID_COLUMNS, *map(str.lower, id_names))]
    if not others:
        raise InputError(f"{table.origin} has the columns {shown_names(names)}; legal are an id and a verdict")
    key = (named or others)[0]
    for name in (key, verdict):  # floats of Parquet and pandas are whole numbers beside gaps
        is_float = pa.types.is_floating(table.type_of(name)) and not table.is_csv
        table = table.with_casts({name: pa.int64() if is_float else pa.large_string()})
    parts, row = [pa.schema([("id", pa.large_string()), ("code", pa.int8())]).empty_table()], 0
    for batch in table.batches([key, verdict]):
        ids, words = (batch[name].cast(pa.large_string()) for name in (key, verdict))
        parts.append(_read_batch(table, ids, words, row))
        row += len(batch)
    found = pa.concat_tables(parts)
    return found, f"{len(found):,} verdicts of {row:,} rows in {table.origin}: id in column {key}, verdict in {verdict}"


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
    codes = np.array([_code_of(word) if word.strip() else -2 for word in words.dictionary.to_pylist()] + [-2], np.int8)
    code = codes[words.indices.fill_null(len(codes) - 1).to_numpy()]
    ids = pc.utf8_trim_whitespace(ids)
    nameless = pc.equal(ids, "").fill_null(True).to_numpy(zero_copy_only=False)
    no_verdict = f"{{!r:.60}} is no verdict; legal are {LEGAL}"
    for is_wrong, what in ((code == -1, no_verdict), (nameless & (code >= 0), "a verdict without an id")):
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            place = f"{table.rows_of(table.origin)}, {table.place(first + row)}"
            raise InputError(f"{place}: {what.format(verdicts[row].as_py())}")
    return pa.table({"id": ids, "code": code}).filter(pa.array(code >= 0))


def find_nodes(graph: Graph, ids: pa.Array) -> NDArray[np.int64]:
    """The node of every id, given as text, -1 where the graph has none; ids differ."""
    out, step = np.full(len(ids), -1), max(1 << 20, len(ids))  # so many nodes are looked up at a time
    for first in range(0, graph.num_nodes, step):
        stop = min(first + step, graph.num_nodes)
        own = pa.array(np.arange(first, stop)) if graph.ids is None else graph.ids.slice(first, stop - first)
        place = pc.index_in(own.cast(pa.large_string()), ids).fill_null(-1).to_numpy()
        (found,) = np.nonzero(place >= 0)
        out[place[found]] = first + found
    return out


def shown_ids(ids: pa.Array) -> str:
    """The first ids, for a message."""
    shown = ", ".join(map(str, ids.slice(0, _SHOWN).to_pylist()))
    return f"{shown} and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else shown
