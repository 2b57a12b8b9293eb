"""Daily partitions of the large tables on Postgres: made before they are written, dropped whole.

A partition is built beside its table and then attached, which waits for nobody; dropping one
costs the same whatever it holds. SQLite has no partitions: there every call does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

PARTITIONED = ("decisions", "outcomes")
DAY_US = 86_400_000_000
_NAME = re.compile(rf"({'|'.join(PARTITIONED)})_(\d{{8}})")
_LOCK = 4_242_002
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def partition_name(table: str, day: int) -> str:
    """Name of the partition that holds day `day` (whole days since 1970) of a table."""
    return f"{table}_{_EPOCH + timedelta(days=day):%Y%m%d}"


def is_partition(name: str | None) -> bool:
    """Whether a table is a partition by its name."""
    return _NAME.fullmatch(name or "") is not None


def day_of(name: str) -> int:
    """The day a partition holds, by its name; ValueError for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a partition")
    return (datetime.strptime(found[2], "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days


def ensure(connection: Connection, days: Iterable[int]) -> int:
    """Make the partitions of these days where they are missing; how many were made.

    Runs in the caller's transaction and keeps other processes from making the same ones.
    """
    if connection.dialect.name != "postgresql":
        return 0
    wanted = {partition_name(table, day): (table, day) for day in days for table in PARTITIONED}
    missing = sorted(wanted.keys() - existing(connection))
    if not missing:
        return 0
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    made = sorted(wanted.keys() - existing(connection))
    for name in made:
        _make(connection, name, *wanted[name])
    return len(made)


def existing(connection: Connection) -> set[str]:
    """Names of the attached partitions."""
    if connection.dialect.name != "postgresql":
        return set()
    statement = text(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " JOIN pg_class p ON p.oid = i.inhparent"
        " WHERE p.relname = ANY(:tables) AND p.relkind = 'p' AND pg_table_is_visible(p.oid)"
        " AND NOT i.inhdetachpending"
    )
    return set(connection.execute(statement, {"tables": list(PARTITIONED)}).scalars())


def _make(connection: Connection, name: str, table: str, day: int) -> None:
    # A leftover of that name is a partition that was detached and not dropped yet: it goes first.
    bounds = f"FROM ({day * DAY_US}) TO ({(day + 1) * DAY_US})"
    for statement in (
        f"DROP TABLE IF EXISTS {name}",
        f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}",
    ):
        connection.execute(text(statement))


def before(connection: Connection, table: str, day: int) -> list[str]:
    """Partitions of days before `day`, oldest first; also those that were only half dropped."""
    statement = text(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)"
        " AND relname LIKE :like"
    )
    names = connection.execute(statement, {"like": f"{table}\\_%"}).scalars()
    return sorted(name for name in names if is_partition(name) and day_of(name) < day)


def drop(connection: Connection, table: str, name: str) -> None:
    """Take a partition away without keeping anybody waiting; may be repeated after a failure.

    The connection must be in autocommit mode.
    """
    state = connection.execute(
        text(
            "SELECT inhdetachpending FROM pg_inherits"
            " WHERE inhrelid = to_regclass(:name) AND inhparent = to_regclass(:table)"
        ),
        {"name": name, "table": table},
    ).scalar()
    if state is not None:
        how = "FINALIZE" if state else "CONCURRENTLY"
        connection.execute(text(f"ALTER TABLE {table} DETACH PARTITION {name} {how}"))
    connection.execute(text(f"DROP TABLE {name}"))
