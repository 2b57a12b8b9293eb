"""What operators say of nodes, stored in the transaction of the act that says it.

The sink brings words too (`storage.insert`), those that no operator spoke: a node as its settings
state it, a drain that has ended. They carry the time of the operator's word that they belong to,
or none at all, so that none of them ever replaces a later word of an operator.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from core.errors import Conflict
from core.ports import NodeWord
from storage.changes import NODES, announce
from storage.models import nodes, standings
from storage.rows import COLUMNS, Values, node_values, standing_values
from storage.types import to_micros


def say(connection: Connection, word: NodeWord) -> None:
    """Store a word. Conflict where a newer one is stored than its speaker had heard.

    Announcing first takes the lock under which words are spoken one after the other.
    """
    announce(connection, NODES)
    last = select(standings.c.updated_us).where(standings.c.name == word.name)
    stored_us = connection.execute(last).scalar()
    heard_us = 0 if word.heard is None else to_micros(word.heard)
    if stored_us is not None and stored_us > heard_us:
        raise Conflict(f"{word.name}: somebody else changed it meanwhile", field="node")
    if word.spec is not None:
        values = node_values(word.spec, word.state, word.at)
        _replace(connection, nodes, values, keep=("first_seen_us",))
    _replace(connection, standings, standing_values(word.name, word.data, word.at))


def _replace(
    connection: Connection, table: Table, values: Values, *, keep: tuple[str, ...] = ()
) -> None:
    """Store a row in the place of the one with its key, columns of `keep` apart."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    row = dict(zip(COLUMNS[table.name], values, strict=True))
    key = table.primary_key.columns.keys()
    changed = {n: v for n, v in row.items() if n not in key and n not in keep}
    statement = dialect.insert(table).values(row)
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changed))
