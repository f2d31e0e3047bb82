"""Tables that lie elsewhere, copied beside the graph's folder for as long as it is read.

Readers pass over a table several times and rely on the same rows each time, so a remote file is fetched once, whole,
and a query is run once, in one read-only transaction with the others, and streamed into a Parquet file.

Files: a URL names a file, a folder or a glob, with the rules for hidden names and for columns in folder names that
paths have. A run is identified by the names, sizes and times (of a web server: the ETag too) of the files.

Queries: DuckDB (`duckdb:///file.db`, `duckdb://` for queries over files) and PostgreSQL by ADBC. A run is identified by
a checksum that the database takes of the rows.
"""

import contextlib
import functools
import glob
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hcm_scale.base import remote
from hcm_scale.ingest.policy import InputError
from hcm_scale.ingest.table_files import is_hidden

log = logging.getLogger(__name__)
_NUM_COPIES = 8  # at a time
_VERSION_HEADERS = ("ETag", "Last-Modified", "Content-MD5")
_SHOWN = 100  # characters of a query
_WRAPPED = re.compile(r"^.*(ERROR|FATAL):|^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?")
_LEGAL = "legal are duckdb:///file.db, duckdb:// and postgresql://user@host/database"


def files_stamp(option: str, url: str) -> list[Any]:
    """What identifies the present content of the files at a URL: names, sizes, times and versions."""
    from pyarrow import fs

    system, _, found = _find(option, url)
    listed: list[Any] = [[info.path, info.size, info.mtime_ns] for info in found]
    if isinstance(system, fs.PyFileSystem):  # fsspec's own words, which pyarrow does not pass on
        with remote.naming_failures(option, url):
            known = [system.handler.fs.info(info.path) for info in found]
        listed += [[str(info[name]) for name in _VERSION_HEADERS if name in info] for info in known]
    return listed


@contextlib.contextmanager
def fetched_files(out: Path, places: Mapping[str, str | None], endings: tuple[str, ...]) -> Iterator[list[str | None]]:
    """Paths for `places`, by option: those of URLs are copies beside `out`, which go at the end.

    Of a folder the files are fetched whose names have one of the endings.
    """
    beside = out.with_name(f".{out.name}-fetched.{os.getpid()}.tmp")
    given = {option: place and remote.local_path(place) for option, place in places.items()}
    copies: dict[str, str] = {}
    try:
        for option, place in given.items():
            if place is not None and remote.is_url(place):
                copies[option] = _fetch(option, place, beside / option, endings)
        yield [copies.get(option, place) for option, place in given.items()]
    except InputError as error:
        text = str(error)
        for option, copy in copies.items():
            text = text.replace(copy, str(given[option]))
        raise InputError(text) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fetch(option: str, url: str, folder: Path, endings: tuple[str, ...]) -> str:
    """Copies the files at a URL into `folder`; returns what to read: the file, or the folder of several."""
    from pyarrow import fs

    system, root, found = _find(option, url)
    is_file = [info.path for info in found] == [root]
    named = [info for info in found if is_file or info.path.endswith(endings)]
    if not named:
        raise InputError(f"{option}={url!r} names no file that ends in one of {', '.join(endings)}")
    names = [_web_name(url)] if is_file else [info.path[len(root) :].lstrip("/") for info in named]
    goals = [folder / name for name in names]
    if not all(goal.resolve().is_relative_to(folder.resolve()) for goal in goals):
        raise InputError(f"{option}={url!r} lists names that lead out of it")

    def copy(path: str, goal: Path) -> None:
        goal.parent.mkdir(parents=True, exist_ok=True)
        fs.copy_files(path, str(goal.absolute()), system, fs.LocalFileSystem())

    with remote.naming_failures(option, url), ThreadPoolExecutor(_NUM_COPIES) as pool:
        list(pool.map(copy, [info.path for info in named], goals))
    size = sum(goal.stat().st_size for goal in goals)
    log.info("fetched %s: %s files, %s bytes", url, f"{len(named):,}", f"{size:,}")
    return str(goals[0] if is_file else folder)


def _web_name(url: str) -> str:
    """The name of a file at a URL; what a web address has after a ? is no part of it.

    >>> _web_name("https://x.org/a/edges.csv?key=1/2"), _web_name("s3://bucket/why?.csv")
    ('edges.csv', 'why?.csv')
    """
    return PurePosixPath(url.partition("?")[0] if url.startswith("http") else url).name


def _find(option: str, url: str) -> tuple[Any, str, list[Any]]:
    """The file system, the path that files lie below (or the file's own), and what pyarrow knows of each file."""
    from pyarrow import fs

    system, path = remote.open_file_system(option, url)
    with remote.naming_failures(option, url):
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return system, path, [info]
        root = _fixed_part(path) if info.type == fs.FileType.NotFound else path
        try:
            below = system.get_file_info(fs.FileSelector(root, recursive=True))
        except FileNotFoundError:
            below = []
    named = PurePosixPath(path)
    found = [i for i in below if i.type == fs.FileType.File and not is_hidden(PurePosixPath(i.path), named)]
    if root != path:
        found = [info for info in found if _matches(PurePosixPath(info.path).parts, named.parts)]
    if not found:
        raise InputError(f"{option}={url!r} names no file; legal are a file, a folder or a glob")
    return system, root, sorted(found, key=lambda info: info.path)


