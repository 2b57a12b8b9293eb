"""Requests in flight: one table, one sweeper, and one way to end a wait early.

Each request runs in its server task. Whatever it waits for (the engine's first byte, the next
one, a client that reads slowly) is bounded by `Flight.deadline_s`, which costs one attribute to
move; a sweeper compares it with the clock a few times a second instead of one timer an await.

Ending a wait. `Flight.interrupt(why)` cancels the request's task and says why. The task catches
its CancelledError where `why` can be handled (`Flight.handled`) and goes on; a cancellation
without a `why` is not ours and passes through. Only the first interrupt cancels: a later one can
only replace the reason by a stronger one (the client being gone beats everything).
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Iterator

from core.domain import NodeId


class Interrupt(enum.IntEnum):
    """Why a wait was ended, weakest first."""

    NONE = 0
    NODE_DEAD = 1
    """The node was declared dead before its first byte: the request moves."""
    BODY_TIMEOUT = 2
    FIRST_BYTE_TIMEOUT = 3
    IDLE_TIMEOUT = 4
    CLIENT_STALLED = 5
    """The client reads nothing although bytes wait for it."""
    SHUTDOWN = 6
    CLIENT_GONE = 7


class Flight:
    """One request's place in the table."""

    __slots__ = ("deadline_s", "interrupted", "movable", "nodes", "on_deadline", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.interrupted = Interrupt.NONE
        self.deadline_s = math.inf
        self.on_deadline = Interrupt.FIRST_BYTE_TIMEOUT
        self.nodes: tuple[NodeId, ...] = ()
        """Nodes the request waits for now."""
        self.movable = False
        """No byte was passed on yet: the request may go elsewhere when a node dies."""

    def wait(self, until_s: float, why: Interrupt) -> None:
        """Bound the next wait: `why` happens at `until_s`."""
        self.deadline_s = until_s
        self.on_deadline = why

    def rest(self) -> None:
        """No deadline: nothing outside is waited for."""
        self.deadline_s = math.inf

    def interrupt(self, why: Interrupt) -> None:
        """End the wait the task is in, for the reason `why`."""
        if self.interrupted is Interrupt.NONE:
            self.interrupted = why
            self.task.cancel()
        elif why > self.interrupted:
            self.interrupted = why

    def check(self) -> None:
        """Raise what an interrupt raises, where a library made something else of it (a timeout
        of its own that ran out in the same turn)."""
        if self.interrupted is not Interrupt.NONE:
            raise asyncio.CancelledError

    def handled(self) -> Interrupt:
        """Take the reason of the CancelledError just caught; NONE where it was not ours."""
        why, self.interrupted = self.interrupted, Interrupt.NONE
        if why is not Interrupt.NONE:
            self.task.uncancel()
        return why


class Flights:
    """The table."""

    def __init__(self) -> None:
        self._open: dict[int, Flight] = {}
        self._next = 0
        self.peak = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._open.values()))

    def enter(self, task: asyncio.Task[object]) -> tuple[int, Flight]:
        """Add a request; give the number back with `leave`."""
        self._next += 1
        flight = self._open[self._next] = Flight(task)
        self.peak = max(self.peak, len(self._open))
        return self._next, flight

    def leave(self, number: int) -> None:
        """Take a request out."""
        self._open.pop(number, None)

    def sweep(self, now: float) -> int:
        """Interrupt every request whose deadline has passed; how many."""
        late = [f for f in self._open.values() if f.deadline_s <= now]
        for flight in late:
            flight.rest()
            flight.interrupt(flight.on_deadline)
        return len(late)

    def node_died(self, node: NodeId) -> int:
        """Move the requests that wait for a dead node's first byte; how many."""
        moved = [f for f in self._open.values() if f.movable and node in f.nodes]
        for flight in moved:
            flight.interrupt(Interrupt.NODE_DEAD)
        return len(moved)
