"""An attempt that failed before any byte was passed on, and what may follow from it."""

from __future__ import annotations

import enum

from core.domain import NodeId, Outcome
from core.errors import EngineFault
from core.gateway.exchange import Exchange


class Retry(enum.Enum):
    """Whether another node may try after a failed attempt."""

    NO = "no"
    BUDGETED = "budgeted"
    FREE = "free"
    """The node is gone: moving its work adds no load."""


class EngineAnswer:
    """A whole answer of an engine, ready to be passed on: its status and body, our headers."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    async def pass_on(self, exchange: Exchange) -> None:
        """Send it to the client."""
        await exchange.head(self.status, self.headers)
        await exchange.end(self.body)


class AttemptFailed(Exception):
    """An attempt ended before any byte was passed on.

    fault: in our words; answer: in the engine's, where it spoke. suspects: nodes to avoid next;
    spare: those of them that were not at work, for where nobody is left without them.
    """

    def __init__(
        self,
        outcome: Outcome,
        *,
        retry: Retry,
        suspects: frozenset[NodeId],
        fault: EngineFault,
        answer: EngineAnswer | None = None,
        spare: frozenset[NodeId] = frozenset(),
    ) -> None:
        super().__init__(fault.message)
        self.outcome = outcome
        self.retry = retry
        self.suspects = suspects
        self.fault = fault
        self.answer = answer
        self.spare = spare
