"""Acts on what the fleet's memory holds: checked, stored with their entry, and then done.

How it works. Whoever acts gives a function that checks the act and returns it as an `Act`: what
is to be stored, and what is to be done. One lock orders the acts of this process. All of an act
(its word on a node, its events, its entry in the administrative audit) is stored in one
transaction; then it is done and told. Without a database nothing is done, and the caller gets
StoreError. An act that is refused leaves an entry that says why.

Of two replicas that speak of one node at once, the second finds that more was said than it had
heard: it listens, checks its act anew, and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from core.domain import NodeSpec
from core.errors import ConductorError, Conflict, StoreError
from core.identity.audit import entry
from core.ports import EventRecord, NodeWord

if TYPE_CHECKING:
    from core.gateway.service import Service

TRIES = 3
"""How often an act is checked anew because another replica spoke first."""
_TICK = timedelta(microseconds=1)
Facts = Mapping[str, Any]


def nothing() -> None:
    """Where there is nothing to take back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """How a node (or the fleet, by its own name) stands after the act; see `NodeWord`."""

    name: str
    data: Facts
    spec: NodeSpec | None = None
    state: str = "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act, checked and not done yet.

    do: does it, once it is stored. undo: takes back what checking had to reserve. events: kind,
    node and data of each.
    """

    do: Callable[[], Awaitable[None]]
    undo: Callable[[], None] = nothing
    word: Word | None = None
    events: tuple[tuple[str, str, Facts], ...] = ()
    before: Facts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What the audit says of an act beside who did it: action, target, reason, what was asked."""

    action: str
    target: str = ""
    reason: str = ""
    after: Facts | None = None


class Committer:
    """Carries acts out, one at a time; one a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.restore: Callable[[], Awaitable[None]] | None = None
        """Reads what was said before this process started, where that could not be read yet."""

    async def run(self, cause: Cause, check: Callable[[], Act]) -> None:
        """Carry an act out to its end, even if whoever asked for it goes away.

        StoreError: nothing happened, for it cannot be stored. Whatever `check` raises, too.
        """
        task = asyncio.create_task(self._alone(cause, check), name=f"act {cause.action}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        finally:
            if task.done() and not task.cancelled():
                task.exception()

    async def stop(self) -> None:
        """Let what is under way end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _alone(self, cause: Cause, check: Callable[[], Act]) -> None:
        async with self._lock, self.refusals(cause):
            for left in reversed(range(TRIES)):
                act = check()
                with self._service.lifecycle.saying(act.word.name if act.word else ""):
                    try:
                        await self._store(cause, act)
                    except ConductorError as error:
                        act.undo()
                        if not isinstance(error, Conflict) or not left:
                            raise
                    else:
                        await act.do()
                        return
                await self._listen()

    @asynccontextmanager
    async def refusals(self, cause: Cause) -> AsyncIterator[None]:
        """Where the act cannot be done, an entry says so."""
        try:
            yield
        except ConductorError as error:
            store, at = self._service.store, self._service.clock.wall()
            if store is not None and not isinstance(error, StoreError):
                why = {**(cause.after or {}), "error": error.message}
                action, target = f"{cause.action}.refused", cause.target
                draft = entry(action, at, target=target, reason=cause.reason, after=why)
                with contextlib.suppress(StoreError):
                    await asyncio.to_thread(store.append_audit, draft)
            raise

    async def _listen(self) -> None:
        """Take over what was said meanwhile; StoreError where it cannot be read."""
        if self.restore is not None:
            await self.restore()
        await self._service.follower.follow(old_is_heard=True)

    # -- storing ---------------------------------------------------------------------------

    async def _store(self, cause: Cause, act: Act) -> None:
        store, at = self._service.store, self._service.clock.wall()
        if store is None:
            self._queue(act, at)
            return
        word, heard = self._word(act, at), self._service.lifecycle.heard_at
        audit = entry(cause.action, at, target=cause.target, reason=cause.reason,
                      before=act.before, after=cause.after)  # fmt: skip
        events = tuple(self._event(at, *event) for event in act.events)
        if word is not None:
            # Before it is stored: what this process said is no news to it.
            heard[word.name] = word.at
        try:
            await asyncio.to_thread(store.commit_act, events=events, word=word, audit=audit)
        except ConductorError:
            if word is not None:
                _put_back(heard, word)
            raise
        for kind, node, data in act.events:
            self._service.feed.publish(kind, node, data, at)

    def _word(self, act: Act, at: datetime) -> NodeWord | None:
        if act.word is None:
            return None
        heard = self._service.lifecycle.heard_at.get(act.word.name)
        return NodeWord(
            name=act.word.name,
            data=act.word.data,
            at=at if heard is None else max(at, heard + _TICK),
            heard=heard,
            spec=act.word.spec,
            state=act.word.state,
        )

    def _event(self, at: datetime, kind: str, node: str, data: Facts) -> EventRecord:
        """With an id that sorts by time among those of other events."""
        self._count += 1
        micros, chance = int(at.timestamp() * 1e6), self._service.rng.getrandbits(24)
        id = f"{micros:014x}-{chance:06x}-{self._count & 0xFFFFFF:06x}"
        return EventRecord(id=id, at=at, kind=kind, node=node, data=dict(data))

    def _queue(self, act: Act, at: datetime) -> None:
        """A service without a store has no audit; its records go where the others go."""
        service, word = self._service, act.word
        if service.recorder is not None and word is not None:
            service.recorder.standing(word.name, word.data, at)
            if word.spec is not None:
                service.recorder.node(word.spec, word.state, at)
        for kind, node, data in act.events:
            service.record_event(kind, node, data)


def _put_back(heard: dict[str, datetime], word: NodeWord) -> None:
    if word.heard is None:
        del heard[word.name]
    else:
        heard[word.name] = word.heard
