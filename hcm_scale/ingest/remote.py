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
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hcm_scale.base import remote
from hcm_scale.ingest.policy import InputError
from hcm_scale.ingest.read_only_sql import connect, read_only
from hcm_scale.ingest.table_files import is_hidden, refuse_lake

log = logging.getLogger(__name__)
_NUM_COPIES = 8  # at a time
_VERSION_HEADERS = ("ETag", "Last-Modified", "Content-MD5")
_SHOWN = 100  # characters of a query
_WRAPPED = re.compile(r"^.*(ERROR|FATAL):|^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?")
_VECTORS = {"vector": "::real[]", "halfvec": "::real[]"}  # of pgvector
_LEGAL = "legal are duckdb:///file.db, duckdb:// and postgresql://user@host/database"


def files_stamp(option: str, url: str) -> list[Any]:
    """What identifies the present content of the files at a URL: names, sizes, times and versions."""
    from pyarrow import fs

    system, _, infos = _find(option, url)
    listed: list[Any] = [[info.path, info.size, info.mtime_ns] for info in infos]
    if isinstance(system, fs.PyFileSystem):  # fsspec's own words, which pyarrow does not pass on
        with remote.naming_failures(option, url):
            facts = [system.handler.fs.info(info.path) for info in infos]
        listed += [[str(info[name]) for name in _VERSION_HEADERS if name in info] for info in facts]
    return listed


@contextlib.contextmanager
def fetched_files(out: Path, sources: Mapping[str, str | None], endings: tuple[str, ...]) -> Iterator[list[str | None]]:
    """Paths for `sources`, by option: those of URLs are copies beside `out`, which go at the end.

    Of a folder the files are fetched whose names have one of the endings.
    """
    with _folder_beside(out, "fetched") as (folder, shown):
        paths: list[str | None] = []
        for option, where in sources.items():
            path = where and remote.local_path(where)
            if path is not None and remote.is_url(path):
                url, path = path, _fetch(option, path, folder / option, endings)
                shown[path] = url
            paths.append(path)
        yield paths


