"""The state machine of one engine's event stream: order, gaps, replay, restart.

Theory of operation
-------------------
An index that has applied every batch of an engine, each once and in order, equals the engine's
cache. An index that forgot everything and then applied every batch from some point on lists a
subset of it. Both are safe: they promise no block that is not there. What is not safe is to have
missed a batch, which may have removed blocks. So a batch is applied only when it follows the
last applied one, and whenever a batch is lost for good the node is forgotten first.

Batches are numbered from 0 by the engine's process. Two marks are kept: the last live number and
the last applied one, which a replay may have carried further. A live number beyond the live mark
is new: applied if it is next, dropped if a replay brought it, else a gap. One at or behind the
live mark is a duplicate if the same bytes were seen lately, else the engine has started again.

A gap holds live batches back and asks for replay from the last applied batch on. That batch is
asked for again on purpose: batches carry a time, so equal bytes prove that the process is still
the same, and anything else in its place means a restart that the numbers had hidden. A replay
that begins later means that history is lost: forget, then relearn from what is left. One that
breaks off is asked for again, three times at most without progress; then the node is forgotten,
its signal is degraded, and the stream rests for a while before it starts anew. A restart without
a gap cannot be seen here: a changed epoch (process start, lost connection) is told from outside.

    UNKNOWN    not started                       LIVE       every batch applied in order
    REPLAYING  live batches held, replay runs    COOLING    forgotten; live batches not applied

The machine is pure: it takes frames, replies and times, and returns actions for others to carry
out in order. Replays are told apart by a token, so that late replies cannot do harm.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import product

from core.errors import MalformedFrame
from core.index.events import REPLAY_END, Frame, parse_live, parse_replay
from core.index.stream_steps import ATTEMPTS_MAX, CursorSteps, digest
from core.index.stream_types import (
    Action,
    Apply,
    CursorStats,
    Degraded,
    Forget,
    Recovered,
    Replay,
    RequestReplay,
    Restarted,
    Status,
)

__all__ = [
    "Action",
    "Apply",
    "CursorStats",
    "Degraded",
    "EventCursor",
    "Forget",
    "Recovered",
    "RequestReplay",
    "Restarted",
    "Status",
]

REPLAY_IDLE_S = 2.0
REPLAY_TOTAL_S = 120.0


class _Input(enum.Enum):
    START = enum.auto()
    NEXT = enum.auto()
    OLD = enum.auto()
    DUPLICATE = enum.auto()
    BEHIND = enum.auto()
    AHEAD = enum.auto()
    NOISE = enum.auto()
    EPOCH = enum.auto()
    REPLAY_NEXT = enum.auto()
    REPLAY_OLD = enum.auto()
    REPLAY_LATE = enum.auto()
    REPLAY_FOREIGN = enum.auto()
    REPLAY_HOLE = enum.auto()
    REPLAY_END = enum.auto()
    REPLAY_FAILED = enum.auto()
    COOLED = enum.auto()


class EventCursor(CursorSteps):
    """One engine's stream. `has_replay` tells whether there is a replay socket to ask."""

    # -- inputs --------------------------------------------------------------------------------

    def start(self, now: float, *, applied: int | None = None, digest: int = 0) -> list[Action]:
        """The subscription stands: learn what came before, if there is a way to ask.

        applied, digest: last batch that the index already holds (from a snapshot). The replay
        goes on from there if the engine still knows that very batch, else all is forgotten.
        """
        if self.status is Status.UNKNOWN and applied is not None:
            self.last_applied, self.applied_digest = applied, digest
        return self._take(_Input.START, now)

    def live(self, frames: Sequence[bytes], now: float) -> list[Action]:
        """A message from the live socket."""
        try:
            frame = parse_live(frames)
            if frame.seq < 0:
                raise MalformedFrame("a live message has a sequence number of 0 or more")
        except MalformedFrame:
            return self._take(_Input.NOISE, now) if self.too_noisy(now) else []
        mark = digest(frame.payload)
        kind = self._classify_live(frame.seq, mark)
        if kind not in (_Input.DUPLICATE, _Input.BEHIND):
            self.last_live = frame.seq
            self._digests.append(mark)
        self._frame = frame
        return self._take(kind, now)

    def replayed(self, frames: Sequence[bytes], now: float, *, token: int) -> list[Action]:
        """A reply from the replay socket to the request with `token`."""
        replay = self._replay
        if replay is None or replay.token != token:
            return []
        try:
            frame = parse_replay(frames)
        except MalformedFrame:
            noisy = self.too_noisy(now)
            return self._take(_Input.NOISE if noisy else _Input.REPLAY_FAILED, now)
        kind = self._classify_reply(frame, replay)
        replay.heard_at, replay.replied = now, True
        self._frame = frame
        return self._take(kind, now)

    def replay_failed(self, reason: str, now: float, *, token: int) -> list[Action]:
        """The replay could not be asked for or broke off."""
        if self._replay is None or self._replay.token != token:
            return []
        self._reason = reason
        return self._take(_Input.REPLAY_FAILED, now)

    def replay_waiting(self, now: float, *, token: int) -> None:
        """The replay has not been sent yet, since too many others run: its time starts now."""
        if self._replay is not None and self._replay.token == token and not self._replay.replied:
            self._replay.heard_at = self._replaying_since = now

    def epoch_changed(self, reason: str, now: float) -> list[Action]:
        """Something else than the stream shows that the engine has started again."""
        self._reason = reason
        return self._take(_Input.EPOCH, now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed: slow replays fail, cooling ends. To be called about once a second."""
        if self.status is Status.COOLING and now >= self._cooling_until:
            return self._take(_Input.COOLED, now)
        replay = self._replay
        if replay is None:
            return []
        if now - self._replaying_since > REPLAY_TOTAL_S:
            self._attempts = ATTEMPTS_MAX
        elif now - replay.heard_at <= REPLAY_IDLE_S:
            return []
        self._reason = "replay timed out"
        return self._take(_Input.REPLAY_FAILED, now)

    # -- classification ------------------------------------------------------------------------

    def _classify_live(self, seq: int, mark: int) -> _Input:
        if self.last_live is not None and seq <= self.last_live:
            return _Input.DUPLICATE if mark in self._digests else _Input.BEHIND
        if self.last_applied is None or seq == self.last_applied + 1:
            return _Input.NEXT
        return _Input.OLD if seq <= self.last_applied else _Input.AHEAD

    def _classify_reply(self, frame: Frame, replay: Replay) -> _Input:
        applied = -1 if self.last_applied is None else self.last_applied
        if replay.proves and not replay.replied:
            if frame.seq > applied:
                return _Input.REPLAY_LATE
            if frame.seq != applied or digest(frame.payload) != self.applied_digest:
                return _Input.REPLAY_FOREIGN
        if frame.seq == REPLAY_END:
            return _Input.REPLAY_END
        if frame.seq <= applied:
            return _Input.REPLAY_OLD
        if frame.seq == applied + 1:
            return _Input.REPLAY_NEXT
        return _Input.REPLAY_HOLE if replay.replied else _Input.REPLAY_LATE

    def _take(self, kind: _Input, now: float) -> list[Action]:
        """Look the transition up, take its steps, return what they ask for."""
        self._now = now
        for step in _TABLE[self.status, kind]:
            step(self)
        self._frame = None
        out, self._out = self._out, []
        return out


_Step = Callable[[CursorSteps], None]
_C = CursorSteps
_S, _I = Status, _Input
_NOTHING: dict[tuple[Status, _Input], tuple[_Step, ...]] = dict.fromkeys(product(_S, _I), ())
"""Before the start nothing counts; while cooling nothing is applied; replies need a replay."""
_TABLE = _NOTHING | {
    (_S.UNKNOWN, _I.START): (_C.begin,),
    (_S.LIVE, _I.NEXT): (_C.apply,),
    (_S.LIVE, _I.OLD): (_C.drop,),
    (_S.LIVE, _I.DUPLICATE): (_C.drop,),
    (_S.LIVE, _I.AHEAD): (_C.gap,),
    (_S.LIVE, _I.BEHIND): (_C.backwards, _C.restart, _C.renumber, _C.relearn),
    (_S.LIVE, _I.EPOCH): (_C.restart, _C.renumber, _C.learn),
    (_S.LIVE, _I.NOISE): (_C.give_up,),
    (_S.REPLAYING, _I.NEXT): (_C.hold,),
    (_S.REPLAYING, _I.AHEAD): (_C.hold,),
    (_S.REPLAYING, _I.OLD): (_C.drop,),
    (_S.REPLAYING, _I.DUPLICATE): (_C.drop,),
    (_S.REPLAYING, _I.BEHIND): (_C.backwards, _C.restart, _C.renumber, _C.relearn),
    (_S.REPLAYING, _I.EPOCH): (_C.restart, _C.renumber, _C.learn),
    (_S.REPLAYING, _I.NOISE): (_C.give_up,),
    (_S.REPLAYING, _I.REPLAY_NEXT): (_C.apply_reply,),
    (_S.REPLAYING, _I.REPLAY_OLD): (_C.drop,),
    (_S.REPLAYING, _I.REPLAY_LATE): (_C.lost_history,),
    (_S.REPLAYING, _I.REPLAY_FOREIGN): (_C.foreign, _C.learn),
    (_S.REPLAYING, _I.REPLAY_HOLE): (_C.hole,),
    (_S.REPLAYING, _I.REPLAY_END): (_C.drain,),
    (_S.REPLAYING, _I.REPLAY_FAILED): (_C.retry,),
    (_S.COOLING, _I.BEHIND): (_C.backwards, _C.restart, _C.renumber),
    (_S.COOLING, _I.EPOCH): (_C.restart, _C.renumber),
    (_S.COOLING, _I.COOLED): (_C.learn,),
}
