"""The writer: a bounded queue and one thread that stores it in batches.

How it works: callers append and return. The thread sleeps until something is queued, waits a
moment for company (`interval_s`, or a full batch), and stores the batch in one transaction.
While the database is away the batch is kept and tried again with growing pauses; the queue goes
on filling, and when it is full new values are dropped and counted, telemetry first. A row that
can never be stored is singled out, dropped and counted, so that it does not hold up the rest.
Storing the same batch twice changes nothing.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine

from core.clock import Clock, SystemClock
from core.domain import NodeSpec, Telemetry
from core.ports import DecisionRecord, EventRecord, OutcomeRecord, SinkCounters
from storage import rows
from storage.database import first_line, is_row_fault
from storage.insert import Inserter, Row
from storage.types import to_micros


class _Item(NamedTuple):
    queued_s: float
    table: str
    render: Callable[..., rows.Values]
    args: tuple[Any, ...]


class Writer:
    """A `RecordSink` over one database. `start` it once; `close` flushes.

    `prepare` is run by the thread before the first batch until it succeeds (it migrates the
    schema); it raises StoreError while the database is away.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        prepare: Callable[[], object] | None = None,
        capacity: int = 100_000,
        batch_max: int = 1_000,
        interval_s: float = 0.25,
        retry_max_s: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._inserter = Inserter(engine)
        self._prepare = prepare
        self._capacity = capacity
        self._batch_max = batch_max
        self._interval_s = interval_s
        self._retry_max_s = retry_max_s
        self._clock = clock or SystemClock()
        self._queue: deque[_Item] = deque()
        self._batch: list[Row] = []
        self._batch_since_s = 0.0
        self._busy = False
        """Whether values may be out of the queue but not stored yet."""
        self._queued = threading.Event()
        self._full = threading.Event()
        self._closing = threading.Event()
        self._retry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="record-writer", daemon=True)
        self._event_run = secrets.token_hex(3)
        self._event_numbers = itertools.count()
        self._deadline_s = float("inf")
        self._written = self._dropped = self._failures = self._last_rows = 0
        self._last_batch_s = 0.0
        self._last_error = ""
        self._available = True

    def start(self) -> None:
        """Begin storing."""
        self._thread.start()

    def put_decision(self, record: DecisionRecord) -> None:
        """Keep a decision or rejection."""
        self._put("decisions", rows.decision_values, record)

    def put_outcome(self, record: OutcomeRecord) -> None:
        """Keep an outcome; it may come before its decision is stored."""
        self._put("outcomes", rows.outcome_values, record)

    def put_telemetry(self, node: str, at: datetime, reading: Telemetry) -> None:
        """Keep one reading; the first to go when the queue is more than half full."""
        if len(self._queue) * 2 >= self._capacity:
            self._dropped += 1
            return
        self._put("node_telemetry", rows.telemetry_values, node, at, reading)

    def put_event(self, kind: str, node: str, data: Mapping[str, Any], at: datetime) -> None:
        """Keep a transition; `data` must be JSON-serialisable."""
        self._put("events", self._event_row, next(self._event_numbers), kind, node, data, at)

    def put_node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        """Keep a node as registered, with its life-cycle state."""
        self._put("nodes", rows.node_values, spec, state, at)

    def counters(self) -> SinkCounters:
        """Figures for metrics and the console."""
        waiting = list(itertools.islice(self._queue, 1))
        oldest_s = self._batch_since_s if self._batch else waiting[0].queued_s if waiting else None
        return SinkCounters(
            queued=len(self._queue) + len(self._batch),
            written=self._written,
            dropped=self._dropped,
            failures=self._failures,
            last_error=self._last_error,
            available=self._available,
            lag_s=0.0 if oldest_s is None else self._clock.now() - oldest_s,
            last_batch_rows=self._last_rows,
            last_batch_s=self._last_batch_s,
        )

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything queued is stored or given up; False on time-out."""
        give_up_s = self._clock.now() + timeout_s
        while self._queue or self._busy:
            self._full.set()
            if self._clock.now() >= give_up_s:
                return False
            threading.Event().wait(0.005)
        return True

    def close(self, timeout_s: float = 10.0) -> None:
        """Store what is queued, for at most `timeout_s`; drop and count the rest."""
        self._deadline_s = self._clock.now() + timeout_s
        self._closing.set()
        for waiting in (self._queued, self._full, self._retry):
            waiting.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 1.0)
        self._dropped += len(self._queue) + len(self._batch)
        self._queue.clear()
        self._batch = []
        self._engine.dispose()

    def _put(self, table: str, render: Callable[..., rows.Values], *args: Any) -> None:
        if len(self._queue) >= self._capacity or self._closing.is_set():
            self._dropped += 1
            return
        self._queue.append(_Item(self._clock.now(), table, render, args))
        self._queued.set()
        if len(self._queue) >= self._batch_max:
            self._full.set()

    def _event_row(
        self, number: int, kind: str, node: str, data: Mapping[str, Any], at: datetime
    ) -> rows.Values:
        key = f"{to_micros(at):014x}-{self._event_run}-{number:06x}"
        return rows.event_values(EventRecord(id=key, at=at, kind=kind, node=node, data=dict(data)))

    def _run(self) -> None:
        while not self._closing.is_set() or self._queue:
            self._queued.wait()
            self._full.wait(self._interval_s)
            self._queued.clear()
            self._full.clear()
            self._busy = True
            while self._queue:
                self._take()
                if not self._store_batch():
                    return
            self._busy = False

    def _take(self) -> None:
        """Make the queue's head the batch. Values that are no rows are given up here, once."""
        self._batch_since_s = self._queue[0].queued_s
        batch: list[Row] = []
        for _ in range(min(len(self._queue), self._batch_max)):
            item = self._queue.popleft()
            try:
                batch.append(Row(item.table, item.render(*item.args)))
            except Exception as error:
                self._give_up(error)
        self._batch = batch

    def _store_batch(self) -> bool:
        """Store the batch however long it takes; False when closing ends that first."""
        pause_s = 0.1
        while not self._attempt():
            left_s = self._deadline_s - self._clock.now()
            if left_s <= 0:
                return False
            self._retry.wait(min(pause_s, left_s, self._retry_max_s))
            self._retry.clear()
            pause_s *= 2
        self._batch = []
        return True

    def _attempt(self) -> bool:
        """One try at the batch. Any failure that is no row's fault is worth another try."""
        started_s, count = self._clock.now(), len(self._batch)
        try:
            if self._prepare is not None:
                self._prepare()
                self._prepare = None
            self._store(self._batch)
        except Exception as error:
            self._failures += 1
            self._available = False
            self._last_error = first_line(error)
            return False
        self._available = True
        self._last_rows, self._last_batch_s = count, self._clock.now() - started_s
        return True

    def _store(self, batch: list[Row]) -> None:
        """Store in one transaction; where a row is at fault, halve until it stands alone."""
        try:
            written = self._inserter.store(batch)
        except Exception as error:
            if not is_row_fault(error):
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                self._store(batch[:middle])
                self._store(batch[middle:])
                return
            self._batch = [row for row in self._batch if row is not batch[0]]
            self._store_mended(batch[0], error)
        else:
            self._written += written

    def _store_mended(self, row: Row, error: Exception) -> None:
        """A row at fault once more, with texts that every database takes; or given up."""
        mended = Row(row.table, rows.mended(row.values))
        if mended == row:
            self._give_up(error)
        else:
            self._store([mended])

    def _give_up(self, error: Exception) -> None:
        self._dropped += 1
        self._last_error = first_line(error)
