"""Inserts that may be repeated: what is there already stays, or is refreshed where said so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

from storage.models import nodes


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert the rows whose key is not there yet; how many that were."""
    if connection.dialect.name == "postgresql":
        statement: Any = postgresql.insert(table).on_conflict_do_nothing()
    else:
        statement = sqlite.insert(table).on_conflict_do_nothing()
    return max(connection.execute(statement, rows).rowcount, 0)


def upsert_nodes(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Insert nodes, or refresh all but their first sight; how many rows that touched."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(nodes)
    statement = statement.on_conflict_do_update(
        index_elements=[nodes.c.id],
        set_={name: statement.excluded[name] for name in ("spec", "state", "updated_us")},
    )
    return max(connection.execute(statement, list(rows)).rowcount, 0)
