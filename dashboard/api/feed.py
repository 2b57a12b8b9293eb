"""One poller for all sessions with the same rights: asks the service once a tick, only while
somebody is looking.

Pages read the last look and never wait for the network, so a slow or dead service cannot freeze
them. `Look.tick` grows with each look, so that what is drawn from it can be shared.

The poller has no rights of its own: it asks with the token of a reader who looks now. Where that
is refused it takes another's, and nobody else notices. Whether a reader may see a look is decided
before (`dashboard.session.rights`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from core import wire
from dashboard.api.client import AdminClient, Refused, ServiceError, Unreadable
from dashboard.api.lenders import Lenders
from dashboard.parts.window import Window

T = TypeVar("T")
TICK_S = 1.0
HISTORY_EVERY_S = 10.0
INTEREST_S = 20.0
"""Without a reader for this long the poller rests."""
FIRST_WAIT_S = 2.5
REFUSALS = (401, 403)
"""Status of an answer that is about the token, not about what was asked."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known about the service: the last good answers, and what went wrong since."""

    tick: int = 0
    state: wire.FleetState | None = None
    live: wire.Series | None = None
    good_at: datetime | None = None
    """Wall clock (UTC) of the last good answer; None before the first."""
    failing_since: datetime | None = None
    error: str = ""
    """Why the last try failed; empty when it succeeded."""
    unreadable: bool = False
    """The service answered, but not in the agreed shape."""
    refused: bool = False
    """The service answered, but took no reader's token."""

    def age_s(self, now: datetime) -> float | None:
        """Seconds since the last good answer."""
        return None if self.good_at is None else (now - self.good_at).total_seconds()


@dataclass(slots=True)
class _Past:
    asked: float
    window: Window
    fetched: float = -1e9
    series: wire.Series | None = None


class Feed:
    """The poller of one service, for readers with the same rights.

    client: lent from the beginning; before anything is asked there must be one (`lend`).
    """

    def __init__(
        self,
        client: AdminClient | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.good_s = -1e9
        """When the last good answer came, by the monotonic clock."""
        self._lenders = Lenders(clock)
        if client is not None:
            self._lenders.lend(client)
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._asked = -1e9
        self._look = Look()
        self._past: dict[object, _Past] = {}
        self._thread: threading.Thread | None = None
        self._first = threading.Event()
        self._wake = threading.Event()

    def lend(self, client: AdminClient) -> None:
        """A reader looks now: the poller may ask in its name. After a refusal somebody whose
        token is good waits for what that one brings."""
        if self._lenders.lend(client) and self._look.refused:
            self._first.clear()
            self._wake.set()

    def look(self) -> Look:
        """The last look; waits shortly when there was none yet or the poller had rested."""
        with self._lock:
            rested = self._clock() - self._asked > INTEREST_S
            self._asked = self._clock()
            if rested:
                self._first.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="feed")
                self._thread.start()
        self._first.wait(FIRST_WAIT_S)
        return self._look

    def past(self, window: Window) -> wire.Series | None:
        """The window per minute; None until it was fetched once. A fixed one is read once."""
        key = window.span or (window.start, window.end)
        with self._lock:
            past = self._past.setdefault(key, _Past(self._clock(), window))
            past.asked = self._clock()
            if past.series is None:
                self._wake.set()
            return past.series

    def poll(self) -> None:
        """Ask once; the thread does this each tick, and whoever has acted. One at a time: an
        answer from before an act does not come after the one that knows of it."""
        with self._polling:
            try:
                state = self._ask(lambda client: client.state())
                live = self._live(state.at)
            except ServiceError as e:
                self._failed(e)
            else:
                now, self.good_s = self._wall(), self._clock()
                self._look = Look(self._look.tick + 1, state, live, good_at=now)
        self._first.set()

    def _ask(self, call: Callable[[AdminClient], T]) -> T:
        """Ask in the name of a reader who looks now; of another where the token is refused."""
        while True:
            client = self._lenders.pick()
            try:
                return call(client)
            except Refused as e:
                if e.status not in REFUSALS or not self._lenders.refuse(client):
                    raise

    def _live(self, at: datetime) -> wire.Series:
        """The last minutes by steps that have ended at `at`: the same object until the next one
        ends, so that charts are drawn once a step, and never with a step that still fills."""
        last = self._look.live
        if last is not None and last.points:
            since = at - last.points[-1].at
            if timedelta(0) <= since < timedelta(seconds=2 * last.step_s):
                return last
        found = self._ask(lambda client: client.live_series())
        step = timedelta(seconds=found.step_s)
        ended = [p for p in found.points if p.at + step <= at]
        return found.model_copy(update={"points": ended or found.points})

    def _failed(self, e: ServiceError) -> None:
        last = self._look
        self._look = replace(
            last,
            tick=last.tick + 1,
            failing_since=last.failing_since or self._wall(),
            error=str(e),
            unreadable=isinstance(e, Unreadable),
            refused=isinstance(e, Refused) and e.status in REFUSALS,
        )

    def _poll_past(self) -> None:
        for key, past in list(self._past.items()):
            now, span = self._clock(), past.window.span
            if now - past.asked > INTEREST_S:
                del self._past[key]
            elif span is None and past.series is not None:
                continue
            elif now - past.fetched >= HISTORY_EVERY_S:
                end = past.window.end if span is None else self._wall()
                start = past.window.start if span is None else end - span
                try:
                    past.series = self._ask(partial(_minutes, start, end))
                except ServiceError as e:
                    self._failed(e)
                past.fetched = now

    def _run(self) -> None:
        while True:
            self._wake.clear()
            self.poll()
            if not self._look.error:
                self._poll_past()
            self._wake.wait(TICK_S)
            with self._lock:
                if self._clock() - self._asked > INTEREST_S:
                    self._thread = None
                    return


def _minutes(start: datetime, end: datetime, client: AdminClient) -> wire.Series:
    return client.minutes(start, end)
