"""What a running process does for its database, in one thread: alive signs, roll-ups, retention.

Every process runs the same loop. Roll-ups, partitions and retention are slots, so that of several
processes one does each; a failure is counted and the slot stays due. Nothing here is needed for a
decision, nor for storing one.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from os import getpid

from sqlalchemy import Connection, Engine

from core.errors import StoreError
from core.ports import StoreUpkeep, StoreWork
from core.priority import interrupt_nobody
from storage import partitions
from storage.database import FAILURES, first_line, now_us, writer_engine
from storage.replicas import Presence, known
from storage.retention import Cleaned, Retention, Rules
from storage.rollups import RollUp, behind_s
from storage.slots import Slots
from storage.summary_models import LEVELS_S

log = logging.getLogger("conductor.storage")
_TICK_S = 1.0
_BEAT_S = 5.0
_AHEAD_DAYS = 3
_CATCH_UP = 3
"""Slots that are done late, where whoever had the job was paused in the middle of one."""
_ROLL_BUDGET_S = 3.0
_CLEAN_FOR_S, _CLEAN_BUDGET_S = 900.0, 3.0
"""How long one retention slot may go on, in turns that leave room for the rest."""


class Maintenance:
    """The loop. `start` it once the schema is there or on its way; `close` says goodbye."""

    def __init__(
        self,
        database_url: str,
        *,
        replica: str = "",
        version: str = "",
        address: str = "",
        rules: Rules | None = None,
    ) -> None:
        host = socket.gethostname()
        self.replica = replica or f"{host}-{getpid()}-{secrets.token_hex(2)}"
        """This process's name among the replicas."""
        self._engine: Engine = writer_engine(database_url, connections=2)
        self._presence = Presence(
            self._engine, self.replica, host=host, pid=getpid(), version=version, address=address
        )
        self._slots = Slots(self._engine, self.replica)
        self._roll_up = RollUp(self._engine)
        self._retention = Retention(self._engine, rules, sleep=self._sleep)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._next_beat_s = self._clean_until_s = 0.0
        self._state = StoreUpkeep()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop after the step at hand, and leave the replicas."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
            self._try("leave", self._presence.leave)
        self._engine.dispose()

    def upkeep(self) -> StoreUpkeep:
        """Figures for metrics and the console."""
        return self._state

    def tick(self) -> None:
        """Everything that is due now; failures are counted, none is raised."""
        if time.monotonic() >= self._next_beat_s:
            self._try("alive", self._beat)
        self._slot("partitions", 3_600.0, self._make_partitions)
        if self._slot("rollups.10", 10.0, _nothing):
            self._try("roll_up", lambda: self._roll(LEVELS_S[:1]))
        if self._slot("rollups.300", 60.0, _nothing):
            self._try("roll_up", lambda: self._roll(LEVELS_S))
        if self._slot("retention", 3_600.0, _nothing):
            self._clean_until_s = time.monotonic() + _CLEAN_FOR_S
        if time.monotonic() < self._clean_until_s:
            self._try("retention", self._clean)

    def _run(self) -> None:
        interrupt_nobody()
        while not self._stopping.is_set():
            self.tick()
            self._stopping.wait(_TICK_S)

    def _slot(self, job: str, period_s: float, work: Callable[[Connection, int], None]) -> bool:
        """Whether a slot of the job was ours now."""
        done: list[int | None] = []
        self._try(
            "slots",
            lambda: done.append(self._slots.run_due(job, period_s, work, catch_up=_CATCH_UP)),
        )
        return any(slot is not None for slot in done)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        text = ""
        try:
            act()
        except (StoreError, *FAILURES) as error:
            text = error.message if isinstance(error, StoreError) else first_line(error)
        was = self._state
        work = {**was.work, name: was.work.get(name, StoreWork()).ended(text)}
        self._state = replace(
            was,
            work=work,
            failures=was.failures + bool(text),
            last_error=text or next((w.last_error for w in work.values() if w.last_error), ""),
        )

    def _beat(self) -> None:
        self._presence.beat()
        self._next_beat_s = time.monotonic() + _BEAT_S
        with self._engine.connect() as connection:
            alive = sum(replica.alive for replica in known(connection))
            lag_s = behind_s(connection)
        self._state = replace(
            self._state, beat_at_s=time.time(), replicas_alive=alive, rollup_lag_s=lag_s
        )

    def _make_partitions(self, connection: Connection, _slot: int) -> None:
        today = now_us(connection) // partitions.DAY_US
        partitions.ensure(connection, range(today, today + _AHEAD_DAYS))

    def _roll(self, levels_s: tuple[int, ...]) -> None:
        rolled = self._roll_up.run(budget_s=_ROLL_BUDGET_S, levels_s=levels_s)
        self._state = replace(
            self._state,
            rolled_at_s=time.time(),
            rolled_buckets=self._state.rolled_buckets + rolled.buckets,
        )

    def _clean(self) -> None:
        found = self._retention.run(budget_s=_CLEAN_BUDGET_S)
        if not any(cleaned.left and not cleaned.refused for cleaned in found):
            self._clean_until_s = 0.0
        refused = "; ".join(_refusal(c) for c in found if c.refused)
        if refused and not self._state.refused:
            log.warning("old records are not deleted: %s", refused)
        self._state = replace(
            self._state,
            cleaned_at_s=time.time(),
            deleted_rows=self._state.deleted_rows + sum(c.deleted for c in found),
            refused=refused,
        )

    def _sleep(self, seconds: float) -> None:
        """A pause of the retention; it ends when we stop."""
        self._stopping.wait(seconds)


def _refusal(cleaned: Cleaned) -> str:
    return f"{cleaned.name}: {cleaned.refused}"


def _nothing(_connection: Connection, _slot: int) -> None:
    """The slot is claimed; its work follows in steps of its own, which may be repeated."""