@contextlib.contextmanager
def _folder_beside(out: Path, purpose: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder beside `out` that goes at the end, and a dict for paths in it: what an InputError shows instead."""
    folder, shown = out.with_name(f".{out.name}-{purpose}.{os.getpid()}.tmp"), dict[str, str]()
    try:
        yield folder, shown
    except InputError as error:
        text = str(error)
        for path, name in shown.items():
            text = text.replace(path, name)
        raise InputError(text) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(option: str, url: str, folder: Path, endings: tuple[str, ...]) -> str:
    """Copies the files at a URL into `folder`; returns what to read: the file, or the folder of several."""
    from pyarrow import fs

    system, root, infos = _find(option, url)
    is_file = [info.path for info in infos] == [root]
    named = [info for info in infos if is_file or info.path.endswith(endings)]
    if not named:
        raise InputError(f"{option}={url!r} names no file that ends in one of {', '.join(endings)}")
    whole = PurePosixPath(url.partition("?")[0] if url.startswith("http") else url)  # what follows a ? is no name
    names = [whole.name] if is_file else [info.path[len(root) :].lstrip("/") for info in named]
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


def _find(option: str, url: str) -> tuple[Any, str, list[Any]]:
    """The file system, the path that files lie below (or the file's own), and what pyarrow knows of each file."""
    from pyarrow import fs

    system, path = remote.open_file_system(option, url)
    with remote.naming_failures(option, url):
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return system, path, [info]
        fixed = itertools.takewhile(lambda name: not glob.has_magic(name), path.split("/"))
        root = "/".join(fixed) if info.type == fs.FileType.NotFound else path
        try:
            below = system.get_file_info(fs.FileSelector(root, recursive=True))
        except FileNotFoundError:
            below = []
    inside = [i.path[len(root) :].lstrip("/") for i in below] if root == path else []
    refuse_lake(option, url, lambda pattern: any(fnmatchcase(name, pattern) for name in inside))
    named = PurePosixPath(path)
    infos = [i for i in below if i.type == fs.FileType.File and not is_hidden(PurePosixPath(i.path), named)]
    if root != path:
        infos = [info for info in infos if _matches(PurePosixPath(info.path).parts, named.parts)]
    if not infos:
        raise InputError(f"{option}={url!r} names no file; legal are a file, a folder or a glob")
    return system, root, sorted(infos, key=lambda info: info.path)


def _matches(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches one with wildcards, where ** is any number of folders.

    >>> _matches(("b", "x", "y", "a.csv"), ("b", "**", "*.csv")), _matches(("b", "x", "a.csv"), ("b", "*.csv"))
    (True, False)
    """
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] == "**":
        return _matches(names, pattern[1:]) or _matches(names[1:], pattern)
    return fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


class _Database(NamedTuple):
    """A database opened for reading: its cursor, SQL for the sum of the hashes of rows q, and how to save a query.

    `queries` are those that it runs, by option; PostgreSQL's driver and its transaction see to it that they read alone.
    """

    cursor: Any
    hashes: str
    save: Callable[[Any, Path, str], None]  # (cursor, path, query), as Parquet
    queries: Mapping[str, str]


def queries_stamp(uri: str, queries: Mapping[str, str], base: Path | None = None) -> list[Any]:
    """What identifies the present rows of the queries, by option: counts and checksums.

    Relative names of files in a query are in the folder `base`, or in today's.
    """
    with _connect(uri, queries, base) as database:

        def checksum(query: str) -> list[str]:
            database.cursor.execute(f"select count(*), {database.hashes} from ({query}\n) q")
            return [str(value) for value in database.cursor.fetchone()]

        return [_ask(option, query, checksum) for option, query in database.queries.items()]


@contextlib.contextmanager
def query_tables(out: Path, uri: str, queries: Mapping[str, str], base: Path | None = None) -> Iterator[list[Path]]:
    """Parquet files with the rows of the queries, by option, beside `out`; they go at the end."""
    with _folder_beside(out, "sql") as (folder, shown):
        folder.mkdir()
        paths = {option: folder / f"{option}.parquet" for option in queries}
        with _connect(uri, queries, base, folder) as database:
            for option, query in database.queries.items():
                _ask(option, query, functools.partial(database.save, database.cursor, paths[option]))
        for option, path in paths.items():
            shown[str(path)] = shown[path.name] = f"{option}={_clipped(queries[option])}"
        yield list(paths.values())


def _ask(option: str, query: str, ask: Callable[[str], Any]) -> Any:
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
    r"""Reduces what a database or its driver raises to the first line, which has the cause, and the hint if any.

    >>> with _naming_cause():
    ...     raise RuntimeError('NOT_FOUND: Failed to prepare query: ERROR:  no relation "a"\nLINE 1: select ...')
    Traceback (most recent call last):
    ValueError: no relation "a"
    """
    try:
        yield
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:  # duckdb and ADBC share no class
        first, *rest = str(error).strip().splitlines() or [""]
        hints = [line.strip() for line in rest if line.startswith(("HINT:", "Candidate bindings:"))]
        raise ValueError(" ".join([_WRAPPED.sub("", first).strip(), *hints])) from error


@contextlib.contextmanager
def _connect(uri: str, queries: Mapping[str, str], base: Path | None, out: Path | None = None) -> Iterator[_Database]:
    """A database, opened for reading only; `out` is the folder that rows are saved in."""
    remote.refuse_secrets("graph.path", uri)
    scheme = uri.partition("://")[0]
    if scheme not in ("duckdb", "postgresql", "postgres"):
        raise ValueError(f"graph.path={uri!r} is no database that can be read; {_LEGAL}")
    with contextlib.ExitStack() as stack:
        try:
            is_duckdb, checked = scheme == "duckdb", {name: (query, list[Path]()) for name, query in queries.items()}
            if is_duckdb:
                read = functools.partial(read_only, base=base)
                checked = {name: _ask(name, query, read) for name, query in queries.items()}
            queries = {name: query for name, (query, _) in checked.items()}
            paths = [*([] if out is None else [out]), *(path for _, named in checked.values() for path in named)]
            with remote.naming_failures("graph.path", uri), _naming_cause():
                database = _duckdb(uri, stack, queries, paths) if is_duckdb else _postgres(uri, stack, queries)
        except ImportError as error:
            raise ValueError(f"graph.path={uri} needs the extra sql: pip install 'hcm-scale[sql]' ({error})") from error
        yield database


def named_files(uri: str, queries: Mapping[str, str], base: Path | None = None) -> list[Path]:
    """The files of this machine that queries read, as far as they are there; none of what is no query for DuckDB."""
    found = [Path(uri.removeprefix("duckdb://"))] if uri.startswith("duckdb://") else []
    for query in queries.values() if found else ():
        with contextlib.suppress(ValueError, ImportError):
            for path in read_only(query, base)[1]:
                pattern = f"{path}/**" if path.is_dir() else str(path)
                found += map(Path, glob.iglob(pattern, recursive=True, include_hidden=True))  # noqa: PTH207
    return [path for path in found if path.is_file()]


def _duckdb(uri: str, stack: contextlib.ExitStack, queries: Mapping[str, str], paths: list[Path]) -> _Database:
    named = uri.removeprefix("duckdb://")
    places = [Path(named), Path(named.lstrip("/"))]  # as a URL says it, or as SQLAlchemy does
    path = next((str(place) for place in places if place.is_file()), None)
    if named and path is None:
        raise ValueError(f"there is no file {' or '.join(dict.fromkeys(map(str, places)))}")

    def save(cursor: Any, path: Path, query: str) -> None:
        quoted = str(path).replace("'", "''")
        found = cursor.query(query)  # not run yet
        kinds = [str(kind) for kind in found.types]
        lists = [re.sub(r"\[\d+\]$", "[]", kind) for kind in kinds]  # gaps of arrays would not be read
        casts = [f"::{new}" if new != kind else "" for new, kind in zip(lists, kinds, strict=True)]
        cursor.execute(f"copy ({_with_casts(query, found.columns, casts)}\n) to '{quoted}' (format parquet)")

    return _Database(stack.enter_context(connect(path, paths)), "sum(hash(q)::hugeint)", save, queries)


def _postgres(uri: str, stack: contextlib.ExitStack, queries: Mapping[str, str]) -> _Database:
    from adbc_driver_postgresql import dbapi

    cursor = stack.enter_context(stack.enter_context(dbapi.connect(uri)).cursor())
    cursor.execute("set transaction isolation level repeatable read read only")
    return _Database(cursor, "sum(hashtextextended(q::text, 0))", _save_rows, queries)


def _with_casts(query: str, names: Sequence[str], casts: Sequence[str]) -> str:
    r"""The query, some of its columns cast to what can be read: vectors to lists.

    >>> _with_casts("from t", ["id", "bio"], ["", "::real[]"])
    'select "id", "bio"::real[] as "bio" from (from t\n) q'
    """
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    columns = [f"{name}{cast} as {name}" if cast else name for name, cast in zip(quoted, casts, strict=True)]
    return f"select {', '.join(columns)} from ({query}\n) q" if any(casts) else query


def _save_rows(cursor: Any, path: Path, query: str) -> None:
    """Streams rows to a Parquet file; what PostgreSQL calls numeric, ADBC hands over as text, and vectors as bytes."""
    schema = cursor.adbc_execute_schema(query)
    casts = [_VECTORS.get(getattr(kind, "type_name", ""), "") for kind in schema.types]
    cursor.execute(_with_casts(query, schema.names, casts))
    reader = cursor.fetch_record_batch()
    is_numeric = [getattr(kind, "type_name", "") == "numeric" for kind in reader.schema.types]
    kinds = [pa.float64() if as_text else kind for kind, as_text in zip(reader.schema.types, is_numeric, strict=True)]
    schema = pa.schema(zip(reader.schema.names, kinds, strict=True))
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for batch in reader:
            pairs = zip(batch.columns, kinds, strict=True)
            columns = [column if column.type == kind else column.storage.cast(kind) for column, kind in pairs]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
