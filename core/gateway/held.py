"""A placed request from its decision to its outcome: load, record and statistics end together."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from core.domain import Decision, Outcome, OutcomeKind

if TYPE_CHECKING:
    from core.audit import OpenDecision
    from core.fleet.ledger import Hold, Reservation
    from core.gateway.pipelining import Group
    from core.gateway.service import Service


class Held:
    """Holds a reservation. Exactly one outcome closes it: the one given to `finish`, or the one
    that leaving the context without it implies."""

    __slots__ = ("_holds", "_opened", "_service", "decision", "finished", "group", "reservation")

    def __init__(
        self,
        service: Service,
        decision: Decision,
        reservation: Reservation,
        opened: OpenDecision | None,
        *,
        group: Group | None = None,
        holds: dict[int, Hold] | None = None,
    ) -> None:
        self._service = service
        self._opened = opened
        self.decision = decision
        self.reservation = reservation
        self.finished = False
        self.group = group
        """What carries the request out together, where not one node (or a pair) does."""
        self._holds = holds or {}

    def release(self, slot: int) -> None:
        """A member of the group is free of its part."""
        hold = self._holds.pop(slot, None)
        if hold is not None:
            self._service.conductor.ledger.release(hold, self._service.clock.now())

    def finish(self, outcome: Outcome) -> None:
        """Give the load back, record the outcome, count it. Later calls do nothing."""
        if self.finished:
            return
        self.finished = True
        for slot in list(self._holds):
            self.release(slot)
        self._service.close(self.decision, self.reservation, self._opened, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.finished:
            return
        aborted = kind is not None and issubclass(kind, asyncio.CancelledError)
        self.finish(
            Outcome(
                kind=OutcomeKind.CLIENT_ABORT if aborted else OutcomeKind.LOST,
                error="" if kind is None else kind.__name__,
            )
        )
