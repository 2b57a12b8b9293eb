"""Telling other processes that something changed: at once on Postgres, within half a second on
SQLite.

Whoever changes something announces its topic in the same transaction. The topic's number is
counted up in a row that every process can compare with what it saw last; on Postgres a NOTIFY
wakes them as well. A notification that is lost (a broken connection, a pooler in between) costs
only the time to the next comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.dialects import postgresql, sqlite

from storage.database import FAILURES, first_line, reader_engine
from storage.fleet_models import topics

REVISIONS = "revisions"
NODES = "nodes"
_CHANNEL = "conductor_changes"
_POLL_S = 0.5
_COMPARE_S = 5.0
_RETRY_S = 1.0


def announce(connection: Connection, topic: str) -> None:
    """Tell everybody about a change, when and if the transaction is committed."""
    on_postgres = connection.dialect.name == "postgresql"
    dialect: Any = postgresql if on_postgres else sqlite
    statement = dialect.insert(topics).values(name=topic, number=1)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[topics.c.name], set_={"number": topics.c.number + 1}
        )
    )
    if on_postgres:
        notify = text("SELECT pg_notify(:channel, :topic)")
        connection.execute(notify, {"channel": _CHANNEL, "topic": topic})


def numbers(connection: Connection) -> dict[str, int]:
    """How often each topic was announced."""
    return {name: int(number) for name, number in connection.execute(select(topics))}


class ChangeWatch:
    """A thread that calls `on_change` with the topics that changed since it last looked.

    It also calls with every known topic after its first look and after each outage, because
    changes may have been missed. `on_change` runs in the thread and should hand over quickly.
    """

    def __init__(self, database_url: str, on_change: Callable[[frozenset[str]], None]) -> None:
        self._url = database_url
        self._on_change = on_change
        self._engine: Engine = reader_engine(database_url, connections=1)
        self._seen: Mapping[str, int] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="change-watch", daemon=True)
        self.failures = 0
        self.last_error = ""

    def start(self) -> None:
        """Begin watching."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching, within about a second."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_POLL_S + 5.0)
        self._engine.dispose()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._engine.dialect.name == "postgresql":
                    self._listen()
                else:
                    self._compare()
                    self._stopping.wait(_POLL_S)
            except FAILURES as error:
                self._seen = None
                self.failures += 1
                self.last_error = first_line(error)
                self._stopping.wait(_RETRY_S)

    def _listen(self) -> None:
        """Compare, then wait for notifications, comparing again now and then; until it fails."""
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text(f"LISTEN {_CHANNEL}"))
            driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
            compared_s = float("-inf")
            while not self._stopping.is_set():
                if time.monotonic() - compared_s >= _COMPARE_S:
                    self._tell(numbers(connection))
                    compared_s = time.monotonic()
                if any(True for _ in driver.notifies(timeout=_POLL_S, stop_after=1)):
                    compared_s = float("-inf")

    def _compare(self) -> None:
        with self._engine.connect() as connection:
            self._tell(numbers(connection))

    def _tell(self, found: Mapping[str, int]) -> None:
        before = self._seen
        changed = {n for n, count in found.items() if before is None or before.get(n) != count}
        self._seen = found
        if changed:
            self._on_change(frozenset(changed))
