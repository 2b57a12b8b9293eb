"""Engines: one that writes, one that cannot; and which failures mean "away, try again".

SQLite runs in WAL mode, so that readers never wait for the writer nor the writer for readers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from core.errors import BadRequest

AWAY = (OperationalError, InterfaceError, PoolTimeout, OSError)
"""Errors that say nothing about the rows: the database is away, locked, full or not migrated."""

_BUSY_MS = 5_000
_SHARED = ("cache_size=-16384", "temp_store=MEMORY")


def parse_url(database_url: str) -> URL:
    """The URL, checked; BadRequest names what is wrong with it."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise BadRequest(
            f"database_url: {database_url!r} is not a URL like sqlite:///path/to/file.db",
            field="database_url",
        ) from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise BadRequest(
            f"database_url: {url.get_backend_name()!r} is not sqlite or postgresql",
            field="database_url",
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadRequest(
            "database_url: sqlite needs a file, e.g. sqlite:///conductor-state/conductor.db",
            field="database_url",
        )
    return url


def writer_engine(database_url: str, *, busy_ms: int = _BUSY_MS) -> Engine:
    """An engine with one connection. For SQLite, connecting makes the file and its folder.

    `busy_ms`: how long a statement waits for another writer of the same SQLite file.
    """
    url = parse_url(database_url)
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
    folder = Path(str(url.database)).parent
    engine = create_engine(url, pool_size=1, max_overflow=0)
    event.listen(engine, "do_connect", lambda *_: folder.mkdir(parents=True, exist_ok=True))
    settings = ("journal_mode=WAL", "synchronous=NORMAL")
    event.listen(engine, "connect", _pragmas(f"busy_timeout={busy_ms}", *settings, *_SHARED))
    return engine


def reader_engine(database_url: str, *, connections: int = 4) -> Engine:
    """An engine whose connections cannot write; for SQLite the file must exist."""
    url = parse_url(database_url)
    if url.get_backend_name() != "sqlite":
        return create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            pool_pre_ping=True,
            execution_options={"postgresql_readonly": True},
        )
    path = Path(str(url.database)).absolute().as_uri()
    read_only = url.set(database=path, query={"mode": "ro", "uri": "true"})
    engine = create_engine(read_only, pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", _pragmas(f"busy_timeout={_BUSY_MS}", "query_only=ON", *_SHARED))
    return engine


def _pragmas(*settings: str) -> Callable[[Any, ConnectionPoolEntry], None]:
    """A listener that applies the settings to each new connection, in their order."""

    def apply(connection: Any, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    return apply
