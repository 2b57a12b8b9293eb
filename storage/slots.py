"""Periodic work of several processes, each slot exactly once, without a leader.

A job's time is divided into slots of its period by the database's clock. Whoever finds a slot due
takes the job's lock for one transaction, stores the slot's row, does the work in that same
transaction, and commits: the row and what the work wrote are there together, or neither.

Theory of operation. A process that is killed or cut off loses its transaction, and with it lock
and row: another one finds the slot still due. A process that is paused in the middle keeps them
until the server ends its session, `stall_s` after its last word; when it wakes up, its commit
fails. Slots are taken in order, so none is passed over while its holder is stalled. On SQLite the
transaction holds the database's only write lock; processes on one machine are killed, not cut off.

The work must be short (its transaction is idle for `stall_s` at most) and write through the given
connection only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from sqlalchemy import Connection, Engine, func, insert, select, text

from core.errors import StoreError
from storage.database import FAILURES, first_line, now_us
from storage.fleet_models import slots

_LOCK_CLASS = 4_242
_MICROS = 1_000_000


class Slots:
    """Takes due slots for one process, named `replica`. Not for several threads at once."""

    def __init__(self, engine: Engine, replica: str, *, stall_s: float = 10.0) -> None:
        self._engine = engine
        self._replica = replica
        self._stall_ms = round(stall_s * 1000)

    def run_due(
        self,
        job: str,
        period_s: float,
        work: Callable[[Connection, int], None],
        *,
        catch_up: int = 1,
    ) -> int | None:
        """Do the oldest slot of the job that is due, if nobody else is at it; its number.

        `catch_up`: how many slots back, the current one included, are worth doing late. None
        when nothing is due or another process has the job. StoreError when the database fails,
        also at the last moment: then the slot was not done.
        """
        try:
            with self._engine.begin() as connection:
                if not self._take_job(connection, job):
                    return None
                slot = self._due(connection, job, period_s, catch_up)
                if slot is not None:
                    work(connection, slot)
                return slot
        except FAILURES as error:
            raise StoreError(f"slot of {job} not done: {first_line(error)}") from error

    def _take_job(self, connection: Connection, job: str) -> bool:
        """The job's lock until the transaction ends; False where another process has it."""
        if connection.dialect.name != "postgresql":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return True
        limit = f"SET LOCAL idle_in_transaction_session_timeout = {self._stall_ms}"
        connection.execute(text(limit))
        key = {"a": _LOCK_CLASS, "b": zlib.crc32(job.encode()) - (1 << 31)}
        found = connection.execute(text("SELECT pg_try_advisory_xact_lock(:a, :b)"), key)
        return bool(found.scalar_one())

    def _due(self, connection: Connection, job: str, period_s: float, catch_up: int) -> int | None:
        """The slot to do now, its row stored; None when all are done."""
        at_us = now_us(connection)
        current = int(at_us // (period_s * _MICROS))
        mine, number = slots.c.job == job, slots.c.slot
        newest = select(func.max(number)).where(mine, number <= current)
        last = connection.scalar(newest)
        slot = current if last is None else max(int(last) + 1, current - catch_up + 1)
        if slot > current:
            return None
        row = {"job": job, "slot": slot, "replica": self._replica, "at_us": at_us}
        connection.execute(insert(slots), [row])
        return slot
