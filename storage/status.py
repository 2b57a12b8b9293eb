"""The state of a database in figures: schema, rows, sizes, what is behind, who shares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, func, select, text

from core.ports import StoreStatus
from storage import migrate, partitions, replicas, spool_format
from storage.database import parse_url, reader_engine
from storage.models import decisions, events, node_telemetry, outcomes
from storage.summary_models import LEVELS_S, rollups, summary_marks
from storage.types import from_micros

_TABLES = (decisions, outcomes, node_telemetry, events, rollups)


def of(database_url: str, *, spool_dir: Path | None = None) -> dict[str, Any]:
    """Names and figures. StoreError where the database is away."""
    engine = reader_engine(database_url, connections=1)
    try:
        found = read(engine, database_url)
        alive: list[str] = []
        if found.schema == found.newest_schema:
            with engine.connect() as connection:
                alive = [r.id for r in replicas.known(connection) if r.alive]
    finally:
        engine.dispose()
    return {
        "database": found.database,
        "schema": found.schema or None,
        "newest schema": found.newest_schema,
        **found.rows,
        "oldest decision": found.oldest_at,
        "newest decision": found.newest_at,
        "bytes": found.size_bytes,
        "partitions": found.partitions,
        "roll-ups behind": found.rollups_behind,
        "replicas alive": alive,
        **_spool(spool_dir),
    }


def read(engine: Engine, database_url: str) -> StoreStatus:
    """The figures; those of an older or newer schema are left at nothing."""
    newest, url = migrate.head() or "", parse_url(database_url)
    found: dict[str, Any] = {
        "size_bytes": 0,
        "rows": {},
        "oldest_at": None,
        "newest_at": None,
        "partitions": 0,
        "rollups_behind": 0,
    }
    with engine.connect() as connection:
        version = MigrationContext.configure(connection).get_current_revision() or ""
        if version == newest:
            found = _figures(connection)
    return StoreStatus(
        database=url.render_as_string(hide_password=True),
        kind=url.get_backend_name(),
        schema=version,
        newest_schema=newest,
        **found,
    )


def tidy(engine: Engine, *, shrink: bool) -> int:
    """Refresh statistics and free space; bytes given back to the file system.

    On SQLite `shrink` copies the whole file and lets nobody write meanwhile; on Postgres it is
    VACUUM, which keeps nobody waiting and gives back what stands at a table's end.
    """
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        before = _size_bytes(connection)
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM (ANALYZE)" if shrink else "ANALYZE"))
        else:
            cursor = connection.connection.cursor()
            for statement in ("VACUUM",) * shrink + ("PRAGMA optimize",):
                cursor.execute(statement)
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.close()
        return max(before - _size_bytes(connection), 0)


def _figures(connection: Connection) -> dict[str, Any]:
    oldest, newest = connection.execute(
        select(func.min(decisions.c.at_us), func.max(decisions.c.at_us))
    ).one()
    marks = summary_marks.c
    behind = select(func.count(func.distinct(marks.start_us))).where(marks.level_s == LEVELS_S[0])
    rows = {
        table.name: int(connection.scalar(select(func.count()).select_from(table)) or 0)
        for table in _TABLES
    }
    return {
        "rows": rows,
        "oldest_at": None if oldest is None else from_micros(oldest),
        "newest_at": None if newest is None else from_micros(newest),
        "size_bytes": _size_bytes(connection),
        "partitions": len(partitions.existing(connection)),
        "rollups_behind": int(connection.scalar(behind) or 0),
    }


def _size_bytes(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        statement = text("SELECT pg_database_size(current_database())")
        return int(connection.execute(statement).scalar_one())
    pages, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "page_size")
    )
    return pages * size


def _spool(folder: Path | None) -> dict[str, Any]:
    """What waits on this machine; rows as the files' lengths tell."""
    files = sorted(folder.glob("*.spool")) if folder is not None else []
    data = [path.read_bytes() for path in files]
    return {
        "spooled rows": sum(map(spool_format.count, data)),
        "spooled bytes": sum(map(len, data)),
    }
