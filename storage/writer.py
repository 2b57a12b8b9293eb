"""The writer: a bounded queue, a thread that stores it in batches, a thread that keeps it safe.

How it works. Callers append and return. The storing thread waits a moment for company
(`interval_s`, or a full batch), and stores the batch in one transaction. A batch that cannot be
stored is set aside into the spool, and the spool's head is tried again with growing pauses until
the database is back; then the queue and the spool are emptied in turns. A row that can never be
stored is singled out, dropped and counted. Storing the same row twice changes nothing.

Where the spool is on disk, the keeping thread looks at it five times a second: what has waited
for `spool_after_s` in the queue, or in a batch that the database has not confirmed, is written
to the spool, and the spool is synced each second. So a killed process loses no more than the
last second, whether the database was there, away, or slow.
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
from core.priority import interrupt_nobody
from storage import rows
from storage.database import first_line, is_row_fault
from storage.insert import Inserter, Row
from storage.spool import Spool, Taken
from storage.types import to_micros

_KEEP_EVERY_S = 0.2
_SYNC_EVERY_S = 1.0
_PAUSE_MIN_S = 0.1
_PROMPT_ROOM = 20
"""A queue that is full to one part in so many takes no prompts any more."""
_SPOOLED_BATCHES = 3
"""Batches from the spool are so many times larger: nobody waits for company there."""


class _Item(NamedTuple):
    queued_s: float
    table: str
    render: Callable[..., rows.Values]
    args: tuple[Any, ...]


class _Batch:
    """Rows out of the queue or the spool and not confirmed yet."""

    def __init__(self, found: list[Row], since_s: float, taken: Taken | None = None) -> None:
        self.rows = found
        self.since_s = since_s
        self.taken = taken
        self.safe = taken is not None
        """Whether the spool has the rows too."""


class Writer:
    """A `RecordSink` over one database. `start` it once; `close` flushes.

    `prepare` is run by the thread before the first batch until it succeeds (it migrates the
    schema); it raises StoreError while the database is away. Without `spool`, what the database
    does not take stays in memory.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        spool: Spool | None = None,
        prepare: Callable[[], object] | None = None,
        capacity: int = 100_000,
        batch_max: int = 1_000,
        interval_s: float = 0.25,
        spool_after_s: float = 0.5,
        retry_max_s: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._inserter = Inserter(engine)
        self._spool = spool or Spool(None)
        self._prepare = prepare
        self._capacity = capacity
        self._batch_max = batch_max
        self._interval_s = interval_s
        self._spool_after_s = spool_after_s
        self._retry_max_s = retry_max_s
        self._clock = clock or SystemClock()
        self._queue: deque[_Item] = deque()
        self._batch: _Batch | None = None
        self._hand = threading.Lock()
        """Held while rows go from the queue or a batch to the spool, or a batch ends."""
        self._spool_turn = False
        self._queued = threading.Event()
        self._full = threading.Event()
        self._closing = threading.Event()
        self._retry = threading.Event()
        self._threads = [threading.Thread(target=self._run, name="record-writer", daemon=True)]
        if self._spool.on_disk:
            keeper = threading.Thread(target=self._keep_safe, name="record-keeper", daemon=True)
            self._threads.append(keeper)
        self._event_run = secrets.token_hex(3)
        self._event_numbers = itertools.count()
        self._deadline_s = float("inf")
        self._written = self._dropped = self._failures = self._last_rows = 0
        self._last_batch_s = 0.0
        self._last_error = ""
        self._away_since_s: float | None = None

    def start(self) -> None:
        """Begin storing."""
        for thread in self._threads:
            thread.start()

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

    def put_standing(self, name: str, data: Mapping[str, Any], at: datetime) -> None:
        """Keep what operators last said of `name`; `data` must be JSON-serialisable."""
        self._put("standings", rows.standing_values, name, data, at)

    def put_prompt(self, decision_id: str, at: datetime, render: Callable[[], str]) -> None:
        """Keep a prompt; dropped where few others fit beside them, for they are large."""
        if len(self._queue) * _PROMPT_ROOM >= self._capacity:
            self._dropped += 1
            return
        self._put("prompts", rows.prompt_values, decision_id, at, render)

    def counters(self) -> SinkCounters:
        """Figures for metrics and the console."""
        batch, spool, now_s = self._batch, self._spool.counters(), self._clock.now()
        held = 0 if batch is None or batch.taken is not None else len(batch.rows)
        since = [item.queued_s for item in itertools.islice(self._queue, 1)]
        since += [batch.since_s] if batch is not None else []
        since += [self._away_since_s] if self._away_since_s is not None and spool.rows else []
        return SinkCounters(
            queued=len(self._queue) + held + spool.memory_rows,
            written=self._written,
            dropped=self._dropped + spool.dropped,
            failures=self._failures,
            last_error=self._last_error or spool.last_error,
            available=self._away_since_s is None,
            lag_s=now_s - min(since, default=now_s),
            last_batch_rows=self._last_rows,
            last_batch_s=self._last_batch_s,
            spooled=spool.rows - spool.memory_rows,
            spool_bytes=spool.size_bytes,
            spool_bytes_max=self._spool.bytes_max,
            spool_damaged=spool.damaged,
            spool_failures=spool.failures,
        )

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything queued is stored or given up; False on time-out."""
        give_up_s = self._clock.now() + timeout_s
        while not self._idle():
            self._full.set()
            if self._clock.now() >= give_up_s:
                return False
            threading.Event().wait(0.005)
        return True

    def close(self, timeout_s: float = 10.0) -> None:
        """Store what is queued, for at most `timeout_s`; the rest is spooled, or dropped."""
        self._deadline_s = self._clock.now() + timeout_s
        self._closing.set()
        for waiting in (self._queued, self._full, self._retry):
            waiting.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(self._deadline_s - self._clock.now(), 0.0) + 1.0)
        self._keep_older_than(float("inf"))
        self._dropped += self._spool.close()
        self._engine.dispose()

    def _put(self, table: str, render: Callable[..., rows.Values], *args: Any) -> None:
        if len(self._queue) >= self._capacity or self._closing.is_set():
            self._dropped += 1
            return
        self._queue.append(_Item(self._clock.now(), table, render, args))
        # Setting what is set costs more than all the rest; who clears it looks at the queue next.
        if not self._queued.is_set():
            self._queued.set()
        if len(self._queue) >= self._batch_max and not self._full.is_set():
            self._full.set()

    def _event_row(
        self, number: int, kind: str, node: str, data: Mapping[str, Any], at: datetime
    ) -> rows.Values:
        key = f"{to_micros(at):014x}-{self._event_run}-{number:06x}"
        return rows.event_values(EventRecord(id=key, at=at, kind=kind, node=node, data=dict(data)))

    # -- the storing thread

    def _run(self) -> None:
        interrupt_nobody()
        pause_s = _PAUSE_MIN_S
        while not self._ended():
            batch = self._next()
            if batch is None:
                self._await_work()
            elif self._attempt(batch):
                self._finish(batch)
                pause_s = _PAUSE_MIN_S
            else:
                self._set_aside(batch)
                left_s = max(self._deadline_s - self._clock.now(), 0.0)
                self._retry.wait(min(pause_s, self._retry_max_s, left_s))
                self._retry.clear()
                pause_s *= 2

    def _ended(self) -> bool:
        if not self._closing.is_set():
            return False
        if self._spool.on_disk:
            nothing_left = self._away_since_s is not None or not (self._queue or self._batch)
        else:
            nothing_left = self._idle()
        return nothing_left or self._clock.now() >= self._deadline_s

    def _idle(self) -> bool:
        with self._hand:
            return not self._queue and self._batch is None and not self._spool.counters().rows

    def _await_work(self) -> None:
        if self._queued.wait(_KEEP_EVERY_S):
            self._full.wait(self._interval_s)
        self._queued.clear()
        self._full.clear()

    def _next(self) -> _Batch | None:
        """What to store next: what failed before, else queue and spool in turns."""
        with self._hand:
            if self._batch is not None:
                return self._batch
            self._spool_turn = not self._spool_turn
            taken = None
            if self._spool_turn or not self._queue or self._away_since_s is not None:
                taken = self._spool.take(self._batch_max * _SPOOLED_BATCHES)
            if taken is not None:
                self._batch = _Batch(taken.rows, self._clock.now(), taken)
            elif self._queue:
                since_s = self._queue[0].queued_s
                self._batch = _Batch(self._rendered(self._batch_max), since_s)
            return self._batch

    def _rendered(self, limit: int) -> list[Row]:
        """Up to `limit` rows off the queue. Values that are no rows are given up here, once."""
        found: list[Row] = []
        for _ in range(min(len(self._queue), limit)):
            item = self._queue.popleft()
            try:
                found.append(Row(item.table, item.render(*item.args)))
            except Exception as error:
                self._give_up(error)
        return found

    def _attempt(self, batch: _Batch) -> bool:
        """One try at the batch. Any failure that is no row's fault is worth another try."""
        started_s, count = self._clock.now(), len(batch.rows)
        try:
            if self._prepare is not None:
                self._prepare()
                self._prepare = None
            self._store(batch, batch.rows)
        except Exception as error:
            self._failures += 1
            self._last_error = first_line(error)
            if self._away_since_s is None:
                self._away_since_s = started_s
            return False
        self._away_since_s = None
        self._last_rows, self._last_batch_s = count, self._clock.now() - started_s
        return True

    def _store(self, batch: _Batch, found: list[Row]) -> None:
        """Store in one transaction; where a row is at fault, halve until it stands alone."""
        try:
            written = self._inserter.store(found)
        except Exception as error:
            if not is_row_fault(error):
                raise
            if len(found) > 1:
                middle = len(found) // 2
                self._store(batch, found[:middle])
                self._store(batch, found[middle:])
                return
            batch.rows = [row for row in batch.rows if row is not found[0]]
            self._store_mended(batch, found[0], error)
        else:
            self._written += written

    def _store_mended(self, batch: _Batch, row: Row, error: Exception) -> None:
        """A row at fault once more, with texts that every database takes; or given up."""
        mended = Row(row.table, rows.mended(row.values))
        if mended == row:
            self._give_up(error)
        else:
            self._store(batch, [mended])

    def _give_up(self, error: Exception) -> None:
        self._dropped += 1
        self._last_error = first_line(error)

    def _finish(self, batch: _Batch) -> None:
        with self._hand:
            self._batch = None
            if batch.taken is not None:
                self._spool.done(batch.taken)

    def _set_aside(self, batch: _Batch) -> None:
        """Into the spool with what failed; what came from there stays to be tried again."""
        with self._hand:
            if batch.taken is None:
                self._keep(batch)
                self._batch = None

    # -- the keeping thread

    def _keep_safe(self) -> None:
        interrupt_nobody()
        synced_s = self._clock.now()
        while not self._closing.wait(_KEEP_EVERY_S):
            now_s = self._clock.now()
            self._keep_older_than(now_s - self._spool_after_s)
            self._spool.write()
            if now_s - synced_s >= _SYNC_EVERY_S:
                self._spool.sync()
                synced_s = now_s

    def _keep_older_than(self, limit_s: float) -> None:
        """Into the spool with what has waited for too long, or would."""
        with self._hand:
            if self._batch is not None and self._batch.since_s <= limit_s:
                self._keep(self._batch)
            away = self._away_since_s is not None
            if self._queue and (away or self._queue[0].queued_s <= limit_s):
                self._spool.append(self._rendered(len(self._queue)))

    def _keep(self, batch: _Batch) -> None:
        if not batch.safe:
            self._spool.append(batch.rows)
            batch.safe = True
