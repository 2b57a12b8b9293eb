"""One node's event stream: sockets on one side, cursor, ingest and index on the other.

Theory of operation. Tasks only move messages from the sockets into an inbox. One worker takes
them out in turns, so that everything the cursor sees and the index learns happens in one order:
the cursor says what a message means, batches are applied in slices. What must not wait, forgetting
a dead process's blocks, is done at once, and drops whatever was queued before it.

A live batch that is lost while an engine then falls silent leaves no gap to notice. So a stream
that heard nothing for a while asks the replay socket for what would come next; whatever comes
back is handed on like a live message. The same is done when a connection returns.

Nothing is learned without a connection: a stream whose process died, or whose connection went
away in the middle of a replay, begins anew when it is connected again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from core.domain import EngineKind, NodeSpec
from core.engines.link import Link, ended
from core.engines.sockets import Frames, ReplayTimeout
from core.engines.stream_tools import StreamStatus, StreamTools
from core.errors import MalformedFrame
from core.fleet.trust import Signal
from core.index.event_stream import (
    Action,
    Apply,
    Degraded,
    EventCursor,
    Forget,
    Recovered,
    RequestReplay,
    Restarted,
    Status,
)
from core.index.events import REPLAY_END, parse_replay
from core.index.ingest import NodeIngest

_log = structlog.get_logger("conductor.engines")


@dataclass(frozen=True, slots=True)
class _Live:
    frames: Frames


@dataclass(frozen=True, slots=True)
class _Reply:
    frames: Frames
    token: int


@dataclass(frozen=True, slots=True)
class _Missed:
    """A batch that an audit found, as a live message."""

    frames: Frames
    seq: int


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str
    token: int


_Item = _Live | _Reply | _Missed | _Failed


class NodeStream:
    """Follows one node's events while its context is open.

    on_restart: the stream saw a new process. on_lost_link: a connection went away, which is how
    a dying process shows first.
    """

    def __init__(
        self,
        spec: NodeSpec,
        tools: StreamTools,
        *,
        on_restart: Callable[[], None],
        on_lost_link: Callable[[], None],
    ) -> None:
        assert spec.events is not None, "the node publishes no events"
        self._spec = spec
        self._endpoints = spec.events
        self._tools = tools
        self._on_restart = on_restart
        self._on_lost_link = on_lost_link
        self._cursor = self._new_cursor()
        self._ingest = NodeIngest(
            tools.conductor.index,
            tools.conductor.fleet.slot(spec.id),
            model=spec.models[0],
            block_size=spec.block_size,
            rank=spec.dp_rank,
            counts_copies=spec.engine is not EngineKind.SGLANG,
        )
        self.status = StreamStatus(endpoint=spec.events.live, cursor=self._cursor.stats)
        self._inbox: deque[_Item] = deque()
        self._pending: deque[Apply | Recovered] = deque()
        self._wake = asyncio.Event()
        self._replay: asyncio.Task[None] | None = None
        self._queued: int | None = None
        """Token of a replay that has not been asked for yet, since too many others run."""
        self._tasks: list[asyncio.Task[None]] = []
        self._link = Link(
            spec.events, tools, self.status, on_messages=self._arrived, on_change=self._changed
        )
        self._audited_s = self._now()
        self._complete = False
        self._doubted = False
        self.failed = False
        """Stopped by a fault of ours; a new stream has to be made."""

    # ---- life -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._ingest.forget()
        await self._link.__aenter__()
        name = self._spec.id
        self._tasks = [
            asyncio.create_task(self._work(), name=f"ingest {name}"),
            asyncio.create_task(self._tick(), name=f"stream {name}"),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await ended(*self._tasks, self._replay)
        await self._link.__aexit__(kind, error, trace)

    # ---- what others know -----------------------------------------------------------------

    def restarted(self, now: float) -> None:
        """The engine's process is another one, or gone; the conductor knows already."""
        self._begin_anew(now)

    def cleared(self, now: float) -> None:
        """The engine's cache was emptied from outside; its own news of it may come much later."""
        del now
        self._pending.clear()
        self._ingest.forget()

    def doubted(self, doubted: bool, now: float) -> None:
        """Predictions were not confirmed: learn the node's cache anew, once for each doubt."""
        if doubted and not self._doubted:
            self._begin_anew(now)
        self._doubted = doubted

    def _begin_anew(self, now: float) -> None:
        """Forget everything; learn again at once, or as soon as there is a connection."""
        self._pending.clear()
        self._inbox.clear()
        self._link.room.set()
        if self._replay is not None:
            self._replay.cancel()
        self._ingest.forget()
        stats = self._cursor.stats
        self._cursor = self._new_cursor()
        self._cursor.stats = stats
        self._complete = False
        if self.status.connected:
            self._enact(self._cursor.start(now))

    def _new_cursor(self) -> EventCursor:
        return EventCursor(has_replay=self._endpoints.replay is not None)

    # ---- messages in ----------------------------------------------------------------------

    def _arrived(self, messages: list[Frames]) -> None:
        self._put(map(_Live, messages))

    def _put(self, items: Iterable[_Item]) -> None:
        self._inbox.extend(items)
        if len(self._inbox) >= self._tools.rules.inbox_messages:
            self._link.room.clear()
        self._wake.set()

    def _start_replay(self, request: RequestReplay) -> None:
        if self._replay is not None:
            self._replay.cancel()
        self._replay = asyncio.create_task(self._fetch(request))

    async def _fetch(self, request: RequestReplay) -> None:
        self._queued = request.token
        async with self._tools.replays:
            self._queued = None
            self._cursor.replay_waiting(self._now(), token=request.token)
            try:
                async for frames in self._link.replay(request.from_seq):
                    await self._link.room.wait()
                    self._put([_Reply(frames, request.token)])
            except ReplayTimeout as error:
                self.status.replay_failures += 1
                self._put([_Failed(str(error), request.token)])

    # ---- work -----------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self.failed:
            await self._wake.wait()
            async with self._tools.turns.turn():
                self._guarded_turn()
            if not (self._inbox or self._pending):
                self._wake.clear()

    def _guarded_turn(self) -> None:
        """A fault of ours ends this stream's credit, not the process; the supervisor tries anew."""
        try:
            self._turn()
        except Exception as error:
            _log.exception("stream_failed", node=self._spec.id)
            self.failed = True
            self._ingest.forget()
            self._doubt(f"stopped by {type(error).__name__}: {error}")

    def _turn(self) -> None:
        """Work for about `turn_s`; batches first, since the inbox may hold their successors."""
        until = self._now() + self._tools.rules.turn_s
        while self._now() < until:
            if self._pending:
                self._apply_some()
            elif self._inbox:
                self._enact(self._understand(self._inbox.popleft()))
            else:
                break
        if len(self._inbox) < self._tools.rules.inbox_messages // 2:
            self._link.room.set()

    def _understand(self, item: _Item) -> list[Action]:
        now = self._now()
        if isinstance(item, _Live):
            return self._cursor.live(item.frames, now)
        if isinstance(item, _Reply):
            return self._cursor.replayed(item.frames, now, token=item.token)
        if isinstance(item, _Missed):
            known = max(_mark(self._cursor.last_live), _mark(self._cursor.last_applied))
            if item.seq <= known:
                return []
            self.status.catch_ups += 1
            return self._cursor.live(item.frames, now)
        return self._cursor.replay_failed(item.reason, now, token=item.token)

    def _apply_some(self) -> None:
        head = self._pending[0]
        if isinstance(head, Apply):
            if not self._ingest.apply(head.batch, self._tools.rules.slice_blocks):
                return
            self.status.last_seq = head.seq
        else:
            self._believe()
        self._pending.popleft()

    def _enact(self, actions: list[Action]) -> None:
        """Carry out what the cursor asks for; what is to be applied waits for its turn."""
        for action in actions:
            match action:
                case Apply():
                    self._pending.append(action)
                case Restarted():
                    self._on_restart()
                case Forget():
                    self._pending.clear()
                    self._ingest.forget()
                case Degraded(reason):
                    self._doubt(reason)
                case RequestReplay():
                    self._start_replay(action)
        live = self._cursor.status is Status.LIVE
        if live and not self._complete:
            self._complete = True
            self._pending.append(Recovered())
        if self._pending:
            self._wake.set()

    # ---- belief ---------------------------------------------------------------------------

    def _believe(self) -> None:
        self.status.problem = ""
        self._tools.conductor.cache_signal(self._spec.id, Signal.COMPLETE, self._now())

    def _doubt(self, reason: str) -> None:
        self._complete = False
        self.status.problem = reason
        _log.warning("events_lost", node=self._spec.id, reason=reason)
        conductor = self._tools.conductor
        conductor.cache_signal(self._spec.id, Signal.LOST, self._now(), cause=reason)

    # ---- connection -----------------------------------------------------------------------

    def _changed(self, up: bool) -> None:
        now = self._now()
        if not up:
            if self._cursor.status is Status.REPLAYING:
                self._begin_anew(now)
            self._on_lost_link()
        elif self._cursor.status is Status.UNKNOWN:
            self._enact(self._cursor.start(now))
        else:
            self._audit(now)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tools.rules.tick_s)
            now = self._now()
            if self._queued is not None:
                self._cursor.replay_waiting(now, token=self._queued)
            # What waits here was heard in time: a backlog of ours makes no engine late.
            if not (self._inbox or self._pending):
                self._enact(self._cursor.tick(now))
            self._look_at()
            if self._link.lost_s is None:
                self._audit_if_silent(now)
            else:
                self._void_if_lost(now, self._link.lost_s)
                await self._link.reopen_if_lost(now)

    def _look_at(self) -> None:
        """Bring the status up to date."""
        self.status.state = self._cursor.status
        self.status.backlog = len(self._inbox) + len(self._pending)
        self.status.ingest = self._ingest.stats()
        seen = self._ingest.block_size_seen
        if seen is not None:
            self.status.problem = (
                f"events carry blocks of {seen} tokens, the node has {self._ingest.block_size}"
            )

    def _void_if_lost(self, now: float, lost_s: float) -> None:
        """Removals may have been missed for long: nothing learned is believed any more."""
        if now - lost_s >= self._tools.rules.link_lost_s and not self.status.problem:
            if self._cursor.status is not Status.UNKNOWN:
                self._begin_anew(now)
            self._doubt(f"no connection to {self._endpoints.live}")

    # ---- audit ----------------------------------------------------------------------------

    def _audit_if_silent(self, now: float) -> None:
        heard_s = max(self.status.last_message_s or 0.0, self._audited_s)
        if now - heard_s >= self._tools.rules.audit_s:
            self._audit(now)

    def _audit(self, now: float) -> None:
        """Ask for what follows the last batch we know, unless a replay runs anyway."""
        self._audited_s = now
        idle = self._replay is None or self._replay.done()
        if idle and self._link.replays and self._cursor.status is Status.LIVE:
            self.status.audits += 1
            start = _mark(self._cursor.last_applied) + 1
            self._replay = asyncio.create_task(self._catch_up(start))

    async def _catch_up(self, start: int) -> None:
        """Hand on what was missed as if it came now."""
        async with self._tools.replays:
            try:
                async for frames in self._link.replay(start):
                    frame = parse_replay(frames)
                    if frame.seq != REPLAY_END:
                        await self._link.room.wait()
                        self._put([_Missed([frame.topic, frames[-2], frame.payload], frame.seq)])
            except (ReplayTimeout, MalformedFrame):
                self.status.replay_failures += 1

    def _now(self) -> float:
        return self._tools.clock.now()


def _mark(seq: int | None) -> int:
    return -1 if seq is None else seq
