"""Query results as tables: DuckDB (`duckdb:///file.db`, `duckdb://` for queries over files) and PostgreSQL by ADBC.

Each query is run once, in one read-only transaction with the others, and streamed into a Parquet file beside the
graph's folder, which goes when the graph is read: readers pass over a table several times, and a database promises the
same order of rows to no two queries. What a run is known by is a checksum that the database takes of the rows.
"""

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from hcm_scale.base import remote
from hcm_scale.ingest.errors import InputError

_SHOWN = 100  # characters of a query
_WRAPPED = re.compile(r"^.*(ERROR|FATAL):|^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?")
LEGAL = "legal are duckdb:///file.db, duckdb:// and postgresql://user@host/database"


class Database(Protocol):
    """What is asked of a database."""

    def checksum(self, query: str) -> list[Any]:
        """The number of rows, and a number that other rows would most likely not have."""

    def save(self, query: str, path: Path) -> None:
        """Writes the rows as Parquet."""


class _DuckDb:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def checksum(self, query: str) -> list[Any]:
        asked = f"select count(*), sum(hash(q)::hugeint) from ({query}\n) q"
        return [str(value) for value in self._connection.execute(asked).fetchone()]

    def save(self, query: str, path: Path) -> None:
        quoted = str(path).replace("'", "''")
        self._connection.execute(f"copy ({query}\n) to '{quoted}' (format parquet)")


class _Postgres:
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


def stamp(uri: str, queries: Mapping[str, str]) -> list[Any]:
    """What tells that the rows of the queries, by option, changed."""
    with _connect(uri) as database:
        return [_asked(option, query, database.checksum) for option, query in queries.items()]


@contextlib.contextmanager
def saved(out: Path, uri: str, queries: Mapping[str, str]) -> Iterator[list[Path]]:
    """Parquet files with the rows of the queries, by option, beside `out`; they go at the end."""
    beside = out.with_name(f".{out.name}-sql.{os.getpid()}.tmp")
    paths = {option: beside / f"{option}.parquet" for option in queries}
    try:
        beside.mkdir()
        with _connect(uri) as database:
            for option, query in queries.items():
                _asked(option, query, functools.partial(database.save, path=paths[option]))
        yield list(paths.values())
    except InputError as error:
        text = str(error)
        for option, path in paths.items():
            text = text.replace(str(path), path.name).replace(path.name, f"{option}={clipped(queries[option])}")
        raise InputError(text) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _asked(option: str, query: str, ask: Any) -> Any:
    """What the database answers, or an error that names the option."""
    if not query.strip():
        raise ValueError(f"{option} is empty; it is a query, such as {option}='select source, target from transfers'")
    with remote.telling(option, clipped(query)), _causes():
        return ask(query.rstrip().rstrip(";"))


def clipped(query: str) -> str:
    """A query as messages cite it: in quotes, on one line, its beginning alone where it is long."""
    line = " ".join(query.split())
    return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "...")


@contextlib.contextmanager
def _causes() -> Iterator[None]:
    """Leaves of what a database or its driver says the cause, without the statement that was made around the query."""
    try:
        yield
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:  # duckdb and ADBC share no class
        raise ValueError(cause(str(error))) from error


def cause(text: str) -> str:
    r"""The first line that says what is wrong, and the hint where there is one.

    >>> cause('NOT_FOUND: Failed to prepare query: ERROR:  relation "a" does not exist\nLINE 1: select ...')
    'relation "a" does not exist'
    """
    first, *rest = text.strip().splitlines() or [""]
    hints = [line.strip() for line in rest if line.startswith(("HINT:", "Candidate bindings:"))]
    return " ".join([_WRAPPED.sub("", first).strip(), *hints])


@contextlib.contextmanager
def _connect(uri: str) -> Iterator[Database]:
    """A database, opened for reading only."""
    remote.refuse_secrets("graph.uri", uri)
    scheme = uri.partition("://")[0]
    if scheme not in ("duckdb", "postgresql", "postgres"):
        raise ValueError(f"graph.uri={uri!r} is no database that can be read; {LEGAL}")
    with contextlib.ExitStack() as stack:
        try:
            with remote.telling("graph.uri", uri), _causes():
                database = _duckdb(uri, stack) if scheme == "duckdb" else _postgres(uri, stack)
        except ImportError as error:
            raise ValueError(f"graph.uri={uri} needs the extra sql: pip install 'hcm-scale[sql]' ({error})") from error
        yield database


def _duckdb(uri: str, stack: contextlib.ExitStack) -> Database:
    import duckdb

    named = uri.removeprefix("duckdb://")
    if not named:
        return _DuckDb(stack.enter_context(duckdb.connect(":memory:")))
    places = [Path(named), Path(named.lstrip("/"))]  # as a URL says it, or as SQLAlchemy does
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(f"there is no file {' or '.join(dict.fromkeys(map(str, places)))}")
    return _DuckDb(stack.enter_context(duckdb.connect(str(path), read_only=True)))


def _postgres(uri: str, stack: contextlib.ExitStack) -> Database:
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
