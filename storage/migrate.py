"""Schema versions: upgrade, downgrade and compare, without an ini file.

One process migrates at a time: the whole upgrade is one transaction that takes the database's
write lock (SQLite) or an advisory lock (Postgres) first, so a second process waits, then finds
nothing to do. Where the schema is up to date nothing is locked and nobody waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, event, text

import migrations
from core.errors import BadRequest, StoreError
from storage.database import FAILURES, first_line, writer_engine
from storage.partitions import is_partition
from storage.schema import metadata

_ADVISORY_LOCK = 4_242_001
_OTHERS_MS = 600_000
"""How long another process may migrate; millions of rows take a minute."""
_START_MS = 5_000
"""How long a start waits for that: what is recorded meanwhile waits on disk."""


class SchemaMismatch(StoreError):
    """The database's schema is of another release; waiting does not help."""


def try_upgrade(database_url: str) -> bool:
    """Upgrade if the database is there; False when it is away or SQLite's file stays locked.

    SchemaMismatch as `upgrade`.
    """
    try:
        upgrade(database_url, wait_ms=_START_MS)
    except SchemaMismatch:
        raise
    except StoreError:
        return False
    return True


def upgrade(database_url: str, revision: str = "head", *, wait_ms: int = _OTHERS_MS) -> str | None:
    """Bring the schema up to `revision`; the version reached.

    wait_ms: how long another may hold SQLite's lock. StoreError when the database is away or stays
    locked, SchemaMismatch when a newer release made it, BadRequest for a version that is none.
    """
    found = current(database_url) if revision == "head" else None
    if found is not None and found == head():
        return found
    return _run(database_url, lambda config: command.upgrade(config, revision), wait_ms)


def downgrade(database_url: str, revision: str) -> str | None:
    """Take the schema down to `revision` (``base``: to nothing); the version reached.

    BadRequest for a version that is none; else as `upgrade`.
    """
    if not revision:
        raise BadRequest("revision: expected a schema version, or base", field="revision")
    return _run(database_url, lambda config: command.downgrade(config, revision), _OTHERS_MS)


def current(database_url: str) -> str | None:
    """The version of the database's schema; None where it has none."""
    with _opened(database_url) as engine, engine.begin() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str | None:
    """The newest version this code knows."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def differences(database_url: str) -> list[Any]:
    """What autogenerate would change to make the database equal the models; empty: nothing."""
    with _transaction(database_url) as connection:
        context = MigrationContext.configure(connection, opts=comparison(connection))
        return list(compare_metadata(context, metadata))


def comparison(connection: Connection) -> dict[str, Any]:
    """Options of a comparison with the models: types and defaults count, partitions do not."""
    dialect = connection.dialect.name
    return {
        "compare_type": True,
        "compare_server_default": True,
        "include_name": lambda name, kind, _: kind != "table" or not is_partition(name),
        "include_object": lambda found, *_: found.info.get("only", dialect) == dialect,
    }


def _run(database_url: str, action: Callable[[Config], None], wait_ms: int) -> str | None:
    with _transaction(database_url, wait_ms) as connection:
        config = _config()
        config.attributes["connection"] = connection
        check_known(MigrationContext.configure(connection).get_current_revision())
        try:
            action(config)
        except CommandError as error:
            raise BadRequest(f"revision: {error}", field="revision") from None
        return MigrationContext.configure(connection).get_current_revision()


def require_newest(connection: Connection) -> None:
    """SchemaMismatch where the schema is not the one this code knows: what deletes rows and adds
    them up is not for another release's tables."""
    found, newest = MigrationContext.configure(connection).get_current_revision(), head()
    if found == newest:
        return
    check_known(found)
    raise SchemaMismatch(
        f"the database is at schema {found or 'none'}, not {newest}: run `conductor db upgrade`",
        field="database_url",
    )


def check_known(version: str | None) -> None:
    """SchemaMismatch for the schema of a release that this one knows nothing of."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if version is not None and version not in known:
        raise SchemaMismatch(
            f"the database's schema {version} does not fit this release, which knows none above "
            f"{head()}; use the release that made it, or restore a matching database",
            field="database_url",
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _transaction(database_url: str, wait_ms: int = _OTHERS_MS) -> Iterator[Connection]:
    """A transaction that no other process migrates in at the same time."""
    with _opened(database_url, wait_ms) as engine:
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _own_transactions)
            event.listen(engine, "begin", _begin_immediate)
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": _ADVISORY_LOCK})
            yield connection


@contextmanager
def _opened(database_url: str, wait_ms: int = _START_MS) -> Iterator[Engine]:
    engine = writer_engine(database_url, busy_ms=wait_ms)
    try:
        yield engine
    except FAILURES as error:
        raise StoreError(
            f"the database cannot be opened: {first_line(error)}", field="database_url"
        ) from error
    finally:
        engine.dispose()


def _own_transactions(connection: Any, _entry: Any) -> None:
    # The driver's own BEGIN comes only before data changes and would leave DDL outside.
    connection.isolation_level = None


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
