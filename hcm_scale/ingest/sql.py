"""Query results as tables: DuckDB (`duckdb:///file.db`, `duckdb://` for queries over files) and PostgreSQL by ADBC.

Each query is run once, in one read-only transaction with the others, and streamed into a Parquet file beside the
graph's folder, which goes when the graph is read: readers pass over a table several times, and a database promises the
same order of rows to no two queries. What a run is known by is a checksum that the database takes of the rows.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from hcm_scale.base import remote

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
    try:
        beside.mkdir()
        paths = {option: beside / f"{option.rpartition('.')[2]}.parquet" for option in queries}
        with _connect(uri) as database:
            for option, query in queries.items():
                _asked(option, query, functools.partial(database.save, path=paths[option]))
        yield list(paths.values())
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _asked(option: str, query: str, ask: Any) -> Any:
    """What the database answers, or an error that names the option."""
    if not query.strip():
        raise ValueError(f"{option} is empty; it is a query, such as {option}='select source, target from transfers'")
    with remote.telling(option, repr(query)):
        return ask(query.rstrip().rstrip(";"))


@contextlib.contextmanager
def _connect(uri: str) -> Iterator[Database]:
    """A database, opened for reading only."""
    remote.refuse_secrets("graph.uri", uri)
    scheme = uri.partition("://")[0]
    if scheme not in ("duckdb", "postgresql", "postgres"):
        raise ValueError(f"graph.uri={uri!r} is no database that can be read; {LEGAL}")
    with contextlib.ExitStack() as stack:
        try:
            with remote.telling("graph.uri", uri):
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
