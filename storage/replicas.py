"""Who is alive: each process says so every few seconds, by the database's clock."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, delete, insert, select, update

from core.ports import ReplicaRecord
from storage.database import now_us
from storage.fleet_models import replicas
from storage.types import from_micros

ALIVE_S = 15.0
"""A replica that was silent for longer counts as gone."""
_FORGET_S = 7 * 86_400.0
_MICROS = 1_000_000


class Presence:
    """One process's row among the replicas."""

    def __init__(
        self, engine: Engine, id: str, *, host: str, pid: int, version: str, address: str = ""
    ) -> None:
        self._engine = engine
        self._id = id
        self._who = {"host": host, "pid": pid, "version": version, "address": address}

    def beat(self) -> None:
        """Say that we are alive; the first time, that we are here."""
        with self._engine.begin() as connection:
            at_us = now_us(connection)
            mine = replicas.c.id == self._id
            seen = update(replicas).where(mine).values(seen_us=at_us, stopped_us=None)
            if not connection.execute(seen).rowcount:
                row = {"id": self._id, **self._who, "started_us": at_us, "seen_us": at_us}
                connection.execute(insert(replicas), [row])

    def leave(self) -> None:
        """Say that we stop in order."""
        with self._engine.begin() as connection:
            at_us = now_us(connection)
            left = update(replicas).where(replicas.c.id == self._id)
            connection.execute(left.values(seen_us=at_us, stopped_us=at_us))


def known(connection: Connection) -> list[ReplicaRecord]:
    """Every replica not forgotten yet, the newest start first."""
    at_us = now_us(connection)
    rows = connection.execute(select(replicas).order_by(replicas.c.started_us.desc()))
    return [
        ReplicaRecord(
            id=row.id,
            host=row.host,
            pid=row.pid,
            version=row.version,
            address=row.address,
            started_at=from_micros(row.started_us),
            seen_at=from_micros(row.seen_us),
            stopped_at=None if row.stopped_us is None else from_micros(row.stopped_us),
            alive=row.stopped_us is None and at_us - row.seen_us <= ALIVE_S * _MICROS,
        )
        for row in rows
    ]


def forget(connection: Connection) -> None:
    """Delete those that have been silent for a week."""
    cut_us = now_us(connection) - round(_FORGET_S * _MICROS)
    connection.execute(delete(replicas).where(replicas.c.seen_us < cut_us))
