"""The periodic jobs of a process (APScheduler), and what each of them did last.

How it works. Work that comes round in seconds or more is a scheduled job: one run at a time,
missed runs are made up by one, a failure is counted and the next run comes all the same. Work
that comes round several times a second, or once for each node, runs in loops of its own, which
a scheduler would only slow down; such a loop notes its rounds here, so that one list shows all.

The scheduler plans by the wall clock. Where that is set back, jobs would sleep until it has caught
up; `hurry`, called from a loop on the monotonic clock, wakes those that are overdue, and follows
periods that were changed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from core.clock import Clock
from core.errors import ConductorError

Work = Callable[[], Awaitable[object] | object]
_OVERDUE_PERIODS = 2.0
_OVERDUE_S = 2.0
_ERROR_CHARS = 300
log = logging.getLogger("conductor.jobs")


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job: what it does and how it fares. Times are wall clock, None before the first."""

    name: str
    what: str
    every_s: float
    kind: Literal["job", "loop"]
    runs: int = 0
    failures: int = 0
    running: bool = False
    last_at: datetime | None = None
    last_s: float | None = None
    """How long the last run took."""
    last_error: str = ""
    """Of the last run that failed; stays until one succeeds."""
    last_error_at: datetime | None = None
    next_at: datetime | None = None
    """None for loops: they come round by themselves."""
    due_s: float = 0.0
    """Monotonic time of the next run, about."""


class Loop:
    """Handle of a loop: every round is noted through it."""

    def __init__(self, state: JobState, clock: Clock) -> None:
        self._state, self._clock = state, clock

    def note(self, seconds: float, error: str = "") -> None:
        """A round took so long; `error` is empty where it went well."""
        state = self._state
        state.runs += 1
        state.last_at, state.last_s = self._clock.wall(), seconds
        _note_error(state, error)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around one round; an exception is noted and goes on."""
        began = self._clock.now()
        try:
            yield
        except Exception as error:
            self.note(self._clock.now() - began, _text(error))
            raise
        self.note(self._clock.now() - began)


class Jobs:
    """Registry and scheduler of one process. Jobs run while its context is open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, JobState] = {}
        self._work: dict[str, Work] = {}
        self._paces: dict[str, Callable[[], float]] = {}
        self._scheduler: AsyncIOScheduler | None = None

    async def __aenter__(self) -> Self:
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._scheduler.start()
        for name in self._work:
            self._plan(name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=False)
            await asyncio.sleep(0)  # it stops in the loop's next round

    def add(
        self, name: str, work: Work, *, every_s: float | Callable[[], float], what: str
    ) -> None:
        """Run `work` every so many seconds, the first time one period from now.

        A period that is a function is asked again by `hurry`. ValueError for a name that is
        taken, or a period that is none.
        """
        period_s = every_s() if callable(every_s) else every_s
        if not period_s > 0:
            raise ValueError(f"{name}: {period_s} s is no period")
        self._new(JobState(name=name, what=what, every_s=period_s, kind="job"))
        self._work[name] = work
        if callable(every_s):
            self._paces[name] = every_s
        if self._scheduler is not None:
            self._plan(name)

    def loop(self, name: str, *, every_s: float, what: str) -> Loop:
        """A loop that runs by itself and notes its rounds. ValueError for a name that is taken."""
        return Loop(
            self._new(JobState(name=name, what=what, every_s=every_s, kind="loop")), self._clock
        )

    def drop(self, name: str) -> None:
        """Forget a job; one that is not known is ignored."""
        self._states.pop(name, None)
        self._work.pop(name, None)
        self._paces.pop(name, None)
        if self._scheduler is not None and self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    async def run(self, name: str) -> None:
        """Run a job now, apart from its schedule. KeyError for an unknown name."""
        await self._run(name)

    def states(self) -> list[JobState]:
        """Every job, by name."""
        for name, state in self._states.items():
            job = None if self._scheduler is None else self._scheduler.get_job(name)
            state.next_at = None if job is None else job.next_run_time
        return sorted(self._states.values(), key=lambda s: s.name)

    def hurry(self, now: float) -> None:
        """Wake jobs that should have run long ago by the monotonic clock."""
        if self._scheduler is None:
            return
        for name, pace in self._paces.items():
            self._pace(name, pace(), now)
        for name, state in self._states.items():
            slack_s = max(_OVERDUE_PERIODS * state.every_s, _OVERDUE_S)
            if state.kind == "job" and not state.running and now > state.due_s + slack_s:
                state.due_s = now + state.every_s
                self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    def _pace(self, name: str, period_s: float, now: float) -> None:
        state = self._states[name]
        if period_s == state.every_s or self._scheduler is None:
            return
        state.every_s, state.due_s = period_s, now + period_s
        trigger = IntervalTrigger(seconds=period_s, timezone=UTC)
        self._scheduler.reschedule_job(name, trigger=trigger)

    # -- inside ----------------------------------------------------------------------------

    def _new(self, state: JobState) -> JobState:
        if state.name in self._states:
            raise ValueError(f"there is a job {state.name!r} already")
        state.due_s = self._clock.now() + state.every_s
        self._states[state.name] = state
        return state

    def _plan(self, name: str) -> None:
        assert self._scheduler is not None
        self._scheduler.add_job(
            self._run,
            IntervalTrigger(seconds=self._states[name].every_s, timezone=UTC),
            args=(name,),
            id=name,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
        )

    async def _run(self, name: str) -> None:
        state, began = self._states.get(name), self._clock.now()
        if state is None or state.running:
            return
        state.running, state.last_at = True, self._clock.wall()
        problem = ""
        try:
            done = self._work[name]()
            if inspect.isawaitable(done):
                await done
        except ConductorError as error:
            problem = _text(error)
            log.warning("job %s: %s", name, problem)
        except Exception as error:
            # The schedule must go on over one bad run; it is counted and shown.
            problem = _text(error)
            log.exception("job %s failed", name)
        finally:
            now = self._clock.now()
            state.running, state.last_s = False, now - began
            state.runs += 1
            state.due_s = now + state.every_s
            _note_error(state, problem)
            if problem:
                state.last_error_at = self._clock.wall()


def _note_error(state: JobState, error: str) -> None:
    state.failures += bool(error)
    state.last_error = error


def _text(error: Exception) -> str:
    message = error.message if isinstance(error, ConductorError) else str(error)
    return f"{type(error).__name__}: {message}"[:_ERROR_CHARS]