def _fixed_part(path: str) -> str:
    """The folders of a path before its first wildcard.

    >>> _fixed_part("bucket/in/day=*/*.csv"), _fixed_part("bucket/none")
    ('bucket/in', 'bucket/none')
    """
    parts = path.split("/")
    return "/".join(parts[: next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))])


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches one with wildcards, where ** is any number of folders.

    >>> _matches(("b", "x", "y", "a.csv"), ("b", "**", "*.csv")), _matches(("b", "x", "a.csv"), ("b", "*.csv"))
    (True, False)
    """
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


class _DuckDb:
    """`checksum`: the number of rows, and a number that other rows would most likely not have; `save`: as Parquet."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def checksum(self, query: str) -> list[Any]:
        asked = f"select count(*), sum(hash(q)::hugeint) from ({query}\n) q"
        return [str(value) for value in self._connection.execute(asked).fetchone()]

    def save(self, query: str, path: Path) -> None:
        quoted = str(path).replace("'", "''")
        self._connection.execute(f"copy ({query}\n) to '{quoted}' (format parquet)")


class _Postgres:
    """As `_DuckDb`."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def checksum(self, query: str) -> list[Any]:
        self._cursor.execute(f"select count(*), sum(hashtextextended(q::text, 0)) from ({query}\n) q")
        return [str(value) for value in self._cursor.fetchone()]

    def save(self, query: str, path: Path) -> None:
        self._cursor.execute(query)
        reader = self._cursor.fetch_record_batch()
        schema = pa.schema([_plain_field(field) for field in reader.schema])
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for batch in reader:
                columns = [_plain(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def queries_stamp(uri: str, queries: Mapping[str, str]) -> list[Any]:
    """What identifies the present rows of the queries, by option: counts and checksums."""
    with _connect(uri) as database:
        return [_ask(option, query, database.checksum) for option, query in queries.items()]


@contextlib.contextmanager
def query_tables(out: Path, uri: str, queries: Mapping[str, str]) -> Iterator[list[Path]]:
    """Parquet files with the rows of the queries, by option, beside `out`; they go at the end."""
    beside = out.with_name(f".{out.name}-sql.{os.getpid()}.tmp")
    paths = {option: beside / f"{option}.parquet" for option in queries}
    try:
        beside.mkdir()
        with _connect(uri) as database:
            for option, query in queries.items():
                _ask(option, query, functools.partial(database.save, path=paths[option]))
        yield list(paths.values())
    except InputError as error:
        text = str(error)
        for option, path in paths.items():
            text = text.replace(str(path), path.name).replace(path.name, f"{option}={_clipped(queries[option])}")
        raise InputError(text) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _ask(option: str, query: str, ask: Any) -> Any:
    """What the database answers, or an error that names the option."""
    if not query.strip():
        raise ValueError(f"{option} is empty; it is a query, such as {option}='select source, target from transfers'")
    with remote.naming_failures(option, _clipped(query)), _naming_cause():
        return ask(query.rstrip().rstrip(";"))


def _clipped(query: str) -> str:
    """A query as messages cite it: in quotes, on one line, its beginning alone where it is long."""
    line = " ".join(query.split())
    return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "...")


@contextlib.contextmanager
def _naming_cause() -> Iterator[None]:
    """Reduces what a database or its driver raises to the cause, without the statement around the query."""
    try:
        yield
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:  # duckdb and ADBC share no class
        raise ValueError(_cause(str(error))) from error


def _cause(text: str) -> str:
    r"""The first line that says what is wrong, and the hint where there is one.

    >>> _cause('NOT_FOUND: Failed to prepare query: ERROR:  relation "a" does not exist\nLINE 1: select ...')
    'relation "a" does not exist'
    """
    first, *rest = text.strip().splitlines() or [""]
    hints = [line.strip() for line in rest if line.startswith(("HINT:", "Candidate bindings:"))]
    return " ".join([_WRAPPED.sub("", first).strip(), *hints])


@contextlib.contextmanager
def _connect(uri: str) -> Iterator[_DuckDb | _Postgres]:
    """A database, opened for reading only."""
    remote.refuse_secrets("graph.path", uri)
    scheme = uri.partition("://")[0]
    if scheme not in ("duckdb", "postgresql", "postgres"):
        raise ValueError(f"graph.path={uri!r} is no database that can be read; {_LEGAL}")
    with contextlib.ExitStack() as stack:
        try:
            with remote.naming_failures("graph.path", uri), _naming_cause():
                database = _duckdb(uri, stack) if scheme == "duckdb" else _postgres(uri, stack)
        except ImportError as error:
            raise ValueError(f"graph.path={uri} needs the extra sql: pip install 'hcm-scale[sql]' ({error})") from error
        yield database


def _duckdb(uri: str, stack: contextlib.ExitStack) -> _DuckDb:
    import duckdb

    named = uri.removeprefix("duckdb://")
    if not named:
        return _DuckDb(stack.enter_context(duckdb.connect(":memory:")))
    places = [Path(named), Path(named.lstrip("/"))]  # as a URL says it, or as SQLAlchemy does
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(f"there is no file {' or '.join(dict.fromkeys(map(str, places)))}")
    return _DuckDb(stack.enter_context(duckdb.connect(str(path), read_only=True)))


def _postgres(uri: str, stack: contextlib.ExitStack) -> _Postgres:
    from adbc_driver_postgresql import dbapi

    cursor = stack.enter_context(stack.enter_context(dbapi.connect(uri)).cursor())
    cursor.execute("set transaction isolation level repeatable read read only")
    return _Postgres(cursor)


def _plain_field(field: pa.Field) -> pa.Field:
    """A column as a Parquet table would have it: what PostgreSQL calls numeric, ADBC hands over as text."""
    is_numeric = getattr(field.type, "type_name", "") == "numeric"
    return pa.field(field.name, pa.float64() if is_numeric else field.type)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.storage.cast(kind) if column.type != kind else column
