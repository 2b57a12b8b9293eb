"""Engines: one that writes, one that cannot; and which failures are a row's own fault.

SQLite runs in WAL mode, so that readers never wait for the writer nor the writer for readers.
Postgres is reached through psycopg 3, with limits on every wait: a server that does not answer
is away, and the caller decides what that means.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from core.errors import BadRequest, StoreError

FAILURES = (SQLAlchemyError, psycopg.Error, sqlite3.Error, OSError)
"""Whatever a database can raise."""

_BUSY_MS = 5_000
_AGAIN_S = 0.01
_SHARED = ("cache_size=-16384", "temp_store=MEMORY")
_PAGE_BYTES = 16_384
"""SQLite page of a new file: rows near a kilobyte waste a fifth of the usual 4,096 bytes."""
_POSTGRES_WAITS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Seconds, and milliseconds the last: how long a silent network may hold us."""
_STATEMENT_MS = 30_000
_SHORT_QUERIES = "-c jit=off -c max_parallel_workers_per_gather=0 -c random_page_cost=1.1"
"""Pages of a hundred rows along an index: compiling and workers cost more than they bring."""


def parse_url(database_url: str) -> URL:
    """The URL, checked, with its driver; BadRequest names what is wrong with it."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise BadRequest(
            "database_url: not a URL like sqlite:///path/to/file.db "
            "or postgresql://user@host/database",
            field="database_url",
        ) from None
    backend = url.get_backend_name()
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise BadRequest(
            f"database_url: {url.drivername!r} is not sqlite or postgresql", field="database_url"
        )
    if url.database in (None, "", ":memory:"):
        raise BadRequest(
            "database_url: sqlite needs a file, e.g. sqlite:///conductor-state/conductor.db",
            field="database_url",
        )
    return url


def writer_engine(database_url: str, *, busy_ms: int = _BUSY_MS, connections: int = 1) -> Engine:
    """An engine that writes. For SQLite, connecting makes the file and its folder.

    `busy_ms`: how long a statement waits for another writer (SQLite) or for a lock (Postgres).
    """
    url = parse_url(database_url)
    if url.get_backend_name() != "sqlite":
        return _postgres(url, connections, f"-c lock_timeout={busy_ms}")
    folder = Path(str(url.database)).parent
    engine = create_engine(url, pool_size=connections, max_overflow=0)
    event.listen(engine, "do_connect", lambda *_: folder.mkdir(parents=True, exist_ok=True))
    first = (f"busy_timeout={busy_ms}", f"page_size={_PAGE_BYTES}")
    event.listen(engine, "connect", _pragmas(*first))
    event.listen(engine, "connect", _write_ahead(busy_ms))
    event.listen(engine, "connect", _pragmas("synchronous=NORMAL", *_SHARED))
    return engine


def reader_engine(database_url: str, *, connections: int = 4) -> Engine:
    """An engine whose connections cannot write; for SQLite the file must exist."""
    url = parse_url(database_url)
    if url.get_backend_name() != "sqlite":
        return _postgres(url, connections, f"-c default_transaction_read_only=on {_SHORT_QUERIES}")
    path = Path(str(url.database)).absolute().as_uri()
    read_only = url.set(database=path, query={"mode": "ro", "uri": "true"})
    engine = create_engine(read_only, pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", _pragmas(f"busy_timeout={_BUSY_MS}", "query_only=ON", *_SHARED))
    return engine


def is_row_fault(error: Exception) -> bool:
    """Whether a row can never be stored as it is; anything else may pass with time."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, psycopg.errors.CheckViolation):
        return False  # no partition for its day, yet
    if isinstance(cause, psycopg.ProgrammingError):
        return cause.sqlstate is None  # no form for such a value; the server was not asked
    if isinstance(cause, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return "binding parameter" in str(cause)
    faults = (psycopg.DataError, psycopg.IntegrityError, sqlite3.DataError, sqlite3.IntegrityError)
    # What no database raised, a driver did when it looked at a value.
    return isinstance(cause, faults) or not isinstance(cause, (*FAILURES, StoreError))


def first_line(error: Exception) -> str:
    """An error as one short line: what failed and why, without the statement's values."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0] if text else ''}"[:300]


def _postgres(url: URL, connections: int, options: str) -> Engine:
    settings = f"{options} -c statement_timeout={_STATEMENT_MS} -c timezone=UTC"
    waits = {name: value for name, value in _POSTGRES_WAITS.items() if name not in url.query}
    return create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=5.0,
        pool_pre_ping=True,
        connect_args={**waits, "application_name": "conductor", "options": settings},
    )


def _pragmas(*settings: str) -> Callable[[Any, ConnectionPoolEntry], None]:
    """A listener that applies the settings to each new connection, in their order."""

    def apply(connection: Any, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    return apply


def _write_ahead(busy_ms: int) -> Callable[[Any, ConnectionPoolEntry], None]:
    """A listener that sets WAL mode. SQLite itself does not wait for another that sets it."""

    def apply(connection: Any, _entry: ConnectionPoolEntry) -> None:
        until_s = monotonic() + busy_ms / 1_000
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > until_s:
                    raise
            sleep(_AGAIN_S)

    return apply


@contextmanager
def exclusive(engine: Engine, lock: int) -> Iterator[Connection]:
    """A transaction that no other holder of `lock` is in at the same time.

    On SQLite it holds the database's only write lock from its beginning.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": lock})
        yield connection


def now_us(connection: Connection) -> int:
    """The database's own clock, microseconds since 1970: ages and slots must not depend on ours.

    On SQLite that is this machine's clock, to the millisecond.
    """
    if connection.dialect.name == "postgresql":
        statement = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    else:
        statement = "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"
    return int(connection.execute(text(statement)).scalar_one())


@contextmanager
def failures_told() -> Iterator[None]:
    """Whatever a database raises, as a StoreError."""
    try:
        yield
    except FAILURES as error:
        raise StoreError(f"the record store failed: {first_line(error)}") from error
